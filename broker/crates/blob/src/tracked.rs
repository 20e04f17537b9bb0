//! A store that knows what is still held of the bytes it gave, for tests of who reads how much.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use env::Env;

use crate::{BlobError, BlobStore, ObjectMeta, PutOutcome, SharedStore};

/// Bytes that reads have brought and that nobody has dropped yet. They count from the request on.
#[derive(Debug, Default)]
pub struct Held {
    now: AtomicU64,
    most: AtomicU64,
    reads: AtomicU64,
}

impl Held {
    /// Bytes held now.
    pub fn now(&self) -> u64 {
        self.now.load(Relaxed)
    }

    /// The most bytes that were held at any time.
    pub fn most(&self) -> u64 {
        self.most.load(Relaxed)
    }

    /// Reads so far.
    pub fn reads(&self) -> u64 {
        self.reads.load(Relaxed)
    }

    fn begin(self: &Arc<Self>, bytes: u64) -> Count {
        self.reads.fetch_add(1, Relaxed);
        let now = self.now.fetch_add(bytes, Relaxed) + bytes;
        self.most.fetch_max(now, Relaxed);
        Count {
            bytes,
            held: self.clone(),
        }
    }
}

/// Of one read, until it is dropped.
struct Count {
    bytes: u64,
    held: Arc<Held>,
}

impl Drop for Count {
    fn drop(&mut self) {
        self.held.now.fetch_sub(self.bytes, Relaxed);
    }
}

struct Counted {
    bytes: Bytes,
    _count: Count,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A store whose reads take their time and are counted in [`Held`].
#[derive(Debug)]
pub struct Tracked {
    inner: SharedStore,
    env: Env,
    delay: Duration,
    held: Arc<Held>,
}

impl Tracked {
    /// Reads of `inner` take `delay` each.
    pub fn new(inner: SharedStore, env: Env, delay: Duration) -> Tracked {
        Tracked {
            inner,
            env,
            delay,
            held: Arc::default(),
        }
    }

    /// What is held of it.
    pub fn held(&self) -> Arc<Held> {
        self.held.clone()
    }

    async fn count(
        &self,
        bytes: u64,
        read: impl Future<Output = Result<Bytes, BlobError>>,
    ) -> Result<Bytes, BlobError> {
        let _count = self.held.begin(bytes);
        self.env.sleep(self.delay).await;
        let bytes = read.await?;
        Ok(Bytes::from_owner(Counted { bytes, _count }))
    }
}

#[async_trait]
impl BlobStore for Tracked {
    async fn put(&self, key: &str, body: Vec<Bytes>) -> Result<(), BlobError> {
        self.inner.put(key, body).await
    }

    async fn put_file(&self, key: &str, path: &Path) -> Result<(), BlobError> {
        self.inner.put_file(key, path).await
    }

    async fn put_if_absent(&self, key: &str, body: Vec<Bytes>) -> Result<PutOutcome, BlobError> {
        self.inner.put_if_absent(key, body).await
    }

    async fn get(&self, key: &str) -> Result<Bytes, BlobError> {
        let size = self.inner.head(key).await?.map_or(0, |object| object.size);
        self.count(size, self.inner.get(key)).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, BlobError> {
        let size = range.end.saturating_sub(range.start);
        self.count(size, self.inner.get_range(key, range)).await
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectMeta>, BlobError> {
        self.inner.head(key).await
    }

    async fn list(
        &self,
        prefix: &str,
        start_after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ObjectMeta>, BlobError> {
        self.inner.list(prefix, start_after, limit).await
    }

    async fn delete_many(&self, keys: &[String]) -> Result<Vec<(String, BlobError)>, BlobError> {
        self.inner.delete_many(keys).await
    }
}
