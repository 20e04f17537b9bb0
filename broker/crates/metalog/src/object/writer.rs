use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use env::Instant;

use super::{Created, Moment, Patience, Shared};
use crate::bucket;
use crate::format::{Hash, MAX_MANIFEST, MAX_SLOT, Manifest, StoredSlot, corrupt, hash};
use crate::{Epoch, LogError, LogOffset, LogWriter, SnapshotRef};

/// How often a busy writer looks whether somebody is taking over.
const LOOK_EVERY: Duration = Duration::from_secs(1);

pub(super) struct Writer {
    shared: Arc<Shared>,
    /// The newest one of this epoch.
    manifest: Manifest,
    next: LogOffset,
    /// Hash of slot `next - 1`.
    previous: Hash,
    /// We were the owner then, and could not have been anything else before.
    confirmed: Moment,
    looked_at: Instant,
    /// Why nothing more can be written. Set while a write is under way, so that one that is dropped leaves it set.
    ended: Option<LogError>,
}

impl Writer {
    pub(super) fn new(
        shared: Arc<Shared>,
        manifest: Manifest,
        next: LogOffset,
        previous: Hash,
        confirmed: Moment,
    ) -> Writer {
        Writer {
            shared,
            manifest,
            next,
            previous,
            confirmed,
            looked_at: confirmed.instant,
            ended: None,
        }
    }

    fn begin(&mut self) -> Result<Moment, LogError> {
        match &self.ended {
            Some(error) => Err(error.clone()),
            None => {
                self.ended = Some(LogError::Closed);
                Ok(Moment::now(&self.shared.env))
            }
        }
    }

    /// *No acknowledged entry is lost*: an object of ours has been created at some time after `started`. Believes it only if no other leader can have
    /// written, trimmed and deleted that key before (see the module's doc).
    async fn confirm(&mut self, started: Moment) -> Result<(), LogError> {
        let shared = self.shared.clone();
        if self.confirmed.elapsed(&shared.env) <= shared.options.confirm_after {
            self.confirmed = started;
            return Ok(());
        }
        let mut pause = Duration::from_millis(100);
        loop {
            match self.look().await {
                Err(LogError::Unavailable(error)) => {
                    tracing::warn!(
                        log = shared.name,
                        error,
                        "the manifest cannot be read; tried again"
                    );
                    shared.env.sleep(shared.env.jittered(pause)).await;
                    pause = (pause * 2).min(Duration::from_secs(3));
                }
                other => return other,
            }
        }
    }

    /// Reads the newest manifest.
    async fn look(&mut self) -> Result<(), LogError> {
        let moment = Moment::now(&self.shared.env);
        match self.shared.refresh().await? {
            Some(newest) if newest.epoch == self.manifest.epoch && newest.nonce == self.manifest.nonce => {
                self.confirmed = moment;
                self.looked_at = moment.instant;
                Ok(())
            }
            Some(newest) => Err(LogError::Fenced {
                epoch: newest.epoch,
                owner: Some(newest.owner),
            }),
            None => {
                let key = self.shared.manifest_key(self.manifest.sequence);
                Err(corrupt(&key, "this manifest is missing"))
            }
        }
    }

    async fn write_slot(&mut self, started: Moment, body: &[Bytes]) -> Result<LogOffset, LogError> {
        let shared = self.shared.clone();
        let (key, offset) = (shared.slot_key(self.next), self.next);
        let create = shared.create(&key, body, MAX_SLOT, Patience::Endless);
        let due = started.instant.saturating_duration_since(self.looked_at) >= LOOK_EVERY;
        let (created, deposed) = if due {
            self.looked_at = started.instant;
            let next = shared.manifest_key(self.manifest.sequence + 1);
            let (created, next) = futures::future::join(create, shared.store.head(&next)).await;
            (created?, matches!(next, Ok(Some(_))))
        } else {
            (create.await?, false)
        };
        if let Created::Theirs(body) = created {
            let other = StoredSlot::decode(&key, offset, &body)?;
            return Err(if other.slot.epoch > self.manifest.epoch {
                shared.fenced(other.slot.epoch).await
            } else {
                let text = format!(
                    "a slot of epoch {} is where epoch {} writes",
                    other.slot.epoch,
                    self.epoch()
                );
                corrupt(&key, &text)
            });
        }
        self.confirm(started).await?;
        self.previous = hash(body);
        self.next = offset.next();
        shared.learn_tail(self.next);
        if deposed {
            // This slot counts, it was there before the fence. The next one is the new leader's.
            self.ended = Some(shared.fenced(Epoch(self.manifest.epoch.0 + 1)).await);
        } else {
            self.ended = None;
        }
        Ok(offset)
    }

    async fn write_manifest(&mut self, started: Moment, manifest: Manifest) -> Result<(), LogError> {
        let shared = self.shared.clone();
        let key = shared.manifest_key(manifest.sequence);
        match shared
            .create(&key, &manifest.encode(), MAX_MANIFEST, Patience::Endless)
            .await?
        {
            Created::Ours => {
                self.confirm(started).await?;
                shared.learn_manifest(&manifest, started);
                self.manifest = manifest;
                self.ended = None;
                Ok(())
            }
            Created::Theirs(body) => {
                let other = Manifest::decode(&key, manifest.sequence, &body)?;
                Err(if other.epoch > manifest.epoch {
                    LogError::Fenced {
                        epoch: other.epoch,
                        owner: Some(other.owner),
                    }
                } else {
                    corrupt(
                        &key,
                        &format!("a manifest of epoch {} is where a later one writes", other.epoch),
                    )
                })
            }
        }
    }

    /// Keeps the error that ends the writer.
    async fn end<T: Send>(&mut self, result: Result<T, LogError>) -> Result<T, LogError> {
        match result {
            Ok(done) => Ok(done),
            Err(error) => {
                let error = self.shared.or_fenced(self.manifest.epoch, error).await;
                self.ended = Some(error.clone());
                Err(error)
            }
        }
    }
}

#[async_trait]
impl LogWriter for Writer {
    fn epoch(&self) -> Epoch {
        self.manifest.epoch
    }

    fn tail(&self) -> LogOffset {
        self.next
    }

    async fn append(&mut self, entries: Vec<Bytes>) -> Result<LogOffset, LogError> {
        if entries.is_empty() {
            return Err(LogError::Invalid("an append without entries".to_owned()));
        }
        let body = self.manifest.slot(self.previous, self.next, entries).encode()?;
        let started = self.begin()?;
        let result = self.write_slot(started, &body).await;
        self.end(result).await
    }

    async fn install_snapshot(
        &mut self,
        snapshot: SnapshotRef,
        log_start: LogOffset,
    ) -> Result<(), LogError> {
        let manifest = self
            .manifest
            .with_snapshot(snapshot.clone(), log_start, self.next)?;
        if let Err(error) = bucket::check_present(&self.shared.store, &snapshot).await {
            return Err(self.shared.or_fenced(self.manifest.epoch, error).await);
        }
        let started = self.begin()?;
        let result = self.write_manifest(started, manifest).await;
        self.end(result).await
    }

    async fn check(&mut self) -> Result<(), LogError> {
        if let Some(error) = &self.ended {
            return Err(error.clone());
        }
        match self.look().await {
            Err(error @ LogError::Unavailable(_)) => Err(error),
            result => self.end(result).await,
        }
    }
}
