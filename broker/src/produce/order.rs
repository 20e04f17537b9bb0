//! Commits in the order of their segments, wherever they share a partition.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use types::{FastMap, TopicPartition};

/// The commits that are under way or waiting, as the last one of each partition.
#[derive(Clone, Debug, Default)]
pub(super) struct Order(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    entered: u64,
    last: FastMap<TopicPartition, (u64, CancellationToken)>,
    /// Entries at which those that are done are taken out.
    sweep_at: usize,
}

/// Fewer entries are not worth a look.
const SWEEP: usize = 1024;

/// A place in the order. Dropping it lets those behind go on, so that whoever has nothing to commit must wait for its
/// turn too: those behind know only the last one before them. It is small, however many partitions it is for: it may
/// outlive the requests by whose memory they are counted.
#[derive(Debug)]
pub(super) struct Turn {
    before: Vec<CancellationToken>,
    done: CancellationToken,
}

impl Order {
    /// Takes a place behind all that have entered before with one of `partitions`.
    pub(super) fn enter(&self, partitions: impl IntoIterator<Item = TopicPartition>) -> Turn {
        let mut state = self.0.lock();
        state.entered += 1;
        let number = state.entered;
        let done = CancellationToken::new();
        let replaced = partitions
            .into_iter()
            .filter_map(|partition| state.last.insert(partition, (number, done.clone())));
        let before: BTreeMap<u64, CancellationToken> = replaced
            .filter(|(earlier, before)| *earlier != number && !before.is_cancelled())
            .collect();
        if state.last.len() >= state.sweep_at {
            state.last.retain(|_, (_, done)| !done.is_cancelled());
            state.sweep_at = SWEEP.max(2 * state.last.len());
        }
        Turn {
            before: before.into_values().collect(),
            done,
        }
    }
}

impl Turn {
    /// Waits until all before it are done.
    pub(super) async fn come(&self) {
        for earlier in &self.before {
            earlier.cancelled().await;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.done.cancel();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use types::TopicId;

    use super::*;

    fn partitions(indexes: &[i32]) -> Vec<TopicPartition> {
        indexes
            .iter()
            .map(|partition| TopicPartition {
                topic: TopicId::default(),
                partition: *partition,
            })
            .collect()
    }

    fn may_go(turn: &Turn) -> bool {
        turn.come().now_or_never().is_some()
    }

    #[test]
    fn only_those_that_share_a_partition_wait() {
        let order = Order::default();
        let first = order.enter(partitions(&[1, 2]));
        let other = order.enter(partitions(&[3]));
        let second = order.enter(partitions(&[2, 3]));
        let third = order.enter(partitions(&[2]));
        assert!(may_go(&first) && may_go(&other) && !may_go(&second) && !may_go(&third));
        drop(first);
        assert!(!may_go(&second), "it shares partition 3 with another");
        drop(other);
        assert!(may_go(&second) && !may_go(&third));
        drop(second);
        assert!(may_go(&third));
    }

    #[test]
    fn not_much_is_remembered_of_those_that_are_done() {
        const PARTITIONS: i32 = 5000;
        let order = Order::default();
        let waiting = order.enter(partitions(&[0]));
        for partition in 1..PARTITIONS {
            drop(order.enter(partitions(&[partition])));
        }
        let remembered = order.0.lock().last.len();
        assert!(remembered <= 2 * SWEEP, "{remembered}");
        assert!(!may_go(&order.enter(partitions(&[0, 1]))), "who is not done is");
        drop(waiting);
        assert!(may_go(&order.enter(partitions(&[0, 1]))));
    }
}
