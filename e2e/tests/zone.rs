//! The brokers of a zone read the store for each other: one GET for each object and zone.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

#[path = "faults_support/mod.rs"]
#[allow(dead_code, reason = "the fault tests need more of it")]
mod support;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};
use std::time::Duration;

use e2e::node::{Cluster, Node, Plan};
use e2e::s3::S3Server;
use e2e::s3_proxy::{Fault, Proxy, Rule, Verb};
use e2e::wire::Wire;

use crate::support::{fetch, known, produce, until, values};

/// Three brokers in a zone, one in another.
const ZONES: [&str; 4] = ["a", "a", "a", "b"];
/// Every record becomes an object of its own.
const OBJECTS: i64 = 10;
/// How far a writer goes ahead of readers that must not lose sight of it.
const AHEAD: i64 = 10;
const MOMENT: Duration = Duration::from_millis(1);

fn sum(brokers: &[Node], metric: &str) -> anyhow::Result<f64> {
    brokers.iter().map(|broker| broker.metric(metric)).sum()
}

/// Whole objects that brokers have read from the store.
fn store_reads(brokers: &[Node]) -> anyhow::Result<f64> {
    sum(brokers, "diskless_object_reads_total{source=\"store\"}")
}

fn failures(brokers: &[Node]) -> anyhow::Result<f64> {
    sum(brokers, "diskless_neighbour_failures_total")
}

/// Reads records that are numbers, until those of `offsets` have come; each must be where it belongs.
fn read(broker: &Node, offsets: Range<i64>) -> anyhow::Result<()> {
    let mut wire = Wire::connect(&broker.address())?;
    known(&mut wire, "numbers", 1)?;
    let mut next = offsets.start;
    until("all records are there", || {
        for value in values(&fetch(&mut wire, "numbers", &[(0, next)])?[0])? {
            assert_eq!(value, next.to_string());
            next += 1;
        }
        Ok((next >= offsets.end).then_some(()))
    })
}

#[test]
fn a_zone_reads_each_object_once_and_its_own_not_at_all() -> anyhow::Result<()> {
    let s3 = S3Server::start()?;
    let proxy = Proxy::start("127.0.0.1", &s3.endpoint(), None, 1)?;
    let cluster = Cluster::start(Plan {
        store: Some(s3.url_through(&proxy.endpoint(), "zone")),
        environment: s3.environment(),
        broker_zones: ZONES.to_vec(),
        coordinators: 1,
        ..Plan::default()
    })?;
    let (near, far) = cluster.brokers.split_at(3);
    Wire::connect(&near[0].address())?.create_topic("numbers", 1)?;
    // Counts the reads of WAL objects: coordinators read their logs meanwhile.
    proxy.set_rules(vec![Rule::new(Fault::Delay { ms: 0 }).on(Verb::Get, "/wal/")]);
    let mut end = 0;
    for writer in [&near[0], &far[0]].repeat(3) {
        let before = (store_reads(near)?, store_reads(far)?, failures(&cluster.brokers)?);
        let gets = proxy.counts().faults();
        let mut wire = Wire::connect(&writer.address())?;
        known(&mut wire, "numbers", 1)?;
        let begin = end;
        for number in begin..begin + OBJECTS {
            assert_eq!(produce(&mut wire, "numbers", 0, &[&number.to_string()])?, number);
        }
        end += OBJECTS;
        std::thread::scope(|scope| -> anyhow::Result<()> {
            // Two consumers at each broker.
            let brokers = cluster.brokers.iter().chain(&cluster.brokers);
            let reading: Vec<_> = brokers
                .map(|broker| scope.spawn(move || read(broker, begin..begin + OBJECTS)))
                .collect();
            reading
                .into_iter()
                .try_for_each(|reading| reading.join().expect("a reader"))
        })?;
        // On a machine that is busy with other things a neighbour may be late: then the store is read as well, which is counted.
        let late = failures(&cluster.brokers)? - before.2;
        let reads = (store_reads(near)? - before.0, store_reads(far)? - before.1);
        let gets = (proxy.counts().faults() - gets) as f64;
        let objects = OBJECTS as f64;
        let expected = match writer.zone.as_str() {
            "a" => (0.0, objects),
            _ => (objects, 0.0),
        };
        assert!(
            (expected.0..=expected.0 + late).contains(&reads.0) && reads.1 == expected.1,
            "zone {}: {reads:?}, {late} late",
            writer.zone
        );
        // A read that has become needless may be given up before it gets there.
        assert!((objects..=reads.0 + reads.1).contains(&gets), "{gets} {reads:?}");
    }
    for broker in near {
        assert!(broker.metric("diskless_object_reads_total{source=\"neighbour\"}")? > 0.0);
        assert!(broker.metric("diskless_neighbours_served_total")? > 0.0);
    }
    // Nobody is asked across zones.
    assert_eq!(
        far[0].metric("diskless_object_reads_total{source=\"neighbour\"}")?,
        0.0
    );
    assert_eq!(far[0].metric("diskless_neighbours_served_total")?, 0.0);
    Ok(())
}

