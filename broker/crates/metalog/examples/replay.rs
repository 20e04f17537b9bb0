//! How long a take-over takes to read a log: writes one into a local folder, then opens and reads it, once as fast as
//! the folder is, and once with a latency on every GET.
//!
//! `cargo run --release -p metalog --example replay -- [SLOTS] [BYTES PER SLOT] [GET LATENCY MS]`
#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a measurement, not a service"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use blob::faults::{Decision, Fault, Faulty};
use blob::{LocalStore, Operation, SharedStore};
use bytes::Bytes;
use env::Env;
use metalog::{LogOffset, MetadataLog, ObjectLog, Options, Owner};

/// What a replica asks for at a time.
const READ_BYTES: usize = 4 << 20;

fn owner(env: &Env) -> Owner {
    Owner {
        node_id: 1,
        incarnation: env.uuid(),
        address: "localhost:1".to_owned(),
    }
}

/// `inner` with `latency` on every read.
fn slow(inner: &SharedStore, env: &Env, latency: Duration, gets: Arc<AtomicU64>) -> SharedStore {
    let plan = move |operation: Operation, _: &str| {
        let read = operation == Operation::Get;
        gets.fetch_add(u64::from(read), Ordering::Relaxed);
        Decision {
            delay: if read { latency } else { Duration::ZERO },
            fault: Fault::None,
        }
    };
    Arc::new(Faulty::new(inner.clone(), env.clone(), Arc::new(plan)))
}

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args()
        .skip(1)
        .map(|argument| argument.parse::<u64>().unwrap());
    let slots = arguments.next().unwrap_or(10_000);
    let bytes = arguments.next().unwrap_or(6_000);
    let latency = Duration::from_millis(arguments.next().unwrap_or(20));
    let env = Env::production();
    let root = tempfile::tempdir().unwrap();
    let store: SharedStore = Arc::new(LocalStore::open(root.path(), env.clone()).await.unwrap());
    let log = |store: &SharedStore| ObjectLog::new(store.clone(), "x", Options::default(), env.clone());

    let began = Instant::now();
    let mut opened = log(&store).open(owner(&env)).await.unwrap();
    let entry = Bytes::from(vec![7; bytes as usize]);
    for _ in 0..slots {
        opened.writer.append(vec![entry.clone()]).await.unwrap();
    }
    println!("wrote {slots} slots of {bytes} bytes in {:.1?}", began.elapsed());

    for latency in [Duration::ZERO, latency] {
        let gets = Arc::new(AtomicU64::new(0));
        let store = slow(&store, &env, latency, gets.clone());
        let began = Instant::now();
        let log = log(&store);
        let opened = log.open(owner(&env)).await.unwrap();
        let open = began.elapsed();
        let mut next = opened.log_start;
        while next < opened.tail {
            let slots = log.read(next, READ_BYTES).await.unwrap();
            next = slots.last().map_or(LogOffset(0), |slot| slot.offset.next());
        }
        let all = began.elapsed();
        println!(
            "GET latency {latency:?}: open {open:.2?}, open and replay {all:.2?}, {:.0} slots/s, {} GETs",
            slots as f64 / (all - open).as_secs_f64(),
            gets.load(Ordering::Relaxed)
        );
    }
}
