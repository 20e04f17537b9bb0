//! What a broker knows of the end of every partition. No I/O.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use coordinator::protocol::{Coordinate, FindBatchesResult, TailResponse, TailUpdate};
use parking_lot::Mutex;
use tokio::sync::Notify;
use types::{FastMap, LogOffset, ShardId, TopicPartition};

/// Coordinates kept over all partitions (about 100 bytes each).
const KEEP: usize = 100_000;

/// Below this many waiters of a partition nobody looks for those that have gone.
const SWEEP: usize = 32;

/// Bounds of a partition, as far as they are known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// First offset that is kept.
    pub log_start_offset: i64,
    /// The offset after the last record.
    pub high_watermark: i64,
}

/// What is known about an offset.
#[derive(Clone, Debug, PartialEq)]
pub enum Look {
    /// Here is what follows it.
    Batches(Bounds, Vec<Coordinate>),
    /// It is the end: there is nothing yet.
    End(Bounds),
    /// It was deleted. Log starts only move forward, so this is certain.
    Below(Bounds),
    /// Only the leader knows.
    Ask,
}

#[derive(Debug)]
struct Partition {
    shard: ShardId,
    bounds: Bounds,
    /// Every batch in `start..end`, in order.
    batches: VecDeque<Coordinate>,
    start: i64,
    end: i64,
    waiting: Vec<Weak<Notify>>,
}

#[derive(Debug, Default)]
struct State {
    partitions: FastMap<TopicPartition, Partition>,
    /// One entry for each coordinate that is kept, oldest first.
    kept: VecDeque<TopicPartition>,
    /// The slot of each shard from which on every update has been seen.
    since: FastMap<ShardId, LogOffset>,
}

/// The newest coordinates of every partition. Shared by all fetches of a broker.
#[derive(Clone, Debug, Default)]
pub struct Windows(Arc<Mutex<State>>);

impl Windows {
    /// What is known about `offset`, with coordinates of up to `max_bytes` (at least one).
    pub fn look(&self, partition: &TopicPartition, offset: i64, max_bytes: u64) -> Look {
        let state = self.0.lock();
        let Some(known) = state.partitions.get(partition) else {
            return Look::Ask;
        };
        let bounds = known.bounds;
        if offset < bounds.log_start_offset {
            return Look::Below(bounds);
        }
        if offset == bounds.high_watermark {
            return Look::End(bounds);
        }
        if offset > bounds.high_watermark || offset < known.start || offset >= known.end {
            return Look::Ask;
        }
        let first = known.batches.partition_point(|batch| batch.last_offset < offset);
        let mut size = 0;
        let within = known.batches.range(first..).take_while(|batch| {
            let takes = size == 0 || size + u64::from(batch.size) <= max_bytes;
            size += u64::from(batch.size);
            takes
        });
        Look::Batches(bounds, within.cloned().collect())
    }

    /// Has `waiter` notified at the next change of `partition`. False if nothing is known of it, or `offset` is no
    /// longer its end.
    pub fn wait(&self, partition: &TopicPartition, offset: i64, waiter: &Arc<Notify>) -> bool {
        let mut state = self.0.lock();
        let Some(known) = state.partitions.get_mut(partition) else {
            return false;
        };
        if known.bounds.high_watermark != offset {
            return false;
        }
        if known.waiting.len() >= SWEEP {
            known.waiting.retain(|waiter| waiter.strong_count() > 0);
        }
        known.waiting.push(Arc::downgrade(waiter));
        true
    }

    /// Takes over what the leader says in answer to FindBatches. `applied` is the slot it is true at.
    pub fn learn(
        &self,
        shard: ShardId,
        partition: TopicPartition,
        applied: LogOffset,
        found: &FindBatchesResult,
    ) {
        let mut state = self.0.lock();
        // Updates between that slot and the first one seen would be missing.
        if state
            .since
            .get(&shard)
            .is_none_or(|since| applied.next() < *since)
        {
            return;
        }
        let bounds = Bounds {
            log_start_offset: found.log_start_offset,
            high_watermark: found.high_watermark,
        };
        let known = state
            .partitions
            .entry(partition)
            .or_insert_with(|| Partition::new(shard, bounds));
        known.advance(bounds);
        known.wake();
    }

