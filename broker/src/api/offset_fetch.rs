use std::collections::BTreeMap;

use kafka_wire::ResponseError;
use kafka_wire::messages::offset_fetch_request::OffsetFetchRequestGroup;
use kafka_wire::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponseTopic,
};
use kafka_wire::messages::{OffsetFetchRequest, OffsetFetchResponse};
use types::ShardId;

use super::Api;
use super::call::Call;
use super::forward::GROUP;
use crate::net::Answer;
use crate::rpc::Destination;

/// First version that asks for several groups.
const GROUPS: i16 = 8;

/// The code that every client takes for "find the coordinator again": COORDINATOR_NOT_AVAILABLE ends some of them here.
const FAILED: ResponseError = ResponseError::NotCoordinator;

impl Api {
    pub(super) async fn offset_fetch(&self, call: Call, request: OffsetFetchRequest) -> Answer {
        if call.version() < GROUPS {
            let group = request.group_id.0.clone();
            return self
                .to_group(call, &group, GROUP, |_| failed_single(request).into())
                .await;
        }
        let image = self.metadata.image();
        let mut by_shard: BTreeMap<ShardId, Vec<OffsetFetchRequestGroup>> = BTreeMap::new();
        for group in &request.groups {
            by_shard
                .entry(image.group_shard(&group.group_id))
                .or_default()
                .push(group.clone());
        }
        let failed = |groups: &[OffsetFetchRequestGroup]| {
            let failed = OffsetFetchResponseGroup::default().with_error_code(FAILED.code());
            groups
                .iter()
                .map(|group| failed.clone().with_group_id(group.group_id.clone()))
                .collect::<Vec<_>>()
        };
        if let Some(first) = request.groups.first()
            && by_shard.len() == 1
        {
            let group = first.group_id.0.clone();
            let failed = |_| {
                OffsetFetchResponse::default()
                    .with_groups(failed(&request.groups))
                    .into()
            };
            return self.to_group(call, &group, GROUP, failed).await;
        }
        let deadline = self.env.instant() + GROUP;
        let asked = by_shard.into_iter().map(|(shard, groups)| {
            let part = request.clone().with_groups(groups.clone());
            let (call, failed) = (&call, &failed);
            async move {
                match self
                    .ask(call, Destination::Shard(shard), &part, call.version(), deadline)
                    .await
                {
                    Ok(answer) => answer.groups,
                    Err(error) => {
                        tracing::debug!(%shard, %error, "offsets of groups cannot be fetched");
                        failed(&groups)
                    }
                }
            }
        });
        let groups = futures::future::join_all(asked)
            .await
            .into_iter()
            .flatten()
            .collect();
        call.reply(OffsetFetchResponse::default().with_groups(groups))
    }
}

/// The error stands with every partition, too: before version 2 there is no other place.
fn failed_single(request: OffsetFetchRequest) -> OffsetFetchResponse {
    let topics = request.topics.unwrap_or_default().into_iter().map(|topic| {
        let partitions = topic.partition_indexes.iter().map(|index| {
            OffsetFetchResponsePartition::default()
                .with_partition_index(*index)
                .with_committed_offset(-1)
                .with_metadata(Some(kafka_wire::StrBytes::default()))
                .with_error_code(FAILED.code())
        });
        let partitions = partitions.collect();
        OffsetFetchResponseTopic::default()
            .with_name(topic.name)
            .with_partitions(partitions)
    });
    OffsetFetchResponse::default()
        .with_topics(topics.collect())
        .with_error_code(FAILED.code())
}
