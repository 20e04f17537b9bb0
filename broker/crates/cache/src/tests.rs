use std::sync::Arc;
use std::time::Duration;

use blob::tracked::Tracked;
use blob::{MemoryStore, Metered, Metrics, Operation};
use env::Env;

use super::*;

struct Fixture {
    cache: ObjectCache,
    store: SharedStore,
    metrics: Arc<Metrics>,
}

fn fixture(capacity: u64) -> Fixture {
    let env = Env::simulated(1);
    let metrics = Arc::new(Metrics::default());
    let store: SharedStore = Arc::new(MemoryStore::new(env.clone()));
    let metered: SharedStore = Arc::new(Metered::new(store.clone(), env, metrics.clone()));
    Fixture {
        cache: ObjectCache::new(metered, capacity),
        store,
        metrics,
    }
}

impl Fixture {
    fn gets(&self) -> u64 {
        let snapshot = self.metrics.snapshot();
        snapshot
            .iter()
            .find(|row| row.operation == Operation::Get)
            .unwrap()
            .requests
    }
}

#[tokio::test]
async fn many_readers_share_one_get() {
    let f = fixture(1 << 20);
    let id = Uuid::from_u128(7);
    f.store
        .put("wal/x", vec![Bytes::from(vec![5; 1000])])
        .await
        .unwrap();
    let loads = (0..20).map(|_| f.cache.load(id, "wal/x", 1000));
    for object in futures::future::join_all(loads).await {
        assert_eq!(object.unwrap().slice(999, 1).unwrap()[0], 5);
    }
    assert_eq!(f.gets(), 1);
    assert!(f.cache.cached(id).is_some_and(|object| !object.is_trusted()));
}

#[tokio::test]
async fn own_uploads_need_no_get() {
    let f = fixture(1 << 20);
    let id = Uuid::from_u128(7);
    f.cache
        .insert(id, vec![Bytes::from_static(b"ab"), Bytes::from_static(b"cd")]);
    let object = f.cache.load(id, "wal/x", 4).await.unwrap();
    assert!(object.is_trusted());
    assert_eq!(f.gets(), 0);
}

#[tokio::test]
async fn failures_are_not_remembered() {
    let f = fixture(1 << 20);
    let id = Uuid::from_u128(7);
    assert!(matches!(
        f.cache.load(id, "wal/x", 3).await,
        Err(BlobError::NotFound(_))
    ));
    f.store
        .put("wal/x", vec![Bytes::from_static(b"ab")])
        .await
        .unwrap();
    assert!(matches!(
        f.cache.load(id, "wal/x", 3).await,
        Err(BlobError::Corrupt(_))
    ));
    assert!(f.cache.load(id, "wal/x", 2).await.is_ok());
    f.cache.forget(id);
    assert!(f.cache.cached(id).is_none());
}

#[tokio::test]
async fn the_cache_stays_within_its_size() {
    let f = fixture(10_000);
    for id in 0..100 {
        f.cache
            .insert(Uuid::from_u128(id), vec![Bytes::from(vec![0; 1000])]);
    }
    assert!(f.cache.stats().bytes <= 10_000);
    assert!(f.cache.cached(Uuid::from_u128(99)).is_some());
}

#[tokio::test]
async fn a_reader_that_gives_up_holds_nobody_up() {
    let f = fixture(1 << 20);
    let id = Uuid::from_u128(7);
    f.store
        .put("wal/x", vec![Bytes::from_static(b"ab")])
        .await
        .unwrap();
    let permits = f.cache.hot.enter(u64::MAX).await;
    let mut first = Box::pin(f.cache.load(id, "wal/x", 2));
    let mut second = Box::pin(f.cache.load(id, "wal/x", 2));
    assert!(futures::poll!(&mut first).is_pending() && futures::poll!(&mut second).is_pending());
    drop(first);
    drop(permits);
    assert!(second.await.is_ok());
    assert!(f.cache.loading.lock().is_empty());
}

#[tokio::test]
async fn cold_reads_take_their_range_and_leave_the_cache_alone() {
    let f = fixture(1 << 20);
    f.store
        .put("wal/x", vec![Bytes::from_static(b"0123456789")])
        .await
        .unwrap();
    assert_eq!(&f.cache.read("wal/x", 2..5).await.unwrap().bytes[..], b"234");
    assert!(matches!(
        f.cache.read("wal/x", 8..12).await,
        Err(BlobError::Corrupt(_))
    ));
    assert_eq!(f.cache.stats().bytes, 0);
}

/// The most bytes under way at the same time, when all of `sizes` are read at once.
async fn most_at_once(capacity: u64, sizes: &[usize], cold: bool) -> u64 {
    let env = Env::simulated(1);
    let store: SharedStore = Arc::new(MemoryStore::new(env.clone()));
    for (id, size) in sizes.iter().enumerate() {
        let body = vec![Bytes::from(vec![0; *size])];
        store.put(&format!("wal/{id}"), body).await.unwrap();
    }
    let tracked = Tracked::new(store, env, Duration::from_secs(1));
    let held = tracked.held();
    let cache = ObjectCache::new(Arc::new(tracked), capacity);
    let read = |(id, size): (usize, &usize)| {
        let (cache, size) = (&cache, *size as u64);
        async move {
            let key = format!("wal/{id}");
            match cold {
                true => drop(cache.read(&key, 0..size).await.unwrap()),
                false => drop(cache.load(Uuid::from_u128(id as u128), &key, size).await.unwrap()),
            }
        }
    };
    futures::future::join_all(sizes.iter().enumerate().map(read)).await;
    held.most()
}

#[tokio::test(start_paused = true)]
async fn reads_under_way_are_bounded_in_bytes_and_in_number() {
    for cold in [false, true] {
        // In a cache that keeps nothing.
        assert_eq!(most_at_once(0, &[1 << 20; 20], cold).await, 4 << 20);
        let most = if cold { COLD_READS } else { HOT_READS };
        assert_eq!(most_at_once(0, &[1; 200], cold).await, u64::from(most));
        // What is larger than all the room is read alone.
        assert_eq!(most_at_once(0, &[5 << 20; 3], cold).await, 5 << 20);
    }
    assert_eq!(most_at_once(64 << 20, &[1 << 20; 20], true).await, 8 << 20);
}

#[tokio::test]
async fn a_range_counts_as_long_as_it_is_kept() {
    let f = fixture(1 << 20);
    let body = vec![Bytes::from(vec![0; 3 << 20])];
    f.store.put("wal/x", body).await.unwrap();
    let first = f.cache.read("wal/x", 0..3 << 20).await.unwrap();
    let mut second = Box::pin(f.cache.read("wal/x", 0..3 << 20));
    assert!(futures::poll!(&mut second).is_pending());
    drop(first);
    assert!(second.await.is_ok());
}

#[tokio::test]
async fn ranges_come_from_the_store_that_is_for_them() {
    let f = fixture(1 << 20);
    let cold: SharedStore = Arc::new(MemoryStore::new(Env::simulated(1)));
    f.store
        .put("wal/hot", vec![Bytes::from_static(b"hot")])
        .await
        .unwrap();
    cold.put("wal/cold", vec![Bytes::from_static(b"cold")])
        .await
        .unwrap();
    let cache = f.cache.with_cold_store(cold);
    assert!(cache.load(Uuid::from_u128(1), "wal/hot", 3).await.is_ok());
    assert!(cache.load(Uuid::from_u128(2), "wal/cold", 4).await.is_err());
    assert_eq!(&cache.read("wal/cold", 0..4).await.unwrap().bytes[..], b"cold");
}
