//! The tables of the view, and how connections to it are set up.

use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use uuid::Uuid;

use super::time_index;

/// Kept in `user_version`; snapshots of another one are refused.
pub const VERSION: i32 = 1;

/// Batches have no row of their own id: they are found by partition number and last offset, and rows of one
/// partition lie side by side. `num` and `file` are small integers because they are in every row.
const TABLES: &str = "
    CREATE TABLE meta (
        id INTEGER PRIMARY KEY CHECK (id = 0),
        applied INTEGER NOT NULL,
        next_file INTEGER NOT NULL,
        next_num INTEGER NOT NULL,
        log_time INTEGER NOT NULL
    );
    CREATE TABLE partitions (
        topic BLOB NOT NULL,
        partition INTEGER NOT NULL,
        num INTEGER NOT NULL,
        log_start INTEGER NOT NULL,
        high_watermark INTEGER NOT NULL,
        bytes INTEGER NOT NULL,
        append_time INTEGER NOT NULL,
        PRIMARY KEY (topic, partition)
    ) WITHOUT ROWID;
    CREATE TABLE batches (
        num INTEGER NOT NULL,
        last_offset INTEGER NOT NULL,
        delta INTEGER NOT NULL,
        file INTEGER NOT NULL,
        position INTEGER NOT NULL,
        size INTEGER NOT NULL,
        timestamp INTEGER NOT NULL,
        log_append_time INTEGER NOT NULL,
        PRIMARY KEY (num, last_offset)
    ) WITHOUT ROWID;
    CREATE TABLE garbage (
        num INTEGER PRIMARY KEY,
        topic BLOB NOT NULL,
        partition INTEGER NOT NULL,
        below INTEGER NOT NULL
    );
    CREATE TABLE files (
        id INTEGER PRIMARY KEY,
        object BLOB NOT NULL UNIQUE,
        uploader INTEGER NOT NULL,
        size INTEGER NOT NULL,
        owners BLOB NOT NULL,
        live INTEGER NOT NULL,
        committed_at INTEGER NOT NULL,
        state INTEGER NOT NULL,
        state_since INTEGER NOT NULL,
        results BLOB
    );
    CREATE INDEX files_by_state ON files (state, state_since) WHERE state > 0;
    CREATE TABLE producers (
        num INTEGER NOT NULL,
        producer INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        used_at INTEGER NOT NULL,
        batches BLOB NOT NULL,
        PRIMARY KEY (num, producer)
    ) WITHOUT ROWID;
    CREATE TABLE groups (id TEXT PRIMARY KEY, metadata BLOB NOT NULL);
    CREATE TABLE offsets (
        group_id TEXT NOT NULL,
        topic TEXT NOT NULL,
        partition INTEGER NOT NULL,
        topic_id BLOB,
        offset INTEGER NOT NULL,
        leader_epoch INTEGER NOT NULL,
        metadata TEXT,
        committed_at INTEGER NOT NULL,
        PRIMARY KEY (group_id, topic, partition)
    ) WITHOUT ROWID;
    INSERT INTO meta VALUES (0, -1, 1, 1, 0);
";

/// What came after the first version; snapshots from before lack it.
const ADDED: &str = "
    CREATE TABLE IF NOT EXISTS deleted_topics (topic BLOB PRIMARY KEY, at INTEGER NOT NULL) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS deleted_topics_by_time ON deleted_topics (at);
    CREATE INDEX IF NOT EXISTS live_files ON files (id) WHERE state = 0;
    CREATE TABLE IF NOT EXISTS live_batches (file INTEGER PRIMARY KEY, count INTEGER NOT NULL);
    CREATE TABLE IF NOT EXISTS time_index (
        num INTEGER NOT NULL,
        level INTEGER NOT NULL,
        last_offset INTEGER NOT NULL,
        timestamp INTEGER NOT NULL,
        PRIMARY KEY (num, level, last_offset)
    ) WITHOUT ROWID;
    DROP INDEX IF EXISTS offsets_by_topic;
    CREATE INDEX IF NOT EXISTS offsets_by_topic_id ON offsets (topic, topic_id);
    CREATE TABLE IF NOT EXISTS deleted_producers (num INTEGER PRIMARY KEY);
    CREATE TABLE IF NOT EXISTS deleted_offsets (name TEXT, topic BLOB, PRIMARY KEY (name, topic)) WITHOUT ROWID;
";

