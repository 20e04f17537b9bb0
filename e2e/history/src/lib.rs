//! Judges what clients saw. The reports are those of Jepsen's Kafka workload that need no transactions, and some
//! that only a test can make which knows what it broke and when.
//!
//! Every record's value is unique. A [`History`] is about one topic: what was acknowledged (value, partition, offset),
//! what failed or never came to an answer, and what consumers got, each in the order it happened per client.
//!
//! ```text
//!  producers ─▶ sent, acked, sends ─┐
//!  consumers ─▶ reads, watermarks ──┼─▶ check ─▶ anomalies
//!  auditors  ─▶ ends, commits ──────┤
//!  the rig   ─▶ trimmed, times ─────┘           outages ─▶ check_outages ─▶ anomalies
//! ```
//!
//! A [`GroupHistory`] is about the members of one consumer group on one topic.

mod bounds;
mod group;
mod outage;

pub use bounds::{ListedEnd, ListedStart, TimeLookup};
pub use group::{Commit, Fetch, GroupHistory, Ownership};
pub use outage::{Operation, Span, check_outages};

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

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
    /// Acknowledged values; an idempotent producer gets each acknowledged once.
    pub acked: BTreeMap<u64, Place>,
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
    /// Times of records, as consumers saw them, ms.
    pub times: BTreeMap<Place, i64>,
    /// For each connection to one broker: high watermarks (partition, offset) in the order they came.
    pub watermarks: Vec<Vec<(i32, i64)>>,
    /// For each group member that commits alone: what it did with the committed offset of a partition.
    pub commits: Vec<Vec<(i32, OffsetStep)>>,
    /// Times that the log gave to records (topics with LogAppendTime), ms.
    pub append_times: BTreeMap<Place, i64>,
}

/// One step in the life of a committed offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffsetStep {
    /// A commit was sent.
    Sent(i64),
    /// It was acknowledged.
    Acked(i64),
    /// The committed offset was asked for after all that is before in the list; -1: none.
    Fetched(i64),
}

/// One thing that must not have happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are what their names say")]
pub enum Anomaly {
    /// Acknowledged, but no consumer that read to the end got it.
    Lost { value: u64, place: Place },
    /// A consumer that assigned its partitions itself went past it.
    Skipped { value: u64, place: Place },
    /// One value at two places, though it may be stored once only.
    Duplicated { value: u64, first: Place, second: Place },
    /// Two values at the same place.
    InconsistentOffset { place: Place, first: u64, second: u64 },
    /// Read elsewhere than acknowledged.
    Moved { value: u64, acked: Place, read: Place },
    /// Read, but never sent.
    Phantom { value: u64, place: Place },
    /// A consumer that assigned its partitions itself went backwards.
    NonMonotonic { partition: i32, before: i64, after: i64 },
    /// Two values of one producer and partition stand in another order than sent.
    Reordered { partition: i32, first: u64, second: u64 },
    /// ListOffsets does not know what was acknowledged before it was asked.
    StaleEnd { partition: i32, acked: i64, listed: i64 },
    /// ListOffsets does not know what was deleted before it was asked, or more is gone than anybody asked for.
    WrongStart {
        partition: i32,
        deleted: i64,
        asked: i64,
        listed: i64,
    },
    /// ListOffsets for a time gives another record than the first one.
    WrongTime {
        partition: i32,
        time: i64,
        first: i64,
        listed: i64,
    },
    /// A high watermark went backwards at one broker.
    WatermarkBack { partition: i32, before: i64, after: i64 },
    /// Log-append times go backwards in a partition.
    TimeBack { place: Place, before: i64, after: i64 },
    /// A committed offset is not one that can be there.
    WrongCommit {
        partition: i32,
        oldest: i64,
        newest: i64,
        fetched: i64,
    },
    /// Two members of a group own one partition in the same generation.
    SharedPartition {
        generation: i32,
        partition: i32,
        first: String,
        second: String,
    },
    /// A generation has two leaders.
    TwoLeaders {
        generation: i32,
        first: String,
        second: String,
    },
    /// A member owns what no leader of its generation has given to it.
    WrongAssignment {
        generation: i32,
        member: String,
        partitions: Vec<i32>,
    },
    /// A group went back to an earlier generation.
    GenerationBack { before: i32, after: i32 },
    /// Acknowledged, but no member of a group that has come to the end got it.
    Unconsumed { value: u64, place: Place },
    /// Something was not served for longer than is promised.
    Unavailable { what: String, from: i64, to: i64 },
    /// A broker broke its word in another way; the text says how.
    Broken { what: String },
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
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
                self.acked.insert(value, place);
            }
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
        if !self.reads.is_empty() {
            let missing =
                |(value, place): &(&u64, &Place)| !seen.contains_key(value) && !self.is_trimmed(place);
            let lost = self
                .acked
                .iter()
                .filter(missing)
                .map(|(value, place)| Anomaly::Lost {
                    value: *value,
                    place: *place,
                });
            found.extend(lost.take(limit));
        }
        found.extend(self.reordered(&seen).into_iter().take(limit));
        found.extend(self.wrong_bounds().take(limit));
        found.extend(self.wrong_lookups().into_iter().take(limit));
        found.extend(
            self.watermarks
                .iter()
                .flat_map(|seen| watermarks_back(seen))
                .take(limit),
        );
        found.extend(
            self.commits
                .iter()
                .flat_map(|steps| wrong_commits(steps))
                .take(limit),
        );
        found.extend(self.times_back().into_iter().take(limit));
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
            if !self.sent.contains(&value) {
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

    fn times_back(&self) -> Vec<Anomaly> {
        let mut found = Vec::new();
        let mut newest: BTreeMap<i32, i64> = BTreeMap::new();
        for (place, time) in &self.append_times {
            let before = newest.entry(place.partition).or_insert(*time);
            if time < before {
                found.push(Anomaly::TimeBack {
                    place: *place,
                    before: *before,
                    after: *time,
                });
            }
            *before = (*before).max(*time);
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

fn watermarks_back(seen: &[(i32, i64)]) -> Vec<Anomaly> {
    let mut newest: BTreeMap<i32, i64> = BTreeMap::new();
    let mut found = Vec::new();
    for (partition, after) in seen {
        let before = newest.insert(*partition, *after).unwrap_or(*after);
        if *after < before {
            found.push(Anomaly::WatermarkBack {
                partition: *partition,
                before,
                after: *after,
            });
        }
    }
    found
}

/// A committed offset is the last acknowledged one, or one whose commit was given up: as at any Kafka, that request may
/// still be on its way and come through whenever it likes.
fn wrong_commits(steps: &[(i32, OffsetStep)]) -> Vec<Anomaly> {
    let mut possible: BTreeMap<i32, (i64, Vec<i64>)> = BTreeMap::new();
    let mut found = Vec::new();
    for (partition, step) in steps {
        let (acked, sent) = possible.entry(*partition).or_insert((-1, Vec::new()));
        match step {
            OffsetStep::Sent(offset) => sent.push(*offset),
            OffsetStep::Acked(offset) => {
                *acked = *offset;
                sent.retain(|sent| sent != offset);
            }
            OffsetStep::Fetched(fetched) if fetched == acked || sent.contains(fetched) => {}
            OffsetStep::Fetched(fetched) => found.push(Anomaly::WrongCommit {
                partition: *partition,
                oldest: *acked,
                newest: sent.iter().copied().max().unwrap_or(*acked),
                fetched: *fetched,
            }),
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
