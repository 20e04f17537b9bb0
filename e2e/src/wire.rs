//! A plain Kafka client for what libraries do not let a test say: any request, in any version, one at a time.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{
    ApiKey, BrokerId, CreateTopicsRequest, DeleteRecordsRequest, ListOffsetsRequest, MetadataRequest,
    TopicName,
};
use kafka_protocol::protocol::{Request, StrBytes};
use kafka_protocol::records::{
    Compression, NO_PARTITION_LEADER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, Record,
    RecordBatchEncoder, RecordEncodeOptions, TimestampType,
};

/// Longer than any request of a test waits at the broker.
const ANSWER: Duration = Duration::from_secs(60);

/// A connection to one broker.
pub struct Wire {
    stream: TcpStream,
    correlation_id: i32,
}

impl Wire {
    /// Connects to `host:port`.
    pub fn connect(address: &str) -> anyhow::Result<Wire> {
        Wire::connect_within(address, ANSWER)
    }

    /// The same; who takes longer than `patience` to accept or to answer is given up.
    pub fn connect_within(address: &str, patience: Duration) -> anyhow::Result<Wire> {
        let known = address
            .parse()
            .with_context(|| format!("no address: {address}"))?;
        let stream = TcpStream::connect_timeout(&known, patience)
            .with_context(|| format!("cannot connect to {address}"))?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_nodelay(true)?;
        Ok(Wire {
            stream,
            correlation_id: 0,
        })
    }

    /// Sends a request and waits for its answer.
    pub fn call<R: Request>(&mut self, request: &R, version: i16) -> anyhow::Result<R::Response> {
        self.exchange(request, version)
            .with_context(|| format!("{:?} v{version}", ApiKey::try_from(R::KEY)))
    }

    fn exchange<R: Request>(&mut self, request: &R, version: i16) -> anyhow::Result<R::Response> {
        self.correlation_id += 1;
        let frame = kafka_wire::client::encode(request, version, self.correlation_id, "e2e")?;
        self.send(&frame)?;
        let (id, response) = kafka_wire::client::decode::<R>(self.receive()?, version)?;
        if id != self.correlation_id {
            bail!("answer to {id} instead of {}", self.correlation_id);
        }
        Ok(response)
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, frame: &[u8]) -> anyhow::Result<()> {
        Ok(self.stream.write_all(frame)?)
    }

    /// Waits for an answer and gives it without its length.
    pub fn receive(&mut self) -> anyhow::Result<Bytes> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).context("no answer")?;
        let mut body = vec![0; usize::try_from(i32::from_be_bytes(length))?];
        self.stream.read_exact(&mut body).context("half an answer")?;
        Ok(body.into())
    }

    /// Creates a topic and waits until this broker has leaders for all its partitions.
    pub fn create_topic(&mut self, name: &str, partitions: i32) -> anyhow::Result<()> {
        let topic = CreatableTopic::default()
            .with_name(topic_name(name))
            .with_num_partitions(partitions)
            .with_replication_factor(-1);
        let request = CreateTopicsRequest::default()
            .with_topics(vec![topic])
            .with_timeout_ms(30_000);
        let response = self.call(&request, 7)?;
        let result = response.topics.first().context("no result")?;
        if result.error_code != 0 {
            bail!(
                "topic {name}: error {} ({:?})",
                result.error_code,
                result.error_message
            );
        }
        for _ in 0..300 {
            let asked = MetadataRequestTopic::default().with_name(Some(topic_name(name)));
            let response = self.call(&MetadataRequest::default().with_topics(Some(vec![asked])), 12)?;
            let topic = response.topics.first().context("no topic")?;
            let led = topic
                .partitions
                .iter()
                .filter(|p| p.error_code == 0 && p.leader_id.0 >= 0);
            if i32::try_from(led.count())? == partitions {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        bail!("topic {name} has no leaders")
    }
}

/// A name as requests hold it.
pub fn topic_name(name: &str) -> TopicName {
    TopicName(text(name))
}

/// A string as requests hold it.
pub fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// Asks for the offsets that partitions of a topic have at a time (ms; -1: the end, -2: the beginning).
pub fn list_offsets(
    topic: &str,
    partitions: impl IntoIterator<Item = i32>,
    timestamp: i64,
) -> ListOffsetsRequest {
    let partitions = partitions.into_iter().map(|partition| {
        ListOffsetsPartition::default()
            .with_partition_index(partition)
            .with_timestamp(timestamp)
    });
    let topic = ListOffsetsTopic::default()
        .with_name(topic_name(topic))
        .with_partitions(partitions.collect());
    ListOffsetsRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_topics(vec![topic])
}

/// Deletes what is before `offset` in a partition.
pub fn delete_records(topic: &str, partition: i32, offset: i64, timeout_ms: i32) -> DeleteRecordsRequest {
    let partition = DeleteRecordsPartition::default()
        .with_partition_index(partition)
        .with_offset(offset);
    let topic = DeleteRecordsTopic::default()
        .with_name(topic_name(topic))
        .with_partitions(vec![partition]);
    DeleteRecordsRequest::default()
        .with_topics(vec![topic])
        .with_timeout_ms(timeout_ms)
}

/// A batch of one record for each value, their times counting up from `timestamp`, of no idempotent producer.
pub fn batch(values: &[&str], timestamp: i64) -> anyhow::Result<Bytes> {
    let nobody = Producer {
        id: NO_PRODUCER_ID,
        epoch: NO_PRODUCER_EPOCH,
    };
    batch_of(nobody, NO_SEQUENCE, values, timestamp)
}

/// An idempotent producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Producer {
    pub id: i64,
    pub epoch: i16,
}

/// The same of an idempotent producer, its sequence numbers counting up from `sequence`.
pub fn batch_of(producer: Producer, sequence: i32, values: &[&str], timestamp: i64) -> anyhow::Result<Bytes> {
    let records = (0i32..).zip(values).map(|(i, value)| Record {
        transactional: false,
        control: false,
        delete_horizon: false,
        partition_leader_epoch: NO_PARTITION_LEADER_EPOCH,
        producer_id: producer.id,
        producer_epoch: producer.epoch,
        timestamp_type: TimestampType::Creation,
        offset: i64::from(i),
        // Counting up even from "none": the encoder takes anything else for a new batch.
        sequence: sequence + i,
        timestamp: timestamp + i64::from(i),
        key: None,
        value: Some(Bytes::from((*value).to_owned())),
        headers: Default::default(),
    });
    let options = RecordEncodeOptions {
        version: 2,
        compression: Compression::None,
    };
    let mut out = BytesMut::new();
    RecordBatchEncoder::encode(&mut out, &records.collect::<Vec<_>>(), &options)?;
    Ok(out.freeze())
}
