//! DescribeGroups and ListGroups.

use bytes::Bytes;
use kafka_wire::messages::describe_groups_response::{DescribedGroup, DescribedGroupMember};
use kafka_wire::messages::list_groups_response::ListedGroup;
use kafka_wire::messages::{
    DescribeGroupsRequest, DescribeGroupsResponse, GroupId, ListGroupsRequest, ListGroupsResponse,
};
use kafka_wire::{ResponseError, ResponseKind, StrBytes};

use crate::group::{Group, Member, State};
use crate::service::GroupService;

/// What everybody may do with a group (bits of Kafka's `AclOperation`): read, delete, describe, describe and alter its
/// configuration.
const OPERATIONS: i32 = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11;
/// First version in which a group that does not exist is an error (KIP-1043).
const NOT_FOUND: i16 = 6;

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

impl GroupService {
    pub(crate) fn describe(
        &self,
        version: i16,
        request: &DescribeGroupsRequest,
    ) -> Result<ResponseKind, ResponseError> {
        let mut groups = Vec::new();
        let operations = if request.include_authorized_operations {
            OPERATIONS
        } else {
            i32::MIN
        };
        for id in &request.groups {
            let described = self.with(id, |state| match state.groups.get(id.as_str()) {
                Some(group) => described(group),
                None => {
                    let dead = DescribedGroup::default().with_group_state(text("Dead"));
                    if version < NOT_FOUND {
                        return dead;
                    }
                    let message = format!("Group {} not found.", id.as_str());
                    dead.with_error_code(ResponseError::GroupIdNotFound.code())
                        .with_error_message(Some(text(&message)))
                }
            })?;
            let operations = match described.error_code {
                0 => operations,
                _ => i32::MIN,
            };
            groups.push(
                described
                    .with_group_id(id.clone())
                    .with_authorized_operations(operations),
            );
        }
        Ok(ResponseKind::DescribeGroups(
            DescribeGroupsResponse::default().with_groups(groups),
        ))
    }

    pub(crate) fn list(&self, request: &ListGroupsRequest) -> Result<ResponseKind, ResponseError> {
        let matches = |filter: &[StrBytes], value: &str| {
            filter.is_empty() || filter.iter().any(|wanted| wanted.eq_ignore_ascii_case(value))
        };
        let groups = self.with("", |state| {
            let shown = state.groups.iter().filter(|(_, group)| {
                matches(&request.states_filter, group.state.name())
                    && matches(&request.types_filter, "classic")
            });
            let listed = shown.map(|(id, group)| {
                ListedGroup::default()
                    .with_group_id(GroupId(text(id)))
                    .with_protocol_type(text(group.protocol_type.as_deref().unwrap_or_default()))
                    .with_group_state(text(group.state.name()))
                    .with_group_type(text("classic"))
            });
            listed.collect()
        })?;
        Ok(ResponseKind::ListGroups(
            ListGroupsResponse::default().with_groups(groups),
        ))
    }
}

fn described(group: &Group) -> DescribedGroup {
    let stable = group.state == State::Stable;
    let protocol = group.protocol.as_deref().filter(|_| stable).unwrap_or_default();
    let member = |member: &Member| {
        DescribedGroupMember::default()
            .with_member_id(text(&member.id))
            .with_group_instance_id(member.instance_id.as_deref().map(text))
            .with_client_id(text(&member.client_id))
            .with_client_host(text(&member.client_host))
            .with_member_metadata(if stable {
                member.metadata(protocol)
            } else {
                Bytes::new()
            })
            .with_member_assignment(member.assignment.clone())
    };
    DescribedGroup::default()
        .with_group_state(text(group.state.name()))
        .with_protocol_type(text(group.protocol_type.as_deref().unwrap_or_default()))
        .with_protocol_data(text(protocol))
        .with_members(group.members.values().map(member).collect())
}
