//! The memory that answers to consumers hold until they are written. A consumer that does not read its socket keeps its
//! answer here for minutes, and any number of them may do so.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// An answer takes no more than this part of what is free (but what its first batch needs). So answers become smaller while
/// many are under way, and those that nobody takes do not leave the others without any.
const SHARE: usize = 4;

/// Memory for the answers of a broker. Cheap to clone.
#[derive(Clone, Debug)]
pub struct AnswerMemory {
    room: Arc<Semaphore>,
    all: u32,
}

impl AnswerMemory {
    /// `bytes` of it (4 GiB at most).
    pub fn new(bytes: u64) -> AnswerMemory {
        let all = u32::try_from(bytes).unwrap_or(u32::MAX);
        AnswerMemory {
            room: Arc::new(Semaphore::new(all as usize)),
            all,
        }
    }

    /// Bytes in use.
    pub fn used(&self) -> usize {
        (self.all as usize).saturating_sub(self.room.available_permits())
    }

    /// What the next answer may take, in bytes.
    pub(super) fn share(&self) -> u64 {
        (self.room.available_permits() / SHARE) as u64
    }

    /// Waits for `bytes`; more than there is altogether takes all of it. Never `None`.
    pub(super) async fn take(&self, bytes: u64) -> Option<Hold> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(self.all);
        let permit = self.room.clone().acquire_many_owned(bytes).await;
        permit.ok().map(|permit| Hold(Arc::new(permit)))
    }
}

/// The part of an answer.
pub(super) struct Hold(Arc<OwnedSemaphorePermit>);

impl Hold {
    /// The same bytes, which keep this part until all of the answer's are dropped.
    pub(super) fn attach(&self, bytes: Bytes) -> Bytes {
        attach(bytes, self.0.clone())
    }
}

/// The same bytes. They hold `what` as long as there is a slice of them.
pub(super) fn attach(bytes: Bytes, what: impl Send + 'static) -> Bytes {
    Bytes::from_owner(Attached { bytes, _what: what })
}

struct Attached<T> {
    bytes: Bytes,
    _what: T,
}

impl<T> AsRef<[u8]> for Attached<T> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_answer_holds_its_part_until_its_last_slice_is_gone() {
        let memory = AnswerMemory::new(800);
        assert_eq!(memory.share(), 200);
        let hold = memory.take(400).await.unwrap();
        let batches = [1, 2].map(|_| hold.attach(Bytes::from_static(b"batch")));
        drop(hold);
        assert_eq!((memory.used(), memory.share()), (400, 100));
        let slice = batches[1].slice(1..3);
        drop(batches);
        assert_eq!((memory.used(), &slice[..]), (400, &b"at"[..]));
        drop(slice);
        assert_eq!(memory.used(), 0);
    }

    #[tokio::test]
    async fn what_is_larger_than_all_of_it_goes_alone() {
        let memory = AnswerMemory::new(800);
        let hold = memory.take(10_000).await.unwrap();
        assert_eq!((memory.used(), memory.share()), (800, 0));
        let mut next = Box::pin(memory.take(1));
        assert!(futures::poll!(&mut next).is_pending());
        drop(hold);
        assert!(next.await.is_some());
    }
}
