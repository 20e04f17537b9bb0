//! A week of load in fast motion: neither the log nor the view grows beyond what is live.
//!
//! Every time is a sixtieth of what it is in production, so that an hour takes a minute. All jobs run; snapshots are taken
//! and the log is swept over a store that keeps everything until it is deleted.

use std::path::Path;
use std::time::Duration;

use blob::{BlobStore, MemoryStore};
use env::Env;
use metalog::ObjectLog;

use super::service::{create_topic, options};
use super::*;
use crate::codes::*;
use crate::replica::tests::memory_log::owner;
use crate::shard::schema::file_state;
use crate::shard::{JobOptions, Jobs, OffsetCommit, RetentionConfig, ShardService};

const MINUTE: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(60);
const DAY: u64 = 24;
const WEEK: u64 = 7 * DAY;

const PARTITIONS: i32 = 20;
/// A file has a batch of every partition.
const FILES_PER_HOUR: u64 = 30;
const RETENTION_HOURS: u64 = 6;
const SNAPSHOT_SLOTS: u64 = 200;

// The bounds, in bytes, as the module `shard` states them. Free pages may take as much again as a third of all that (see
// `FREE_PAGES`).
const EMPTY: u64 = 64 * 1024;
const PER_BATCH: u64 = 60;
const PER_FILE: u64 = 120;
const PER_PRODUCER: u64 = 200;

fn view_bound(size: &Size) -> u64 {
    (EMPTY + PER_BATCH * size.batches + PER_FILE * size.files + PER_PRODUCER * size.producers) * 4 / 3
}

#[derive(Clone, Copy, Debug, Default)]
struct Size {
    batches: u64,
    files: u64,
    producers: u64,
    /// The SQLite file, free pages included.
    view: u64,
    /// Objects and bytes of the log and of its snapshots.
    slots: u64,
    slot_bytes: u64,
    snapshots: u64,
    snapshot_bytes: u64,
    manifests: u64,
}

impl Size {
    fn max(self, other: Size) -> Size {
        Size {
            batches: self.batches.max(other.batches),
            files: self.files.max(other.files),
            producers: self.producers.max(other.producers),
            view: self.view.max(other.view),
            slots: self.slots.max(other.slots),
            slot_bytes: self.slot_bytes.max(other.slot_bytes),
            snapshots: self.snapshots.max(other.snapshots),
            snapshot_bytes: self.snapshot_bytes.max(other.snapshot_bytes),
            manifests: self.manifests.max(other.manifests),
        }
    }
}

fn jobs(store: Arc<MemoryStore>) -> Jobs {
    Jobs {
        store,
        object_key: |object| format!("wal/{object}"),
        retention: Arc::new(|_| {
            Some(RetentionConfig {
                retention_ms: (RETENTION_HOURS * HOUR.as_millis() as u64) as i64,
                retention_bytes: -1,
            })
        }),
        hand_over: Arc::new(|_| Box::pin(async { COORDINATOR_NOT_AVAILABLE })),
        describe: Arc::new(|_| panic!("every file has one owner")),
        options: JobOptions {
            retention_interval: 5 * MINUTE,
            file_grace: 10 * MINUTE,
            file_interval: 5 * MINUTE,
            producer_expiry: 24 * HOUR,
            result_expiry: HOUR / 2,
            tombstone_expiry: 24 * HOUR,
            expiry_interval: 5 * MINUTE,
            wal_pages: 256,
        },
    }
}

async fn measure(shard: &ShardService, dir: &Path, store: &MemoryStore) -> Size {
    let rows = async |sql: &'static str| -> u64 {
        let rows = shard.read(|db| db.query_row(sql, (), |row| row.get::<_, i64>(0)));
        rows.await.unwrap() as u64
    };
    let mut size = Size {
        batches: rows("SELECT count(*) FROM batches").await,
        files: rows("SELECT count(*) FROM files").await,
        producers: rows("SELECT count(*) FROM producers").await,
        ..Size::default()
    };
    for life in std::fs::read_dir(dir.join("shards/0")).unwrap() {
        let view = life.unwrap().path().join("view.db");
        size.view += std::fs::metadata(view).unwrap().len();
    }
    for (kind, count, bytes) in [
        ("log", &mut size.slots, &mut size.slot_bytes),
        ("snapshot", &mut size.snapshots, &mut size.snapshot_bytes),
        ("manifest", &mut size.manifests, &mut 0),
    ] {
        let objects = store
            .list(&format!("meta/0/{kind}/"), None, 100_000)
            .await
            .unwrap();
        *count = objects.len() as u64;
        *bytes = objects.iter().map(|object| object.size).sum();
    }
    size
}

