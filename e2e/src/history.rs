//! Judges what clients saw. The reports are those of Jepsen's Kafka workload that need no transactions.
//!
//! Every record's value is unique. A history holds what was acknowledged (value, partition, offset), what failed or
//! never came to an answer, and what consumers got, each in the order it happened per client.

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
    /// The producers were idempotent, so that a value may be stored once only.
    pub idempotent: bool,
}

/// One thing that must not have happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Anomaly {
    /// Acknowledged, but no consumer that read to the end got it.
    Lost { value: u64, place: Place },
    /// One value at two places, though the producer was idempotent.
    Duplicated { value: u64, first: Place, second: Place },
    /// Two values at the same place.
    InconsistentOffset { place: Place, first: u64, second: u64 },
    /// Read elsewhere than acknowledged.
    Moved { value: u64, acked: Place, read: Place },
    /// Read, but never sent.
    Phantom { value: u64, place: Place },
    /// A consumer went backwards in a partition and got something else than before.
    NonMonotonic { partition: i32, before: i64, after: i64 },
    /// Two values of one producer and partition stand in another order than sent.
    Reordered { partition: i32, first: u64, second: u64 },
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

    /// Everything that is wrong, at most `limit` findings of each kind of scan.
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
            let lost = self.acked.iter().filter(|(value, _)| !seen.contains_key(value));
            found.extend(
                lost.map(|(value, place)| Anomaly::Lost {
                    value: *value,
                    place: *place,
                })
                .take(limit),
            );
        }
        found.extend(self.reordered(&seen).into_iter().take(limit));
        found
    }

    /// Going back is legal here: after a rebalance a member reads again what was not committed. Skipping forward over
    /// something acknowledged is found as lost.
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

    /// Fails with the findings, if any.
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
mod tests {
    use super::*;

    fn history(acks: &str, reads: &[&str], count: u64) -> History {
        let mut history = History {
            idempotent: true,
            ..History::default()
        };
        history.add_producer(acks, 0, count);
        for read in reads {
            history.add_consumer(read);
        }
        history
    }

    #[test]
    fn a_clean_history_is_clean() {
        let h = history(
            "ack 0 0 0\nack 1 1 0\nack 2 0 1",
            &["got 0 0 0\ngot 2 0 1\ngot 1 1 0"],
            3,
        );
        assert_eq!(h.check(10), []);
    }

    #[test]
    fn a_lost_record_is_found() {
        let h = history("ack 0 0 0\nack 1 0 1", &["got 0 0 0"], 2);
        let place = Place {
            partition: 0,
            offset: 1,
        };
        assert_eq!(h.check(10), [Anomaly::Lost { value: 1, place }]);
    }

    #[test]
    fn an_unacknowledged_record_may_be_missing_or_there() {
        assert_eq!(
            history("ack 0 0 0\nerr 1 timeout", &["got 0 0 0"], 2).check(10),
            []
        );
        assert_eq!(
            history("ack 0 0 0\nerr 1 timeout", &["got 0 0 0\ngot 1 0 1"], 2).check(10),
            []
        );
    }

    #[test]
    fn a_duplicate_is_found() {
        let h = history("ack 0 0 1", &["got 0 0 0\ngot 0 0 1"], 1);
        assert!(
            h.check(10)
                .iter()
                .any(|a| matches!(a, Anomaly::Duplicated { value: 0, .. }))
        );
    }

    #[test]
    fn the_same_record_read_again_is_no_duplicate() {
        let h = history(
            "ack 0 0 0\nack 1 0 1",
            &["got 0 0 0\ngot 1 0 1\ngot 0 0 0\ngot 1 0 1"],
            2,
        );
        assert_eq!(h.check(10), []);
    }

    #[test]
    fn two_records_at_one_offset_are_found() {
        let h = history("ack 0 0 0\nack 1 0 0", &["got 0 0 0"], 2);
        assert!(
            h.check(10)
                .iter()
                .any(|a| matches!(a, Anomaly::InconsistentOffset { .. }))
        );
    }

    #[test]
    fn consumers_that_disagree_are_found() {
        let h = history("", &["got 0 0 5", "got 1 0 5"], 2);
        assert!(
            h.check(10)
                .iter()
                .any(|a| matches!(a, Anomaly::InconsistentOffset { .. }))
        );
    }

    #[test]
    fn a_record_read_elsewhere_than_acknowledged_is_found() {
        let h = history("ack 0 0 7", &["got 0 0 3"], 1);
        assert!(h.check(10).iter().any(|a| matches!(a, Anomaly::Moved { .. })));
    }

    #[test]
    fn a_phantom_is_found() {
        let h = history("ack 0 0 0", &["got 0 0 0\ngot 9 0 1"], 1);
        assert!(
            h.check(10)
                .iter()
                .any(|a| matches!(a, Anomaly::Phantom { value: 9, .. }))
        );
    }

    #[test]
    fn reordering_is_found() {
        let h = history("ack 0 0 1\nack 1 0 0", &["got 1 0 0\ngot 0 0 1"], 2);
        assert!(h.check(10).iter().any(|a| matches!(a, Anomaly::Reordered { .. })));
    }

    #[test]
    fn going_back_is_found() {
        let place = |offset| Place { partition: 0, offset };
        assert_eq!(check_monotonic(&[(0, place(0)), (1, place(1))]), []);
        assert_eq!(check_monotonic(&[(0, place(1)), (1, place(1))]).len(), 1);
    }
}
