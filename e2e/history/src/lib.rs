//! Judges what clients saw. The reports are those of Jepsen's Kafka workload that need no transactions, and some
//! that only a test can make which knows what it broke and when.
//!
//! Every record's value is unique. A [`History`] is about one topic: what was acknowledged (value, partition, offset),
//! what failed or never came to an answer, and what consumers got, each in the order it happened per client.
//!
//! ```text
//!  producers ─▶ sent, acked, refused ─┐
//!  consumers ─▶ reads, fetches, times ┼─▶ check ─▶ anomalies
//!  auditors  ─▶ ends, starts, commits ┤
//!  the rig   ─▶ trimmed, created ─────┘           outages ─▶ check_outages ─▶ anomalies
//! ```
//!
//! A [`GroupHistory`] is about the members of one consumer group on one topic.

mod anomaly;
mod bounds;
mod commits;
mod group;
mod outage;
mod times;

pub use anomaly::Anomaly;
pub use bounds::{FetchedBounds, ListedEnd, ListedStart, TimeLookup};
pub use commits::OffsetStep;
pub use group::{Commit, Fetch, GroupHistory, Ownership};
pub use outage::{Operation, Span, check_outages};
pub use times::Expiry;

use std::collections::{BTreeMap, BTreeSet};

/// Where a record was acknowledged or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Partition of the topic.
    pub partition: i32,
    /// Offset in it.
    pub offset: i64,
}

/// What all clients of one topic saw.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Values that were sent at all.
    pub sent: BTreeSet<u64>,
    /// Acknowledged values, where they were first.
    pub acked: BTreeMap<u64, Place>,
    /// Values that were acknowledged again, at another place. See [`History::ack`].
    pub moved: Vec<(u64, Place)>,
    /// When the record at a place was acknowledged first, ms. See [`History::waited`].
    pub acked_at: BTreeMap<Place, i64>,
    /// Values that are not stored, as their producers were told, and never will be.
    pub refused: BTreeSet<u64>,
    /// For each producer: its values in the order it sent them. Order is promised within a partition.
    pub sends: Vec<Vec<u64>>,
    /// For each consumer that read everything: what it got, in order.
    pub reads: Vec<Vec<(u64, Place)>>,
    /// A value may be stored once only: the producers were idempotent, or sent each value once.
    pub idempotent: bool,
    /// By partition: what lies below may be gone, because somebody asked for that.
    pub trimmed: BTreeMap<i32, i64>,
    /// By partition: what lies below was deleted, as a broker has said.
    pub deleted: BTreeMap<i32, i64>,
    /// Ends of partitions, as they were listed.
    pub ends: Vec<ListedEnd>,
    /// Beginnings of partitions, as they were listed.
    pub starts: Vec<ListedStart>,
    /// Where times begin, as was listed.
    pub lookups: Vec<TimeLookup>,
    /// Times of records, as they were first told, ms. See [`History::note_time`].
    pub times: BTreeMap<Place, i64>,
    /// Records that were told two times.
    pub times_changed: Vec<(Place, i64, i64)>,
    /// The times that producers gave to values, ms.
    pub created: BTreeMap<u64, i64>,
    /// Records are kept for so long at least, ms: retention by time, without the errors of clocks.
    pub retention: Option<i64>,
    /// What retention has taken by when.
    pub expiries: Vec<Expiry>,
    /// For each connection to one broker: what its answers to Fetch say, in their order.
    pub fetches: Vec<Vec<FetchedBounds>>,
    /// For each group member that commits alone: what it did with the committed offset of a partition.
    pub commits: Vec<Vec<(i32, OffsetStep)>>,
    /// Times that the log gave to records (topics with LogAppendTime), ms.
    pub append_times: BTreeMap<Place, i64>,
}

impl History {
    /// Takes over the lines that a producer client printed (`ack VALUE PARTITION OFFSET`, `err VALUE …`).
    /// Values `first .. first + count` count as sent.
    pub fn add_producer(&mut self, output: &str, first: u64, count: u64) {
        let values: Vec<u64> = (first..first + count).collect();
        self.sent.extend(&values);
        self.sends.push(values);
        for line in output.lines() {
            if let Some((value, place)) = parse(line, "ack") {
                self.ack(value, place);
            }
        }
    }

