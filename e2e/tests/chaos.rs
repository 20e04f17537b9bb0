//! Clusters of real processes under random faults, judged by what their clients saw.
//!
//! Three brokers and two coordinators over a real S3 server behind the fault proxy; idempotent producers, assigned
//! consumers, a group and an administrator at work; a nemesis whose choices follow from a seed. A failing run prints its seed and keeps
//! all logs. More than the few seeds of every run: `DISKLESS_CHAOS_SEEDS=50 DISKLESS_CHAOS_FIRST_SEED=100`, and
//! `DISKLESS_CHAOS_STEPS=40` for longer ones.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "tests"
)]

#[path = "chaos_support/administrator.rs"]
mod administrator;
#[path = "chaos_support/consumer.rs"]
mod consumer;
#[path = "chaos_support/link.rs"]
mod link;
#[path = "chaos_support/nemesis.rs"]
mod nemesis;
#[path = "chaos_support/producer.rs"]
mod producer;
#[path = "chaos_support/run.rs"]
mod run;

use crate::run::{World, number};

fn seeds(world: World) -> anyhow::Result<()> {
    let first = number("DISKLESS_CHAOS_FIRST_SEED", 1)?;
    for seed in first..first + number("DISKLESS_CHAOS_SEEDS", 2)? {
        run::run(world, seed)?;
    }
    Ok(())
}

#[test]
fn killed_paused_and_stopped_processes_over_a_failing_store_lose_nothing() -> anyhow::Result<()> {
    seeds(World::Loopback)
}

#[test]
fn a_cut_network_loses_nothing() -> anyhow::Result<()> {
    seeds(World::Namespaces)
}
