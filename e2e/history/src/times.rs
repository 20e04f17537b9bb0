//! Times of records: what the producer or the log gave to them, and how long they were kept.

use std::collections::BTreeMap;

use crate::{Anomaly, History, Place};

/// Somebody has seen that the beginning of a partition was gone, in a topic with retention by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// The partition.
    pub partition: i32,
    /// What lies below was gone,
    pub start: i64,
    /// by this time, ms, of the clock that gave the records their times.
    pub at: i64,
}

impl History {
    /// Takes note of the time of a record, as a consumer or the answer to its producer says; `by_log`: the log gave it.
    pub fn note_time(&mut self, place: Place, time: i64, by_log: bool) {
        let first = *self.times.entry(place).or_insert(time);
        if by_log {
            self.append_times.entry(place).or_insert(time);
        }
        if first != time {
            self.times_changed.push((place, first, time));
        }
    }

    pub(crate) fn wrong_times(&self, limit: usize) -> Vec<Anomaly> {
        let changed = self.times_changed.iter();
        let changed = changed.map(|(place, first, second)| Anomaly::TimeChanged {
            place: *place,
            first: *first,
            second: *second,
        });
        let mut found: Vec<Anomaly> = changed.take(limit).collect();
        found.extend(self.times_back().into_iter().take(limit));
        found.extend(self.other_times().take(limit));
        found.extend(self.expired_early().take(limit));
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

    /// A record has the time that its producer gave to it, unless the log gave it another.
    fn other_times(&self) -> impl Iterator<Item = Anomaly> {
        let acked = self
            .acked
            .iter()
            .filter(|(_, place)| !self.append_times.contains_key(place));
        acked.filter_map(|(value, place)| {
            let (sent, read) = (self.created.get(value)?, self.times.get(place)?);
            (sent != read).then_some(Anomaly::WrongRecordTime {
                value: *value,
                sent: *sent,
                read: *read,
            })
        })
    }

    fn expired_early(&self) -> impl Iterator<Item = Anomaly> {
        let least = self.retention.unwrap_or(i64::MIN);
        self.expiries.iter().flat_map(move |expiry| {
            self.acked.iter().filter_map(move |(value, place)| {
                let age = expiry.at.saturating_sub(*self.created.get(value)?);
                let gone = place.partition == expiry.partition && place.offset < expiry.start;
                (gone && age < least).then_some(Anomaly::ExpiredEarly {
                    place: *place,
                    age,
                    least,
                })
            })
        })
    }
}

#[cfg(test)]
mod tests;
