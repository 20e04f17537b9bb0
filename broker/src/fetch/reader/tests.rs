use blob::faults::{Decision, Fault, Faulty};
use blob::tracked::{Held, Tracked};
use blob::{MemoryStore, Operation, SharedStore};
use cache::ObjectCache;
use types::{Timestamp, TopicId};
use uuid::Uuid;

use super::*;
use crate::auth::ClusterSecret;
use crate::metadata::metadata;
use crate::produce::testing::batch;
use crate::rpc::Pool;

const SECOND: Duration = Duration::from_secs(1);
const READ_TIMEOUT: Duration = Duration::from_secs(15);
const MIB: usize = 1 << 20;
/// What the cache holds, and lets come in at the same time for either kind of reads.
const CACHE: usize = MIB;
const ARRIVING: usize = 4 * MIB;
/// What answers may take.
const MEMORY: usize = 8 * MIB;

struct World {
    env: Env,
    fetcher: Fetcher,
    held: Arc<Held>,
}

/// The objects 0, 1, 2… are all the same: of `size` bytes, with a batch of `records` at each of `positions`.
struct Stored {
    size: usize,
    records: i32,
    positions: Vec<usize>,
    count: usize,
}

impl Stored {
    /// Ten partitions with a batch of a KiB each in each object of a MiB, as a busy cluster writes them.
    fn mixed() -> Stored {
        Stored {
            size: MIB,
            records: 100,
            positions: (0..10).map(|partition| partition * 100_000).collect(),
            count: 100,
        }
    }

    /// One partition has them almost to itself.
    fn dense() -> Stored {
        Stored {
            size: MIB,
            records: 90_000,
            positions: vec![0],
            count: 100,
        }
    }

    fn batch(&self) -> Bytes {
        batch(self.records, 1000, |_| {})
    }

    /// What is there from `offsets` on.
    fn views(&self, offsets: &[i64], tail: bool) -> Vec<View> {
        let size = self.batch().len() as u32;
        let records = i64::from(self.records);
        let end = self.count as i64 * records;
        let view = |(position, offset): (&usize, &i64)| {
            let at = |number: i64| Coordinate {
                base_offset: number * records,
                last_offset: number * records + records - 1,
                object: Uuid::from_u128(number as u128),
                object_size: self.size as u64,
                position: *position as u32,
                size,
                max_timestamp: Timestamp(1000),
                log_append_time: Timestamp(-1),
            };
            View {
                error: None,
                bounds: Bounds {
                    log_start_offset: 0,
                    high_watermark: end,
                },
                batches: (offset / records..self.count as i64).map(at).collect(),
                tail,
            }
        };
        self.positions.iter().zip(offsets).map(view).collect()
    }
}

fn wanted(offsets: &[i64]) -> Vec<Wanted> {
    let want = |(partition, offset): (usize, &i64)| Wanted {
        partition: TopicPartition {
            topic: TopicId(Uuid::from_u128(1)),
            partition: partition as i32,
        },
        shard: ShardId(0),
        offset: *offset,
        max_bytes: MIB as u64,
    };
    offsets.iter().enumerate().map(want).collect()
}

/// Reads take `delay`, and those of object `slow` five seconds more.
async fn world(objects: &Stored, delay: Duration, slow: Option<u128>) -> World {
    let env = Env::simulated(7);
    let store: SharedStore = Arc::new(MemoryStore::new(env.clone()));
    let mut body = vec![0; objects.size];
    let batch = objects.batch();
    for position in &objects.positions {
        body[*position..*position + batch.len()].copy_from_slice(&batch);
    }
    let body = Bytes::from(body);
    for number in 0..objects.count {
        let key = wal::object_key(Uuid::from_u128(number as u128));
        store.put(&key, vec![body.clone()]).await.unwrap();
    }
    let slow = slow.map(|object| wal::object_key(Uuid::from_u128(object)));
    let plan = move |_: Operation, key: &str| Decision {
        delay: match &slow {
            Some(slow) if slow.as_str() == key => 5 * SECOND,
            _ => Duration::ZERO,
        },
        fault: Fault::None,
    };
    let store = Arc::new(Faulty::new(store, env.clone(), Arc::new(plan)));
    let tracked = Tracked::new(store, env.clone(), delay);
    let held = tracked.held();
    let cache = Arc::new(ObjectCache::new(Arc::new(tracked), CACHE as u64));
    let pool = Pool::new(env.clone(), Arc::new(ClusterSecret::random(&env)));
    let (_, metadata) = metadata();
    let fetcher = Fetcher::new(
        env.clone(),
        Windows::default(),
        Coordinators::new(env.clone(), metadata, pool),
        Objects::new(env.clone(), cache, READ_TIMEOUT, None),
        AnswerMemory::new(MEMORY as u64),
        CancellationToken::new(),
    );
    World { env, fetcher, held }
}

