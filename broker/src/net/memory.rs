//! The memory that requests may take, as a number of bytes.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Semaphore;

/// Frames above this size share a half of the budget until they are complete, in bytes: whoever announces much and sends
/// little holds up others like it, and not the rest.
pub(super) const LARGE: usize = 1 << 20;

/// Memory for requests that are being read, and for produced batches until they are in the object store.
#[derive(Clone, Debug)]
pub struct MemoryBudget {
    all: Arc<Pool>,
    /// What incomplete frames above [`LARGE`] may hold of it.
    incomplete: Arc<Pool>,
}

#[derive(Debug)]
struct Pool {
    total: usize,
    free: Semaphore,
    /// Bytes that were used without being free, see [`Memory::add`].
    owed: Mutex<usize>,
}

/// A part of a [`MemoryBudget`], given back when it is dropped.
#[derive(Debug)]
pub struct Memory {
    pool: Arc<Pool>,
    bytes: usize,
}

impl MemoryBudget {
    /// A budget of `bytes`.
    pub fn new(bytes: usize) -> MemoryBudget {
        MemoryBudget {
            all: Pool::new(bytes),
            incomplete: Pool::new((bytes / 2).max(1)),
        }
    }

    /// Bytes in use.
    pub fn used(&self) -> usize {
        let taken = self.all.total.saturating_sub(self.all.free.available_permits());
        taken + *self.all.owed.lock()
    }

    pub(super) fn total(&self) -> usize {
        self.all.total
    }

    /// Takes `bytes`, or everything if they are more, when those who have asked before have theirs.
    pub async fn take(&self, bytes: usize) -> Memory {
        Pool::take(&self.all, bytes).await
    }

    /// The same of the part for incomplete frames above [`LARGE`], but not all of it: the rest is for what has come of
    /// slow ones.
    pub(super) async fn take_incomplete(&self, bytes: usize) -> Memory {
        let most = self.incomplete.total.div_ceil(4) * 3;
        Pool::take(&self.incomplete, bytes.min(most)).await
    }

    /// Whether somebody may be waiting: who waits is given what becomes free bit by bit, so nothing is left then.
    pub(super) fn is_short(&self) -> bool {
        [&self.all, &self.incomplete]
            .iter()
            .any(|pool| pool.free.available_permits() == 0)
    }
}

impl Pool {
    fn new(total: usize) -> Arc<Pool> {
        Arc::new(Pool {
            total,
            free: Semaphore::new(total),
            owed: Mutex::new(0),
        })
    }

    async fn take(pool: &Arc<Pool>, bytes: usize) -> Memory {
        let bytes = bytes.min(pool.total);
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        // It is never closed.
        let taken = pool.free.acquire_many(permits).await;
        let bytes = taken.map_or(0, |permits| {
            let count = permits.num_permits();
            permits.forget();
            count
        });
        Memory {
            pool: pool.clone(),
            bytes,
        }
    }
}

impl Memory {
    /// Counts `bytes` more at once. What is not free is owed, and paid from what is given back next: until then nobody
    /// gets anything.
    pub fn add(&mut self, bytes: usize) {
        let mut owed = self.pool.owed.lock();
        *owed += bytes - self.pool.free.forget_permits(bytes);
        self.bytes += bytes;
    }

    /// Takes `bytes` more, in turn; never more than there are in all.
    pub(super) async fn grow(&mut self, bytes: usize) {
        let bytes = bytes.min(self.pool.total.saturating_sub(self.bytes));
        let mut more = Pool::take(&self.pool, bytes).await;
        self.bytes += std::mem::take(&mut more.bytes);
    }

    /// Gives `bytes` back, or what there is.
    pub fn release(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        let mut owed = self.pool.owed.lock();
        let paid = bytes.min(*owed);
        *owed -= paid;
        self.pool.free.add_permits(bytes - paid);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.release(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn what_is_owed_is_paid_before_others_get_any() {
        let budget = MemoryBudget::new(100);
        let mut first = budget.take(60).await;
        first.add(100);
        assert_eq!(budget.used(), 160);
        assert!(budget.is_short());
        first.release(60);
        assert_eq!(budget.used(), 100);
        assert!(budget.take(1).now_or_never().is_none());
        first.release(10);
        assert_eq!(budget.used(), 90);
        assert!(budget.take(11).now_or_never().is_none());
        assert!(budget.take(10).now_or_never().is_some());
        drop(first);
        assert_eq!(budget.used(), 0);
        assert!(budget.take(100).now_or_never().is_some());
    }

    #[tokio::test]
    async fn nobody_gets_more_than_there_is() {
        let budget = MemoryBudget::new(100);
        let mut all = budget.take(1000).await;
        assert_eq!(budget.used(), 100);
        all.grow(50).now_or_never().unwrap();
        all.release(30);
        all.grow(20).now_or_never().unwrap();
        assert_eq!(budget.used(), 90);
        all.release(1000);
        assert_eq!(budget.used(), 0);
    }
}