    /// Takes note of an acknowledgement. A value may be acknowledged more than once, at the same place.
    pub fn ack(&mut self, value: u64, place: Place) {
        let first = *self.acked.entry(value).or_insert(place);
        if first != place {
            self.moved.push((value, place));
        }
    }

    /// Takes over the lines that a consumer client printed (`got VALUE PARTITION OFFSET`).
    pub fn add_consumer(&mut self, output: &str) {
        self.reads
            .push(output.lines().filter_map(|line| parse(line, "got")).collect());
    }

    /// The last acknowledged offset of a partition; -1: none.
    pub fn last_acked(&self, partition: i32) -> i64 {
        let places = self.acked.values().filter(|place| place.partition == partition);
        places.map(|place| place.offset).max().unwrap_or(-1)
    }

    /// The last offset of a partition that was acknowledged, or that somebody has read; -1: none.
    pub fn last_known(&self, partition: i32) -> i64 {
        let all = Place { partition, offset: 0 }..Place {
            partition,
            offset: i64::MAX,
        };
        let read = self.times.range(all).next_back();
        read.map_or(-1, |(place, _)| place.offset)
            .max(self.last_acked(partition))
    }

    /// Everything that is wrong, at most `limit` findings of each kind of scan. Consumers may be members of groups: after
    /// a rebalance they read again what was not committed.
    pub fn check(&self, limit: usize) -> Vec<Anomaly> {
        let mut found = Vec::new();
        let mut seen: BTreeMap<u64, Place> = BTreeMap::new();
        let mut at: BTreeMap<Place, u64> = BTreeMap::new();
        for (value, place) in &self.acked {
            if let Some(other) = at.insert(*place, *value) {
                found.push(Anomaly::InconsistentOffset {
                    place: *place,
                    first: other,
                    second: *value,
                });
            }
        }
        for read in &self.reads {
            found.extend(self.check_read(read, &mut seen, &mut at).into_iter().take(limit));
        }
        found.extend(self.lost().into_iter().take(limit));
        let moved = self.moved.iter().filter_map(|(value, place)| {
            Some(Anomaly::Moved {
                value: *value,
                acked: *self.acked.get(value)?,
                read: *place,
            })
        });
        found.extend(moved.take(limit));
        found.extend(self.reordered(&seen).into_iter().take(limit));
        found.extend(self.wrong_bounds(limit));
        found.extend(self.wrong_lookups().into_iter().take(limit));
        let steps = self.commits.iter();
        let commits = steps.flat_map(|steps| commits::wrong_commits(steps));
        found.extend(commits.take(limit));
        found.extend(self.wrong_times(limit));
        found
    }

    /// What is wrong with the reads of consumers that assigned their partitions themselves: they must get on, and
    /// past nothing that was acknowledged.
    pub fn check_assigned(&self, limit: usize) -> Vec<Anomaly> {
        let by_place: BTreeMap<Place, u64> =
            self.acked.iter().map(|(value, place)| (*place, *value)).collect();
        let mut found = Vec::new();
        for read in &self.reads {
            found.extend(check_monotonic(read).into_iter().take(limit));
            let mut next: BTreeMap<i32, i64> = BTreeMap::new();
            let mut skipped = Vec::new();
            for (_, place) in read {
                let partition = place.partition;
                let from = next.insert(partition, place.offset + 1).unwrap_or(0);
                let gap = Place {
                    partition,
                    offset: from,
                }..*place;
                if gap.start < gap.end {
                    let missing = by_place.range(gap).filter(|(place, _)| !self.is_trimmed(place));
                    skipped.extend(missing.map(|(place, value)| Anomaly::Skipped {
                        value: *value,
                        place: *place,
                    }));
                }
            }
            found.extend(skipped.into_iter().take(limit));
        }
        found
    }

