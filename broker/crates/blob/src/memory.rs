use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::path::Path;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use env::Env;
use parking_lot::Mutex;
use types::Timestamp;

use crate::key::{check_key, check_prefix};
use crate::{BlobError, BlobStore, ObjectMeta, PutOutcome};

/// A store in memory, for tests and simulations: what happens to it depends on nothing but its calls.
#[derive(Debug)]
pub struct MemoryStore {
    env: Env,
    objects: Mutex<BTreeMap<String, (Bytes, Timestamp)>>,
}

impl MemoryStore {
    /// An empty store; `env` gives objects their age.
    pub fn new(env: Env) -> MemoryStore {
        MemoryStore {
            env,
            objects: Mutex::new(BTreeMap::new()),
        }
    }
}

fn join(body: Vec<Bytes>) -> Bytes {
    let mut joined = BytesMut::new();
    for slice in &body {
        joined.extend_from_slice(slice);
    }
    joined.freeze()
}

fn meta(key: &str, bytes: &Bytes, at: Timestamp) -> ObjectMeta {
    ObjectMeta {
        key: key.to_owned(),
        size: bytes.len() as u64,
        last_modified: at,
    }
}

#[async_trait]
impl BlobStore for MemoryStore {
    async fn put(&self, key: &str, body: Vec<Bytes>) -> Result<(), BlobError> {
        check_key(key)?;
        self.objects
            .lock()
            .insert(key.to_owned(), (join(body), self.env.now()));
        Ok(())
    }

    async fn put_file(&self, key: &str, path: &Path) -> Result<(), BlobError> {
        let file = path.to_owned();
        let read = self.env.blocking(move || std::fs::read(&file)).await;
        let body = read.map_err(|error| BlobError::Unavailable(format!("{}: {error}", path.display())))?;
        self.put(key, vec![body.into()]).await
    }

    async fn put_if_absent(&self, key: &str, body: Vec<Bytes>) -> Result<PutOutcome, BlobError> {
        check_key(key)?;
        let mut objects = self.objects.lock();
        if objects.contains_key(key) {
            return Ok(PutOutcome::Exists);
        }
        objects.insert(key.to_owned(), (join(body), self.env.now()));
        Ok(PutOutcome::Created)
    }

    async fn get(&self, key: &str) -> Result<Bytes, BlobError> {
        check_key(key)?;
        let objects = self.objects.lock();
        objects
            .get(key)
            .map(|(bytes, _)| bytes.clone())
            .ok_or_else(|| BlobError::NotFound(key.to_owned()))
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, BlobError> {
        let bytes = self.get(key).await?;
        let clamp = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
        let (start, end) = (clamp(range.start), clamp(range.end));
        Ok(bytes.slice(start..end.max(start)))
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectMeta>, BlobError> {
        check_key(key)?;
        Ok(self
            .objects
            .lock()
            .get(key)
            .map(|(bytes, at)| meta(key, bytes, *at)))
    }

    async fn list(
        &self,
        prefix: &str,
        start_after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ObjectMeta>, BlobError> {
        check_prefix(prefix)?;
        let from = match start_after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let objects = self.objects.lock();
        let found = objects.range::<str, _>((from, Bound::Unbounded));
        let found = found.take_while(|(key, _)| key.starts_with(prefix)).take(limit);
        Ok(found.map(|(key, (bytes, at))| meta(key, bytes, *at)).collect())
    }

    async fn delete_many(&self, keys: &[String]) -> Result<Vec<(String, BlobError)>, BlobError> {
        let mut objects = self.objects.lock();
        for key in keys {
            objects.remove(key);
        }
        Ok(Vec::new())
    }
}
