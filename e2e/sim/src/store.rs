//! The object store of a run: in memory, behind a network that can be cut, with faults on every verb.
//!
//! A request that has left its node takes effect whatever becomes of the node: it may be paused, killed or cut off while
//! the store works. So effects are tasks of the bucket, not of the node.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use blob::{BlobError, BlobStore, MemoryStore, ObjectMeta, Operation, PutOutcome};
use bytes::Bytes;
use env::{Env, Instant, SimNet};
use parking_lot::Mutex;

use crate::lab::Trace;

/// The bucket's name as a host.
pub(crate) const BUCKET: &str = "bucket";

/// All operations, for faults that hit one of them.
pub(crate) const OPERATIONS: [Operation; 6] = [
    Operation::Put,
    Operation::PutIfAbsent,
    Operation::Get,
    Operation::Head,
    Operation::List,
    Operation::Delete,
];

/// What all nodes share.
pub(crate) struct Bucket {
    env: Env,
    net: SimNet,
    memory: MemoryStore,
    weather: Mutex<Weather>,
    trace: Trace,
}

#[derive(Default)]
struct Weather {
    /// Now and then a request fails, loses its answer, hangs, or comes twice.
    drizzle: bool,
    /// One operation fails or crawls for some time.
    storms: Vec<(Operation, Storm)>,
    /// Objects that were read with a wrong bit.
    damaged: BTreeSet<String>,
    /// What must not have happened.
    broken: Vec<String>,
}

/// Trouble with one operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Storm {
    pub(crate) until: Instant,
    /// Per cent of the requests that fail.
    pub(crate) failing: u64,
    /// How much longer each takes.
    pub(crate) slow: Duration,
}

/// What becomes of one request.
struct Fate {
    delay: Duration,
    /// It does not come to the store.
    refused: Option<BlobError>,
    /// It has its effect, but the caller gets this.
    answer_lost: Option<BlobError>,
    /// The caller does not wait for the effect.
    late: bool,
    /// It has its effect again, so much later.
    again: Option<Duration>,
    /// Of a deletion of many a part fails; of a reading one bit is wrong.
    spoilt: bool,
}

impl Bucket {
    pub(crate) fn new(env: Env, net: SimNet, trace: Trace) -> Arc<Bucket> {
        Arc::new(Bucket {
            memory: MemoryStore::new(env.clone()),
            env,
            net,
            weather: Mutex::default(),
            trace,
        })
    }

    /// Turns the small faults on or off; off ends storms, too.
    pub(crate) fn drizzle(&self, on: bool) {
        let mut weather = self.weather.lock();
        weather.drizzle = on;
        weather.storms.clear();
    }

    pub(crate) fn storm(&self, operation: Operation, storm: Storm) {
        self.weather.lock().storms.push((operation, storm));
    }

    /// What must not have happened.
    pub(crate) fn broken(&self) -> Vec<String> {
        self.weather.lock().broken.clone()
    }

    /// Keys of the WAL objects that are there.
    pub(crate) async fn objects(&self) -> Vec<String> {
        let listed = self.memory.list(wal::PREFIX, None, usize::MAX).await;
        listed
            .unwrap_or_default()
            .into_iter()
            .map(|object| object.key)
            .collect()
    }

    /// The store as the node `host` sees it.
    pub(crate) fn seen_from(self: &Arc<Self>, host: &str) -> View {
        View {
            bucket: self.clone(),
            host: host.to_owned(),
        }
    }

    /// What comes of a read that is spoilt: bytes of WAL objects carry checksums of their producers, wherever they have been.
    fn damaged(&self, key: &str, bytes: Bytes, spoilt: bool) -> Bytes {
        if !spoilt || !key.starts_with(wal::PREFIX) || bytes.is_empty() {
            return bytes;
        }
        let mut bytes = bytes.to_vec();
        let at = self.env.random_below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << self.env.random_below(8);
        bytes.into()
    }

