//! A store that misbehaves as planned, for simulations.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use env::Env;

use crate::{BlobError, BlobStore, ObjectMeta, Operation, PutOutcome, SharedStore};

/// What goes wrong with one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// It fails and has no effect.
    Fail(BlobError),
    /// It has its effect, but the caller gets the error.
    LoseReply(BlobError),
    /// The caller gets the error at once; the effect comes this much later (a request stuck on the way).
    Late(Duration, BlobError),
    /// The bytes of a read come with one bit flipped; nothing happens to other requests.
    Damage,
}

/// The fate of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// How long it takes to reach the store.
    pub delay: Duration,
    /// What goes wrong then.
    pub fault: Fault,
}

impl Decision {
    /// Nothing goes wrong and no time passes.
    pub const FINE: Decision = Decision {
        delay: Duration::ZERO,
        fault: Fault::None,
    };
}

/// Decides on each request. For a repeatable run the answer may depend on nothing but a seed and the calls so far.
pub trait FaultPlan: Send + Sync {
    /// The fate of this request.
    fn decide(&self, operation: Operation, key: &str) -> Decision;
}

impl<F: Fn(Operation, &str) -> Decision + Send + Sync> FaultPlan for F {
    fn decide(&self, operation: Operation, key: &str) -> Decision {
        self(operation, key)
    }
}

/// A store whose requests suffer what a [`FaultPlan`] decides.
#[derive(Clone)]
pub struct Faulty {
    inner: SharedStore,
    env: Env,
    plan: Arc<dyn FaultPlan>,
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl Faulty {
    /// `inner` with faults. Late effects are tasks of `env`: give it one that outlives the nodes.
    pub fn new(inner: SharedStore, env: Env, plan: Arc<dyn FaultPlan>) -> Faulty {
        Faulty { inner, env, plan }
    }

    async fn suffer<T, F>(
        &self,
        operation: Operation,
        key: &str,
        request: impl FnOnce(SharedStore) -> F + Send,
    ) -> Result<T, BlobError>
    where
        F: Future<Output = Result<T, BlobError>> + Send + 'static,
        T: Damage + Send + 'static,
    {
        let Decision { delay, fault } = self.plan.decide(operation, key);
        if !delay.is_zero() {
            self.env.sleep(delay).await;
        }
        let request = request(self.inner.clone());
        match fault {
            Fault::None => request.await,
            Fault::Damage => request.await.map(Damage::damaged),
            Fault::Fail(error) => Err(error),
            Fault::LoseReply(error) => {
                let _ = request.await;
                Err(error)
            }
            Fault::Late(after, error) => {
                let env = self.env.clone();
                self.env.spawn(async move {
                    env.sleep(after).await;
                    let _ = request.await;
                });
                Err(error)
            }
        }
    }
}

/// What a damaged answer looks like.
trait Damage: Sized {
    fn damaged(self) -> Self {
        self
    }
}

impl Damage for () {}
impl Damage for PutOutcome {}
impl Damage for Option<ObjectMeta> {}
impl Damage for Vec<ObjectMeta> {}
impl Damage for Vec<(String, BlobError)> {}

impl Damage for Bytes {
    fn damaged(self) -> Bytes {
        let mut bytes = self.to_vec();
        if let Some(last) = bytes.last_mut() {
            *last ^= 1;
        }
        bytes.into()
    }
}

#[async_trait]
impl BlobStore for Faulty {
    async fn put(&self, key: &str, body: Vec<Bytes>) -> Result<(), BlobError> {
        let name = key.to_owned();
        self.suffer(Operation::Put, key, |store| async move {
            store.put(&name, body).await
        })
        .await
    }

    async fn put_file(&self, key: &str, path: &Path) -> Result<(), BlobError> {
        let (name, path) = (key.to_owned(), path.to_owned());
        let request = |store: SharedStore| async move { store.put_file(&name, &path).await };
        self.suffer(Operation::Put, key, request).await
    }

    async fn put_if_absent(&self, key: &str, body: Vec<Bytes>) -> Result<PutOutcome, BlobError> {
        let name = key.to_owned();
        let request = |store: SharedStore| async move { store.put_if_absent(&name, body).await };
        self.suffer(Operation::PutIfAbsent, key, request).await
    }

    async fn get(&self, key: &str) -> Result<Bytes, BlobError> {
        let name = key.to_owned();
        self.suffer(Operation::Get, key, |store| async move { store.get(&name).await })
            .await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, BlobError> {
        let name = key.to_owned();
        self.suffer(Operation::Get, key, |store| async move {
            store.get_range(&name, range).await
        })
        .await
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectMeta>, BlobError> {
        let name = key.to_owned();
        self.suffer(
            Operation::Head,
            key,
            |store| async move { store.head(&name).await },
        )
        .await
    }

    async fn list(
        &self,
        prefix: &str,
        start_after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ObjectMeta>, BlobError> {
        let (start, after) = (prefix.to_owned(), start_after.map(str::to_owned));
        let request = |store: SharedStore| async move { store.list(&start, after.as_deref(), limit).await };
        self.suffer(Operation::List, prefix, request).await
    }

    async fn delete_many(&self, keys: &[String]) -> Result<Vec<(String, BlobError)>, BlobError> {
        let first = keys.first().cloned().unwrap_or_default();
        let keys = keys.to_vec();
        self.suffer(Operation::Delete, &first, |store| async move {
            store.delete_many(&keys).await
        })
        .await
    }
}