#[test]
fn consumers_go_on_while_a_broker_that_reads_for_them_is_frozen_or_dead() -> anyhow::Result<()> {
    let mut cluster = Cluster::start(Plan {
        broker_zones: ZONES.to_vec(),
        coordinators: 1,
        settings: "[produce]\nputs_per_second = 1000\n".to_owned(),
        ..Plan::default()
    })?;
    Wire::connect(&cluster.brokers[3].address())?.create_topic("numbers", 1)?;
    let (reader, others) = cluster.brokers.split_at_mut(1);
    let (reader, consumers, writer) = (&mut reader[0], &others[..2], &others[2]);
    let (done, ended) = (AtomicBool::new(false), AtomicBool::new(false));
    let written = AtomicI64::new(0);
    let positions = [AtomicI64::new(0), AtomicI64::new(0)];
    let consume = |broker: &Node, position: &AtomicI64| -> anyhow::Result<()> {
        while !(ended.load(Relaxed) && position.load(Relaxed) == written.load(Relaxed)) {
            let at = position.load(Relaxed);
            if at < written.load(Relaxed) {
                read(broker, at..at + 1)?;
                position.store(at + 1, Relaxed);
            } else {
                std::thread::sleep(MOMENT);
            }
        }
        Ok(())
    };
    let produce = || -> anyhow::Result<()> {
        let mut wire = Wire::connect(&writer.address())?;
        while !done.load(Relaxed) {
            let number = written.load(Relaxed);
            let slowest = positions.iter().map(|position| position.load(Relaxed)).min();
            if slowest.is_some_and(|slowest| number - slowest >= AHEAD) {
                std::thread::sleep(MOMENT);
                continue;
            }
            assert_eq!(produce(&mut wire, "numbers", 0, &[&number.to_string()])?, number);
            written.store(number + 1, Relaxed);
        }
        ended.store(true, Relaxed);
        Ok(())
    };
    std::thread::scope(|scope| -> anyhow::Result<()> {
        let mut working = vec![scope.spawn(produce)];
        for (broker, position) in consumers.iter().zip(&positions) {
            working.push(scope.spawn(move || consume(broker, position)));
        }
        let mut disturb = || -> anyhow::Result<()> {
            let go_on = |what: &str| {
                let from = written.load(Relaxed) + 20;
                until(what, || {
                    Ok(positions
                        .iter()
                        .all(|position| position.load(Relaxed) >= from)
                        .then_some(()))
                })
            };
            until("it reads for its neighbours", || {
                Ok((reader.metric("diskless_neighbours_served_total")? > 0.0).then_some(()))
            })?;
            let before = failures(consumers)?;
            // Until it was asked in vain: nobody asks it any more when the controller has noticed.
            loop {
                reader.signal("STOP")?;
                go_on("consumers go on beside a frozen broker")?;
                reader.signal("CONT")?;
                reader.wait_ready()?;
                if failures(consumers)? > before {
                    break;
                }
            }
            go_on("consumers go on")?;
            reader.kill();
            go_on("consumers go on beside a dead broker")?;
            reader.start()?;
            reader.wait_ready()?;
            until("it reads for its neighbours again", || {
                Ok((reader.metric("diskless_neighbours_served_total")? > 0.0).then_some(()))
            })?;
            Ok(())
        };
        let disturbed = disturb();
        done.store(true, Relaxed);
        for working in working {
            working.join().expect("a client")?;
        }
        disturbed
    })?;
    assert!(
        positions
            .iter()
            .all(|position| position.load(Relaxed) == written.load(Relaxed))
    );
    Ok(())
}
