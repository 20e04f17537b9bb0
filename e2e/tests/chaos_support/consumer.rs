//! A consumer that is assigned all partitions and asks any broker.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use e2e::wire::{list_offsets, topic_name};
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::{BrokerId, FetchRequest, FetchResponse};
use kafka_protocol::records::RecordBatchDecoder;
use rand::RngExt;

use crate::link::Link;
use crate::run::{PARTITIONS, TOPIC, UNAVAILABLE};

/// Last version that names topics.
const VERSION: i16 = 12;
const EARLIEST: i64 = -2;
const LATEST: i64 = -1;

/// Where it stands, and what it got.
pub struct Consumer {
    link: Link,
    positions: [i64; PARTITIONS as usize],
    lines: String,
    count: u64,
}

impl Consumer {
    pub fn new(link: Link) -> Consumer {
        Consumer {
            link,
            positions: [0; PARTITIONS as usize],
            lines: String::new(),
            count: 0,
        }
    }

    /// Reads until it has so many records. `done` tells when all of them are acknowledged: then it may take
    /// [`UNAVAILABLE`] at most.
    pub fn read(mut self, count: u64, done: impl Fn() -> bool) -> anyhow::Result<String> {
        let mut since = None;
        while self.count < count {
            self.poll(Duration::from_millis(500))?;
            if done() {
                let since = since.get_or_insert_with(Instant::now);
                if since.elapsed() > UNAVAILABLE {
                    bail!(
                        "unavailable: {} of {count} records within {UNAVAILABLE:?}, positions {:?}",
                        self.count,
                        self.positions
                    );
                }
            }
            // A client that knows a better broker leaves.
            if self.link.random.random_ratio(1, 10) {
                self.link.leave();
            }
        }
        Ok(self.lines)
    }

    /// Reads to the end, as it is known now.
    pub fn read_to_end(mut self) -> anyhow::Result<String> {
        let start = Instant::now();
        let ends = loop {
            match self.ends() {
                Ok(ends) => break ends,
                Err(error) if start.elapsed() > UNAVAILABLE => {
                    return Err(error.context("unavailable: no offsets"));
                }
                Err(_) => self.link.leave(),
            }
        };
        while self
            .positions
            .iter()
            .zip(&ends)
            .any(|(position, end)| position < end)
        {
            self.poll(Duration::ZERO)?;
            if start.elapsed() > UNAVAILABLE {
                bail!(
                    "unavailable: read to {:?} of {ends:?} within {UNAVAILABLE:?}",
                    self.positions
                );
            }
        }
        Ok(self.lines)
    }

    /// The values of another topic's partition, once it has these bounds.
    pub fn read_partition(
        link: &mut Link,
        topic: &str,
        partition: i32,
        start: i64,
        end: i64,
    ) -> anyhow::Result<Vec<String>> {
        let begin = Instant::now();
        let mut seen = Vec::new();
        while begin.elapsed() < UNAVAILABLE {
            let bounds = [EARLIEST, LATEST].map(|time| offset(link, topic, partition, time).ok());
            if bounds == [Some(start), Some(end)]
                && let Ok(values) = values(link, topic, partition, start, end)
            {
                return Ok(values);
            }
            seen.push(bounds);
            link.leave();
        }
        let last = seen.split_off(seen.len().saturating_sub(5));
        bail!("unavailable: {start} to {end} not within {UNAVAILABLE:?}, last seen: {last:?}")
    }

    fn ends(&mut self) -> anyhow::Result<Vec<i64>> {
        let answer = self.link.call(&list_offsets(TOPIC, 0..PARTITIONS, LATEST), 7)?;
        let mut ends = vec![0; PARTITIONS as usize];
        for found in answer.topics.iter().flat_map(|topic| &topic.partitions) {
            if found.error_code != 0 {
                bail!("partition {}: error {}", found.partition_index, found.error_code);
            }
            ends[found.partition_index as usize] = found.offset;
        }
        Ok(ends)
    }

