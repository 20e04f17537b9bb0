//! Where partitions begin and end, and which record is of which time.

use e2e::wire::{delete_records, list_offsets, topic_name};
use kafka_protocol::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use kafka_protocol::messages::{
    BrokerId, DeleteRecordsRequest, ListOffsetsRequest, ListOffsetsResponse, OffsetForLeaderEpochRequest,
};

use super::Case;
use super::batch::{Batch, GZIP, LZ4, Rec, SNAPPY, TIME, ZSTD};
use super::flatten::Field;
use super::requests::produce;
use super::side::{Side, Topic};

pub const CASES: &[Case] = &[
    ("offsets/special", special),
    ("offsets/times", times),
    ("offsets/requests", requests),
    ("offsets/epochs", epochs),
    ("offsets/delete", delete),
];

fn append(side: &mut Side, topic: &Topic, batch: Batch) -> anyhow::Result<()> {
    let answer = side.quiet(9, &produce(9, topic, batch.encode()))?;
    anyhow::ensure!(
        answer.responses[0].partition_responses[0].error_code == 0,
        "{answer:?}"
    );
    Ok(())
}

/// The order of partitions is nobody's promise.
fn in_order(answer: &mut ListOffsetsResponse) -> Vec<Field> {
    for topic in &mut answer.topics {
        topic
            .partitions
            .sort_by_key(|partition| partition.partition_index);
    }
    Vec::new()
}

fn special(side: &mut Side) -> anyhow::Result<()> {
    let topic = side.topic("special", 1, &[])?;
    let all = [-1, -2, -3, -4, -5, -6, -7, i64::MIN, i64::MAX];
    for version in 1..=10 {
        for time in all {
            side.ask(
                format!("{time}, empty"),
                version,
                &list_offsets("special", [0], time),
            )?;
        }
    }
    append(side, &topic, Batch::of(&["a", "b"]))?;
    append(side, &topic, Batch::of(&["c", "d"]).at(TIME - 50))?;
    for version in 1..=10 {
        for time in all {
            side.ask(format!("{time}"), version, &list_offsets("special", [0], time))?;
        }
        if version >= 2 {
            let request = list_offsets("special", [0], -1).with_isolation_level(1);
            side.ask("the end, committed", version, &request)?;
        }
    }
    side.quiet(2, &delete_records("special", 0, -1, 30_000))?;
    for time in all {
        side.ask(
            format!("{time}, all deleted"),
            7,
            &list_offsets("special", [0], time),
        )?;
    }
    Ok(())
}

fn times(side: &mut Side) -> anyhow::Result<()> {
    let topic = side.topic("by-time", 1, &[])?;
    let records = |deltas: &[i64]| {
        let records = (0..).zip(deltas).map(|(index, delta)| Rec {
            timestamp_delta: *delta,
            ..Rec::new(index, "x")
        });
        Batch::with(&records.collect::<Vec<_>>())
    };
    // 0-2, then the same times again in 3-4, then 5-8 out of order and compressed, then 9 before all.
    append(side, &topic, records(&[0, 10, 20]))?;
    append(side, &topic, records(&[10, 20]))?;
    append(side, &topic, records(&[30, 60, 40, 60]).compressed(GZIP))?;
    append(side, &topic, records(&[0]).at(TIME - 100))?;
    for (version, times) in [
        (1, &[0, 10][..]),
        (4, &[0, 10]),
        (
            7,
            &[-200, -100, -1, 0, 1, 10, 11, 20, 21, 30, 31, 40, 41, 59, 60, 61],
        ),
        (10, &[40]),
    ] {
        for time in times {
            side.ask(
                format!("time {time}"),
                version,
                &list_offsets("by-time", [0], TIME + time),
            )?;
        }
    }
    side.ask("the latest time", 7, &list_offsets("by-time", [0], -3))?;
    for codec in [SNAPPY, LZ4, ZSTD] {
        append(
            side,
            &topic,
            records(&[100, 130, 120, 130])
                .at(TIME + 1000 * i64::from(codec))
                .compressed(codec),
        )?;
        for time in [99, 101, 120, 125, 130, 131] {
            let time = TIME + 1000 * i64::from(codec) + time;
            side.ask(format!("codec {codec}"), 7, &list_offsets("by-time", [0], time))?;
        }
        side.ask("the latest time", 7, &list_offsets("by-time", [0], -3))?;
    }
    side.quiet(2, &delete_records("by-time", 0, 7, 30_000))?;
    for time in [0, 35, 60] {
        side.ask(
            format!("time {time}, begins at 7"),
            7,
            &list_offsets("by-time", [0], TIME + time),
        )?;
    }
    Ok(())
}

