//! What brokers say of the bounds of partitions, and of where a time begins.

use std::collections::BTreeMap;

use crate::{Anomaly, History, Place};

/// An answer to ListOffsets for the end of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedEnd {
    /// The partition.
    pub partition: i32,
    /// The last offset that was acknowledged before the question was asked; -1: none.
    pub acked: i64,
    /// The offset of the next record, as the answer says.
    pub listed: i64,
}

/// An answer to ListOffsets for the beginning of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedStart {
    /// The partition.
    pub partition: i32,
    /// Records below were deleted, and that was acknowledged before the question was asked; 0: none.
    pub deleted: i64,
    /// Nobody had asked for the deletion of more when the answer came.
    pub asked: i64,
    /// The first offset, as the answer says.
    pub listed: i64,
}

/// An answer to ListOffsets for a time. For partitions of which nothing is ever deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLookup {
    /// The partition.
    pub partition: i32,
    /// The time that was asked for, ms.
    pub time: i64,
    /// The last offset that was acknowledged before the question was asked; -1: none.
    pub acked: i64,
    /// The first offset of this time or later, as the answer says; -1: there is none.
    pub listed: i64,
}

impl History {
    pub(crate) fn wrong_bounds(&self) -> impl Iterator<Item = Anomaly> {
        let ends = self.ends.iter().filter(|end| end.listed <= end.acked);
        let ends = ends.map(|end| Anomaly::StaleEnd {
            partition: end.partition,
            acked: end.acked,
            listed: end.listed,
        });
        let starts = self
            .starts
            .iter()
            .filter(|start| !(start.deleted..=start.asked).contains(&start.listed));
        ends.chain(starts.map(|start| Anomaly::WrongStart {
            partition: start.partition,
            deleted: start.deleted,
            asked: start.asked,
            listed: start.listed,
        }))
    }

    /// Offsets are given in order: when a record is there, all before it are, too. So the answer is wrong if a record
    /// before it is late enough, or it is not late enough itself; and it must not miss what was acknowledged.
    pub(crate) fn wrong_lookups(&self) -> Vec<Anomaly> {
        let mut found = Vec::new();
        let mut cache: BTreeMap<i32, Vec<(i64, i64)>> = BTreeMap::new();
        for lookup in &self.lookups {
            let partition = lookup.partition;
            let times = cache.entry(partition).or_insert_with(|| {
                let all = Place { partition, offset: 0 }..Place {
                    partition,
                    offset: i64::MAX,
                };
                self.times
                    .range(all)
                    .map(|(place, time)| (place.offset, *time))
                    .collect()
            });
            let known = match lookup.listed {
                -1 => lookup.acked,
                listed => listed,
            };
            let first = times
                .iter()
                .find(|(offset, time)| *offset <= known && *time >= lookup.time);
            let first = first.map_or(-1, |(offset, _)| *offset);
            // What is listed and was never read is found to be missing elsewhere.
            let unread = lookup.listed >= 0 && times.iter().all(|(offset, _)| *offset != lookup.listed);
            if first != lookup.listed && !unread {
                found.push(Anomaly::WrongTime {
                    partition,
                    time: lookup.time,
                    first,
                    listed: lookup.listed,
                });
            }
        }
        found
    }
}
