//! Logs that an earlier release has written. `fixtures/level-1` is a bucket that the first release left behind, and the
//! view it had of it: slots, manifests, a snapshot, and behind it an entry of every kind.

use std::path::{Path, PathBuf};
use std::time::Duration;

use blob::LocalStore;
use env::Env;
use futures::future::join_all;
use metalog::{MetadataLog, ObjectLog};
use types::FeatureLevels;

use super::service::options;
use super::*;
use crate::replica::tests::memory_log::owner;
use crate::shard::entry::{decode, encode};
use crate::shard::{Expired, OffsetCommit, ShardService};

fn fixture() -> PathBuf {
    let root = std::env::var("CARGO_MANIFEST_DIR").expect("cargo runs the tests");
    Path::new(&root).join("fixtures/level-1")
}

/// One command of every kind, in steps of which each has something to do. Numbers of topics, objects and producers
/// begin at `base`.
pub fn history(base: u128) -> Vec<Vec<Command>> {
    let (first, other) = (tp(base, 0), tp(base, 1));
    let gone = base + 2;
    let producer = 1_000 + base as i64;
    let timed = |batch: BatchRequest| BatchRequest {
        log_append_time: true,
        ..batch
    };
    let commit = |n: u128, batches| Command::CommitFile(file(base + n, batches));
    let shared = CommitFileRequest {
        owners: vec![SHARD, ShardId(1)],
        ..file(base + 4, vec![plain(tp(gone, 0), 1)])
    };
    let offset = |topic: u128, offset, metadata: Option<&str>| OffsetCommit {
        topic: format!("t{topic}"),
        topic_id: metadata.map(|_| super::topic(topic)),
        partition: 0,
        offset,
        leader_epoch: 0,
        metadata: metadata.map(str::to_owned),
    };
    vec![
        vec![create(base, 2), create(base + 1, 1), create(gone, 1)],
        vec![
            commit(
                0,
                vec![
                    idem(first, 3, producer, 0, 0),
                    idem(first, 2, producer, 0, 3),
                    plain(other, 70_000),
                    timed(idem(tp(base + 1, 0), 1, producer, 0, 0)),
                    timed(plain(tp(base + 1, 0), 9)),
                ],
            ),
            // A duplicate, a gap, nobody's partition, a new epoch.
            commit(
                1,
                vec![
                    idem(first, 2, producer, 0, 3),
                    idem(first, 1, producer, 0, 77),
                    plain(tp(base, 9), 1),
                    idem(other, 1, producer + 1, 5, 0),
                ],
            ),
            commit(2, vec![plain(tp(gone, 0), 4)]),
            Command::CommitFile(shared),
            commit(
                3,
                vec![idem(other, 10, i64::from(i32::MAX), i16::MAX, i32::MAX - 3)],
            ),
        ],
        vec![
            Command::PutGroup {
                group: format!("group-{base}"),
                metadata: Some(Bytes::from_static(b"members and assignments")),
                offsets: vec![offset(base, 3, None)],
            },
            Command::CommitOffsets {
                group: format!("group-{base}"),
                offsets: vec![offset(base, 4, Some("why")), offset(base + 1, 7, None)],
            },
            Command::DeleteOffsets {
                group: format!("group-{base}"),
                partitions: vec![(format!("t{}", base + 1), 0)],
            },
            Command::DeleteRecords(vec![DeleteRecordsPartition {
                partition: first,
                offset: 3,
            }]),
            delete_topic(gone),
        ],
        vec![Command::Purge { max_batches: 100 }],
        vec![
            Command::FilesHandedOver(vec![object(base + 4)]),
            Command::FilesDeleted(vec![object(base + 2)]),
            Command::TakeOverFile {
                object: object(base + 5),
                size: 12,
                owners: vec![SHARD, ShardId(2)],
            },
            Command::Expire(Expired {
                producers: vec![(1, i64::from(i32::MAX))],
                producers_before: Timestamp(i64::MAX),
                results: vec![2],
                tombstones: vec![3],
            }),
        ],
    ]
}

async fn log(env: &Env, bucket: &Path) -> ObjectLog {
    let store = LocalStore::open(bucket, env.clone()).await.unwrap();
    ObjectLog::new(
        Arc::new(store),
        "shard-0",
        metalog::Options::default(),
        env.clone(),
    )
}

