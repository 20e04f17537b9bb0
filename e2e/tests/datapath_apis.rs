//! What producers and consumers are told: settings that change under them, deleted records, sequences, epochs.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

#[path = "datapath_support/mod.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod producers;
#[path = "faults_support/mod.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod support;

use std::process::Command;
use std::time::Duration;

use e2e::clients::{Library, tool};
use e2e::node::{Cluster, Plan};
use e2e::wire::{Producer, Wire, batch, batch_of, topic_name};
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use kafka_protocol::messages::produce_response::PartitionProduceResponse;
use kafka_protocol::messages::{BrokerId, OffsetForLeaderEpochRequest};

use crate::producers::{now, producer_id, send};
use crate::support::{EARLIEST, LATEST, fetch, offset, produce, until, values};

const TIMEOUT: Duration = Duration::from_secs(30);

fn small() -> anyhow::Result<Cluster> {
    Cluster::start(Plan {
        broker_zones: vec!["a"],
        coordinators: 1,
        ..Plan::default()
    })
}

/// Runs `admin.py` and gives what it prints.
fn admin(args: &[&str]) -> anyhow::Result<String> {
    let script = e2e::root().join("e2e/clients/python/admin.py");
    let output = Command::new(tool("client-python")?.join("bin/python"))
        .arg(script)
        .args(args)
        .output()?;
    assert!(
        output.status.success(),
        "{args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn write(wire: &mut Wire, topic: &str, value: &str) -> anyhow::Result<PartitionProduceResponse> {
    send(wire, topic, 0, batch(&[value], now())?, TIMEOUT)
}

#[test]
fn settings_of_a_topic_hold_without_a_restart() -> anyhow::Result<()> {
    let cluster = small()?;
    let bootstrap = cluster.bootstrap();
    let mut wire = Wire::connect(&cluster.brokers[0].address())?;
    wire.create_topic("live", 1)?;
    let large = "x".repeat(5_000);
    assert_eq!(write(&mut wire, "live", &large)?.error_code, 0);

    admin(&["set", &bootstrap, "live", "max.message.bytes", "1000"])?;
    let too_large = ResponseError::MessageTooLarge.code();
    until("max.message.bytes holds", || {
        Ok((write(&mut wire, "live", &large)?.error_code == too_large).then_some(()))
    })?;
    assert_eq!(write(&mut wire, "live", "small")?.error_code, 0);
    admin(&["set", &bootstrap, "live", "max.message.bytes", "6000"])?;
    until("the larger max.message.bytes holds", || {
        Ok((write(&mut wire, "live", &large)?.error_code == 0).then_some(()))
    })?;

    // The producer's own time, then the log's, then the producer's again.
    assert_eq!(write(&mut wire, "live", "create")?.log_append_time_ms, -1);
    admin(&[
        "set",
        &bootstrap,
        "live",
        "message.timestamp.type",
        "LogAppendTime",
    ])?;
    until("LogAppendTime holds", || {
        Ok((write(&mut wire, "live", "append")?.log_append_time_ms > 0).then_some(()))
    })?;
    admin(&["set", &bootstrap, "live", "message.timestamp.type", "CreateTime"])?;
    until("CreateTime holds", || {
        Ok((write(&mut wire, "live", "create")?.log_append_time_ms == -1).then_some(()))
    })?;

    assert_eq!(offset(&mut wire, "live", 0, EARLIEST)?, 0);
    admin(&["set", &bootstrap, "live", "retention.bytes", "100"])?;
    let first = until("retention.bytes holds", || {
        let first = offset(&mut wire, "live", 0, EARLIEST)?;
        Ok((first > 0).then_some(first))
    })?;
    assert!(first <= offset(&mut wire, "live", 0, LATEST)?);
    admin(&["set", &bootstrap, "live", "retention.bytes", "-1"])?;
    admin(&["set", &bootstrap, "live", "retention.ms", "1"])?;
    until("retention.ms holds", || {
        let (first, end) = (
            offset(&mut wire, "live", 0, EARLIEST)?,
            offset(&mut wire, "live", 0, LATEST)?,
        );
        Ok((first == end).then_some(()))
    })?;
    Ok(())
}

#[test]
fn records_are_deleted_by_an_administrators_client() -> anyhow::Result<()> {
    let cluster = small()?;
    let bootstrap = cluster.bootstrap();
    let mut wire = Wire::connect(&cluster.brokers[0].address())?;
    wire.create_topic("cut", 2)?;
    for value in ["0", "1", "2", "3"] {
        produce(&mut wire, "cut", 1, &[value])?;
    }
    assert_eq!(admin(&["delete-records", &bootstrap, "cut", "1", "2"])?, "2");
    assert_eq!(offset(&mut wire, "cut", 1, EARLIEST)?, 2);
    let found = fetch(&mut wire, "cut", &[(1, 2)])?.remove(0);
    assert_eq!(values(&found)?, ["2", "3"]);
    // Again, and to the end.
    assert_eq!(admin(&["delete-records", &bootstrap, "cut", "1", "1"])?, "2");
    assert_eq!(admin(&["delete-records", &bootstrap, "cut", "1", "-1"])?, "4");
    assert_eq!(offset(&mut wire, "cut", 1, LATEST)?, 4);
    assert_eq!(produce(&mut wire, "cut", 1, &["4"])?, 4);
    // Neither a partition that is not there nor an offset beyond the end.
    let refused = support::delete_records(&mut wire, "cut", 9, 0)?;
    assert_eq!(refused.0, ResponseError::UnknownTopicOrPartition.code());
    let refused = support::delete_records(&mut wire, "cut", 1, 6)?;
    assert_eq!(refused.0, ResponseError::OffsetOutOfRange.code());
    Ok(())
}

#[test]
fn sequences_go_on_at_zero_and_repeats_get_their_first_answer() -> anyhow::Result<()> {
    let cluster = small()?;
    let bootstrap = cluster.bootstrap();
    let mut wire = Wire::connect(&cluster.brokers[0].address())?;
    wire.create_topic("wrap", 1)?;
    let producer = producer_id(&mut wire)?;
    let mut send = |producer: Producer, sequence: i32, value: &str| {
        let records = batch_of(producer, sequence, &[value], now())?;
        producers::send(&mut wire, "wrap", 0, records, TIMEOUT)
    };
    // Nothing is known of the producer: it may start anywhere.
    for round in 0..2 {
        for (at, sequence) in [(0, i32::MAX - 1), (1, i32::MAX), (2, 0), (3, 1)] {
            let answer = send(producer, sequence, "x")?;
            assert_eq!(
                (answer.error_code, answer.base_offset),
                (0, at),
                "{sequence}, round {round}"
            );
        }
    }
    let gap = send(producer, 3, "x")?.error_code;
    assert_eq!(gap, ResponseError::OutOfOrderSequenceNumber.code());

    admin(&[
        "set",
        &bootstrap,
        "wrap",
        "message.timestamp.type",
        "LogAppendTime",
    ])?;
    let mut sequence = 1;
    let first = until("LogAppendTime holds", || {
        sequence += 1;
        let answer = send(producer, sequence, "y")?;
        assert_eq!(answer.error_code, 0);
        Ok((answer.log_append_time_ms > 0).then_some(answer))
    })?;
    std::thread::sleep(Duration::from_millis(20));
    let again = send(producer, sequence, "y")?;
    assert_eq!(
        (again.error_code, again.base_offset, again.log_append_time_ms),
        (0, first.base_offset, first.log_append_time_ms)
    );
    Ok(())
}

#[test]
fn a_group_that_comes_back_reads_nothing_again() -> anyhow::Result<()> {
    const COUNT: u64 = 300;
    let mut cluster = Cluster::start(Plan::default())?;
    let bootstrap = cluster.bootstrap();
    Library::Java.produce(&bootstrap, "back", 0, COUNT, 0)?.finish()?;
    let libraries = [Library::Java, Library::Confluent, Library::FranzGo];
    for library in libraries {
        let group = format!("{library:?}");
        let read = library.consume(&bootstrap, "back", &group, COUNT, 20)?.finish()?;
        assert_eq!(read.lines().count() as u64, COUNT, "{library:?}");
    }
    // Other brokers and other leaders: a client checks its offset against their epochs.
    for i in 0..cluster.brokers.len() {
        cluster.brokers[i].stop()?;
        cluster.brokers[i].start()?;
        cluster.brokers[i].wait_ready()?;
    }
    // The first that each gets is what has come since.
    Library::Java.produce(&bootstrap, "back", COUNT, 1, 0)?.finish()?;
    for library in libraries {
        let group = format!("{library:?}");
        let read = library.consume(&bootstrap, "back", &group, 1, 30)?.finish()?;
        assert!(
            read.starts_with(&format!("got {COUNT} ")),
            "{library:?} reads again, or not at all: {read}"
        );
    }
    Ok(())
}

#[test]
fn the_end_of_an_epoch_is_the_end_of_the_log() -> anyhow::Result<()> {
    let cluster = small()?;
    let mut wire = Wire::connect(&cluster.brokers[0].address())?;
    wire.create_topic("epochs", 1)?;
    for value in ["0", "1", "2"] {
        produce(&mut wire, "epochs", 0, &[value])?;
    }
    let mut ask = |topics: &[(&str, i32, i32)]| {
        let topics = topics.iter().map(|(topic, partition, epoch)| {
            let partition = OffsetForLeaderPartition::default()
                .with_partition(*partition)
                .with_leader_epoch(*epoch);
            OffsetForLeaderTopic::default()
                .with_topic(topic_name(topic))
                .with_partitions(vec![partition])
        });
        let request = OffsetForLeaderEpochRequest::default()
            .with_replica_id(BrokerId(-1))
            .with_topics(topics.collect());
        let answer = wire.call(&request, 4)?;
        let found = answer.topics.iter().map(|topic| {
            let found = &topic.partitions[0];
            (found.error_code, found.leader_epoch, found.end_offset)
        });
        anyhow::Ok(found.collect::<Vec<_>>())
    };
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    let found = ask(&[
        ("epochs", 0, 0),
        ("epochs", 7, 0),
        ("nowhere", 0, 0),
        ("epochs", 0, 5),
    ])?;
    assert_eq!(
        found,
        [(0, 0, 3), (unknown, -1, -1), (unknown, -1, -1), (0, -1, -1)]
    );
    assert_eq!(ask(&[])?, []);
    assert_eq!(ask(&[("nowhere", 0, 0)])?, [(unknown, -1, -1)]);
    Ok(())
}
