//! SyncGroup.

use std::collections::BTreeMap;

use bytes::Bytes;
use env::Instant;
use kafka_wire::messages::SyncGroupResponse;
use kafka_wire::{ResponseError, ResponseKind, StrBytes};
use types::Timestamp;

use super::{Group, Member, Reply, State, Ticket};

/// A request for the member's assignment; the leader's brings all of them.
#[derive(Clone, Debug)]
pub(crate) struct Sync {
    pub(crate) ticket: Ticket,
    pub(crate) member_id: String,
    pub(crate) instance_id: Option<String>,
    pub(crate) generation: i32,
    pub(crate) protocol_type: Option<String>,
    pub(crate) protocol: Option<String>,
    pub(crate) assignments: BTreeMap<String, Bytes>,
}

/// A refusal.
pub(crate) fn refused(ticket: Ticket, error: ResponseError) -> Reply {
    let response = SyncGroupResponse::default().with_error_code(error.code());
    Reply {
        ticket,
        response: ResponseKind::SyncGroup(response),
    }
}

impl Group {
    /// Gives a member its assignment, now or when the leader has brought it.
    pub(crate) fn sync(&mut self, now: Instant, time: Timestamp, sync: Sync) -> Vec<Reply> {
        let mut replies = Vec::new();
        let ticket = sync.ticket;
        if let Err(error) = self.try_sync(now, time, sync, &mut replies) {
            replies.push(refused(ticket, error));
        }
        replies
    }

    fn try_sync(
        &mut self,
        now: Instant,
        time: Timestamp,
        sync: Sync,
        replies: &mut Vec<Reply>,
    ) -> Result<(), ResponseError> {
        self.find(&sync.member_id, sync.instance_id.as_deref())?;
        self.check_generation(sync.generation)?;
        let differs = |said: &Option<String>, known: &Option<String>| said.is_some() && said != known;
        if differs(&sync.protocol_type, &self.protocol_type) || differs(&sync.protocol, &self.protocol) {
            return Err(ResponseError::InconsistentGroupProtocol);
        }
        match self.state {
            State::Empty => Err(ResponseError::UnknownMemberId),
            State::PreparingRebalance => Err(ResponseError::RebalanceInProgress),
            State::CompletingRebalance => {
                if let Some(member) = self.members.get_mut(&sync.member_id)
                    && let Some(earlier) = member.sync.replace(sync.ticket)
                {
                    replies.push(refused(earlier, ResponseError::RebalanceInProgress));
                }
                if self.leader.as_ref() == Some(&sync.member_id) {
                    self.assign(now, time, sync.assignments, replies);
                }
                Ok(())
            }
            State::Stable => {
                self.touch(&sync.member_id, now);
                let assignment = self
                    .members
                    .get(&sync.member_id)
                    .map(|member| member.assignment.clone());
                replies.push(self.synced(sync.ticket, assignment.unwrap_or_default()));
                Ok(())
            }
        }
    }

    fn assign(
        &mut self,
        now: Instant,
        time: Timestamp,
        mut assignments: BTreeMap<String, Bytes>,
        replies: &mut Vec<Reply>,
    ) {
        let size = self.members.values().map(Member::size).sum::<usize>()
            + assignments.values().map(Bytes::len).sum::<usize>();
        if size > self.rules.max_record {
            self.give_up_assignment(now, time, replies);
            return;
        }
        self.state = State::Stable;
        self.since = time;
        self.sync_deadline = None;
        self.dirty = true;
        let mut answered = Vec::new();
        for member in self.members.values_mut() {
            member.assignment = assignments.remove(&member.id).unwrap_or_default();
            if let Some(ticket) = member.sync.take() {
                member.touch(now);
                answered.push((ticket, member.assignment.clone()));
            }
        }
        replies.extend(
            answered
                .into_iter()
                .map(|(ticket, assignment)| self.synced(ticket, assignment)),
        );
    }

    /// The generation `generation` could not be stored.
    pub(crate) fn not_stored(&mut self, now: Instant, time: Timestamp, generation: i32) -> Vec<Reply> {
        let mut replies = Vec::new();
        if self.state == State::Stable && self.generation == generation {
            self.give_up_assignment(now, time, &mut replies);
        }
        replies
    }

    /// What is not stored must not count: whoever leads the shard next would know nothing of it. As in Kafka, those who wait hear of an
    /// error, and everybody is to join again.
    fn give_up_assignment(&mut self, now: Instant, time: Timestamp, replies: &mut Vec<Reply>) {
        for member in self.members.values_mut() {
            member.assignment = Bytes::new();
            if let Some(ticket) = member.sync.take() {
                member.touch(now);
                replies.push(refused(ticket, ResponseError::UnknownServerError));
            }
        }
        self.prepare_rebalance(now, time, replies);
    }

    fn synced(&self, ticket: Ticket, assignment: Bytes) -> Reply {
        let text = |text: &String| StrBytes::from_string(text.clone());
        let response = SyncGroupResponse::default()
            .with_protocol_type(self.protocol_type.as_ref().map(text))
            .with_protocol_name(self.protocol.as_ref().map(text))
            .with_assignment(assignment);
        Reply {
            ticket,
            response: ResponseKind::SyncGroup(response),
        }
    }
}
