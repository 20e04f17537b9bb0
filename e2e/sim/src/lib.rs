//! Whole clusters in one process, from a seed.
//!
//! ```text
//!  seed ─▶ world:    nodes (the shipped code) on a simulated clock, network and object store
//!          workload: producers, consumers, groups, auditors, topics that come, grow and go
//!          scale:    more metadata partitions, a coordinator that comes and goes
//!          upgrade:  nodes of an earlier release that become those of this one
//!          faults:   kills, pauses, cuts, splits, resets, wrong clocks, a store that fails, loses answers and repeats itself
//!          verdict:  the checker of `history`, and a trace that must be the same for the same seed
//! ```
//!
//! Everything runs on one thread with a paused clock: time jumps to the next thing that is due, so minutes of a
//! cluster's life take a second. `docs/simulation.md` tells how to use it.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test program; its nodes get their world from the crate env"
)]

mod client;
mod faults;
mod group_requests;
mod lab;
pub mod mutations;
mod requests;
mod run;
mod scale;
mod store;
mod upgrade;
mod workload;
mod world;

use std::time::Duration;

use history::Anomaly;

/// What a run does.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Everything random follows from it.
    pub seed: u64,
    /// Bursts of records per producer and producer id.
    pub bursts: u64,
    /// How long faults go on, in simulated time.
    pub trouble: Duration,
}

impl Scenario {
    /// Three brokers, two coordinators, one store, and everything that `faults` knows.
    pub fn new(seed: u64) -> Scenario {
        Scenario {
            seed,
            bursts: 8,
            trouble: Duration::from_secs(25),
        }
    }
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    /// How many records were acknowledged.
    pub acknowledged: usize,
    /// What must not have happened.
    pub anomalies: Vec<Anomaly>,
    /// Everything that happened, one line each; the same for the same seed.
    pub trace: Vec<String>,
}

/// Runs a scenario on a runtime of its own.
pub fn run(scenario: Scenario) -> anyhow::Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()?;
    let outcome = runtime.block_on(run::run(scenario));
    // What is left of the nodes must not outlive the run.
    runtime.shutdown_background();
    outcome
}
