//! The state machine of a shard: committed state in SQLite, pending state beside it in memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use metalog::Slot;
use rusqlite::{Connection, OptionalExtension};
use types::{
    FastMap, FastSet, FeatureLevel, FeatureLevels, LogOffset, ShardId, Timestamp, TopicId, TopicPartition,
};
use uuid::Uuid;

use super::producer::Producer;
use super::readers::Readers;
use super::tail::Tail;
use super::{Command, Output, schema, snapshot};
use crate::replica::{SnapshotJob, Speculated, StateError, StateMachine};

/// Beyond this a replica without jobs, a follower, checkpoints the WAL itself, in bytes.
const WAL_LIMIT: u64 = schema::WAL_KEPT;
/// Where jobs do it, that would hold up commits. A snapshot that takes long keeps the WAL from being started anew meanwhile.
const WAL_LIMIT_WITH_JOBS: u64 = 4 * schema::WAL_KEPT;

/// Pages of the WAL that the leader may copy itself to start it anew: one or two milliseconds.
pub(super) const LEFT_TO_LEADER: i64 = 500;

/// Free pages are given back when they are more than this part of the view (one in so many),
const FREE_PAGES: i64 = 4;
/// so many after a slot: a step of less than a millisecond.
const VACUUM_PAGES: i64 = 8;

/// A partition of a user topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its number within the shard; never reused.
    pub num: u32,
    pub log_start: i64,
    /// The offset that the next record gets.
    pub high_watermark: i64,
    /// Of all its batches that are not purged yet.
    pub bytes: u64,
    /// The last log-append time given; the next is no earlier.
    pub append_time: Timestamp,
}

impl Partition {
    pub(super) fn new(num: u32) -> Self {
        Self {
            num,
            log_start: 0,
            high_watermark: 0,
            bytes: 0,
            append_time: Timestamp(-1),
        }
    }
}

/// What is counted up in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub next_file: u64,
    pub next_num: u32,
    /// Time of the last entry.
    pub log_time: Timestamp,
}

/// What is judged but not durable. A `None` hides what is committed.
#[derive(Default)]
pub struct Pending {
    pub counters: Counters,
    pub partitions: FastMap<TopicPartition, Option<Partition>>,
    pub producers: FastMap<(u32, i64), Option<Producer>>,
    pub files: FastMap<Uuid, File>,
    pub deleted_topics: FastSet<TopicId>,
}

/// What a second commit of a file needs to know.
#[derive(Clone, Debug)]
pub struct File {
    /// The packed answer to the first; `None`: refuse.
    pub results: Option<Bytes>,
    /// It needs no owner any more, or has this shard already.
    pub settled: bool,
}

/// What the state shares with those who read it.
pub struct Shared {
    /// What was committed last.
    pub tail: Tail,
    /// Connections to the view.
    pub readers: Readers,
    /// Asks the replica to start the WAL anew: all of it is in the database.
    pub restart_wal: AtomicBool,
    /// Checkpoints are made beside the replica.
    pub has_jobs: AtomicBool,
    /// The slot up to which the last checkpoint went; held while one runs.
    pub checkpointed: tokio::sync::Mutex<Option<LogOffset>>,
    /// Batches committed since the state was created, replayed ones included.
    pub batches: AtomicU64,
}

impl Shared {
    /// For a state in `dir`.
    pub fn new(dir: &Path) -> Arc<Shared> {
        Arc::new(Shared {
            tail: Tail::default(),
            readers: Readers::new(view(dir)),
            restart_wal: AtomicBool::new(false),
            has_jobs: AtomicBool::new(false),
            checkpointed: tokio::sync::Mutex::default(),
            batches: AtomicU64::new(0),
        })
    }
}

/// Which formats a shard reads and writes (ADR 0012).
#[derive(Clone)]
pub struct Features {
    /// What this node supports.
    pub supported: FeatureLevels,
    /// What the cluster has finalised, as far as this node knows: it may learn that late, but never early.
    pub finalized: Arc<dyn Fn() -> FeatureLevel + Send + Sync>,
}

impl Default for Features {
    /// Those of a new cluster.
    fn default() -> Self {
        let supported = FeatureLevels::SUPPORTED;
        Features {
            supported,
            finalized: Arc::new(move || supported.max),
        }
    }
}

/// The shard's state.
pub struct ShardState {
    pub(super) shard: ShardId,
    dir: PathBuf,
    pub(super) db: Connection,
    pub(super) applied: Option<LogOffset>,
    pub(super) counters: Counters,
    /// The committed partitions once more: there are few of them, and every batch asks for one.
    pub(super) partitions: FastMap<TopicPartition, Partition>,
    pub(super) pending: Pending,
    pub(super) shared: Arc<Shared>,
    pub(super) features: Features,
}

/// The view's file within the directory of a shard.
pub fn view(dir: &Path) -> PathBuf {
    dir.join("view.db")
}

