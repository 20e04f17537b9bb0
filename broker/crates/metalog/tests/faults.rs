//! Three nodes fight for one log over a store that fails, loses replies, and delivers requests long after their sender
//! gave up, while snapshots move the start of the log and sweeps delete what is below. Everything follows from a seed;
//! `SEED=n` runs that one alone, `SEEDS=n` that many.
//!
//! What is checked, against a log of entries that each have a number of their own:
//! - every state that a leader rebuilds is a prefix of the final one, and has all that was acknowledged before;
//! - the final state has every acknowledged entry, once;
//! - an acknowledged slot of an epoch lies before the fencing slot of the next;
//! - epochs grow from one take-over to the next.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "helpers of tests"
)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use blob::faults::{Decision, Fault, Faulty};
use blob::{BlobError, MemoryStore, Operation, SharedStore};
use env::{Env, Simulation};
use futures::TryStreamExt;
use metalog::{LogError, LogOffset, MetadataLog, ObjectLog, Options, Owner};
use support::{History, SharedHistory, check, decode, lead, live, rebuild};

const OPTIONS: Options = Options {
    confirm_after: Duration::from_secs(5),
    min_age: Duration::from_secs(40),
};
/// A leader rests for up to so long.
const REST: Duration = Duration::from_secs(20);
const RUN: Duration = Duration::from_secs(1500);

/// Fails about one request in `one_in`, in one of many ways.
fn unreliable(inner: &SharedStore, env: &Env, one_in: u64) -> SharedStore {
    let dice = env.clone();
    let plan = move |operation: Operation, _: &str| {
        let ms = |bound: u64| Duration::from_millis(dice.random_below(bound));
        let mut decision = Decision {
            delay: ms(40),
            fault: Fault::None,
        };
        if dice.random_below(one_in) == 0 {
            let error = match dice.random_below(3) {
                0 => BlobError::Timeout("no answer".to_owned()),
                1 => BlobError::Throttled("slow down".to_owned()),
                _ => BlobError::Unavailable("reset".to_owned()),
            };
            let write = matches!(
                operation,
                Operation::Put | Operation::PutIfAbsent | Operation::Delete
            );
            decision.fault = match dice.random_below(4) {
                0 => Fault::Fail(error),
                1 if write => Fault::LoseReply(BlobError::Timeout("reply lost".to_owned())),
                2 if write => Fault::Late(ms(200_000), BlobError::Timeout("stuck".to_owned())),
                // Neither an error nor a reply: the whole node seems to stand still.
                3 => {
                    decision.delay = ms(200_000);
                    Fault::None
                }
                _ => Fault::Fail(error),
            };
        }
        decision
    };
    Arc::new(Faulty::new(inner.clone(), env.clone(), Arc::new(plan)))
}

async fn node(id: i32, store: SharedStore, env: Env, history: SharedHistory) {
    let log = ObjectLog::new(store, "x", OPTIONS, env.clone());
    loop {
        env.sleep(Duration::from_millis(env.random_below(30_000))).await;
        // A handle that is kept over crashes of its writer is a follower; a new one is a new process.
        let fresh = ObjectLog::clone(&log);
        let owner = Owner {
            node_id: id,
            incarnation: env.uuid(),
            address: format!("node-{id}:9190"),
        };
        let life = Duration::from_millis(env.random_below(120_000));
        live(&env, life, lead(&fresh, owner, &env, &history, REST), &history).await;
    }
}

/// A follower reads along, and starts again from the snapshot when it is left behind.
async fn follow(store: SharedStore, env: Env, history: SharedHistory) {
    let log = ObjectLog::new(store, "x", OPTIONS, env.clone());
    let mut at = LogOffset(0);
    let mut state = Vec::new();
    loop {
        env.sleep(Duration::from_millis(env.random_below(3000))).await;
        if env.random_below(20) == 0 {
            env.sleep(Duration::from_millis(env.random_below(300_000))).await;
        }
        let result = async {
            match log.read(at, 1000).await {
                Ok(slots) => {
                    for slot in slots {
                        assert_eq!(slot.offset, at, "slots are dense");
                        slot.entries.iter().for_each(|entry| decode(entry, &mut state));
                        at = at.next();
                    }
                }
                Err(LogError::Trimmed { .. }) => {
                    let snapshot = log.snapshot().await?.unwrap();
                    // It may be replaced and swept while a slow follower fetches it; then the next round has another.
                    let pieces: Result<Vec<_>, _> = log.get_snapshot(&snapshot).try_collect().await;
                    let body = match pieces {
                        Err(LogError::Trimmed { .. }) => return Ok(()),
                        pieces => pieces?.concat(),
                    };
                    state.clear();
                    decode(&body, &mut state);
                    at = snapshot.offset;
                }
                Err(error) => return Err(error),
            }
            Ok(())
        };
        match result.await {
            Ok(()) | Err(LogError::Unavailable(_)) => history.lock().states.push((0, state.clone())),
            Err(error) => panic!("{error}"),
        }
    }
}

async fn run(seed: u64) -> String {
    let world = Simulation::new(seed);
    let outside = world.node("store");
    let store: SharedStore = Arc::new(MemoryStore::new(outside.clone()));
    let history = SharedHistory::default();
    let one_in = 10 + outside.random_below(60);
    let (mut nodes, mut tasks) = (Vec::new(), Vec::new());
    for id in 1..=3 {
        let env = world.node(&format!("node-{id}"));
        let bad = unreliable(&store, &outside, one_in);
        tasks.push(env.spawn(node(id, bad, env.clone(), history.clone())));
        nodes.push(env);
    }
    let env = world.node("follower");
    tasks.push(env.spawn(follow(
        unreliable(&store, &outside, one_in),
        env.clone(),
        history.clone(),
    )));
    nodes.push(env);
    outside.sleep(RUN).await;
    for env in nodes {
        env.shut_down().await;
    }
    for task in tasks {
        task.await; // goes on with its panic, if it had one
    }
    // Requests that are still under way arrive.
    outside.sleep(Duration::from_secs(300)).await;

    let reader = world.node("reader");
    let log = ObjectLog::new(store, "x", OPTIONS, reader.clone());
    let owner = Owner {
        node_id: 9,
        incarnation: reader.uuid(),
        address: "reader:1".to_owned(),
    };
    let opened = log.open(owner).await.unwrap();
    let last = rebuild(&log, &opened).await.unwrap();
    let mut history = history.lock();
    history.takeovers.push((opened.epoch, opened.tail));
    check(&history, &last);
    let History {
        acknowledged,
        takeovers,
        states,
        crashes,
        fenced,
        trims,
        swept,
        ..
    } = &*history;
    format!(
        "{} acknowledged, {} entries, {} takeovers, {} states, {crashes} crashes, {fenced} fenced, {trims} trims, {swept} swept",
        acknowledged.len(),
        last.len(),
        takeovers.len(),
        states.len(),
    )
}

fn simulate(seed: u64) -> String {
    println!("SEED={seed}");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let summary = runtime.block_on(run(seed));
    println!("  {summary}");
    summary
}

#[test]
fn acknowledged_entries_survive_whatever_happens() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    match number("SEED") {
        Some(seed) => drop(simulate(seed)),
        None => (1..=number("SEEDS").unwrap_or(30)).for_each(|seed| drop(simulate(seed))),
    }
}

#[test]
fn the_same_seed_gives_the_same_history() {
    assert_eq!(simulate(7), simulate(7));
}
