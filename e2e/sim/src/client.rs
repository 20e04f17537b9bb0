//! A small Kafka client over the simulated network: several requests in flight, every failure a value.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use env::{Env, Stream};
use history::Anomaly;
use kafka_protocol::messages::TopicName;
use kafka_protocol::protocol::{Request, StrBytes};
use kafka_protocol::records::{
    Compression, NO_PARTITION_LEADER_EPOCH, Record, RecordBatchDecoder, RecordBatchEncoder,
    RecordEncodeOptions, TimestampType,
};
use kafka_wire::batch::batches;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::lab::{Lab, Trace, clock};

const ANSWER: Duration = Duration::from_secs(8);

/// A connection to a random broker; a new one after every failure.
pub(crate) struct Client {
    pub(crate) env: Env,
    trace: Trace,
    /// Of the run.
    found: Arc<Mutex<Vec<Anomaly>>>,
    bootstrap: Vec<String>,
    connection: Option<Stream>,
    correlation_id: i32,
    /// How many connections there were.
    pub(crate) connections: u64,
    /// How long it has paused of itself, ms.
    pub(crate) paused: i64,
}

/// The identity of a producer; -1, -1 for one that is not idempotent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProducerId {
    pub(crate) id: i64,
    pub(crate) epoch: i16,
}

/// A reason to try again.
pub(crate) type Failure = String;

/// A record as a consumer sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    pub(crate) value: u64,
    pub(crate) offset: i64,
    /// Its time, ms.
    pub(crate) time: i64,
    /// The log gave it that time.
    pub(crate) log_append_time: bool,
}

/// Records that a producer sends in one piece.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    /// Sequence number of the first record; -1: none.
    pub(crate) sequence: i32,
    /// The first value; they count up.
    pub(crate) first: u64,
    pub(crate) count: u64,
    /// The time of the first record, ms since the epoch; the others are a millisecond younger each. A batch that is sent
    /// again is the same.
    pub(crate) created: i64,
}

impl Batch {
    pub(crate) fn values(self) -> Range<u64> {
        self.first..self.first + self.count
    }

    /// Values, with the times that their producer gives to them.
    pub(crate) fn times(self) -> impl Iterator<Item = (u64, i64)> {
        self.values().zip(self.created..)
    }
}

impl Client {
    /// Goes to any broker.
    pub(crate) fn new(env: Env, lab: &Lab) -> Client {
        Client {
            env,
            trace: lab.trace.clone(),
            found: lab.found.clone(),
            bootstrap: lab.bootstrap.clone(),
            connection: None,
            correlation_id: 0,
            connections: 0,
            paused: 0,
        }
    }

    /// Goes to this broker only.
    pub(crate) fn at(env: Env, lab: &Lab, broker: &str) -> Client {
        Client {
            bootstrap: vec![broker.to_owned()],
            ..Client::new(env, lab)
        }
    }

    /// A request is refused. Codes that are not `expected` have no place here, and Kafka's clients would not ask again: that is
    /// a finding.
    pub(crate) fn refused(&self, api: &str, code: i16, expected: &[i16]) -> Failure {
        let what = format!("{api}: error {code}");
        if !expected.contains(&code) {
            self.trace.add(&self.env, format_args!("BROKEN {what}"));
            self.found.lock().push(Anomaly::Broken { what: what.clone() });
        }
        what
    }

    /// Sends a request and waits for its answer. The connection is dropped unless all went well.
    pub(crate) async fn call<R: Request>(
        &mut self,
        request: &R,
        version: i16,
    ) -> Result<R::Response, Failure> {
        let mut answers = self
            .pipeline(std::slice::from_ref(request), version, Duration::ZERO)
            .await;
        answers.pop().unwrap_or_else(|| Err("no answer".to_owned()))
    }

    /// Sends requests on one connection without waiting for answers, with pauses of up to `gap`, then reads the
    /// answers, which come in the same order. With the first failure the connection is dropped, and all that follow fail.
    pub(crate) async fn pipeline<R: Request>(
        &mut self,
        requests: &[R],
        version: i16,
        gap: Duration,
    ) -> Vec<Result<R::Response, Failure>> {
        let mut answers = Vec::with_capacity(requests.len());
        let failure = self.exchange(requests, version, gap, &mut answers).await.err();
        if let Some(failure) = failure {
            self.connection = None;
            answers.resize_with(requests.len(), || Err(failure.clone()));
        }
        answers
    }

    /// Sends requests and goes away after `patience`, whether or not they were answered.
    pub(crate) async fn abandon<R: Request>(&mut self, requests: &[R], version: i16, patience: Duration) {
        let env = self.env.clone();
        let mut answers = Vec::new();
        let asked = self.exchange(requests, version, Duration::ZERO, &mut answers);
        let _ = env.timeout(patience, asked).await;
        self.connection = None;
    }

