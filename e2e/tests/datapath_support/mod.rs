//! Producers of the data path tests.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use e2e::wire::{Producer, Wire, batch_of, topic_name};
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::produce_response::PartitionProduceResponse;
use kafka_protocol::messages::{InitProducerIdRequest, ProduceRequest, ProducerId};

/// How long a producer tries.
const PATIENCE: Duration = Duration::from_secs(180);

/// Waits until something is so.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// An id that nobody else has.
pub fn producer_id(wire: &mut Wire) -> anyhow::Result<Producer> {
    let start = Instant::now();
    loop {
        let request = InitProducerIdRequest::default()
            .with_transactional_id(None)
            .with_transaction_timeout_ms(60_000)
            .with_producer_id(ProducerId(-1))
            .with_producer_epoch(-1);
        let answer = wire.call(&request, 4)?;
        if answer.error_code == 0 {
            return Ok(Producer {
                id: answer.producer_id.0,
                epoch: answer.producer_epoch,
            });
        }
        if start.elapsed() > PATIENCE {
            bail!("no producer id: error {}", answer.error_code);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// One batch for one partition.
pub fn request(topic: &str, partition: i32, batch: Bytes, timeout: Duration) -> ProduceRequest {
    let data = PartitionProduceData::default()
        .with_index(partition)
        .with_records(Some(batch));
    let topic = TopicProduceData::default()
        .with_name(topic_name(topic))
        .with_partition_data(vec![data]);
    ProduceRequest::default()
        .with_transactional_id(None)
        .with_acks(-1)
        .with_timeout_ms(i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX))
        .with_topic_data(vec![topic])
}

/// Sends one batch and gives what the broker says of it.
pub fn send(
    wire: &mut Wire,
    topic: &str,
    partition: i32,
    batch: Bytes,
    timeout: Duration,
) -> anyhow::Result<PartitionProduceResponse> {
    let mut answer = wire.call(&request(topic, partition, batch, timeout), 9)?;
    let mut topic = answer.responses.pop().context("no topic in the answer")?;
    topic
        .partition_responses
        .pop()
        .context("no partition in the answer")
}

/// Whether a client sends a batch again after this error.
pub fn is_retriable(code: i16) -> bool {
    ResponseError::try_from_code(code).is_some_and(|error| error.is_retriable())
}

/// Sends one batch as an idempotent producer does: again after an error that allows it and on a new connection after one
/// that broke, until it is acknowledged. Gives its offset, and how often it was sent.
pub fn deliver(
    address: &str,
    topic: &str,
    partition: i32,
    producer: Producer,
    sequence: i32,
    value: &str,
) -> anyhow::Result<(i64, u32)> {
    let batch = batch_of(producer, sequence, &[value], now())?;
    let start = Instant::now();
    let mut wire = None;
    let mut attempt = 0;
    loop {
        attempt += 1;
        if start.elapsed() > PATIENCE {
            bail!("{topic}-{partition}: not acknowledged in {PATIENCE:?}, {attempt} attempts");
        }
        let mut connection = match wire.take() {
            Some(connection) => connection,
            None => Wire::connect(address)?,
        };
        let timeout = Duration::from_secs(10);
        match send(&mut connection, topic, partition, batch.clone(), timeout) {
            Ok(answer) if answer.error_code == 0 => return Ok((answer.base_offset, attempt)),
            Ok(answer) if is_retriable(answer.error_code) => wire = Some(connection),
            Ok(answer) => bail!("{topic}-{partition}: error {}", answer.error_code),
            Err(_) => {}
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

pub fn now() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis() as i64)
}
