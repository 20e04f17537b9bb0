//! The jobs that end the life of files: over two shards, with owners that were never reached, leaders that change, and
//! a store that does not do all it is asked.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use async_trait::async_trait;
use blob::{BlobError, BlobStore, MemoryStore, ObjectMeta, PutOutcome};
use env::Env;
use futures::FutureExt;
use parking_lot::Mutex;

use super::*;
use crate::codes::*;
use crate::replica::Options;
use crate::replica::tests::memory_log::{MemoryLog, owner};
use crate::shard::{JobOptions, Jobs, RetentionConfig, ShardOptions, ShardService};

const A: ShardId = ShardId(0);
const B: ShardId = ShardId(1);
const MINUTE: Duration = Duration::from_secs(60);

/// A store that notes how many keys each deletion names, and refuses those it is told to.
#[derive(Debug)]
struct Picky {
    inner: MemoryStore,
    refuse: Mutex<fn(&str) -> bool>,
    deletions: Mutex<Vec<usize>>,
}

#[async_trait]
impl BlobStore for Picky {
    async fn put(&self, key: &str, body: Vec<Bytes>) -> Result<(), BlobError> {
        self.inner.put(key, body).await
    }
    async fn put_file(&self, key: &str, path: &std::path::Path) -> Result<(), BlobError> {
        self.inner.put_file(key, path).await
    }
    async fn put_if_absent(&self, key: &str, body: Vec<Bytes>) -> Result<PutOutcome, BlobError> {
        self.inner.put_if_absent(key, body).await
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
    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ObjectMeta>, BlobError> {
        self.inner.list(prefix, after, limit).await
    }
    async fn delete_many(&self, keys: &[String]) -> Result<Vec<(String, BlobError)>, BlobError> {
        self.deletions.lock().push(keys.len());
        let refuse = *self.refuse.lock();
        let (refused, taken): (Vec<_>, Vec<_>) = keys.iter().cloned().partition(|key| refuse(key));
        let mut failed = self.inner.delete_many(&taken).await?;
        failed.extend(
            refused
                .into_iter()
                .map(|key| (key, BlobError::Throttled("slow down".to_owned()))),
        );
        Ok(failed)
    }
}

/// Two shards over logs that outlive them.
struct World {
    env: Env,
    store: Arc<Picky>,
    logs: Vec<MemoryLog>,
    shards: Arc<Mutex<BTreeMap<ShardId, ShardService>>>,
    reachable: Arc<Mutex<bool>>,
    dir: tempfile::TempDir,
    lives: u32,
}

fn key(object: Uuid) -> String {
    format!("wal/{object}")
}

impl World {
    async fn new() -> World {
        let env = Env::simulated(1);
        let store = Picky {
            inner: MemoryStore::new(env.clone()),
            refuse: Mutex::new(|_| false),
            deletions: Mutex::default(),
        };
        let mut world = World {
            store: Arc::new(store),
            logs: vec![MemoryLog::new(&env), MemoryLog::new(&env)],
            shards: Arc::default(),
            reachable: Arc::new(Mutex::new(true)),
            dir: tempfile::tempdir().unwrap(),
            lives: 0,
            env,
        };
        world.open().await;
        for (n, id) in [A, B].into_iter().enumerate() {
            let Command::CreatePartitions(request) = create(n as u128, 1) else {
                panic!()
            };
            assert_eq!(world.shard(id).create_partitions(request).await.error_code, NONE);
        }
        world
    }

    /// Opens both shards anew, as another node would: whoever led them before is fenced.
    async fn open(&mut self) {
        self.lives += 1;
        for (id, log) in [A, B].into_iter().zip(&self.logs) {
            let options = ShardOptions {
                shard: id,
                data_dir: self.dir.path().join(format!("{}", self.lives)),
                replica: Options::default(),
                features: Features::default(),
            };
            let owner = owner(i32::try_from(self.lives).unwrap());
            let shard = ShardService::start(&self.env, options, Arc::new(log.clone()), owner).unwrap();
            shard.leading().await.unwrap();
            self.shards.lock().insert(id, shard.clone());
            let jobs = self.jobs();
            self.env.spawn(async move { shard.run_jobs(&jobs).await });
        }
    }

    fn jobs(&self) -> Jobs {
        let (handing, asking, reachable) = (self.shards.clone(), self.shards.clone(), self.reachable.clone());
        Jobs {
            store: self.store.clone(),
            object_key: key,
            retention: Arc::new(|_| {
                Some(RetentionConfig {
                    retention_ms: -1,
                    retention_bytes: -1,
                })
            }),
            hand_over: Arc::new(move |request: HandOverFileRequest| {
                let (shard, reachable) = (handing.lock()[&request.shard].clone(), *reachable.lock());
                async move {
                    match reachable {
                        true => shard.hand_over_file(request).await.error_code,
                        false => COORDINATOR_NOT_AVAILABLE,
                    }
                }
                .boxed()
            }),
            describe: Arc::new(move |request: DescribeFilesRequest| {
                let shard = asking.lock()[&request.shard].clone();
                async move { shard.describe_files(request).await }.boxed()
            }),
            options: JobOptions::default(),
        }
    }

