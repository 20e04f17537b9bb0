//! JoinGroup.

use std::time::Duration;

use bytes::Bytes;
use env::Instant;
use kafka_wire::messages::JoinGroupResponse;
use kafka_wire::messages::join_group_response::JoinGroupResponseMember;
use kafka_wire::{ResponseError, ResponseKind, StrBytes};
use types::Timestamp;
use uuid::Uuid;

use super::{Group, Member, Reply, State, Ticket};

/// A new member that waits in a rebalance is forgotten after this time, unless it asks again (Kafka:
/// `classicGroupNewMemberJoinTimeoutMs`).
const NEW_MEMBER_JOIN: Duration = Duration::from_secs(5 * 60);

/// A request to join.
#[derive(Clone, Debug)]
pub(crate) struct Join {
    pub(crate) ticket: Ticket,
    pub(crate) member_id: String,
    pub(crate) instance_id: Option<String>,
    pub(crate) client_id: String,
    pub(crate) client_host: String,
    pub(crate) session_timeout: Duration,
    pub(crate) rebalance_timeout: Duration,
    pub(crate) protocol_type: String,
    pub(crate) protocols: Vec<(String, Bytes)>,
    /// A member without an id is told one and must come again with it (v4, KIP-394).
    pub(crate) requires_known_member: bool,
    /// The leader can be told not to assign anew (v9, KIP-814).
    pub(crate) can_skip_assignment: bool,
    /// Makes a new member id unique.
    pub(crate) unique: Uuid,
}

/// A refusal.
pub(crate) fn refused(member_id: &str, error: ResponseError) -> ResponseKind {
    let response = JoinGroupResponse::default()
        .with_error_code(error.code())
        .with_generation_id(-1)
        .with_protocol_name(Some(StrBytes::default()))
        .with_member_id(StrBytes::from_string(member_id.to_owned()));
    ResponseKind::JoinGroup(response)
}

impl Group {
    /// Takes a member in, or back. It may be answered later.
    pub(crate) fn join(&mut self, now: Instant, time: Timestamp, join: Join) -> Vec<Reply> {
        let mut replies = Vec::new();
        let (ticket, id) = (join.ticket, join.member_id.clone());
        match self.try_join(now, time, join, &mut replies) {
            Ok(()) => {}
            Err((error, member_id)) => {
                let member_id = member_id.unwrap_or(id);
                replies.push(Reply {
                    ticket,
                    response: refused(&member_id, error),
                });
            }
        }
        replies
    }

    /// The error may come with a member id to come back with.
    fn try_join(
        &mut self,
        now: Instant,
        time: Timestamp,
        join: Join,
        replies: &mut Vec<Reply>,
    ) -> Result<(), (ResponseError, Option<String>)> {
        let error = |error| (error, None);
        if !self.can_speak(&join) {
            return Err(error(ResponseError::InconsistentGroupProtocol));
        }
        if self.too_large_with(&join) {
            return Err(error(ResponseError::GroupMaxSizeReached));
        }
        if join.member_id.is_empty() {
            if let Some(old) = join
                .instance_id
                .as_ref()
                .and_then(|instance| self.statics.get(instance).cloned())
            {
                self.replace_static(now, time, join, &old, replies);
                return Ok(());
            }
            if self.members.len() + self.pending.len() >= self.rules.max_size {
                return Err(error(ResponseError::GroupMaxSizeReached));
            }
            let prefix = join.instance_id.as_ref().unwrap_or(&join.client_id);
            let id = format!("{prefix}-{}", join.unique);
            if join.instance_id.is_none() && join.requires_known_member {
                self.pending.insert(id.clone(), now + join.session_timeout);
                return Err((ResponseError::MemberIdRequired, Some(id)));
            }
            self.add(now, time, join, id, replies);
            return Ok(());
        }
        if self.pending.remove(&join.member_id).is_some() {
            let id = join.member_id.clone();
            self.add(now, time, join, id, replies);
            return Ok(());
        }
        self.find(&join.member_id, join.instance_id.as_deref())
            .map_err(error)?;
        self.rejoin(now, time, join, replies);
        Ok(())
    }

