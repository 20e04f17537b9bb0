//! The requests of the workload, and what matters in their answers.

use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    BrokerId, CreatePartitionsRequest, CreateTopicsRequest, DeleteRecordsRequest, DeleteTopicsRequest,
    FetchRequest, InitProducerIdRequest, ListOffsetsRequest, MetadataRequest, ProduceRequest,
};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

use crate::client::{Batch, Client, Failure, ProducerId, Read, decode_batches, encode_batch, topic_name};

/// How long a broker may take for a produce request, ms: the least that it takes.
const PRODUCE_TIMEOUT: i32 = 5_000;
const ADMIN_TIMEOUT: i32 = 5_000;

/// A partition to fetch, and from where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position {
    pub(crate) topic: Uuid,
    pub(crate) partition: i32,
    pub(crate) offset: i64,
}

/// What a Fetch says of one partition.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) topic: Uuid,
    pub(crate) partition: i32,
    pub(crate) error: i16,
    pub(crate) high_watermark: i64,
    pub(crate) log_start: i64,
    pub(crate) records: Vec<Read>,
    pub(crate) batches: usize,
    pub(crate) bytes: usize,
    /// What was served is not what was produced.
    pub(crate) corrupt: Option<String>,
}

/// How much a Fetch may give of each partition, bytes.
pub(crate) const PLENTY: i32 = 1 << 20;

/// The codes by which brokers may ask a client to try again, by API: those that every client of Kafka takes for that. Where a client
/// of Kafka would give up, or tell its user, a broker has no business to answer so while nothing is wrong with the request.
pub(crate) mod codes {
    /// OFFSET_OUT_OF_RANGE
    pub(crate) const OUT_OF_RANGE: i16 = 1;
    /// UNKNOWN_TOPIC_OR_PARTITION: a broker that has not heard of a new one yet.
    pub(crate) const UNKNOWN_TOPIC: i16 = 3;
    /// NOT_LEADER_OR_FOLLOWER
    pub(crate) const NOT_LEADER: i16 = 6;
    /// REQUEST_TIMED_OUT: what became of it is not known.
    pub(crate) const TIMED_OUT: i16 = 7;
    /// OUT_OF_ORDER_SEQUENCE_NUMBER
    pub(crate) const OUT_OF_ORDER: i16 = 45;
    /// INVALID_PRODUCER_EPOCH
    pub(crate) const FENCED: i16 = 47;

    const LEADER_NOT_AVAILABLE: i16 = 5;
    const LOAD_IN_PROGRESS: i16 = 14;
    const COORDINATOR_NOT_AVAILABLE: i16 = 15;
    const NOT_COORDINATOR: i16 = 16;
    const NOT_CONTROLLER: i16 = 41;
    const STORAGE_ERROR: i16 = 56;
    const UNKNOWN_TOPIC_ID: i16 = 100;

    pub(crate) const PRODUCE: &[i16] = &[UNKNOWN_TOPIC, NOT_LEADER, TIMED_OUT, STORAGE_ERROR];
    /// Of one partition. None but these is retried: CORRUPT_MESSAGE, for one, ends a consumer.
    pub(crate) const FETCH: &[i16] = &[UNKNOWN_TOPIC, NOT_LEADER, STORAGE_ERROR, UNKNOWN_TOPIC_ID];
    pub(crate) const LIST_OFFSETS: &[i16] = &[UNKNOWN_TOPIC, NOT_LEADER, STORAGE_ERROR];
    pub(crate) const METADATA: &[i16] = &[LEADER_NOT_AVAILABLE];
    /// Of what the controller does.
    pub(crate) const ADMIN: &[i16] = &[TIMED_OUT, NOT_CONTROLLER];
    pub(crate) const DELETE_RECORDS: &[i16] = &[UNKNOWN_TOPIC, NOT_LEADER, TIMED_OUT];
    /// JoinGroup, OffsetCommit, InitProducerId
    pub(crate) const COORDINATOR: &[i16] = &[LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR];
    /// Members that are told to wait here give up.
    pub(crate) const MEMBER: &[i16] = &[COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR];
    /// COORDINATOR_NOT_AVAILABLE ends some clients.
    pub(crate) const OFFSET_FETCH: &[i16] = &[LOAD_IN_PROGRESS, NOT_COORDINATOR];
}

/// What the answer to a producer says of a batch that is stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored {
    pub(crate) base_offset: i64,
    /// ms; -1: the records keep their own times.
    pub(crate) log_append_time: i64,
    pub(crate) log_start: i64,
}

pub(crate) fn missing() -> Failure {
    "an answer without what was asked for".to_owned()
}

/// Version of Produce that is spoken.
const PRODUCE: i16 = 8;

