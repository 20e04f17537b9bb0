//! An idempotent producer that repeats a request, at any broker, until it knows what became of it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, bail};
use bytes::Bytes;
use e2e::history::Place;
use e2e::wire::{Producer, batch_of, topic_name};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{InitProducerIdRequest, ProduceRequest};
use rand::RngExt;

use crate::auditor::Notes;
use crate::link::{Link, is_done};
use crate::run::{PARTITIONS, TOPIC, UNAVAILABLE};

/// What it lets the broker take, ms.
const TIMEOUT_MS: i32 = 5_000;
const PACE: Duration = Duration::from_millis(120);
/// Last version that names topics.
const VERSION: i16 = 12;

/// Sends values `first .. first + count`, slowly until told to `hurry`. Gives lines for the checker.
pub fn produce(
    mut link: Link,
    first: u64,
    count: u64,
    hurry: &AtomicBool,
    notes: &Notes,
) -> anyhow::Result<String> {
    let producer = init(&mut link)?;
    let mut sequences = [0i32; PARTITIONS as usize];
    let mut lines = String::new();
    let mut next = first;
    let end = first + count;
    while next < end {
        // Some partitions, some records each.
        let mut pending: BTreeMap<i32, (Vec<u64>, Bytes)> = BTreeMap::new();
        for _ in 0..link.random.random_range(1..=3) {
            let partition = link.random.random_range(0..PARTITIONS);
            let values: Vec<u64> = (next..end).take(link.random.random_range(1..=4)).collect();
            if values.is_empty() || pending.contains_key(&partition) {
                continue;
            }
            next += values.len() as u64;
            let texts: Vec<String> = values.iter().map(u64::to_string).collect();
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let sequence = &mut sequences[partition as usize];
            let created = now();
            notes
                .history
                .lock()
                .unwrap()
                .created
                .extend(values.iter().copied().zip(created..));
            let batch = batch_of(producer, *sequence, &texts, created)?;
            *sequence += values.len() as i32;
            pending.insert(partition, (values, batch));
        }
        send(&mut link, TOPIC, producer, pending, &mut |value, place| {
            notes.history.lock().unwrap().ack(value, place);
            lines.push_str(&format!("ack {value} {} {}\n", place.partition, place.offset));
        })?;
        if !hurry.load(Ordering::Relaxed) {
            std::thread::sleep(PACE);
        }
    }
    Ok(lines)
}

/// An id that nobody else has.
pub fn init(link: &mut Link) -> anyhow::Result<Producer> {
    let request = InitProducerIdRequest::default()
        .with_transactional_id(None)
        .with_transaction_timeout_ms(60_000);
    let start = Instant::now();
    while start.elapsed() < UNAVAILABLE {
        match link.call(&request, 4) {
            Ok(answer) if answer.error_code == 0 => {
                return Ok(Producer {
                    id: answer.producer_id.0,
                    epoch: answer.producer_epoch,
                });
            }
            _ => link.leave(),
        }
    }
    bail!("unavailable: no producer id within {UNAVAILABLE:?}");
}

/// Sends batches until each is acknowledged; tells where each of their values is.
pub fn send(
    link: &mut Link,
    topic: &str,
    producer: Producer,
    mut pending: BTreeMap<i32, (Vec<u64>, Bytes)>,
    acked: &mut dyn FnMut(u64, Place),
) -> anyhow::Result<()> {
    let start = Instant::now();
    let mut failures: Vec<String> = Vec::new();
    while !pending.is_empty() {
        if start.elapsed() > UNAVAILABLE {
            let last = failures.split_off(failures.len().saturating_sub(5));
            bail!(
                "unavailable: producer {}, partitions {:?} not acknowledged within {UNAVAILABLE:?}: {last:?}",
                producer.id,
                pending.keys()
            );
        }
        let data = pending.iter().map(|(partition, (_, batch))| {
            PartitionProduceData::default()
                .with_index(*partition)
                .with_records(Some(batch.clone()))
        });
        let data = TopicProduceData::default()
            .with_name(topic_name(topic))
            .with_partition_data(data.collect());
        let request = ProduceRequest::default()
            .with_transactional_id(None)
            .with_acks(-1)
            .with_timeout_ms(TIMEOUT_MS)
            .with_topic_data(vec![data]);
        let answer = match link.call(&request, VERSION) {
            Ok(answer) => answer,
            Err(error) => {
                failures.push(format!("{error:#}"));
                continue;
            }
        };
        for result in answer
            .responses
            .iter()
            .flat_map(|topic| &topic.partition_responses)
        {
            if result.error_code == 0 {
                let (values, _) = pending
                    .remove(&result.index)
                    .context("an answer about a partition that was not asked for")?;
                if result.base_offset < 0 {
                    bail!(
                        "partition {} acknowledged {values:?} without an offset",
                        result.index
                    );
                }
                for (value, offset) in values.into_iter().zip(result.base_offset..) {
                    let partition = result.index;
                    acked(value, Place { partition, offset });
                }
                continue;
            }
            let text = format!(
                "partition {}: error {} ({:?})",
                result.index, result.error_code, result.error_message
            );
            is_done("Produce", result.error_code)
                .with_context(|| format!("producer {}: {text}; before: {failures:?}", producer.id))?;
            failures.push(text);
        }
        if !pending.is_empty() {
            link.leave();
        }
    }
    Ok(())
}

pub fn now() -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis() as i64)
}
