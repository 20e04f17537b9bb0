use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use async_trait::async_trait;
use bytes::Bytes;
use env::{Env, Instant};

use crate::{BlobError, BlobStore, ObjectMeta, PutOutcome, SharedStore, body_len};

/// Upper bounds of the latency histogram in milliseconds; one more bucket holds what is slower.
pub const LATENCY_BUCKETS_MS: [u64; 14] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000,
];

/// What providers bill separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Unconditional write.
    Put,
    /// Create if absent.
    PutIfAbsent,
    /// Read of a whole object or a range.
    Get,
    /// Read of an object's metadata.
    Head,
    /// Listing.
    List,
    /// Deletion of up to 1000 objects.
    Delete,
}

impl Operation {
    /// Every operation.
    pub const ALL: [Operation; 6] = [
        Operation::Put,
        Operation::PutIfAbsent,
        Operation::Get,
        Operation::Head,
        Operation::List,
        Operation::Delete,
    ];

    /// Its name as a metric label.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Put => "put",
            Operation::PutIfAbsent => "put_if_absent",
            Operation::Get => "get",
            Operation::Head => "head",
            Operation::List => "list",
            Operation::Delete => "delete",
        }
    }
}

#[derive(Debug, Default)]
struct Counters {
    requests: AtomicU64,
    errors: AtomicU64,
    throttled: AtomicU64,
    bytes: AtomicU64,
    latency_sum_us: AtomicU64,
    latency: [AtomicU64; LATENCY_BUCKETS_MS.len() + 1],
}

/// Counts of one operation since the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationSnapshot {
    /// Which.
    pub operation: Operation,
    /// Requests that have ended, however they ended.
    pub requests: u64,
    /// Those that failed; a missing object counts as an answer, not as a failure.
    pub errors: u64,
    /// The part of `errors` that the store throttled.
    pub throttled: u64,
    /// Bytes of bodies written or read.
    pub bytes: u64,
    /// Time of all requests together, in microseconds.
    pub latency_sum_us: u64,
    /// Requests by latency, one count per bucket of [`LATENCY_BUCKETS_MS`] (not cumulative) and one for slower ones.
    pub latency: Vec<u64>,
}

/// Counters of a store.
#[derive(Debug, Default)]
pub struct Metrics {
    put: Counters,
    put_if_absent: Counters,
    get: Counters,
    head: Counters,
    list: Counters,
    delete: Counters,
}

impl Metrics {
    fn of(&self, operation: Operation) -> &Counters {
        match operation {
            Operation::Put => &self.put,
            Operation::PutIfAbsent => &self.put_if_absent,
            Operation::Get => &self.get,
            Operation::Head => &self.head,
            Operation::List => &self.list,
            Operation::Delete => &self.delete,
        }
    }

    /// The counts by now.
    pub fn snapshot(&self) -> Vec<OperationSnapshot> {
        let snapshot = |operation| {
            let counters = self.of(operation);
            OperationSnapshot {
                operation,
                requests: counters.requests.load(Relaxed),
                errors: counters.errors.load(Relaxed),
                throttled: counters.throttled.load(Relaxed),
                bytes: counters.bytes.load(Relaxed),
                latency_sum_us: counters.latency_sum_us.load(Relaxed),
                latency: counters.latency.iter().map(|count| count.load(Relaxed)).collect(),
            }
        };
        Operation::ALL.map(snapshot).to_vec()
    }
}

/// Counts every request to a store. Sits below the retries, so that repeated requests count as often as they are billed.
#[derive(Debug)]
pub struct Metered {
    inner: SharedStore,
    env: Env,
    metrics: Arc<Metrics>,
}

impl Metered {
    /// Counts the requests to `inner` in `metrics`.
    pub fn new(inner: SharedStore, env: Env, metrics: Arc<Metrics>) -> Metered {
        Metered { inner, env, metrics }
    }

    fn count<T>(
        &self,
        operation: Operation,
        since: Instant,
        requests: u64,
        bytes: u64,
        result: &Result<T, BlobError>,
    ) {
        let took = self.env.instant().saturating_duration_since(since);
        let counters = self.metrics.of(operation);
        counters.requests.fetch_add(requests, Relaxed);
        counters.bytes.fetch_add(bytes, Relaxed);
        counters
            .latency_sum_us
            .fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Relaxed);
        let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let bucket = LATENCY_BUCKETS_MS
            .iter()
            .position(|bound| ms <= *bound)
            .unwrap_or(LATENCY_BUCKETS_MS.len());
        if let Some(count) = counters.latency.get(bucket) {
            count.fetch_add(1, Relaxed);
        }
        match result {
            Ok(_) | Err(BlobError::NotFound(_)) => {}
            Err(error) => {
                counters.errors.fetch_add(1, Relaxed);
                if matches!(error, BlobError::Throttled(_)) {
                    counters.throttled.fetch_add(1, Relaxed);
                }
            }
        }
    }
}

fn read_len(result: &Result<Bytes, BlobError>) -> u64 {
    result.as_ref().map_or(0, |bytes| bytes.len() as u64)
}

#[async_trait]
impl BlobStore for Metered {
    async fn put(&self, key: &str, body: Vec<Bytes>) -> Result<(), BlobError> {
        let (since, bytes) = (self.env.instant(), body_len(&body));
        let result = self.inner.put(key, body).await;
        self.count(Operation::Put, since, 1, bytes, &result);
        result
    }

    async fn put_file(&self, key: &str, path: &Path) -> Result<(), BlobError> {
        let bytes = std::fs::metadata(path).map_or(0, |file| file.len());
        let since = self.env.instant();
        let result = self.inner.put_file(key, path).await;
        self.count(Operation::Put, since, 1, bytes, &result);
        result
    }

    async fn put_if_absent(&self, key: &str, body: Vec<Bytes>) -> Result<PutOutcome, BlobError> {
        let (since, bytes) = (self.env.instant(), body_len(&body));
        let result = self.inner.put_if_absent(key, body).await;
        self.count(Operation::PutIfAbsent, since, 1, bytes, &result);
        result
    }

    async fn get(&self, key: &str) -> Result<Bytes, BlobError> {
        let since = self.env.instant();
        let result = self.inner.get(key).await;
        self.count(Operation::Get, since, 1, read_len(&result), &result);
        result
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, BlobError> {
        let since = self.env.instant();
        let result = self.inner.get_range(key, range).await;
        self.count(Operation::Get, since, 1, read_len(&result), &result);
        result
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectMeta>, BlobError> {
        let since = self.env.instant();
        let result = self.inner.head(key).await;
        self.count(Operation::Head, since, 1, 0, &result);
        result
    }

    async fn list(
        &self,
        prefix: &str,
        start_after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ObjectMeta>, BlobError> {
        let since = self.env.instant();
        let result = self.inner.list(prefix, start_after, limit).await;
        let pages = result
            .as_ref()
            .map_or(1, |found| found.len().div_ceil(1000).max(limit.min(1)));
        self.count(Operation::List, since, pages as u64, 0, &result);
        result
    }

    async fn delete_many(&self, keys: &[String]) -> Result<Vec<(String, BlobError)>, BlobError> {
        let since = self.env.instant();
        let result = self.inner.delete_many(keys).await;
        self.count(
            Operation::Delete,
            since,
            keys.len().div_ceil(1000) as u64,
            0,
            &result,
        );
        result
    }
}
