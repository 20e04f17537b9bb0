use kafka_wire::ResponseError;
use kafka_wire::messages::delete_groups_response::DeletableGroupResult;
use kafka_wire::messages::{DeleteGroupsRequest, DeleteGroupsResponse, GroupId};

use super::Api;
use super::call::Call;
use crate::net::Answer;

impl Api {
    /// Every owner deletes its own groups.
    pub(super) async fn delete_groups(&self, call: Call, request: DeleteGroupsRequest) -> Answer {
        let part = |groups| request.clone().with_groups_names(groups);
        let results = |answer: DeleteGroupsResponse| answer.results;
        let groups = &request.groups_names;
        let all = self
            .ask_owners(&call, groups, |group| group, part, results, unreachable)
            .await;
        call.reply(DeleteGroupsResponse::default().with_results(all))
    }
}

fn unreachable(group: GroupId) -> DeletableGroupResult {
    DeletableGroupResult::default()
        .with_group_id(group)
        .with_error_code(ResponseError::CoordinatorNotAvailable.code())
}
