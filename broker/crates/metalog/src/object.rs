//! The engine `object`: a log in an object store.
//!
//! ```text
//!   meta/<log>/manifest/<sequence:020>            who leads, where the log starts, the newest snapshot
//!   meta/<log>/log/<offset:020>                   slots
//!   meta/<log>/snapshot/<offset:020>-<nonce>      state after all slots below <offset>
//! ```
//!
//! Objects are only ever created, never replaced, and both sequences are dense, so *creating the next key if it is
//! absent* is the one consensus step: it has one winner, and the loser reads who won.
//!
//! **Take over.** Read the newest manifest; create the next one with a higher epoch. Find the end of the log. Create an
//! *empty fencing slot* there; if the place is taken by a lower epoch, that slot still belongs to the log: go one further.
//! From then on no append of an earlier writer can win, because its next slot is taken. If the last slot of the log has
//! a higher epoch than the new manifest, its creator was slow and somebody else leads by now: it stands down.
//!
//! **Append.** Create the next slot, one at a time. When the reply is lost, create the same bytes again, for ever; when
//! the key is taken, read it: our own bytes (they hold our nonce) mean success, a higher epoch means fenced.
//!
//! **Trim.** First a manifest with a later `log_start`, and only when that manifest is `min_age` old the objects below
//! it are deleted ([`Options`]). This closes the hole that a deleted key can be created again: a writer or reader that last saw
//! the manifest more than `confirm_after` ago (by the worse of two clocks) reads it again before it believes in a slot that it has
//! just created or read. `confirm_after` is seconds, `min_age` is long, so whoever could meet such a slot has looked.
//!
//! ```text
//!   writer 1:  confirmed ── create slot 9 ─────(stuck)────────────────────────────▶ created! ─▶ look ─▶ fenced
//!   writer 2:         epoch 2, its own slot 9, ..., snapshot, log_start 50 ──(min_age)──▶ slot 9 deleted
//! ```
//!
//! What this comes to (`tests/model` explores every run of a small log for it):
//! - *one entry per slot*: create-if-absent, and our own bytes are told from others by the nonce;
//! - *no acknowledged entry is lost*: a slot is deleted only when a snapshot has it, and none is believed in unconfirmed;
//! - *nothing of an older epoch is acknowledged behind a fence*: the fence takes the place that the older writer wants next;
//! - *a new leader has all that was acknowledged*: it reads up to its fence;
//! - *the trimmed prefix is covered by a snapshot*: one manifest names both;
//! - *epochs only grow, one owner per epoch*: each manifest is created behind the newest one;
//! - *what is sound is not taken for damage*: whoever is overtaken stands down before it writes in the way of its successor.
//!
//! **A busy old writer** would win slot after slot while the new one reads what it lost to. So a writer looks for a next
//! manifest once a second beside its appends, and stops.

mod ahead;
mod read;
mod sweep;
mod takeover;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use blob::{BlobError, PutOutcome, SharedStore};
use bytes::Bytes;
use env::{Env, Instant};
use parking_lot::Mutex;
use types::Timestamp;

use crate::bucket::{self, failed};
use crate::format::{Hash, MAX_MANIFEST, Manifest, corrupt};
use crate::{
    Epoch, LogError, LogOffset, MetadataLog, Opened, Owner, Slot, SnapshotBody, SnapshotPieces, SnapshotRef,
    snapshot,
};
use writer::Writer;

/// Times of the protocol. The defaults suit production; tests make them small.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Who has not seen the newest manifest for so long looks before believing in a slot. Far below `min_age`.
    pub confirm_after: Duration,
    /// How long ago something must have been declared dead before it is deleted. Longer than any read or
    /// snapshot download, and than the difference between the clocks of the store and of the nodes.
    pub min_age: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            confirm_after: Duration::from_secs(30),
            min_age: Duration::from_secs(3600),
        }
    }
}

/// A log in an object store. Cheap to clone; clones share what they know.
#[derive(Clone, Debug)]
pub struct ObjectLog(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    env: Env,
    store: SharedStore,
    name: String,
    options: Options,
    known: Mutex<Known>,
    ahead: Mutex<ahead::Ahead>,
}

/// What was learnt of the log; never more than the truth, perhaps less.
#[derive(Debug, Default)]
struct Known {
    /// The newest manifest seen, and when it was certainly the newest.
    manifest: Option<(Manifest, Moment)>,
    /// All slots below this one have existed.
    tail: LogOffset,
    /// The slot that a reader will probably want next, and the hash of the one before it.
    chain: Option<(LogOffset, Hash)>,
}

/// A point in time on both clocks: one may stand still while the machine sleeps, the other may be set back.
#[derive(Clone, Copy, Debug)]
struct Moment {
    instant: Instant,
    wall: Timestamp,
}

impl Moment {
    fn now(env: &Env) -> Moment {
        Moment {
            instant: env.instant(),
            wall: env.now(),
        }
    }

