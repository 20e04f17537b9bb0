use kafka_wire::messages::elect_leaders_response::{PartitionResult, ReplicaElectionResult};
use kafka_wire::messages::{ElectLeadersRequest, ElectLeadersResponse};
use kafka_wire::{ResponseError, StrBytes};

use super::Api;
use super::call::Call;
use super::topics;
use crate::net::Answer;

impl Api {
    /// Any broker leads any partition: there is never an election to hold. Asked for all partitions, Kafka names only
    /// those whose leader has changed.
    pub(super) fn elect_leaders(&self, call: Call, request: ElectLeadersRequest) -> Answer {
        let image = self.metadata.image();
        let asked = request.topic_partitions.unwrap_or_default().into_iter();
        let results = asked.map(|topic| {
            let partitions = topic.partitions.iter().map(|index| {
                let result = PartitionResult::default().with_partition_id(*index);
                if topics::exists(&image, &topic.topic, *index) {
                    let text = "Every broker serves every partition: its leader is the preferred one.";
                    result
                        .with_error_code(ResponseError::ElectionNotNeeded.code())
                        .with_error_message(Some(StrBytes::from_static_str(text)))
                } else {
                    result
                        .with_error_code(ResponseError::UnknownTopicOrPartition.code())
                        .with_error_message(Some(topics::UNKNOWN))
                }
            });
            let partitions = partitions.collect();
            ReplicaElectionResult::default()
                .with_topic(topic.topic)
                .with_partition_result(partitions)
        });
        let results = results.collect();
        call.reply(ElectLeadersResponse::default().with_replica_election_results(results))
    }
}
