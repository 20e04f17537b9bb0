//! Sequences and epochs of idempotent producers.

use e2e::wire::{delete_records, list_offsets, topic_name};
use kafka_protocol::messages::describe_producers_request::TopicRequest;
use kafka_protocol::messages::{DescribeProducersRequest, InitProducerIdRequest, ProducerId};

use super::Case;
use super::batch::Batch;
use super::requests::{fetch, produce, produce_all, produce_to};
use super::side::{Side, Topic};

pub const CASES: &[Case] = &[
    ("idempotence/repeats", repeats),
    ("idempotence/gaps", gaps),
    ("idempotence/epochs", epochs),
    ("idempotence/wrap", wrap),
    ("idempotence/beginnings", beginnings),
    ("idempotence/partitions", partitions),
    ("idempotence/deleted", deleted),
    ("idempotence/ids", ids),
];

/// A batch of `count` records.
fn batch(producer: i64, epoch: i16, sequence: i32, count: usize) -> bytes::Bytes {
    Batch::of(&vec!["x"; count])
        .by(producer, epoch, sequence)
        .encode()
}

fn send(side: &mut Side, topic: &Topic, what: &str, records: bytes::Bytes) -> anyhow::Result<()> {
    side.ask(what, 9, &produce(9, topic, records))?;
    Ok(())
}

fn repeats(side: &mut Side) -> anyhow::Result<()> {
    let topic = side.topic("repeats", 1, &[])?;
    let producer = side.producer_id()?;
    for sequence in 0..8 {
        send(
            side,
            &topic,
            &format!("batch {sequence}"),
            batch(producer, 0, 2 * sequence, 2),
        )?;
    }
    for version in [3, 7, 9, 13] {
        for sequence in (0..8).rev() {
            let records = batch(producer, 0, 2 * sequence, 2);
            side.ask(
                format!("batch {sequence} again"),
                version,
                &produce(version, &topic, records),
            )?;
        }
    }
    let other = Batch::of(&["other", "values"]).by(producer, 0, 14).encode();
    send(side, &topic, "the last sequences with other records", other)?;
    send(side, &topic, "the next", batch(producer, 0, 16, 1))?;
    side.fetch("all of them", 12, &fetch(12, &topic, 0))?;
    describe(side, &topic)
}

fn gaps(side: &mut Side) -> anyhow::Result<()> {
    let topic = side.topic("gaps", 1, &[])?;
    let producer = side.producer_id()?;
    send(side, &topic, "0-4", batch(producer, 0, 0, 5))?;
    for (what, sequence, count) in [
        ("one is missing", 6, 1),
        ("many are missing", 1000, 1),
        ("part of the last", 0, 3),
        ("end of the last", 3, 2),
        ("more than the last", 0, 6),
        ("overlaps the last", 4, 2),
        ("inside the last", 2, 1),
        ("the next", 5, 5),
        ("the last two as one", 0, 10),
        ("the next after all", 10, 1),
    ] {
        send(side, &topic, what, batch(producer, 0, sequence, count))?;
    }
    side.ask("end", 7, &list_offsets(&topic.name, [0], -1))?;
    describe(side, &topic)
}

fn epochs(side: &mut Side) -> anyhow::Result<()> {
    let topic = side.topic("epochs", 1, &[])?;
    let producer = side.producer_id()?;
    for (what, epoch, sequence) in [
        ("epoch 0", 0, 0),
        ("epoch 1 at 1", 1, 1),
        ("epoch 1 at 0", 1, 0),
        ("epoch 0 goes on", 0, 1),
        ("epoch 0 again", 0, 0),
        ("epoch 1 goes on", 1, 1),
        ("epoch 1 repeats", 1, 0),
        ("epoch 5 at 0", 5, 0),
        ("epoch 5 repeats", 5, 0),
        ("epoch 4 at 0", 4, 0),
        ("largest epoch", i16::MAX, 0),
        ("largest epoch goes on", i16::MAX, 1),
    ] {
        for version in [9, 13] {
            let records = batch(producer, epoch, sequence, 1);
            side.ask(what, version, &produce(version, &topic, records))?;
        }
    }
    describe(side, &topic)
}

fn wrap(side: &mut Side) -> anyhow::Result<()> {
    let topic = side.topic("wrap", 2, &[])?;
    let producer = side.producer_id()?;
    for (what, sequence, count) in [
        ("before the end", i32::MAX - 3, 2),
        ("across the end", i32::MAX - 1, 4),
        ("across the end again", i32::MAX - 1, 4),
        ("behind the end", 2, 1),
        ("once more before the end", i32::MAX - 3, 2),
        ("zero", 0, 1),
        ("on", 3, 1),
    ] {
        send(side, &topic, what, batch(producer, 0, sequence, count))?;
    }
    describe(side, &topic)?;
    let producer = side.producer_id()?;
    for (what, sequence) in [
        ("at the end", i32::MAX),
        ("one instead of zero", 1),
        ("zero", 0),
        ("one", 1),
    ] {
        send(
            side,
            &topic,
            &format!("{what}, singly"),
            batch(producer, 0, sequence, 1),
        )?;
    }
    Ok(())
}

