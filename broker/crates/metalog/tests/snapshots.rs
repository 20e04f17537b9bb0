//! Snapshots that are larger than what anybody wants to have in memory.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests"
)]

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use blob::{BlobError, BlobStore, MemoryStore, ObjectMeta, PutOutcome, SharedStore};
use bytes::Bytes;
use env::Env;
use futures::{StreamExt, TryStreamExt};
use metalog::{
    LogError, LogOffset, MetadataLog, ObjectLog, Opened, Options, Owner, SnapshotBody, SnapshotFile,
    SnapshotRef,
};

const SIZE: usize = (40 << 20) + 7;
/// What may be in memory of a snapshot, in bytes.
const BOUND: usize = 20 << 20;

/// A store that knows how much of what was read from it is still held, and how large a body it was given.
#[derive(Debug)]
struct Counting {
    inner: MemoryStore,
    held: Arc<Held>,
    largest_put: AtomicUsize,
}

#[derive(Debug, Default)]
struct Held {
    now: AtomicUsize,
    most: AtomicUsize,
}

/// Bytes that are counted as long as anybody has a slice of them.
struct Counted(Vec<u8>, Arc<Held>);

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.now.fetch_sub(self.0.len(), Ordering::Relaxed);
    }
}

#[async_trait]
impl BlobStore for Counting {
    async fn put(&self, key: &str, body: Vec<Bytes>) -> Result<(), BlobError> {
        let size = body.iter().map(Bytes::len).sum();
        self.largest_put.fetch_max(size, Ordering::Relaxed);
        self.inner.put(key, body).await
    }
    async fn put_file(&self, key: &str, path: &Path) -> Result<(), BlobError> {
        self.inner.put_file(key, path).await
    }
    async fn put_if_absent(&self, key: &str, body: Vec<Bytes>) -> Result<PutOutcome, BlobError> {
        self.inner.put_if_absent(key, body).await
    }
    async fn get(&self, key: &str) -> Result<Bytes, BlobError> {
        self.get_range(key, 0..u64::MAX).await
    }
    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, BlobError> {
        let bytes = self.inner.get_range(key, range).await?.to_vec();
        let now = self.held.now.fetch_add(bytes.len(), Ordering::Relaxed) + bytes.len();
        self.held.most.fetch_max(now, Ordering::Relaxed);
        Ok(Bytes::from_owner(Counted(bytes, self.held.clone())))
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

struct World {
    store: Arc<Counting>,
    log: ObjectLog,
    opened: Opened,
    dir: tempfile::TempDir,
}

impl World {
    async fn new() -> World {
        let env = Env::simulated(1);
        let store = Arc::new(Counting {
            inner: MemoryStore::new(env.clone()),
            held: Arc::default(),
            largest_put: AtomicUsize::new(0),
        });
        let shared: SharedStore = store.clone();
        let log = ObjectLog::new(shared, "x", Options::default(), env.clone());
        let owner = Owner {
            node_id: 1,
            incarnation: env.uuid(),
            address: "node-1:9190".to_owned(),
        };
        let mut opened = log.open(owner).await.unwrap();
        for number in 0..10u8 {
            opened
                .writer
                .append(vec![Bytes::from(vec![number])])
                .await
                .unwrap();
        }
        World {
            store,
            log,
            opened,
            dir: tempfile::tempdir().unwrap(),
        }
    }

    /// A large snapshot, stored and installed, and its bytes.
    async fn snapshot(&mut self, offset: u64) -> (SnapshotRef, Vec<u8>) {
        let bytes: Vec<u8> = (0..SIZE).map(|at| (at >> 7) as u8 ^ at as u8).collect();
        let path = self.dir.path().join("snapshot");
        std::fs::write(&path, &bytes).unwrap();
        let body = SnapshotBody::File(SnapshotFile::new(path.clone()));
        let snapshot = self.log.put_snapshot(LogOffset(offset), body).await.unwrap();
        assert!(!path.exists(), "the file is left behind");
        let installed = self
            .opened
            .writer
            .install_snapshot(snapshot.clone(), LogOffset(0));
        installed.await.unwrap();
        (snapshot, bytes)
    }

    async fn read(&self, snapshot: &SnapshotRef) -> Result<Vec<Bytes>, LogError> {
        self.log.get_snapshot(snapshot).try_collect().await
    }
}

#[tokio::test]
async fn of_a_large_snapshot_a_few_pieces_are_in_memory() {
    let mut world = World::new().await;
    let (snapshot, bytes) = world.snapshot(4).await;
    let largest = world.store.largest_put.load(Ordering::Relaxed);
    assert_eq!(largest, 0, "it is sent from its file");
    let mut pieces = world.log.get_snapshot(&snapshot);
    let mut at = 0;
    while let Some(piece) = pieces.next().await {
        let piece = piece.unwrap();
        assert!(bytes[at..].starts_with(&piece), "another piece than that at {at}");
        at += piece.len();
        // A reader that is slow lets the store wait.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(at, SIZE);
    let most = world.store.held.most.load(Ordering::Relaxed);
    assert!((1..=BOUND).contains(&most), "{most} bytes at once");
    drop(pieces);
    assert_eq!(world.store.held.now.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn damage_anywhere_in_a_large_snapshot_is_found() {
    let mut world = World::new().await;
    let (snapshot, bytes) = world.snapshot(4).await;
    let is_corrupt = |read: Result<Vec<Bytes>, LogError>| matches!(read, Err(LogError::Corrupt(text)) if text.contains(&snapshot.key));
    let mut flipped = bytes.clone();
    flipped[SIZE / 2] ^= 1;
    let longer = [&bytes[..], b"x"].concat();
    for damaged in [flipped, bytes[..SIZE - 1].to_vec(), bytes[..1 << 20].to_vec()] {
        let body = vec![Bytes::from(damaged)];
        world.store.put(&snapshot.key, body).await.unwrap();
        assert!(is_corrupt(world.read(&snapshot).await));
    }
    // What lies behind its end is not part of it.
    world.store.put(&snapshot.key, vec![longer.into()]).await.unwrap();
    assert_eq!(world.read(&snapshot).await.unwrap().concat(), bytes);
}

#[tokio::test]
async fn a_snapshot_that_goes_while_it_is_read_was_replaced_or_is_lost() {
    let mut world = World::new().await;
    let (first, _) = world.snapshot(4).await;
    let gone = |key: &String| {
        let (store, key) = (world.store.clone(), key.clone());
        async move { store.delete_many(&[key]).await.unwrap() }
    };
    let mut lost = world.log.get_snapshot(&first);
    assert!(lost.next().await.unwrap().is_ok());
    let kept = world.store.get(&first.key).await.unwrap();
    gone(&first.key).await;
    let end = lost.try_collect::<Vec<_>>().await;
    assert!(matches!(end, Err(LogError::Corrupt(text)) if text.contains(&first.key)));

    world.store.put(&first.key, vec![kept]).await.unwrap();
    let mut replaced = world.log.get_snapshot(&first);
    assert!(replaced.next().await.unwrap().is_ok());
    gone(&first.key).await;
    let (second, bytes) = world.snapshot(7).await;
    let end = replaced.try_collect::<Vec<_>>().await;
    assert!(
        matches!(end, Err(LogError::Trimmed { .. })),
        "another one is there"
    );
    assert_eq!(world.log.snapshot().await.unwrap(), Some(second.clone()));
    assert_eq!(world.read(&second).await.unwrap().concat(), bytes);
}
