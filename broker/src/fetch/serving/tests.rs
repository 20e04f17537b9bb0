use blob::{MemoryStore, SharedStore};
use bytes::Buf;
use coordinator::protocol::ObjectRange;
use kafka_wire::flex::Decode;

use super::*;

/// For answers on their way.
const MEMORY: usize = 64 << 20;

struct World {
    store: SharedStore,
    cache: Arc<ObjectCache>,
    server: Arc<ObjectServer>,
}

fn world() -> World {
    let env = Env::simulated(1);
    let store: SharedStore = Arc::new(MemoryStore::new(env.clone()));
    let cache = Arc::new(ObjectCache::new(store.clone(), 1 << 20));
    let metrics = Arc::new(Metrics::default());
    let server = ObjectServer::new(env, cache.clone(), Duration::from_secs(30), MEMORY, metrics);
    World { store, cache, server }
}

fn request(object: Uuid, size: u64, ranges: &[(u32, u32)]) -> ReadObjectRequest {
    let range = |(position, size): &(u32, u32)| ObjectRange {
        position: *position,
        size: *size,
    };
    ReadObjectRequest {
        object,
        size,
        ranges: ranges.iter().map(range).collect(),
    }
}

impl World {
    async fn ask(&self, caller: &Caller, request: &ReadObjectRequest) -> (ReadObjectResponse, Rope) {
        let body = request.to_bytes();
        let answer = self
            .server
            .handle(api_key::READ_OBJECT, body, caller)
            .await
            .unwrap();
        let response = ReadObjectResponse::from_bytes(answer.clone().into_bytes()).unwrap();
        (response, answer)
    }

    async fn code(&self, caller: &Caller, request: &ReadObjectRequest) -> i16 {
        self.ask(caller, request).await.0.error_code
    }

    async fn stored(&self, object: u128, size: usize) -> Uuid {
        let object = Uuid::from_u128(object);
        let body = vec![Bytes::from(vec![7; size])];
        self.store.put(&wal::object_key(object), body).await.unwrap();
        object
    }
}

#[tokio::test]
async fn parts_come_in_order_and_are_those_of_the_cache() {
    let world = world();
    let object = Uuid::from_u128(1);
    let pieces = [&b"0"[..], b"1234", b"5678", b"9"].map(Bytes::from_static);
    world.cache.insert(object, pieces.to_vec());
    let wanted = request(object, 10, &[(5, 4), (1, 5), (0, 1)]);
    let (response, answer) = world.ask(&Caller::default(), &wanted).await;
    assert_eq!(
        (response.error_code, &response.records[..]),
        (0, &b"5678123450"[..])
    );
    let shared = answer
        .segments()
        .filter(|segment| segment.as_ptr() == pieces[2].as_ptr());
    assert_eq!(shared.count(), 2, "nothing is copied");
    let none = world.ask(&Caller::default(), &request(object, 10, &[])).await;
    assert_eq!((none.0.error_code, none.0.records.len()), (0, 0));
}

#[tokio::test]
async fn what_is_not_there_or_makes_no_sense_is_refused() {
    let world = world();
    let object = world.stored(1, 100).await;
    let caller = Caller::default();
    let invalid = ResponseError::InvalidRequest.code();
    for wrong in [
        request(object, 100, &[(90, 11)]),
        request(object, 100, &[(u32::MAX, u32::MAX)]),
        request(object, MAX_OBJECT + 1, &[(0, 1)]),
        request(object, 100, &[(0, 1); MAX_RANGES + 1]),
        request(object, 100, &[(0, MAX_ANSWER as u32), (0, 1)]),
    ] {
        assert_eq!(world.code(&caller, &wrong).await, invalid);
    }
    let unreadable = ResponseError::KafkaStorageError.code();
    let other_size = world.stored(2, 100).await;
    for wrong in [
        request(other_size, 99, &[(0, 1)]),
        request(Uuid::from_u128(3), 100, &[(0, 1)]),
    ] {
        assert_eq!(world.code(&caller, &wrong).await, unreadable);
    }
    // Nothing is held for what was refused.
    assert_eq!(
        caller.unwritten.available_permits(),
        Caller::default().unwritten.available_permits()
    );
    assert_eq!(world.server.room.available_permits(), MEMORY);
    let not_ours = world
        .server
        .handle(api_key::COMMIT_FILE, Bytes::new(), &caller)
        .await;
    assert_eq!(not_ours.err(), Some(ResponseError::UnsupportedVersion));
    let half = request(object, 100, &[(0, 1)]).to_bytes();
    let half = half.slice(..half.len() - 1);
    assert!(
        world
            .server
            .handle(api_key::READ_OBJECT, half, &caller)
            .await
            .is_err()
    );
}

#[tokio::test]
async fn who_does_not_take_its_answers_gets_no_more() {
    let world = world();
    let object = world.stored(1, 16 << 20).await;
    let throttled = ResponseError::ThrottlingQuotaExceeded.code();
    let slow = Caller::default();
    let whole = request(object, 16 << 20, &[(0, 16 << 20)]);
    let first = world.ask(&slow, &whole).await;
    let mut second = world.ask(&slow, &whole).await.1;
    assert_eq!(first.0.error_code, 0);
    assert_eq!(
        world.code(&slow, &request(object, 16 << 20, &[(0, 1)])).await,
        throttled
    );
    // Others are served. The object counts once.
    assert_eq!(world.code(&Caller::default(), &whole).await, 0);
    assert_eq!(world.server.room.available_permits(), MEMORY - (16 << 20));
    // What is written makes room.
    second.advance(second.remaining() - 1);
    assert_eq!(world.code(&slow, &whole).await, 0);
    drop((first, second));
    assert_eq!(world.server.room.available_permits(), MEMORY);
}

#[tokio::test]
async fn answers_on_their_way_keep_a_bounded_number_of_objects_in_memory() {
    let world = world();
    let mut kept = Vec::new();
    // A quarter keeps the whole object, and the cache is too small for any.
    for id in 0..4 {
        let object = world.stored(id, 16 << 20).await;
        kept.push(
            world
                .ask(&Caller::default(), &request(object, 16 << 20, &[(0, 4 << 20)]))
                .await,
        );
    }
    assert!(kept.iter().all(|(response, _)| response.error_code == 0));
    let object = world.stored(4, 100).await;
    let one_more = request(object, 100, &[(0, 1)]);
    let throttled = ResponseError::ThrottlingQuotaExceeded.code();
    assert_eq!(world.code(&Caller::default(), &one_more).await, throttled);
    kept.pop();
    assert_eq!(world.code(&Caller::default(), &one_more).await, 0);
    assert_eq!(world.server.pinned.lock().len(), 4, "what is gone is forgotten");
}

#[tokio::test]
async fn a_small_part_does_not_keep_its_object() {
    let world = world();
    let mut kept = Vec::new();
    for id in 0..20 {
        let object = world.stored(id, 16 << 20).await;
        let small = request(object, 16 << 20, &[(7, 1000), (2 << 20, 1000)]);
        kept.push(world.ask(&Caller::default(), &small).await);
    }
    assert!(kept.iter().all(|(response, _)| response.error_code == 0));
    assert_eq!(world.server.room.available_permits(), MEMORY - 20 * 2000);
    drop(kept);
    assert_eq!(world.server.room.available_permits(), MEMORY);
}
