//! Fetching slots before they are asked for: a log that is caught up with is read in order, and a GET takes long.

use std::collections::VecDeque;
use std::sync::Arc;

use env::JoinHandle;

use super::Shared;
use super::read::Fetched;
use crate::{LogError, LogOffset};

/// The most slots that are fetched at once,
const MAX_SLOTS: usize = 64;
/// and about how many bytes they may come to.
const MAX_BYTES: usize = 32 * 1024 * 1024;
/// What a slot is taken for until one has been seen, in bytes.
const GUESS: usize = 4 * 1024 * 1024;

/// The slots from `next` on that are under way.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    next: LogOffset,
    fetches: VecDeque<JoinHandle<Fetched>>,
    /// How many slots in a row were there.
    found: usize,
    /// Size of a large one of late, in bytes.
    size: usize,
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.fetches.iter().for_each(JoinHandle::abort);
    }
}

impl Ahead {
    /// `old`, if it goes on at `from`.
    pub(super) fn at(from: LogOffset, old: Ahead) -> Ahead {
        if old.next == from && old.found > 0 {
            return old;
        }
        Ahead {
            next: from,
            fetches: VecDeque::new(),
            found: 0,
            size: GUESS,
        }
    }

    /// The next slot. Slots below `tail` exist: as many as may be are fetched beside it. Behind `tail` the
    /// first that is not there ends the search, so few more than were found before.
    pub(super) async fn next(&mut self, shared: &Arc<Shared>, tail: LogOffset) -> Fetched {
        self.fetch(shared, tail);
        if self.fetches.is_empty() {
            self.push(shared);
        }
        let fetched = match self.fetches.pop_front() {
            Some(fetch) => fetch.await,
            None => None,
        };
        self.next = self.next.next();
        let fetched = fetched.unwrap_or_else(|| Err(LogError::Unavailable("the node is ending".to_owned())));
        if let Ok(Some((stored, _))) = &fetched {
            let size: usize = stored.slot.entries.iter().map(|entry| entry.len()).sum();
            self.size = size.max(if self.found == 0 {
                0
            } else {
                self.size - self.size / 8
            });
            self.found += 1;
        }
        fetched
    }

    /// Fetches what may be fetched while nobody waits for it.
    pub(super) fn fetch(&mut self, shared: &Arc<Shared>, tail: LogOffset) {
        let room = (MAX_BYTES / self.size.max(1)).clamp(1, MAX_SLOTS);
        let end = |ahead: &Ahead| ahead.next.0 + ahead.fetches.len() as u64;
        while self.fetches.len() < room && (end(self) < tail.0 || self.fetches.len() < self.found.min(room)) {
            self.push(shared);
        }
    }

    /// Keeps only what is below `tail`: what is not there yet may be there when it is asked for.
    pub(super) fn keep_below(&mut self, tail: LogOffset) {
        let keep = usize::try_from(tail.0.saturating_sub(self.next.0)).unwrap_or(usize::MAX);
        for extra in self.fetches.drain(keep.min(self.fetches.len())..) {
            extra.abort();
        }
    }

    fn push(&mut self, shared: &Arc<Shared>) {
        let offset = LogOffset(self.next.0 + self.fetches.len() as u64);
        let fetching = shared.clone();
        let fetch = shared.env.spawn(async move { fetching.fetch(offset).await });
        self.fetches.push_back(fetch);
    }
}
