use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use async_trait::async_trait;
use blob::{MemoryStore, Metered, Operation, SharedStore};
use bytes::BytesMut;
use cache::ObjectCache;
use env::{SimNet, Simulation};
use kafka_wire::flex::Encode;
use kafka_wire::rope::Rope;
use types::Timestamp;

use super::*;
use crate::auth::ClusterSecret;
use crate::fetch::{ObjectServer, Objects, ReadError};
use crate::metadata::{MetadataWriter, metadata};
use crate::produce::testing::batch;
use crate::rpc::{Caller, Handler, serve};

const SECOND: Duration = Duration::from_secs(1);
const ME: NodeId = NodeId(1001);
const OTHER: NodeId = NodeId(1002);

fn broker(id: NodeId, zone: &str) -> Broker {
    Broker {
        id,
        zone: zone.to_owned(),
        host: String::new(),
        port: 0,
        zone_ports: Vec::new(),
        internal: "test:9190".to_owned(),
        draining: false,
        serves_objects: Some(true),
    }
}

fn image(brokers: Vec<Broker>) -> ImageRecord {
    let (_, metadata) = metadata();
    let mut image = metadata.image().record().clone();
    (image.controller_epoch, image.version) = (1, 1);
    image.brokers = brokers;
    image
}

fn zone_of_three() -> Vec<Broker> {
    let mut brokers: Vec<_> = (1001..=1003).map(|id| broker(NodeId(id), "a")).collect();
    brokers.extend((1004..=1006).map(|id| broker(NodeId(id), "b")));
    brokers
}

/// As broker `me` of zone a sees it.
fn owner_of(image: &ImageRecord, me: i32, object: Uuid) -> i32 {
    owner(image, NodeId(me), "a", object, |_| false).map_or(me, |broker| broker.id.0)
}

fn objects_of(uploader: i32) -> Vec<Uuid> {
    let env = Env::simulated(1);
    (0..300)
        .map(|_| wal::name_object(env.uuid(), NodeId(uploader)))
        .collect()
}

#[test]
fn an_uploader_reads_for_its_own_zone_even_while_it_leaves() {
    let mut image = image(zone_of_three());
    for draining in [false, true] {
        image.brokers[1].draining = draining;
        for object in objects_of(1002) {
            assert!(
                [1001, 1002, 1003]
                    .iter()
                    .all(|me| owner_of(&image, *me, object) == 1002)
            );
        }
    }
}

#[test]
fn brokers_of_a_zone_agree_on_who_reads_and_share_the_objects_of_other_zones() {
    let all = image(zone_of_three());
    let objects = objects_of(1005);
    let mut shares = BTreeMap::new();
    for object in &objects {
        let owner = owner_of(&all, 1001, *object);
        assert!((1001..=1003).contains(&owner), "record bytes would cross zones");
        assert!(
            [1002, 1003]
                .iter()
                .all(|me| owner_of(&all, *me, *object) == owner)
        );
        *shares.entry(owner).or_insert(0) += 1;
    }
    assert!(
        shares.len() == 3 && shares.values().all(|share| *share > 60),
        "{shares:?}"
    );
    // Whoever goes, wants to go, or cannot be asked leaves its objects to the others, who keep theirs.
    for change in 0..3 {
        let mut brokers = zone_of_three();
        match change {
            0 => drop(brokers.remove(2)),
            1 => brokers[2].draining = true,
            _ => brokers[2].serves_objects = None,
        }
        let left = image(brokers);
        for object in &objects {
            let (before, after) = (owner_of(&all, 1001, *object), owner_of(&left, 1001, *object));
            assert!(
                after != 1003 && (before == 1003 || before == after),
                "{before} {after}"
            );
        }
    }
    let shunned = |object| owner(&all, NodeId(1001), "a", object, |node| node.0 == 1003);
    assert!(
        objects
            .iter()
            .all(|object| shunned(*object).is_none_or(|owner| owner.id.0 == 1002))
    );
}