    fn elapsed(self, env: &Env) -> Duration {
        let instant = env.instant().saturating_duration_since(self.instant);
        instant.max(Duration::from_millis(env.now().since(self.wall)))
    }
}

/// How an attempt to create an object ended.
enum Created {
    /// The object is there with our bytes; it was not when we began.
    Ours,
    /// The object is there with these bytes.
    Theirs(Bytes),
}

/// How long a create is tried while the store fails.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    Bounded,
    Endless,
}

impl ObjectLog {
    /// The log `name` in `store`. Makes no request.
    pub fn new(store: SharedStore, name: &str, options: Options, env: Env) -> ObjectLog {
        let name = name.to_owned();
        ObjectLog(Arc::new(Shared {
            env,
            store,
            name,
            options,
            known: Mutex::default(),
            ahead: Mutex::default(),
        }))
    }
}

impl Shared {
    fn directory(&self, kind: &str) -> String {
        bucket::directory(&self.name, kind)
    }

    fn slot_key(&self, offset: LogOffset) -> String {
        format!("meta/{}/log/{:020}", self.name, offset.0)
    }

    fn manifest_key(&self, sequence: u64) -> String {
        format!("meta/{}/manifest/{sequence:020}", self.name)
    }

    /// The number that ends a key of slots or manifests; `None` for a foreign object.
    fn number(&self, kind: &str, key: &str) -> Option<u64> {
        let digits = key.strip_prefix(&self.directory(kind))?;
        let number = digits
            .parse()
            .ok()
            .filter(|_| digits.len() == 20 && digits.bytes().all(|b| b.is_ascii_digit()));
        if number.is_none() {
            tracing::warn!(key, "ignoring a foreign object in a metadata log");
        }
        number
    }

    /// Creates `key` with `body` and does not stop until it is known who did.
    async fn create(
        &self,
        key: &str,
        body: &[Bytes],
        limit: usize,
        patience: Patience,
    ) -> Result<Created, LogError> {
        let mut pause = Duration::from_millis(50);
        let mut attempts = 0;
        let mut look_first = false;
        loop {
            let error = match self.try_create(key, body, limit, look_first).await {
                Ok(created) => return Ok(created),
                Err(BlobError::Invalid(text)) => return Err(LogError::Invalid(text)),
                Err(error) => error,
            };
            attempts += 1;
            if patience == Patience::Bounded && attempts >= 5 {
                return Err(LogError::Unavailable(error.to_string()));
            }
            tracing::warn!(key, attempts, %error, "write to the metadata log failed and is tried again");
            // Who loses the race may be cut off before the store says so: then a look tells more than a new try.
            look_first = error.outcome_unknown();
            self.env.sleep(self.env.jittered(pause)).await;
            pause = (pause * 2).min(Duration::from_secs(3));
        }
    }

    async fn try_create(
        &self,
        key: &str,
        body: &[Bytes],
        limit: usize,
        look: bool,
    ) -> Result<Created, BlobError> {
        if !look && self.store.put_if_absent(key, body.to_vec()).await? == PutOutcome::Created {
            return Ok(Created::Ours);
        }
        match self.store.get_range(key, 0..limit as u64 + 1).await {
            Ok(bytes) if same(body, &bytes) => Ok(Created::Ours),
            Ok(bytes) => Ok(Created::Theirs(bytes)),
            Err(BlobError::NotFound(_)) if look => Box::pin(self.try_create(key, body, limit, false)).await,
            Err(error) => Err(error),
        }
    }

    /// The newest manifest by asking the store; `None` if the log was never opened.
    async fn refresh(&self) -> Result<Option<Manifest>, LogError> {
        // A manifest that the list shows may be swept before we read it, but only if there are newer ones.
        for _ in 0..10 {
            let moment = Moment::now(&self.env);
            let known = self
                .known
                .lock()
                .manifest
                .as_ref()
                .map(|(manifest, _)| manifest.clone());
            let newest = self.newest_sequence(known.as_ref()).await?;
            let manifest = match (newest, known) {
                (None, None) => return Ok(None),
                (None, Some(known)) => known,
                (Some(sequence), known) => {
                    let Some(manifest) = self.read_manifest(sequence).await? else {
                        continue;
                    };
                    if let Some(known) = known.filter(|known| known.epoch > manifest.epoch) {
                        let text = format!(
                            "its epoch {} is below that of manifest {}",
                            manifest.epoch, known.sequence
                        );
                        return Err(corrupt(&self.manifest_key(sequence), &text));
                    }
                    manifest
                }
            };
            self.learn_manifest(&manifest, moment);
            return Ok(Some(manifest));
        }
        Err(LogError::Unavailable(format!(
            "the manifest of log {} changes faster than it can be read",
            self.name
        )))
    }

