//! Whole clusters in one process, from a seed.
//!
//! ```text
//!  seed ─▶ world:    nodes (the shipped code) on a simulated clock, network and object store, and in some runs a database
//!          workload: producers, consumers, groups, auditors, topics that come, grow and go
//!          scale:    more metadata partitions, a coordinator that comes and goes
//!          upgrade:  nodes of an earlier release that become those of this one
//!          calm:     one node at a time, in runs without all else that goes wrong
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

mod calm;
mod client;
mod faults;
mod group_requests;
mod lab;
pub mod mutations;
mod postgres;
mod requests;
mod run;
mod scale;
mod store;
mod upgrade;
mod workload;
mod world;

use std::fmt;
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

/// What the metadata logs of a run are kept in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Engine {
    /// The object store.
    Object,
    /// A database.
    Postgres,
}

/// One run in so many has a database.
const POSTGRES_RUNS: u64 = 5;

impl Engine {
    /// That of a seed's run.
    pub fn of(seed: u64) -> Engine {
        match class(seed, "engine", POSTGRES_RUNS) {
            0 => Engine::Postgres,
            _ => Engine::Object,
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Engine::Object => "object",
            Engine::Postgres => "postgres",
        })
    }
}

/// In which of `of` classes the run of a seed is. Classes of different names have nothing to do with each other: everything
/// meets everything.
pub(crate) fn class(seed: u64, name: &str, of: u64) -> u64 {
    // FNV-1a of the name, and SplitMix64 of both.
    let name = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ name;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)) % of
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
