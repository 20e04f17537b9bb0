//! A small Kafka client over the simulated network: one request at a time, no pipelining, every failure a value.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use env::{Env, Stream};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    BrokerId, FetchRequest, InitProducerIdRequest, MetadataRequest, MetadataResponse, ProduceRequest,
    TopicName,
};
use kafka_protocol::protocol::{Request, StrBytes};
use kafka_protocol::records::{
    Compression, NO_PARTITION_LEADER_EPOCH, Record, RecordBatchDecoder, RecordBatchEncoder,
    RecordEncodeOptions, TimestampType,
};
use kafka_wire::batch::batches;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const ANSWER: Duration = Duration::from_secs(10);
pub(crate) const TOPIC: &str = "events";

/// A connection to a random broker; a new one after every failure.
pub(crate) struct Client {
    env: Env,
    bootstrap: Vec<String>,
    connection: Option<Stream>,
    correlation_id: i32,
}

/// The identity of an idempotent producer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProducerId {
    pub(crate) id: i64,
    pub(crate) epoch: i16,
}

/// A reason to try again.
pub(crate) type Failure = String;

impl Client {
    pub(crate) fn new(env: Env, bootstrap: Vec<String>) -> Client {
        Client {
            env,
            bootstrap,
            connection: None,
            correlation_id: 0,
        }
    }

    /// Sends a request and waits for its answer. The connection is dropped unless all went well.
    async fn call<R: Request>(&mut self, request: &R, version: i16) -> Result<R::Response, Failure> {
        let mut stream = match self.connection.take() {
            Some(stream) => stream,
            None => self.connect().await?,
        };
        self.correlation_id += 1;
        let frame = kafka_wire::client::encode(request, version, self.correlation_id, "sim")
            .map_err(|e| e.to_string())?;
        let exchange = async {
            stream.write_all(&frame).await?;
            let length = stream.read_u32().await? as usize;
            let mut body = vec![0; length];
            stream.read_exact(&mut body).await?;
            std::io::Result::Ok(Bytes::from(body))
        };
        let body = self
            .env
            .timeout(ANSWER, exchange)
            .await
            .map_err(|_| "no answer".to_owned())?;
        let body = body.map_err(|error| error.to_string())?;
        let (id, response) =
            kafka_wire::client::decode::<R>(body, version).map_err(|error| error.to_string())?;
        if id != self.correlation_id {
            return Err(format!("answer to {id} instead of {}", self.correlation_id));
        }
        self.connection = Some(stream);
        Ok(response)
    }

    async fn connect(&self) -> Result<Stream, Failure> {
        let index = usize::try_from(self.env.random_below(self.bootstrap.len() as u64)).unwrap_or(0);
        let connecting = self.env.connect(&self.bootstrap[index]);
        let stream = self
            .env
            .timeout(ANSWER, connecting)
            .await
            .map_err(|_| "connecting timed out".to_owned())?;
        stream.map_err(|error| error.to_string())
    }

    /// Goes to another broker with the next request.
    pub(crate) fn disconnect(&mut self) {
        self.connection = None;
    }

    pub(crate) async fn metadata(&mut self) -> Result<MetadataResponse, Failure> {
        let topic = MetadataRequestTopic::default().with_name(Some(topic_name()));
        let request = MetadataRequest::default()
            .with_topics(Some(vec![topic]))
            .with_allow_auto_topic_creation(true);
        self.call(&request, 8).await
    }

    pub(crate) async fn init_producer_id(&mut self) -> Result<ProducerId, Failure> {
        let response = self
            .call(
                &InitProducerIdRequest::default()
                    .with_transactional_id(None)
                    .with_transaction_timeout_ms(60_000),
                2,
            )
            .await?;
        match response.error_code {
            0 => Ok(ProducerId {
                id: response.producer_id.0,
                epoch: response.producer_epoch,
            }),
            code => Err(format!("InitProducerId: error {code}")),
        }
    }