fn produce_requests(
    topic: &str,
    partition: i32,
    producer: ProducerId,
    batches: &[Batch],
) -> Result<Vec<ProduceRequest>, Failure> {
    let request = |batch: &Batch| {
        let data = PartitionProduceData::default()
            .with_index(partition)
            .with_records(Some(encode_batch(producer, *batch)?));
        let topic = TopicProduceData::default()
            .with_name(topic_name(topic))
            .with_partition_data(vec![data]);
        Ok(ProduceRequest::default()
            .with_transactional_id(None)
            .with_acks(-1)
            .with_timeout_ms(PRODUCE_TIMEOUT)
            .with_topic_data(vec![topic]))
    };
    batches.iter().map(request).collect()
}

impl Client {
    /// The id of a topic and its number of partitions; `None`: there is none.
    pub(crate) async fn describe(&mut self, topic: &str) -> Result<Option<(Uuid, i32)>, Failure> {
        let wanted = MetadataRequestTopic::default().with_name(Some(topic_name(topic)));
        let request = MetadataRequest::default()
            .with_topics(Some(vec![wanted]))
            .with_allow_auto_topic_creation(false);
        let response = self.call(&request, 12).await?;
        let topic = response.topics.first().ok_or_else(missing)?;
        match topic.error_code {
            0 => Ok(Some((
                topic.topic_id,
                i32::try_from(topic.partitions.len()).unwrap_or(0),
            ))),
            3 => Ok(None),
            code => Err(self.refused("Metadata", code, codes::METADATA)),
        }
    }

    /// Creates a topic; one that is there is fine.
    pub(crate) async fn create(
        &mut self,
        name: &str,
        partitions: i32,
        configs: &[(&str, &str)],
    ) -> Result<(), Failure> {
        let text = |text: &str| StrBytes::from_string(text.to_owned());
        let configs = configs.iter().map(|(key, value)| {
            CreatableTopicConfig::default()
                .with_name(text(key))
                .with_value(Some(text(value)))
        });
        let topic = CreatableTopic::default()
            .with_name(topic_name(name))
            .with_num_partitions(partitions)
            .with_replication_factor(-1)
            .with_configs(configs.collect());
        let request = CreateTopicsRequest::default()
            .with_topics(vec![topic])
            .with_timeout_ms(ADMIN_TIMEOUT);
        let response = self.call(&request, 5).await?;
        match response.topics.first().ok_or_else(missing)?.error_code {
            0 | 36 => Ok(()),
            code => Err(self.refused("CreateTopics", code, codes::ADMIN)),
        }
    }

    /// Deletes a topic; one that is not there is fine.
    pub(crate) async fn delete(&mut self, name: &str) -> Result<(), Failure> {
        let request = DeleteTopicsRequest::default()
            .with_topic_names(vec![topic_name(name)])
            .with_timeout_ms(ADMIN_TIMEOUT);
        let response = self.call(&request, 4).await?;
        match response.responses.first().ok_or_else(missing)?.error_code {
            0 | 3 => Ok(()),
            code => Err(self.refused("DeleteTopics", code, codes::ADMIN)),
        }
    }

    /// Gives a topic more partitions; it may have them already.
    pub(crate) async fn grow(&mut self, name: &str, partitions: i32) -> Result<(), Failure> {
        let topic = CreatePartitionsTopic::default()
            .with_name(topic_name(name))
            .with_count(partitions)
            .with_assignments(None);
        let request = CreatePartitionsRequest::default()
            .with_topics(vec![topic])
            .with_timeout_ms(ADMIN_TIMEOUT);
        let response = self.call(&request, 3).await?;
        match response.results.first().ok_or_else(missing)?.error_code {
            // Of a request whose answer was lost, INVALID_PARTITIONS is all that is left.
            0 | 37 => Ok(()),
            code => Err(self.refused("CreatePartitions", code, codes::ADMIN)),
        }
    }

    pub(crate) async fn init_producer_id(&mut self) -> Result<ProducerId, Failure> {
        let request = InitProducerIdRequest::default()
            .with_transactional_id(None)
            .with_transaction_timeout_ms(60_000);
        let response = self.call(&request, 2).await?;
        match response.error_code {
            0 => Ok(ProducerId {
                id: response.producer_id.0,
                epoch: response.producer_epoch,
            }),
            code => Err(self.refused("InitProducerId", code, codes::COORDINATOR)),
        }
    }

    /// Produces batches of one partition, all in flight at once, one request each, with pauses of up to `gap`. For each: what is
    /// stored, or the error code, or why there is none.
    pub(crate) async fn produce(
        &mut self,
        topic: &str,
        partition: i32,
        producer: ProducerId,
        batches: &[Batch],
        gap: Duration,
    ) -> Vec<Result<Result<Stored, i16>, Failure>> {
        let requests = match produce_requests(topic, partition, producer, batches) {
            Ok(requests) => requests,
            Err(failure) => return vec![Err(failure); batches.len()],
        };
        let answers = self.pipeline(&requests, PRODUCE, gap).await.into_iter();
        let outcome = |answer: Result<kafka_protocol::messages::ProduceResponse, Failure>| {
            let answer = answer?;
            let partition = answer
                .responses
                .first()
                .and_then(|topic| topic.partition_responses.first());
            match partition {
                Some(partition) if partition.error_code == 0 => Ok(Ok(Stored {
                    base_offset: partition.base_offset,
                    log_append_time: partition.log_append_time_ms,
                    log_start: partition.log_start_offset,
                })),
                Some(partition) => Ok(Err(partition.error_code)),
                None => Err(missing()),
            }
        };
        answers.map(outcome).collect()
    }

