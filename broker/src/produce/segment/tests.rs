use std::time::Duration;

use blob::faults::{Decision, Fault, Faulty};
use blob::{BlobError, MemoryStore, Operation, SharedStore};
use kafka_wire::batch;
use parking_lot::Mutex;
use types::{TopicId, TopicPartition};

use super::super::testing::{batch as plain, sequenced};
use super::super::{Append, Producer};
use super::*;
use crate::config;
use crate::net::memory::MemoryBudget;

mod bounds;
mod stuck;

const SECOND: Duration = Duration::from_secs(1);

/// Answers commits with rising offsets, and remembers them in the order of their arrival.
struct Shards {
    env: Env,
    calls: Mutex<Vec<CommitFileRequest>>,
    /// How a shard behaves; by default it answers at once.
    behaviour: Box<dyn Fn(&CommitFileRequest) -> Behaviour + Send + Sync>,
}

enum Behaviour {
    Answer(Duration),
    Silent,
    Refuse(i16),
}

#[async_trait]
impl Commits for Shards {
    async fn commit(
        &self,
        request: &CommitFileRequest,
        deadline: Instant,
    ) -> Result<CommitFileResponse, RpcError> {
        let base = {
            let mut calls = self.calls.lock();
            calls.push(request.clone());
            calls.len() as i64 * 1000
        };
        let result = |index: i64, error_code| BatchResult {
            error_code,
            base_offset: base + index,
            log_append_time: Timestamp(-1),
            log_start_offset: 0,
            duplicate: false,
        };
        match (self.behaviour)(request) {
            Behaviour::Answer(delay) => self.env.sleep(delay).await,
            Behaviour::Refuse(code) => {
                let batches = request.batches.iter().map(|_| result(0, code)).collect();
                return Ok(CommitFileResponse {
                    error_code: 0,
                    batches,
                });
            }
            Behaviour::Silent => {
                self.env.sleep_until(deadline).await;
                return Err(RpcError::TimedOut);
            }
        }
        let batches = (0..)
            .zip(&request.batches)
            .map(|(index, _)| result(index, 0))
            .collect();
        Ok(CommitFileResponse {
            error_code: 0,
            batches,
        })
    }
}

struct Fixture {
    env: Env,
    store: SharedStore,
    shards: Arc<Shards>,
    cache: Arc<ObjectCache>,
    producer: Producer,
}

/// Every batch is a segment of its own: the order of segments is what is tested.
fn fixture(
    plan: impl Fn(Operation, &str) -> Decision + Send + Sync + 'static,
    behaviour: impl Fn(&CommitFileRequest) -> Behaviour + Send + Sync + 'static,
) -> Fixture {
    fixture_with(1000, plan, behaviour)
}

fn fixture_with(
    puts_per_second: u32,
    plan: impl Fn(Operation, &str) -> Decision + Send + Sync + 'static,
    behaviour: impl Fn(&CommitFileRequest) -> Behaviour + Send + Sync + 'static,
) -> Fixture {
    let env = Env::simulated(11);
    let store: SharedStore = Arc::new(MemoryStore::new(env.clone()));
    let faulty: SharedStore = Arc::new(Faulty::new(store.clone(), env.clone(), Arc::new(plan)));
    let cache = Arc::new(ObjectCache::new(faulty.clone(), 1 << 20));
    let behaviour = Box::new(behaviour);
    let shards = Arc::new(Shards {
        env: env.clone(),
        calls: Mutex::default(),
        behaviour,
    });
    let settings = config::Produce {
        puts_per_second,
        ..config::Produce::default()
    };
    let metrics = Arc::new(Metrics::default());
    let commits: Arc<dyn Commits> = shards.clone();
    let producer = Producer::with_commits(
        env.clone(),
        NodeId(7),
        &settings,
        faulty,
        cache.clone(),
        commits,
        metrics,
    );
    Fixture {
        env,
        store,
        shards,
        cache,
        producer,
    }
}

fn append(topic: u128, shard: u32, bytes: Bytes) -> Append {
    Append {
        partition: TopicPartition {
            topic: TopicId(Uuid::from_u128(topic)),
            partition: 0,
        },
        shard: ShardId(shard),
        header: batch::validate(&bytes).unwrap(),
        batch: bytes,
        log_append_time: false,
    }
}

impl Fixture {
    /// Appends one batch as a segment of its own.
    async fn one(&self, append: Append, timeout: Duration) -> env::JoinHandle<Vec<Outcome>> {
        let outcome = self.env.spawn(self.producer.append(vec![append], timeout, None));
        self.env.sleep(Duration::from_millis(5)).await;
        outcome
    }

