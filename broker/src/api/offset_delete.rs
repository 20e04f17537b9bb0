use kafka_wire::ResponseError;
use kafka_wire::messages::offset_delete_response::{
    OffsetDeleteResponsePartition, OffsetDeleteResponseTopic,
};
use kafka_wire::messages::{OffsetDeleteRequest, OffsetDeleteResponse};

use super::Api;
use super::call::Call;
use super::forward::GROUP;
use super::topics;
use crate::net::Answer;
use crate::rpc::Destination;

impl Api {
    /// The group's shard deletes the offsets of those partitions that exist.
    pub(super) async fn offset_delete(&self, call: Call, request: OffsetDeleteRequest) -> Answer {
        if request.group_id.is_empty() {
            let error = ResponseError::InvalidGroupId.code();
            return call.reply(OffsetDeleteResponse::default().with_error_code(error));
        }
        let image = self.metadata.image();
        let mut known = request.clone();
        for topic in &mut known.topics {
            let exists = |index| topics::exists(&image, &topic.name, index);
            topic
                .partitions
                .retain(|partition| exists(partition.partition_index));
        }
        known.topics.retain(|topic| !topic.partitions.is_empty());
        let mut answer = OffsetDeleteResponse::default();
        if !known.topics.is_empty() {
            let deadline = self.env.instant() + GROUP;
            let asked = async {
                let owner = Destination::Shard(self.group_shard(&request.group_id, deadline).await?);
                self.ask(&call, owner, &known, call.version(), deadline).await
            };
            answer = match asked.await {
                Ok(answer) => answer,
                Err(error) => {
                    tracing::debug!(%error, "the owner of a group cannot be reached");
                    answer.with_error_code(ResponseError::CoordinatorNotAvailable.code())
                }
            };
        }
        if answer.error_code != 0 {
            return call.reply(answer.with_topics(Vec::new()));
        }
        let decided = answer.topics.iter().flat_map(|topic| &topic.partitions);
        let mut decided = decided.map(|partition| partition.error_code);
        let results = request.topics.iter().map(|topic| {
            let partitions = topic.partitions.iter().map(|partition| {
                let code = if topics::exists(&image, &topic.name, partition.partition_index) {
                    decided.next().unwrap_or(ResponseError::UnknownServerError.code())
                } else {
                    ResponseError::UnknownTopicOrPartition.code()
                };
                OffsetDeleteResponsePartition::default()
                    .with_partition_index(partition.partition_index)
                    .with_error_code(code)
            });
            OffsetDeleteResponseTopic::default()
                .with_name(topic.name.clone())
                .with_partitions(partitions.collect())
        });
        call.reply(OffsetDeleteResponse::default().with_topics(results.collect()))
    }
}