    /// Sends the same and does not wait for the answers, or not for long.
    pub(crate) async fn produce_and_leave(
        &mut self,
        topic: &str,
        partition: i32,
        producer: ProducerId,
        batches: &[Batch],
        patience: Duration,
    ) {
        if let Ok(requests) = produce_requests(topic, partition, producer, batches) {
            self.abandon(&requests, PRODUCE, patience).await;
        }
    }

    /// Fetches from all positions at once, up to `most` bytes of each partition.
    pub(crate) async fn fetch(&mut self, positions: &[Position], most: i32) -> Result<Vec<Fetched>, Failure> {
        let mut topics: Vec<FetchTopic> = Vec::new();
        for at in positions {
            let partition = FetchPartition::default()
                .with_partition(at.partition)
                .with_fetch_offset(at.offset)
                .with_partition_max_bytes(most);
            match topics.last_mut().filter(|topic| topic.topic_id == at.topic) {
                Some(topic) => topic.partitions.push(partition),
                None => topics.push(
                    FetchTopic::default()
                        .with_topic_id(at.topic)
                        .with_partitions(vec![partition]),
                ),
            }
        }
        let request = FetchRequest::default()
            .with_replica_id(BrokerId(-1))
            .with_max_wait_ms(500)
            .with_min_bytes(1)
            .with_max_bytes(10 << 20)
            .with_session_id(0)
            .with_session_epoch(-1)
            .with_topics(topics);
        let response = self.call(&request, 13).await?;
        if response.error_code != 0 {
            return Err(self.refused("Fetch", response.error_code, &[]));
        }
        let mut found = Vec::new();
        for topic in response.responses {
            for data in topic.partitions {
                let asked = positions
                    .iter()
                    .find(|at| at.topic == topic.topic_id && at.partition == data.partition_index);
                let asked = asked.ok_or_else(missing)?;
                if ![0, codes::OUT_OF_RANGE].contains(&data.error_code) {
                    self.refused("Fetch of a partition", data.error_code, codes::FETCH);
                }
                let records = data.records.unwrap_or_else(Bytes::new);
                let bytes = records.len();
                let (records, batches, corrupt) = match decode_batches(&records, asked.offset) {
                    Ok((records, batches)) => (records, batches, None),
                    Err(failure) => (Vec::new(), 0, Some(failure)),
                };
                found.push(Fetched {
                    topic: topic.topic_id,
                    partition: data.partition_index,
                    error: data.error_code,
                    high_watermark: data.high_watermark,
                    log_start: data.log_start_offset,
                    records,
                    batches,
                    bytes,
                    corrupt,
                });
            }
        }
        Ok(found)
    }

    /// Offsets of all partitions of a topic at a timestamp (-1: end, -2: beginning).
    pub(crate) async fn offsets(
        &mut self,
        topic: &str,
        partitions: i32,
        timestamp: i64,
    ) -> Result<Vec<i64>, Failure> {
        let wanted = (0..partitions).map(|partition| {
            ListOffsetsPartition::default()
                .with_partition_index(partition)
                .with_timestamp(timestamp)
        });
        let wanted = ListOffsetsTopic::default()
            .with_name(topic_name(topic))
            .with_partitions(wanted.collect());
        let request = ListOffsetsRequest::default()
            .with_replica_id(BrokerId(-1))
            .with_topics(vec![wanted]);
        let response = self.call(&request, 4).await?;
        let answered = response.topics.first().ok_or_else(missing)?;
        let offset =
            |partition: &kafka_protocol::messages::list_offsets_response::ListOffsetsPartitionResponse| {
                match partition.error_code {
                    0 => Ok(partition.offset),
                    code => Err(self.refused("ListOffsets", code, codes::LIST_OFFSETS)),
                }
            };
        answered.partitions.iter().map(offset).collect()
    }

    /// Gives the offset below which nothing is left.
    pub(crate) async fn delete_records(
        &mut self,
        topic: &str,
        partition: i32,
        offset: i64,
    ) -> Result<i64, Failure> {
        let wanted = DeleteRecordsPartition::default()
            .with_partition_index(partition)
            .with_offset(offset);
        let topic = DeleteRecordsTopic::default()
            .with_name(topic_name(topic))
            .with_partitions(vec![wanted]);
        let request = DeleteRecordsRequest::default()
            .with_topics(vec![topic])
            .with_timeout_ms(ADMIN_TIMEOUT);
        let response = self.call(&request, 1).await?;
        let answered = response.topics.first().and_then(|topic| topic.partitions.first());
        let answered = answered.ok_or_else(missing)?;
        match answered.error_code {
            0 => Ok(answered.low_watermark),
            code => Err(self.refused("DeleteRecords", code, codes::DELETE_RECORDS)),
        }
    }
}
