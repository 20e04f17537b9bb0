//! The engine `object`: conformance, and what damage, strangers and pauses do to it.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "helpers of tests"
)]

use std::sync::Arc;
use std::time::Duration;

use blob::faults::{Decision, Fault, Faulty};
use blob::{BlobError, LocalStore, MemoryStore, Operation, SharedStore};
use bytes::Bytes;
use env::Env;
use futures::TryStreamExt;
use metalog::{
    LogError, LogOffset, LogWriter, MetadataLog, ObjectLog, Opened, Options, Owner, SnapshotRef, conformance,
};
use parking_lot::Mutex;

const MIN_AGE: Duration = Duration::from_secs(60);
const OPTIONS: Options = Options {
    confirm_after: Duration::from_secs(5),
    min_age: MIN_AGE,
};

fn owner(env: &Env, node_id: i32) -> Owner {
    Owner {
        node_id,
        incarnation: env.uuid(),
        address: format!("node-{node_id}:9190"),
    }
}

fn entry(text: &str) -> Vec<Bytes> {
    vec![Bytes::copy_from_slice(text.as_bytes())]
}

fn log(store: &SharedStore, env: &Env) -> ObjectLog {
    ObjectLog::new(store.clone(), "x", OPTIONS, env.clone())
}

fn slot_key(offset: u64) -> String {
    format!("meta/x/log/{offset:020}")
}

/// A log of `count` slots (with the fencing slot) in memory.
async fn filled(env: &Env, count: u64) -> (SharedStore, Opened) {
    let store: SharedStore = Arc::new(MemoryStore::new(env.clone()));
    let mut opened = log(&store, env).open(owner(env, 1)).await.unwrap();
    while opened.writer.tail() < LogOffset(count) {
        let text = format!("entry {}", opened.writer.tail());
        opened.writer.append(entry(&text)).await.unwrap();
    }
    (store, opened)
}

async fn replace(store: &SharedStore, key: &str, change: impl FnOnce(&mut Vec<u8>)) {
    let mut body = store.get(key).await.unwrap().to_vec();
    change(&mut body);
    store.put(key, vec![body.into()]).await.unwrap();
}

async fn read(store: &SharedStore, env: &Env, snapshot: &SnapshotRef) -> Result<Vec<u8>, LogError> {
    let pieces = log(store, env).get_snapshot(snapshot);
    Ok(pieces.try_collect::<Vec<_>>().await?.concat())
}

fn is_corrupt(error: &LogError, key: &str) -> bool {
    matches!(error, LogError::Corrupt(text) if text.contains(key))
}

