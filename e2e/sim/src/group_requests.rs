//! The requests of group members. Errors that tell a member what to do are values.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestTopic;
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    GroupId, HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, OffsetCommitRequest, OffsetFetchRequest,
    SyncGroupRequest,
};
use kafka_protocol::protocol::StrBytes;

use crate::client::{Client, Failure, topic_name};
use crate::requests::{codes, missing};

/// The shortest that Kafka allows, ms.
const SESSION_TIMEOUT: i32 = 6_000;
/// ms; a JoinGroup is answered before the client gives it up.
const REBALANCE_TIMEOUT: i32 = 5_000;

pub(crate) const UNKNOWN_MEMBER_ID: i16 = 25;

/// In whose name a member speaks.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) generation: i32,
    pub(crate) member: String,
}

impl Identity {
    /// A consumer that is no member.
    pub(crate) fn none() -> Identity {
        Identity {
            generation: -1,
            member: String::new(),
        }
    }
}

/// The answer to JoinGroup.
#[derive(Debug)]
pub(crate) struct Joined {
    /// The id to use from now on, whatever else the answer says.
    pub(crate) member: String,
    /// The generation and, for its leader, all members; or an error code.
    pub(crate) result: Result<(i32, Option<Vec<String>>), i16>,
}

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

fn group_id(group: &str) -> GroupId {
    GroupId(text(group))
}

fn checked(code: i16) -> Result<(), i16> {
    if code == 0 { Ok(()) } else { Err(code) }
}

/// As consumers of one topic need it: its partitions, one after the other.
fn encode(partitions: &[i32]) -> Bytes {
    let mut out = BytesMut::new();
    out.put_i32(i32::try_from(partitions.len()).unwrap_or(0));
    partitions.iter().for_each(|partition| out.put_i32(*partition));
    out.freeze()
}

/// An assignment that is empty was given by nobody; it counts as no partitions.
fn decode(mut assignment: Bytes) -> Vec<i32> {
    let count = assignment.try_get_i32().unwrap_or(0);
    (0..count).map_while(|_| assignment.try_get_i32().ok()).collect()
}

impl Client {
    pub(crate) async fn join_group(&mut self, group: &str, member: &str) -> Result<Joined, Failure> {
        let request = JoinGroupRequest::default()
            .with_group_id(group_id(group))
            .with_session_timeout_ms(SESSION_TIMEOUT)
            .with_rebalance_timeout_ms(REBALANCE_TIMEOUT)
            .with_member_id(text(member))
            .with_protocol_type(text("consumer"))
            .with_protocols(vec![JoinGroupRequestProtocol::default().with_name(text("range"))]);
        let response = self.call(&request, 5).await?;
        let leads = response.leader == response.member_id;
        let members = response.members.iter().map(|member| member.member_id.to_string());
        let members = leads.then(|| members.collect());
        Ok(Joined {
            member: response.member_id.to_string(),
            result: checked(response.error_code).map(|()| (response.generation_id, members)),
        })
    }

    /// The partitions of the member; its leader brings those of all.
    pub(crate) async fn sync_group(
        &mut self,
        group: &str,
        me: &Identity,
        plan: &[(String, Vec<i32>)],
    ) -> Result<Result<Vec<i32>, i16>, Failure> {
        let assignments = plan.iter().map(|(member, partitions)| {
            SyncGroupRequestAssignment::default()
                .with_member_id(text(member))
                .with_assignment(encode(partitions))
        });
        let request = SyncGroupRequest::default()
            .with_group_id(group_id(group))
            .with_generation_id(me.generation)
            .with_member_id(text(&me.member))
            .with_assignments(assignments.collect());
        let response = self.call(&request, 3).await?;
        Ok(checked(response.error_code).map(|()| decode(response.assignment)))
    }

    pub(crate) async fn heartbeat(&mut self, group: &str, me: &Identity) -> Result<Result<(), i16>, Failure> {
        let request = HeartbeatRequest::default()
            .with_group_id(group_id(group))
            .with_generation_id(me.generation)
            .with_member_id(text(&me.member));
        Ok(checked(self.call(&request, 3).await?.error_code))
    }

    pub(crate) async fn leave_group(&mut self, group: &str, member: &str) -> Result<(), Failure> {
        let request = LeaveGroupRequest::default()
            .with_group_id(group_id(group))
            .with_members(vec![MemberIdentity::default().with_member_id(text(member))]);
        let response = self.call(&request, 3).await?;
        // Its session may be over.
        match response.error_code {
            0 | UNKNOWN_MEMBER_ID => Ok(()),
            code => Err(self.refused("LeaveGroup", code, codes::MEMBER)),
        }
    }

    pub(crate) async fn commit_offset(
        &mut self,
        group: &str,
        me: &Identity,
        topic: &str,
        partition: i32,
        offset: i64,
    ) -> Result<Result<(), i16>, Failure> {
        let wanted = OffsetCommitRequestPartition::default()
            .with_partition_index(partition)
            .with_committed_offset(offset);
        let topic = OffsetCommitRequestTopic::default()
            .with_name(topic_name(topic))
            .with_partitions(vec![wanted]);
        let request = OffsetCommitRequest::default()
            .with_group_id(group_id(group))
            .with_generation_id_or_member_epoch(me.generation)
            .with_member_id(text(&me.member))
            .with_topics(vec![topic]);
        let response = self.call(&request, 7).await?;
        let answered = response.topics.first().and_then(|topic| topic.partitions.first());
        Ok(checked(answered.ok_or_else(missing)?.error_code))
    }

    /// The committed offset; -1: none.
    pub(crate) async fn committed_offset(
        &mut self,
        group: &str,
        topic: &str,
        partition: i32,
    ) -> Result<i64, Failure> {
        let wanted = OffsetFetchRequestTopic::default()
            .with_name(topic_name(topic))
            .with_partition_indexes(vec![partition]);
        let request = OffsetFetchRequest::default()
            .with_group_id(group_id(group))
            .with_topics(Some(vec![wanted]));
        let response = self.call(&request, 7).await?;
        let refused = |code| self.refused("OffsetFetch", code, codes::OFFSET_FETCH);
        checked(response.error_code).map_err(refused)?;
        let answered = response.topics.first().and_then(|topic| topic.partitions.first());
        let answered = answered.ok_or_else(missing)?;
        match answered.error_code {
            0 => Ok(answered.committed_offset),
            code => Err(refused(code)),
        }
    }
}
