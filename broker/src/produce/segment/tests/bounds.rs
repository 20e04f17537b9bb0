//! What waits must cost the others nothing.

use std::collections::BTreeSet;

use coordinator::protocol::MAX_FILE_BATCHES;

use super::super::super::detach;
use super::super::super::testing::{watched, with_records};
use super::*;

#[tokio::test(start_paused = true)]
async fn a_shard_that_does_not_answer_holds_up_no_segment_of_the_others() {
    const REST: usize = 100;
    let f = fixture(fine, |call| match call.shard.0 {
        2 => Behaviour::Silent,
        _ => at_once(call),
    });
    let budget = MemoryBudget::new(1 << 20);
    let bytes = plain(1, 1000, |_| {});
    let mut waiting = Vec::new();
    // Of partitions of their own, and one behind the other.
    for number in 0..80 {
        let append = append(100 + number % 60, 2, bytes.clone());
        let memory = budget.take(bytes.len() + REST).await;
        let outcome = f.producer.append(vec![append], 60 * SECOND, Some(memory));
        waiting.push(f.env.spawn(outcome));
        f.env.sleep(Duration::from_millis(5)).await;
    }
    for topic in 1..10 {
        let outcome = f.one(append(topic, 1, bytes.clone()), 60 * SECOND).await;
        let outcome = f.env.timeout(5 * SECOND, outcome).await;
        assert_eq!(codes(&outcome.unwrap().unwrap()), [0], "topic {topic} waits");
    }
    assert!(waiting.iter().all(|outcome| !outcome.is_finished()));
    assert_eq!(budget.used(), 80 * REST, "their bytes are the cache's");
    assert!(!f.producer.finish(f.env.instant() + SECOND).await);
    let time_out = ResponseError::RequestTimedOut.code();
    for outcome in waiting {
        assert_eq!(codes(&outcome.await.unwrap()), [time_out]);
    }
    assert!(f.producer.finish(f.env.instant() + SECOND).await);
    assert_eq!(budget.used(), 0);
}

#[tokio::test(start_paused = true)]
async fn owner_chains_are_random_and_the_same_at_all_shards() {
    let f = fixture(fine, at_once);
    for _ in 0..60 {
        let appends = (1..4).map(|shard| append(shard.into(), shard, plain(1, 1000, |_| {})));
        let outcomes = f.producer.append(appends.collect(), SECOND, None).await;
        assert_eq!(codes(&outcomes), [0, 0, 0]);
    }
    let mut chains: BTreeMap<Uuid, BTreeSet<Vec<ShardId>>> = BTreeMap::new();
    for call in f.shards.calls.lock().iter() {
        chains.entry(call.object).or_default().insert(call.owners.clone());
    }
    assert_eq!(chains.len(), 60);
    assert!(
        chains.values().all(|chains| chains.len() == 1),
        "the shards of a file agree"
    );
    let orders: BTreeSet<Vec<ShardId>> = chains.into_values().flatten().collect();
    assert_eq!(
        orders.len(),
        6,
        "every order of three shards comes up: {orders:?}"
    );
    for mut order in orders {
        order.sort();
        assert_eq!(order, [ShardId(1), ShardId(2), ShardId(3)]);
    }
}

/// A batch of this size in all.
fn sized(size: usize) -> Bytes {
    with_records(&vec![7; size - 61], 1, 1000, |_| {})
}

#[tokio::test(start_paused = true)]
async fn the_cache_keeps_nothing_alive_that_it_does_not_count() {
    let f = fixture(fine, at_once);
    // One large batch among garbage; some among small ones; nothing but large ones.
    let frames = [
        (vec![20_000], 1 << 20, true),
        (vec![20_000, 8_000, 8_000, 30_000, 8_000], 0, true),
        (vec![20_000, 40_000, 500], 200, false),
    ];
    for (sizes, garbage, copied) in frames {
        let mut bytes: Vec<u8> = sizes.iter().flat_map(|size| sized(*size)).collect();
        bytes.resize(bytes.len() + garbage, 0);
        let (frame, gone) = watched(bytes.into());
        let mut rest = frame.clone();
        let batches = sizes.iter().map(|size| rest.split_to(*size));
        let mut appends: Vec<Append> = (1..)
            .zip(batches)
            .map(|(topic, batch)| append(topic, 1, batch))
            .collect();
        let large: usize = sizes.iter().filter(|size| **size > 16 << 10).sum();
        let size = detach(&mut appends, frame.len());
        assert_eq!(size, if copied { large } else { 0 }, "{sizes:?}");
        drop((frame, rest));
        let outcomes = f.producer.append(appends, SECOND, None).await;
        assert!(outcomes.iter().all(|outcome| outcome.error_code == 0));
        f.env.sleep(SECOND).await;
        assert_eq!(gone(), copied, "{sizes:?}");
        let call = f.shards.calls.lock().last().cloned().unwrap();
        let object = f.cache.cached(call.object).unwrap();
        for (at, size) in call.batches.iter().zip(&sizes) {
            assert_eq!(object.slice(at.position, at.size).unwrap(), sized(*size));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_commit_has_no_more_batches_than_the_log_takes() {
    let f = fixture(fine, at_once);
    let bytes = plain(1, 1000, |_| {});
    let count = MAX_FILE_BATCHES + 1000;
    let appends = (0..count).map(|_| append(1, 1, bytes.clone()));
    let outcomes = f.producer.append(appends.collect(), 60 * SECOND, None).await;
    assert!(outcomes.iter().all(|outcome| outcome.error_code == 0));
    let calls = f.shards.calls.lock();
    let batches: Vec<usize> = calls.iter().map(|call| call.batches.len()).collect();
    assert_eq!(batches, [MAX_FILE_BATCHES, 1000]);
}