    fn commits(&self) -> Vec<(u32, i32)> {
        let calls = self.shards.calls.lock();
        calls
            .iter()
            .map(|call| (call.shard.0, call.batches[0].base_sequence))
            .collect()
    }
}

fn fine(_: Operation, _: &str) -> Decision {
    Decision::FINE
}

fn at_once(_: &CommitFileRequest) -> Behaviour {
    Behaviour::Answer(Duration::ZERO)
}

fn codes(outcomes: &[Outcome]) -> Vec<i16> {
    outcomes.iter().map(|outcome| outcome.error_code).collect()
}

#[tokio::test(start_paused = true)]
async fn what_is_acknowledged_lies_in_the_object_where_the_commit_says() {
    let f = fixture(fine, at_once);
    let bytes = [plain(3, 1000, |_| {}), plain(5, 1000, |_| {})];
    let appends = vec![append(2, 1, bytes[0].clone()), append(1, 1, bytes[1].clone())];
    let outcomes = f.producer.append(appends, SECOND, None).await;
    let bases: Vec<i64> = outcomes.iter().map(|outcome| outcome.base_offset).collect();
    assert_eq!(
        bases,
        [1001, 1000],
        "outcomes come in the order of the request, commits in that of the object"
    );
    let calls = f.shards.calls.lock().clone();
    let [call] = calls.as_slice() else {
        panic!("{} commits", calls.len())
    };
    let object = f.store.get(&wal::object_key(call.object)).await.unwrap();
    assert_eq!(
        (object[0], object.len() as u64, call.size),
        (0, call.size, call.size)
    );
    for (at, bytes) in call.batches.iter().zip([&bytes[1], &bytes[0]]) {
        let (from, size) = (at.position as usize, at.size as usize);
        assert_eq!(&object[from..from + size], &bytes[..]);
        assert_eq!(
            at.last_offset_delta,
            if size == bytes.len() {
                at.last_offset_delta
            } else {
                -1
            }
        );
    }
    assert!(f.cache.cached(call.object).is_some(), "local readers need no GET");
}

#[tokio::test(start_paused = true)]
async fn commits_of_a_partition_keep_the_order_of_arrival_whatever_uploads_do() {
    let puts = Mutex::new(0);
    let slow_first = move |operation, _: &str| {
        let mut puts = puts.lock();
        *puts += i32::from(operation == Operation::Put);
        let delay = if *puts == 1 { SECOND } else { Duration::ZERO };
        Decision {
            delay,
            fault: Fault::None,
        }
    };
    let f = fixture(slow_first, at_once);
    let first = f.one(append(1, 1, sequenced(9, 0, 1, 1000)), 10 * SECOND).await;
    let second = f.one(append(1, 1, sequenced(9, 1, 1, 1000)), 10 * SECOND).await;
    let other = f.one(append(2, 1, sequenced(9, 50, 1, 1000)), 10 * SECOND).await;
    f.env.sleep(SECOND / 2).await;
    assert_eq!(f.commits(), [(1, 50)], "another partition does not wait");
    for outcome in [first, second, other] {
        assert_eq!(codes(&outcome.await.unwrap()), [0]);
    }
    assert_eq!(f.commits(), [(1, 50), (1, 0), (1, 1)]);
}

#[tokio::test(start_paused = true)]
async fn one_silent_shard_does_not_hold_up_another() {
    let f = fixture(fine, |call| {
        if call.shard.0 == 2 {
            Behaviour::Silent
        } else {
            at_once(call)
        }
    });
    let appends = vec![
        append(1, 1, plain(1, 1000, |_| {})),
        append(2, 2, plain(1, 1000, |_| {})),
        append(3, 3, plain(1, 1000, |_| {})),
    ];
    let start = f.env.instant();
    let both = f.env.spawn(f.producer.append(appends, 5 * SECOND, None));
    f.env.sleep(Duration::from_millis(5)).await;
    let beside = f.one(append(1, 1, plain(1, 1000, |_| {})), 5 * SECOND).await;
    assert_eq!(codes(&beside.await.unwrap()), [0]);
    assert!(f.env.instant() - start < SECOND);
    // What may have been stored is not called lost.
    assert_eq!(
        codes(&both.await.unwrap()),
        [0, ResponseError::RequestTimedOut.code(), 0]
    );
    let owners: Vec<Vec<ShardId>> = f
        .shards
        .calls
        .lock()
        .iter()
        .map(|call| call.owners.clone())
        .collect();
    assert_eq!(owners[0].len(), 3);
    assert!(
        owners[..3].iter().all(|chain| *chain == owners[0]),
        "all shards hear the same owner chain"
    );
    let object = f.shards.calls.lock()[0].object;
    assert!(
        f.store.get(&wal::object_key(object)).await.is_ok(),
        "an object with an unknown fate is kept"
    );
}

