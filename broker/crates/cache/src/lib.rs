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
//! Readers at the tail of the log read the same few objects; one whole GET serves them all. A reader that is far
//! behind reads each byte once: its reads go past the cache, and have permits of their own, so that a back-fill
//! neither evicts what the tail needs nor holds its requests up.
//!
//! Objects are immutable and named by a UUID, so nothing ever has to be invalidated but what was read corrupt.

mod object;

pub use object::Object;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use blob::{BlobError, SharedStore};
use bytes::Bytes;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};
use tokio::sync::Semaphore;
use types::fast::Fnv;
use uuid::Uuid;

/// Whole GETs under way at the same time.
const HOT_READS: usize = 64;
/// Ranged GETs under way at the same time.
const COLD_READS: usize = 32;
/// What an object is thought to weigh when the cache is set up, in bytes.
const TYPICAL_OBJECT: u64 = 1 << 20;

type Hasher = std::hash::BuildHasherDefault<Fnv>;

#[derive(Clone)]
struct BySize;

impl Weighter<Uuid, Arc<Object>> for BySize {
    fn weight(&self, _: &Uuid, object: &Arc<Object>) -> u64 {
        object.size().max(1)
    }
}

/// The cache of a broker.
pub struct ObjectCache {
    store: SharedStore,
    objects: Cache<Uuid, Arc<Object>, BySize, Hasher>,
    hot: Semaphore,
    cold: Semaphore,
    hits: AtomicU64,
    misses: AtomicU64,
}

/// Look-ups since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheStats {
    /// Answered from memory.
    pub hits: u64,
    /// Answered by the object store.
    pub misses: u64,
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
        let items = usize::try_from(capacity / TYPICAL_OBJECT)
            .unwrap_or(usize::MAX)
            .max(16);
        // One shard: an object may be as large as a good part of the cache, and it is looked up once per fetch and
        // object, which no lock minds.
        let options = OptionsBuilder::new()
            .shards(1)
            .estimated_items_capacity(items)
            .weight_capacity(capacity)
            .build();
        let (hasher, lifecycle) = (Hasher::default(), DefaultLifecycle::default());
        let objects = match options {
            Ok(options) => Cache::with_options(options, BySize, hasher, lifecycle),
            // Only when items or weight are missing.
            Err(_) => Cache::with(items, capacity, BySize, hasher, lifecycle),
        };
        ObjectCache {
            store,
            objects,
            hot: Semaphore::new(HOT_READS),
            cold: Semaphore::new(COLD_READS),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// Takes in an object that this broker has just written.
    pub fn insert(&self, object: Uuid, body: Vec<Bytes>) {
        self.objects.insert(object, Arc::new(Object::written(body)));
    }

    /// The object, if it is in memory.
    pub fn cached(&self, object: Uuid) -> Option<Arc<Object>> {
        let found = self.objects.get(&object);
        if found.is_some() {
            self.hits.fetch_add(1, Relaxed);
        }
        found
    }

    /// The object, read from the store under `key` if need be, once for all who ask at the same time. `size` is
    /// what its coordinates say; an object of another size is corrupt.
    pub async fn load(&self, object: Uuid, key: &str, size: u64) -> Result<Arc<Object>, BlobError> {
        let guard = match self.objects.get_value_or_guard_async(&object).await {
            Ok(found) => {
                self.hits.fetch_add(1, Relaxed);
                return Ok(found);
            }
            Err(guard) => guard,
        };
        self.misses.fetch_add(1, Relaxed);
        let permit = self.hot.acquire().await;
        let bytes = self.store.get(key).await?;
        drop(permit);
        if bytes.len() as u64 != size {
            let text = format!("{key} has {} bytes, its coordinates say {size}", bytes.len());
            return Err(BlobError::Corrupt(text));
        }
        let found = Arc::new(Object::read(bytes));
        // Refused only if the placeholder was replaced meanwhile: then the object is there already.
        let _ = guard.insert(found.clone());
        Ok(found)
    }

    /// A part of an object, past the cache.
    pub async fn read(&self, key: &str, range: Range<u64>) -> Result<Bytes, BlobError> {
        self.misses.fetch_add(1, Relaxed);
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
        self.objects.remove(&object);
    }

    /// Counts by now.
    pub fn stats(&self) -> CacheStats {
        CacheStats {
            hits: self.hits.load(Relaxed),
            misses: self.misses.load(Relaxed),
            bytes: self.objects.weight(),
        }
    }
}

#[cfg(test)]
mod tests;
