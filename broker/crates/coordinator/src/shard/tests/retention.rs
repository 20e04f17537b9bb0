//! Retention over whole shards, down to the objects.

use std::collections::BTreeMap;
use std::time::Duration;

use blob::{BlobStore, MemoryStore};
use env::Env;
use futures::FutureExt;
use parking_lot::Mutex;

use super::service::{create_topic, high_watermark, options};
use super::*;
use crate::codes::*;
use crate::replica::tests::memory_log::{MemoryLog, owner};
use crate::shard::{JobOptions, Jobs, RetentionConfig, ShardService};

fn key(object: Uuid) -> String {
    format!("wal/{object}")
}

/// Two shards that know each other, jobs running, retention as `config` says.
struct Pair {
    shards: Vec<ShardService>,
    logs: Vec<MemoryLog>,
    store: Arc<MemoryStore>,
    config: Arc<Mutex<RetentionConfig>>,
    reachable: Arc<Mutex<bool>>,
    _dirs: Vec<tempfile::TempDir>,
}

async fn pair(env: &Env) -> Pair {
    let store = Arc::new(MemoryStore::new(env.clone()));
    let config = Arc::new(Mutex::new(RetentionConfig {
        retention_ms: -1,
        retention_bytes: -1,
    }));
    let reachable = Arc::new(Mutex::new(true));
    let mut shards = BTreeMap::new();
    let (mut dirs, mut logs) = (Vec::new(), Vec::new());
    for id in [0, 1] {
        let dir = tempfile::tempdir().unwrap();
        let log = MemoryLog::new(env);
        logs.push(log.clone());
        let options = options(dir.path(), ShardId(id));
        let shard = ShardService::start(env, options, Arc::new(log), owner(1)).unwrap();
        shard.leading().await.unwrap();
        shards.insert(ShardId(id), shard);
        dirs.push(dir);
    }
    for shard in shards.values() {
        let (all, reachable, config) = (shards.clone(), reachable.clone(), config.clone());
        let jobs = Jobs {
            store: store.clone(),
            object_key: key,
            retention: Arc::new(move |_| Some(*config.lock())),
            hand_over: Arc::new(move |request: HandOverFileRequest| {
                let (all, reachable) = (all.clone(), *reachable.lock());
                async move {
                    if !reachable {
                        return COORDINATOR_NOT_AVAILABLE;
                    }
                    all[&request.shard].hand_over_file(request).await.error_code
                }
                .boxed()
            }),
            describe: {
                let all = shards.clone();
                Arc::new(move |request: DescribeFilesRequest| {
                    let all = all.clone();
                    async move { all[&request.shard].describe_files(request).await }.boxed()
                })
            },
            options: JobOptions {
                retention_interval: Duration::from_secs(1),
                // A day takes long even when its hours are skipped.
                producer_expiry: Duration::from_secs(30 * 60),
                tombstone_expiry: Duration::from_secs(60 * 60),
                ..JobOptions::default()
            },
        };
        let shard = shard.clone();
        env.spawn(async move { shard.run_jobs(&jobs).await });
    }
    Pair {
        shards: shards.into_values().collect(),
        logs,
        store,
        config,
        reachable,
        _dirs: dirs,
    }
}

#[tokio::test(start_paused = true)]
async fn retention_lets_objects_go_once_no_shard_needs_them() {
    let env = Env::simulated(1);
    let pair = pair(&env).await;
    for (n, shard) in pair.shards.iter().enumerate() {
        create_topic(shard, n as u128, 1).await;
    }
    for n in 0..6 {
        pair.store
            .put(&key(object(n)), vec![Bytes::from_static(b"bytes")])
            .await
            .unwrap();
        let owners = if n % 2 == 0 {
            vec![ShardId(0), ShardId(1)]
        } else {
            vec![ShardId(1), ShardId(0)]
        };
        for (topic, shard) in pair.shards.iter().enumerate() {
            let batch = BatchRequest {
                must_follow: false,
                max_timestamp: env.now(),
                ..plain(tp(topic as u128, 0), 1)
            };
            let request = CommitFileRequest {
                owners: owners.clone(),
                ..file(n, vec![batch])
            };
            assert_eq!(shard.commit_file(request).await.batches.len(), 1);
        }
    }
    let objects = async || pair.store.list("wal/", None, 100).await.unwrap().len();
    env.sleep(Duration::from_secs(3600)).await;
    assert_eq!(objects().await, 6, "nothing goes without retention");
    // The limit is lowered while everything runs; the other shard cannot be reached at first.
    *pair.reachable.lock() = false;
    pair.config.lock().retention_ms = 60_000;
    env.sleep(Duration::from_secs(3600)).await;
    assert_eq!(high_watermark(&pair.shards[0], tp(0, 0)).await, 6);
    assert_eq!(objects().await, 6);
    *pair.reachable.lock() = true;
    env.sleep(Duration::from_secs(5 * 60)).await;
    assert_eq!(objects().await, 6, "grace");
    env.sleep(Duration::from_secs(10 * 60)).await;
    assert_eq!(objects().await, 0);
    for shard in &pair.shards {
        let known = shard.describe_files(DescribeFilesRequest {
            shard: SHARD,
            objects: (0..6).map(object).collect(),
        });
        let known = known.await;
        assert_eq!(
            (known.error_code, known.oldest_file, known.known),
            (NONE, Timestamp(-1), vec![])
        );
    }
}