#[tokio::test(start_paused = true)]
async fn a_failed_upload_stores_nothing_and_says_so() {
    let broken = |operation, _: &str| match operation {
        Operation::Put => {
            let fault = Fault::Fail(BlobError::Denied("no".to_owned()));
            Decision {
                delay: Duration::ZERO,
                fault,
            }
        }
        _ => Decision::FINE,
    };
    let f = fixture(broken, at_once);
    let outcome = f
        .producer
        .append(vec![append(1, 1, plain(1, 1000, |_| {}))], SECOND, None)
        .await;
    assert_eq!(codes(&outcome), [ResponseError::KafkaStorageError.code()]);
    assert!(f.commits().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_recovers_in_time_costs_only_time() {
    let puts = Mutex::new(0);
    let shaky = move |operation, _: &str| {
        let mut puts = puts.lock();
        *puts += i32::from(operation == Operation::Put);
        let fault = match *puts {
            1 => Fault::Fail(BlobError::Throttled("slow down".to_owned())),
            2 => Fault::LoseReply(BlobError::Timeout("wal".to_owned())),
            _ => Fault::None,
        };
        Decision {
            delay: Duration::ZERO,
            fault,
        }
    };
    let f = fixture(shaky, at_once);
    let outcome = f
        .producer
        .append(vec![append(1, 1, plain(1, 1000, |_| {}))], 10 * SECOND, None)
        .await;
    assert_eq!(codes(&outcome), [0]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_upload_does_not_let_later_ones_pass_earlier_ones() {
    // The first commit takes long, the second upload fails at once, the third is quick.
    let puts = Mutex::new(0);
    let second_fails = move |operation, _: &str| {
        let mut puts = puts.lock();
        *puts += i32::from(operation == Operation::Put);
        let fault = if *puts == 2 {
            Fault::Fail(BlobError::Denied("no".to_owned()))
        } else {
            Fault::None
        };
        Decision {
            delay: Duration::ZERO,
            fault,
        }
    };
    // A coordinator that knows nothing of the producer: it would take any sequence for a beginning.
    let f = fixture(second_fails, |call| match &call.batches[0] {
        batch if batch.must_follow => Behaviour::Refuse(ResponseError::OutOfOrderSequenceNumber.code()),
        batch if batch.base_sequence == 0 => Behaviour::Answer(SECOND),
        _ => Behaviour::Answer(Duration::ZERO),
    });
    let first = f.one(append(1, 1, sequenced(9, 0, 1, 1000)), 10 * SECOND).await;
    let second = f.one(append(1, 1, sequenced(9, 1, 1, 1000)), 10 * SECOND).await;
    let third = f.one(append(1, 1, sequenced(9, 2, 1, 1000)), 10 * SECOND).await;
    assert_ne!(codes(&second.await.unwrap()), [0]);
    assert!(!first.is_finished());
    assert_eq!(f.commits(), [(1, 0)], "the third waits for the first");
    assert_eq!(
        codes(&third.await.unwrap()),
        [ResponseError::OutOfOrderSequenceNumber.code()]
    );
    assert_eq!(codes(&first.await.unwrap()), [0]);
    for sequence in [1, 2] {
        let again = f
            .one(append(1, 1, sequenced(9, sequence, 1, 1000)), 10 * SECOND)
            .await;
        assert_eq!(codes(&again.await.unwrap()), [0]);
    }
    assert_eq!(f.commits(), [(1, 0), (1, 2), (1, 1), (1, 2)]);
}

#[tokio::test(start_paused = true)]
async fn without_idempotence_a_failure_does_not_touch_those_behind() {
    let puts = Mutex::new(0);
    let first_fails = move |operation, _: &str| {
        let mut puts = puts.lock();
        *puts += i32::from(operation == Operation::Put);
        let fault = if *puts == 1 {
            Fault::Fail(BlobError::Denied("no".to_owned()))
        } else {
            Fault::None
        };
        Decision {
            delay: Duration::ZERO,
            fault,
        }
    };
    let f = fixture(first_fails, at_once);
    let first = f.one(append(1, 1, plain(1, 1000, |_| {})), 10 * SECOND).await;
    let second = f.one(append(1, 1, plain(1, 1000, |_| {})), 10 * SECOND).await;
    assert_ne!(codes(&first.await.unwrap()), [0]);
    assert_eq!(codes(&second.await.unwrap()), [0]);
}

#[tokio::test(start_paused = true)]
async fn errors_of_the_coordinator_reach_the_producer() {
    let code = ResponseError::OutOfOrderSequenceNumber.code();
    let f = fixture(fine, move |_| Behaviour::Refuse(code));
    let outcome = f
        .producer
        .append(vec![append(1, 1, plain(1, 1000, |_| {}))], SECOND, None)
        .await;
    assert_eq!((outcome[0].error_code, outcome[0].base_offset), (code, -1));
}

#[tokio::test(start_paused = true)]
async fn draining_flushes_at_once_and_waits_for_the_outcomes() {
    let env = Env::simulated(11);
    let store: SharedStore = Arc::new(MemoryStore::new(env.clone()));
    let cache = Arc::new(ObjectCache::new(store.clone(), 1 << 20));
    let behaviour = Box::new(|_: &CommitFileRequest| Behaviour::Answer(SECOND));
    let shards = Arc::new(Shards {
        env: env.clone(),
        calls: Mutex::default(),
        behaviour,
    });
    let settings = config::Produce {
        puts_per_second: 0,
        flush_interval_ms: 60_000,
        ..config::Produce::default()
    };
    let metrics = Arc::new(Metrics::default());
    let producer = Producer::with_commits(env.clone(), NodeId(7), &settings, store, cache, shards, metrics);
    let outcome = env.spawn(producer.append(vec![append(1, 1, plain(1, 1000, |_| {}))], 100 * SECOND, None));
    env.sleep(2 * SECOND).await;
    assert!(!outcome.is_finished());
    producer.drain();
    assert!(producer.finish(env.instant() + 10 * SECOND).await);
    assert_eq!(codes(&outcome.await.unwrap()), [0]);
}

#[tokio::test(start_paused = true)]
async fn who_cannot_wait_for_its_turn_gives_its_memory_back_and_its_object_is_deleted() {
    // The first upload takes 40 s, and so do its two hedges.
    let puts = Mutex::new(0);
    let slow_first = move |operation, _: &str| {
        let mut puts = puts.lock();
        *puts += i32::from(operation == Operation::Put);
        let slow = operation == Operation::Put && matches!(*puts, 1 | 3 | 4);
        Decision {
            delay: if slow { 40 * SECOND } else { Duration::ZERO },
            fault: Fault::None,
        }
    };
    let f = fixture(slow_first, at_once);
    let first = f.one(append(1, 1, sequenced(9, 0, 1, 1000)), 60 * SECOND).await;
    let budget = MemoryBudget::new(1000);
    let memory = budget.take(1000).await;
    let second = vec![append(1, 1, sequenced(9, 1, 1, 1000))];
    let outcome = f.producer.append(second, 5 * SECOND, Some(memory));
    let outcome = f.env.spawn(outcome);
    f.env.sleep(4 * SECOND).await;
    assert!(budget.used() > 0, "it waits");
    let outcome = outcome.await.unwrap();
    assert_eq!(codes(&outcome), [ResponseError::RequestTimedOut.code()]);
    f.env.sleep(SECOND).await;
    assert_eq!(budget.used(), 0);
    assert_eq!(codes(&first.await.unwrap()), [0]);
    f.env.sleep(200 * SECOND).await;
    assert_eq!(f.commits(), [(1, 0)], "the second was never committed");
    let object = f.shards.calls.lock()[0].object;
    let left = f.store.list(wal::PREFIX, None, 100).await.unwrap();
    let left: Vec<String> = left.into_iter().map(|object| object.key).collect();
    assert_eq!(left, [wal::object_key(object)]);
}

#[tokio::test(start_paused = true)]
async fn an_object_is_kept_for_ever_once_a_commit_has_named_it() {
    let f = fixture(fine, |_| Behaviour::Silent);
    let outcome = f
        .producer
        .append(vec![append(1, 1, plain(1, 1000, |_| {}))], 5 * SECOND, None)
        .await;
    assert_eq!(codes(&outcome), [ResponseError::RequestTimedOut.code()]);
    f.env.sleep(600 * SECOND).await;
    let object = f.shards.calls.lock()[0].object;
    assert!(f.store.get(&wal::object_key(object)).await.is_ok());
}
