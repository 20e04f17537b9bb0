//! Kills: whatever dies, no acknowledged record is lost and none is stored twice.
#![allow(clippy::disallowed_methods, clippy::expect_used, reason = "tests")]

use std::time::Duration;

use e2e::clients::Library;
use e2e::history::History;
use e2e::node::{Cluster, Plan};
use e2e::s3::S3Server;

const COUNT: u64 = 4_000;
const RATE: u64 = 200;

/// Produces and consumes with a group while `fault` happens to the cluster, then judges what all clients saw.
fn under_fault(
    producer: Library,
    consumer: Library,
    plan: Plan,
    fault: impl FnOnce(&mut Cluster) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut cluster = Cluster::start(plan)?;
    let bootstrap = cluster.bootstrap();
    let mut history = History {
        idempotent: true,
        ..History::default()
    };
    let warm_up = producer.produce(&bootstrap, "faulty", 0, 100, 0)?.finish()?;
    history.add_producer(&warm_up, 0, 100);
    let producing = producer.produce(&bootstrap, "faulty", 100, COUNT, RATE)?;
    let consuming = consumer.consume(&bootstrap, "faulty", "readers", COUNT + 100, 30)?;
    std::thread::sleep(Duration::from_secs(4));
    fault(&mut cluster)?;
    history.add_producer(&producing.finish()?, 100, COUNT);
    let live = consuming.finish()?;
    // Every record is delivered: none of them was given up.
    assert_eq!(history.acked.len() as u64, COUNT + 100);
    history.add_consumer(&live);
    let again = Library::FranzGo
        .consume(&bootstrap, "faulty", "afterwards", COUNT + 100, 20)?
        .finish()?;
    history.add_consumer(&again);
    history.assert_clean();
    Ok(())
}

#[test]
fn a_killed_broker_loses_nothing_with_franz_go() -> anyhow::Result<()> {
    under_fault(Library::FranzGo, Library::FranzGo, Plan::default(), |cluster| {
        cluster.brokers[0].kill();
        Ok(())
    })
}

#[test]
fn a_killed_broker_loses_nothing_with_librdkafka() -> anyhow::Result<()> {
    under_fault(Library::Confluent, Library::Java, Plan::default(), |cluster| {
        cluster.brokers[1].kill();
        Ok(())
    })
}

#[test]
fn killed_coordinators_lose_nothing() -> anyhow::Result<()> {
    under_fault(Library::Java, Library::Confluent, Plan::default(), |cluster| {
        for i in 0..cluster.coordinators.len() {
            cluster.coordinators[i].kill();
            std::thread::sleep(Duration::from_secs(4));
            cluster.coordinators[i].start()?;
            cluster.coordinators[i].wait_ready()?;
        }
        Ok(())
    })
}

#[test]
fn killed_nodes_over_s3_lose_nothing() -> anyhow::Result<()> {
    let s3 = S3Server::start()?;
    let plan = Plan {
        store: Some(s3.url("failover")),
        environment: s3.environment(),
        ..Plan::default()
    };
    under_fault(Library::FranzGo, Library::FranzGo, plan, |cluster| {
        cluster.brokers[2].kill();
        std::thread::sleep(Duration::from_secs(2));
        cluster.coordinators[0].kill();
        std::thread::sleep(Duration::from_secs(4));
        cluster.brokers[2].start()?;
        cluster.coordinators[0].start()?;
        cluster.brokers[2].wait_ready()?;
        cluster.coordinators[0].wait_ready()
    })
}

#[test]
fn a_paused_coordinator_that_comes_back_changes_nothing() -> anyhow::Result<()> {
    under_fault(Library::FranzGo, Library::FranzGo, Plan::default(), |cluster| {
        for i in 0..cluster.coordinators.len() {
            cluster.coordinators[i].signal("STOP")?;
            std::thread::sleep(Duration::from_secs(6));
            cluster.coordinators[i].signal("CONT")?;
            std::thread::sleep(Duration::from_secs(2));
        }
        Ok(())
    })
}

#[test]
fn brokers_stopped_one_by_one_hand_over_and_end_with_success() -> anyhow::Result<()> {
    under_fault(Library::Java, Library::FranzGo, Plan::default(), |cluster| {
        for i in 0..cluster.brokers.len() {
            let status = cluster.brokers[i].stop()?;
            assert!(
                status.success(),
                "broker {i} ended with {status}:\n{}",
                cluster.brokers[i].log()
            );
            cluster.brokers[i].start()?;
            cluster.brokers[i].wait_ready()?;
        }
        for i in 0..cluster.coordinators.len() {
            let status = cluster.coordinators[i].stop()?;
            assert!(
                status.success(),
                "coordinator {i} ended with {status}:\n{}",
                cluster.coordinators[i].log()
            );
            cluster.coordinators[i].start()?;
            cluster.coordinators[i].wait_ready()?;
        }
        Ok(())
    })
}

#[test]
fn every_view_and_cache_can_be_deleted() -> anyhow::Result<()> {
    let mut cluster = Cluster::start(Plan::default())?;
    let bootstrap = cluster.bootstrap();
    let mut history = History {
        idempotent: true,
        ..History::default()
    };
    history.add_producer(
        &Library::FranzGo
            .produce(&bootstrap, "kept", 0, 2_000, 0)?
            .finish()?,
        0,
        2_000,
    );
    assert_eq!(history.acked.len(), 2_000);
    for node in cluster.nodes() {
        node.kill();
        node.delete_data()?;
    }
    for node in cluster.nodes() {
        node.start()?;
    }
    for node in cluster.nodes() {
        node.wait_ready()?;
    }
    history.add_consumer(
        &Library::FranzGo
            .consume(&bootstrap, "kept", "after", 2_000, 20)?
            .finish()?,
    );
    history.add_producer(
        &Library::FranzGo
            .produce(&bootstrap, "kept", 2_000, 100, 0)?
            .finish()?,
        2_000,
        100,
    );
    history.reads.clear();
    history.add_consumer(
        &Library::Java
            .consume(&bootstrap, "kept", "later", 2_100, 20)?
            .finish()?,
    );
    history.assert_clean();
    Ok(())
}