impl World {
    async fn fetch(&self, objects: &Stored, offsets: &[i64], tail: bool) -> Vec<Fetched> {
        let views = objects.views(offsets, tail);
        let begun = self.env.instant();
        let fetched = self.fetcher.read(&wanted(offsets), views, 64 << 20, begun).await;
        // Whatever is missing, what is there follows what was asked for.
        let expected = objects.batch();
        for (fetched, offset) in fetched.iter().zip(offsets) {
            assert_eq!(fetched.error, None);
            let mut next = *offset;
            for batch in &fetched.batches {
                assert_eq!(batch.base_offset, next);
                assert!(batch.batch == expected);
                next += i64::from(objects.records);
            }
        }
        fetched
    }
}

fn bytes(fetched: &[Fetched]) -> usize {
    let batches = fetched.iter().flat_map(|fetched| &fetched.batches);
    batches.map(|batch| batch.batch.len()).sum()
}

#[tokio::test(start_paused = true)]
async fn consumers_that_are_behind_and_slow_hold_a_bounded_part_of_what_was_read_for_them() {
    for objects in [Stored::mixed(), Stored::dense()] {
        for tail in [false, true] {
            let world = world(&objects, SECOND / 100, None).await;
            let offsets = vec![0; objects.positions.len()];
            let fetches = (0..8).map(|_| world.fetch(&objects, &offsets, tail));
            let answers = futures::future::join_all(fetches).await;
            assert!(answers.iter().all(|answer| bytes(answer) > 0));
            let most = world.held.most() as usize;
            assert!(most <= CACHE + ARRIVING + MEMORY, "{} KiB", most >> 10);
            let sent: usize = answers.iter().map(|answer| bytes(answer)).sum();
            let used = world.fetcher.memory.used();
            assert!((sent..=MEMORY).contains(&used), "{used} for {sent}");
            drop(answers);
            assert_eq!(world.fetcher.memory.used(), 0);
            assert!(world.held.now() as usize <= CACHE);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn without_memory_a_fetch_gives_nothing_and_no_error_until_there_is_some() {
    let objects = Stored::dense();
    let world = world(&objects, Duration::ZERO, None).await;
    let mut answers = Vec::new();
    while world.fetcher.memory.used() + objects.batch().len() <= MEMORY {
        answers.push(world.fetch(&objects, &[0], false).await);
    }
    let begun = world.env.instant();
    let none = world.fetch(&objects, &[0], false).await;
    assert_eq!(bytes(&none), 0);
    assert_eq!(none[0].bounds.high_watermark, 100 * 90_000);
    let waited = world.env.instant().saturating_duration_since(begun);
    assert!(waited <= ROOM + SECOND, "{waited:?}");
    // One that waits is served when an answer has been written.
    let (fetched, ()) = tokio::join!(world.fetch(&objects, &[0], false), async {
        world.env.sleep(SECOND).await;
        answers.pop();
    });
    assert!(bytes(&fetched) > 0);
}

#[tokio::test(start_paused = true)]
async fn batches_that_are_searched_hold_a_bounded_part_of_the_same_memory() {
    let objects = Stored::dense();
    let world = world(&objects, SECOND / 100, None).await;
    let view = objects.views(&[0], false).remove(0);
    let expected = objects.batch();
    let searches = view.batches.iter().map(|at| async {
        let batch = world.fetcher.batch(at).await.unwrap();
        world.env.sleep(SECOND / 10).await;
        assert!(batch == expected);
    });
    futures::future::join_all(searches).await;
    let most = world.held.most() as usize;
    assert!(most <= CACHE + ARRIVING + MEMORY, "{} KiB", most >> 10);
    assert_eq!(world.fetcher.memory.used(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_consumer_gets_everything_in_order_however_little_fits() {
    for (objects, tail, enough) in [
        (Stored::mixed(), false, 20),
        (Stored::mixed(), true, 20),
        (Stored::dense(), false, 100),
    ] {
        let world = world(&objects, Duration::ZERO, None).await;
        let mut offsets = vec![0; objects.positions.len()];
        let end = objects.count as i64 * i64::from(objects.records);
        let mut rounds = 0;
        while offsets.iter().any(|offset| *offset < end) {
            let fetched = world.fetch(&objects, &offsets, tail).await;
            for (offset, fetched) in offsets.iter_mut().zip(fetched) {
                *offset += fetched.batches.len() as i64 * i64::from(objects.records);
            }
            rounds += 1;
            assert!(rounds <= enough, "still at {offsets:?}");
        }
    }
}

/// Objects with one small batch each.
fn small() -> Stored {
    Stored {
        size: 2000,
        records: 10,
        positions: vec![1],
        count: 3000,
    }
}

#[tokio::test(start_paused = true)]
async fn consumers_far_behind_small_batches_have_their_answers_soon() {
    let objects = small();
    let world = world(&objects, SECOND * 30 / 1000, None).await;
    let begun = world.env.instant();
    let fetches = (0..3).map(|_| world.fetch(&objects, &[0], false));
    let answers = futures::future::join_all(fetches).await;
    let took = world.env.instant().saturating_duration_since(begun);
    assert!(took < 2 * SECOND, "{took:?}");
    assert!(answers.iter().all(|answer| answer[0].batches.len() >= 100));
    assert!(world.held.reads() <= 3 * MAX_READS);
}

#[tokio::test(start_paused = true)]
async fn from_a_slow_store_comes_what_is_there_after_a_while() {
    let objects = small();
    let world = world(&objects, 2 * SECOND, None).await;
    let (mut offset, mut soon) = (0, 0);
    for _ in 0..16 {
        let begun = world.env.instant();
        let fetched = world.fetch(&objects, &[offset], false).await;
        let took = world.env.instant().saturating_duration_since(begun);
        assert!(took <= READ_TIMEOUT, "{took:?}");
        soon += usize::from(took <= 4 * SECOND);
        assert!(!fetched[0].batches.is_empty());
        offset += fetched[0].batches.len() as i64 * 10;
    }
    assert!(soon >= 10, "{soon} of 16");
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_always_takes_long_holds_nobody_up_and_comes_in_the_end() {
    let objects = Stored {
        positions: vec![0, 1000],
        count: 40,
        ..small()
    };
    // The first partition wants it, the second one is beyond it.
    let world = world(&objects, Duration::ZERO, Some(0)).await;
    let mut rounds = 0;
    loop {
        let begun = world.env.instant();
        let fetched = world.fetch(&objects, &[0, 10], false).await;
        assert!(!fetched[1].batches.is_empty());
        if !fetched[0].batches.is_empty() {
            break;
        }
        let took = world.env.instant().saturating_duration_since(begun);
        assert!(took < 4 * SECOND, "{took:?}");
        rounds += 1;
        assert!(rounds < 100, "it never comes");
    }
    // Who wants nothing else waits for it.
    let alone = world.fetch(&objects, &[0, 400], false).await;
    assert!(!alone[0].batches.is_empty());
}

#[test]
fn an_answer_reads_the_first_batch_of_every_partition_before_any_second_one() {
    let objects = Stored::mixed();
    let views = objects.views(&[0; 10], false);
    let counts = [3, 0, 2, 0, 0, 0, 0, 0, 0, 1];
    let (indexes, coordinates, firsts) = rounds(&views, &counts);
    assert_eq!((indexes, firsts), (vec![0, 2, 9, 0, 2, 0], 3));
    let offsets: Vec<_> = coordinates.iter().map(|(at, _)| at.base_offset).collect();
    assert_eq!(offsets, [0, 0, 0, 100, 100, 200]);
}
