//! Whole shards over a log: restart, fencing, corruption, jobs.

use std::path::Path;
use std::time::Duration;

use blob::MemoryStore;
use env::Env;
use metalog::{MetadataLog, ObjectLog};

use super::commit::find;
use super::*;
use crate::codes::*;
use crate::replica::tests::memory_log::{MemoryLog, owner};
use crate::replica::{End, Options, Status};
use crate::shard::{OffsetCommit, ShardOptions, ShardService, StoredGroup};

pub fn options(dir: &Path, shard: ShardId) -> ShardOptions {
    ShardOptions {
        shard,
        data_dir: dir.to_owned(),
        replica: Options::default(),
        features: Features::default(),
    }
}

pub fn start(env: &Env, dir: &Path, log: impl MetadataLog + 'static) -> ShardService {
    ShardService::start(env, options(dir, SHARD), Arc::new(log), owner(1)).unwrap()
}

async fn open(env: &Env, dir: &Path, log: impl MetadataLog + 'static) -> ShardService {
    let shard = start(env, dir, log);
    shard.leading().await.unwrap();
    shard
}

pub async fn create_topic(shard: &ShardService, n: u128, partitions: i32) {
    let Command::CreatePartitions(request) = create(n, partitions) else {
        panic!()
    };
    assert_eq!(shard.create_partitions(request).await.error_code, NONE);
}

pub async fn bases(shard: &ShardService, id: TopicPartition) -> Vec<i64> {
    let found = shard.find_batches(FindBatchesRequest {
        shard: SHARD,
        partitions: vec![find(id, 0)],
        max_bytes: 1 << 20,
    });
    let found = found.await;
    assert_eq!(found.error_code, NONE);
    found.partitions[0]
        .batches
        .iter()
        .map(|batch| batch.base_offset)
        .collect()
}

pub async fn high_watermark(shard: &ShardService, id: TopicPartition) -> i64 {
    let partitions = vec![ListOffsetsPartition {
        partition: id,
        timestamp: -1,
    }];
    let listed = shard
        .list_offsets(ListOffsetsRequest {
            shard: SHARD,
            partitions,
        })
        .await;
    assert_eq!(listed.error_code, NONE);
    listed.partitions[0].offset
}

