//! One group.

mod join;
mod rebalance;
mod sync;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use env::Instant;
use kafka_wire::{ResponseError, ResponseKind};
use types::Timestamp;

use crate::record::{GroupRecord, MemberRecord, ProtocolRecord, VERSION};
use crate::settings::GroupSettings;
use crate::subscription;

pub(crate) use join::{Join, refused as join_refused};
pub(crate) use sync::{Sync, refused as sync_refused};

/// Names a request that waits for its answer.
pub(crate) type Ticket = u64;

/// The answer to a request that waited (or did not need to).
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) ticket: Ticket,
    pub(crate) response: ResponseKind,
}

impl Reply {
    /// The same request refused.
    pub(crate) fn refused(self, error: ResponseError) -> ResponseKind {
        match self.response {
            ResponseKind::JoinGroup(join) => join_refused(&join.member_id, error),
            _ => sync_refused(self.ticket, error).response,
        }
    }
}

/// State of a group, by Kafka's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Empty,
    PreparingRebalance,
    CompletingRebalance,
    Stable,
}

impl State {
    pub(crate) fn name(self) -> &'static str {
        match self {
            State::Empty => "Empty",
            State::PreparingRebalance => "PreparingRebalance",
            State::CompletingRebalance => "CompletingRebalance",
            State::Stable => "Stable",
        }
    }
}

/// What a group is bound by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    initial_delay: Duration,
    max_size: usize,
    /// Most bytes that members and their assignments may take together, about: a group is logged as one entry.
    max_record: usize,
}

impl Rules {
    /// Rules of groups whose log takes entries of up to `max_entry` bytes.
    pub(crate) fn new(settings: &GroupSettings, max_entry: usize) -> Rules {
        Rules {
            initial_delay: settings.initial_rebalance_delay,
            max_size: settings.max_size,
            // Of 8 MiB that leaves room for the names of group, protocols and leader, which have 32 KiB at most.
            max_record: max_entry - max_entry / 32,
        }
    }

    /// Most bytes of the members without their assignments, for which there must be room, too.
    fn max_members(&self) -> usize {
        self.max_record / 4 * 3
    }
}

/// A member.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) id: String,
    pub(crate) instance_id: Option<String>,
    pub(crate) client_id: String,
    pub(crate) client_host: String,
    pub(crate) session_timeout: Duration,
    pub(crate) rebalance_timeout: Duration,
    /// What it can speak, most wanted first.
    pub(crate) protocols: Vec<(String, Bytes)>,
    pub(crate) assignment: Bytes,
    /// Order of arrival: the first becomes leader.
    order: u64,
    /// It is dead after this, unless one of its requests waits.
    deadline: Instant,
    /// It waits for the answer to its first JoinGroup. If its client is gone nobody will tell, so `deadline` counts.
    new: bool,
    join: Option<Ticket>,
    sync: Option<Ticket>,
}

impl Member {
    /// What it said for a protocol.
    pub(crate) fn metadata(&self, protocol: &str) -> Bytes {
        let found = self.protocols.iter().find(|(name, _)| name == protocol);
        found.map(|(_, metadata)| metadata.clone()).unwrap_or_default()
    }

    /// About what it takes in the record of the group, without its assignment.
    fn size(&self) -> usize {
        let instance = self.instance_id.as_ref().map_or(0, String::len);
        size_of(&self.protocols) + instance + self.id.len() + self.client_id.len() + self.client_host.len()
    }

    /// It has said what it wants and is the one that waits.
    fn is_excused(&self) -> bool {
        !self.new && (self.join.is_some() || self.sync.is_some())
    }

    fn touch(&mut self, now: Instant) {
        self.deadline = now + self.session_timeout;
    }
}

/// What is stored for a member beside its texts, in bytes, at most.
const MEMBER_OVERHEAD: usize = 64;

fn size_of(protocols: &[(String, Bytes)]) -> usize {
    let one = |(name, metadata): &(String, Bytes)| name.len() + metadata.len() + 16;
    MEMBER_OVERHEAD + protocols.iter().map(one).sum::<usize>()
}