/// One hour: files every two minutes, of the producers of this hour, and a group that follows.
async fn hour(env: &Env, shard: &ShardService, hour: u64) {
    let topic = u128::from(1 + hour / DAY);
    for n in 0..FILES_PER_HOUR {
        env.sleep(HOUR / FILES_PER_HOUR as u32).await;
        let batches = (0..PARTITIONS).map(|partition| BatchRequest {
            max_timestamp: env.now(),
            ..idem(tp(topic, partition), 1, hour as i64, 0, n as i32)
        });
        let object = u128::from(1 + hour * FILES_PER_HOUR + n);
        let answer = shard.commit_file(file(object, batches.collect())).await;
        assert!(answer.error_code == NONE && answer.batches.iter().all(|batch| batch.error_code == NONE));
    }
    let offsets = (0..PARTITIONS).map(|partition| OffsetCommit {
        topic: format!("t{topic}"),
        topic_id: None,
        partition,
        offset: hour as i64,
        leader_epoch: -1,
        metadata: None,
    });
    shard
        .commit_offsets(format!("group-{}", hour / DAY), offsets.collect())
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_week_of_load_leaves_log_and_view_within_their_bounds() {
    let env = Env::simulated(1);
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(MemoryStore::new(env.clone()));
    let mut options = options(dir.path(), SHARD);
    options.replica.snapshot_slots = SNAPSHOT_SLOTS;
    let times = metalog::Options {
        confirm_after: MINUTE,
        min_age: HOUR,
    };
    let log = ObjectLog::new(store.clone(), "0", times, env.clone());
    let shard = ShardService::start(&env, options, Arc::new(log), owner(1)).unwrap();
    shard.leading().await.unwrap();
    let (worker, jobs) = (shard.clone(), jobs(store.clone()));
    env.spawn(async move { worker.run_jobs(&jobs).await });

    let mut days: Vec<Size> = Vec::new();
    for now in 0..WEEK {
        if now % DAY == 0 {
            // A topic a day; that of the day before is deleted, with what its groups have committed.
            let topic = u128::from(1 + now / DAY);
            create_topic(&shard, topic, PARTITIONS).await;
            let topics = vec![DeleteTopic {
                topic: super::topic(topic - 1),
                name: format!("t{}", topic - 1),
            }];
            let deleted = shard.delete_topics(DeleteTopicsRequest { shard: SHARD, topics });
            assert_eq!(deleted.await.error_code, NONE);
            days.push(Size::default());
        }
        hour(&env, &shard, now).await;
        let day = days.last_mut().unwrap();
        *day = day.max(measure(&shard, dir.path(), &store).await);
    }
    for (number, day) in days.iter().enumerate() {
        println!("day {number}: {day:?}");
    }

    let live = shard.read(|db| {
        let sql = "SELECT count(*) FROM files WHERE state = ?";
        db.query_row(sql, (file_state::LIVE,), |row| row.get::<_, i64>(0))
    });
    assert!(live.await.unwrap() as u64 <= (RETENTION_HOURS + 1) * FILES_PER_HOUR);
    // What a day holds at most: the records of some hours, the files of some more, for a day after their death.
    let (second, last) = (days[1], days[days.len() - 1]);
    for day in &days[1..] {
        assert!(
            day.batches <= (RETENTION_HOURS + 1) * FILES_PER_HOUR * PARTITIONS as u64,
            "{day:?}"
        );
        assert!(
            day.files <= (DAY + RETENTION_HOURS + 2) * FILES_PER_HOUR,
            "{day:?}"
        );
        assert!(day.producers <= (DAY + 2) * PARTITIONS as u64, "{day:?}");
        assert!(day.view <= view_bound(day), "{day:?}");
        // Three snapshots lie in the store at most, and the log from the one before the newest on; until the manifest
        // that says so is old, the same once more. In an hour there are fewer slots than between two snapshots.
        assert!(day.snapshots <= 4 && day.manifests <= 6, "{day:?}");
        assert!(day.slots <= 4 * SNAPSHOT_SLOTS, "{day:?}");
    }
    assert!(last.view <= second.view * 11 / 10, "{second:?} {last:?}");
    assert!(
        last.slot_bytes <= second.slot_bytes * 11 / 10,
        "{second:?} {last:?}"
    );
    assert!(
        last.snapshot_bytes <= second.snapshot_bytes * 11 / 10,
        "{second:?} {last:?}"
    );
}