    fn fate(&self, operation: Operation, key: &str) -> Fate {
        let env = &self.env;
        let mut fate = Fate {
            delay: Duration::from_micros(2_000 + env.random_below(15_000)),
            refused: None,
            answer_lost: None,
            late: false,
            again: None,
            spoilt: false,
        };
        let mut weather = self.weather.lock();
        if !weather.drizzle {
            return fate;
        }
        let error = |what: &str| BlobError::Unavailable(format!("simulated: {what} of {operation:?} {key}"));
        match env.random_below(1_000) {
            0..8 => fate.refused = Some(error("failure")),
            8..12 => fate.refused = Some(BlobError::Throttled(format!("simulated: {key}"))),
            12..24 => fate.answer_lost = Some(error("lost answer")),
            24..30 => {
                fate.late = true;
                fate.delay = Duration::from_millis(env.random_below(4_000));
                fate.answer_lost = Some(error("lost and late request"));
            }
            30..40 => fate.delay += Duration::from_millis(env.random_below(2_500)),
            40..60 => fate.again = Some(Duration::from_millis(env.random_below(5_000))),
            // Both are rare. Who reads an object again that came damaged gets it as it is.
            60..100 if operation == Operation::Get => {
                fate.spoilt = weather.damaged.insert(key.to_owned());
            }
            100..300 => fate.spoilt = operation == Operation::Delete,
            _ => {}
        }
        let now = env.instant();
        weather.storms.retain(|(_, storm)| storm.until > now);
        for (_, storm) in weather.storms.iter().filter(|(stormy, _)| *stormy == operation) {
            fate.delay += storm.slow;
            if env.random_below(100) < storm.failing {
                fate.refused = Some(error("outage"));
            }
        }
        fate
    }
}

/// The store as one node sees it.
pub(crate) struct View {
    bucket: Arc<Bucket>,
    host: String,
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bucket seen from {}", self.host)
    }
}

impl View {
    async fn request<T, F>(
        &self,
        operation: Operation,
        key: &str,
        effect: impl Fn(Arc<Bucket>, bool) -> F + Send + 'static,
    ) -> Result<T, BlobError>
    where
        F: Future<Output = Result<T, BlobError>> + Send + 'static,
        T: Send + 'static,
    {
        let bucket = self.bucket.clone();
        let cut = |from: &str, to: &str| self.bucket.net.is_cut(from, to);
        let timeout = async || {
            let patience = Duration::from_millis(1_000 + self.bucket.env.random_below(2_000));
            self.bucket.env.sleep(patience).await;
            Err(BlobError::Timeout(format!("simulated: {operation:?} {key}")))
        };
        if cut(&self.host, BUCKET) {
            return timeout().await;
        }
        let fate = self.bucket.fate(operation, key);
        if let Some(error) = fate.refused {
            self.bucket.env.sleep(fate.delay).await;
            return Err(error);
        }
        let (delay, again, spoilt) = (fate.delay, fate.again, fate.spoilt);
        let working = self.bucket.env.spawn(async move {
            bucket.env.sleep(delay).await;
            let result = effect(bucket.clone(), spoilt).await;
            if let Some(after) = again {
                let copy = bucket.clone();
                bucket.env.spawn(async move {
                    copy.env.sleep(after).await;
                    let _ = effect(copy.clone(), false).await;
                });
            }
            result
        });
        if !fate.late {
            let result = working.await;
            if cut(BUCKET, &self.host) {
                return timeout().await;
            }
            if let (None, Some(result)) = (&fate.answer_lost, result) {
                return result;
            }
        }
        Err(fate
            .answer_lost
            .unwrap_or_else(|| BlobError::Unavailable("the run is over".to_owned())))
    }

