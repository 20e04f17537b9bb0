//! Shards that follow: what they may say, and how they take over.

use std::time::Duration;

use blob::MemoryStore;
use env::Env;
use metalog::ObjectLog;

use super::commit::find;
use super::service::{bases, create_topic, high_watermark, options, start};
use super::*;
use crate::codes::*;
use crate::replica::tests::memory_log::{MemoryLog, owner};
use crate::shard::ShardService;

fn find_all(id: TopicPartition) -> FindBatchesRequest {
    FindBatchesRequest {
        shard: SHARD,
        partitions: vec![find(id, 0)],
        max_bytes: 1 << 20,
    }
}

#[tokio::test(start_paused = true)]
async fn a_follower_finds_batches_and_takes_over_with_its_view() {
    let env = Env::simulated(1);
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = Arc::new(MemoryStore::new(env.clone()));
    let log = || ObjectLog::new(store.clone(), "0", metalog::Options::default(), env.clone());
    let leader = start(&env, first.path(), log());
    leader.leading().await.unwrap();
    create_topic(&leader, 1, 1).await;
    let options = options(second.path(), SHARD);
    let follower = ShardService::follow(&env, options, Arc::new(log()), owner(2)).unwrap();
    let early = follower.find_batches(find_all(tp(1, 0))).await;
    assert_eq!(early.error_code, NOT_COORDINATOR, "it has not seen the log yet");
    let mut last = (LogOffset(0), 0);
    for n in 0..10 {
        leader.commit_file(file(n, vec![plain(tp(1, 0), 1)])).await;
        env.sleep(Duration::from_millis(300)).await;
        let found = follower.find_batches(find_all(tp(1, 0))).await;
        let high_watermark = found.partitions[0].high_watermark;
        assert_eq!(found.error_code, NONE);
        assert!(
            found.applied >= last.0 && high_watermark >= last.1,
            "it goes back"
        );
        assert!(high_watermark <= n as i64 + 1);
        last = (found.applied, high_watermark);
    }
    env.sleep(Duration::from_secs(3)).await;
    assert!(follower.is_warm());
    let found = follower.find_batches(find_all(tp(1, 0))).await;
    assert_eq!(found.partitions[0].high_watermark, 10);
    // What must be fresh, or changes something, is for the leader.
    let strict = follower.list_offsets(ListOffsetsRequest {
        shard: SHARD,
        partitions: Vec::new(),
    });
    assert_eq!(strict.await.error_code, NOT_COORDINATOR);
    let commit = follower.commit_file(file(99, vec![plain(tp(1, 0), 1)])).await;
    assert_eq!(commit.error_code, NOT_COORDINATOR);

    leader.commit_file(file(10, vec![plain(tp(1, 0), 1)])).await;
    leader.stop().await;
    follower.lead().await;
    follower.leading().await.unwrap();
    assert_eq!(high_watermark(&follower, tp(1, 0)).await, 11);
    let next = follower.commit_file(file(11, vec![plain(tp(1, 0), 1)])).await;
    assert_eq!(next.batches, [ok(11)]);
    let again = follower.commit_file(file(10, vec![plain(tp(1, 0), 1)])).await;
    assert_eq!(again.batches, [ok(10)], "the file is known from before");
}

#[tokio::test(start_paused = true)]
async fn readers_of_a_follower_see_the_snapshot_that_replaced_its_view() {
    let env = Env::simulated(1);
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let log = MemoryLog::new(&env);
    let mut leading = options(first.path(), SHARD);
    leading.replica.snapshot_slots = 4;
    let leader = ShardService::start(&env, leading, Arc::new(log.clone()), owner(1)).unwrap();
    leader.leading().await.unwrap();
    create_topic(&leader, 1, 1).await;
    let options = options(second.path(), SHARD);
    let follower = ShardService::follow(&env, options, Arc::new(log.clone()), owner(2)).unwrap();
    env.sleep(Duration::from_secs(3)).await;
    let before = follower.find_batches(find_all(tp(1, 0))).await;
    assert_eq!(before.partitions[0].high_watermark, 0);
    log.set_unavailable(true);
    for n in 0..40 {
        leader.commit_file(file(n, vec![plain(tp(1, 0), 1)])).await;
        env.sleep(Duration::from_millis(1)).await;
    }
    assert!(log.log_start() > before.applied.next());
    env.sleep(Duration::from_secs(15)).await;
    let cut_off = follower.find_batches(find_all(tp(1, 0))).await;
    assert_eq!(cut_off.error_code, NOT_COORDINATOR, "it may be far behind");
    log.set_unavailable(false);
    env.sleep(Duration::from_secs(5)).await;
    let after = follower.find_batches(find_all(tp(1, 0))).await;
    assert_eq!((after.error_code, after.partitions[0].high_watermark), (NONE, 40));
    follower.lead().await;
    follower.leading().await.unwrap();
    assert_eq!(bases(&follower, tp(1, 0)).await.len(), 40);
}

#[test]
fn many_slots_in_one_transaction_come_to_the_same() {
    let mut shard = Shard::new();
    shard.create(1, 3);
    for n in 0..30 {
        shard.now += 1000;
        let batch = |partition: i32| idem(tp(1, partition), 2, 7, 0, (n / 3 * 2) as i32);
        shard.commit(n, vec![batch((n % 3) as i32), plain(tp(1, 1), 1)]);
        if n == 10 {
            shard.delete_records(tp(1, 1), 5);
        }
        if n == 12 {
            shard.run(delete_topic(2));
            shard.purge();
        }
        if n == 20 {
            let expired = crate::shard::Expired {
                producers: vec![(1, 7), (2, 7), (3, 7)],
                producers_before: Timestamp(shard.now - 500),
                ..Default::default()
            };
            shard.run(Command::Expire(expired));
        }
    }
    shard.run(delete_topic(1));
    shard.purge();
    for at_once in [2, 7, 1000] {
        let mut again = Shard::new();
        let slots: Vec<_> = shard
            .log
            .iter()
            .enumerate()
            .map(|(offset, entries)| metalog::Slot {
                offset: LogOffset(offset as u64),
                epoch: types::Epoch(1),
                entries: entries.clone(),
            })
            .collect();
        for some in slots.chunks(at_once) {
            again.state.apply_slots(some).unwrap();
        }
        again.state.apply_slots(&slots[3..9]).unwrap();
        assert_eq!(again.dump(), shard.dump());
        let gap = metalog::Slot {
            offset: LogOffset(slots.len() as u64 + 1),
            epoch: types::Epoch(1),
            entries: Vec::new(),
        };
        assert!(again.state.apply_slots(&[gap]).is_err());
    }
}