fn requests(side: &mut Side) -> anyhow::Result<()> {
    let topic = side.topic("asked", 2, &[])?;
    append(side, &topic, Batch::of(&["x"]))?;
    for version in [1, 4, 7, 10] {
        side.ask("unknown topic", version, &list_offsets("nowhere", [0, 1], -1))?;
        let request = list_offsets("asked", [1, 0, 2, -1], -1);
        side.ask_tidy("partitions", version, &request, in_order)?;
        side.ask("twice", version, &list_offsets("asked", [0, 0], -1))?;
        side.ask("nothing", version, &list_offsets("asked", [], -1))?;
        let none = ListOffsetsRequest::default().with_replica_id(BrokerId(-1));
        side.ask("no topics", version, &none)?;
        side.ask(
            "as a debugger",
            version,
            &list_offsets("asked", [0], -1).with_replica_id(BrokerId(-2)),
        )?;
    }
    for epoch in [-1, 0, 1, 9] {
        let partition = ListOffsetsPartition::default()
            .with_timestamp(-1)
            .with_current_leader_epoch(epoch);
        let topic = ListOffsetsTopic::default()
            .with_name(topic_name("asked"))
            .with_partitions(vec![partition]);
        let request = ListOffsetsRequest::default()
            .with_replica_id(BrokerId(-1))
            .with_topics(vec![topic]);
        side.ask(format!("current epoch {epoch}"), 7, &request)?;
    }
    Ok(())
}

fn epochs(side: &mut Side) -> anyhow::Result<()> {
    let topic = side.topic("ends", 1, &[])?;
    append(side, &topic, Batch::of(&["a", "b"]))?;
    let empty = side.topic("no-ends", 1, &[])?;
    for version in 2..=4 {
        for (name, index) in [(&topic.name, 0), (&empty.name, 0), (&topic.name, 3)] {
            for (current, epoch) in [
                (-1, 0),
                (-1, 1),
                (-1, -1),
                (-1, -2),
                (0, 0),
                (1, 0),
                (9, 9),
                (-1, i32::MAX),
            ] {
                let partition = OffsetForLeaderPartition::default()
                    .with_partition(index)
                    .with_current_leader_epoch(current)
                    .with_leader_epoch(epoch);
                let asked = OffsetForLeaderTopic::default()
                    .with_topic(topic_name(name))
                    .with_partitions(vec![partition]);
                let request = OffsetForLeaderEpochRequest::default()
                    .with_replica_id(BrokerId(-1))
                    .with_topics(vec![asked]);
                side.ask(
                    format!("{} {index}: epoch {epoch}, current {current}", name.as_str()),
                    version,
                    &request,
                )?;
            }
        }
        let unknown = OffsetForLeaderTopic::default()
            .with_topic(topic_name("nowhere"))
            .with_partitions(vec![OffsetForLeaderPartition::default()]);
        let request = OffsetForLeaderEpochRequest::default()
            .with_replica_id(BrokerId(-1))
            .with_topics(vec![unknown]);
        side.ask("unknown topic", version, &request)?;
    }
    Ok(())
}

fn delete(side: &mut Side) -> anyhow::Result<()> {
    for version in 0..=2 {
        let name = format!("cut-{version}");
        let topic = side.topic(&name, 2, &[])?;
        append(side, &topic, Batch::of(&["a", "b", "c"]))?;
        append(side, &topic, Batch::of(&["d"]))?;
        for offset in [0, 1, 0, 3, 5, -2, i64::MAX, i64::MIN, 4, 4, -1] {
            side.ask(
                format!("to {offset}"),
                version,
                &delete_records(&name, 0, offset, 30_000),
            )?;
        }
        side.ask(
            "an empty partition",
            version,
            &delete_records(&name, 1, -1, 30_000),
        )?;
        side.ask(
            "an empty partition, too far",
            version,
            &delete_records(&name, 1, 1, 30_000),
        )?;
        side.ask("partition 2", version, &delete_records(&name, 2, 0, 30_000))?;
        side.ask("partition -1", version, &delete_records(&name, -1, 0, 30_000))?;
        side.ask("unknown topic", version, &delete_records("nowhere", 0, 0, 30_000))?;
        side.ask("no time", version, &delete_records(&name, 0, -1, 0))?;
        side.ask(
            "nothing",
            version,
            &DeleteRecordsRequest::default().with_timeout_ms(30_000),
        )?;
        let partition = |offset| DeleteRecordsPartition::default().with_offset(offset);
        let twice = DeleteRecordsTopic::default()
            .with_name(topic_name(&name))
            .with_partitions(vec![partition(1), partition(2)]);
        let request = DeleteRecordsRequest::default()
            .with_timeout_ms(30_000)
            .with_topics(vec![twice]);
        side.ask_tidy("twice", version, &request, |answer| {
            answer
                .topics
                .iter_mut()
                .for_each(|topic| topic.partitions.truncate(1));
            Vec::new()
        })?;
        side.ask_tidy("the beginning", 7, &list_offsets(&name, [0, 1], -2), in_order)?;
        side.ask_tidy("the end", 7, &list_offsets(&name, [0, 1], -1), in_order)?;
    }
    Ok(())
}