/// Live batches are counted in a table of their own: a purge changes the counts of many files, and hundreds of them share a page.
/// In snapshots they are where the first release has them, in `files.live`.
const COUNTS_FROM_SNAPSHOT: &str = "INSERT INTO live_batches SELECT id, live FROM files WHERE state = 0";
const COUNTS_TO_SNAPSHOT: &str = "
    UPDATE files SET live = count FROM live_batches WHERE file = id AND live != count;
    DROP TABLE live_batches;
";
/// What waits for its purge (see `purge`) is not in snapshots: other releases would show it.
const PURGE_SNAPSHOT: &str = "
    DELETE FROM producers WHERE num IN (SELECT num FROM deleted_producers);
    DROP TABLE deleted_producers;
    DELETE FROM offsets WHERE (topic, topic_id) IN (SELECT name, topic FROM deleted_offsets);
    DROP TABLE deleted_offsets;
";
/// Releases that do not know the time index would not keep it up, and pass it on as if they had.
const INDEX_TO_SNAPSHOT: &str = "DROP TABLE time_index;";
/// After a checkpoint the WAL is written from its beginning again; its file keeps this size, in bytes: pages that are there already
/// cost less than new ones.
pub const WAL_KEPT: u64 = 128 * 1024 * 1024;

/// Values of `files.state`.
pub mod file_state {
    /// It has live batches here.
    pub const LIVE: i64 = 0;
    /// No live batch here; the next owner is to take it over.
    pub const HAND_OVER: i64 = 1;
    /// No live batch anywhere; the object is to be deleted.
    pub const DELETE: i64 = 2;
    /// No live batch here, but an owner before this one still holds it.
    pub const WAITING: i64 = 3;
    /// Not ours any more, or gone.
    pub const TOMBSTONE: i64 = 4;
}

/// Creates an empty view.
pub fn create(path: &Path) -> rusqlite::Result<Connection> {
    // Free pages can be given back in small steps; snapshots keep this setting.
    Connection::open(path)?.execute_batch("PRAGMA auto_vacuum = INCREMENTAL;")?;
    let db = connect(path)?;
    db.execute_batch(&format!(
        "BEGIN; {TABLES} {ADDED} PRAGMA user_version = {VERSION}; COMMIT;"
    ))?;
    Ok(db)
}

/// Makes a view of a copy of a snapshot, and opens it for writing.
pub fn restore(path: &Path) -> rusqlite::Result<Connection> {
    let db = connect(path)?;
    db.execute_batch(&format!("BEGIN; {ADDED} {COUNTS_FROM_SNAPSHOT};"))?;
    time_index::build(&db)?;
    db.execute_batch("COMMIT")?;
    Ok(db)
}

/// Makes a snapshot of a copy of a view.
pub fn detach(path: &Path) -> rusqlite::Result<()> {
    Connection::open(path)?.execute_batch(&format!(
        "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; BEGIN; {COUNTS_TO_SNAPSHOT} {PURGE_SNAPSHOT}
         {INDEX_TO_SNAPSHOT} COMMIT;"
    ))
}

/// Opens a view for writing.
///
/// The view need not survive a power cut, so it is never synced; whoever opens a shard rebuilds it. Checkpoints are
/// started by hand, off the commit path.
pub fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let db = Connection::open(path)?;
    keep_statements(&db)?;
    // A checkpoint that meets a reader gives up at once: it must not hold up commits.
    db.busy_timeout(Duration::ZERO)?;
    db.execute_batch(&format!(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; PRAGMA cache_spill = OFF;
         PRAGMA wal_autocheckpoint = 0; PRAGMA journal_size_limit = {WAL_KEPT};
         PRAGMA cache_size = -131072; PRAGMA temp_store = MEMORY;"
    ))?;
    Ok(db)
}

/// Opens a view for reading.
pub fn open_reader(path: &Path) -> rusqlite::Result<Connection> {
    let db = Connection::open_with_flags(
        path,
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )?;
    keep_statements(&db)?;
    db.execute_batch("PRAGMA mmap_size = 4294967296; PRAGMA cache_size = -4096; PRAGMA query_only = ON;")?;
    Ok(db)
}

/// Statements are prepared once. Without the planner's promise of stable plans, each new value of a parameter that a partial index or a
/// limit could depend on would have its statement prepared again.
fn keep_statements(db: &Connection) -> rusqlite::Result<()> {
    db.set_prepared_statement_cache_capacity(64);
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)
        .map(drop)
}

/// Reads a UUID column.
pub fn uuid(row: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<Uuid> {
    row.get(column).map(Uuid::from_bytes)
}
