use kafka_wire::messages::alter_partition_reassignments_response::{
    ReassignablePartitionResponse, ReassignableTopicResponse,
};
use kafka_wire::messages::{
    AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse, BrokerId,
};
use kafka_wire::{ResponseError, StrBytes};

use super::Api;
use super::call::Call;
use super::topics;
use crate::net::Answer;

const NOTHING_MOVES: StrBytes = StrBytes::from_static_str("No partition reassignment is in progress.");
const NO_REPLICAS: StrBytes = StrBytes::from_static_str(
    "Partitions of this cluster are kept in the object store: there are no replicas to move.",
);

impl Api {
    /// Records lie in the object store: no replica can be moved, and no move can be cancelled. To move a partition to where
    /// this client sees it is to do nothing, as in Kafka.
    pub(super) fn alter_partition_reassignments(
        &self,
        call: Call,
        request: AlterPartitionReassignmentsRequest,
    ) -> Answer {
        let image = self.metadata.image();
        let steering = self.steering(&call, &image);
        // `None`: there is no such partition.
        let leader = |topic: &str, index: i32| {
            let (partition, _) = topics::partition(image.topic(topic)?, index).ok()?;
            Some(steering.leader(partition).map(|broker| BrokerId(broker.id.0)))
        };
        let topics = request.topics.into_iter().map(|topic| {
            let partitions = topic.partitions.iter().map(|partition| {
                let refusal = match (
                    leader(&topic.name, partition.partition_index),
                    &partition.replicas,
                ) {
                    (None, _) => Some((ResponseError::UnknownTopicOrPartition, topics::UNKNOWN)),
                    (Some(_), None) => Some((ResponseError::NoReassignmentInProgress, NOTHING_MOVES)),
                    (Some(Some(now)), Some(wanted)) if *wanted == [now] => None,
                    (Some(_), Some(_)) => Some((ResponseError::InvalidReplicaAssignment, NO_REPLICAS)),
                };
                let (error, message) = refusal.unzip();
                ReassignablePartitionResponse::default()
                    .with_partition_index(partition.partition_index)
                    .with_error_code(kafka_wire::code(error))
                    .with_error_message(message)
            });
            let partitions = partitions.collect();
            ReassignableTopicResponse::default()
                .with_name(topic.name)
                .with_partitions(partitions)
        });
        let responses = topics.collect();
        call.reply(
            AlterPartitionReassignmentsResponse::default()
                .with_error_message(None)
                .with_responses(responses),
        )
    }
}