#[tokio::test]
async fn conforms_in_memory() {
    let env = Env::simulated(1);
    let store: SharedStore = Arc::new(MemoryStore::new(env.clone()));
    let logs = |name: &str| -> Arc<dyn MetadataLog> {
        Arc::new(ObjectLog::new(
            store.clone(),
            name,
            Options::default(),
            env.clone(),
        ))
    };
    conformance::run(&logs, &env).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn conforms_in_a_local_folder() {
    let env = Env::production();
    let root = tempfile::tempdir().unwrap();
    let store: SharedStore = Arc::new(LocalStore::open(root.path(), env.clone()).await.unwrap());
    let logs = |name: &str| -> Arc<dyn MetadataLog> {
        Arc::new(ObjectLog::new(
            store.clone(),
            name,
            Options::default(),
            env.clone(),
        ))
    };
    conformance::run(&logs, &env).await.unwrap();
}

#[tokio::test]
async fn a_long_log_is_replayed_in_bounded_pieces() {
    let env = Env::simulated(1);
    let (store, opened) = filled(&env, 200).await;
    let reader = log(&store, &env);
    let mut from = LogOffset(0);
    let mut count = 0;
    while from < opened.writer.tail() {
        let slots = reader.read(from, 500).await.unwrap();
        let bytes: usize = slots.iter().flat_map(|slot| &slot.entries).map(Bytes::len).sum();
        assert!(bytes <= 500 + 10, "{bytes} bytes at once");
        count += slots.len();
        from = slots.last().unwrap().offset.next();
    }
    assert_eq!(count, 200);
    let again = log(&store, &env).open(owner(&env, 2)).await.unwrap();
    assert_eq!(again.tail, LogOffset(201), "the end is found from a cold start");
}

#[tokio::test]
async fn damage_is_reported_with_the_key_and_what_is_before_it_is_still_read() {
    let env = Env::simulated(1);
    let damages: [fn(&mut Vec<u8>); 4] = [
        |body| *body.last_mut().unwrap() ^= 1,
        |body| body.truncate(20),
        |body| *body = b"<html>not ours</html>".to_vec(),
        |body| body.clear(),
    ];
    for damage in damages {
        let (store, _) = filled(&env, 6).await;
        replace(&store, &slot_key(3), damage).await;
        let reader = log(&store, &env);
        let before = reader.read(LogOffset(0), 1 << 20).await.unwrap();
        assert_eq!(before.len(), 3);
        let error = reader.read(LogOffset(3), 1 << 20).await.unwrap_err();
        assert!(is_corrupt(&error, &slot_key(3)), "{error}");
    }
}

#[tokio::test]
async fn a_slot_of_another_history_breaks_the_chain() {
    let env = Env::simulated(1);
    let (store, _) = filled(&env, 6).await;
    let (other, _) = filled(&env, 6).await;
    store
        .put(&slot_key(3), vec![other.get(&slot_key(3)).await.unwrap()])
        .await
        .unwrap();
    // Found from in front of it, when starting at it, and when starting behind it.
    for from in [0, 3, 4] {
        let reader = log(&store, &env);
        let mut at = LogOffset(from);
        let error = loop {
            match reader.read(at, 1).await {
                Ok(slots) => at = slots.last().unwrap().offset.next(),
                Err(error) => break error,
            }
        };
        let key = slot_key(from.max(3));
        assert!(is_corrupt(&error, &key), "from {from}: {error}");
    }
}

#[tokio::test]
async fn a_missing_slot_is_reported_and_never_filled() {
    let env = Env::simulated(1);
    // One that the search for the end comes across, and one that only the replay does.
    for (missing, at_open) in [(0, true), (3, true), (6, false)] {
        let (store, _) = filled(&env, 8).await;
        store.delete_many(&[slot_key(missing)]).await.unwrap();
        let new_log = log(&store, &env);
        let error = match new_log.open(owner(&env, 2)).await {
            Err(error) if at_open => error,
            Ok(opened) if !at_open => {
                assert_eq!(opened.tail, LogOffset(9));
                assert_eq!(new_log.read(LogOffset(0), 1 << 20).await.unwrap().len(), 6);
                new_log.read(LogOffset(6), 1 << 20).await.unwrap_err()
            }
            other => panic!("slot {missing}: {:?}", other.map(|opened| opened.tail)),
        };
        assert!(is_corrupt(&error, &slot_key(missing)), "{error}");
        assert!(
            store.head(&slot_key(missing)).await.unwrap().is_none(),
            "it was not written again"
        );
    }
    // A snapshot says that there must be more.
    let (store, mut opened) = filled(&env, 8).await;
    let snapshot = log(&store, &env)
        .put_snapshot(LogOffset(8), vec![].into())
        .await
        .unwrap();
    opened
        .writer
        .install_snapshot(snapshot, LogOffset(2))
        .await
        .unwrap();
    store.delete_many(&[slot_key(6), slot_key(7)]).await.unwrap();
    let error = log(&store, &env).open(owner(&env, 2)).await.err().unwrap();
    assert!(is_corrupt(&error, &slot_key(6)), "{error}");
}

#[tokio::test]
async fn a_damaged_manifest_or_snapshot_is_reported_with_its_key() {
    let env = Env::simulated(1);
    let (store, mut opened) = filled(&env, 4).await;
    let snapshot = log(&store, &env)
        .put_snapshot(LogOffset(2), entry("state").into())
        .await
        .unwrap();
    opened
        .writer
        .install_snapshot(snapshot.clone(), LogOffset(0))
        .await
        .unwrap();
    replace(&store, &snapshot.key, |body| body[0] ^= 1).await;
    let error = read(&store, &env, &snapshot).await.unwrap_err();
    assert!(is_corrupt(&error, &snapshot.key), "{error}");
    store
        .delete_many(std::slice::from_ref(&snapshot.key))
        .await
        .unwrap();
    let error = read(&store, &env, &snapshot).await.unwrap_err();
    assert!(is_corrupt(&error, &snapshot.key), "{error}");

    let key = "meta/x/manifest/00000000000000000001";
    replace(&store, key, |body| body[30] ^= 1).await;
    let error = log(&store, &env).open(owner(&env, 2)).await.err().unwrap();
    assert!(is_corrupt(&error, key), "{error}");
}

#[tokio::test]
async fn foreign_objects_beside_ours_do_no_harm_and_are_left_alone() {
    let env = Env::simulated(1);
    let (store, mut opened) = filled(&env, 6).await;
    let foreign = [
        "meta/x/log/README",
        "meta/x/log/0",
        "meta/x/log/00000000000000000001.bak",
        "meta/x/manifest/readme",
        "meta/x/manifest/99999999999999999999",
        "meta/x/snapshot/0",
        "meta/x/snapshot/notes-1",
    ];
    for key in foreign {
        store.put(key, entry("not ours")).await.unwrap();
    }
    let snapshot = log(&store, &env)
        .put_snapshot(LogOffset(5), vec![].into())
        .await
        .unwrap();
    opened
        .writer
        .install_snapshot(snapshot, LogOffset(5))
        .await
        .unwrap();
    let next = log(&store, &env).open(owner(&env, 2)).await.unwrap();
    assert_eq!((next.log_start, next.tail), (LogOffset(5), LogOffset(7)));
    log(&store, &env).sweep().await.unwrap();
    for key in foreign {
        assert!(store.head(key).await.unwrap().is_some(), "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_sweep_deletes_what_has_been_dead_for_long_and_nothing_else() {
    let env = Env::simulated(1);
    let (store, mut opened) = filled(&env, 10).await;
    let reader = log(&store, &env);
    let orphan = reader
        .put_snapshot(LogOffset(3), entry("never installed").into())
        .await
        .unwrap();
    let first = reader
        .put_snapshot(LogOffset(4), entry("first").into())
        .await
        .unwrap();
    opened
        .writer
        .install_snapshot(first.clone(), LogOffset(4))
        .await
        .unwrap();
    assert_eq!(reader.sweep().await.unwrap(), 0, "too young");
    env.sleep(MIN_AGE).await;
    let second = reader
        .put_snapshot(LogOffset(8), entry("second").into())
        .await
        .unwrap();
    opened
        .writer
        .install_snapshot(second.clone(), LogOffset(8))
        .await
        .unwrap();
    // Slots 0..4, the first manifest and the orphan; the second boundary has been there for no time at all.
    assert_eq!(reader.sweep().await.unwrap(), 6);
    assert!(store.head(&slot_key(3)).await.unwrap().is_none());
    assert!(store.head(&slot_key(4)).await.unwrap().is_some());
    assert!(store.head(&orphan.key).await.unwrap().is_none());
    assert!(store.head(&first.key).await.unwrap().is_some());
    env.sleep(MIN_AGE).await;
    assert_eq!(
        reader.sweep().await.unwrap(),
        6,
        "slots 4..8, a manifest, a snapshot"
    );
    assert_eq!(reader.sweep().await.unwrap(), 0);
    assert_eq!(read(&store, &env, &second).await.unwrap(), b"second");
    let last = log(&store, &env).open(owner(&env, 2)).await.unwrap();
    assert_eq!((last.log_start, last.tail), (LogOffset(8), LogOffset(11)));
}

/// A store that holds back the next create of a key until told otherwise.
fn holding(inner: &SharedStore, env: &Env, key: String, hold: Duration) -> SharedStore {
    let armed = Mutex::new(true);
    let plan = move |operation: Operation, at: &str| {
        let held = operation == Operation::PutIfAbsent && at == key && std::mem::take(&mut *armed.lock());
        Decision {
            delay: if held { hold } else { Duration::ZERO },
            fault: Fault::None,
        }
    };
    Arc::new(Faulty::new(inner.clone(), env.clone(), Arc::new(plan)))
}

async fn append_until(writer: &mut dyn LogWriter, tail: u64) {
    while writer.tail() < LogOffset(tail) {
        writer.append(entry("of the new leader")).await.unwrap();
    }
}

/// The hole of create-if-absent: a deleted key can be created again.
#[tokio::test(start_paused = true)]
async fn a_writer_paused_across_a_trim_gets_nothing_acknowledged() {
    let env = Env::simulated(1);
    let inner: SharedStore = Arc::new(MemoryStore::new(env.clone()));
    let stuck = holding(&inner, &env, slot_key(2), MIN_AGE * 10);
    let mut old = log(&stuck, &env).open(owner(&env, 1)).await.unwrap();
    old.writer.append(entry("kept")).await.unwrap();
    let paused = env.spawn(async move { old.writer.append(entry("of a ghost")).await });
    env.sleep(Duration::from_secs(1)).await;

    let follower = log(&inner, &env);
    assert_eq!(
        follower.read(LogOffset(0), 1 << 20).await.unwrap().len(),
        2,
        "a follower stands at slot 2"
    );

    let new_owner = owner(&env, 2);
    let new_log = log(&inner, &env);
    let mut new = new_log.open(new_owner.clone()).await.unwrap();
    assert_eq!(
        new.tail,
        LogOffset(3),
        "the fencing slot is where the paused writer wants to write"
    );
    append_until(&mut *new.writer, 10).await;
    let snapshot = new_log.put_snapshot(LogOffset(9), vec![].into()).await.unwrap();
    new.writer.install_snapshot(snapshot, LogOffset(9)).await.unwrap();
    env.sleep(MIN_AGE).await;
    assert!(new_log.sweep().await.unwrap() > 0);
    assert!(
        inner.head(&slot_key(2)).await.unwrap().is_none(),
        "slot 2 is gone"
    );

    let ended = paused.await.unwrap();
    assert_eq!(
        ended,
        Err(LogError::Fenced {
            epoch: new.epoch,
            owner: Some(new_owner)
        })
    );
    assert!(
        inner.head(&slot_key(2)).await.unwrap().is_some(),
        "the ghost has created it again"
    );

    let trimmed = Err(LogError::Trimmed {
        log_start: LogOffset(9),
    });
    assert_eq!(
        follower.read(LogOffset(2), 1 << 20).await,
        trimmed,
        "and nobody believes in it"
    );
    let next = log(&inner, &env).open(owner(&env, 3)).await.unwrap();
    assert_eq!((next.log_start, next.tail), (LogOffset(9), LogOffset(11)));
    env.sleep(MIN_AGE).await;
    new_log.sweep().await.unwrap();
    assert!(
        inner.head(&slot_key(2)).await.unwrap().is_none(),
        "the next sweep takes it away"
    );
}

/// The same hole for a take-over that is paused between its look at the manifest and its own manifest.
#[tokio::test(start_paused = true)]
async fn a_take_over_paused_across_a_sweep_does_not_reuse_an_epoch() {
    let env = Env::simulated(1);
    let inner: SharedStore = Arc::new(MemoryStore::new(env.clone()));
    log(&inner, &env).open(owner(&env, 1)).await.unwrap();
    let stuck = holding(
        &inner,
        &env,
        "meta/x/manifest/00000000000000000001".to_owned(),
        MIN_AGE * 10,
    );
    let (paused_log, paused_owner) = (log(&stuck, &env), owner(&env, 2));
    let paused = env.spawn(async move { paused_log.open(paused_owner).await.map(|opened| opened.epoch) });
    env.sleep(Duration::from_secs(1)).await;
    let mut epoch = 1;
    for _ in 0..4 {
        epoch = log(&inner, &env).open(owner(&env, 3)).await.unwrap().epoch.0;
        env.sleep(MIN_AGE).await;
        log(&inner, &env).sweep().await.unwrap();
    }
    assert!(
        inner
            .head("meta/x/manifest/00000000000000000001")
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(paused.await.unwrap().unwrap().0, epoch + 1);
}

/// Found by the model: a take-over that met a slot which was deleted and created again went one further, into the way of
/// the leader.
#[tokio::test(start_paused = true)]
async fn a_take_over_paused_across_a_sweep_does_not_write_behind_a_ghost() {
    let env = Env::simulated(1);
    let inner: SharedStore = Arc::new(MemoryStore::new(env.clone()));
    let mut paused = Vec::new();
    for times in [10, 11] {
        let stuck = holding(&inner, &env, slot_key(0), MIN_AGE * times);
        let (stuck_log, stuck_owner) = (log(&stuck, &env), owner(&env, 1));
        paused.push(env.spawn(async move { stuck_log.open(stuck_owner).await.map(|opened| opened.epoch) }));
        env.sleep(Duration::from_secs(1)).await;
    }
    let leading = log(&inner, &env);
    let mut leader = leading.open(owner(&env, 3)).await.unwrap();
    let snapshot = leading.put_snapshot(LogOffset(1), vec![].into()).await.unwrap();
    leader
        .writer
        .install_snapshot(snapshot, LogOffset(1))
        .await
        .unwrap();
    env.sleep(MIN_AGE).await;
    assert!(leading.sweep().await.unwrap() > 0, "slot 0 is gone");
    for paused in paused {
        let error = paused.await.unwrap().unwrap_err();
        assert!(matches!(error, LogError::Fenced { .. }), "{error}");
    }
    assert!(
        inner.head(&slot_key(0)).await.unwrap().is_some(),
        "and is there again"
    );
    assert_eq!(leader.writer.append(entry("x")).await, Ok(LogOffset(1)));
}

/// Found by the fault test: the fence of a slow take-over landed where a later leader was about to write.
#[tokio::test(start_paused = true)]
async fn a_take_over_that_is_overtaken_stands_down() {
    let env = Env::simulated(1);
    let inner: SharedStore = Arc::new(MemoryStore::new(env.clone()));
    log(&inner, &env).open(owner(&env, 1)).await.unwrap();
    // Stands still after its manifest, before it looks for the end of the log.
    let armed = Mutex::new(true);
    let plan = move |operation: Operation, _: &str| {
        let held = operation == Operation::Head && std::mem::take(&mut *armed.lock());
        Decision {
            delay: Duration::from_secs(if held { 3 } else { 0 }),
            fault: Fault::None,
        }
    };
    let slow: SharedStore = Arc::new(Faulty::new(inner.clone(), env.clone(), Arc::new(plan)));
    let (slow_log, slow_owner) = (log(&slow, &env), owner(&env, 2));
    let overtaken = env.spawn(async move { slow_log.open(slow_owner).await.map(|opened| opened.epoch) });
    env.sleep(Duration::from_secs(1)).await;
    let mut leader = log(&inner, &env).open(owner(&env, 3)).await.unwrap();
    leader.writer.append(entry("x")).await.unwrap();
    let error = overtaken.await.unwrap().unwrap_err();
    assert!(
        matches!(error, LogError::Fenced { epoch, .. } if epoch == leader.epoch),
        "{error}"
    );
    leader.writer.append(entry("y")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_busy_old_writer_does_not_outrun_its_successor() {
    let env = Env::simulated(1);
    let inner: SharedStore = Arc::new(MemoryStore::new(env.clone()));
    let store = |ms: u64| -> SharedStore {
        let plan = move |_: Operation, _: &str| Decision {
            delay: Duration::from_millis(ms),
            fault: Fault::None,
        };
        Arc::new(Faulty::new(inner.clone(), env.clone(), Arc::new(plan)))
    };
    let mut old = log(&store(10), &env).open(owner(&env, 1)).await.unwrap();
    let busy = env.spawn(async move {
        let mut last = LogOffset(0);
        loop {
            match old.writer.append(entry("busy")).await {
                Ok(offset) => last = offset,
                Err(error) => return (last, error),
            }
        }
    });
    env.sleep(Duration::from_secs(2)).await;
    // Twice as far from the store, so it loses every race for a slot.
    let opening = log(&store(20), &env).open(owner(&env, 2)).await.unwrap();
    let (last, error) = busy.await.unwrap();
    assert!(matches!(error, LogError::Fenced { .. }), "{error}");
    assert!(last < opening.tail, "the successor has all that was acknowledged");
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_is_told_from_a_lost_race() {
    let env = Env::simulated(1);
    let inner: SharedStore = Arc::new(MemoryStore::new(env.clone()));
    let lost = |operation: Operation, _: &str| Decision {
        delay: Duration::ZERO,
        fault: match operation {
            Operation::PutIfAbsent => Fault::LoseReply(BlobError::Timeout("lost".to_owned())),
            _ => Fault::None,
        },
    };
    let store: SharedStore = Arc::new(Faulty::new(inner.clone(), env.clone(), Arc::new(lost)));
    let mut opened = log(&store, &env).open(owner(&env, 1)).await.unwrap();
    for offset in 1..5 {
        assert_eq!(opened.writer.append(entry("x")).await, Ok(LogOffset(offset)));
    }
    assert_eq!(
        inner.list("meta/x/log/", None, 100).await.unwrap().len(),
        5,
        "each once"
    );
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_append_closes_the_writer() {
    let env = Env::simulated(1);
    let inner: SharedStore = Arc::new(MemoryStore::new(env.clone()));
    let store = holding(&inner, &env, slot_key(1), Duration::from_secs(60));
    let mut opened = log(&store, &env).open(owner(&env, 1)).await.unwrap();
    env.timeout(Duration::from_secs(1), opened.writer.append(entry("x")))
        .await
        .unwrap_err();
    assert_eq!(opened.writer.append(entry("y")).await, Err(LogError::Closed));
    assert_eq!(opened.writer.check().await, Err(LogError::Closed));
    let mut again = log(&store, &env).open(owner(&env, 1)).await.unwrap();
    again.writer.append(entry("z")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_append_outlasts_an_outage_but_an_open_reports_it() {
    let env = Env::simulated(1);
    let inner: SharedStore = Arc::new(MemoryStore::new(env.clone()));
    let down = Arc::new(Mutex::new(false));
    let seen = down.clone();
    let plan = move |_: Operation, _: &str| Decision {
        delay: Duration::ZERO,
        fault: if *seen.lock() {
            Fault::Fail(BlobError::Denied("key revoked".to_owned()))
        } else {
            Fault::None
        },
    };
    let store: SharedStore = Arc::new(Faulty::new(inner, env.clone(), Arc::new(plan)));
    let mut opened = log(&store, &env).open(owner(&env, 1)).await.unwrap();
    *down.lock() = true;
    let error = log(&store, &env).open(owner(&env, 2)).await.err().unwrap();
    assert!(
        matches!(&error, LogError::Unavailable(text) if text.contains("key revoked")),
        "{error}"
    );
    let waiting = env.spawn(async move { opened.writer.append(entry("x")).await });
    env.sleep(Duration::from_secs(600)).await;
    assert!(!waiting.is_finished());
    *down.lock() = false;
    assert_eq!(waiting.await.unwrap(), Ok(LogOffset(1)));
}
