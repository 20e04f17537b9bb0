use blob::faults::{Decision, Fault, Faulty};
use blob::{MemoryStore, Operation};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

struct Fixture {
    env: Env,
    /// What is really stored.
    store: SharedStore,
    uploads: Uploads,
    metrics: Arc<Metrics>,
}

/// The plan gets the number of the put, from 1.
fn fixture(plan: impl Fn(u32) -> Decision + Send + Sync + 'static) -> Fixture {
    let env = Env::simulated(5);
    let store: SharedStore = Arc::new(MemoryStore::new(env.clone()));
    let puts = Mutex::new(0);
    let plan = move |operation, _: &str| {
        if operation != Operation::Put {
            return Decision::FINE;
        }
        let mut puts = puts.lock();
        *puts += 1;
        plan(*puts)
    };
    let faulty: SharedStore = Arc::new(Faulty::new(store.clone(), env.clone(), Arc::new(plan)));
    let metrics = Arc::new(Metrics::default());
    let uploads = Uploads::new(env.clone(), NodeId(1003), faulty, metrics.clone());
    Fixture {
        env,
        store,
        uploads,
        metrics,
    }
}

impl Fixture {
    async fn write(&self, timeout: Duration) -> Result<Uuid, BlobError> {
        let body = [Bytes::from_static(b"one"), Bytes::from_static(b"two")];
        let deadline = self.env.instant() + timeout;
        self.uploads.write(&body, 6, deadline).await
    }

    async fn stored(&self) -> Vec<String> {
        let found = self.store.list(wal::PREFIX, None, 1000).await.unwrap();
        found.into_iter().map(|object| object.key).collect()
    }
}

fn after(delay: Duration) -> Decision {
    Decision {
        delay,
        fault: Fault::None,
    }
}

fn fails(fault: Fault) -> Decision {
    Decision {
        delay: Duration::ZERO,
        fault,
    }
}

fn unavailable() -> BlobError {
    BlobError::Unavailable("down".to_owned())
}

#[tokio::test(start_paused = true)]
async fn an_upload_that_takes_long_is_overtaken_by_one_under_another_name() {
    // The first object is there at once, but the reply is lost and the next attempt takes a minute.
    let f = fixture(|put| match put {
        21 => fails(Fault::LoseReply(unavailable())),
        22 => after(60 * SECOND),
        _ => after(SECOND * 3 / 10),
    });
    for _ in 0..20 {
        f.write(10 * SECOND).await.unwrap();
    }
    let start = f.env.instant();
    let object = f.write(30 * SECOND).await.unwrap();
    assert!(f.env.instant() - start < SECOND);
    assert_eq!(
        &f.store.get(&wal::object_key(object)).await.unwrap()[..],
        b"onetwo"
    );
    assert_eq!(
        (f.metrics.upload_hedges.get(), f.metrics.upload_hedges_won.get()),
        (1, 1)
    );
    assert_eq!(f.stored().await.len(), 22, "both are there");
    f.env.sleep(2 * SETTLED).await;
    let left = f.stored().await;
    assert_eq!(left.len(), 21);
    assert!(left.contains(&wal::object_key(object)), "what counts is kept");
}

#[tokio::test(start_paused = true)]
async fn the_first_may_still_win_and_the_second_is_deleted() {
    let f = fixture(|put| after(if put == 1 { SECOND * 3 / 2 } else { 10 * SECOND }));
    let object = f.write(30 * SECOND).await.unwrap();
    assert_eq!(
        (f.metrics.upload_hedges.get(), f.metrics.upload_hedges_won.get()),
        (1, 0)
    );
    f.env.sleep(2 * SETTLED).await;
    assert_eq!(f.stored().await, [wal::object_key(object)]);
}

#[tokio::test(start_paused = true)]
async fn a_second_upload_that_is_stuck_is_overtaken_as_well() {
    let f = fixture(|put| {
        after(if put == 21 || put == 22 {
            60 * SECOND
        } else {
            SECOND / 10
        })
    });
    for _ in 0..20 {
        f.write(10 * SECOND).await.unwrap();
    }
    let start = f.env.instant();
    let object = f.write(120 * SECOND).await.unwrap();
    assert!(f.env.instant() - start < SECOND / 2);
    assert_eq!(
        (f.metrics.upload_hedges.get(), f.metrics.upload_hedges_won.get()),
        (2, 1)
    );
    f.env.sleep(3 * SETTLED).await;
    let left = f.stored().await;
    assert_eq!(left.len(), 21, "the two that were stuck are deleted if they came");
    assert!(left.contains(&wal::object_key(object)));
}

#[tokio::test(start_paused = true)]
async fn a_slow_store_is_not_given_twice_the_work() {
    let f = fixture(|_| after(5 * SECOND));
    for _ in 0..100 {
        f.write(30 * SECOND).await.unwrap();
    }
    let hedges = f.metrics.upload_hedges.get();
    assert!((1..=10).contains(&hedges), "{hedges} for 100 uploads");
}

#[tokio::test(start_paused = true)]
async fn an_upload_that_was_given_up_leaves_nothing_behind() {
    let late = |_| fails(Fault::Late(20 * SECOND, unavailable()));
    let f = fixture(late);
    assert_eq!(f.write(5 * SECOND).await, Err(unavailable()));
    f.env.sleep(30 * SECOND).await;
    assert!(!f.stored().await.is_empty(), "it came late");
    f.env.sleep(SETTLED).await;
    assert_eq!(f.stored().await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn attempts_grow_rare_while_the_store_is_down() {
    let puts = Arc::new(Mutex::new(0));
    let counted = puts.clone();
    let f = fixture(move |put| {
        *counted.lock() = put;
        fails(Fault::Fail(unavailable()))
    });
    f.write(120 * SECOND).await.unwrap_err();
    let puts = *puts.lock();
    assert!(
        puts < 200,
        "{puts} puts in two minutes, those of the hedges included"
    );
}