/// The members are being waited for.
#[derive(Clone, Copy, Debug)]
struct Preparing {
    /// Not before this: the first member of a group waits for others.
    earliest: Option<Instant>,
    /// Members joined since `earliest` was set.
    more: bool,
    /// Who has not joined by then is left out.
    deadline: Instant,
}

/// A classic group. All times are given to it.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) state: State,
    pub(crate) generation: i32,
    pub(crate) protocol_type: Option<String>,
    pub(crate) protocol: Option<String>,
    pub(crate) leader: Option<String>,
    pub(crate) members: BTreeMap<String, Member>,
    /// When it came into its present state.
    pub(crate) since: Timestamp,
    /// Static members: instance id to member id.
    statics: BTreeMap<String, String>,
    /// Ids that were given out (KIP-394) and have not joined yet, with the time they expire.
    pending: BTreeMap<String, Instant>,
    preparing: Option<Preparing>,
    /// Members that have not synchronised by then are left out.
    sync_deadline: Option<Instant>,
    arrivals: u64,
    rules: Rules,
    /// What is stored is not what is true.
    dirty: bool,
    /// A record of it is stored, or about to be.
    kept: bool,
    /// Grows with every commit of offsets that was let through.
    commits: u64,
}

impl Group {
    pub(crate) fn new(rules: Rules, now: Timestamp) -> Group {
        Group {
            state: State::Empty,
            generation: 0,
            protocol_type: None,
            protocol: None,
            leader: None,
            members: BTreeMap::new(),
            since: now,
            statics: BTreeMap::new(),
            pending: BTreeMap::new(),
            preparing: None,
            sync_deadline: None,
            arrivals: 0,
            rules,
            dirty: false,
            kept: false,
            commits: 0,
        }
    }

    /// A group as it was stored. Members get a whole session to be heard of again.
    pub(crate) fn restore(record: GroupRecord, rules: Rules, now: Instant) -> Group {
        let mut group = Group::new(rules, record.since);
        group.kept = true;
        group.generation = record.generation;
        group.protocol_type = record.protocol_type;
        group.protocol = record.protocol;
        group.leader = record.leader;
        for stored in record.members {
            let session_timeout = Duration::from_millis(stored.session_timeout_ms.into());
            group.arrivals += 1;
            if let Some(instance) = &stored.instance_id {
                group.statics.insert(instance.clone(), stored.id.clone());
            }
            let member = Member {
                id: stored.id.clone(),
                instance_id: stored.instance_id,
                client_id: stored.client_id,
                client_host: stored.client_host,
                session_timeout,
                rebalance_timeout: Duration::from_millis(stored.rebalance_timeout_ms.into()),
                protocols: stored
                    .protocols
                    .into_iter()
                    .map(|p| (p.name, p.metadata))
                    .collect(),
                assignment: stored.assignment,
                order: group.arrivals,
                deadline: now + session_timeout,
                new: false,
                join: None,
                sync: None,
            };
            group.members.insert(stored.id, member);
        }
        if !group.members.is_empty() {
            group.state = State::Stable;
        }
        group
    }

    /// What to store, if what is stored is no longer true.
    pub(crate) fn take_record(&mut self) -> Option<GroupRecord> {
        self.kept |= self.dirty;
        std::mem::take(&mut self.dirty).then(|| self.record())
    }

    /// Offsets of it are about to be stored.
    pub(crate) fn note_commit(&mut self) {
        self.commits += 1;
    }

    /// Grows with every commit of offsets.
    pub(crate) fn commits(&self) -> u64 {
        self.commits
    }

    /// Nobody is in it and nothing of it is stored: it may be forgotten.
    pub(crate) fn is_nothing(&self) -> bool {
        self.is_empty() && !self.kept && self.commits == 0
    }

