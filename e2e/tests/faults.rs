//! Faults that other systems of this kind have had, each as a test; `docs/faults.md` lists them all.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

#[path = "faults_support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use e2e::clients::Library;
use e2e::history::History;
use e2e::node::{Cluster, Plan};
use e2e::s3::S3Server;
use e2e::s3_proxy::{Fault, Proxy, Rule, Verb};
use e2e::wire::{Wire, batch, topic_name};
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{CreatePartitionsRequest, MetadataRequest};

use crate::support::{
    EARLIEST, LATEST, PATIENCE, delete_records, fetch, fetch_versions, for_each_file, known, now, offset,
    produce, produce_batch, transactional, until, values,
};

fn small() -> Plan {
    Plan {
        broker_zones: vec!["a"],
        coordinators: 1,
        ..Plan::default()
    }
}

#[test]
fn deleted_records_are_out_of_range_not_skipped() -> anyhow::Result<()> {
    let cluster = Cluster::start(Plan::default())?;
    let mut wire = Wire::connect(&cluster.brokers[0].address())?;
    wire.create_topic("cut", 1)?;
    for value in ["0", "1", "2"] {
        produce(&mut wire, "cut", 0, &[value])?;
    }
    assert_eq!(delete_records(&mut wire, "cut", 0, 2)?, (0, 2));
    // Whoever was told of it finds it done at once.
    let found = fetch(&mut wire, "cut", &[(0, 1)])?.remove(0);
    assert_eq!(found.error_code, ResponseError::OffsetOutOfRange.code());
    for broker in &cluster.brokers {
        let mut wire = Wire::connect(&broker.address())?;
        known(&mut wire, "cut", 1)?;
        for gone in [0, 1] {
            let found = until("the new start of the log is known", || {
                let found = fetch(&mut wire, "cut", &[(0, gone)])?.remove(0);
                Ok((found.error_code != 0).then_some(found))
            })?;
            assert_eq!(found.error_code, ResponseError::OffsetOutOfRange.code());
            // As Kafka answers errors; where the partition begins is ListOffsets' to say.
            assert_eq!((found.log_start_offset, found.high_watermark), (-1, -1));
        }
        let found = fetch(&mut wire, "cut", &[(0, 2)])?.remove(0);
        assert_eq!((found.error_code, values(&found)?), (0, vec!["2".to_owned()]));
    }
    Ok(())
}

#[test]
fn clients_that_know_no_topic_ids_consume_with_and_without_sessions() -> anyhow::Result<()> {
    let cluster = Cluster::start(small())?;
    let mut wire = Wire::connect(&cluster.bootstrap())?;
    let mut written = BTreeMap::new();
    for topic in ["one", "two"] {
        wire.create_topic(topic, 2)?;
        for i in 0..6 {
            let value = format!("{topic} {i}");
            produce(&mut wire, topic, i % 2, &[&value])?;
            written.entry((topic, i % 2)).or_insert_with(Vec::new).push(value);
        }
    }
    for version in fetch_versions() {
        for session in [false, true] {
            let mut wire = Wire::connect(&cluster.bootstrap())?;
            let read = support::consume_all(&mut wire, version, session, &["one", "two"], 2, 12)?;
            let expected = written
                .iter()
                .map(|((topic, partition), values)| (((*topic).to_owned(), *partition), values.clone()));
            assert_eq!(
                read,
                expected.collect::<BTreeMap<_, _>>(),
                "version {version}, session {session}"
            );
        }
    }
    Ok(())
}

