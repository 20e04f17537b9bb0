//! The last things that were committed, kept in memory for those who follow the shard.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::watch;
use types::{FastMap, LogOffset, TopicPartition};

use crate::protocol::TailUpdate;

/// Bound of what is kept, in coordinates and updates (about 100 bytes each).
const KEEP: usize = 200_000;
/// Bound of an answer, likewise; the follower asks again at once.
const ANSWER: usize = 20_000;

/// Bounded memory of the newest slots.
pub struct Tail {
    ring: Mutex<Ring>,
    next: watch::Sender<LogOffset>,
}

#[derive(Default)]
struct Ring {
    /// The first slot that is remembered (whether it said anything or not).
    start: LogOffset,
    next: LogOffset,
    /// Slots that said something.
    slots: VecDeque<(LogOffset, Vec<TailUpdate>)>,
    weight: usize,
}

/// What was committed in a range of slots.
#[derive(Debug, PartialEq)]
pub struct News {
    /// The range asked for is not remembered; go on from `next`.
    pub reset: bool,
    /// The first slot after the range.
    pub next: LogOffset,
    /// One update per partition.
    pub updates: Vec<TailUpdate>,
}

impl Default for Tail {
    fn default() -> Self {
        Self {
            ring: Mutex::default(),
            next: watch::Sender::new(LogOffset(0)),
        }
    }
}

fn weight(updates: &[TailUpdate]) -> usize {
    updates.iter().map(|update| 1 + update.batches.len()).sum()
}

impl Tail {
    /// Forgets everything: the state was replaced, and `next` is the next slot.
    pub fn restart(&self, next: LogOffset) {
        *self.ring.lock() = Ring {
            start: next,
            next,
            ..Ring::default()
        };
        self.next.send_replace(next);
    }

    /// Adds an applied slot.
    pub fn push(&self, offset: LogOffset, updates: Vec<TailUpdate>) {
        {
            let mut ring = self.ring.lock();
            ring.next = offset.next();
            if !updates.is_empty() {
                ring.weight += weight(&updates);
                ring.slots.push_back((offset, updates));
            }
            while ring.weight > KEEP {
                let Some((dropped, updates)) = ring.slots.pop_front() else {
                    break;
                };
                ring.weight -= weight(&updates);
                ring.start = dropped.next();
            }
        }
        self.next.send_replace(offset.next());
    }

    /// Follows the next slot.
    pub fn watch(&self) -> watch::Receiver<LogOffset> {
        self.next.subscribe()
    }

    /// What was committed from `from` on.
    pub fn read(&self, from: LogOffset) -> News {
        let ring = self.ring.lock();
        if from < ring.start || from > ring.next {
            return News {
                reset: true,
                next: ring.next,
                updates: Vec::new(),
            };
        }
        let mut next = ring.next;
        let mut taken = 0;
        let mut updates: Vec<TailUpdate> = Vec::new();
        let mut index: FastMap<TopicPartition, usize> = FastMap::default();
        let first = ring.slots.partition_point(|(offset, _)| *offset < from);
        for (offset, slot) in ring.slots.range(first..) {
            if taken >= ANSWER {
                next = *offset;
                break;
            }
            taken += weight(slot);
            for update in slot {
                let at = *index.entry(update.partition).or_insert(updates.len());
                match updates.get_mut(at) {
                    Some(known) => {
                        known.log_start_offset = update.log_start_offset;
                        known.high_watermark = update.high_watermark;
                        known.deleted = update.deleted;
                        known.batches.extend_from_slice(&update.batches);
                    }
                    None => updates.push(update.clone()),
                }
            }
        }
        News {
            reset: false,
            next,
            updates,
        }
    }
}
