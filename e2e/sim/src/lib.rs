//! Whole clusters in one process, from a seed.
//!
//! ```text
//!  seed ─▶ world:    nodes (the shipped code) on a simulated clock, network and object store
//!          workload: idempotent producers, consumers that read everything
//!          faults:   kills and restarts, cut links, lost replies, failing and slow requests to the store
//!          verdict:  the history checker of `e2e`, and a trace that must be the same for the same seed
//! ```
//!
//! Everything runs on one thread with a paused clock: time jumps to the next thing that is due, so minutes of a
//! cluster's life take seconds.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test program; its nodes get their world from the crate env"
)]

mod client;
mod faults;
mod workload;
mod world;

use std::sync::Arc;
use std::time::Duration;

use e2e::history::{Anomaly, History};
use parking_lot::Mutex;

/// What a run does.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Everything random follows from it.
    pub seed: u64,
    /// Records per producer.
    pub records: u64,
    /// Producers; each sends to partitions of its own choice.
    pub producers: u64,
    /// How long faults go on, in simulated time.
    pub trouble: Duration,
}

impl Scenario {
    /// The first scenario: three brokers, two coordinators, one store, random kills and lost replies.
    pub fn new(seed: u64) -> Scenario {
        Scenario {
            seed,
            records: 150,
            producers: 3,
            trouble: Duration::from_secs(40),
        }
    }
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    /// What the clients saw.
    pub history: History,
    /// What must not have happened.
    pub anomalies: Vec<Anomaly>,
    /// Everything that happened, one line each; the same for the same seed.
    pub trace: Vec<String>,
}

/// The lines of a run, shared by everybody in it.
#[derive(Clone, Default)]
pub(crate) struct Trace(Arc<Mutex<Vec<String>>>);

impl Trace {
    pub(crate) fn add(&self, env: &env::Env, line: impl std::fmt::Display) {
        self.0.lock().push(format!("{} {line}", env.now()));
    }
}

/// Runs a scenario on a runtime of its own.
pub fn run(scenario: Scenario) -> anyhow::Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()?;
    let outcome = runtime.block_on(world::run(scenario));
    // What is left of the nodes must not outlive the run.
    runtime.shutdown_background();
    outcome
}