/// Runs `history` in a life of its own.
async fn live(env: &Env, bucket: &Path, base: u128, snapshot_slots: u64) -> ShardService {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path(), SHARD);
    options.features.finalized = Arc::new(|| types::FeatureLevel::FIRST);
    options.replica.snapshot_slots = snapshot_slots;
    let shard = ShardService::start(env, options, Arc::new(log(env, bucket).await), owner(1)).unwrap();
    shard.leading().await.unwrap();
    for step in history(base) {
        for result in join_all(step.into_iter().map(|command| shard.submit(command))).await {
            result.unwrap();
        }
        env.sleep(Duration::from_secs(1)).await;
    }
    // The directory is needed as long as the view is open.
    std::mem::forget(dir);
    shard
}

/// Every row of the view, but for how far it is.
async fn view(shard: &ShardService) -> String {
    let rows = shard.read(dump).await.unwrap();
    let lines = rows
        .iter()
        .filter(|(table, _)| table != "meta")
        .map(|(table, row)| format!("{table} {row:?}\n"));
    lines.collect()
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(std::fs::copy(entry.path(), to).unwrap()),
        }
    }
}

/// Made with the code of the first release; later ones write the same at that level, but nobody should have to.
#[tokio::test(start_paused = true)]
#[ignore = "makes the fixture anew"]
async fn make_the_fixture() {
    let env = Env::simulated(1);
    let _ = std::fs::remove_dir_all(fixture());
    let bucket = fixture().join("bucket");
    live(&env, &bucket, 10, 1).await.stop().await;
    let shard = live(&env, &bucket, 20, u64::MAX).await;
    std::fs::write(fixture().join("view.txt"), view(&shard).await).unwrap();
    shard.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_log_of_the_first_release_is_read() {
    let env = Env::simulated(2);
    let (bucket, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    copy(&fixture().join("bucket"), bucket.path());
    let log = log(&env, bucket.path()).await;
    assert!(
        log.snapshot().await.unwrap().is_some(),
        "the fixture has a snapshot"
    );
    let slots = log.read(log_start(&log).await, usize::MAX).await.unwrap();
    for entry in slots.iter().flat_map(|slot| &slot.entries) {
        let (time, change) = decode(entry.clone(), FeatureLevels::FIRST_RELEASE).unwrap();
        assert_eq!(encode(time, &change), entry, "the first level is written as ever");
    }
    let shard = ShardService::start(&env, options(dir.path(), SHARD), Arc::new(log), owner(2)).unwrap();
    shard.leading().await.unwrap();
    let expected = std::fs::read_to_string(fixture().join("view.txt")).unwrap();
    similar(&view(&shard).await, &expected);
    // It goes on where the other release has stopped: the file is known, and so is the producer.
    let again = shard
        .commit_file(file(
            20,
            vec![
                idem(tp(20, 0), 3, 1_020, 0, 0),
                idem(tp(20, 0), 2, 1_020, 0, 3),
                plain(tp(20, 1), 70_000),
                BatchRequest {
                    log_append_time: true,
                    ..idem(tp(21, 0), 1, 1_020, 0, 0)
                },
                BatchRequest {
                    log_append_time: true,
                    ..plain(tp(21, 0), 9)
                },
            ],
        ))
        .await;
    assert_eq!((again.error_code, again.batches[1].base_offset), (0, 3));
    let next = shard
        .commit_file(file(
            90,
            vec![idem(tp(20, 0), 1, 1_020, 0, 5), idem(tp(20, 0), 2, 1_020, 0, 3)],
        ))
        .await;
    let offsets: Vec<_> = next
        .batches
        .iter()
        .map(|batch| (batch.base_offset, batch.duplicate))
        .collect();
    assert_eq!(offsets, [(5, false), (3, true)]);
}

async fn log_start(log: &ObjectLog) -> LogOffset {
    log.snapshot().await.unwrap().unwrap().offset
}

fn similar(found: &str, expected: &str) {
    for (found, expected) in found.lines().zip(expected.lines()) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.lines().count(), expected.lines().count());
}