#[test]
fn without_neighbours_nobody_is_asked() {
    let mut alone = zone_of_three();
    alone.retain(|broker| broker.zone == "b" || broker.id == ME);
    let mut no_zone = zone_of_three();
    no_zone.iter_mut().for_each(|broker| broker.zone.clear());
    let mut first_release = zone_of_three();
    first_release
        .iter_mut()
        .for_each(|broker| broker.serves_objects = None);
    for object in objects_of(1002).into_iter().chain([Uuid::from_u128(7)]) {
        for (brokers, zone) in [(&alone, "a"), (&no_zone, ""), (&first_release, "a")] {
            assert!(owner(&image(brokers.clone()), ME, zone, object, |_| false).is_none());
        }
    }
}

/// What the neighbour does when it is asked.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Manner {
    Serve,
    Damage,
    /// It gives less than was asked for.
    Cut,
    Refuse,
    /// It takes so long, in milliseconds.
    Slow(u64),
    Silent,
    /// As the first release does.
    Close,
    /// It does not serve this.
    Unknown,
}

struct Neighbour {
    net: SimNet,
    env: Env,
    manner: Mutex<Manner>,
    asked: AtomicUsize,
    server: Arc<ObjectServer>,
}

#[async_trait]
impl Handler for Neighbour {
    async fn handle(&self, key: i16, body: Bytes, caller: &Caller) -> Result<Rope, ResponseError> {
        self.asked.fetch_add(1, Relaxed);
        let manner = *self.manner.lock();
        let served = self.server.handle(key, body, caller).await?.into_bytes();
        let mut answer = BytesMut::from(&served[..]);
        match manner {
            Manner::Serve => {}
            Manner::Damage => {
                let last = answer.len() - 2;
                answer[last] ^= 1;
            }
            Manner::Cut => {
                let empty = ReadObjectResponse {
                    error_code: 0,
                    records: Bytes::new(),
                };
                return Ok(empty.to_bytes().into());
            }
            Manner::Refuse => {
                let refusal = ReadObjectResponse {
                    error_code: ResponseError::ThrottlingQuotaExceeded.code(),
                    records: Bytes::new(),
                };
                return Ok(refusal.to_bytes().into());
            }
            Manner::Slow(ms) => self.env.sleep(Duration::from_millis(ms)).await,
            Manner::Silent => caller.gone.cancelled().await,
            Manner::Close => {
                self.net.reset("test");
                return Err(ResponseError::UnknownServerError);
            }
            Manner::Unknown => return Err(ResponseError::UnsupportedVersion),
        }
        Ok(answer.freeze().into())
    }
}

/// Two brokers of a zone.
struct World {
    env: Env,
    store: SharedStore,
    neighbour: Arc<Neighbour>,
    objects: Objects,
    metrics: Arc<Metrics>,
    /// Whole reads of the store by this broker and by its neighbour.
    gets: [Arc<blob::Metrics>; 2],
    _image: MetadataWriter,
    _dir: tempfile::TempDir,
}

impl World {
    async fn new() -> World {
        let simulation = Simulation::new(5);
        let env = simulation.node("test");
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("secret");
        std::fs::write(&file, "the secret of the cluster").unwrap();
        let secret = Arc::new(ClusterSecret::read(&file).unwrap());
        let store: SharedStore = Arc::new(MemoryStore::new(env.clone()));
        let gets = [(); 2].map(|()| Arc::new(blob::Metrics::default()));
        let [mine, theirs] = [0, 1].map(|broker| {
            let metered = Metered::new(store.clone(), env.clone(), gets[broker].clone());
            Arc::new(ObjectCache::new(Arc::new(metered), 1 << 20))
        });
        let (writer, metadata) = metadata();
        writer.update(image(vec![broker(ME, "a"), broker(OTHER, "a")]));
        let metrics = Arc::new(Metrics::default());
        let neighbour = Arc::new(Neighbour {
            net: simulation.net().clone(),
            env: env.clone(),
            manner: Mutex::new(Manner::Serve),
            asked: AtomicUsize::new(0),
            server: ObjectServer::new(env.clone(), theirs, 30 * SECOND, 64 << 20, metrics.clone()),
        });
        let listener = env.listen("test:9190").await.unwrap();
        env.spawn(serve(
            env.clone(),
            listener,
            neighbour.clone(),
            secret.clone(),
            metrics.clone(),
        ));
        let pool = Pool::new(env.clone(), secret);
        let neighbours = Neighbours::new(env.clone(), ME, "a".to_owned(), metadata, pool, metrics.clone());
        World {
            objects: Objects::new(env.clone(), mine, 30 * SECOND, Some(neighbours)),
            env,
            store,
            neighbour,
            metrics,
            gets,
            _image: writer,
            _dir: dir,
        }
    }

