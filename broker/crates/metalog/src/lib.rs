//! The metadata log: one ordered, replicated log per partition of `__diskless_metadata`, with one writer at a time.
//!
//! Everything the coordinators know follows from it. A log is a sequence of *slots*, dense from 0; a slot is an
//! atomic group of entries, and its number is its [`LogOffset`], so a reader that stores "applied up to offset N"
//! in the same transaction as the entries of slot N-1 needs to remember nothing else.
//!
//! ```text
//!            log_start          snapshot.offset               tail
//!                │                    │                        │
//!   ┌ ─ ─ ┬ ─ ─ ┬┴────┬─────┬─────┬───┴─┬─────┬─────┬─────┬─────┐
//!     gone       slot  slot  ...        │     │     │fence│     │  next append
//!   └ ─ ─ ┴ ─ ─ ┴─────┴─────┴─────┴─────┴─────┴─────┴─────┴─────┘
//!                                      epoch 7 ────▶│ epoch 8 ──▶
//! ```
//!
//! Life of a leader: [`MetadataLog::open`] takes the log over (a new epoch; whoever wrote before is *fenced* and can
//! never again get an append acknowledged), the caller restores the newest snapshot, replays
//! `snapshot.offset..tail` with [`MetadataLog::read`], and serves. Each [`LogWriter::append`] returns once its slot
//! can no longer be lost. Now and then the leader uploads a snapshot and moves `log_start` up to it.
//!
//! Promises, checked by [`conformance`] and by the seeded fault test for every engine:
//! - an acknowledged slot is read back by every later reader, once, in order, unchanged;
//! - what was acknowledged to an earlier writer lies before the fencing slot of every later one, so a new leader
//!   that has replayed the log up to its own fence knows all that was ever acknowledged;
//! - epochs only grow, one owner per epoch;
//! - damage is found (checksum, hash chain) and reported with the key of the object, never skipped.
//!
//! Two engines; [`Logs`] is a cluster's choice between them:
//! - `object` ([`ObjectLog`]) keeps a log in the object store. It needs nothing from the store but an atomic
//!   create-if-absent and reads that see completed writes. Its protocol is described in the `object` module.
//! - `postgres` ([`PostgresLog`]) keeps it in tables of a PostgreSQL database: an append takes a millisecond instead
//!   of a PUT, for the price of a database. Snapshots stay in the object store.

mod bucket;
pub mod conformance;
mod format;
pub mod fuzz_entry;
mod object;
mod postgres;
mod snapshot;

use std::sync::Arc;

use async_trait::async_trait;
use blob::SharedStore;
use bytes::Bytes;
use env::Env;
use futures::stream::BoxStream;
use thiserror::Error;
use uuid::Uuid;

pub use object::{ObjectLog, Options};
pub use postgres::{Database, PostgresLog, PostgresSettings, Statement};
pub use snapshot::{SnapshotBody, SnapshotFile};
pub use types::{Epoch, LogOffset};

/// The largest entry that an append takes, in bytes.
pub const MAX_ENTRY_BYTES: usize = format::MAX_ENTRY;

/// Where the logs of a cluster are kept.
#[derive(Clone, Debug)]
pub struct Logs {
    env: Env,
    store: SharedStore,
    options: Options,
    /// `None`: in the object store.
    database: Option<Database>,
}

impl Logs {
    /// All logs in `database`, their snapshots in `store`; without a database all of it in `store`.
    pub fn new(env: Env, store: SharedStore, options: Options, database: Option<Database>) -> Logs {
        Logs {
            env,
            store,
            options,
            database,
        }
    }

    /// The log of a name. Makes no request.
    pub fn log(&self, name: &str) -> Arc<dyn MetadataLog> {
        let (env, store) = (self.env.clone(), self.store.clone());
        let options = self.options;
        match self.database.clone() {
            None => Arc::new(ObjectLog::new(store, name, options, env)),
            Some(database) => Arc::new(PostgresLog::new(database, store, name, options.min_age, env)),
        }
    }
}

/// Who leads a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Id of the node.
    pub node_id: i32,
    /// Differs for every start of the process.
    pub incarnation: Uuid,
    /// `host:port` of its internal listener.
    pub address: String,
}

/// A group of entries that was appended as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Its place in the log.
    pub offset: LogOffset,
    /// The term of its writer.
    pub epoch: Epoch,
    /// Its entries; none in a fencing slot, which every `open` writes.
    pub entries: Vec<Bytes>,
}

/// Names a snapshot: the state after all slots below `offset`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotRef {
    /// The first slot that is not in the snapshot.
    pub offset: LogOffset,
    /// Where it is stored, in the engine's terms.
    pub key: String,
    /// Length in bytes.
    pub size: u64,
    /// SHA-256 of the bytes.
    pub sha256: [u8; 32],
    /// Hash of slot `offset - 1`: ties the snapshot to the history it was taken from.
    pub chain: [u8; 32],
}