    /// Same kind of group, and at least one protocol that all members know.
    fn can_speak(&self, join: &Join) -> bool {
        if join.protocols.is_empty() || join.protocol_type.is_empty() {
            return false;
        }
        // Its own word of before counts, too: who wants to speak otherwise leaves first.
        if self.members.is_empty() {
            return true;
        }
        if self
            .protocol_type
            .as_ref()
            .is_some_and(|kind| *kind != join.protocol_type)
        {
            return false;
        }
        let all_know = |name: &str| {
            let mut members = self.members.values();
            members.all(|member| member.protocols.iter().any(|(known, _)| known == name))
        };
        join.protocols.iter().any(|(name, _)| all_know(name))
    }

    /// Whether the group could no longer be stored with what this member says.
    fn too_large_with(&self, join: &Join) -> bool {
        // Or who it was before it started anew.
        let former = join
            .instance_id
            .as_ref()
            .and_then(|instance| self.statics.get(instance));
        let itself = |id: &String| *id == join.member_id || Some(id) == former;
        let others = self.members.values().filter(|member| !itself(&member.id));
        let instance = join.instance_id.as_ref().map_or(0, String::len);
        // Its id begins with one of the two.
        let texts = 2 * instance.max(join.client_id.len()) + join.client_id.len() + join.client_host.len();
        let own = super::size_of(&join.protocols) + join.member_id.len() + texts;
        own + others.map(Member::size).sum::<usize>() > self.rules.max_members()
    }

    fn add(&mut self, now: Instant, time: Timestamp, join: Join, id: String, replies: &mut Vec<Reply>) {
        self.arrivals += 1;
        if self.members.is_empty() {
            self.protocol_type = Some(join.protocol_type.clone());
        }
        if let Some(instance) = &join.instance_id {
            self.statics.insert(instance.clone(), id.clone());
        }
        let member = Member {
            id: id.clone(),
            instance_id: join.instance_id,
            client_id: join.client_id,
            client_host: join.client_host,
            session_timeout: join.session_timeout,
            rebalance_timeout: join.rebalance_timeout,
            protocols: join.protocols,
            assignment: Bytes::new(),
            order: self.arrivals,
            deadline: now + NEW_MEMBER_JOIN,
            new: true,
            join: Some(join.ticket),
            sync: None,
        };
        self.members.insert(id.clone(), member);
        if self.leader.is_none() {
            self.leader = Some(id);
        }
        if let Some(preparing) = &mut self.preparing {
            preparing.more = true;
        }
        self.prepare_rebalance(now, time, replies);
    }

    fn rejoin(&mut self, now: Instant, time: Timestamp, join: Join, replies: &mut Vec<Reply>) {
        let Some(member) = self.members.get(&join.member_id) else {
            return;
        };
        let same = member.protocols == join.protocols;
        let leads = self.leader.as_ref() == Some(&join.member_id);
        let rebalance = match self.state {
            State::Empty | State::PreparingRebalance => true,
            State::CompletingRebalance => !same,
            State::Stable => leads || !same,
        };
        if rebalance {
            self.wait_for_join(&join, replies);
            self.prepare_rebalance(now, time, replies);
        } else {
            // It has not heard the answer to its last JoinGroup, or asks without need.
            self.touch(&join.member_id, now);
            let response = self.joined(&join.member_id, false);
            replies.push(Reply {
                ticket: join.ticket,
                response,
            });
        }
    }

    /// Notes what a member says now, and that it waits.
    fn wait_for_join(&mut self, join: &Join, replies: &mut Vec<Reply>) {
        let Some(member) = self.members.get_mut(&join.member_id) else {
            return;
        };
        member.protocols.clone_from(&join.protocols);
        member.session_timeout = join.session_timeout;
        member.rebalance_timeout = join.rebalance_timeout;
        member.client_id.clone_from(&join.client_id);
        member.client_host.clone_from(&join.client_host);
        if let Some(ticket) = member.join.replace(join.ticket) {
            // The connection of the earlier request is gone, or its client has given it up.
            replies.push(Reply {
                ticket,
                response: refused(&join.member_id, ResponseError::RebalanceInProgress),
            });
        }
    }