/// Producers that the partition knows nothing of.
fn beginnings(side: &mut Side) -> anyhow::Result<()> {
    let topic = side.topic("beginnings", 1, &[])?;
    let producer = side.producer_id()?;
    send(side, &topic, "begins at 5", batch(producer, 0, 5, 2))?;
    send(side, &topic, "goes on at 7", batch(producer, 0, 7, 1))?;
    send(side, &topic, "before its beginning", batch(producer, 0, 4, 1))?;
    send(side, &topic, "at zero", batch(producer, 0, 0, 1))?;
    let producer = side.producer_id()?;
    send(side, &topic, "begins with epoch 3", batch(producer, 3, 9, 1))?;
    send(side, &topic, "epoch 2 after it", batch(producer, 2, 0, 1))?;
    // An id that was never given out.
    send(side, &topic, "an id of nobody's", batch(1 << 40, 0, 0, 1))?;
    send(side, &topic, "an id of nobody's, again", batch(1 << 40, 0, 0, 1))?;
    // In one request: a partition that is refused must not be a beginning.
    let producer = side.producer_id()?;
    let bad = Batch::of(&["x"])
        .by(producer, 0, 0)
        .change(|batch| batch.crc_error = 1);
    send(side, &topic, "damaged at 0", bad.encode())?;
    send(side, &topic, "whole at 0", batch(producer, 0, 0, 1))?;
    side.ask("end", 7, &list_offsets(&topic.name, [0], -1))?;
    Ok(())
}

/// Each partition has sequences of its own.
fn partitions(side: &mut Side) -> anyhow::Result<()> {
    let topic = side.topic("own-sequences", 3, &[])?;
    let producer = side.producer_id()?;
    for version in [9, 13] {
        let records = |sequence| Some(batch(producer, 0, sequence, 1));
        let entries = [(0, records(0)), (1, records(0)), (2, records(0))];
        side.produce(
            "three at 0",
            version,
            &topic,
            &produce_all(-1, vec![produce_to(version, &topic, entries)]),
        )?;
        let entries = [(0, records(1)), (1, records(0)), (2, records(2))];
        side.produce(
            "next, again, gap",
            version,
            &topic,
            &produce_all(-1, vec![produce_to(version, &topic, entries)]),
        )?;
    }
    Ok(())
}

/// What producers have sent is remembered when the records are gone.
fn deleted(side: &mut Side) -> anyhow::Result<()> {
    let topic = side.topic("forgotten", 1, &[])?;
    let producer = side.producer_id()?;
    for sequence in 0..3 {
        send(
            side,
            &topic,
            &format!("{sequence}"),
            batch(producer, 0, sequence, 1),
        )?;
    }
    side.ask("delete all", 2, &delete_records(&topic.name, 0, -1, 30_000))?;
    for sequence in [1, 2, 3, 5] {
        send(
            side,
            &topic,
            &format!("{sequence} after it"),
            batch(producer, 0, sequence, 1),
        )?;
    }
    describe(side, &topic)
}

fn ids(side: &mut Side) -> anyhow::Result<()> {
    let request = |id: i64, epoch: i16| {
        InitProducerIdRequest::default()
            .with_transactional_id(None)
            .with_transaction_timeout_ms(60_000)
            .with_producer_id(ProducerId(id))
            .with_producer_epoch(epoch)
    };
    for version in 0..=5 {
        side.ask("a new one", version, &request(-1, -1))?;
        let none = request(-1, -1).with_transaction_timeout_ms(if version == 0 { 0 } else { -1 });
        side.ask("without a time", version, &none)?;
        if version >= 3 {
            for (what, id, epoch) in [("both", 7, 0), ("an id alone", 7, -1), ("an epoch alone", -1, 3)] {
                side.ask(format!("with {what}"), version, &request(id, epoch))?;
            }
        }
        let empty = request(-1, -1).with_transactional_id(Some(e2e::wire::text("").into()));
        side.ask("with an empty transactional id", version, &empty)?;
    }
    Ok(())
}

fn describe(side: &mut Side, topic: &Topic) -> anyhow::Result<()> {
    let asked = TopicRequest::default()
        .with_name(topic_name(&topic.name))
        .with_partition_indexes(vec![0, 9]);
    let request = DescribeProducersRequest::default().with_topics(vec![asked]);
    side.ask_tidy("producers of the topic", 0, &request, |answer| {
        let partitions = answer.topics.iter_mut().flat_map(|topic| &mut topic.partitions);
        partitions.for_each(|partition| {
            partition
                .active_producers
                .sort_by_key(|producer| producer.producer_id.0)
        });
        Vec::new()
    })?;
    Ok(())
}