#[tokio::test(start_paused = true)]
async fn retention_catches_up_in_one_pass_and_forgets_what_expired() {
    let env = Env::simulated(1);
    let pair = pair(&env).await;
    let shard = &pair.shards[0];
    create_topic(shard, 1, 1).await;
    for n in 0..50 {
        let batches = (0..100).map(|i| idem(tp(1, 0), 1, 7, 0, n * 100 + i)).collect();
        shard.commit_file(file(n as u128, batches)).await;
    }
    pair.config.lock().retention_bytes = 1000;
    env.sleep(Duration::from_secs(10)).await;
    assert_eq!(
        shard
            .read(|db| db.query_row("SELECT count(*) FROM batches", (), |row| row.get::<_, i64>(0)))
            .await,
        Ok(10)
    );
    assert_eq!(
        shard
            .commit_file(file(100, vec![idem(tp(1, 0), 1, 7, 0, 4999)]))
            .await
            .batches[0]
            .base_offset,
        4999
    );
    env.sleep(Duration::from_secs(2 * 3600)).await;
    let rows = |table: &'static str| {
        shard.read(move |db| {
            db.query_row(&format!("SELECT count(*) FROM {table}"), (), |row| {
                row.get::<_, i64>(0)
            })
        })
    };
    assert_eq!(rows("producers").await, Ok(0));
    assert_eq!(rows("files").await, Ok(1), "tombstones go as well");
    assert_eq!(rows("files WHERE results IS NOT NULL").await, Ok(0));
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_put_right_under_the_leader_keeps_nothing_from_being_deleted() {
    const DAY: i64 = 24 * 3600 * 1000;
    let world = env::Simulation::new(1);
    let env = world.node("test");
    let pair = pair(&env).await;
    let shard = &pair.shards[0];
    create_topic(shard, 1, 1).await;
    let key = key(object(1));
    pair.store
        .put(&key, vec![Bytes::from_static(b"x")])
        .await
        .unwrap();
    shard.commit_file(file(1, vec![plain(tp(1, 0), 1)])).await;
    world.net().set_clock("test", DAY);
    create_topic(shard, 2, 1).await;
    world.net().set_clock("test", 0);
    let request = DeleteRecordsRequest {
        shard: ShardId(0),
        partitions: vec![DeleteRecordsPartition {
            partition: tp(1, 0),
            offset: -1,
        }],
    };
    assert_eq!(shard.delete_records(request).await.partitions[0].error_code, NONE);
    env.sleep(Duration::from_secs(15 * 60)).await;
    assert!(
        pair.store.get(&key).await.is_err(),
        "dead for more than the grace"
    );
}

/// Retention lets a hundred thousand batches go while somebody commits. A commit waits for the slot in flight and its own, and
/// what is deleted in these is a small part of all that goes.
#[tokio::test(start_paused = true)]
async fn commits_stand_between_the_steps_of_retention() {
    const PARTITIONS: i32 = 10;
    const BATCHES: i64 = 100_000;
    let env = Env::simulated(1);
    let pair = pair(&env).await;
    let shard = &pair.shards[0];
    create_topic(shard, 1, PARTITIONS).await;
    for n in 0..100 {
        let batches = (0..1_000).map(|i| plain(tp(1, i % PARTITIONS), 1));
        let answer = shard.commit_file(file(n, batches.collect())).await;
        assert_eq!(answer.error_code, NONE);
    }
    // Every batch has 100 bytes. A row counts until it is purged.
    let state = async || {
        let rows = shard.read(|db| {
            let sql = "SELECT applied, (SELECT sum(bytes) / 100 FROM partitions) FROM meta";
            db.query_row(sql, (), |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)))
        });
        rows.await.unwrap()
    };
    assert_eq!(state().await.1, BATCHES);
    pair.logs[0].set_latency(Duration::from_millis(20));
    pair.config.lock().retention_bytes = 1_000;
    let (mut begun, mut commits) = (0, 0);
    for n in 100.. {
        let (slots, rows) = state().await;
        if rows < BATCHES / 100 {
            break;
        }
        let answer = shard.commit_file(file(n, vec![plain(tp(1, 0), 1)])).await;
        assert_eq!(answer.error_code, NONE);
        let (slots_after, rows_after) = state().await;
        assert!(
            slots_after - slots <= 3,
            "a commit waited for {} slots",
            slots_after - slots
        );
        let purged = rows + 1 - rows_after;
        assert!(
            purged <= BATCHES / 10,
            "a commit waited for the deletion of {purged} batches"
        );
        begun += i64::from(rows < BATCHES);
        commits += 1;
        assert!(commits < 10_000, "{rows} batches are left");
    }
    assert!(begun >= 10, "only {begun} commits met the retention pass");
}
