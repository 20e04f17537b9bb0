use kafka_wire::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use kafka_wire::messages::{OffsetCommitRequest, OffsetCommitResponse};

use super::Api;
use super::call::Call;
use super::forward::GROUP;
use crate::net::Answer;

impl Api {
    pub(super) async fn offset_commit(&self, call: Call, request: OffsetCommitRequest) -> Answer {
        let group = request.group_id.0.clone();
        self.to_group(call, &group, GROUP, |error| {
            let topics = request.topics.into_iter().map(|topic| {
                let partitions = topic.partitions.iter().map(|partition| {
                    OffsetCommitResponsePartition::default()
                        .with_partition_index(partition.partition_index)
                        .with_error_code(error.code())
                });
                let partitions = partitions.collect();
                OffsetCommitResponseTopic::default()
                    .with_name(topic.name)
                    .with_partitions(partitions)
            });
            OffsetCommitResponse::default()
                .with_topics(topics.collect())
                .into()
        })
        .await
    }
}
