//! How many requests behind each other a log needs, by a store that takes a second for each.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;
use std::time::Duration;

use blob::faults::{Decision, Fault, Faulty};
use blob::{MemoryStore, Operation, SharedStore};
use bytes::Bytes;
use env::Env;
use metalog::{LogOffset, MetadataLog, ObjectLog, Options, Owner};

const SECOND: Duration = Duration::from_secs(1);

fn owner(env: &Env, node_id: i32) -> Owner {
    Owner {
        node_id,
        incarnation: env.uuid(),
        address: format!("node-{node_id}:9190"),
    }
}

fn log(store: &SharedStore, env: &Env) -> ObjectLog {
    ObjectLog::new(store.clone(), "x", Options::default(), env.clone())
}

fn slow(store: &SharedStore, env: &Env) -> SharedStore {
    let plan = |_: Operation, _: &str| Decision {
        delay: SECOND,
        fault: Fault::None,
    };
    Arc::new(Faulty::new(store.clone(), env.clone(), Arc::new(plan)))
}

#[tokio::test(start_paused = true)]
async fn a_take_over_takes_few_rounds_however_long_the_log_is() {
    let env = Env::simulated(1);
    let store: SharedStore = Arc::new(MemoryStore::new(env.clone()));
    let mut opened = log(&store, &env).open(owner(&env, 1)).await.unwrap();
    // One that has read the log knows where it ends.
    let follower = log(&slow(&store, &env), &env);
    for count in [1, 2, 3, 5, 11, 200, 1_000, 5_000, 20_000] {
        while opened.writer.tail() < LogOffset(count) {
            let entry = vec![Bytes::from_static(b"entry")];
            opened.writer.append(entry).await.unwrap();
        }
        let tail = opened.writer.tail().0;
        let began = env.instant();
        let cold = log(&slow(&store, &env), &env).open(owner(&env, 2)).await.unwrap();
        assert_eq!(cold.tail, LogOffset(tail + 1));
        let rounds = env.instant().saturating_duration_since(began).as_secs();
        assert!(rounds <= 12, "{rounds} rounds for {tail} slots");

        let mut next = LogOffset(0);
        while next < cold.tail {
            let slots = follower.read(next, 1 << 20).await.unwrap();
            next = slots.last().unwrap().offset.next();
        }
        let began = env.instant();
        opened = follower.open(owner(&env, 3)).await.unwrap();
        assert_eq!(opened.tail, LogOffset(tail + 2));
        let rounds = env.instant().saturating_duration_since(began).as_secs();
        assert!(rounds <= 6, "{rounds} rounds for a follower");
    }
}