#[test]
fn topics_that_grow_while_all_coordinators_die_serve_every_partition() -> anyhow::Result<()> {
    let mut cluster = Cluster::start(Plan::default())?;
    let address = cluster.brokers[0].address();
    let mut wire = Wire::connect(&address)?;
    wire.create_topic("growing", 3)?;
    for partition in 0..3 {
        produce(&mut wire, "growing", partition, &["before"])?;
    }
    for round in 1..=3 {
        let count = 3 + 5 * round;
        let request = CreatePartitionsRequest::default()
            .with_topics(vec![
                CreatePartitionsTopic::default()
                    .with_name(topic_name("growing"))
                    .with_count(count)
                    .with_assignments(None),
            ])
            .with_timeout_ms(30_000);
        let asker = address.clone();
        let asking = std::thread::spawn(move || Wire::connect(&asker)?.call(&request, 3));
        // Before, between and after the steps.
        std::thread::sleep(Duration::from_millis(15 * round as u64));
        for node in &mut cluster.coordinators {
            node.kill();
        }
        for node in &mut cluster.coordinators {
            node.start()?;
        }
        for node in &mut cluster.coordinators {
            node.wait_ready()?;
        }
        let _ = asking.join().expect("the asking thread");
        // What the first request did not get through, the second one does; it may be done already.
        let mut wire = until("a broker answers", || Ok(Wire::connect(&address).ok()))?;
        let request = CreatePartitionsRequest::default()
            .with_topics(vec![
                CreatePartitionsTopic::default()
                    .with_name(topic_name("growing"))
                    .with_count(count)
                    .with_assignments(None),
            ])
            .with_timeout_ms(30_000);
        until("the topic has grown", || {
            let result = wire.call(&request, 3)?.results.remove(0);
            let done = [0, ResponseError::InvalidPartitions.code()].contains(&result.error_code);
            Ok(done.then_some(()))
        })?;
        // Every partition that is advertised takes records and gives them back.
        let partitions = until("all partitions are advertised", || {
            let asked = MetadataRequestTopic::default().with_name(Some(topic_name("growing")));
            let answer = wire.call(&MetadataRequest::default().with_topics(Some(vec![asked])), 12)?;
            let count_now = answer.topics[0].partitions.len();
            Ok((count_now == count as usize).then_some(count))
        })?;
        for partition in 0..partitions {
            let text = format!("round {round}");
            until("the partition takes a record", || {
                Ok(produce(&mut wire, "growing", partition, &[&text]).ok())
            })?;
        }
    }
    let mut wire = Wire::connect(&address)?;
    for partition in 0..18 {
        let found = fetch(&mut wire, "growing", &[(partition, 0)])?.remove(0);
        let read = values(&found)?;
        assert_eq!(found.error_code, 0, "partition {partition}");
        // Nothing was truncated, no high watermark started anew.
        assert_eq!(
            read.contains(&"before".to_owned()),
            partition < 3,
            "{partition}: {read:?}"
        );
        assert!(read.contains(&"round 3".to_owned()), "{partition}: {read:?}");
        assert_eq!(
            offset(&mut wire, "growing", partition, LATEST)?,
            read.len() as i64
        );
    }
    Ok(())
}