    /// The leader has said that records below `log_start_offset` are deleted: here, too, nobody reads them from now on.
    pub fn deleted(&self, partition: &TopicPartition, log_start_offset: i64) {
        if let Some(known) = self.0.lock().partitions.get_mut(partition) {
            known.advance(Bounds {
                log_start_offset,
                ..known.bounds
            });
            known.wake();
        }
    }

    /// Forgets a shard: its leader has been silent for too long.
    pub fn forget(&self, shard: ShardId) {
        let mut state = self.0.lock();
        state.since.remove(&shard);
        state.forget(shard);
    }

    /// Takes over what the leader of `shard` has pushed.
    pub fn update(&self, shard: ShardId, news: TailResponse) {
        let mut state = self.0.lock();
        if (news.reset && !env::mutation("keep-window")) || !state.since.contains_key(&shard) {
            state.since.insert(shard, news.next);
            state.forget(shard);
        }
        for update in news.partitions {
            state.apply(shard, update);
        }
        state.shrink();
    }
}

impl State {
    /// Whoever waits asks the leader again.
    fn forget(&mut self, shard: ShardId) {
        self.partitions.retain(|_, known| {
            if known.shard == shard {
                known.wake();
            }
            known.shard != shard
        });
    }

    fn apply(&mut self, shard: ShardId, update: TailUpdate) {
        if update.deleted {
            if let Some(mut known) = self.partitions.remove(&update.partition) {
                known.wake();
            }
            return;
        }
        let bounds = Bounds {
            log_start_offset: update.log_start_offset,
            high_watermark: update.high_watermark,
        };
        let known = self.partitions.entry(update.partition).or_insert_with(|| {
            let start = update
                .batches
                .first()
                .map_or(bounds.high_watermark, |batch| batch.base_offset);
            Partition {
                start,
                end: start,
                ..Partition::new(shard, bounds)
            }
        });
        for batch in update.batches {
            if batch.base_offset < known.end {
                // FindBatches was faster.
                continue;
            }
            known.end = batch.last_offset.saturating_add(1);
            known.batches.push_back(batch);
            self.kept.push_back(update.partition);
        }
        known.advance(bounds);
        while known
            .batches
            .front()
            .is_some_and(|batch| batch.last_offset < bounds.log_start_offset)
        {
            known.drop_oldest();
        }
        known.wake();
    }

    fn shrink(&mut self) {
        while self.kept.len() > KEEP {
            let Some(partition) = self.kept.pop_front() else {
                break;
            };
            if let Some(known) = self.partitions.get_mut(&partition) {
                known.drop_oldest();
            }
        }
    }
}

impl Partition {
    fn new(shard: ShardId, bounds: Bounds) -> Partition {
        let end = bounds.high_watermark;
        Partition {
            shard,
            bounds,
            batches: VecDeque::new(),
            start: end,
            end,
            waiting: Vec::new(),
        }
    }

    /// Both bounds only ever grow.
    fn advance(&mut self, bounds: Bounds) {
        self.bounds.log_start_offset = self.bounds.log_start_offset.max(bounds.log_start_offset);
        self.bounds.high_watermark = self.bounds.high_watermark.max(bounds.high_watermark);
    }

    fn drop_oldest(&mut self) {
        if let Some(batch) = self.batches.pop_front() {
            self.start = batch.last_offset.saturating_add(1);
        }
    }

    fn wake(&mut self) {
        for waiter in self.waiting.drain(..) {
            if let Some(waiter) = waiter.upgrade() {
                waiter.notify_one();
            }
        }
    }
}

#[cfg(test)]
mod tests;