    /// Stores an object of three batches that belongs to the neighbour.
    async fn write(&self) -> Vec<(Coordinate, bool)> {
        let object = wal::name_object(self.env.uuid(), OTHER);
        let batches = [3, 2, 1].map(|count| batch(count, 1000, |_| {}));
        let body: Vec<Bytes> = [Bytes::from_static(&[0])]
            .into_iter()
            .chain(batches.clone())
            .collect();
        let object_size = body.iter().map(|piece| piece.len() as u64).sum();
        self.store.put(&wal::object_key(object), body).await.unwrap();
        let mut position = 1;
        let place = |(index, batch): (usize, &Bytes)| {
            let base_offset = index as i64 * 10;
            let at = Coordinate {
                base_offset,
                last_offset: base_offset + 2 - index as i64,
                object,
                object_size,
                position,
                size: batch.len() as u32,
                max_timestamp: Timestamp(1000),
                log_append_time: Timestamp(-1),
            };
            position += at.size;
            (at, true)
        };
        batches.iter().enumerate().map(place).collect()
    }

    fn be(&self, manner: Manner) {
        *self.neighbour.manner.lock() = manner;
    }

    fn asked(&self) -> usize {
        self.neighbour.asked.load(Relaxed)
    }

    /// By this broker, and by its neighbour.
    fn gets(&self) -> [u64; 2] {
        [0, 1].map(|broker| {
            let rows = self.gets[broker].snapshot();
            let get = rows.iter().find(|row| row.operation == Operation::Get);
            get.map_or(0, |row| row.requests)
        })
    }

    /// Reads a new object; it must come whole, whatever the neighbour does.
    async fn read_new(&self) -> Duration {
        let at = self.write().await;
        let begun = self.env.instant();
        let read = self.objects.read(&at).await;
        for ((at, _), bytes) in at.iter().zip(read) {
            assert_eq!(bytes.unwrap().len(), at.size as usize);
        }
        self.env.instant().saturating_duration_since(begun)
    }
}