/// The bytes of a snapshot, in order, in pieces of a few MiB. They are proven only when the stream has ended without an error.
pub type SnapshotPieces = BoxStream<'static, Result<Bytes, LogError>>;

/// What [`MetadataLog::open`] found and made.
pub struct Opened {
    /// The right to append.
    pub writer: Box<dyn LogWriter>,
    /// The new term.
    pub epoch: Epoch,
    /// Where to start from; `None`: from an empty state.
    pub snapshot: Option<SnapshotRef>,
    /// The first slot that can be read.
    pub log_start: LogOffset,
    /// The first slot that is not there yet: replay ends before it.
    pub tail: LogOffset,
}

/// Why a log did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LogError {
    /// Another writer has taken the log over. An append that ends like this may or may not be in the log.
    #[error("fenced: {} leads with epoch {epoch}", describe(owner))]
    Fenced {
        /// The newer term.
        epoch: Epoch,
        /// Who holds it, if known.
        owner: Option<Owner>,
    },
    /// The slots or the snapshot asked for are gone: start again from the newest snapshot.
    #[error("the log starts at offset {log_start}")]
    Trimmed {
        /// The first slot that can be read.
        log_start: LogOffset,
    },
    /// The log cannot be reached, or access is denied; trying again may work.
    #[error("{0}")]
    Unavailable(String),
    /// Stored bytes are not what was written, or a foreign object is in their place. Names the object.
    #[error("corrupt metadata log: {0}")]
    Corrupt(String),
    /// The entries do not fit into a slot. Nothing was written, and the writer is as good as before.
    #[error("an append of {size} bytes; the metadata log takes {limit}")]
    TooLarge {
        /// What they come to, in bytes.
        size: usize,
        /// What fits, in bytes.
        limit: usize,
    },
    /// The request makes no sense (an offset that is not in the log), or can never work as things are set up.
    #[error("{0}")]
    Invalid(String),
    /// An earlier call on this writer was cancelled half-way, so its outcome is unknown: open the log again.
    #[error("an earlier append was cancelled and its outcome is unknown; the log must be opened again")]
    Closed,
}

fn describe(owner: &Option<Owner>) -> String {
    match owner {
        Some(owner) => format!("node {} at {}", owner.node_id, owner.address),
        None => "another node".to_owned(),
    }
}

/// One metadata log. Shared by its leader, followers and whoever looks for the leader.
#[async_trait]
pub trait MetadataLog: Send + Sync {
    /// Who leads, without taking over; `None` if the log was never opened.
    async fn owner(&self) -> Result<Option<(Epoch, Owner)>, LogError>;

    /// Takes the log over for `owner`: bumps the epoch, fences the previous writer, creates the log if need be.
    async fn open(&self, owner: Owner) -> Result<Opened, LogError>;

    /// Slots from `from` on, up to about `max_bytes` of entries but one slot at least; empty when `from` is not
    /// written yet. [`LogError::Trimmed`] when it is gone.
    async fn read(&self, from: LogOffset, max_bytes: usize) -> Result<Vec<Slot>, LogError>;

    /// Resolves when this handle hears that the slot `from` is there. An engine that is not told of appends never does, and
    /// no engine is sure to: poll beside it.
    async fn changed(&self, from: LogOffset) {
        let _ = from;
        std::future::pending().await
    }

    /// The newest snapshot that a leader has installed.
    async fn snapshot(&self) -> Result<Option<SnapshotRef>, LogError>;

    /// Uploads the state after all slots below `offset`, beside running appends. It counts once
    /// [`LogWriter::install_snapshot`] has named it.
    async fn put_snapshot(&self, offset: LogOffset, body: SnapshotBody) -> Result<SnapshotRef, LogError>;

    /// The bytes of a snapshot. [`LogError::Trimmed`] when a later one has replaced it and it is gone, perhaps half-way.
    fn get_snapshot(&self, snapshot: &SnapshotRef) -> SnapshotPieces;

    /// Deletes what is below `log_start`, old manifests and snapshots that nothing names, if old enough.
    /// Safe for any node at any time. Returns how many objects went.
    async fn sweep(&self) -> Result<usize, LogError>;
}

/// The right to append, until fenced. One call at a time; a call that is dropped before it returns closes the writer.
#[async_trait]
pub trait LogWriter: Send + Sync {
    /// The term.
    fn epoch(&self) -> Epoch;

    /// The offset that the next append gets.
    fn tail(&self) -> LogOffset;

    /// Appends a slot. Returns its offset once it is durable. While the store fails it tries for ever: bound it
    /// by dropping the future, which closes the writer.
    async fn append(&mut self, entries: Vec<Bytes>) -> Result<LogOffset, LogError>;

    /// Makes `snapshot` the one to start from, and moves the start of the log up to `log_start` (no further than
    /// `snapshot.offset`; lower values than now change nothing).
    async fn install_snapshot(&mut self, snapshot: SnapshotRef, log_start: LogOffset)
    -> Result<(), LogError>;

    /// Asks the store whether this writer still is the owner.
    async fn check(&mut self) -> Result<(), LogError>;
}
