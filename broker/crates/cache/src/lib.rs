//! WAL objects in memory, and the way to those that are not.
//!
//! ```text
//!  own upload ──insert──▶ ┌─────────┐ ◀──hit── tail reader
//!                         │ objects │
//!  one GET per object ──▶ └─────────┘ ◀─miss── tail reader (waits for the GET that is under way)
//!
//!  ranged GET ──────────────────────────────▶ reader far behind: passes the cache by
//! ```
//!
//! In a zone with several brokers one of them does this for all of them (`fetch::neighbours` in the broker).
//!
//! Readers at the tail of the log read the same few objects; one whole GET serves them all. A reader that is far
//! behind reads each byte once: its reads go past the cache, and have permits of their own, so that a back-fill
//! neither evicts what the tail needs nor holds its requests up.
//!
//! What came in first leaves first ([`recent`]): readers go forward in time, so the oldest object is the one that
//! fewest of them still have before them. A policy that favours what was read often would keep
//! objects that all have read, and evict those that they are about to read.
//!
//! Objects are immutable and named by a UUID, so nothing ever has to be invalidated but what was read corrupt.

mod object;
mod recent;

pub use object::Object;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use blob::{BlobError, SharedStore};
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use types::FastMap;
use uuid::Uuid;

use recent::Recent;

/// Whole GETs under way at the same time.
const HOT_READS: usize = 64;
/// Ranged GETs under way at the same time.
const COLD_READS: usize = 32;

/// Held by who reads an object from the store; others wait for it.
type Turn = Arc<tokio::sync::Mutex<()>>;

/// The cache of a broker.
pub struct ObjectCache {
    store: SharedStore,
    objects: Mutex<Recent>,
    /// Objects that are being read.
    loading: Mutex<FastMap<Uuid, Turn>>,
    hot: Semaphore,
    cold: Semaphore,
    hits: AtomicU64,
    whole: AtomicU64,
    ranges: AtomicU64,
}

/// Look-ups since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheStats {
    /// Answered from memory.
    pub hits: u64,
    /// Objects read from the store.
    pub whole: u64,
    /// Parts of objects read from the store.
    pub ranges: u64,
    /// Bytes held now.
    pub bytes: u64,
}

impl std::fmt::Debug for ObjectCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectCache")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl ObjectCache {
    /// A cache of `capacity` bytes over `store`.
    pub fn new(store: SharedStore, capacity: u64) -> ObjectCache {
        ObjectCache {
            store,
            objects: Mutex::new(Recent::new(capacity)),
            loading: Mutex::default(),
            hot: Semaphore::new(HOT_READS),
            cold: Semaphore::new(COLD_READS),
            hits: AtomicU64::new(0),
            whole: AtomicU64::new(0),
            ranges: AtomicU64::new(0),
        }
    }

    /// Takes in an object that this broker has just written.
    pub fn insert(&self, object: Uuid, body: Vec<Bytes>) {
        self.keep(object, Arc::new(Object::written(body)));
    }

    fn keep(&self, id: Uuid, object: Arc<Object>) {
        let evicted = self.objects.lock().insert(id, object);
        // Not under the lock: megabytes go back to the allocator.
        drop(evicted);
    }

    /// The object, if it is in memory.
    pub fn cached(&self, object: Uuid) -> Option<Arc<Object>> {
        let found = self.objects.lock().get(object);
        if found.is_some() {
            self.hits.fetch_add(1, Relaxed);
        }
        found
    }

    /// Whether the object is in memory, or about to be.
    pub fn is_at_hand(&self, object: Uuid) -> bool {
        self.loading.lock().contains_key(&object) || self.objects.lock().get(object).is_some()
    }

    /// The object, read from the store under `key` if need be, once for all who ask at the same time. `size` is
    /// what its coordinates say; an object of another size is corrupt.
    pub async fn load(&self, object: Uuid, key: &str, size: u64) -> Result<Arc<Object>, BlobError> {
        if let Some(found) = self.cached(object) {
            return Ok(found);
        }
        let loading = Loading::begin(self, object);
        let _turn = loading.turn.lock().await;
        if let Some(found) = self.cached(object) {
            return Ok(found);
        }
        self.whole.fetch_add(1, Relaxed);
        let permit = self.hot.acquire().await;
        let bytes = self.store.get(key).await?;
        drop(permit);
        if bytes.len() as u64 != size {
            let text = format!("{key} has {} bytes, its coordinates say {size}", bytes.len());
            return Err(BlobError::Corrupt(text));
        }
        let found = Arc::new(Object::read(bytes));
        self.keep(object, found.clone());
        Ok(found)
    }

    /// A part of an object, past the cache.
    pub async fn read(&self, key: &str, range: Range<u64>) -> Result<Bytes, BlobError> {
        self.ranges.fetch_add(1, Relaxed);
        let permit = self.cold.acquire().await;
        let wanted = range.end.saturating_sub(range.start);
        let bytes = self.store.get_range(key, range).await?;
        drop(permit);
        if bytes.len() as u64 != wanted {
            return Err(BlobError::Corrupt(format!(
                "{key} ends before its coordinates do"
            )));
        }
        Ok(bytes)
    }

    /// Forgets an object whose bytes turned out to be wrong, so that the next reader asks the store again.
    pub fn forget(&self, object: Uuid) {
        self.objects.lock().remove(object);
    }

    /// Counts by now.
    pub fn stats(&self) -> CacheStats {
        CacheStats {
            hits: self.hits.load(Relaxed),
            whole: self.whole.load(Relaxed),
            ranges: self.ranges.load(Relaxed),
            bytes: self.objects.lock().bytes(),
        }
    }
}

/// One who asks for an object that is not in memory. The last one to leave, whether it was served or cancelled, takes
/// the entry away.
struct Loading<'a> {
    cache: &'a ObjectCache,
    object: Uuid,
    turn: Turn,
}

impl Loading<'_> {
    fn begin(cache: &ObjectCache, object: Uuid) -> Loading<'_> {
        let turn = cache.loading.lock().entry(object).or_default().clone();
        Loading { cache, object, turn }
    }
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        let mut loading = self.cache.loading.lock();
        // This one's and the map's.
        if Arc::strong_count(&self.turn) <= 2 {
            loading.remove(&self.object);
        }
    }
}

#[cfg(test)]
mod tests;
