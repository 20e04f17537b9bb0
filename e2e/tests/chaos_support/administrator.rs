//! An administrator who creates, grows, trims and deletes topics, and looks whether what is in them is what should be.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, bail};
use e2e::wire::{Producer, batch_of, delete_records, topic_name};
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::{CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest};
use rand::RngExt;

use crate::consumer::Consumer;
use crate::link::{Link, is_done};
use crate::producer::{init, now, send};
use crate::run::UNAVAILABLE;

/// All of its topics have this name, one after the other: what was in one must not be in the next.
const TOPIC: &str = "administered";
/// What it lets the broker take, ms.
const TIMEOUT_MS: i32 = 5_000;

/// Lives of the topic, one after the other, until told that it is enough. Gives their number.
pub fn administer(mut link: Link, enough: &AtomicBool) -> anyhow::Result<u64> {
    let producer = init(&mut link)?;
    let mut lives = 0;
    while lives == 0 || !enough.load(Ordering::Relaxed) {
        live(&mut link, producer, lives).with_context(|| format!("life {lives} of topic {TOPIC}"))?;
        lives += 1;
    }
    Ok(lives)
}

/// A partition as it should be.
#[derive(Default)]
struct Log {
    values: Vec<String>,
    start: i64,
}

fn live(link: &mut Link, producer: Producer, life: u64) -> anyhow::Result<()> {
    let mut logs: Vec<Log> = Vec::new();
    logs.resize_with(link.random.random_range(1..=3), Log::default);
    create(link, logs.len() as i32)?;
    for step in 0..link.random.random_range(2..=5) {
        let partition = link.random.random_range(0..logs.len());
        match link.random.random_range(0..4) {
            0 => {
                let count = logs.len() + link.random.random_range(1..=2);
                grow(link, count as i32)?;
                logs.resize_with(count, Log::default);
            }
            1 => {
                let log = &mut logs[partition];
                let end = log.values.len() as i64;
                log.start = link.random.random_range(log.start..=end);
                trim(link, partition as i32, log.start)?;
            }
            _ => {
                let log = &mut logs[partition];
                let new: Vec<String> = (0..link.random.random_range(1..=3))
                    .map(|i| format!("life {life} step {step} record {i}"))
                    .collect();
                write(link, producer, partition as i32, log, &new)?;
            }
        }
    }
    for (partition, log) in (0..).zip(&logs) {
        let wanted = log.values.get(log.start as usize..).unwrap_or_default();
        let found = Consumer::read_partition(link, TOPIC, partition, log.start, log.values.len() as i64)
            .with_context(|| format!("partition {partition}"))?;
        if found != wanted {
            bail!(
                "partition {partition}, from {}: {found:?} instead of {wanted:?}",
                log.start
            );
        }
    }
    delete(link)
}

fn write(
    link: &mut Link,
    producer: Producer,
    partition: i32,
    log: &mut Log,
    new: &[String],
) -> anyhow::Result<()> {
    let at = log.values.len();
    let texts: Vec<&str> = new.iter().map(String::as_str).collect();
    let batch = batch_of(producer, at as i32, &texts, now())?;
    let values = (at as u64..).take(new.len()).collect();
    let pending = BTreeMap::from([(partition, (values, batch))]);
    // Acknowledged at the offsets that are theirs: those are the values here.
    let mut found = Vec::new();
    send(link, TOPIC, producer, pending, &mut |value, place| {
        found.push((value, place))
    })?;
    for (value, place) in found {
        if (place.partition, place.offset) != (partition, value as i64) {
            bail!("{value} of {partition} is acknowledged at {place:?}");
        }
    }
    log.values.extend_from_slice(new);
    Ok(())
}

/// Asks until it is done, which `done` says, too: brokers pass requests on, and do so again when an answer is lost.
fn ask(
    link: &mut Link,
    what: &str,
    done: Option<ResponseError>,
    mut attempt: impl FnMut(&mut Link) -> anyhow::Result<i16>,
) -> anyhow::Result<()> {
    let start = Instant::now();
    let mut failures: Vec<String> = Vec::new();
    while start.elapsed() < UNAVAILABLE {
        match attempt(link).map(|code| (code, ResponseError::try_from_code(code))) {
            Ok((0, _)) => return Ok(()),
            Ok((_, error)) if error.is_some() && error == done => return Ok(()),
            Ok((code, _)) => {
                is_done(what, code).with_context(|| format!("before: {failures:?}"))?;
                failures.push(format!("error {code}"));
            }
            Err(error) => failures.push(format!("{error:#}")),
        }
        link.leave();
    }
    bail!("unavailable: {what} not within {UNAVAILABLE:?}: {failures:?}")
}

fn create(link: &mut Link, partitions: i32) -> anyhow::Result<()> {
    let topic = CreatableTopic::default()
        .with_name(topic_name(TOPIC))
        .with_num_partitions(partitions)
        .with_replication_factor(-1);
    let request = CreateTopicsRequest::default()
        .with_topics(vec![topic])
        .with_timeout_ms(TIMEOUT_MS);
    ask(
        link,
        "creation",
        Some(ResponseError::TopicAlreadyExists),
        |link| {
            let answer = link.call(&request, 7)?;
            Ok(answer.topics.first().context("no topic")?.error_code)
        },
    )
}

fn grow(link: &mut Link, count: i32) -> anyhow::Result<()> {
    let topic = CreatePartitionsTopic::default()
        .with_name(topic_name(TOPIC))
        .with_count(count)
        .with_assignments(None);
    let request = CreatePartitionsRequest::default()
        .with_topics(vec![topic])
        .with_timeout_ms(TIMEOUT_MS);
    ask(link, "growth", Some(ResponseError::InvalidPartitions), |link| {
        let answer = link.call(&request, 3)?;
        Ok(answer.results.first().context("no topic")?.error_code)
    })
}

fn trim(link: &mut Link, partition: i32, start: i64) -> anyhow::Result<()> {
    let request = delete_records(TOPIC, partition, start, TIMEOUT_MS);
    // The same again is no error.
    ask(link, "deletion of records", None, |link| {
        let answer = link.call(&request, 2)?;
        let topic = answer.topics.first().context("no topic")?;
        let result = topic.partitions.first().context("no partition")?;
        if result.error_code == 0 && result.low_watermark != start {
            bail!("the log starts at {} instead of {start}", result.low_watermark);
        }
        Ok(result.error_code)
    })
}

fn delete(link: &mut Link) -> anyhow::Result<()> {
    let request = DeleteTopicsRequest::default()
        .with_topic_names(vec![topic_name(TOPIC)])
        .with_timeout_ms(TIMEOUT_MS);
    ask(
        link,
        "deletion",
        Some(ResponseError::UnknownTopicOrPartition),
        |link| {
            let answer = link.call(&request, 5)?;
            Ok(answer.responses.first().context("no topic")?.error_code)
        },
    )
}
