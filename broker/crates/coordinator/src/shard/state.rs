//! The state machine of a shard: committed state in SQLite, pending state beside it in memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension};
use types::{FastMap, LogOffset, ShardId, Timestamp, TopicId, TopicPartition};
use uuid::Uuid;

use super::producer::Producer;
use super::tail::Tail;
use super::{Command, Output, schema, snapshot};
use crate::replica::{SnapshotJob, Speculated, StateError, StateMachine};

/// Beyond this the leader checkpoints the WAL itself, in bytes. While jobs run it never gets there.
const WAL_LIMIT: u64 = 128 * 1024 * 1024;

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
    /// Time of the last entry; never goes back.
    pub log_time: Timestamp,
}

/// What is judged but not durable. A `None` hides what is committed.
#[derive(Default)]
pub struct Pending {
    pub counters: Counters,
    pub partitions: FastMap<TopicPartition, Option<Partition>>,
    pub producers: FastMap<(u32, i64), Option<Producer>>,
    pub files: FastMap<Uuid, File>,
}

/// What a second commit of a file needs to know.
#[derive(Clone, Debug)]
pub struct File {
    /// The packed answer to the first; `None`: refuse.
    pub results: Option<Bytes>,
    /// It needs no owner any more, or has this shard already.
    pub settled: bool,
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
    pub(super) tail: Arc<Tail>,
    pub(super) truncate_wal: Arc<AtomicBool>,
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
    /// An empty state in `dir`. A view that an earlier life left there is deleted, in whatever condition: it is never
    /// synced, so only what snapshot and log say is trusted.
    pub fn create(
        shard: ShardId,
        dir: &Path,
        tail: Arc<Tail>,
        truncate_wal: Arc<AtomicBool>,
    ) -> Result<Self, StateError> {
        std::fs::create_dir_all(dir).map_err(|e| file_error(dir, &e))?;
        remove(&view(dir))?;
        let db = schema::create(&view(dir))?;
        let mut state = Self {
            shard,
            dir: dir.to_owned(),
            db,
            applied: None,
            counters: Counters::default(),
            partitions: FastMap::default(),
            pending: Pending::default(),
            tail,
            truncate_wal,
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

    fn forget_pending(&mut self) {
        self.pending.partitions.clear();
        self.pending.producers.clear();
        self.pending.files.clear();
        self.pending.counters = self.counters;
    }

    /// A partition as pending entries leave it.
    pub(super) fn partition(&self, id: &TopicPartition) -> Option<Partition> {
        match self.pending.partitions.get(id) {
            Some(pending) => *pending,
            None => self.partitions.get(id).copied(),
        }
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

    fn checkpoint_if_due(&self) -> Result<(), StateError> {
        let asked = self.truncate_wal.swap(false, Ordering::AcqRel);
        let wal = self.dir.join("view.db-wal");
        if asked || std::fs::metadata(wal).map_or(0, |m| m.len()) > WAL_LIMIT {
            // A reader that is in the way only puts it off.
            self.db
                .query_row("PRAGMA wal_checkpoint(TRUNCATE)", (), |_| Ok(()))?;
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
        let expected = self.applied.map_or(LogOffset(0), LogOffset::next);
        if offset < expected {
            return Ok(());
        }
        if offset > expected {
            return Err(StateError::Corrupt(format!(
                "slot {offset} follows, but {expected} is next"
            )));
        }
        self.apply_slot(offset, entries)?;
        self.forget_pending();
        self.checkpoint_if_due()
    }

    fn applied(&self) -> Option<LogOffset> {
        self.applied
    }

    fn snapshot(&mut self) -> Result<(LogOffset, Bytes), StateError> {
        self.begin_snapshot()?()
    }

    fn begin_snapshot(&mut self) -> Result<SnapshotJob, StateError> {
        let dir = self.dir.clone();
        Ok(Box::new(move || snapshot::make(&dir)))
    }

    fn restore(&mut self, offset: LogOffset, bytes: Bytes) -> Result<(), StateError> {
        let staged = snapshot::stage(&self.dir, offset, &bytes)?;
        self.db = Connection::open_in_memory()?;
        remove(&view(&self.dir))?;
        std::fs::rename(&staged, view(&self.dir)).map_err(|e| file_error(&staged, &e))?;
        self.db = schema::open(&view(&self.dir))?;
        self.load()?;
        self.tail.restart(offset.next());
        Ok(())
    }
}