    /// Coordinates name only what was written, and it is deleted only when nobody can read it any more.
    fn missing<T>(&self, key: &str, result: &Result<T, BlobError>) {
        if key.starts_with(wal::PREFIX) && matches!(result, Err(BlobError::NotFound(_))) {
            let what = format!("{} reads {key}, which is not there", self.host);
            self.bucket.trace.add(&self.bucket.env, &what);
            let mut weather = self.bucket.weather.lock();
            if !weather.broken.contains(&what) {
                weather.broken.push(what);
            }
        }
    }
}

#[async_trait]
impl BlobStore for View {
    async fn put(&self, key: &str, body: Vec<Bytes>) -> Result<(), BlobError> {
        let name = key.to_owned();
        let effect = move |bucket: Arc<Bucket>, _| {
            let (name, body) = (name.clone(), body.clone());
            async move { bucket.memory.put(&name, body).await }
        };
        self.request(Operation::Put, key, effect).await
    }

    /// The bytes are taken as the request is made: the file may be gone when a copy of the request arrives.
    async fn put_file(&self, key: &str, path: &Path) -> Result<(), BlobError> {
        let read = std::fs::read(path);
        let body = read.map_err(|error| BlobError::Unavailable(format!("{}: {error}", path.display())))?;
        self.put(key, vec![body.into()]).await
    }

    async fn put_if_absent(&self, key: &str, body: Vec<Bytes>) -> Result<PutOutcome, BlobError> {
        let name = key.to_owned();
        let effect = move |bucket: Arc<Bucket>, _| {
            let (name, body) = (name.clone(), body.clone());
            async move { bucket.memory.put_if_absent(&name, body).await }
        };
        self.request(Operation::PutIfAbsent, key, effect).await
    }

    async fn get(&self, key: &str) -> Result<Bytes, BlobError> {
        let name = key.to_owned();
        let effect = move |bucket: Arc<Bucket>, spoilt| {
            let name = name.clone();
            async move { Ok(bucket.damaged(&name, bucket.memory.get(&name).await?, spoilt)) }
        };
        let result = self.request(Operation::Get, key, effect).await;
        self.missing(key, &result);
        result
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, BlobError> {
        let name = key.to_owned();
        let effect = move |bucket: Arc<Bucket>, spoilt| {
            let (name, range) = (name.clone(), range.clone());
            async move { Ok(bucket.damaged(&name, bucket.memory.get_range(&name, range).await?, spoilt)) }
        };
        let result = self.request(Operation::Get, key, effect).await;
        self.missing(key, &result);
        result
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectMeta>, BlobError> {
        let name = key.to_owned();
        let effect = move |bucket: Arc<Bucket>, _| {
            let name = name.clone();
            async move { bucket.memory.head(&name).await }
        };
        self.request(Operation::Head, key, effect).await
    }

    async fn list(
        &self,
        prefix: &str,
        start_after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ObjectMeta>, BlobError> {
        let (start, after) = (prefix.to_owned(), start_after.map(str::to_owned));
        let effect = move |bucket: Arc<Bucket>, _| {
            let (start, after) = (start.clone(), after.clone());
            async move { bucket.memory.list(&start, after.as_deref(), limit).await }
        };
        self.request(Operation::List, prefix, effect).await
    }

    async fn delete_many(&self, keys: &[String]) -> Result<Vec<(String, BlobError)>, BlobError> {
        let first = keys.first().cloned().unwrap_or_default();
        let keys = keys.to_vec();
        let effect = move |bucket: Arc<Bucket>, spoilt: bool| {
            let keys = keys.clone();
            async move {
                let (now, later) = keys.split_at(if spoilt { keys.len() / 2 } else { keys.len() });
                let mut failed = bucket.memory.delete_many(now).await?;
                let refused = |key: &String| (key.clone(), BlobError::Throttled(format!("simulated: {key}")));
                failed.extend(later.iter().map(refused));
                Ok(failed)
            }
        };
        self.request(Operation::Delete, &first, effect).await
    }
}