    /// The highest sequence number above that of `known`.
    async fn newest_sequence(&self, known: Option<&Manifest>) -> Result<Option<u64>, LogError> {
        const PAGE: usize = 1000;
        let mut after = known.map(|known| self.manifest_key(known.sequence));
        let mut newest = None;
        loop {
            let page = self
                .store
                .list(&self.directory("manifest"), after.as_deref(), PAGE)
                .await
                .map_err(failed)?;
            newest = page
                .iter()
                .filter_map(|object| self.number("manifest", &object.key))
                .last()
                .or(newest);
            match page.last() {
                Some(last) if page.len() == PAGE => after = Some(last.key.clone()),
                _ => return Ok(newest),
            }
        }
    }

    async fn read_manifest(&self, sequence: u64) -> Result<Option<Manifest>, LogError> {
        let key = self.manifest_key(sequence);
        match self.store.get_range(&key, 0..MAX_MANIFEST as u64 + 1).await {
            Ok(body) => Manifest::decode(&key, sequence, &body).map(Some),
            Err(BlobError::NotFound(_)) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    fn learn_manifest(&self, manifest: &Manifest, moment: Moment) {
        let mut known = self.known.lock();
        if known
            .manifest
            .as_ref()
            .is_none_or(|(old, _)| old.sequence <= manifest.sequence)
        {
            known.manifest = Some((manifest.clone(), moment));
        }
    }

    fn learn_tail(&self, tail: LogOffset) {
        let mut known = self.known.lock();
        known.tail = known.tail.max(tail);
    }

    /// What looks like damage to a leader of `epoch` may be the work of a later one, trims included.
    async fn or_fenced(&self, epoch: Epoch, error: LogError) -> LogError {
        match error {
            LogError::Corrupt(_) => match self.refresh().await {
                Ok(Some(newest)) if newest.epoch > epoch => self.fenced(newest.epoch).await,
                Ok(_) => error,
                Err(error) => error,
            },
            error => error,
        }
    }

    /// The error for a writer that met `epoch`; names the owner if the store says so.
    async fn fenced(&self, epoch: Epoch) -> LogError {
        match self.refresh().await {
            Ok(Some(newest)) if newest.epoch >= epoch => LogError::Fenced {
                epoch: newest.epoch,
                owner: Some(newest.owner),
            },
            _ => LogError::Fenced { epoch, owner: None },
        }
    }
}

/// Whether the slices of `body`, joined, are `bytes`.
fn same(body: &[Bytes], mut bytes: &[u8]) -> bool {
    for slice in body {
        match bytes.strip_prefix(&**slice) {
            Some(rest) => bytes = rest,
            None => return false,
        }
    }
    bytes.is_empty()
}

#[async_trait]
impl MetadataLog for ObjectLog {
    async fn owner(&self) -> Result<Option<(Epoch, Owner)>, LogError> {
        Ok(self
            .0
            .refresh()
            .await?
            .map(|manifest| (manifest.epoch, manifest.owner)))
    }

    async fn open(&self, owner: Owner) -> Result<Opened, LogError> {
        let shared = &self.0;
        let nonce = shared.env.uuid();
        let (manifest, claimed_at) = shared.claim(&owner, nonce).await?;
        let (previous, tail) = match shared.fence(&manifest, claimed_at).await {
            Ok(fenced) => fenced,
            Err(error) => return Err(shared.or_fenced(manifest.epoch, error).await),
        };
        // The fencing slot, too, may have been created in the place of a deleted one.
        let mut confirmed = claimed_at;
        if claimed_at.elapsed(&shared.env) > shared.options.confirm_after {
            confirmed = Moment::now(&shared.env);
            let newest = shared.refresh().await?;
            if newest.is_none_or(|newest| newest.epoch != manifest.epoch) {
                return Err(shared.fenced(manifest.epoch).await);
            }
        }
        tracing::info!(log = shared.name, epoch = %manifest.epoch, %tail, "metadata log taken over");
        let opened = (manifest.epoch, manifest.snapshot.clone(), manifest.log_start);
        let writer = Writer::new(shared.clone(), manifest, tail, previous, confirmed);
        let (epoch, snapshot, log_start) = opened;
        Ok(Opened {
            writer: Box::new(writer),
            epoch,
            snapshot,
            log_start,
            tail,
        })
    }

    async fn read(&self, from: LogOffset, max_bytes: usize) -> Result<Vec<Slot>, LogError> {
        self.0.read(from, max_bytes).await
    }

    async fn snapshot(&self) -> Result<Option<SnapshotRef>, LogError> {
        Ok(self.0.refresh().await?.and_then(|manifest| manifest.snapshot))
    }

    async fn put_snapshot(&self, offset: LogOffset, body: SnapshotBody) -> Result<SnapshotRef, LogError> {
        self.0.put_snapshot(offset, body).await
    }

    fn get_snapshot(&self, snapshot: &SnapshotRef) -> SnapshotPieces {
        let shared = self.0.clone();
        let newest = async move { shared.refresh().await };
        snapshot::get(&self.0.env, &self.0.store, snapshot, newest)
    }

    async fn sweep(&self) -> Result<usize, LogError> {
        self.0.sweep().await
    }
}
