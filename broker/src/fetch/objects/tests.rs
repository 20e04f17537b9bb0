use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use blob::faults::{Decision, Fault, Faulty};
use blob::tracked::Tracked;
use blob::{MemoryStore, Operation, SharedStore};
use types::Timestamp;

use super::*;
use crate::produce::testing::batch;

async fn stored(damage: bool) -> (Objects, Vec<(Coordinate, bool)>) {
    stored_behind(damage, 0, Duration::ZERO).await
}

/// The first `damaged` reads of the store give wrong bytes, and all of them take `delay`.
async fn stored_behind(damage: bool, damaged: u32, delay: Duration) -> (Objects, Vec<(Coordinate, bool)>) {
    let env = Env::simulated(3);
    let store: SharedStore = Arc::new(MemoryStore::new(env.clone()));
    let object = env.uuid();
    let batches = [
        batch(3, 1000, |_| {}),
        batch(2, 1000, |_| {}),
        batch(1, 1000, |_| {}),
    ];
    let mut bytes = vec![0];
    let mut coordinates = Vec::new();
    for (index, batch) in batches.iter().enumerate() {
        let base = index as i64 * 10;
        coordinates.push(Coordinate {
            base_offset: base,
            last_offset: base + 2 - index as i64,
            object,
            object_size: 0,
            position: bytes.len() as u32,
            size: batch.len() as u32,
            max_timestamp: Timestamp(1000),
            log_append_time: Timestamp(-1),
        });
        bytes.extend_from_slice(batch);
    }
    if damage {
        let at = coordinates[1].position as usize + 70;
        bytes[at] ^= 1;
    }
    for coordinate in &mut coordinates {
        coordinate.object_size = bytes.len() as u64;
    }
    store
        .put(&wal::object_key(object), vec![Bytes::from(bytes)])
        .await
        .unwrap();
    let gets = AtomicU32::new(0);
    let plan = move |operation, _: &str| {
        let bad = operation == Operation::Get && gets.fetch_add(1, Relaxed) < damaged;
        Decision {
            delay,
            fault: if bad { Fault::Damage } else { Fault::None },
        }
    };
    let faulty = Faulty::new(store, env.clone(), Arc::new(plan));
    let cache = Arc::new(ObjectCache::new(Arc::new(faulty), 1 << 20));
    (
        Objects::new(env, cache, Duration::from_secs(30), None),
        coordinates.into_iter().map(|at| (at, false)).collect(),
    )
}

#[tokio::test]
async fn batches_come_in_order_from_ranges_and_from_whole_objects() {
    for tail in [false, true] {
        let (objects, mut coordinates) = stored(false).await;
        coordinates.iter_mut().for_each(|(_, flag)| *flag = tail);
        coordinates.swap(0, 2);
        let read = objects.read(&coordinates[..2]).await;
        for ((at, _), bytes) in coordinates.iter().zip(read) {
            assert_eq!(bytes.unwrap().len(), at.size as usize);
        }
        assert_eq!(objects.cache.stats().bytes > 0, tail);
    }
}

#[tokio::test]
async fn only_the_damaged_batch_is_corrupt() {
    for tail in [false, true] {
        let (objects, mut coordinates) = stored(true).await;
        coordinates.iter_mut().for_each(|(_, flag)| *flag = tail);
        let read = objects.read(&coordinates).await;
        assert!(read[0].is_ok() && read[2].is_ok());
        assert_eq!(read[1], Err(ReadError::Corrupt));
        assert!(
            objects.cache.stats().bytes == 0,
            "the next reader asks the store again"
        );
    }
}

#[tokio::test]
async fn what_was_damaged_on_its_way_is_read_again_once() {
    for tail in [false, true] {
        for damaged in [1, 2] {
            let (objects, mut coordinates) = stored_behind(false, damaged, Duration::ZERO).await;
            coordinates.iter_mut().for_each(|(_, flag)| *flag = tail);
            // The damage is in the last batch.
            let read = objects.read(&coordinates).await;
            assert!(read[0].is_ok() && read[1].is_ok());
            assert_eq!(read[2].is_ok(), damaged == 1, "tail {tail}, {damaged} times");
        }
    }
}

#[tokio::test]
async fn a_missing_object_is_unavailable() {
    let (objects, mut coordinates) = stored(false).await;
    coordinates[0].0.object = Uuid::from_u128(1);
    let read = objects.read(&coordinates).await;
    assert_eq!(read[0], Err(ReadError::Unavailable));
    assert!(read[1].is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_read_and_its_repetition_have_one_time_limit() {
    for (delay, comes) in [(10, true), (20, false)] {
        let (objects, coordinates) = stored_behind(false, 1, Duration::from_secs(delay)).await;
        let begun = objects.env.instant();
        let read = objects.read(&coordinates).await;
        let took = objects.env.instant().saturating_duration_since(begun);
        assert!(took <= objects.read_timeout, "{took:?}");
        assert!(read[0].is_ok() && read[1].is_ok());
        assert_eq!(read[2].is_ok(), comes, "{delay} s each");
    }
}

#[tokio::test]
async fn what_is_far_apart_is_read_apart_and_what_is_small_is_copied() {
    let env = Env::simulated(3);
    let store: SharedStore = Arc::new(MemoryStore::new(env.clone()));
    let small = batch(3, 1000, |_| {});
    let far = 3 << 20;
    let positions = [0, 10_000, far];
    let mut body = vec![0; far + small.len()];
    for position in positions {
        body[position..position + small.len()].copy_from_slice(&small);
    }
    let object = env.uuid();
    let object_size = body.len() as u64;
    let key = wal::object_key(object);
    store.put(&key, vec![body.into()]).await.unwrap();
    let tracked = Tracked::new(store, env.clone(), Duration::ZERO);
    let held = tracked.held();
    let cache = Arc::new(ObjectCache::new(Arc::new(tracked), 1 << 20));
    let objects = Objects::new(env, cache, Duration::from_secs(30), None);
    let coordinates = positions.map(|position| {
        let at = Coordinate {
            base_offset: 0,
            last_offset: 2,
            object,
            object_size,
            position: position as u32,
            size: small.len() as u32,
            max_timestamp: Timestamp(1000),
            log_append_time: Timestamp(-1),
        };
        (at, false)
    });
    let read = objects.read(&coordinates).await;
    assert!(read.iter().all(|bytes| bytes.as_ref() == Ok(&small)));
    assert_eq!(held.reads(), 2);
    assert_eq!(held.most(), (10_000 + 2 * small.len()) as u64);
    // The far one is all that was read of its part.
    assert_eq!(held.now(), small.len() as u64);
}
