//! A consumer that is assigned all partitions and asks any broker.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use e2e::history::{FetchedBounds, Place};
use e2e::wire::topic_name;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::{BrokerId, FetchRequest, FetchResponse};
use kafka_protocol::records::RecordBatchDecoder;
use rand::RngExt;

use crate::auditor::{EARLIEST, LATEST, Notes, ends, offsets};
use crate::link::{Link, is_done};
use crate::run::{PARTITIONS, TOPIC, UNAVAILABLE};

/// Last version that names topics.
const VERSION: i16 = 12;

/// Where it stands, and what it got.
pub struct Consumer<'a> {
    link: Link,
    notes: &'a Notes,
    /// What was said over the present connection, and which that is.
    fetches: Vec<FetchedBounds>,
    connection: u64,
    positions: [i64; PARTITIONS as usize],
    lines: String,
    count: u64,
}

impl<'a> Consumer<'a> {
    pub fn new(link: Link, notes: &'a Notes) -> Consumer<'a> {
        Consumer {
            link,
            notes,
            fetches: Vec::new(),
            connection: 0,
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
        self.keep_fetches();
        Ok(self.lines)
    }

    /// Reads to the end, as it is known now.
    pub fn read_to_end(mut self) -> anyhow::Result<String> {
        let start = Instant::now();
        let ends = loop {
            if let Some(ends) = ends(&mut self.link, self.notes)? {
                break ends;
            }
            if start.elapsed() > UNAVAILABLE {
                bail!("unavailable: no offsets");
            }
            self.link.leave();
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
        self.keep_fetches();
        Ok(self.lines)
    }

    fn keep_fetches(&mut self) {
        let fetches = std::mem::take(&mut self.fetches);
        self.notes.history.lock().unwrap().fetches.push(fetches);
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
            let mut bounds = [None, None];
            for (bound, time) in bounds.iter_mut().zip([EARLIEST, LATEST]) {
                let listed = offsets(link, topic, partition..partition + 1, time)?;
                *bound = listed.and_then(|listed| listed.first().copied());
            }
            if bounds == [Some(start), Some(end)]
                && let Some(values) = values(link, topic, partition, start, end)?
            {
                return Ok(values);
            }
            seen.push(bounds);
            link.leave();
        }
        let last = seen.split_off(seen.len().saturating_sub(5));
        bail!("unavailable: {start} to {end} not within {UNAVAILABLE:?}, last seen: {last:?}")
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
            Ok(answer) => {
                if self.connection != self.link.connections {
                    self.keep_fetches();
                    self.connection = self.link.connections;
                }
                self.take(answer)
            }
            Err(_) => Ok(()),
        }
    }

    fn take(&mut self, answer: FetchResponse) -> anyhow::Result<()> {
        let mut leave = !is_done("Fetch", answer.error_code)?;
        for found in answer.responses.into_iter().flat_map(|topic| topic.partitions) {
            let partition = found.partition_index;
            let position = &mut self.positions[partition as usize];
            // OFFSET_OUT_OF_RANGE above all: it would make clients start anew.
            let done = is_done("Fetch", found.error_code);
            if !done.with_context(|| format!("partition {partition}, offset {position}"))? {
                leave = true;
                continue;
            }
            let from = *position;
            let mut records = found.records.unwrap_or_default();
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
                let place = Place {
                    partition,
                    offset: record.offset,
                };
                let mut history = self.notes.history.lock().unwrap();
                history.note_time(place, record.timestamp, false);
                writeln!(
                    self.lines,
                    "got {} {partition} {}",
                    String::from_utf8_lossy(&value),
                    record.offset
                )?;
                *position += 1;
                self.count += 1;
            }
            self.fetches.push(FetchedBounds {
                partition,
                log_start: found.log_start_offset,
                high_watermark: found.high_watermark,
                records: (from < *position).then_some((from, *position - 1)),
            });
        }
        if leave {
            self.link.leave();
        }
        Ok(())
    }
}

/// What is at the offsets `start .. end`. `None`: to be asked again.
fn values(
    link: &mut Link,
    topic: &str,
    partition: i32,
    start: i64,
    end: i64,
) -> anyhow::Result<Option<Vec<String>>> {
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
        let Ok(mut answer) = link.call(&request, VERSION) else {
            return Ok(None);
        };
        let mut topic = answer.responses.pop().context("no topic")?;
        let found = topic.partitions.pop().context("no partition")?;
        let done = is_done("Fetch", found.error_code);
        if !done.with_context(|| format!("partition {partition}, offset {next}"))? {
            return Ok(None);
        }
        let mut records = found.records.unwrap_or_default();
        if records.is_empty() {
            return Ok(None);
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
    Ok(Some(read))
}