    fn shard(&self, id: ShardId) -> ShardService {
        self.shards.lock()[&id].clone()
    }

    /// Uploads object `n` and commits one batch of it at `at`.
    async fn commit(&self, n: u128, owners: &[ShardId], at: &[ShardId]) {
        self.store
            .put(&key(object(n)), vec![Bytes::from_static(b"bytes")])
            .await
            .unwrap();
        for id in at {
            let answer = self.shard(*id).commit_file(self.request(n, owners, *id)).await;
            assert_eq!((answer.error_code, answer.batches[0].error_code), (NONE, NONE));
        }
    }

    fn request(&self, n: u128, owners: &[ShardId], at: ShardId) -> CommitFileRequest {
        CommitFileRequest {
            owners: owners.to_vec(),
            ..file(n, vec![plain(tp(u128::from(at.0), 0), 1)])
        }
    }

    /// All records of a shard die.
    async fn delete_records(&self, at: ShardId) {
        let request = DeleteRecordsRequest {
            shard: at,
            partitions: vec![DeleteRecordsPartition {
                partition: tp(u128::from(at.0), 0),
                offset: -1,
            }],
        };
        assert_eq!(self.shard(at).delete_records(request).await.error_code, NONE);
    }

    async fn objects(&self) -> usize {
        self.store.list("wal/", None, 10_000).await.unwrap().len()
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_was_never_reached_starts_the_chain_and_refuses_the_file_from_then_on() {
    let world = World::new().await;
    // The broker died when one of two shards had its commit.
    world.commit(1, &[A, B], &[B]).await;
    world.env.sleep(60 * MINUTE).await;
    assert_eq!(world.objects().await, 1, "it is live");
    world.delete_records(B).await;
    world.env.sleep(9 * MINUTE).await;
    assert_eq!(world.objects().await, 1, "grace");
    world.env.sleep(16 * MINUTE).await;
    assert_eq!(world.objects().await, 0);
    let late = world.shard(A).commit_file(world.request(1, &[A, B], A)).await;
    assert_eq!(late.error_code, KAFKA_STORAGE_ERROR);
}

#[tokio::test(start_paused = true)]
async fn a_file_that_its_first_owner_holds_waits_as_long_as_that_takes() {
    let world = World::new().await;
    world.commit(1, &[A, B], &[A, B]).await;
    world.delete_records(B).await;
    world.env.sleep(90 * MINUTE).await;
    assert_eq!(world.objects().await, 1);
    world.delete_records(A).await;
    world.env.sleep(16 * MINUTE).await;
    assert_eq!(world.objects().await, 0);
}

#[tokio::test(start_paused = true)]
async fn hand_over_and_deletion_go_on_under_the_next_leaders() {
    let mut world = World::new().await;
    for n in 0..40 {
        let owners = if n % 2 == 0 { [A, B] } else { [B, A] };
        world.commit(n, &owners, &[A, B]).await;
    }
    *world.reachable.lock() = false;
    world.delete_records(A).await;
    world.delete_records(B).await;
    world.env.sleep(MINUTE).await;
    // New leaders for files that are dead and could not be handed over,
    world.open().await;
    *world.reachable.lock() = true;
    world.env.sleep(MINUTE).await;
    // and again for files that are handed over and not deleted, with a store that is throttled at first.
    world.open().await;
    *world.store.refuse.lock() = |_| true;
    world.env.sleep(20 * MINUTE).await;
    assert_eq!(world.objects().await, 40);
    world.open().await;
    *world.store.refuse.lock() = |_| false;
    world.env.sleep(MINUTE).await;
    assert_eq!(world.objects().await, 0);
}

/// aiven/inkless #170 (more than 1,000 keys in a deletion) and #715 (a throttled one kept the same keys in front for ever).
#[tokio::test(start_paused = true)]
async fn a_backlog_shrinks_although_the_store_deletes_only_half_of_what_it_is_asked() {
    let world = World::new().await;
    for n in 0..2_500 {
        world.commit(n, &[A], &[A]).await;
    }
    *world.store.refuse.lock() = |key| key.ends_with(['0', '2', '4', '6', '8', 'a', 'c', 'e']);
    world.delete_records(A).await;
    world.env.sleep(15 * MINUTE).await;
    assert_eq!(
        world.objects().await,
        1_250,
        "what the store takes is gone, wherever it stands"
    );
    let asked: Vec<usize> = std::mem::take(&mut *world.store.deletions.lock());
    assert!(asked.iter().all(|keys| *keys <= 1_000), "{asked:?}");
    *world.store.refuse.lock() = |_| false;
    world.env.sleep(MINUTE).await;
    assert_eq!(world.objects().await, 0);
    let shard = world.shard(A);
    let described = shard.describe_files(DescribeFilesRequest {
        shard: A,
        objects: (0..2_500).map(object).collect(),
    });
    assert!(described.await.known.is_empty());
    // Nothing is asked for once more.
    world.store.deletions.lock().clear();
    world.env.sleep(MINUTE).await;
    assert!(world.store.deletions.lock().is_empty());
}
