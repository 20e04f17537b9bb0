//! From one generation to the next, and members that go.

use std::collections::BTreeMap;
use std::time::Duration;

use env::Instant;
use kafka_wire::ResponseError;
use types::Timestamp;

use super::join::refused;
use super::{Group, Member, Preparing, Reply, State, sync};

/// The protocol most members want, among those that all know; of equals the one that comes first by name.
pub(super) fn select_protocol<'a>(members: impl Iterator<Item = &'a Member> + Clone) -> Option<String> {
    let knows = |member: &Member, name: &str| member.protocols.iter().any(|(known, _)| known == name);
    let mut votes: BTreeMap<&str, usize> = BTreeMap::new();
    for member in members.clone() {
        let common = |name: &&str| members.clone().all(|other| knows(other, name));
        if let Some(name) = member
            .protocols
            .iter()
            .map(|(name, _)| name.as_str())
            .find(common)
        {
            *votes.entry(name).or_default() += 1;
        }
    }
    let most = votes.values().copied().max()?;
    votes
        .into_iter()
        .find(|(_, count)| *count == most)
        .map(|(name, _)| name.to_owned())
}

impl Group {
    /// Everybody has to join again. Completes at once if everybody already has.
    pub(super) fn prepare_rebalance(&mut self, now: Instant, time: Timestamp, replies: &mut Vec<Reply>) {
        if self.state != State::PreparingRebalance {
            for member in self.members.values_mut() {
                if let Some(ticket) = member.sync.take() {
                    member.touch(now);
                    replies.push(sync::refused(ticket, ResponseError::RebalanceInProgress));
                }
            }
            let timeout = self.rebalance_timeout();
            let first = self.state == State::Empty && !self.rules.initial_delay.is_zero();
            let earliest = first.then(|| now + self.rules.initial_delay.min(timeout));
            self.preparing = Some(Preparing {
                earliest,
                more: false,
                deadline: now + timeout,
            });
            self.sync_deadline = None;
            self.state = State::PreparingRebalance;
        }
        self.try_complete(now, time, replies);
    }

    fn rebalance_timeout(&self) -> Duration {
        self.members
            .values()
            .map(|member| member.rebalance_timeout)
            .max()
            .unwrap_or_default()
    }

    /// Ends the join phase if all are there or the time is over.
    pub(super) fn try_complete(&mut self, now: Instant, time: Timestamp, replies: &mut Vec<Reply>) {
        let Some(preparing) = &mut self.preparing else {
            return;
        };
        let late = now >= preparing.deadline;
        if let Some(earliest) = preparing.earliest
            && !late
            && !self.members.is_empty()
        {
            if now < earliest {
                return;
            }
            if std::mem::take(&mut preparing.more) {
                // Others have come: give still others the same time.
                preparing.earliest = Some((now + self.rules.initial_delay).min(preparing.deadline));
                return;
            }
            preparing.earliest = None;
        }
        let all = self.pending.is_empty() && self.members.values().all(|member| member.join.is_some());
        if !all && !late {
            return;
        }
        // Static members that are late stay until their session ends: they may only be restarting.
        let gone = |member: &Member| member.join.is_none() && member.instance_id.is_none();
        let gone: Vec<String> = self
            .members
            .values()
            .filter(|member| gone(member))
            .map(|m| m.id.clone())
            .collect();
        for id in gone {
            self.forget(&id, replies);
        }
        if !self.members.is_empty() && self.members.values().all(|member| member.join.is_none()) {
            // Only static members that have not come back: keep waiting for one of them.
            let timeout = self.rebalance_timeout();
            self.preparing = Some(Preparing {
                earliest: None,
                more: false,
                deadline: now + timeout,
            });
            return;
        }
        self.complete(now, time, replies);
    }

