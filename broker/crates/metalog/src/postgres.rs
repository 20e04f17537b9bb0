//! The engine `postgres`: a log in the tables of a PostgreSQL database, snapshots in the object store.
//!
//! One row per log says who may append and where ([`schema`] has the columns). Every step is one statement, and so
//! one transaction, that locks this row and compares:
//!
//! **Take over.** Replace the manifest by one with a higher epoch and a new nonce, if its sequence number still is the
//! one that was read. From then on no append of an earlier writer finds its epoch in the row. An empty fencing slot
//! is appended, so that terms look the same in every engine.
//!
//! **Append.** `UPDATE … SET tail = n + 1 WHERE epoch = mine AND nonce = mine AND tail = n`, and the slot is inserted if that
//! found the row. The comparison holds the row's lock, so a statement that was sent long ago, on a connection that
//! its sender has given up, happens before its successor, or not at all.
//!
//! **A lost reply** (the connection ends after COMMIT, or the server stands still) is resolved as in the engine `object`: send the
//! same again on another connection, for ever; when the row says no, read the slot: our own bytes (they hold our
//! nonce) mean success, a higher epoch in the row means fenced.
//!
//! **Trim.** A manifest with a later `log_start`; slots below it can be deleted at once, because their offsets are
//! never used again and every read compares with `log_start` in the same statement.
//!
//! **Tails.** After an append the writer sends a NOTIFY of its own, not in the transaction of the append: commits
//! that notify queue up behind one lock. [`MetadataLog::changed`] hears it. A NOTIFY may be lost, so followers poll, too.
//!
//! A database that was emptied, or restored from before the log was created, must not look like a new log: the object
//! `meta/<log>/postgres` names the id of the row. A promoted standby that lacks acknowledged slots is found by the
//! writer (the row's tail is not its own); synchronous replication prevents it.

mod database;
mod schema;
mod statements;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use blob::{BlobError, SharedStore};
use bytes::Bytes;
use env::Env;
use parking_lot::Mutex;
use tokio_postgres::Row;
use uuid::Uuid;

use crate::format::{Hash, Manifest, StoredSlot, corrupt, genesis, hash};
use crate::{
    Epoch, LogError, LogOffset, MetadataLog, Opened, Owner, Slot, SnapshotBody, SnapshotPieces, SnapshotRef,
};
use crate::{bucket, snapshot};
pub use database::{Database, PostgresSettings};
use database::{Link, Param, value};
pub use statements::Statement;
use writer::{Appended, Writer, append};

/// The most slots of one read.
const MAX_SLOTS: i64 = 1000;
/// The most slots that one statement of a sweep deletes.
const DELETE_AT_ONCE: i64 = 10_000;

/// A log in a database. Cheap to clone; clones share what they know.
#[derive(Clone, Debug)]
pub struct PostgresLog(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    env: Env,
    database: Database,
    store: SharedStore,
    name: String,
    /// How long a snapshot is kept after a later one has been stored.
    min_age: Duration,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    id: Option<Uuid>,
    /// The slot that a reader will probably want next, and the hash of the one before it.
    chain: Option<(LogOffset, Hash)>,
}

/// The row of a log.
struct LogRow {
    id: Uuid,
    sequence: i64,
    tail: LogOffset,
    /// `None` before the first take-over.
    manifest: Option<Manifest>,
}

impl PostgresLog {
    /// The log `name` in `database`, its snapshots in `store`. Makes no request.
    pub fn new(
        database: Database,
        store: SharedStore,
        name: &str,
        min_age: Duration,
        env: Env,
    ) -> PostgresLog {
        PostgresLog(Arc::new(Shared {
            env,
            database,
            store,
            name: name.to_owned(),
            min_age,
            known: Mutex::default(),
        }))
    }
}

/// Numbers of the log fit: they count what was written.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn offset(row: &Row, column: usize) -> Result<LogOffset, LogError> {
    value::<i64>(row, column).map(|number| LogOffset(u64::try_from(number).unwrap_or(0)))
}

impl Shared {
    /// Names this log, or one of its slots, in errors.
    fn place(&self) -> String {
        format!("log {} of cluster {}", self.name, self.database.cluster())
    }

    fn slot_place(&self, offset: LogOffset) -> String {
        format!("slot {offset} of {}", self.place())
    }