    /// What is acknowledged and not trimmed and one of the readers did not get: each of them has come to the end.
    fn lost(&self) -> Vec<Anomaly> {
        let mut lost: BTreeMap<u64, Place> = BTreeMap::new();
        for read in &self.reads {
            let got: BTreeSet<u64> = read.iter().map(|(value, _)| *value).collect();
            let missing = |(value, place): &(&u64, &Place)| !got.contains(value) && !self.is_trimmed(place);
            lost.extend(
                self.acked
                    .iter()
                    .filter(missing)
                    .map(|(value, place)| (*value, *place)),
            );
        }
        let lost = lost.into_iter();
        lost.map(|(value, place)| Anomaly::Lost { value, place })
            .collect()
    }

    fn is_trimmed(&self, place: &Place) -> bool {
        self.trimmed
            .get(&place.partition)
            .is_some_and(|start| place.offset < *start)
    }

    fn check_read(
        &self,
        read: &[(u64, Place)],
        seen: &mut BTreeMap<u64, Place>,
        at: &mut BTreeMap<Place, u64>,
    ) -> Vec<Anomaly> {
        let mut found = Vec::new();
        for (value, place) in read {
            let (value, place) = (*value, *place);
            if self.refused.contains(&value) {
                found.push(Anomaly::AbortedRead { value, place });
            } else if !self.sent.contains(&value) {
                found.push(Anomaly::Phantom { value, place });
            }
            match at.insert(place, value) {
                Some(other) if other != value => {
                    found.push(Anomaly::InconsistentOffset {
                        place,
                        first: other,
                        second: value,
                    });
                }
                _ => {}
            }
            match seen.insert(value, place) {
                Some(first) if first != place && self.idempotent => {
                    found.push(Anomaly::Duplicated {
                        value,
                        first,
                        second: place,
                    });
                }
                _ => {}
            }
            if let Some(acked) = self.acked.get(&value).filter(|acked| **acked != place)
                && self.idempotent
            {
                found.push(Anomaly::Moved {
                    value,
                    acked: *acked,
                    read: place,
                });
            }
        }
        found
    }

    /// Values of one producer must stand in each partition in the order they were sent.
    fn reordered(&self, seen: &BTreeMap<u64, Place>) -> Vec<Anomaly> {
        let mut found = Vec::new();
        for sends in &self.sends {
            let mut newest: BTreeMap<i32, (i64, u64)> = BTreeMap::new();
            for value in sends {
                let Some(place) = seen.get(value).or_else(|| self.acked.get(value)) else {
                    continue;
                };
                if let Some((offset, first)) = newest.insert(place.partition, (place.offset, *value))
                    && place.offset <= offset
                {
                    found.push(Anomaly::Reordered {
                        partition: place.partition,
                        first,
                        second: *value,
                    });
                }
            }
        }
        found
    }

    /// Fails with the findings, if any.
    #[allow(clippy::panic, reason = "this is what it is for")]
    pub fn assert_clean(&self) {
        let found = self.check(20);
        assert!(
            found.is_empty(),
            "{} sent, {} acknowledged, {} reads; anomalies:\n{}",
            self.sent.len(),
            self.acked.len(),
            self.reads.iter().map(Vec::len).sum::<usize>(),
            found.iter().map(|a| format!("  {a}\n")).collect::<String>()
        );
    }
}

/// A consumer that was assigned its partitions (no group) must never go back.
pub fn check_monotonic(read: &[(u64, Place)]) -> Vec<Anomaly> {
    let mut found = Vec::new();
    let mut position: BTreeMap<i32, i64> = BTreeMap::new();
    for (_, place) in read {
        if let Some(before) = position.insert(place.partition, place.offset)
            && place.offset <= before
        {
            found.push(Anomaly::NonMonotonic {
                partition: place.partition,
                before,
                after: place.offset,
            });
        }
    }
    found
}

fn parse(line: &str, word: &str) -> Option<(u64, Place)> {
    let mut words = line.split_whitespace();
    if words.next()? != word {
        return None;
    }
    let value = words.next()?.parse().ok()?;
    let partition = words.next()?.parse().ok()?;
    let offset = words.next()?.parse().ok()?;
    Some((value, Place { partition, offset }))
}

#[cfg(test)]
mod tests;