    /// A new generation begins.
    fn complete(&mut self, now: Instant, time: Timestamp, replies: &mut Vec<Reply>) {
        self.preparing = None;
        self.generation = self.generation.wrapping_add(1).max(1);
        self.since = time;
        if self.members.is_empty() {
            self.state = State::Empty;
            self.protocol = None;
            self.leader = None;
            self.dirty = true;
            return;
        }
        self.protocol = select_protocol(self.members.values());
        let leads = |id: &String| self.members.get(id).is_some_and(|member| member.join.is_some());
        if !self.leader.as_ref().is_some_and(leads) {
            let joined = self.members.values().filter(|member| member.join.is_some());
            self.leader = joined
                .min_by_key(|member| member.order)
                .map(|member| member.id.clone());
        }
        self.state = State::CompletingRebalance;
        self.sync_deadline = Some(now + self.rebalance_timeout());
        let ids: Vec<String> = self.members.keys().cloned().collect();
        for id in ids {
            let Some(member) = self.members.get_mut(&id) else {
                continue;
            };
            member.touch(now);
            member.new = false;
            if let Some(ticket) = member.join.take() {
                replies.push(Reply {
                    ticket,
                    response: self.joined(&id, false),
                });
            }
        }
    }

    /// Takes a member out of the tables. What it waits for is answered.
    fn forget(&mut self, id: &str, replies: &mut Vec<Reply>) {
        let Some(member) = self.members.remove(id) else {
            return;
        };
        if let Some(instance) = &member.instance_id
            && self.statics.get(instance).is_some_and(|current| current == id)
        {
            self.statics.remove(instance);
        }
        if let Some(ticket) = member.join {
            replies.push(Reply {
                ticket,
                response: refused(id, ResponseError::UnknownMemberId),
            });
        }
        if let Some(ticket) = member.sync {
            replies.push(sync::refused(ticket, ResponseError::UnknownMemberId));
        }
        if self.leader.as_deref() == Some(id) {
            self.leader = None;
        }
    }

    fn remove(&mut self, now: Instant, time: Timestamp, id: &str, replies: &mut Vec<Reply>) {
        self.forget(id, replies);
        match self.state {
            State::Stable | State::CompletingRebalance => self.prepare_rebalance(now, time, replies),
            State::PreparingRebalance => self.try_complete(now, time, replies),
            State::Empty => {}
        }
    }

    /// LeaveGroup of one member; a static one may be named by its instance id alone.
    pub(crate) fn leave(
        &mut self,
        now: Instant,
        time: Timestamp,
        member_id: &str,
        instance_id: Option<&str>,
        replies: &mut Vec<Reply>,
    ) -> Result<(), ResponseError> {
        if self.pending.remove(member_id).is_some() {
            self.try_complete(now, time, replies);
            return Ok(());
        }
        let id = match instance_id {
            Some(instance) if member_id.is_empty() => self
                .statics
                .get(instance)
                .cloned()
                .ok_or(ResponseError::UnknownMemberId)?,
            _ => {
                self.find(member_id, instance_id)?;
                member_id.to_owned()
            }
        };
        self.remove(now, time, &id, replies);
        Ok(())
    }

    /// Lets time pass: sessions end, phases end.
    pub(crate) fn tick(&mut self, now: Instant, time: Timestamp) -> Vec<Reply> {
        let mut replies = Vec::new();
        let before = self.pending.len();
        self.pending.retain(|_, deadline| *deadline > now);
        if self.pending.len() != before {
            self.try_complete(now, time, &mut replies);
        }
        let dead = |member: &&Member| !member.is_excused() && member.deadline <= now;
        let dead: Vec<String> = self
            .members
            .values()
            .filter(dead)
            .map(|member| member.id.clone())
            .collect();
        for id in dead {
            tracing::info!(member = id, "session over");
            self.remove(now, time, &id, &mut replies);
        }
        if self.sync_deadline.is_some_and(|deadline| deadline <= now) {
            self.sync_deadline = None;
            let late: Vec<String> = self
                .members
                .values()
                .filter(|member| member.sync.is_none())
                .map(|m| m.id.clone())
                .collect();
            for id in late {
                self.remove(now, time, &id, &mut replies);
            }
        }
        self.try_complete(now, time, &mut replies);
        replies
    }
}