    /// A static member has started anew: it takes the place, and the name, of its former self (KIP-345).
    fn replace_static(
        &mut self,
        now: Instant,
        time: Timestamp,
        mut join: Join,
        old: &str,
        replies: &mut Vec<Reply>,
    ) {
        let Some(mut member) = self.members.remove(old) else {
            return;
        };
        let instance = join.instance_id.clone().unwrap_or_default();
        let id = format!("{instance}-{}", join.unique);
        if let Some(ticket) = member.join.take() {
            replies.push(Reply {
                ticket,
                response: refused(old, ResponseError::FencedInstanceId),
            });
        }
        if let Some(ticket) = member.sync.take() {
            replies.push(super::sync::refused(ticket, ResponseError::FencedInstanceId));
        }
        let led = self.leader.as_deref() == Some(old);
        if led {
            self.leader = Some(id.clone());
        }
        let selected = self.protocol.clone().unwrap_or_default();
        let same = member.metadata(&selected) == metadata(&join.protocols, &selected);
        member.id.clone_from(&id);
        member.new = false;
        member.touch(now);
        self.statics.insert(instance, id.clone());
        self.members.insert(id.clone(), member);
        join.member_id.clone_from(&id);
        match self.state {
            State::Stable if same && self.select_protocol_with(&join) == self.protocol => {
                // Nothing that matters has changed: no rebalance. Its new name must be known after a take-over.
                let ticket = join.ticket;
                let skip = led && join.can_skip_assignment;
                self.wait_for_join(&join, replies);
                if let Some(member) = self.members.get_mut(&id) {
                    member.join = None;
                }
                self.dirty = true;
                let mut response = self.joined(&id, skip);
                if led && !skip {
                    // An old client that is told it leads would assign anew: name its former self as leader.
                    if let ResponseKind::JoinGroup(response) = &mut response {
                        response.leader = StrBytes::from_string(old.to_owned());
                        response.members.clear();
                    }
                }
                replies.push(Reply { ticket, response });
            }
            _ => {
                self.wait_for_join(&join, replies);
                self.prepare_rebalance(now, time, replies);
            }
        }
    }

    /// The protocol that would be chosen with what this member says now.
    fn select_protocol_with(&self, join: &Join) -> Option<String> {
        let mut members: Vec<Member> = self.members.values().cloned().collect();
        for member in members.iter_mut().filter(|member| member.id == join.member_id) {
            member.protocols.clone_from(&join.protocols);
        }
        super::rebalance::select_protocol(members.iter())
    }

    /// The answer that a member of the present generation gets.
    pub(super) fn joined(&self, member_id: &str, skip_assignment: bool) -> ResponseKind {
        let text = |text: &str| StrBytes::from_string(text.to_owned());
        let leader = self.leader.as_deref().unwrap_or_default();
        let protocol = self.protocol.as_deref().unwrap_or_default();
        let member = |member: &Member| {
            JoinGroupResponseMember::default()
                .with_member_id(text(&member.id))
                .with_group_instance_id(member.instance_id.as_deref().map(text))
                .with_metadata(member.metadata(protocol))
        };
        let members = if leader == member_id {
            self.members.values().map(member).collect()
        } else {
            Vec::new()
        };
        let response = JoinGroupResponse::default()
            .with_generation_id(self.generation)
            .with_protocol_type(self.protocol_type.as_deref().map(text))
            .with_protocol_name(Some(text(protocol)))
            .with_leader(text(leader))
            .with_skip_assignment(skip_assignment)
            .with_member_id(text(member_id))
            .with_members(members);
        ResponseKind::JoinGroup(response)
    }
}

fn metadata(protocols: &[(String, Bytes)], name: &str) -> Bytes {
    protocols
        .iter()
        .find(|(known, _)| known == name)
        .map(|(_, metadata)| metadata.clone())
        .unwrap_or_default()
}
