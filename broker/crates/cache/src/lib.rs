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
//! behind reads each byte once: its reads go past the cache, and have room of their own (and in a broker a store with
//! paces of its own), so that a back-fill neither evicts what the tail needs nor holds its requests up.
//!
//! What is on its way in is bounded in bytes, for each of the two kinds: many readers make a queue, not a heap of objects.
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
use tokio::sync::{Semaphore, SemaphorePermit};
use types::FastMap;
use uuid::Uuid;

use recent::Recent;

/// Most whole GETs under way at the same time.
const HOT_READS: u32 = 64;
/// Most ranged GETs under way at the same time.
const COLD_READS: u32 = 32;
/// What they bring is bounded to this part of the cache's size, each kind for itself…
const ARRIVING: u64 = 8;
/// …within these bounds, in bytes. One object of the largest usual size fits in any case.
const ARRIVING_MIN: u64 = 4 << 20;
const ARRIVING_MAX: u64 = 64 << 20;

/// Held by who reads an object from the store; others wait for it.
type Turn = Arc<tokio::sync::Mutex<()>>;

/// The cache of a broker.
pub struct ObjectCache {
    store: SharedStore,
    cold_store: SharedStore,
    objects: Mutex<Recent>,
    /// Objects that are being read.
    loading: Mutex<FastMap<Uuid, Turn>>,
    hot: Arrivals,
    cold: Arrivals,
    hits: AtomicU64,
    whole: AtomicU64,
    ranges: AtomicU64,
}

/// Room for the reads of a kind. It bounds their bytes and, since none takes less than its share, their number.
struct Arrivals {
    room: Semaphore,
    all: u32,
    least: u32,
}

impl Arrivals {
    fn new(capacity: u64, reads: u32) -> Arrivals {
        let all = (capacity / ARRIVING).clamp(ARRIVING_MIN, ARRIVING_MAX);
        let all = u32::try_from(all).unwrap_or(u32::MAX);
        Arrivals {
            room: Semaphore::new(all as usize),
            all,
            least: all / reads,
        }
    }

    /// Waits until there is room for `bytes`; more than there is altogether takes all of it. Never `None`.
    async fn enter(&self, bytes: u64) -> Option<SemaphorePermit<'_>> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.room
            .acquire_many(bytes.clamp(self.least, self.all))
            .await
            .ok()
    }
}

/// A part of an object that was read past the cache. It counts as under way until it is dropped, so whoever keeps some of
/// it longer counts that otherwise.
#[derive(Debug)]
pub struct Part<'a> {
    /// Its bytes.
    pub bytes: Bytes,
    _room: Option<SemaphorePermit<'a>>,
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
            cold_store: store.clone(),
            store,
            objects: Mutex::new(Recent::new(capacity)),
            loading: Mutex::default(),
            hot: Arrivals::new(capacity, HOT_READS),
            cold: Arrivals::new(capacity, COLD_READS),
            hits: AtomicU64::new(0),
            whole: AtomicU64::new(0),
            ranges: AtomicU64::new(0),
        }
    }

    /// The same, but ranges are read from `store`: what slows those down does not slow down the tail.
    pub fn with_cold_store(self, store: SharedStore) -> ObjectCache {
        ObjectCache {
            cold_store: store,
            ..self
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
        let room = self.hot.enter(size).await;
        let bytes = self.store.get(key).await?;
        if bytes.len() as u64 != size {
            let text = format!("{key} has {} bytes, its coordinates say {size}", bytes.len());
            return Err(BlobError::Corrupt(text));
        }
        let found = Arc::new(Object::read(bytes));
        self.keep(object, found.clone());
        drop(room);
        Ok(found)
    }

    /// A part of an object, past the cache.
    pub async fn read(&self, key: &str, range: Range<u64>) -> Result<Part<'_>, BlobError> {
        self.ranges.fetch_add(1, Relaxed);
        let wanted = range.end.saturating_sub(range.start);
        let room = self.cold.enter(wanted).await;
        let bytes = self.cold_store.get_range(key, range).await?;
        if bytes.len() as u64 != wanted {
            return Err(BlobError::Corrupt(format!(
                "{key} ends before its coordinates do"
            )));
        }
        Ok(Part { bytes, _room: room })
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
