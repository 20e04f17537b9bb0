//! The stores of this crate under the conformance suite, and what the layers around them promise.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "helpers of tests"
)]

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use blob::faults::{Decision, Fault, Faulty};
use blob::{
    BlobError, BlobStore, MemoryStore, Metered, Metrics, ObjectMeta, Operation, ProbeError, PutOutcome,
    Retrying, conformance, probe,
};
use bytes::Bytes;
use env::Env;
use parking_lot::Mutex;

#[tokio::test]
async fn memory_conforms() {
    let env = Env::simulated(1);
    conformance::run(&MemoryStore::new(env.clone()), &env)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn local_folder_conforms_and_passes_the_probe() {
    let root = tempfile::tempdir().unwrap();
    let env = Env::production();
    let url = format!("file://{}/new/folder", root.path().display());
    let opened = blob::open(&url, None, env.clone()).await.unwrap();
    conformance::run(&*opened.store, &env).await.unwrap();
    probe(&*opened.store, &env).await.unwrap();
    assert_eq!(
        opened.store.list("", None, 10).await.unwrap(),
        vec![],
        "the probe leaves nothing behind"
    );
}

#[tokio::test]
async fn a_store_opened_twice_shows_the_same_objects() {
    let root = tempfile::tempdir().unwrap();
    let env = Env::production();
    let url = format!("file://{}", root.path().display());
    let first = blob::open(&url, None, env.clone()).await.unwrap().store;
    first.put("a/b", vec![Bytes::from_static(b"x")]).await.unwrap();
    let second = blob::open(&url, None, env).await.unwrap().store;
    assert_eq!(second.get("a/b").await.unwrap(), "x");
    assert_eq!(
        second.put_if_absent("a/b", vec![]).await.unwrap(),
        PutOutcome::Exists
    );
}

/// Checks, then writes: what a store does that only pretends to have conditional writes.
#[derive(Debug)]
struct NotAtomic {
    env: Env,
    inner: MemoryStore,
}

#[async_trait]
impl BlobStore for NotAtomic {
    async fn put(&self, key: &str, body: Vec<Bytes>) -> Result<(), BlobError> {
        self.inner.put(key, body).await
    }
    async fn put_file(&self, key: &str, path: &Path) -> Result<(), BlobError> {
        self.inner.put_file(key, path).await
    }
    async fn put_if_absent(&self, key: &str, body: Vec<Bytes>) -> Result<PutOutcome, BlobError> {
        if self.inner.head(key).await?.is_some() {
            return Ok(PutOutcome::Exists);
        }
        self.env.sleep(Duration::from_millis(1)).await;
        self.inner.put(key, body).await.map(|()| PutOutcome::Created)
    }
    async fn get(&self, key: &str) -> Result<Bytes, BlobError> {
        self.inner.get(key).await
    }
    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, BlobError> {
        self.inner.get_range(key, range).await
    }
    async fn head(&self, key: &str) -> Result<Option<ObjectMeta>, BlobError> {
        self.inner.head(key).await
    }
    async fn list(&self, p: &str, after: Option<&str>, limit: usize) -> Result<Vec<ObjectMeta>, BlobError> {
        self.inner.list(p, after, limit).await
    }
    async fn delete_many(&self, keys: &[String]) -> Result<Vec<(String, BlobError)>, BlobError> {
        self.inner.delete_many(keys).await
    }
}

#[tokio::test(start_paused = true)]
async fn the_probe_and_the_suite_refuse_a_store_that_is_not_atomic() {
    let env = Env::simulated(1);
    let store = NotAtomic {
        env: env.clone(),
        inner: MemoryStore::new(env.clone()),
    };
    let error = probe(&store, &env).await.unwrap_err();
    assert!(
        matches!(error, ProbeError::NotAtomic { winners: 4, .. }),
        "{error}"
    );
    assert!(error.to_string().contains("probe/"), "the key is named: {error}");
    assert_eq!(
        store.list("", None, 10).await.unwrap(),
        vec![],
        "nothing is left behind"
    );
    assert!(
        conformance::run(&store, &env)
            .await
            .unwrap_err()
            .contains("created twice")
    );
}

/// A memory store whose requests suffer, in order, the given faults, and are fine after that.
fn failing(env: &Env, faults: Vec<Fault>) -> (Arc<MemoryStore>, Faulty) {
    let inner = Arc::new(MemoryStore::new(env.clone()));
    let left = Mutex::new(faults.into_iter());
    let plan = move |_: Operation, _: &str| {
        let fault = left.lock().next().unwrap_or(Fault::None);
        Decision {
            delay: Duration::ZERO,
            fault,
        }
    };
    (inner.clone(), Faulty::new(inner, env.clone(), Arc::new(plan)))
}

fn unavailable() -> BlobError {
    BlobError::Unavailable("down".to_owned())
}

#[tokio::test(start_paused = true)]
async fn the_probe_says_what_failed() {
    let env = Env::simulated(1);
    let denied = || BlobError::Denied("bucket b".to_owned());
    let (_, store) = failing(&env, vec![Fault::Fail(denied()); 100]);
    let error = probe(&store, &env).await.unwrap_err();
    assert_eq!(
        error,
        ProbeError::Failed {
            step: "create an object",
            error: denied()
        }
    );

    let (_, store) = failing(&env, vec![Fault::Fail(unavailable()); 100]);
    let error = probe(&store, &env).await.unwrap_err();
    assert_eq!(
        error,
        ProbeError::Failed {
            step: "create an object",
            error: unavailable()
        }
    );

    // A reply lost in the race is no proof against the store.
    let (_, store) = failing(&env, vec![Fault::LoseReply(unavailable())]);
    assert_eq!(probe(&store, &env).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn requests_are_repeated_but_not_an_ambiguous_create() {
    let env = Env::simulated(1);
    let body = vec![Bytes::from_static(b"ab"), Bytes::from_static(b"c")];

    let (inner, store) = failing(
        &env,
        vec![Fault::Fail(unavailable()), Fault::LoseReply(unavailable())],
    );
    let store = Retrying::new(Arc::new(store), env.clone());
    store.put("k", body.clone()).await.unwrap();
    assert_eq!(inner.get("k").await.unwrap(), "abc", "the repeated body is whole");

    let (inner, store) = failing(&env, vec![Fault::LoseReply(unavailable())]);
    let store = Retrying::new(Arc::new(store), env.clone());
    assert_eq!(store.put_if_absent("k", body.clone()).await, Err(unavailable()));
    assert_eq!(inner.get("k").await.unwrap(), "abc");

    let throttled = BlobError::Throttled("slow down".to_owned());
    let (inner, store) = failing(&env, vec![Fault::Fail(throttled); 2]);
    let store = Retrying::new(Arc::new(store), env.clone());
    assert_eq!(
        store.put_if_absent("k", body.clone()).await,
        Ok(PutOutcome::Created)
    );
    assert_eq!(inner.get("k").await.unwrap(), "abc");

    let (_, store) = failing(&env, vec![Fault::Fail(unavailable()); 100]);
    let store = Retrying::new(Arc::new(store), env.clone());
    assert_eq!(
        store.get("k").await,
        Err(unavailable()),
        "the number of tries is bounded"
    );
}

#[tokio::test(start_paused = true)]
async fn a_late_request_has_its_effect_after_the_error() {
    let env = Env::simulated(1);
    let (inner, store) = failing(&env, vec![Fault::Late(Duration::from_secs(5), unavailable())]);
    assert_eq!(store.put("k", vec![]).await, Err(unavailable()));
    assert_eq!(inner.head("k").await.unwrap(), None);
    env.sleep(Duration::from_secs(6)).await;
    assert!(inner.head("k").await.unwrap().is_some());
}

#[tokio::test]
async fn requests_are_counted() {
    let env = Env::simulated(1);
    let metrics = Arc::new(Metrics::default());
    let store = Metered::new(Arc::new(MemoryStore::new(env.clone())), env, metrics.clone());
    store.put("a", vec![Bytes::from_static(b"abc")]).await.unwrap();
    store.get("a").await.unwrap();
    store.get("b").await.unwrap_err();
    store.get("..").await.unwrap_err();
    let counts: BTreeMap<_, _> = metrics
        .snapshot()
        .into_iter()
        .map(|s| (s.operation.name(), (s.requests, s.errors, s.bytes)))
        .collect();
    assert_eq!(counts["put"], (1, 0, 3));
    assert_eq!(
        counts["get"],
        (3, 1, 3),
        "a missing object is an answer, a bad key an error"
    );
    assert_eq!(counts["delete"], (0, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn racing_writers_of_two_processes_share_a_folder() {
    let root = tempfile::tempdir().unwrap();
    let env = Env::production();
    let url = format!("file://{}", root.path().display());
    let won = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for writer in 0..4 {
        let (url, env, won) = (url.clone(), env.clone(), won.clone());
        tasks.push(env.clone().spawn(async move {
            let store = blob::open(&url, None, env).await.unwrap().store;
            for round in 0..25 {
                let body = vec![Bytes::from(format!("{writer}"))];
                if store.put_if_absent(&format!("r/{round:03}"), body).await.unwrap() == PutOutcome::Created {
                    won.fetch_add(1, Ordering::Relaxed);
                }
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(won.load(Ordering::Relaxed), 25);
}
