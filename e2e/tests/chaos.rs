//! Clusters of real processes under random faults, judged by what their clients saw.
//!
//! Three brokers and two coordinators over a real S3 server behind the fault proxy, with their metadata log there or in a real
//! PostgreSQL; idempotent producers, assigned
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
#[path = "chaos_support/auditor.rs"]
mod auditor;
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

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::Context;
use e2e::node::{Cluster, Node, Plan};

use crate::run::{World, number};

fn seeds(world: World, count: u64) -> anyhow::Result<()> {
    let first = number("DISKLESS_CHAOS_FIRST_SEED", 1)?;
    for seed in first..first + number("DISKLESS_CHAOS_SEEDS", count)? {
        run::run(world, seed)?;
    }
    Ok(())
}

#[test]
fn killed_paused_and_stopped_processes_over_a_failing_store_lose_nothing() -> anyhow::Result<()> {
    seeds(World::Loopback, 2)
}

#[test]
fn a_cut_network_loses_nothing() -> anyhow::Result<()> {
    seeds(World::Namespaces, 2)
}

#[test]
fn a_metadata_log_in_a_failing_database_loses_nothing() -> anyhow::Result<()> {
    seeds(World::Database, 1)
}

/// The year that a node believes it is, from the head of an answer over HTTP.
fn year(node: &Node) -> anyhow::Result<u32> {
    let mut stream = TcpStream::connect((node.host.as_str(), node.admin_port))?;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let date = answer.lines().find_map(|line| line.strip_prefix("date: "));
    // Mon, 30 Nov 2026 12:00:00 GMT
    let year = date.and_then(|date| date.split(' ').nth(3));
    Ok(year.context("no date")?.parse()?)
}

/// Without it the jumps of the nemesis would be none, and nobody would notice.
#[test]
fn a_clock_can_be_set_on_one_node_alone() -> anyhow::Result<()> {
    const TWO_YEARS: i64 = 2 * 366 * 86_400;
    let cluster = Cluster::start(Plan {
        broker_zones: vec!["a"],
        coordinators: 1,
        clocks: true,
        ..Plan::default()
    })?;
    let (broker, coordinator) = (&cluster.brokers[0], &cluster.coordinators[0]);
    assert_eq!(year(broker)?, year(coordinator)?);
    broker.set_clock(TWO_YEARS)?;
    let start = Instant::now();
    while year(broker)? < year(coordinator)? + 2 {
        assert!(start.elapsed() < Duration::from_secs(60), "it stays");
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}
