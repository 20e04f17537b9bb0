//! Requests of the fault tests.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::{Bytes, BytesMut};
use e2e::wire::{self, Wire, batch, topic_name};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{ApiKey, BrokerId, FetchRequest, MetadataRequest, ProduceRequest};
use kafka_protocol::records::{
    Compression, Record, RecordBatchDecoder, RecordBatchEncoder, RecordEncodeOptions, TimestampType,
};

pub const EARLIEST: i64 = -2;
pub const LATEST: i64 = -1;
/// Longer than anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// First version with incremental sessions (KIP-227), and last one that names topics.
const SESSIONS: i16 = 7;
const NAMES: i16 = 12;

/// Versions of Fetch that name topics.
pub fn fetch_versions() -> std::ops::RangeInclusive<i16> {
    let range = kafka_wire::versions::range(ApiKey::Fetch).expect("fetch is served");
    *range.start()..=NAMES
}

/// Asks until there is something.
pub fn until<T>(what: &str, mut ask: impl FnMut() -> anyhow::Result<Option<T>>) -> anyhow::Result<T> {
    let start = Instant::now();
    loop {
        if let Some(found) = ask()? {
            return Ok(found);
        }
        if start.elapsed() > PATIENCE {
            bail!("not within {PATIENCE:?}: {what}");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Waits until a broker knows a topic: the one that was asked to create it is not the only one.
pub fn known(wire: &mut Wire, topic: &str, partitions: usize) -> anyhow::Result<()> {
    until("the broker knows the topic", || {
        let asked = MetadataRequestTopic::default().with_name(Some(topic_name(topic)));
        let answer = wire.call(&MetadataRequest::default().with_topics(Some(vec![asked])), 12)?;
        let found = answer.topics.first().context("no topic")?;
        Ok((found.error_code == 0 && found.partitions.len() == partitions).then_some(()))
    })
}

fn produce_request(topic: &str, batches: Vec<(i32, Bytes)>) -> ProduceRequest {
    let data = batches.into_iter().map(|(partition, batch)| {
        PartitionProduceData::default()
            .with_index(partition)
            .with_records(Some(batch))
    });
    let topic = TopicProduceData::default()
        .with_name(topic_name(topic))
        .with_partition_data(data.collect());
    ProduceRequest::default()
        .with_transactional_id(None)
        .with_acks(-1)
        .with_timeout_ms(30_000)
        .with_topic_data(vec![topic])
}

/// Writes one batch; gives its offset.
pub fn produce(wire: &mut Wire, topic: &str, partition: i32, values: &[&str]) -> anyhow::Result<i64> {
    produce_batch(wire, topic, partition, batch(values, now())?, 30_000)
}

/// Writes one batch, which may take so long, in milliseconds; gives its offset.
pub fn produce_batch(
    wire: &mut Wire,
    topic: &str,
    partition: i32,
    batch: Bytes,
    timeout_ms: i32,
) -> anyhow::Result<i64> {
    let request = produce_request(topic, vec![(partition, batch)]).with_timeout_ms(timeout_ms);
    let answer = wire.call(&request, 9)?;
    let result = &answer.responses[0].partition_responses[0];
    if result.error_code != 0 {
        bail!(
            "partition {partition}: error {} ({:?})",
            result.error_code,
            result.error_message
        );
    }
    Ok(result.base_offset)
}

/// A request with a transactional batch for partition 0 and a plain one for partition 1; gives their error codes.
pub fn transactional(wire: &mut Wire, topic: &str) -> anyhow::Result<Vec<i16>> {
    let record = Record {
        transactional: true,
        control: false,
        delete_horizon: false,
        partition_leader_epoch: -1,
        producer_id: 7,
        producer_epoch: 0,
        timestamp_type: TimestampType::Creation,
        offset: 0,
        sequence: 0,
        timestamp: now(),
        key: None,
        value: Some(Bytes::from_static(b"x")),
        headers: Default::default(),
    };
    let options = RecordEncodeOptions {
        version: 2,
        compression: Compression::None,
    };
    let mut first = BytesMut::new();
    RecordBatchEncoder::encode(&mut first, [&record], &options)?;
    let request = produce_request(topic, vec![(0, first.freeze()), (1, batch(&["plain"], now())?)]);
    let answer = wire.call(&request, 9)?;
    let results = &answer.responses[0].partition_responses;
    Ok(results.iter().map(|result| result.error_code).collect())
}

/// Error code and the new start of the log.
pub fn delete_records(
    wire: &mut Wire,
    topic: &str,
    partition: i32,
    offset: i64,
) -> anyhow::Result<(i16, i64)> {
    let answer = wire.call(&wire::delete_records(topic, partition, offset, 30_000), 2)?;
    let result = &answer.topics[0].partitions[0];
    Ok((result.error_code, result.low_watermark))
}

pub fn offset(wire: &mut Wire, topic: &str, partition: i32, timestamp: i64) -> anyhow::Result<i64> {
    let answer = wire.call(&wire::list_offsets(topic, [partition], timestamp), 7)?;
    let found = &answer.topics[0].partitions[0];
    if found.error_code != 0 {
        bail!("error {}", found.error_code);
    }
    Ok(found.offset)
}

fn fetch_topic(topic: &str, wanted: &[(i32, i64)]) -> FetchTopic {
    let partitions = wanted.iter().map(|(partition, offset)| {
        FetchPartition::default()
            .with_partition(*partition)
            .with_fetch_offset(*offset)
            .with_partition_max_bytes(4 << 20)
    });
    FetchTopic::default()
        .with_topic(topic_name(topic))
        .with_partitions(partitions.collect())
}

fn fetch_request(topics: Vec<FetchTopic>) -> FetchRequest {
    FetchRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_max_wait_ms(500)
        .with_min_bytes(1)
        .with_max_bytes(16 << 20)
        .with_topics(topics)
}

/// The answers in the order of what is wanted: partition and offset.
pub fn fetch(wire: &mut Wire, topic: &str, wanted: &[(i32, i64)]) -> anyhow::Result<Vec<PartitionData>> {
    let mut answer = wire.call(&fetch_request(vec![fetch_topic(topic, wanted)]), 11)?;
    if answer.error_code != 0 {
        bail!("error {}", answer.error_code);
    }
    let topic = answer.responses.pop().context("no topic in the answer")?;
    Ok(topic.partitions)
}

/// The values of what was fetched.
pub fn values(found: &PartitionData) -> anyhow::Result<Vec<String>> {
    let mut records = found.records.clone().unwrap_or_default();
    let mut values = Vec::new();
    if !records.is_empty() {
        for set in RecordBatchDecoder::decode_all(&mut records)? {
            for record in set.records {
                let value = record.value.context("no value")?;
                values.push(String::from_utf8_lossy(&value).into_owned());
            }
        }
    }
    Ok(values)
}

/// Reads topics of so many partitions each until `count` records have come: by full requests, or with a session if the
/// broker gives one.
pub fn consume_all(
    wire: &mut Wire,
    version: i16,
    session: bool,
    topics: &[&str],
    partitions: i32,
    count: usize,
) -> anyhow::Result<BTreeMap<(String, i32), Vec<String>>> {
    let mut read: BTreeMap<(String, i32), Vec<String>> = BTreeMap::new();
    let (mut session_id, mut epoch) = (0, if session { 0 } else { -1 });
    let start = Instant::now();
    while read.values().map(Vec::len).sum::<usize>() < count {
        if start.elapsed() > PATIENCE {
            bail!("only {read:?}");
        }
        let wanted = topics.iter().map(|topic| {
            let wanted: Vec<(i32, i64)> = (0..partitions)
                .map(|partition| {
                    let known = read.get(&((*topic).to_owned(), partition));
                    (partition, known.map_or(0, Vec::len) as i64)
                })
                .collect();
            fetch_topic(topic, &wanted)
        });
        let mut request = fetch_request(wanted.collect());
        if version >= SESSIONS {
            request = request.with_session_id(session_id).with_session_epoch(epoch);
        }
        let answer = wire.call(&request, version)?;
        if answer.error_code != 0 {
            bail!("version {version}: error {}", answer.error_code);
        }
        if session && version >= SESSIONS {
            session_id = answer.session_id;
            epoch = if session_id == 0 { 0 } else { epoch + 1 };
        }
        for topic in &answer.responses {
            for found in &topic.partitions {
                if found.error_code != 0 {
                    bail!("{topic:?}: error {}", found.error_code);
                }
                let name = topic.topic.0.as_str().to_owned();
                read.entry((name, found.partition_index))
                    .or_default()
                    .extend(values(found)?);
            }
        }
    }
    Ok(read)
}

pub fn for_each_file(dir: &Path, visit: &mut impl FnMut(&Path)) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            for_each_file(&path, visit);
        } else {
            visit(&path);
        }
    }
}

pub fn now() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis() as i64)
}