    async fn row(&self, link: Option<&Link>) -> Result<Option<LogRow>, LogError> {
        let cluster = self.database.cluster();
        let params: [Param<'_>; 2] = [&cluster, &self.name];
        let rows = match link {
            Some(link) => self.database.query(link, Statement::Row, &params).await?,
            None => self.database.read(Statement::Row, &params).await?,
        };
        let Some(row) = rows.first() else { return Ok(None) };
        let damaged = |what: &str| corrupt(&format!("row of {}", self.place()), what);
        let sequence: i64 = value(row, 1)?;
        let manifest = match value::<Option<&[u8]>>(row, 6)? {
            None => None,
            Some(body) => {
                let expected = u64::try_from(sequence).map_err(|_| damaged("it has no sequence number"))?;
                let manifest = Manifest::decode(&self.place(), expected, &Bytes::copy_from_slice(body))?;
                let columns = (
                    value::<i64>(row, 2)?,
                    value::<Option<Uuid>>(row, 3)?,
                    offset(row, 4)?,
                );
                if columns != (signed(manifest.epoch.0), Some(manifest.nonce), manifest.log_start) {
                    return Err(damaged("its columns do not match its manifest"));
                }
                Some(manifest)
            }
        };
        let row = LogRow {
            id: value(row, 0)?,
            sequence,
            tail: offset(row, 5)?,
            manifest,
        };
        self.known.lock().id = Some(row.id);
        Ok(Some(row))
    }

    async fn manifest(&self) -> Result<Option<Manifest>, LogError> {
        Ok(self.row(None).await?.and_then(|row| row.manifest))
    }

    async fn id(&self) -> Result<Option<Uuid>, LogError> {
        let known = self.known.lock().id;
        match known {
            Some(id) => Ok(Some(id)),
            None => Ok(self.row(None).await?.map(|row| row.id)),
        }
    }

    /// The row, created if there has never been one, and proven to be that of this object store.
    async fn row_to_open(&self, link: &Link) -> Result<LogRow, LogError> {
        let row = match self.row(Some(link)).await? {
            Some(row) => row,
            None => self.create(link).await?,
        };
        let marked = match self.marker().await? {
            Some(marked) => marked,
            None if row.manifest.is_none() => {
                // Whoever wins: all who create the log do it for the same row.
                let key = bucket::postgres_key(&self.name);
                let body = vec![Bytes::from(row.id.to_string())];
                self.store
                    .put_if_absent(&key, body)
                    .await
                    .map_err(bucket::failed)?;
                self.marker()
                    .await?
                    .ok_or_else(|| corrupt(&key, "it is gone after it was written"))?
            }
            None => "none".to_owned(),
        };
        if marked != row.id.to_string() {
            return Err(LogError::Invalid(format!(
                "metadata_log.url: {} has id {} in this database, but the object store belongs to {marked}",
                self.place(),
                row.id
            )));
        }
        Ok(row)
    }

    async fn create(&self, link: &Link) -> Result<LogRow, LogError> {
        let marked = self.marker().await?;
        // It may have been created since we looked.
        if let Some(row) = self.row(Some(link)).await? {
            return Ok(row);
        }
        if let Some(marked) = marked {
            return Err(LogError::Invalid(format!(
                "metadata_log.url: {} (id {marked}) is not in this database, but the object store knows it: \
                 restore the database",
                self.place()
            )));
        }
        let manifests = self
            .store
            .list(&bucket::directory(&self.name, "manifest"), None, 1)
            .await
            .map_err(bucket::failed)?;
        if !manifests.is_empty() {
            return Err(LogError::Invalid(format!(
                "metadata_log.url: log {} of this cluster is kept in the object store",
                self.name
            )));
        }
        let (cluster, id, chain) = (
            self.database.cluster(),
            self.env.uuid(),
            genesis(&self.name).to_vec(),
        );
        self.database
            .query(link, Statement::CreateRow, &[&cluster, &self.name, &id, &chain])
            .await?;
        self.row(Some(link))
            .await?
            .ok_or_else(|| LogError::Unavailable(format!("{} is being deleted", self.place())))
    }

    /// What the object store says about where this log is.
    async fn marker(&self) -> Result<Option<String>, LogError> {
        match self
            .store
            .get_range(&bucket::postgres_key(&self.name), 0..64)
            .await
        {
            Ok(body) => Ok(Some(String::from_utf8_lossy(&body).into_owned())),
            Err(BlobError::NotFound(_)) => Ok(None),
            Err(error) => Err(bucket::failed(error)),
        }
    }

    /// Replaces the manifest `before` by `manifest`; gives the tail and the hash before it. `None`: another one is in its place.
    async fn replace_manifest(
        &self,
        link: &Link,
        id: Uuid,
        before: i64,
        manifest: &Manifest,
    ) -> Result<Option<(LogOffset, Hash)>, LogError> {
        let before = match env::mutation("replace-blind") {
            true => self.row(Some(link)).await?.map_or(before, |row| row.sequence),
            false => before,
        };
        let (sequence, epoch, log_start) = (
            signed(manifest.sequence),
            signed(manifest.epoch.0),
            signed(manifest.log_start.0),
        );
        let body = manifest.encode().concat();
        let params: [Param<'_>; 7] = [
            &id,
            &before,
            &sequence,
            &epoch,
            &manifest.nonce,
            &log_start,
            &body,
        ];
        let rows = self.database.query(link, Statement::Replace, &params).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let chain = value::<&[u8]>(row, 1)?
            .try_into()
            .map_err(|_| corrupt(&self.place(), "its hash has another length"))?;
        Ok(Some((offset(row, 0)?, chain)))
    }

    /// A slot as it is stored; `None` if it is not there.
    async fn slot(&self, id: Uuid, at: LogOffset) -> Result<Option<Bytes>, LogError> {
        let number = signed(at.0);
        let rows = self.database.read(Statement::Slot, &[&id, &number]).await?;
        rows.first()
            .map(|row| value(row, 0).map(Bytes::copy_from_slice))
            .transpose()
    }

    /// The hash that slot `from` must name as its previous one; `None` if that slot is gone.
    async fn chain_at(&self, id: Uuid, from: LogOffset) -> Result<Option<Hash>, LogError> {
        let known = self.known.lock().chain;
        if let Some((at, hash)) = known
            && at == from
        {
            return Ok(Some(hash));
        }
        let Some(before) = from.0.checked_sub(1).map(LogOffset) else {
            return Ok(Some(genesis(&self.name)));
        };
        if let Some(body) = self.slot(id, before).await? {
            return Ok(Some(hash(&[body])));
        }
        let manifest = self.manifest().await?;
        let snapshot = manifest.and_then(|manifest| manifest.snapshot);
        Ok(snapshot
            .filter(|snapshot| snapshot.offset == from)
            .map(|snapshot| snapshot.chain))
    }

    async fn read(&self, from: LogOffset, max_bytes: usize) -> Result<Vec<Slot>, LogError> {
        let Some(id) = self.id().await? else {
            return Ok(Vec::new());
        };
        let mut chain = self.chain_at(id, from).await?;
        let (first, bytes) = (
            signed(from.0),
            i64::try_from(max_bytes.max(1)).unwrap_or(i64::MAX),
        );
        let params: [Param<'_>; 4] = [&id, &first, &bytes, &MAX_SLOTS];
        let rows = self.database.read(Statement::Read, &params).await?;
        let mut slots: Vec<Slot> = Vec::with_capacity(rows.len());
        let mut next = from;
        for row in &rows {
            let (log_start, tail) = (offset(row, 0)?, offset(row, 1)?);
            if from < log_start {
                return Err(LogError::Trimmed { log_start });
            }
            let wrong = match value::<Option<i64>>(row, 2)? {
                None if from < tail => Some("this slot is missing"),
                None => return Ok(Vec::new()),
                Some(found) if found != signed(next.0) => Some("this slot is missing"),
                Some(_) => None,
            };
            let read = match wrong {
                Some(wrong) => Err(corrupt(&self.slot_place(next), wrong)),
                None => self.decode(next, value(row, 3)?, chain),
            };
            let (slot, own_hash) = match read {
                Ok(read) => read,
                // First hand over what is good: the next call meets the error again.
                Err(_) if !slots.is_empty() => break,
                Err(error) => return Err(error),
            };
            chain = Some(own_hash);
            next = next.next();
            slots.push(slot);
        }
        if rows.is_empty() {
            return Err(corrupt(&self.place(), "it is gone from the database"));
        }
        if let Some(hash) = chain {
            self.known.lock().chain = Some((next, hash));
        }
        Ok(slots)
    }

    fn decode(&self, at: LogOffset, body: &[u8], chain: Option<Hash>) -> Result<(Slot, Hash), LogError> {
        let (place, body) = (self.slot_place(at), Bytes::copy_from_slice(body));
        let stored = StoredSlot::decode(&place, at, &body)?;
        if chain.is_some_and(|expected| expected != stored.previous) {
            return Err(corrupt(&place, "it does not follow the slot before it"));
        }
        Ok((stored.slot, hash(&[body])))
    }

    async fn delete_slots(&self, id: Uuid, log_start: LogOffset) -> Result<usize, LogError> {
        let bound = signed(log_start.0);
        let mut deleted = 0;
        loop {
            let rows = self
                .database
                .read(Statement::Delete, &[&id, &bound, &DELETE_AT_ONCE])
                .await?;
            let count: i64 = rows.first().map_or(Ok(0), |row| value(row, 0))?;
            deleted += usize::try_from(count).unwrap_or(0);
            if count < DELETE_AT_ONCE {
                return Ok(deleted);
            }
        }
    }
}

#[async_trait]
impl MetadataLog for PostgresLog {
    async fn owner(&self) -> Result<Option<(Epoch, Owner)>, LogError> {
        let manifest = self.0.manifest().await?;
        Ok(manifest.map(|manifest| (manifest.epoch, manifest.owner)))
    }

    async fn open(&self, owner: Owner) -> Result<Opened, LogError> {
        let shared = &self.0;
        let nonce = shared.env.uuid();
        let link = Link::default();
        let (id, manifest, (tail, chain)) = loop {
            let row = shared.row_to_open(&link).await?;
            let manifest = Manifest::next_term(row.manifest, &owner, nonce);
            let replaced = shared.replace_manifest(&link, row.id, row.sequence, &manifest);
            if let Some(end) = replaced.await? {
                break (row.id, manifest, end);
            }
        };
        let opened = (manifest.epoch, manifest.snapshot.clone(), manifest.log_start);
        let fence = manifest.slot(chain, tail, Vec::new());
        let body = Bytes::from(fence.encode()?.concat());
        match append(shared, &link, id, &manifest, tail, &body).await? {
            Appended::Ours => {}
            Appended::Not(error) => return Err(error),
        }
        let (next, own_hash) = (tail.next(), hash(&[body]));
        tracing::info!(log = shared.name, epoch = %manifest.epoch, tail = %next, "metadata log taken over");
        shared.database.tell(&link, id, next).await;
        let writer = Writer::new(shared.clone(), link, id, manifest, next, own_hash);
        let (epoch, snapshot, log_start) = opened;
        Ok(Opened {
            writer: Box::new(writer),
            epoch,
            snapshot,
            log_start,
            tail: next,
        })
    }

    async fn read(&self, from: LogOffset, max_bytes: usize) -> Result<Vec<Slot>, LogError> {
        self.0.read(from, max_bytes).await
    }

    async fn changed(&self, from: LogOffset) {
        let known = self.0.known.lock().id;
        // A log that was never read or opened is not heard of.
        if let Some(id) = known {
            let mut heard = self.0.database.listen(id);
            if heard.wait_for(|tail| *tail > from).await.is_ok() {
                return;
            }
        }
        std::future::pending().await
    }

    async fn snapshot(&self) -> Result<Option<SnapshotRef>, LogError> {
        Ok(self.0.manifest().await?.and_then(|manifest| manifest.snapshot))
    }

    async fn put_snapshot(&self, offset: LogOffset, body: SnapshotBody) -> Result<SnapshotRef, LogError> {
        let shared = &self.0;
        let missing = || {
            LogError::Invalid(format!(
                "no snapshot at offset {offset}: the slot before it is not there"
            ))
        };
        let before = LogOffset(offset.0.checked_sub(1).ok_or_else(missing)?);
        let id = shared.id().await?.ok_or_else(missing)?;
        let Some(slot) = shared.slot(id, before).await? else {
            // Perhaps a later leader has trimmed the log that far.
            return Err(match shared.manifest().await? {
                Some(Manifest { log_start, .. }) if before < log_start => LogError::Trimmed { log_start },
                _ => missing(),
            });
        };
        let chain = hash(&[slot]);
        bucket::put_snapshot(&shared.env, &shared.store, &shared.name, offset, chain, body).await
    }

    fn get_snapshot(&self, snapshot: &SnapshotRef) -> SnapshotPieces {
        let shared = self.0.clone();
        let newest = async move { shared.manifest().await };
        snapshot::get(&self.0.env, &self.0.store, snapshot, newest)
    }

    async fn sweep(&self) -> Result<usize, LogError> {
        let shared = &self.0;
        let Some(row) = shared.row(None).await? else {
            return Ok(0);
        };
        let Some(manifest) = row.manifest else {
            return Ok(0);
        };
        let end = match &manifest.snapshot {
            Some(snapshot) if env::mutation("trim-above-snapshot") => LogOffset(snapshot.offset.0 + 5),
            _ => manifest.log_start,
        };
        let slots = shared.delete_slots(row.id, end).await?;
        let Some(installed) = manifest.snapshot else {
            return Ok(slots);
        };
        // Dead for as long as there has been a later one.
        let mut dead = Vec::new();
        let found = bucket::snapshots_below(&shared.store, &shared.name, installed.offset.next()).await?;
        let mut replaced = false;
        for (offset, object) in found.into_iter().rev() {
            if offset < installed.offset && replaced {
                dead.push(object.key);
                continue;
            }
            let age = Duration::from_millis(shared.env.now().since(object.last_modified));
            replaced |= object.key == installed.key && age >= shared.min_age;
            replaced |= offset < installed.offset && age >= shared.min_age;
        }
        Ok(slots + bucket::delete(&shared.store, &dead).await?)
    }
}
