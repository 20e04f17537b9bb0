//! The system on a real Kubernetes cluster (kind), clients as pods. Run by `cargo xtask test` (feature `cluster`).
//!
//! The cluster is that of the demo, kept up: the first thing tested is `cargo xtask demo` itself. One test after the other
//! (`--test-threads 1`); each leaves the cluster as it found it.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "tests"
)]

mod postgres;
mod system;

use std::time::Duration;

use postgres::Database;
use system::{Client, Cut, Load, NAMESPACE, Producing, System, system, zone_bytes};

const LOAD: Load = Load {
    count: 1_500,
    size: 40,
    pause: Duration::from_millis(20),
};

/// Produces for a while, has something happen meanwhile, and demands every record back exactly once.
fn while_producing(name: &str, fault: impl FnOnce(&System) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let system = system()?;
    let client = Client::anywhere();
    let producing = Producing::start(system, &client, name, LOAD)?;
    std::thread::sleep(Duration::from_secs(3));
    fault(system)?;
    producing.finish_and_check(system, &client)
}

#[test]
fn a1_the_demo_runs_and_can_be_run_again() -> anyhow::Result<()> {
    // The first run is what brings the system up.
    system()?;
    system::xtask(&["demo", "--keep", "--name", system::CLUSTER])
}

#[test]
fn b1_a_converged_cluster_is_left_alone() -> anyhow::Result<()> {
    let system = system()?;
    system.await_settled()?;
    let kinds =
        "statefulset,service,configmap,poddisruptionbudget,serviceaccount,disklesscluster,disklesstopic";
    let versions = || -> anyhow::Result<Vec<(String, String)>> {
        let list = system.get(&[kinds])?;
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let version = |item: &serde_json::Value| {
            let name = format!("{}/{}", item["kind"], item["metadata"]["name"]);
            (name, item["metadata"]["resourceVersion"].to_string())
        };
        Ok(items.iter().map(version).collect())
    };
    let before = versions()?;
    assert!(before.len() > 8, "{before:?}");
    std::thread::sleep(Duration::from_secs(40));
    assert_eq!(before, versions()?);
    Ok(())
}

#[test]
fn c1_brokers_are_added_and_taken_away() -> anyhow::Result<()> {
    while_producing("scale", |system| {
        system.kubectl(&["scale", "disklesscluster", "demo", "--replicas=5"])?;
        system.await_brokers(5)?;
        system.kubectl(&["scale", "disklesscluster", "demo", "--replicas=3"])?;
        system.await_brokers(3)
    })
}

#[test]
fn c2_a_pod_of_each_kind_is_deleted() -> anyhow::Result<()> {
    while_producing("pods", |system| {
        system.kubectl(&["delete", "pod", "demo-a-0", "--wait=true"])?;
        system.await_settled()?;
        system.kubectl(&["delete", "pod", "demo-coordinator-0", "--wait=true"])?;
        system.await_settled()?;
        system.operator_kubectl(&["delete", "pod", "--all", "--wait=true"])?;
        // Without a goodbye.
        system.kubectl(&["delete", "pod", "demo-b-0", "--grace-period=0", "--force"])?;
        system.kubectl(&[
            "delete",
            "pod",
            "demo-coordinator-1",
            "--grace-period=0",
            "--force",
        ])?;
        system.await_settled()
    })
}

#[test]
fn c3_a_node_is_killed() -> anyhow::Result<()> {
    while_producing("node", |system| {
        let node = system.node_to_kill()?;
        println!("killing {node}");
        system::xtask(&["cluster", "kill", &node, "--name", system::CLUSTER])?;
        std::thread::sleep(Duration::from_secs(15));
        system::xtask(&["cluster", "start", &node, "--name", system::CLUSTER])?;
        system.await_settled()
    })
}

#[test]
fn c4_the_image_is_upgraded() -> anyhow::Result<()> {
    let name = system::CLUSTER;
    system()?;
    system::xtask(&["image", "broker", "--tag", "next", "--load", "--name", name])?;
    while_producing("upgrade", |system| {
        let patch = "{\"spec\":{\"image\":\"diskless-broker:next\"}}";
        system.kubectl(&["patch", "disklesscluster", "demo", "--type=merge", "-p", patch])?;
        system.await_image("diskless-broker:next")?;
        system.await_settled()
    })
}

