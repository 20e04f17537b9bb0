use kafka_wire::ResponseError;
use kafka_wire::messages::describe_groups_response::DescribedGroup;
use kafka_wire::messages::{DescribeGroupsRequest, DescribeGroupsResponse, GroupId};

use super::Api;
use super::call::Call;
use crate::net::Answer;

impl Api {
    /// Every owner describes its own groups.
    pub(super) async fn describe_groups(&self, call: Call, request: DescribeGroupsRequest) -> Answer {
        let part = |groups| request.clone().with_groups(groups);
        let results = |answer: DescribeGroupsResponse| answer.groups;
        let groups = &request.groups;
        let all = self
            .ask_owners(&call, groups, |group| group, part, results, unreachable)
            .await;
        call.reply(DescribeGroupsResponse::default().with_groups(all))
    }
}

fn unreachable(group: GroupId) -> DescribedGroup {
    DescribedGroup::default()
        .with_group_id(group)
        .with_error_code(ResponseError::CoordinatorNotAvailable.code())
}
