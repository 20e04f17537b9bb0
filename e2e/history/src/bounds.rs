//! What brokers say of the bounds of partitions, and of where a time begins.

use std::collections::BTreeMap;

use crate::{Anomaly, History, Place, Span};

/// An answer to ListOffsets for the end of a partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListedEnd {
    /// The partition.
    pub partition: i32,
    /// The last offset that was acknowledged, or that somebody had read, before the question was asked; -1: none.
    pub known: i64,
    /// The offset of the next record, as the answer says.
    pub listed: i64,
    /// From the question to the answer.
    pub span: Span,
}

/// A broker's word for the beginning of a partition: from ListOffsets, or from the answer to a producer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListedStart {
    /// The partition.
    pub partition: i32,
    /// Records below were deleted, and that was acknowledged before the question was asked; 0: none.
    pub deleted: i64,
    /// Nobody had asked for the deletion of more when the answer came.
    pub asked: i64,
    /// The first offset, as the answer says.
    pub listed: i64,
    /// From the question to the answer.
    pub span: Span,
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

/// What one answer to Fetch says of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchedBounds {
    /// The partition.
    pub partition: i32,
    /// Its first offset.
    pub log_start: i64,
    /// The offset behind its last record.
    pub high_watermark: i64,
    /// The first and the last offset of the records that came with it, if any did.
    pub records: Option<(i64, i64)>,
}

impl History {
    pub(crate) fn wrong_bounds(&self, limit: usize) -> Vec<Anomaly> {
        let mut found: Vec<Anomaly> = self.wrong_ends().take(limit).collect();
        found.extend(self.wrong_starts().take(limit));
        let ends = self.ends.iter().map(|end| (end.partition, end.span, end.listed));
        let ends = going_back(ends).into_iter();
        let ends = ends.map(|(partition, before, after)| Anomaly::EndBack {
            partition,
            before,
            after,
        });
        found.extend(ends.take(limit));
        let starts = self.starts.iter();
        let starts = starts.map(|start| (start.partition, start.span, start.listed));
        let starts = going_back(starts).into_iter();
        let starts = starts.map(|(partition, before, after)| Anomaly::StartBack {
            partition,
            before,
            after,
        });
        found.extend(starts.take(limit));
        for fetches in &self.fetches {
            found.extend(wrong_fetches(fetches).into_iter().take(limit));
        }
        found
    }

    /// An end is behind all that is known, and behind nothing that no reader found: each of them has read what there is.
    fn wrong_ends(&self) -> impl Iterator<Item = Anomaly> {
        let mut behind: BTreeMap<i32, i64> = self.trimmed.clone();
        for (_, place) in self.reads.iter().flatten() {
            let behind = behind.entry(place.partition).or_insert(0);
            *behind = (*behind).max(place.offset + 1);
        }
        let complete = !self.reads.is_empty();
        self.ends.iter().filter_map(move |end| {
            let (partition, listed) = (end.partition, end.listed);
            if listed <= end.known {
                return Some(Anomaly::StaleEnd {
                    partition,
                    known: end.known,
                    listed,
                });
            }
            let last = behind.get(&partition).copied().unwrap_or(0);
            (complete && listed > last).then_some(Anomaly::WrongEnd {
                partition,
                last,
                listed,
            })
        })
    }

    fn wrong_starts(&self) -> impl Iterator<Item = Anomaly> {
        let wrong = self
            .starts
            .iter()
            .filter(|start| !(start.deleted..=start.asked).contains(&start.listed));
        wrong.map(|start| Anomaly::WrongStart {
            partition: start.partition,
            deleted: start.deleted,
            asked: start.asked,
            listed: start.listed,
        })
    }

    /// Offsets are given in order: when a record is there, all before it are, too. So the answer is wrong if a record
    /// before it is late enough, or it is not late enough itself, or nobody found it; and it must not miss what was
    /// acknowledged.
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
            if first != lookup.listed {
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

/// Bounds only grow: an answer is wrong if another one, which was there before this one was asked for, has more. Gives the
/// partition, the other answer and this one.
fn going_back(answers: impl Iterator<Item = (i32, Span, i64)>) -> Vec<(i32, i64, i64)> {
    let mut by_partition: BTreeMap<i32, Vec<(Span, i64)>> = BTreeMap::new();
    for (partition, span, value) in answers {
        by_partition.entry(partition).or_default().push((span, value));
    }
    let mut found = Vec::new();
    for (partition, mut answers) in by_partition {
        answers.sort_by_key(|(span, _)| span.to);
        let mut earlier = answers.clone().into_iter().peekable();
        answers.sort_by_key(|(span, _)| span.from);
        let mut most = i64::MIN;
        for (span, value) in answers {
            while let Some((_, before)) = earlier.next_if(|(before, _)| before.to < span.from) {
                most = most.max(before);
            }
            if value < most {
                found.push((partition, most, value));
            }
        }
    }
    found
}

/// What one broker says over one connection: no bound goes back, and no record lies outside of them.
fn wrong_fetches(fetches: &[FetchedBounds]) -> Vec<Anomaly> {
    let mut newest: BTreeMap<i32, (i64, i64)> = BTreeMap::new();
    let mut found = Vec::new();
    for fetch in fetches {
        let FetchedBounds {
            partition,
            log_start,
            high_watermark,
            records,
        } = *fetch;
        let (start, end) = newest
            .insert(partition, (log_start, high_watermark))
            .unwrap_or((log_start, high_watermark));
        if high_watermark < end {
            found.push(Anomaly::WatermarkBack {
                partition,
                before: end,
                after: high_watermark,
            });
        }
        if log_start < start {
            found.push(Anomaly::StartBack {
                partition,
                before: start,
                after: log_start,
            });
        }
        if let Some((first, last)) = records
            && (first < log_start || last >= high_watermark)
        {
            found.push(Anomaly::OutOfBounds {
                partition,
                first,
                last,
                log_start,
                high_watermark,
            });
        }
    }
    found
}

#[cfg(test)]
mod tests;
