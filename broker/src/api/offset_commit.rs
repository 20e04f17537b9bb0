use std::time::Duration;

use bytes::Bytes;
use cluster::image::MetadataImage;
use cluster::protocol::NamedTopic;
use kafka_wire::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use kafka_wire::messages::{OffsetCommitRequest, OffsetCommitResponse};
use kafka_wire::{ResponseError, client};

use super::Api;
use super::call::Call;
use super::forward::{ForwardError, GROUP, frame};
use super::topics;
use crate::net::Answer;
use crate::rpc::Destination;

/// How long a partition that this broker has not heard of is waited for: the client may have read it at another broker,
/// which was told of the topic some milliseconds earlier.
const NEWS: Duration = Duration::from_millis(500);

impl Api {
    /// Offsets of partitions that do not exist are refused; the group's shard takes the others. It is told which topics
    /// they are of, so that a commit that is late does not become one of a later topic of the same name.
    pub(super) async fn offset_commit(&self, call: Call, request: OffsetCommitRequest) -> Answer {
        let mut image = self.metadata.image();
        let all_exist = |image: &MetadataImage| {
            topics_of(&request).all(|(topic, index)| topics::exists(image, topic, index))
        };
        if !all_exist(&image) {
            image = self.image_when(self.env.instant() + NEWS, all_exist).await;
        }
        let exists = |topic: &str, index: i32| topics::exists(&image, topic, index);
        let mut known = request.clone();
        for topic in &mut known.topics {
            let name = topic.name.clone();
            topic
                .partitions
                .retain(|partition| exists(&name, partition.partition_index));
        }
        known.topics.retain(|topic| !topic.partitions.is_empty());
        let whole = all_exist(&image);
        let mut codes = Vec::new();
        if !known.topics.is_empty() {
            let answer = match self.commit(&call, &image, &known, whole).await {
                // The common case: the owner's answer is passed back as it is.
                Ok(answer) if whole => return call.pass_back(answer),
                other => other
                    .and_then(|answer| Ok(client::decode::<OffsetCommitRequest>(answer, call.version())?)),
            };
            codes = match answer {
                Ok((_, response)) => codes_of(&response),
                Err(error) => {
                    tracing::debug!(%error, "the owner of a group cannot be reached");
                    vec![ResponseError::CoordinatorNotAvailable.code(); topics_of(&known).count()]
                }
            };
        }
        let mut codes = codes.into_iter();
        call.reply(answer(&request, |topic, index| {
            if exists(topic, index) {
                codes.next().unwrap_or(ResponseError::UnknownServerError.code())
            } else {
                ResponseError::UnknownTopicOrPartition.code()
            }
        }))
    }

    /// Has the group's shard take `request`: the `whole` one of the call, or what is left of it.
    async fn commit(
        &self,
        call: &Call,
        image: &MetadataImage,
        request: &OffsetCommitRequest,
        whole: bool,
    ) -> Result<Bytes, ForwardError> {
        let frame = if whole {
            call.frame.clone()
        } else {
            frame(call, request, call.version())?
        };
        let named = request.topics.iter().filter_map(|topic| {
            let id = image.topic(&topic.name)?.id;
            let name = topic.name.to_string();
            Some(NamedTopic { name, id })
        });
        let deadline = self.env.instant() + GROUP;
        let owner = Destination::Shard(self.group_shard(&request.group_id, deadline).await?);
        let (host, topics) = (&call.peer.host, Some(named.collect()));
        Ok(self
            .coordinators
            .forward(owner, host, frame, topics, deadline)
            .await?)
    }
}

/// Every partition of a request, in order.
fn topics_of(request: &OffsetCommitRequest) -> impl Iterator<Item = (&str, i32)> {
    request.topics.iter().flat_map(|topic| {
        let partitions = topic.partitions.iter();
        partitions.map(|partition| (topic.name.as_str(), partition.partition_index))
    })
}

/// The code of every partition, in order.
fn codes_of(response: &OffsetCommitResponse) -> Vec<i16> {
    let partitions = response.topics.iter().flat_map(|topic| &topic.partitions);
    partitions.map(|partition| partition.error_code).collect()
}

/// An answer with the code of every partition.
fn answer(request: &OffsetCommitRequest, mut code: impl FnMut(&str, i32) -> i16) -> OffsetCommitResponse {
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