    /// Produces one record; the offset, or the error code of the partition.
    pub(crate) async fn produce(
        &mut self,
        partition: i32,
        producer: ProducerId,
        sequence: i32,
        value: u64,
    ) -> Result<Result<i64, i16>, Failure> {
        let records =
            encode_batch(self.env.now().0, producer, sequence, value).map_err(|error| error.to_string())?;
        let data = PartitionProduceData::default()
            .with_index(partition)
            .with_records(Some(records));
        let topic = TopicProduceData::default()
            .with_name(topic_name())
            .with_partition_data(vec![data]);
        let request = ProduceRequest::default()
            .with_transactional_id(None)
            .with_acks(-1)
            .with_timeout_ms(5_000)
            .with_topic_data(vec![topic]);
        let response = self.call(&request, 8).await?;
        let answer = response
            .responses
            .first()
            .and_then(|topic| topic.partition_responses.first());
        match answer {
            Some(answer) if answer.error_code == 0 => Ok(Ok(answer.base_offset)),
            Some(answer) => Ok(Err(answer.error_code)),
            None => Err("an answer without the partition".to_owned()),
        }
    }

    /// Fetches from an offset: values with their offsets, and the high watermark.
    pub(crate) async fn fetch(
        &mut self,
        partition: i32,
        offset: i64,
    ) -> Result<(Vec<(u64, i64)>, i64), Failure> {
        let wanted = FetchPartition::default()
            .with_partition(partition)
            .with_fetch_offset(offset)
            .with_partition_max_bytes(1 << 20);
        let topic = FetchTopic::default()
            .with_topic(topic_name())
            .with_partitions(vec![wanted]);
        let request = FetchRequest::default()
            .with_replica_id(BrokerId(-1))
            .with_max_wait_ms(500)
            .with_min_bytes(1)
            .with_max_bytes(10 << 20)
            .with_session_id(0)
            .with_session_epoch(-1)
            .with_topics(vec![topic]);
        let response = self.call(&request, 11).await?;
        let data = response
            .responses
            .first()
            .and_then(|topic| topic.partitions.first());
        let data = data.ok_or_else(|| "an answer without the partition".to_owned())?;
        if data.error_code != 0 {
            return Err(format!(
                "fetch of {partition} at {offset}: error {}",
                data.error_code
            ));
        }
        let records = data.records.clone().unwrap_or_default();
        let mut found = Vec::new();
        for batch in batches(&records) {
            let (_, bytes) = batch.map_err(|error| error.to_string())?;
            kafka_wire::batch::verify(&bytes).map_err(|error| error.to_string())?;
            let decoded =
                RecordBatchDecoder::decode(&mut bytes.clone()).map_err(|error| error.to_string())?;
            for record in decoded.records.iter().filter(|record| record.offset >= offset) {
                let value = record
                    .value
                    .as_ref()
                    .map(|value| String::from_utf8_lossy(value).into_owned());
                let value = value
                    .unwrap_or_default()
                    .parse()
                    .map_err(|_| "not a value of ours".to_owned())?;
                found.push((value, record.offset));
            }
        }
        Ok((found, data.high_watermark))
    }
}

fn topic_name() -> TopicName {
    TopicName(StrBytes::from_static_str(TOPIC))
}

fn encode_batch(now: i64, producer: ProducerId, sequence: i32, value: u64) -> anyhow::Result<Bytes> {
    let mut text = BytesMut::new();
    text.put_slice(value.to_string().as_bytes());
    let record = Record {
        transactional: false,
        control: false,
        delete_horizon: false,
        partition_leader_epoch: NO_PARTITION_LEADER_EPOCH,
        producer_id: producer.id,
        producer_epoch: producer.epoch,
        timestamp_type: TimestampType::Creation,
        offset: 0,
        sequence,
        timestamp: now,
        key: None,
        value: Some(text.freeze()),
        headers: Default::default(),
    };
    let options = RecordEncodeOptions {
        version: 2,
        compression: Compression::None,
    };
    let mut out = BytesMut::new();
    RecordBatchEncoder::encode(&mut out, [&record], &options)?;
    Ok(out.freeze())
}
