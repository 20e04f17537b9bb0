//! Segments on their way to the store, some of them twice.
//!
//! An upload that takes unusually long gets another one beside it, under a name of its own: the first to end counts, and
//! the other objects are never named in a commit. Only such objects may be deleted here; once a commit was sent, nobody
//! but the coordinators knows whether an object is referred to. What is committed in order waits for the slowest
//! upload before it, so this also bounds what one that is stuck costs everybody else (ADR 0013).

use std::sync::Arc;
use std::time::Duration;

use blob::{BlobError, SharedStore};
use bytes::Bytes;
use env::{Env, Instant};
use futures::stream::{FuturesUnordered, StreamExt};
use parking_lot::Mutex;
use types::NodeId;
use uuid::Uuid;

use crate::hedging::Hedging;
use crate::metrics::Metrics;

/// Between the first two attempts to write an object; it doubles up to the longest.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Uploads of one segment beside the first: the second may go the same bad way.
const HEDGES: usize = 2;
/// An upload is late after this time, until it is known how long they take.
const LATE: Duration = Duration::from_secs(1);
/// A write that was given up may still have its effect, but not after this time.
const SETTLED: Duration = Duration::from_secs(60);

/// Writes segments to the store.
pub(super) struct Uploads {
    env: Env,
    node: NodeId,
    store: SharedStore,
    metrics: Arc<Metrics>,
    hedging: Mutex<Hedging>,
}

impl Uploads {
    pub(super) fn new(env: Env, node: NodeId, store: SharedStore, metrics: Arc<Metrics>) -> Uploads {
        Uploads {
            env,
            node,
            store,
            metrics,
            hedging: Mutex::new(Hedging::new(LATE)),
        }
    }

    /// Writes `body` of `size` bytes and gives the object it is in. After an error there is none, or none that counts.
    pub(super) async fn write(
        &self,
        body: &[Bytes],
        size: u64,
        deadline: Instant,
    ) -> Result<Uuid, BlobError> {
        let start = self.env.instant();
        let patience = self.hedging.lock().begin(size);
        let first = self.name();
        let mut others = Vec::new();
        let mut uploads = FuturesUnordered::new();
        uploads.push(self.put(first, body, deadline));
        let result = loop {
            match self.env.timeout(patience, uploads.select_next_some()).await {
                Ok(Err(_)) if !uploads.is_empty() => {}
                Ok(Ok(_)) if env::mutation("commit-loser") => break Ok(first),
                Ok(result) => break result,
                Err(_) if others.len() < HEDGES && self.hedging.lock().pay() => {
                    self.metrics.upload_hedges.inc();
                    let other = self.name();
                    others.push(other);
                    uploads.push(self.put(other, body, deadline));
                }
                Err(_) => {}
            }
        };
        drop(uploads);
        let took = self.env.instant().saturating_duration_since(start);
        match &result {
            Ok(winner) => {
                self.hedging.lock().end(size, took);
                self.metrics.upload_latency.observe(took.as_secs_f64());
                if others.contains(winner) {
                    self.metrics.upload_hedges_won.inc();
                    self.discard(first);
                }
            }
            Err(_) => {
                self.metrics.upload_failures.inc();
                self.discard(first);
            }
        }
        // On their way or there: they count no more.
        let lost = |other: &&Uuid| result.as_ref() != Ok(*other);
        others.iter().filter(lost).for_each(|other| self.discard(*other));
        result
    }

    fn name(&self) -> Uuid {
        wal::name_object(self.env.uuid(), self.node)
    }

    async fn put(&self, object: Uuid, body: &[Bytes], deadline: Instant) -> Result<Uuid, BlobError> {
        let key = wal::object_key(object);
        let mut pause = PAUSE;
        loop {
            // Nobody else writes this key, and every attempt writes the same bytes from their beginning.
            let put = self.store.put(&key, body.to_vec());
            let error = match self.env.timeout_at(deadline, put).await {
                Ok(Ok(())) => return Ok(object),
                Ok(Err(error)) => error,
                Err(_) => BlobError::Timeout(key.clone()),
            };
            let until = self.env.instant() + self.env.jittered(pause);
            if !error.is_transient() || until >= deadline {
                return Err(error);
            }
            tracing::debug!(%error, "a wal object is written again");
            self.env.sleep_until(until).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Deletes an object that no commit has named. If that fails, it is found as an orphan some day.
    pub(super) fn discard(&self, object: Uuid) {
        let (env, store) = (self.env.clone(), self.store.clone());
        self.env.spawn(async move {
            env.sleep(SETTLED).await;
            let key = wal::object_key(object);
            if let Err(error) = store.delete_many(std::slice::from_ref(&key)).await {
                tracing::debug!(%error, key, "an object that nobody needs is left behind");
            }
        });
    }
}

#[cfg(test)]
mod tests;
