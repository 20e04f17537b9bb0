//! Object storage as the rest of the project sees it: whole immutable objects under keys, and one atomic step,
//! *create if absent*.
//!
//! ```text
//!   wal, metalog, cache, jobs
//!            │  BlobStore
//!     ┌──────▼──────┐
//!     │  Retrying   │  repeats what may be repeated (never an ambiguous create)
//!     ├─────────────┤
//!     │   Metered   │  counts what the provider bills
//!     ├──────┬──────┼────────┐
//!     │ S3   │Local │ Memory │   s3://   file://   memory://
//!     └──────┴──────┴────────┘
//! ```
//!
//! The trait is as narrow as it can be so that every store can keep its promises:
//! - a `put` that has returned survives a power cut, and a reader sees all of the object or none of it;
//! - what is stored is what was sent: length and, where the store knows them, checksum are compared before a write counts;
//! - `put_if_absent` has exactly one winner however many try ([`probe`] refuses stores that only pretend);
//! - an error says whether something may have happened: see [`BlobError::outcome_unknown`].
//!
//! There is no compare-and-swap: not every store has one, and nothing here needs one.
//!
//! Keys are `/`-separated parts of `[A-Za-z0-9._=-]`, none empty or starting with a dot. No key may be the
//! directory of another one (`a` beside `a/b`): file systems, and S3 servers built on them, cannot hold both.

pub mod conformance;
mod credentials;
mod error;
pub mod faults;
mod key;
mod local;
mod memory;
mod metrics;
mod pace;
mod probe;
mod retry;
mod s3;
pub mod tracked;
mod url;

use std::fmt::Debug;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use types::Timestamp;

pub use error::BlobError;
pub use local::LocalStore;
pub use memory::MemoryStore;
pub use metrics::{LATENCY_BUCKETS_MS, Metered, Metrics, Operation, OperationSnapshot};
pub use probe::{ProbeError, probe};
pub use retry::Retrying;
pub use url::{Opened, open};

/// What a `put_if_absent` did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// The object is there now, and it is ours.
    Created,
    /// An object was there already, perhaps from an earlier try of our own; it is unchanged.
    Exists,
}

/// An object without its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectMeta {
    /// Its key.
    pub key: String,
    /// Its length in bytes.
    pub size: u64,
    /// When the store took it, by the store's clock.
    pub last_modified: Timestamp,
}

/// An object store. Shared by all tasks of a process.
#[async_trait]
pub trait BlobStore: Send + Sync + Debug {
    /// Stores a whole object, replacing what was there. `body` is written slice by slice, without being joined.
    async fn put(&self, key: &str, body: Vec<Bytes>) -> Result<(), BlobError>;

    /// Like [`BlobStore::put`] with the bytes of a file, which must not change meanwhile. They are read piece by piece and
    /// never all in memory.
    async fn put_file(&self, key: &str, path: &Path) -> Result<(), BlobError>;

    /// Stores a whole object unless the key is taken. After an error with [`BlobError::outcome_unknown`] the
    /// object may be there: the caller decides by reading it.
    async fn put_if_absent(&self, key: &str, body: Vec<Bytes>) -> Result<PutOutcome, BlobError>;

    /// A whole object.
    async fn get(&self, key: &str) -> Result<Bytes, BlobError>;

    /// The bytes of `range` (from 0) that the object has: fewer, or none, where it ends earlier.
    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, BlobError>;

    /// The object's size and age; `None` if there is none.
    async fn head(&self, key: &str) -> Result<Option<ObjectMeta>, BlobError>;

    /// Up to `limit` objects whose key starts with `prefix` and is greater than `start_after`, in byte order.
    /// Fewer than `limit` means that there are no more.
    async fn list(
        &self,
        prefix: &str,
        start_after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ObjectMeta>, BlobError>;

    /// Deletes objects; one that is not there counts as deleted. Returns those that could not be deleted.
    async fn delete_many(&self, keys: &[String]) -> Result<Vec<(String, BlobError)>, BlobError>;
}

/// A store that several tasks share.
pub type SharedStore = Arc<dyn BlobStore>;

/// Length of a body in bytes.
pub(crate) fn body_len(body: &[Bytes]) -> u64 {
    body.iter().map(|slice| slice.len() as u64).sum()
}
