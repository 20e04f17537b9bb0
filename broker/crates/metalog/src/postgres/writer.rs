use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use uuid::Uuid;

use super::database::{Link, Param};
use super::{Shared, Statement, signed};
use crate::bucket;
use crate::format::{Hash, Manifest, corrupt, hash};
use crate::{Epoch, LogError, LogOffset, LogWriter, SnapshotRef};

/// What became of a slot.
pub(super) enum Appended {
    /// It is in the log.
    Ours,
    /// It is not, or nobody can tell any more; this writer is done.
    Not(LogError),
}

/// Appends `body` at `at` as the leader whose manifest is `manifest`. An error leaves open whether it is there.
pub(super) async fn append(
    shared: &Shared,
    link: &Link,
    id: Uuid,
    manifest: &Manifest,
    at: LogOffset,
    body: &Bytes,
) -> Result<Appended, LogError> {
    let (epoch, offset) = (signed(manifest.epoch.0), signed(at.0));
    let chain = hash(std::slice::from_ref(body)).to_vec();
    let bytes: &[u8] = body;
    let params: [Param<'_>; 6] = [&id, &epoch, &manifest.nonce, &offset, &chain, &bytes];
    if !shared
        .database
        .query(link, Statement::Append, &params)
        .await?
        .is_empty()
    {
        return Ok(Appended::Ours);
    }
    // The row says no: because an earlier try was taken, or because somebody else leads.
    let ours = |there| there == *body || env::mutation("foreign-slot-counts");
    if shared.slot(id, at).await?.is_some_and(ours) {
        return Ok(Appended::Ours);
    }
    Ok(Appended::Not(deposed(shared, link, manifest).await?))
}

/// Why the row is not that of `manifest` any more.
async fn deposed(shared: &Shared, link: &Link, manifest: &Manifest) -> Result<LogError, LogError> {
    Ok(match shared.row(Some(link)).await? {
        Some(row) => match row.manifest {
            Some(newest) if newest.epoch > manifest.epoch => LogError::Fenced {
                epoch: newest.epoch,
                owner: Some(newest.owner),
            },
            _ => {
                let text = format!(
                    "it ends at {} where the leader of epoch {} writes: acknowledged slots are lost",
                    row.tail, manifest.epoch
                );
                corrupt(&shared.place(), &text)
            }
        },
        None => corrupt(&shared.place(), "it is gone from the database"),
    })
}

pub(super) struct Writer {
    shared: Arc<Shared>,
    /// A connection of its own: appends of several logs are made durable together.
    link: Link,
    id: Uuid,
    /// The newest one of this epoch.
    manifest: Manifest,
    next: LogOffset,
    /// Hash of slot `next - 1`.
    previous: Hash,
    /// Why nothing more can be written. Set while a write is under way, so that one that is dropped leaves it set.
    ended: Option<LogError>,
}

impl Writer {
    pub(super) fn new(
        shared: Arc<Shared>,
        link: Link,
        id: Uuid,
        manifest: Manifest,
        next: LogOffset,
        previous: Hash,
    ) -> Writer {
        Writer {
            shared,
            link,
            id,
            manifest,
            next,
            previous,
            ended: None,
        }
    }

    fn begin(&mut self) -> Result<(), LogError> {
        match self.ended.replace(LogError::Closed) {
            None => Ok(()),
            Some(error) => {
                self.ended = Some(error.clone());
                Err(error)
            }
        }
    }

    /// Keeps the error that ends the writer.
    fn end(&mut self, result: Result<(), LogError>) -> Result<(), LogError> {
        self.ended = result.as_ref().err().cloned();
        result
    }

    /// Between two tries.
    async fn pause(&self, pause: &mut Duration, what: &str, error: &str) {
        let shared = &self.shared;
        tracing::warn!(
            log = shared.name,
            what,
            error,
            "write to the metadata log failed and is tried again"
        );
        shared.env.sleep(shared.env.jittered(*pause)).await;
        *pause = (*pause * 2).min(Duration::from_secs(3));
    }

    async fn write_slot(&self, body: &Bytes) -> Result<(), LogError> {
        let mut pause = Duration::from_millis(50);
        loop {
            match append(&self.shared, &self.link, self.id, &self.manifest, self.next, body).await {
                Ok(Appended::Ours) => return Ok(()),
                Ok(Appended::Not(error)) => return Err(error),
                Err(LogError::Unavailable(_)) if env::mutation("lost-reply-counts") => return Ok(()),
                Err(LogError::Unavailable(error)) => self.pause(&mut pause, "append", &error).await,
                Err(error) => return Err(error),
            }
        }
    }

    async fn write_manifest(&self, manifest: &Manifest) -> Result<(), LogError> {
        let mut pause = Duration::from_millis(50);
        let before = signed(self.manifest.sequence);
        loop {
            match self.try_manifest(before, manifest).await {
                Err(LogError::Unavailable(error)) => self.pause(&mut pause, "snapshot", &error).await,
                done => return done,
            }
        }
    }

    async fn try_manifest(&self, before: i64, manifest: &Manifest) -> Result<(), LogError> {
        let (shared, link) = (&self.shared, &self.link);
        let replaced = shared.replace_manifest(link, self.id, before, manifest);
        if replaced.await?.is_some() {
            return Ok(());
        }
        // An earlier try may have been taken.
        match shared.row(Some(link)).await? {
            Some(row) if row.manifest.as_ref() == Some(manifest) => Ok(()),
            _ => Err(deposed(shared, link, manifest).await?),
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
        let stored = self.manifest.slot(self.previous, self.next, entries);
        let body = Bytes::from(stored.encode()?.concat());
        self.begin()?;
        let written = self.write_slot(&body).await;
        self.end(written)?;
        let offset = self.next;
        self.previous = hash(&[body]);
        self.next = offset.next();
        self.shared.database.tell(&self.link, self.id, self.next).await;
        Ok(offset)
    }

    async fn install_snapshot(
        &mut self,
        snapshot: SnapshotRef,
        log_start: LogOffset,
    ) -> Result<(), LogError> {
        let manifest = self
            .manifest
            .with_snapshot(snapshot.clone(), log_start, self.next)?;
        match bucket::check_present(&self.shared.store, &snapshot).await {
            Err(error @ LogError::Corrupt(_)) => {
                // Perhaps a later leader has swept it.
                self.check().await?;
                return Err(error);
            }
            checked => checked?,
        }
        self.begin()?;
        let written = self.write_manifest(&manifest).await;
        self.end(written)?;
        self.manifest = manifest;
        Ok(())
    }

    async fn check(&mut self) -> Result<(), LogError> {
        if let Some(error) = &self.ended {
            return Err(error.clone());
        }
        let row = match self.shared.row(Some(&self.link)).await {
            Err(error @ LogError::Unavailable(_)) => return Err(error),
            row => row,
        };
        let still = match row {
            Ok(Some(row))
                if row.id == self.id
                    && row
                        .manifest
                        .as_ref()
                        .is_some_and(|newest| newest.nonce == self.manifest.nonce) =>
            {
                Ok(())
            }
            Ok(_) => match deposed(&self.shared, &self.link, &self.manifest).await {
                Err(error @ LogError::Unavailable(_)) => return Err(error),
                Ok(error) | Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        self.end(still)
    }
}