#[test]
fn records_are_deleted_and_written_at_the_same_time() -> anyhow::Result<()> {
    let cluster = Cluster::start(Plan {
        settings: "[produce]\nflush_interval_ms = 20\n".to_owned(),
        ..Plan::default()
    })?;
    let address = |i: usize| cluster.brokers[i].address();
    Wire::connect(&address(0))?.create_topic("busy", 4)?;
    let done = AtomicBool::new(false);
    let ends = std::thread::scope(|scope| -> anyhow::Result<Vec<i64>> {
        let writers: Vec<_> = (0..3)
            .map(|i| {
                let address = address(i);
                scope.spawn(move || -> anyhow::Result<()> {
                    let mut wire = Wire::connect(&address)?;
                    known(&mut wire, "busy", 4)?;
                    for n in 0..40 {
                        // Each object has batches of several partitions.
                        for partition in 0..4 {
                            produce(&mut wire, "busy", (partition + n) % 4, &["x", "y"])?;
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        let deleters: Vec<_> = (0..2)
            .map(|i| {
                let (address, done) = (address(i), &done);
                scope.spawn(move || -> anyhow::Result<()> {
                    let mut wire = Wire::connect(&address)?;
                    known(&mut wire, "busy", 4)?;
                    let mut starts = [0i64; 4];
                    while !done.load(Ordering::Relaxed) {
                        for partition in 0..4 {
                            // Up to the high watermark.
                            let (code, start) = delete_records(&mut wire, "busy", partition, -1)?;
                            assert_eq!(code, 0);
                            let before = &mut starts[partition as usize];
                            assert!(start >= *before, "the log start went from {before} to {start}");
                            *before = start;
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        let written: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        done.store(true, Ordering::Relaxed);
        let deleted: Vec<_> = deleters.into_iter().map(|deleter| deleter.join()).collect();
        for result in written.into_iter().chain(deleted) {
            result.expect("a thread")?;
        }
        let mut wire = Wire::connect(&address(2))?;
        (0..4)
            .map(|partition| offset(&mut wire, "busy", partition, LATEST))
            .collect()
    })?;
    // Three writers, forty rounds, two records for each partition.
    assert_eq!(ends, [240; 4]);
    let mut wire = Wire::connect(&address(1))?;
    for partition in 0..4 {
        let start = offset(&mut wire, "busy", partition, EARLIEST)?;
        if start < 240 {
            let found = fetch(&mut wire, "busy", &[(partition, start)])?.remove(0);
            assert_eq!((found.error_code, values(&found)?.len() as i64), (0, 240 - start));
        }
    }
    Ok(())
}

#[test]
fn the_start_of_a_log_is_the_same_everywhere_after_a_restart() -> anyhow::Result<()> {
    let mut cluster = Cluster::start(Plan::default())?;
    let mut wire = Wire::connect(&cluster.brokers[0].address())?;
    wire.create_topic("trimmed", 3)?;
    for partition in 0..3 {
        for _ in 0..5 {
            produce(&mut wire, "trimmed", partition, &["x"])?;
        }
        assert_eq!(delete_records(&mut wire, "trimmed", partition, 3)?, (0, 3));
    }
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
    for broker in &cluster.brokers {
        let mut wire = Wire::connect(&broker.address())?;
        for partition in 0..3 {
            // Shards may still be without a leader; whoever answers must be right.
            let answer = |wire: &mut Wire, timestamp| {
                until("offsets are answered", || {
                    Ok(offset(wire, "trimmed", partition, timestamp).ok())
                })
            };
            assert_eq!(answer(&mut wire, EARLIEST)?, 3, "broker {}", broker.id);
            assert_eq!(answer(&mut wire, LATEST)?, 5, "broker {}", broker.id);
        }
    }
    Ok(())
}

#[test]
fn flipped_bytes_cost_the_partition_they_are_in() -> anyhow::Result<()> {
    let mut cluster = Cluster::start(small())?;
    let mut wire = Wire::connect(&cluster.bootstrap())?;
    wire.create_topic("some", 3)?;
    for partition in 0..3 {
        for i in 0..3 {
            let value = format!("partition {partition} record {i}");
            produce(&mut wire, "some", partition, &[&value])?;
        }
    }
    cluster.brokers[0].kill();
    let mut damaged = 0;
    for_each_file(&cluster.dir().join("store/wal"), &mut |path| {
        let mut bytes = std::fs::read(path).expect("read");
        let text = b"partition 1 record 1";
        if let Some(at) = bytes.windows(text.len()).position(|window| window == text) {
            bytes[at] ^= 1;
            std::fs::write(path, bytes).expect("written");
            damaged += 1;
        }
    });
    assert_eq!(damaged, 1);
    cluster.brokers[0].start()?;
    cluster.brokers[0].wait_ready()?;
    let mut wire = Wire::connect(&cluster.bootstrap())?;
    let mut positions = [0i64; 3];
    let mut codes = [0i16; 3];
    let mut read = vec![Vec::new(); 3];
    let start = Instant::now();
    // What stands before the damage comes, and all of the other partitions, whatever errs beside them.
    while codes[1] == 0 || positions[0] < 3 || positions[2] < 3 {
        assert!(start.elapsed() < PATIENCE, "{positions:?}, {codes:?}");
        let wanted: Vec<(i32, i64)> = (0..).zip(positions).collect();
        for (i, found) in fetch(&mut wire, "some", &wanted)?.iter().enumerate() {
            codes[i] = found.error_code;
            let new = values(found)?;
            positions[i] += new.len() as i64;
            read[i].extend(new);
        }
    }
    assert_eq!(codes, [0, ResponseError::CorruptMessage.code(), 0]);
    assert_eq!(read[1], ["partition 1 record 0"]);
    // A consumer that goes on behind the damage gets the rest.
    let found = fetch(&mut wire, "some", &[(1, 2)])?.remove(0);
    assert_eq!(values(&found)?, ["partition 1 record 2"]);
    Ok(())
}

#[test]
fn a_transactional_batch_costs_the_partition_it_is_for() -> anyhow::Result<()> {
    let cluster = Cluster::start(small())?;
    let mut wire = Wire::connect(&cluster.bootstrap())?;
    wire.create_topic("mixed", 2)?;
    let codes = transactional(&mut wire, "mixed")?;
    assert_ne!(codes[0], 0);
    assert_eq!(codes[1], 0);
    let found = fetch(&mut wire, "mixed", &[(0, 0), (1, 0)])?;
    assert_eq!((values(&found[0])?.len(), values(&found[1])?.len()), (0, 1));
    Ok(())
}

#[test]
fn leaders_are_spread_again_after_all_brokers_were_rolled() -> anyhow::Result<()> {
    let mut cluster = Cluster::start(Plan {
        broker_zones: vec!["a", "a", "b", "b"],
        coordinators: 1,
        ..Plan::default()
    })?;
    Wire::connect(&cluster.brokers[0].address())?.create_topic("spread", 60)?;
    for broker in &mut cluster.brokers {
        broker.stop()?;
        broker.start()?;
        broker.wait_ready()?;
    }
    // Clients of each zone are spread over the brokers of their zone.
    for (asked, zone) in [(0, [1000, 1001]), (3, [1002, 1003])] {
        let mut wire = Wire::connect(&cluster.brokers[asked].address())?;
        until("every broker of the zone leads its share", || {
            let topic = MetadataRequestTopic::default().with_name(Some(topic_name("spread")));
            let answer = wire.call(&MetadataRequest::default().with_topics(Some(vec![topic])), 12)?;
            let mut leads: BTreeMap<i32, usize> = BTreeMap::new();
            for partition in &answer.topics[0].partitions {
                *leads.entry(partition.leader_id.0).or_default() += 1;
                assert_eq!(partition.isr_nodes.len(), partition.replica_nodes.len());
                assert!(partition.offline_replicas.is_empty());
            }
            let spread = answer.topics[0].partitions.len() == 60
                && leads.keys().eq(&zone)
                && leads.values().all(|count| *count >= 15);
            Ok(spread.then_some(()))
        })?;
    }
    Ok(())
}

#[test]
fn the_store_is_asked_for_an_object_once_and_the_metrics_say_so() -> anyhow::Result<()> {
    let s3 = S3Server::start()?;
    let proxy = Proxy::start("127.0.0.1", &s3.endpoint(), None, 1)?;
    let cluster = Cluster::start(Plan {
        store: Some(s3.url_through(&proxy.endpoint(), "metrics")),
        environment: s3.environment(),
        broker_zones: vec!["a", "b"],
        coordinators: 1,
        ..Plan::default()
    })?;
    let mut near = Wire::connect(&cluster.brokers[0].address())?;
    near.create_topic("counted", 1)?;
    let text = "x".repeat(200_000);
    produce(&mut near, "counted", 0, &[&text])?;
    let count = |broker: usize| -> anyhow::Result<(f64, f64)> {
        let broker = &cluster.brokers[broker];
        Ok((
            broker.metric("diskless_cache_hits_total")?,
            broker.metric("diskless_cache_misses_total")?,
        ))
    };
    let read = |wire: &mut Wire| -> anyhow::Result<()> {
        until("the record is there", || {
            let found = fetch(wire, "counted", &[(0, 0)])?.remove(0);
            Ok((values(&found)?.len() == 1).then_some(()))
        })
    };
    // Counts the reads of WAL objects: coordinators may read their logs meanwhile.
    proxy.set_rules(vec![Rule::new(Fault::Delay { ms: 0 }).on(Verb::Get, "/wal/")]);
    // Who wrote it has it.
    let (hits, misses) = count(0)?;
    read(&mut near)?;
    let (hits_after, misses_after) = count(0)?;
    assert!(hits_after > hits, "{hits} {hits_after}");
    assert_eq!(misses_after, misses);
    // Another one reads it whole, once.
    let mut far = Wire::connect(&cluster.brokers[1].address())?;
    known(&mut far, "counted", 1)?;
    let (_, misses) = count(1)?;
    read(&mut far)?;
    let (hits, misses_after) = count(1)?;
    assert_eq!(misses_after, misses + 1.0);
    read(&mut far)?;
    let (hits_after, misses_at_last) = count(1)?;
    assert!(hits_after > hits, "{hits} {hits_after}");
    assert_eq!(misses_at_last, misses_after);
    assert_eq!(proxy.counts().faults(), 1, "one object was read once");
    Ok(())
}

/// The backlog is an hour old and nobody remembers where it is: it is read by its ranges, past the cache.
#[test]
fn producers_do_not_wait_for_a_reader_that_catches_up() -> anyhow::Result<()> {
    /// Milliseconds that a batch may take.
    const PATIENT: i32 = 10_000;
    let mut cluster = Cluster::start(Plan {
        settings: "[cache]\nmemory_bytes = 8388608\n".to_owned(),
        ..Plan::default()
    })?;
    let bootstrap = cluster.bootstrap();
    let mut wire = Wire::connect(&cluster.brokers[0].address())?;
    wire.create_topic("backlog", 6)?;
    // Several times what the cache holds.
    let text = "x".repeat(500_000);
    for i in 0..60 {
        let old = batch(&[&text], now() - 3_600_000)?;
        produce_batch(&mut wire, "backlog", i % 6, old, PATIENT)?;
    }
    for broker in &mut cluster.brokers {
        broker.stop()?;
        broker.start()?;
        broker.wait_ready()?;
    }
    let mut wire = Wire::connect(&cluster.brokers[0].address())?;
    wire.create_topic("punctual", 1)?;
    let mut history = History {
        idempotent: true,
        ..History::default()
    };
    const COUNT: u64 = 2_000;
    let steady = Library::FranzGo.produce(&bootstrap, "steady", 0, COUNT, 200)?;
    let tail = Library::FranzGo.consume(&bootstrap, "steady", "tail", COUNT, 30)?;
    let done = AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| -> anyhow::Result<usize> {
        let readers: Vec<_> = cluster
            .brokers
            .iter()
            .map(|broker| {
                let (address, done) = (broker.address(), &done);
                scope.spawn(move || -> anyhow::Result<usize> {
                    let mut rounds = 0;
                    known(&mut Wire::connect(&address)?, "backlog", 6)?;
                    while !done.load(Ordering::Relaxed) {
                        let mut wire = Wire::connect(&address)?;
                        let read = support::consume_all(&mut wire, 12, false, &["backlog"], 6, 60)?;
                        assert_eq!(read.values().map(Vec::len).sum::<usize>(), 60);
                        rounds += 1;
                    }
                    Ok(rounds)
                })
            })
            .collect();
        // What is not stored within its time is answered with an error.
        let punctual = (0..40).try_for_each(|_| {
            let fresh = batch(&["x"], now())?;
            produce_batch(&mut wire, "punctual", 0, fresh, PATIENT).map(drop)
        });
        let output = steady.finish();
        done.store(true, Ordering::Relaxed);
        punctual?;
        history.add_producer(&output?, 0, COUNT);
        readers
            .into_iter()
            .map(|reader| reader.join().expect("a reader"))
            .sum()
    })?;
    assert!(rounds > 0, "nobody caught up");
    for broker in &cluster.brokers {
        let ranges = broker.metric("diskless_object_reads_total{source=\"store_range\"}")?;
        assert!(
            ranges >= 60.0,
            "broker {}: {ranges} of 60 batches were read by their ranges",
            broker.id
        );
    }
    // None was given up or came late for its time limit, and the reader at the tail got all of them.
    assert_eq!(history.acked.len() as u64, COUNT);
    history.add_consumer(&tail.finish()?);
    history.assert_clean();
    Ok(())
}
