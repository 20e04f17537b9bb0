use std::collections::BTreeMap;
use std::time::Duration;

use cluster::image::MetadataImage;
use kafka_wire::ResponseError;
use kafka_wire::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use kafka_wire::messages::{OffsetCommitRequest, OffsetCommitResponse};

use super::Api;
use super::call::Call;
use super::forward::GROUP;
use super::topics;
use crate::net::Answer;
use crate::rpc::Destination;

/// How long a partition that this broker has not heard of is waited for: the client may have read it at another broker,
/// which was told of the topic some milliseconds earlier.
const NEWS: Duration = Duration::from_millis(500);

impl Api {
    /// Offsets of partitions that do not exist are refused; the group's shard takes the others.
    pub(super) async fn offset_commit(&self, call: Call, request: OffsetCommitRequest) -> Answer {
        let mut image = self.metadata.image();
        let all_exist = |image: &MetadataImage| {
            request.topics.iter().all(|topic| {
                let exists = |index| topics::exists(image, &topic.name, index);
                let mut partitions = topic.partitions.iter();
                partitions.all(|partition| exists(partition.partition_index))
            })
        };
        if !all_exist(&image) {
            image = self.image_when(self.env.instant() + NEWS, all_exist).await;
        }
        if all_exist(&image) {
            // The common case: the owner's answer is passed back as it is.
            let group = request.group_id.0.clone();
            let failed = |error: ResponseError| answer(&request, |_, _| error.code()).into();
            return self.to_group(call, &group, GROUP, failed).await;
        }
        let mut known = request.clone();
        for topic in &mut known.topics {
            let exists = |index| topics::exists(&image, &topic.name, index);
            topic
                .partitions
                .retain(|partition| exists(partition.partition_index));
        }
        known.topics.retain(|topic| !topic.partitions.is_empty());
        let mut response = OffsetCommitResponse::default();
        if !known.topics.is_empty() {
            let owner = Destination::Shard(image.group_shard(&request.group_id));
            let deadline = self.env.instant() + GROUP;
            response = match self.ask(&call, owner, &known, call.version(), deadline).await {
                Ok(response) => response,
                Err(error) => {
                    tracing::debug!(%error, "the owner of a group cannot be reached");
                    answer(&known, |_, _| ResponseError::CoordinatorNotAvailable.code())
                }
            };
        }
        let mut decided = BTreeMap::new();
        for topic in &response.topics {
            for partition in &topic.partitions {
                decided.insert(
                    (topic.name.as_str(), partition.partition_index),
                    partition.error_code,
                );
            }
        }
        let unknown = ResponseError::UnknownTopicOrPartition.code();
        call.reply(answer(&request, |topic, index| {
            decided.get(&(topic, index)).copied().unwrap_or(unknown)
        }))
    }
}

/// An answer with the code of every partition.
fn answer(request: &OffsetCommitRequest, code: impl Fn(&str, i32) -> i16) -> OffsetCommitResponse {
    let topics = request.topics.iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|partition| {
            OffsetCommitResponsePartition::default()
                .with_partition_index(partition.partition_index)
                .with_error_code(code(&topic.name, partition.partition_index))
        });
        OffsetCommitResponseTopic::default()
            .with_name(topic.name.clone())
            .with_partitions(partitions.collect())
    });
    OffsetCommitResponse::default().with_topics(topics.collect())
}