    fn poll(&mut self, wait: Duration) -> anyhow::Result<()> {
        let partitions = (0..PARTITIONS).zip(self.positions).map(|(partition, position)| {
            FetchPartition::default()
                .with_partition(partition)
                .with_fetch_offset(position)
                .with_partition_max_bytes(1 << 20)
        });
        let topic = FetchTopic::default()
            .with_topic(topic_name(TOPIC))
            .with_partitions(partitions.collect());
        let request = FetchRequest::default()
            .with_replica_id(BrokerId(-1))
            .with_max_wait_ms(wait.as_millis() as i32)
            .with_min_bytes(1)
            .with_max_bytes(8 << 20)
            .with_topics(vec![topic]);
        match self.link.call(&request, VERSION) {
            Ok(answer) => self.take(answer),
            Err(_) => Ok(()),
        }
    }

    fn take(&mut self, answer: FetchResponse) -> anyhow::Result<()> {
        let mut leave = answer.error_code != 0;
        for found in answer.responses.into_iter().flat_map(|topic| topic.partitions) {
            let partition = found.partition_index;
            if found.error_code != 0 {
                // OFFSET_OUT_OF_RANGE above all: it would make clients start anew.
                if !ResponseError::try_from_code(found.error_code).is_some_and(|e| e.is_retriable()) {
                    bail!(
                        "partition {partition}, offset {}: error {}",
                        self.positions[partition as usize],
                        found.error_code
                    );
                }
                leave = true;
                continue;
            }
            let Some(mut records) = found.records.filter(|records| !records.is_empty()) else {
                continue;
            };
            let position = &mut self.positions[partition as usize];
            for record in RecordBatchDecoder::decode_all(&mut records)?
                .into_iter()
                .flat_map(|set| set.records)
            {
                // A whole batch comes, from its first record on.
                if record.offset < *position {
                    continue;
                }
                if record.offset > *position {
                    bail!("partition {partition}: offset {} after {position}", record.offset);
                }
                let value = record.value.context("a record without a value")?;
                writeln!(
                    self.lines,
                    "got {} {partition} {}",
                    String::from_utf8_lossy(&value),
                    record.offset
                )?;
                *position += 1;
                self.count += 1;
            }
        }
        if leave {
            self.link.leave();
        }
        Ok(())
    }
}

fn offset(link: &mut Link, topic: &str, partition: i32, timestamp: i64) -> anyhow::Result<i64> {
    let answer = link.call(&list_offsets(topic, [partition], timestamp), 7)?;
    let topic = answer.topics.first().context("no topic")?;
    let found = topic.partitions.first().context("no partition")?;
    if found.error_code != 0 {
        bail!("error {}", found.error_code);
    }
    Ok(found.offset)
}

/// What is at the offsets `start .. end`.
fn values(link: &mut Link, topic: &str, partition: i32, start: i64, end: i64) -> anyhow::Result<Vec<String>> {
    let mut read = Vec::new();
    let mut next = start;
    while next < end {
        let wanted = FetchPartition::default()
            .with_partition(partition)
            .with_fetch_offset(next)
            .with_partition_max_bytes(1 << 20);
        let wanted = FetchTopic::default()
            .with_topic(topic_name(topic))
            .with_partitions(vec![wanted]);
        let request = FetchRequest::default()
            .with_replica_id(BrokerId(-1))
            .with_max_wait_ms(500)
            .with_min_bytes(1)
            .with_max_bytes(1 << 20)
            .with_topics(vec![wanted]);
        let mut answer = link.call(&request, VERSION)?;
        let mut topic = answer.responses.pop().context("no topic")?;
        let found = topic.partitions.pop().context("no partition")?;
        if found.error_code != 0 {
            bail!("error {}", found.error_code);
        }
        let mut records = found.records.unwrap_or_default();
        if records.is_empty() {
            bail!("nothing at {next}");
        }
        let sets = RecordBatchDecoder::decode_all(&mut records)?;
        for record in sets.into_iter().flat_map(|set| set.records) {
            if record.offset == next {
                let value = record.value.context("a record without a value")?;
                read.push(String::from_utf8_lossy(&value).into_owned());
                next += 1;
            }
        }
    }
    Ok(read)
}