    async fn exchange<R: Request>(
        &mut self,
        requests: &[R],
        version: i16,
        gap: Duration,
        answers: &mut Vec<Result<R::Response, Failure>>,
    ) -> Result<(), Failure> {
        let env = self.env.clone();
        let mut stream = match self.connection.take() {
            Some(stream) => stream,
            None => self.connect().await?,
        };
        let first = self.correlation_id + 1;
        for (i, request) in requests.iter().enumerate() {
            if i > 0 && !gap.is_zero() {
                let longest = u64::try_from(gap.as_micros()).unwrap_or(0);
                let before = clock(&env);
                env.sleep(Duration::from_micros(env.random_below(longest))).await;
                self.paused += clock(&env) - before;
            }
            self.correlation_id += 1;
            let frame = kafka_wire::client::encode(request, version, self.correlation_id, "sim")
                .map_err(|e| e.to_string())?;
            stream
                .write_all(&frame)
                .await
                .map_err(|error| error.to_string())?;
        }
        for id in first..=self.correlation_id {
            let reading = async {
                let length = stream.read_u32().await? as usize;
                let mut body = vec![0; length];
                stream.read_exact(&mut body).await?;
                std::io::Result::Ok(Bytes::from(body))
            };
            let body = env
                .timeout(ANSWER, reading)
                .await
                .map_err(|_| "no answer".to_owned())?;
            let body = body.map_err(|error| error.to_string())?;
            let (found, response) =
                kafka_wire::client::decode::<R>(body, version).map_err(|error| error.to_string())?;
            if found != id {
                return Err(format!("answer to {found} instead of {id}"));
            }
            answers.push(Ok(response));
        }
        self.connection = Some(stream);
        Ok(())
    }

    async fn connect(&mut self) -> Result<Stream, Failure> {
        self.connections += 1;
        let index = usize::try_from(self.env.random_below(self.bootstrap.len() as u64)).unwrap_or(0);
        let connecting = self.env.connect(&self.bootstrap[index]);
        let stream = self
            .env
            .timeout(ANSWER / 4, connecting)
            .await
            .map_err(|_| "connecting timed out".to_owned())?;
        stream.map_err(|error| error.to_string())
    }

    /// Goes to another broker with the next request.
    pub(crate) fn disconnect(&mut self) {
        self.connection = None;
    }
}

pub(crate) fn topic_name(name: &str) -> TopicName {
    TopicName(StrBytes::from_string(name.to_owned()))
}

/// The same bytes whenever it is asked for the same batch.
pub(crate) fn encode_batch(producer: ProducerId, batch: Batch) -> Result<Bytes, Failure> {
    let record = |(i, value): (i32, u64)| Record {
        transactional: false,
        control: false,
        delete_horizon: false,
        partition_leader_epoch: NO_PARTITION_LEADER_EPOCH,
        producer_id: producer.id,
        producer_epoch: producer.epoch,
        timestamp_type: TimestampType::Creation,
        offset: i64::from(i),
        // Counting up even from "none": the encoder takes anything else for a new batch.
        sequence: batch.sequence + i,
        timestamp: batch.created + i64::from(i),
        key: None,
        value: Some(Bytes::from(value.to_string())),
        headers: Default::default(),
    };
    let records: Vec<Record> = (0..).zip(batch.values()).map(record).collect();
    let options = RecordEncodeOptions {
        version: 2,
        compression: Compression::None,
    };
    let mut out = BytesMut::new();
    RecordBatchEncoder::encode(&mut out, &records, &options).map_err(|error| error.to_string())?;
    Ok(out.freeze())
}

/// The records from `offset` on in what a Fetch gave, and the number of batches.
pub(crate) fn decode_batches(records: &Bytes, offset: i64) -> Result<(Vec<Read>, usize), Failure> {
    let mut found = Vec::new();
    let mut count = 0;
    for batch in batches(records) {
        let (header, bytes) = batch.map_err(|error| error.to_string())?;
        count += 1;
        kafka_wire::batch::verify(&bytes).map_err(|error| error.to_string())?;
        let log_append_time = header.attributes & (1 << 3) != 0;
        let decoded = RecordBatchDecoder::decode(&mut bytes.clone()).map_err(|error| error.to_string())?;
        for record in decoded.records.iter().filter(|record| record.offset >= offset) {
            let value = record.value.as_deref().unwrap_or_default();
            let value = String::from_utf8_lossy(value)
                .parse()
                .map_err(|_| "not a value of ours".to_owned())?;
            found.push(Read {
                value,
                offset: record.offset,
                time: if log_append_time {
                    header.max_timestamp
                } else {
                    record.timestamp
                },
                log_append_time,
            });
        }
    }
    Ok((found, count))
}
