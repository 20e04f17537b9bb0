use std::future::Future;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use env::Env;

use crate::pace::Pace;
use crate::{BlobError, BlobStore, ObjectMeta, Operation, PutOutcome, SharedStore};

const ATTEMPTS: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// Repeats failed requests a few times with growing, jittered pauses, and sends fewer of a kind while the store
/// throttles them ([`Pace`]). Who must not be slowed down by others has one of its own.
///
/// The one request that is not repeated is a create whose outcome is unknown: the second try could meet the
/// object of the first and call it somebody else's. Its caller must look.
#[derive(Debug)]
pub struct Retrying {
    inner: SharedStore,
    env: Env,
    /// By [`Operation`]: stores limit reads and writes apart, and throttled deletions must not hold up anything else.
    paces: [Pace; Operation::ALL.len()],
}

impl Retrying {
    /// Repeats requests to `inner`.
    pub fn new(inner: SharedStore, env: Env) -> Retrying {
        Retrying {
            inner,
            env,
            paces: Default::default(),
        }
    }

    async fn repeat<T, F>(
        &self,
        operation: Operation,
        may_repeat: impl Fn(&BlobError) -> bool + Send,
        mut attempt: impl FnMut() -> F + Send,
    ) -> Result<T, BlobError>
    where
        F: Future<Output = Result<T, BlobError>> + Send,
        T: Send,
    {
        let mut pause = FIRST_PAUSE;
        for _ in 1..ATTEMPTS {
            match self.once(operation, attempt()).await {
                Err(error) if may_repeat(&error) => {
                    tracing::debug!(%error, "object store request is tried again");
                    self.env.sleep(self.env.jittered(pause)).await;
                    pause *= 3;
                }
                result => return result,
            }
        }
        self.once(operation, attempt()).await
    }

    async fn once<T>(
        &self,
        operation: Operation,
        attempt: impl Future<Output = Result<T, BlobError>> + Send,
    ) -> Result<T, BlobError> {
        let Some(pace) = self.paces.get(operation as usize) else {
            return attempt.await;
        };
        pace.wait(&self.env).await;
        let began = self.env.instant();
        let result = attempt.await;
        match &result {
            Ok(_) => pace.succeeded(began),
            Err(BlobError::Throttled(_)) => pace.throttled(began, self.env.instant()),
            Err(_) => {}
        }
        result
    }
}

#[async_trait]
impl BlobStore for Retrying {
    async fn put(&self, key: &str, body: Vec<Bytes>) -> Result<(), BlobError> {
        self.repeat(Operation::Put, BlobError::is_transient, || {
            self.inner.put(key, body.clone())
        })
        .await
    }

    async fn put_file(&self, key: &str, path: &Path) -> Result<(), BlobError> {
        self.repeat(Operation::Put, BlobError::is_transient, || {
            self.inner.put_file(key, path)
        })
        .await
    }

    async fn put_if_absent(&self, key: &str, body: Vec<Bytes>) -> Result<PutOutcome, BlobError> {
        let not_done = |error: &BlobError| error.is_transient() && !error.outcome_unknown();
        self.repeat(Operation::PutIfAbsent, not_done, || {
            self.inner.put_if_absent(key, body.clone())
        })
        .await
    }

    async fn get(&self, key: &str) -> Result<Bytes, BlobError> {
        self.repeat(Operation::Get, BlobError::is_transient, || self.inner.get(key))
            .await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, BlobError> {
        self.repeat(Operation::Get, BlobError::is_transient, || {
            self.inner.get_range(key, range.clone())
        })
        .await
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectMeta>, BlobError> {
        self.repeat(Operation::Head, BlobError::is_transient, || self.inner.head(key))
            .await
    }

    async fn list(
        &self,
        prefix: &str,
        start_after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ObjectMeta>, BlobError> {
        self.repeat(Operation::List, BlobError::is_transient, || {
            self.inner.list(prefix, start_after, limit)
        })
        .await
    }

    async fn delete_many(&self, keys: &[String]) -> Result<Vec<(String, BlobError)>, BlobError> {
        self.repeat(Operation::Delete, BlobError::is_transient, || {
            self.inner.delete_many(keys)
        })
        .await
    }
}
