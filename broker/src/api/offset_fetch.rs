use kafka_wire::ResponseError;
use kafka_wire::messages::offset_fetch_request::OffsetFetchRequestGroup;
use kafka_wire::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponseTopic,
};
use kafka_wire::messages::{OffsetFetchRequest, OffsetFetchResponse};

use super::Api;
use super::call::Call;
use super::forward::GROUP;
use crate::net::Answer;

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
        if let [group] = request.groups.as_slice() {
            // The common case: the owner's answer is passed back as it is.
            let group = group.clone();
            let id = group.group_id.0.clone();
            let answer = |_| {
                OffsetFetchResponse::default()
                    .with_groups(vec![failed(group)])
                    .into()
            };
            return self.to_group(call, &id, GROUP, answer).await;
        }
        let part = |groups| request.clone().with_groups(groups);
        let results = |answer: OffsetFetchResponse| answer.groups;
        let groups = &request.groups;
        let groups = self
            .ask_owners(
                &call,
                groups,
                |group| group.group_id.as_str(),
                part,
                results,
                failed,
            )
            .await;
        call.reply(OffsetFetchResponse::default().with_groups(groups))
    }
}

fn failed(group: OffsetFetchRequestGroup) -> OffsetFetchResponseGroup {
    OffsetFetchResponseGroup::default()
        .with_group_id(group.group_id)
        .with_error_code(FAILED.code())
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