impl From<rusqlite::Error> for StateError {
    fn from(error: rusqlite::Error) -> Self {
        StateError::View(error.to_string())
    }
}

impl ShardState {
    /// An empty state in `dir`, an empty directory or none.
    pub fn create(
        shard: ShardId,
        dir: &Path,
        shared: Arc<Shared>,
        features: Features,
    ) -> Result<Self, StateError> {
        std::fs::create_dir_all(dir).map_err(|e| file_error(dir, &e))?;
        let db = schema::create(&view(dir))?;
        let mut state = Self {
            shard,
            dir: dir.to_owned(),
            db,
            applied: None,
            counters: Counters::default(),
            partitions: FastMap::default(),
            pending: Pending::default(),
            shared,
            features,
        };
        state.load()?;
        Ok(state)
    }

    /// Reads what is kept in memory.
    fn load(&mut self) -> Result<(), StateError> {
        let sql = "SELECT applied, next_file, next_num, log_time FROM meta";
        let (applied, counters) = self.db.query_row(sql, (), |row| {
            let applied: i64 = row.get(0)?;
            let next_file: i64 = row.get(1)?;
            let counters = Counters {
                next_file: next_file.cast_unsigned(),
                next_num: row.get(2)?,
                log_time: Timestamp(row.get(3)?),
            };
            Ok((applied, counters))
        })?;
        self.applied = u64::try_from(applied).ok().map(LogOffset);
        self.counters = counters;
        self.partitions.clear();
        let sql =
            "SELECT topic, partition, num, log_start, high_watermark, bytes, append_time FROM partitions";
        let mut select = self.db.prepare(sql)?;
        let mut rows = select.query(())?;
        while let Some(row) = rows.next()? {
            let bytes: i64 = row.get(5)?;
            let partition = Partition {
                num: row.get(2)?,
                log_start: row.get(3)?,
                high_watermark: row.get(4)?,
                bytes: bytes.cast_unsigned(),
                append_time: Timestamp(row.get(6)?),
            };
            let id = TopicPartition {
                topic: TopicId(schema::uuid(row, 0)?),
                partition: row.get(1)?,
            };
            self.partitions.insert(id, partition);
        }
        drop(rows);
        drop(select);
        self.forget_pending();
        Ok(())
    }

    pub(super) fn forget_pending(&mut self) {
        self.pending.partitions.clear();
        if !env::mutation("rollback-half") {
            self.pending.producers.clear();
        }
        self.pending.files.clear();
        self.pending.deleted_topics.clear();
        self.pending.counters = self.counters;
    }

    /// A partition as pending entries leave it.
    pub(super) fn partition(&self, id: &TopicPartition) -> Option<Partition> {
        match self.pending.partitions.get(id) {
            Some(pending) => *pending,
            None => self.partitions.get(id).copied(),
        }
    }

    /// Whether a topic was deleted not long ago.
    pub(super) fn is_deleted(&self, topic: TopicId) -> Result<bool, StateError> {
        let mut select = self
            .db
            .prepare_cached("SELECT 1 FROM deleted_topics WHERE topic = ?")?;
        Ok(self.pending.deleted_topics.contains(&topic) || select.exists((topic.0.as_bytes(),))?)
    }

    /// A producer as pending entries leave it.
    pub(super) fn producer(&self, num: u32, producer: i64) -> Result<Option<Producer>, StateError> {
        match self.pending.producers.get(&(num, producer)) {
            Some(pending) => Ok(pending.clone()),
            None => read_producer(&self.db, num, producer),
        }
    }

    /// A file as pending entries leave it.
    pub(super) fn file(&self, object: &Uuid) -> Result<Option<File>, StateError> {
        if let Some(pending) = self.pending.files.get(object) {
            return Ok(Some(pending.clone()));
        }
        let mut select = self
            .db
            .prepare_cached("SELECT results, state, owners FROM files WHERE object = ?")?;
        let row = select.query_row((object.as_bytes(),), |row| {
            Ok((
                row.get::<_, Option<Vec<u8>>>(0)?,
                row.get::<_, i64>(1)?,
                row.get::<_, Vec<u8>>(2)?,
            ))
        });
        let Some((results, state, owners)) = row.optional()? else {
            return Ok(None);
        };
        let held = owners.starts_with(&self.shard.0.to_be_bytes());
        let settled = state == schema::file_state::TOMBSTONE || held;
        Ok(Some(File {
            results: results.map(Bytes::from),
            settled,
        }))
    }

    /// What deletions have left is used again before the file grows; only a view that was much larger once shrinks.
    pub(super) fn shrink_if_due(&self) -> Result<(), StateError> {
        let pragma = |sql: &str| {
            self.db
                .prepare_cached(sql)?
                .query_row((), |row| row.get::<_, i64>(0))
        };
        if pragma("PRAGMA freelist_count")? > pragma("PRAGMA page_count")? / FREE_PAGES {
            let mut vacuum = self
                .db
                .prepare_cached(&format!("PRAGMA incremental_vacuum({VACUUM_PAGES})"))?;
            let mut rows = vacuum.query(())?;
            while rows.next()?.is_some() {}
        }
        Ok(())
    }