    fn record(&self) -> GroupRecord {
        let millis = |duration: Duration| u32::try_from(duration.as_millis()).unwrap_or(u32::MAX);
        let protocol = |(name, metadata): &(String, Bytes)| ProtocolRecord {
            name: name.clone(),
            metadata: metadata.clone(),
        };
        let member = |member: &Member| MemberRecord {
            id: member.id.clone(),
            instance_id: member.instance_id.clone(),
            client_id: member.client_id.clone(),
            client_host: member.client_host.clone(),
            session_timeout_ms: millis(member.session_timeout),
            rebalance_timeout_ms: millis(member.rebalance_timeout),
            protocols: member.protocols.iter().map(protocol).collect(),
            assignment: member.assignment.clone(),
        };
        GroupRecord {
            version: VERSION,
            generation: self.generation,
            protocol_type: self.protocol_type.clone(),
            protocol: self.protocol.clone(),
            leader: self.leader.clone(),
            since: self.since,
            members: self.members.values().map(member).collect(),
        }
    }

    /// Nobody is in it, and nobody is about to be.
    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty() && self.pending.is_empty()
    }

    /// Resolves a member by id or, for a static one, checks that it is who it says.
    fn find(&self, member_id: &str, instance_id: Option<&str>) -> Result<(), ResponseError> {
        if let Some(instance) = instance_id {
            return match self.statics.get(instance) {
                None => Err(ResponseError::UnknownMemberId),
                Some(id) if id != member_id => Err(ResponseError::FencedInstanceId),
                Some(_) => Ok(()),
            };
        }
        match self.members.contains_key(member_id) {
            true => Ok(()),
            false => Err(ResponseError::UnknownMemberId),
        }
    }

    fn check_generation(&self, generation: i32) -> Result<(), ResponseError> {
        if generation == self.generation {
            Ok(())
        } else {
            Err(ResponseError::IllegalGeneration)
        }
    }

    fn touch(&mut self, member_id: &str, now: Instant) {
        if let Some(member) = self.members.get_mut(member_id) {
            member.touch(now);
        }
    }

    /// Heartbeat.
    pub(crate) fn heartbeat(
        &mut self,
        now: Instant,
        member_id: &str,
        instance_id: Option<&str>,
        generation: i32,
    ) -> Result<(), ResponseError> {
        self.find(member_id, instance_id)?;
        self.check_generation(generation)?;
        self.touch(member_id, now);
        match self.state {
            State::Empty => Err(ResponseError::UnknownMemberId),
            State::PreparingRebalance => Err(ResponseError::RebalanceInProgress),
            State::CompletingRebalance | State::Stable => Ok(()),
        }
    }

    /// May these offsets be committed? A commit of a member is a sign of life.
    pub(crate) fn check_commit(
        &mut self,
        now: Instant,
        member_id: &str,
        instance_id: Option<&str>,
        generation: i32,
    ) -> Result<(), ResponseError> {
        if generation < 0 && self.state == State::Empty || env::mutation("zombie-commits") {
            // A consumer that assigns its partitions itself.
            return Ok(());
        }
        self.find(member_id, instance_id)?;
        self.check_generation(generation)?;
        match self.state {
            State::Empty => Err(ResponseError::UnknownMemberId),
            State::CompletingRebalance => Err(ResponseError::RebalanceInProgress),
            State::PreparingRebalance | State::Stable => {
                self.touch(member_id, now);
                Ok(())
            }
        }
    }

    /// May its offsets of `topic` be deleted? Not while a member may commit them again.
    pub(crate) fn check_delete(&self, topic: &str) -> Result<(), ResponseError> {
        let reads = |member: &Member| {
            let mut said = member.protocols.iter();
            said.any(|(_, metadata)| subscription::names(metadata.clone(), topic))
        };
        match self.protocol_type.as_deref() {
            _ if self.members.is_empty() => Ok(()),
            Some("consumer") if self.members.values().any(reads) => {
                Err(ResponseError::GroupSubscribedToTopic)
            }
            Some("consumer") => Ok(()),
            _ => Err(ResponseError::NonEmptyGroup),
        }
    }

    /// When something happens by itself.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let sessions = self
            .members
            .values()
            .filter(|member| !member.is_excused())
            .map(|member| member.deadline);
        let preparing = self.preparing.map(|preparing| match preparing.earliest {
            Some(earliest) => earliest.min(preparing.deadline),
            None => preparing.deadline,
        });
        sessions
            .chain(self.pending.values().copied())
            .chain(preparing)
            .chain(self.sync_deadline)
            .min()
    }
}
