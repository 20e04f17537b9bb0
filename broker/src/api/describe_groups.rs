use std::collections::BTreeMap;

use kafka_wire::ResponseError;
use kafka_wire::messages::describe_groups_response::DescribedGroup;
use kafka_wire::messages::{DescribeGroupsRequest, DescribeGroupsResponse, GroupId};
use types::ShardId;

use super::Api;
use super::call::Call;
use super::forward::GROUP;
use crate::net::Answer;
use crate::rpc::Destination;

impl Api {
    /// Every owner describes its own groups.
    pub(super) async fn describe_groups(&self, call: Call, request: DescribeGroupsRequest) -> Answer {
        let image = self.metadata.image();
        let mut by_shard: BTreeMap<ShardId, Vec<GroupId>> = BTreeMap::new();
        for group in &request.groups {
            by_shard
                .entry(image.group_shard(group))
                .or_default()
                .push(group.clone());
        }
        let deadline = self.env.instant() + GROUP;
        let asked = by_shard.into_iter().map(|(shard, groups)| {
            let part = request.clone().with_groups(groups);
            let call = &call;
            async move {
                match self
                    .ask(call, Destination::Shard(shard), &part, call.version(), deadline)
                    .await
                {
                    Ok(answer) => answer.groups,
                    Err(error) => {
                        tracing::debug!(%shard, %error, "groups cannot be described");
                        part.groups.into_iter().map(unreachable).collect()
                    }
                }
            }
        });
        let groups = futures::future::join_all(asked)
            .await
            .into_iter()
            .flatten()
            .collect();
        call.reply(DescribeGroupsResponse::default().with_groups(groups))
    }
}

fn unreachable(group: GroupId) -> DescribedGroup {
    DescribedGroup::default()
        .with_group_id(group)
        .with_error_code(ResponseError::CoordinatorNotAvailable.code())
}