/// What the project is for: clients and brokers of a zone keep to it, and only metadata goes from one to the other.
#[test]
fn c5_records_do_not_cross_zones() -> anyhow::Result<()> {
    const LARGE: Load = Load {
        count: 2_000,
        size: 10_000,
        pause: Duration::from_millis(5),
    };
    let system = system()?;
    system.await_settled()?;
    let (b, c) = (Client::in_zone(system, "b")?, Client::in_zone(system, "c")?);
    zone_bytes(&["--reset"])?;
    // Written in one zone, read in the other.
    Producing::start(system, &b, "zones", LARGE)?.finish_and_check(system, &c)?;
    let bytes = zone_bytes(&[])?;
    println!("{bytes:?}");
    let crossed: u64 = bytes
        .iter()
        .flat_map(|(from, row)| row.iter().filter(move |(to, _)| *to != from))
        .map(|(_, count)| count)
        .sum();
    let produced = (LARGE.count * LARGE.size) as u64;
    println!(
        "{crossed} bytes crossed zones for {produced} produced: {:.4} a byte",
        crossed as f64 / produced as f64
    );
    assert!(crossed > 0, "nothing was counted");
    assert!(
        crossed < produced / 20,
        "{crossed} of {produced} bytes crossed zones"
    );
    Ok(())
}

#[test]
fn c6_zones_that_are_cut_off_go_on_or_recover() -> anyhow::Result<()> {
    const SHORT: Load = Load { count: 750, ..LOAD };
    let system = system()?;
    system.await_settled()?;
    let clients = [
        Client::in_zone(system, "a")?,
        Client::in_zone(system, "b")?,
        Client::in_zone(system, "c")?,
    ];
    let [a, b, c] = &clients;
    assert!(b.reaches(system, "c")? && c.reaches(system, "b")?);
    // Neither needs the other: coordinators are in a third zone, the bucket is in none.
    {
        let _cut = Cut::between("b", "c")?;
        assert!(!b.reaches(system, "c")? && !c.reaches(system, "b")?);
        let in_b = Producing::start(system, b, "cut-b", SHORT)?;
        let in_c = Producing::start(system, c, "cut-c", SHORT)?;
        in_b.finish_and_check(system, c)?;
        in_c.finish_and_check(system, b)?;
    }
    assert!(b.reaches(system, "c")? && c.reaches(system, "b")?);
    // The coordinators are on one side.
    let (in_a, in_b) = {
        let _cut = Cut::between("a", "b")?;
        let in_a = Producing::start(system, a, "side-a", SHORT)?;
        let in_b = Producing::start(system, b, "side-b", SHORT)?;
        assert!(!a.reaches(system, "b")? && !b.reaches(system, "a")?);
        std::thread::sleep(Duration::from_secs(5));
        (in_a, in_b)
    };
    in_a.finish_and_check(system, b)?;
    in_b.finish_and_check(system, a)?;
    system.await_settled()
}

#[test]
fn c7_a_metadata_log_in_postgresql_outlives_its_server_and_a_coordinator() -> anyhow::Result<()> {
    const SHORT: Load = Load { count: 1_000, ..LOAD };
    let system = system()?;
    system.await_settled()?;
    let database = Database::start(system)?;
    let client = database.client();
    let before = database.slots()?;
    let producing = Producing::start(system, &client, "postgres", SHORT)?;
    std::thread::sleep(Duration::from_secs(3));
    database.fail()?;
    producing.finish_and_check(system, &client)?;
    assert!(database.slots()? > before, "the metadata log is somewhere else");
    Ok(())
}

#[test]
fn d1_the_namespace_goes_away() -> anyhow::Result<()> {
    let system = system()?;
    system.kubectl(&["delete", "disklesstopic", "--all", "--timeout=60s"])?;
    let delete = ["delete", "namespace", NAMESPACE, "--timeout=120s"];
    system.kubectl(&delete)
}

#[test]
fn z_everything_is_removed() -> anyhow::Result<()> {
    system::xtask(&["demo", "--down", "--name", system::CLUSTER])
}