#[tokio::test(start_paused = true)]
async fn a_zone_reads_an_object_once_and_keeps_it_once() {
    let world = World::new().await;
    let at = world.write().await;
    // Gaps, all in any order, one twice; by many at a time.
    let wanted = [vec![0, 2], vec![2, 1, 0], vec![1, 1]];
    let reads = (0..30).map(|reader| {
        let wanted: Vec<_> = wanted[reader % 3].iter().map(|i| at[*i].clone()).collect();
        let objects = world.objects.clone();
        async move {
            for ((at, _), bytes) in wanted.iter().zip(objects.read(&wanted).await) {
                let bytes = bytes.unwrap();
                let header = kafka_wire::batch::verify(&bytes).unwrap();
                let delta = at.last_offset - at.base_offset;
                assert_eq!(i64::from(header.last_offset_delta), delta);
            }
        }
    });
    futures::future::join_all(reads).await;
    assert_eq!(world.gets(), [0, 1]);
    assert_eq!(world.objects.cache().stats().bytes, 0);
    assert_eq!((world.asked(), world.metrics.neighbour_reads.get()), (30, 30));
    assert_eq!(world.metrics.neighbour_failures.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn whatever_a_neighbour_does_costs_a_get_and_little_time() {
    for manner in [
        Manner::Damage,
        Manner::Cut,
        Manner::Refuse,
        Manner::Silent,
        Manner::Close,
        Manner::Unknown,
        Manner::Slow(10_000),
    ] {
        let world = World::new().await;
        world.be(manner);
        let took = world.read_new().await;
        assert!(took <= LONGEST, "{manner:?} {took:?}");
        assert_eq!((world.gets()[0], world.asked()), (1, 1), "{manner:?}");
        assert_eq!(world.metrics.neighbour_failures.get(), 1, "{manner:?}");
        // Many at once do not become many reads of the store, though few may be paid for.
        let at = world.write().await;
        let reads = (0..50).map(|_| world.objects.read(&at));
        for read in futures::future::join_all(reads).await {
            assert!(read.iter().all(Result::is_ok), "{manner:?}");
        }
        assert_eq!(world.gets()[0], 2, "{manner:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_neighbour_that_is_slow_now_and_then_is_waited_for() {
    let world = World::new().await;
    world.be(Manner::Slow(100));
    for _ in 0..20 {
        world.read_new().await;
    }
    assert_eq!(world.gets(), [0, 20]);
    // Later than it ever was: the store is read beside it, and who is first is heard. It is asked for the next one.
    world.be(Manner::Slow(200));
    world.read_new().await;
    assert_eq!(world.gets()[0], 1);
    world.be(Manner::Serve);
    world.read_new().await;
    assert_eq!((world.asked(), world.gets()[0]), (22, 1));
}

#[tokio::test(start_paused = true)]
async fn who_does_not_answer_is_left_alone_for_a_while() {
    for manner in [Manner::Silent, Manner::Close, Manner::Unknown] {
        let world = World::new().await;
        world.be(manner);
        // Silence is recognised after a second, an end at once.
        let begun = world.env.instant();
        while world.read_new().await > Duration::ZERO {}
        let noticed = world.env.instant().saturating_duration_since(begun);
        assert!(noticed < 2 * LONGEST, "{manner:?} {noticed:?}");
        let asked = world.asked();
        for _ in 0..5 {
            assert_eq!(world.read_new().await, Duration::ZERO, "{manner:?}");
        }
        assert_eq!(world.asked(), asked, "{manner:?}");
        // One tries again, then all do.
        world.env.sleep(2 * SHUNNED).await;
        world.read_new().await;
        world.read_new().await;
        assert_eq!(world.asked(), asked + 1, "{manner:?}");
        world.be(Manner::Serve);
        world.env.sleep(2 * SHUNNED).await;
        let gets = world.gets()[0];
        world.read_new().await;
        world.read_new().await;
        assert_eq!((world.asked(), world.gets()[0]), (asked + 3, gets), "{manner:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_refuses_or_gives_wrong_bytes_is_asked_for_the_next_object() {
    for manner in [Manner::Refuse, Manner::Damage, Manner::Cut] {
        let world = World::new().await;
        world.be(manner);
        world.read_new().await;
        world.be(Manner::Serve);
        world.read_new().await;
        assert_eq!((world.asked(), world.gets()[0]), (2, 1), "{manner:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_nobody_can_read_is_unavailable_and_what_is_too_large_is_not_asked_for() {
    let world = World::new().await;
    let mut missing = world.write().await;
    missing
        .iter_mut()
        .for_each(|(at, _)| at.object = wal::name_object(world.env.uuid(), OTHER));
    let read = world.objects.read(&missing).await;
    assert!(
        read.iter().all(|read| *read == Err(ReadError::Unavailable)),
        "{read:?}"
    );
    let asked = world.asked();
    let mut large = world.write().await;
    large
        .iter_mut()
        .for_each(|(at, _)| at.object_size = MAX_OBJECT + 1);
    world.objects.read(&large).await;
    assert_eq!(world.asked(), asked);
}
