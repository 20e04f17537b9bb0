use std::collections::BTreeMap;

use kafka_wire::ResponseError;
use kafka_wire::messages::delete_groups_response::DeletableGroupResult;
use kafka_wire::messages::{DeleteGroupsRequest, DeleteGroupsResponse, GroupId};
use types::ShardId;

use super::Api;
use super::call::Call;
use super::forward::GROUP;
use crate::net::Answer;
use crate::rpc::Destination;

impl Api {
    /// Every owner deletes its own groups.
    pub(super) async fn delete_groups(&self, call: Call, request: DeleteGroupsRequest) -> Answer {
        let image = self.metadata.image();
        let mut by_shard: BTreeMap<ShardId, Vec<GroupId>> = BTreeMap::new();
        for group in &request.groups_names {
            by_shard
                .entry(image.group_shard(group))
                .or_default()
                .push(group.clone());
        }
        let deadline = self.env.instant() + GROUP;
        let asked = by_shard.into_iter().map(|(shard, groups)| {
            let part = request.clone().with_groups_names(groups);
            let call = &call;
            async move {
                match self
                    .ask(call, Destination::Shard(shard), &part, call.version(), deadline)
                    .await
                {
                    Ok(answer) => answer.results,
                    Err(error) => {
                        tracing::debug!(%shard, %error, "groups cannot be deleted");
                        part.groups_names.into_iter().map(unreachable).collect()
                    }
                }
            }
        });
        let results = futures::future::join_all(asked)
            .await
            .into_iter()
            .flatten()
            .collect();
        call.reply(DeleteGroupsResponse::default().with_results(results))
    }
}

fn unreachable(group: GroupId) -> DeletableGroupResult {
    DeletableGroupResult::default()
        .with_group_id(group)
        .with_error_code(ResponseError::CoordinatorNotAvailable.code())
}