    pub(super) fn checkpoint_if_due(&self) -> Result<(), StateError> {
        let asked = self.shared.restart_wal.swap(false, Ordering::AcqRel);
        let limit = match self.shared.has_jobs.load(Ordering::Relaxed) {
            true => WAL_LIMIT_WITH_JOBS,
            false => WAL_LIMIT,
        };
        let wal = self.dir.join("view.db-wal");
        if asked || std::fs::metadata(wal).map_or(0, |m| m.len()) > limit {
            // A reader that is in the way only puts it off; a short one is gone when the next slot comes.
            let (busy, left) = self.db.query_row("PRAGMA wal_checkpoint(RESTART)", (), |row| {
                Ok((row.get(0)?, row.get::<_, i64>(1)? - row.get::<_, i64>(2)?))
            })?;
            if busy && left <= LEFT_TO_LEADER {
                self.shared.restart_wal.store(true, Ordering::Release);
            }
        }
        Ok(())
    }
}

/// A committed producer.
pub(super) fn read_producer(
    db: &Connection,
    num: u32,
    producer: i64,
) -> Result<Option<Producer>, StateError> {
    let mut select =
        db.prepare_cached("SELECT epoch, used_at, batches FROM producers WHERE num = ? AND producer = ?")?;
    let mut rows = select.query((num, producer))?;
    match rows.next()? {
        Some(row) => {
            let packed = row.get_ref(2)?.as_blob().map_err(rusqlite::Error::from)?;
            Producer::unpack(row.get(0)?, Timestamp(row.get(1)?), packed).map(Some)
        }
        None => Ok(None),
    }
}

/// Deletes a directory, if there is one.
pub(super) fn remove_all(dir: &Path) -> Result<(), StateError> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(file_error(dir, &error)),
        _ => Ok(()),
    }
}

/// Deletes a SQLite file with what belongs to it.
pub(super) fn remove(path: &Path) -> Result<(), StateError> {
    for suffix in ["", "-wal", "-shm", "-journal"] {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        match std::fs::remove_file(Path::new(&name)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(file_error(path, &error));
            }
            _ => {}
        }
    }
    Ok(())
}

pub(super) fn file_error(path: &Path, error: &std::io::Error) -> StateError {
    StateError::View(format!("{}: {error}", path.display()))
}

impl StateMachine for ShardState {
    type Command = Command;
    type Output = Output;
    type Staged = snapshot::Staged;

    fn speculate(&mut self, now: Timestamp, command: &Command) -> Result<Speculated<Output>, StateError> {
        if self.db.is_autocommit() {
            // One read transaction for all that is judged on the same committed state: locks are taken once.
            self.db.prepare_cached("BEGIN")?.execute(())?;
        }
        self.judge(now, command)
    }

    fn rollback(&mut self) -> Result<(), StateError> {
        if !self.db.is_autocommit() {
            self.db.prepare_cached("ROLLBACK")?.execute(())?;
        }
        self.forget_pending();
        Ok(())
    }

    fn apply(&mut self, offset: LogOffset, entries: &[Bytes]) -> Result<(), StateError> {
        self.apply_transaction(&[(offset, entries)])
    }

    fn apply_slots(&mut self, slots: &[Slot]) -> Result<(), StateError> {
        let slots: Vec<_> = slots
            .iter()
            .map(|slot| (slot.offset, &slot.entries[..]))
            .collect();
        self.apply_transaction(&slots)
    }

    fn applied(&self) -> Option<LogOffset> {
        self.applied
    }

    fn begin_snapshot(&mut self) -> Result<SnapshotJob, StateError> {
        let dir = self.dir.clone();
        Ok(Box::new(move || snapshot::make(&dir)))
    }

    fn stage(&mut self) -> Result<snapshot::Staged, StateError> {
        snapshot::Staged::create(&self.dir)
    }

    fn restore(&mut self, offset: LogOffset, staged: snapshot::Staged) -> Result<(), StateError> {
        let staged = staged.finish(offset)?;
        self.db = Connection::open_in_memory()?;
        self.db = self.shared.readers.replace(|| {
            remove(&view(&self.dir))?;
            std::fs::rename(&staged, view(&self.dir)).map_err(|e| file_error(&staged, &e))?;
            Ok::<_, StateError>(schema::restore(&view(&self.dir))?)
        })?;
        if env::mutation("snapshot-without-producers") {
            self.db.execute("DELETE FROM producers", ())?;
        }
        self.load()?;
        self.shared.tail.restart(offset.next());
        Ok(())
    }
}
