//! Committed offsets of a consumer that is no member of a group.

use std::collections::BTreeMap;

use crate::Anomaly;

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

/// A committed offset is the last acknowledged one, or one whose commit was given up: as at any Kafka, that request may
/// still be on its way and come through whenever it likes, but once. What was asked for and found is what is there from then on.
pub(crate) fn wrong_commits(steps: &[(i32, OffsetStep)]) -> Vec<Anomaly> {
    let mut possible: BTreeMap<i32, (i64, Vec<i64>)> = BTreeMap::new();
    let mut found = Vec::new();
    for (partition, step) in steps {
        let (there, sent) = possible.entry(*partition).or_insert((-1, Vec::new()));
        match step {
            OffsetStep::Sent(offset) => sent.push(*offset),
            OffsetStep::Fetched(offset) if offset == there => {}
            OffsetStep::Fetched(offset) if !sent.contains(offset) => found.push(Anomaly::WrongCommit {
                partition: *partition,
                oldest: *there,
                newest: sent.iter().copied().max().unwrap_or(*there),
                fetched: *offset,
            }),
            OffsetStep::Acked(offset) | OffsetStep::Fetched(offset) => {
                *there = *offset;
                sent.retain(|sent| sent != offset);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests;
