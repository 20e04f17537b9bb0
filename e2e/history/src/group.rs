//! What the members of a consumer group saw.
//!
//! Times are ms of one clock for all members. What happened in the same ms counts as at the same time: nothing is reported
//! that rests on its order.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Anomaly, History, Place, Span};

/// What all members of one group saw, on one topic.
#[derive(Clone, Debug, Default)]
pub struct GroupHistory {
    /// What members were told to own.
    pub ownerships: Vec<Ownership>,
    /// What leaders gave to the members of a generation; noted before they sent it.
    pub given: Vec<(i32, BTreeMap<String, Vec<i32>>)>,
    /// Commits of offsets.
    pub commits: Vec<Commit>,
    /// Questions for committed offsets that were answered.
    pub fetches: Vec<Fetch>,
    /// What members got, whether or not they owned it still.
    pub reads: BTreeSet<(u64, Place)>,
}

/// A member's place in a generation, as SyncGroup told it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ownership {
    /// Its id.
    pub member: String,
    /// The generation.
    pub generation: i32,
    /// JoinGroup told it that it leads.
    pub leads: bool,
    /// Its partitions, in order.
    pub partitions: Vec<i32>,
    /// From its request to join to the answer of SyncGroup.
    pub span: Span,
}

/// A commit of one offset by a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The partition.
    pub partition: i32,
    /// The offset.
    pub offset: i64,
    /// The generation in whose name it was sent.
    pub generation: i32,
    /// When it was sent.
    pub sent: i64,
    /// When it was acknowledged. `None`: refused or given up; it may come through whenever the generation lasts.
    pub acked: Option<i64>,
}

/// A committed offset that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// The partition.
    pub partition: i32,
    /// The answer; -1: none.
    pub offset: i64,
    /// From the question to the answer.
    pub span: Span,
}

impl GroupHistory {
    /// What is wrong so far, at most `limit` findings of each kind.
    pub fn check(&self, limit: usize) -> Vec<Anomaly> {
        let mut found = Vec::new();
        found.extend(self.shared().into_iter().take(limit));
        found.extend(self.two_leaders().into_iter().take(limit));
        found.extend(self.wrong_assignments().take(limit));
        found.extend(self.generations_back().into_iter().take(limit));
        found.extend(self.wrong_commits().take(limit));
        found.extend(self.late_commits().take(limit));
        found
    }

    /// What was acknowledged and consumed by no member, at most `limit` records. For a group that has committed the ends
    /// of all partitions.
    pub fn unconsumed(&self, topic: &History, limit: usize) -> Vec<Anomaly> {
        let missing = topic.acked.iter().filter(|(value, place)| {
            let start = topic.trimmed.get(&place.partition).copied().unwrap_or(0);
            place.offset >= start && !self.reads.contains(&(**value, **place))
        });
        let missing = missing.map(|(value, place)| Anomaly::Unconsumed {
            value: *value,
            place: *place,
        });
        missing.take(limit).collect()
    }

    fn shared(&self) -> Vec<Anomaly> {
        let mut found = Vec::new();
        let mut owners: BTreeMap<(i32, i32), &str> = BTreeMap::new();
        for own in &self.ownerships {
            for partition in &own.partitions {
                let first = owners
                    .entry((own.generation, *partition))
                    .or_insert(own.member.as_str());
                if *first != own.member {
                    found.push(Anomaly::SharedPartition {
                        generation: own.generation,
                        partition: *partition,
                        first: (*first).to_owned(),
                        second: own.member.clone(),
                    });
                }
            }
        }
        found
    }

    fn two_leaders(&self) -> Vec<Anomaly> {
        let mut found = Vec::new();
        let mut leaders: BTreeMap<i32, &str> = BTreeMap::new();
        for own in self.ownerships.iter().filter(|own| own.leads) {
            let first = leaders.entry(own.generation).or_insert(own.member.as_str());
            if *first != own.member {
                found.push(Anomaly::TwoLeaders {
                    generation: own.generation,
                    first: (*first).to_owned(),
                    second: own.member.clone(),
                });
            }
        }
        found
    }

    /// A generation that was never stored may come again after a take-over, with another leader and another plan: any of
    /// its plans will do, since only what was stored is told.
    fn wrong_assignments(&self) -> impl Iterator<Item = Anomaly> {
        let wrong = self.ownerships.iter().filter(|own| {
            let mut plans = self
                .given
                .iter()
                .filter(|(generation, _)| *generation == own.generation);
            !plans.any(|(_, plan)| plan.get(&own.member) == Some(&own.partitions))
        });
        wrong.map(|own| Anomaly::WrongAssignment {
            generation: own.generation,
            member: own.member.clone(),
            partitions: own.partitions.clone(),
        })
    }

    fn generations_back(&self) -> Vec<Anomaly> {
        let mut found = Vec::new();
        for own in &self.ownerships {
            let earlier = self
                .ownerships
                .iter()
                .filter(|other| other.span.to < own.span.from);
            let newest = earlier.map(|other| other.generation).max();
            if let Some(before) = newest.filter(|before| *before > own.generation) {
                found.push(Anomaly::GenerationBack {
                    before,
                    after: own.generation,
                });
            }
        }
        found
    }

    /// Once somebody was told its place in a generation, the group takes no commit of an earlier one that comes then.
    fn late_commits(&self) -> impl Iterator<Item = Anomaly> {
        let acked = self.commits.iter().filter(|commit| commit.acked.is_some());
        acked.filter_map(|commit| {
            let mut later = self
                .ownerships
                .iter()
                .filter(|own| own.generation > commit.generation && own.span.to < commit.sent);
            Some(Anomaly::LateCommit {
                partition: commit.partition,
                offset: commit.offset,
                generation: commit.generation,
                later: later.next()?.generation,
            })
        })
    }

    /// A committed offset is that of the last commit, or of one that was under way or given up in the same generation.
    /// What an earlier generation has sent cannot take effect any more after a commit of a later one.
    fn wrong_commits(&self) -> impl Iterator<Item = Anomaly> {
        self.fetches.iter().filter_map(|fetch| {
            let commits = || {
                self.commits
                    .iter()
                    .filter(|commit| commit.partition == fetch.partition && commit.sent <= fetch.span.to)
            };
            let settled =
                || commits().filter(|commit| commit.acked.is_some_and(|acked| acked < fetch.span.from));
            let generation = settled().map(|commit| commit.generation).max();
            let newest = settled().map(|commit| commit.sent).max();
            let replaced = move |commit: &Commit| {
                generation.is_some_and(|generation| commit.generation < generation)
                    || commit
                        .acked
                        .zip(newest)
                        .is_some_and(|(acked, newest)| acked < newest)
            };
            let possible = || commits().filter(move |commit| !replaced(commit));
            let none = fetch.offset == -1 && generation.is_none();
            if none || possible().any(|commit| commit.offset == fetch.offset) {
                return None;
            }
            Some(Anomaly::WrongCommit {
                partition: fetch.partition,
                oldest: possible().map(|commit| commit.offset).min().unwrap_or(-1),
                newest: possible().map(|commit| commit.offset).max().unwrap_or(-1),
                fetched: fetch.offset,
            })
        })
    }
}

#[cfg(test)]
mod tests;