fn files_below(dir: &Path) -> Vec<std::path::PathBuf> {
    let paths = |dir: &Path| -> Vec<_> {
        let entries = std::fs::read_dir(dir).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    paths(&dir.join("shards/0"))
        .iter()
        .flat_map(|life| paths(life))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn everything_is_there_after_a_restart_without_the_view() {
    let env = Env::simulated(1);
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(MemoryStore::new(env.clone()));
    let log = || ObjectLog::new(store.clone(), "0", metalog::Options::default(), env.clone());
    for round in 0..3u128 {
        let shard = open(&env, dir.path(), log()).await;
        create_topic(&shard, 1, 1).await;
        for n in 0..5 {
            let batch = idem(tp(1, 0), 1, 7, 0, (round * 5 + n) as i32);
            let result = shard.commit_file(file(round * 5 + n, vec![batch])).await;
            assert_eq!(
                (result.error_code, result.batches),
                (NONE, vec![ok((round * 5 + n) as i64)])
            );
        }
        // The producer is known from before the restart.
        let again = shard
            .commit_file(file(round * 5, vec![idem(tp(1, 0), 1, 7, 0, (round * 5) as i32)]))
            .await;
        assert_eq!(again.batches[0].base_offset, (round * 5) as i64);
        shard.stop().await;
        for path in files_below(dir.path()) {
            std::fs::remove_file(path).unwrap();
        }
    }
    let shard = open(&env, dir.path(), log()).await;
    assert_eq!(bases(&shard, tp(1, 0)).await, (0..15).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn snapshots_are_restored_and_the_log_below_them_is_not_needed() {
    let env = Env::simulated(1);
    let dir = tempfile::tempdir().unwrap();
    let log = MemoryLog::new(&env);
    let mut options = options(dir.path(), SHARD);
    options.replica.snapshot_slots = 8;
    let start = || ShardService::start(&env, options.clone(), Arc::new(log.clone()), owner(1)).unwrap();
    let shard = start();
    shard.leading().await.unwrap();
    create_topic(&shard, 1, 1).await;
    for n in 0..40 {
        shard.commit_file(file(n, vec![plain(tp(1, 0), 1)])).await;
        env.sleep(Duration::from_millis(1)).await;
    }
    shard.stop().await;
    assert!(log.log_start() > LogOffset(8));
    let shard = start();
    shard.leading().await.unwrap();
    assert_eq!(bases(&shard, tp(1, 0)).await, (0..40).collect::<Vec<_>>());
    assert_eq!(high_watermark(&shard, tp(1, 0)).await, 40);
    assert_eq!(
        shard
            .commit_file(file(40, vec![plain(tp(1, 0), 1)]))
            .await
            .batches,
        [ok(40)]
    );
}

#[tokio::test(start_paused = true)]
async fn a_view_that_is_damaged_is_rebuilt() {
    let env = Env::simulated(1);
    let dir = tempfile::tempdir().unwrap();
    let log = MemoryLog::new(&env);
    let shard = open(&env, dir.path(), log.clone()).await;
    create_topic(&shard, 1, 1).await;
    for n in 0..20 {
        shard.commit_file(file(n, vec![plain(tp(1, 0), 1)])).await;
    }
    shard.stop().await;
    for path in files_below(dir.path()) {
        let size = std::fs::metadata(&path).unwrap().len() as usize;
        std::fs::write(&path, vec![0xa5; size.max(100)]).unwrap();
    }
    let shard = open(&env, dir.path(), log).await;
    assert_eq!(bases(&shard, tp(1, 0)).await.len(), 20);
}

#[tokio::test(start_paused = true)]
async fn a_view_that_breaks_while_it_is_used_ends_the_replica_not_the_data() {
    let env = Env::simulated(1);
    let dir = tempfile::tempdir().unwrap();
    let log = MemoryLog::new(&env);
    let shard = open(&env, dir.path(), log.clone()).await;
    create_topic(&shard, 1, 1).await;
    shard.commit_file(file(1, vec![plain(tp(1, 0), 1)])).await;
    for path in files_below(dir.path()) {
        std::fs::remove_file(path).unwrap();
    }
    let found = shard.find_batches(FindBatchesRequest {
        shard: SHARD,
        partitions: vec![find(tp(1, 0), 0)],
        max_bytes: 1,
    });
    assert_eq!(found.await.error_code, COORDINATOR_NOT_AVAILABLE);
    assert!(matches!(shard.ended().await, End::Failed(_)));
    let shard = open(&env, dir.path(), log).await;
    assert_eq!(bases(&shard, tp(1, 0)).await, [0]);
}

#[tokio::test(start_paused = true)]
async fn error_codes_say_whom_to_ask() {
    let env = Env::simulated(1);
    let (dir, other_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let log = MemoryLog::new(&env);
    log.set_unavailable(true);
    let old = start(&env, dir.path(), log.clone());
    assert_eq!(
        old.commit_file(file(1, vec![])).await.error_code,
        COORDINATOR_LOAD_IN_PROGRESS
    );
    log.set_unavailable(false);
    old.leading().await.unwrap();
    create_topic(&old, 1, 1).await;
    log.set_open(false);
    let lost = {
        let old = old.clone();
        env.spawn(async move { old.commit_file(file(2, vec![plain(tp(1, 0), 1)])).await })
    };
    let tailing = {
        let old = old.clone();
        let from = LogOffset(2);
        env.spawn(async move {
            old.tail(TailRequest {
                shard: SHARD,
                from,
                max_wait_ms: 20_000,
            })
            .await
        })
    };
    env.sleep(Duration::from_millis(1)).await;
    let new = open(&env, other_dir.path(), log.clone()).await;
    log.set_open(true);
    assert_eq!(lost.await.unwrap().error_code, NOT_COORDINATOR);
    assert_eq!(tailing.await.unwrap().error_code, NOT_COORDINATOR);
    assert!(matches!(
        *old.status().borrow(),
        Status::Ended(End::Fenced { .. })
    ));
    let wanted = FindBatchesRequest {
        shard: SHARD,
        partitions: vec![],
        max_bytes: 1,
    };
    assert_eq!(old.find_batches(wanted).await.error_code, NOT_COORDINATOR);
    // What the old leader never acknowledged is not there; the broker asks the new one.
    assert_eq!(
        new.commit_file(file(2, vec![plain(tp(1, 0), 1)])).await.batches,
        [ok(0)]
    );
}

#[tokio::test(start_paused = true)]
async fn a_deposed_leader_does_not_send_consumers_back() {
    let env = Env::simulated(1);
    let (dir, other_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let log = MemoryLog::new(&env);
    let old = open(&env, dir.path(), log.clone()).await;
    create_topic(&old, 1, 1).await;
    env.sleep(Duration::from_secs(4)).await;
    let new = open(&env, other_dir.path(), log.clone()).await;
    let committed = new.commit_file(file(1, vec![plain(tp(1, 0), 3)])).await;
    assert_eq!(committed.batches, [ok(0)]);
    // The old leader has not noticed. A consumer that has read the three records comes to it: they are not out of range.
    let ask = |offset| FindBatchesRequest {
        shard: SHARD,
        partitions: vec![find(tp(1, 0), offset)],
        max_bytes: 1,
    };
    assert!(old.is_leading());
    assert_eq!(old.find_batches(ask(3)).await.error_code, NOT_COORDINATOR);
    // Who does lead knows what is out of range.
    let found = new.find_batches(ask(4)).await;
    assert_eq!(
        (found.error_code, found.partitions[0].error_code),
        (NONE, OFFSET_OUT_OF_RANGE)
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_not_durable_is_never_seen() {
    let env = Env::simulated(1);
    let dir = tempfile::tempdir().unwrap();
    let log = MemoryLog::new(&env);
    let shard = open(&env, dir.path(), log.clone()).await;
    create_topic(&shard, 1, 1).await;
    log.set_open(false);
    let commit = {
        let shard = shard.clone();
        env.spawn(async move { shard.commit_file(file(1, vec![plain(tp(1, 0), 1)])).await })
    };
    let strict = {
        let shard = shard.clone();
        env.spawn(async move { high_watermark(&shard, tp(1, 0)).await })
    };
    env.sleep(Duration::from_millis(5)).await;
    assert_eq!(bases(&shard, tp(1, 0)).await, Vec::<i64>::new());
    assert!(!strict.is_finished());
    log.set_open(true);
    commit.await.unwrap();
    assert_eq!(strict.await.unwrap(), 1);
    assert_eq!(bases(&shard, tp(1, 0)).await, [0]);
}

#[tokio::test(start_paused = true)]
async fn the_tail_wakes_who_waits() {
    let env = Env::simulated(1);
    let dir = tempfile::tempdir().unwrap();
    let shard = open(&env, dir.path(), MemoryLog::new(&env)).await;
    create_topic(&shard, 1, 1).await;
    let first = shard
        .tail(TailRequest {
            shard: SHARD,
            from: LogOffset(0),
            max_wait_ms: 0,
        })
        .await;
    let waiting = {
        let (shard, from) = (shard.clone(), first.next);
        env.spawn(async move {
            shard
                .tail(TailRequest {
                    shard: SHARD,
                    from,
                    max_wait_ms: 10_000,
                })
                .await
        })
    };
    env.sleep(Duration::from_millis(100)).await;
    assert!(!waiting.is_finished());
    shard.commit_file(file(1, vec![plain(tp(1, 0), 3)])).await;
    let news = waiting.await.unwrap();
    assert_eq!(
        (
            news.partitions[0].high_watermark,
            news.partitions[0].batches.len()
        ),
        (3, 1)
    );
    let none = shard
        .tail(TailRequest {
            shard: SHARD,
            from: news.next,
            max_wait_ms: 50,
        })
        .await;
    assert_eq!(
        (none.error_code, none.reset, none.next, none.partitions.len()),
        (NONE, false, news.next, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn groups_and_offsets_survive() {
    let env = Env::simulated(1);
    let dir = tempfile::tempdir().unwrap();
    let log = MemoryLog::new(&env);
    let shard = open(&env, dir.path(), log.clone()).await;
    let commit = |topic: &str, partition, offset| OffsetCommit {
        topic: topic.to_owned(),
        topic_id: None,
        partition,
        offset,
        leader_epoch: -1,
        metadata: Some("words".to_owned()),
    };
    shard
        .put_group(
            "g1".into(),
            Some(Bytes::from_static(b"one")),
            vec![commit("t1", 0, 5)],
        )
        .await
        .unwrap();
    shard
        .commit_offsets("g2".into(), vec![commit("t1", 1, 7), commit("t2", 0, 8)])
        .await
        .unwrap();
    shard
        .commit_offsets("g2".into(), vec![commit("t1", 1, 9)])
        .await
        .unwrap();
    shard
        .delete_offsets("g2".into(), vec![("t2".into(), 0), ("t9".into(), 9)])
        .await
        .unwrap();
    shard
        .put_group(
            "g3".into(),
            Some(Bytes::from_static(b"three")),
            vec![commit("t2", 2, 1)],
        )
        .await
        .unwrap();
    shard.put_group("g3".into(), None, vec![]).await.unwrap();
    shard.stop().await;
    let shard = open(&env, dir.path(), log).await;
    let stored = |group: &str, metadata: Option<&'static [u8]>| StoredGroup {
        group: group.into(),
        metadata: metadata.map(Bytes::from_static),
    };
    assert_eq!(
        shard.load_groups().await.unwrap(),
        [stored("g1", Some(b"one")), stored("g2", None)]
    );
    let offsets = shard.fetch_offsets("g2".into(), None).await.unwrap();
    assert_eq!(
        offsets.iter().map(|o| &o.commit).collect::<Vec<_>>(),
        [&commit("t1", 1, 9)]
    );
    let some = Some(vec![("t1".into(), 0), ("t1".into(), 3)]);
    assert_eq!(shard.fetch_offsets("g1".into(), some).await.unwrap().len(), 1);
    // The topic takes its offsets with it.
    let topics = vec![DeleteTopic {
        topic: topic(1),
        name: "t1".into(),
    }];
    shard
        .delete_topics(DeleteTopicsRequest { shard: SHARD, topics })
        .await;
    assert_eq!(shard.load_groups().await.unwrap(), [stored("g1", Some(b"one"))]);
}

#[tokio::test(start_paused = true)]
async fn offsets_that_come_after_the_deletion_of_their_topic_are_refused_by_every_leader() {
    let (env, dir) = (Env::simulated(1), tempfile::tempdir().unwrap());
    let log = MemoryLog::new(&env);
    let mut shard = open(&env, dir.path(), log.clone()).await;
    let commit = |id: u128, offset| OffsetCommit {
        topic: "t".to_owned(),
        topic_id: Some(topic(id)),
        partition: 0,
        offset,
        leader_epoch: -1,
        metadata: None,
    };
    let other = OffsetCommit {
        topic: "other".to_owned(),
        ..commit(3, 5)
    };
    assert!(
        shard
            .commit_offsets("g".into(), vec![commit(1, 100)])
            .await
            .unwrap()
    );
    let deleted = DeleteTopic {
        topic: topic(1),
        name: "t".into(),
    };
    let request = DeleteTopicsRequest {
        shard: SHARD,
        topics: vec![deleted],
    };
    shard.delete_topics(request).await;
    for life in 0..3 {
        // It was on its way when the topic was deleted, and has found whoever leads now.
        let late = vec![other.clone(), commit(1, 200)];
        assert!(
            !shard.commit_offsets("g".into(), late).await.unwrap(),
            "life {life}"
        );
        let stored = shard.fetch_offsets("g".into(), None).await.unwrap();
        let stored: Vec<_> = stored.iter().map(|offset| offset.commit.offset).collect();
        // A new topic of the name has offsets of its own.
        let expected: &[i64] = if life < 2 { &[] } else { &[7] };
        assert_eq!(stored, expected, "life {life}");
        if life == 1 {
            assert!(
                shard
                    .commit_offsets("g".into(), vec![commit(2, 7)])
                    .await
                    .unwrap()
            );
        }
        shard.stop().await;
        shard = open(&env, dir.path(), log.clone()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_creation_that_comes_after_the_deletion_is_refused() {
    let (env, dir) = (Env::simulated(1), tempfile::tempdir().unwrap());
    let log = MemoryLog::new(&env);
    let shard = open(&env, dir.path(), log.clone()).await;
    let create = || CreatePartitionsRequest {
        shard: SHARD,
        topic: topic(1),
        name: "t1".into(),
        partitions: vec![0],
    };
    assert_eq!(shard.create_partitions(create()).await.error_code, NONE);
    let topics = vec![DeleteTopic {
        topic: topic(1),
        name: "t1".into(),
    }];
    let delete = DeleteTopicsRequest { shard: SHARD, topics };
    assert_eq!(shard.delete_topics(delete).await.error_code, NONE);
    let late = shard.create_partitions(create()).await.error_code;
    assert_eq!(late, UNKNOWN_TOPIC_ID);
    // Whoever leads the shard next knows it, too.
    shard.stop().await;
    let shard = open(&env, dir.path(), log).await;
    let late = shard.create_partitions(create()).await.error_code;
    assert_eq!(late, UNKNOWN_TOPIC_ID);
    let request = DescribePartitionsRequest {
        shard: SHARD,
        partitions: vec![tp(1, 0)],
        producers: true,
    };
    let described = shard.describe_partitions(request).await;
    assert_eq!(described.partitions[0].error_code, UNKNOWN_TOPIC_OR_PARTITION);
}

#[test]
fn the_wal_is_started_anew_when_a_checkpoint_was_made() {
    let mut shard = Shard::new();
    shard.create(1, 1);
    for n in 0..300 {
        shard.commit(n, vec![plain(tp(1, 0), 1); 20]);
    }
    // Someone who reads is in the way, and goes.
    let reader = rusqlite::Connection::open(shard.dir.path().join("view.db")).unwrap();
    reader.execute_batch("BEGIN").unwrap();
    let read: i64 = reader
        .query_row("SELECT count(*) FROM batches", (), |row| row.get(0))
        .unwrap();
    assert_eq!(read, 6_000);
    let path = shard.dir.path().join("view.db-wal");
    let wal = || std::fs::metadata(&path).unwrap().len();
    shard
        .shared
        .restart_wal
        .store(true, std::sync::atomic::Ordering::Release);
    shard.commit(1000, vec![plain(tp(1, 0), 1); 20]);
    reader.execute_batch("ROLLBACK").unwrap();
    shard.commit(1001, vec![plain(tp(1, 0), 1); 20]);
    let grown = wal();
    assert!(grown > 1 << 20);
    for n in 1002..1100 {
        shard.commit(n, vec![plain(tp(1, 0), 1); 20]);
    }
    assert_eq!(wal(), grown, "it is written from its beginning again");
    assert_eq!(shard.count("SELECT count(*) FROM batches"), 8_000);
}
