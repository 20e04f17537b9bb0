//! Requests by the few things that a case cares about.

use bytes::Bytes;
use e2e::wire::{text, topic_name};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    BrokerId, FetchRequest, GroupId, JoinGroupRequest, OffsetCommitRequest, OffsetFetchRequest,
    ProduceRequest, TopicName,
};
use uuid::Uuid;

use super::side::Topic;

/// First versions that name topics by id.
const PRODUCE_IDS: i16 = 13;
const FETCH_IDS: i16 = 13;

/// Partitions of one topic, with their records.
pub fn produce_to(
    version: i16,
    topic: &Topic,
    partitions: impl IntoIterator<Item = (i32, Option<Bytes>)>,
) -> TopicProduceData {
    let partitions = partitions.into_iter().map(|(index, records)| {
        PartitionProduceData::default()
            .with_index(index)
            .with_records(records)
    });
    let data = TopicProduceData::default().with_partition_data(partitions.collect());
    if version >= PRODUCE_IDS {
        data.with_topic_id(topic.id)
    } else {
        data.with_name(TopicName(topic.name.clone()))
    }
}

pub fn produce_all(acks: i16, topics: Vec<TopicProduceData>) -> ProduceRequest {
    ProduceRequest::default()
        .with_transactional_id(None)
        .with_acks(acks)
        .with_timeout_ms(30_000)
        .with_topic_data(topics)
}

/// Records for partition 0.
pub fn produce(version: i16, topic: &Topic, records: Bytes) -> ProduceRequest {
    produce_all(-1, vec![produce_to(version, topic, [(0, Some(records))])])
}

/// A topic that is nowhere.
pub fn nowhere() -> Topic {
    Topic {
        name: text("nowhere"),
        id: Uuid::from_u128(0x1234_5678_9abc_def0_1234_5678_9abc_def0),
    }
}

pub fn fetch_partition(index: i32, offset: i64) -> FetchPartition {
    FetchPartition::default()
        .with_partition(index)
        .with_fetch_offset(offset)
        .with_partition_max_bytes(1 << 20)
}

pub fn fetch_topic(version: i16, topic: &Topic, partitions: Vec<FetchPartition>) -> FetchTopic {
    let asked = FetchTopic::default().with_partitions(partitions);
    if version >= FETCH_IDS {
        asked.with_topic_id(topic.id)
    } else {
        asked.with_topic(TopicName(topic.name.clone()))
    }
}

/// What a consumer without a session asks, not waiting for anything.
pub fn fetch_all(topics: Vec<FetchTopic>) -> FetchRequest {
    FetchRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_max_wait_ms(0)
        .with_min_bytes(1)
        .with_max_bytes(50 << 20)
        .with_topics(topics)
}

/// Partition 0 from an offset on.
pub fn fetch(version: i16, topic: &Topic, offset: i64) -> FetchRequest {
    fetch_all(vec![fetch_topic(
        version,
        topic,
        vec![fetch_partition(0, offset)],
    )])
}

/// A first request to join, or one with the id that the answer to it has told.
pub fn join(version: i16, group: &str, member: &str, instance: Option<&str>) -> JoinGroupRequest {
    let protocol = JoinGroupRequestProtocol::default()
        .with_name(text("range"))
        .with_metadata(Bytes::from_static(b"\0\0\0\0\0\0\0\0\0\0"));
    let request = JoinGroupRequest::default()
        .with_group_id(GroupId(text(group)))
        .with_session_timeout_ms(45_000)
        .with_member_id(text(member))
        .with_group_instance_id(instance.map(text))
        .with_protocol_type(text("consumer"))
        .with_protocols(vec![protocol]);
    if version >= 1 {
        request.with_rebalance_timeout_ms(60_000)
    } else {
        request
    }
}

/// Offsets of partitions of a topic, each committed as its index plus 10.
pub fn offset_commit(
    group: &str,
    member: &str,
    generation: i32,
    topics: &[(&str, &[i32])],
) -> OffsetCommitRequest {
    let topics = topics.iter().map(|(topic, partitions)| {
        let partitions = partitions.iter().map(|index| {
            OffsetCommitRequestPartition::default()
                .with_partition_index(*index)
                .with_committed_offset(i64::from(*index) + 10)
                .with_committed_metadata(Some(text("noted")))
        });
        OffsetCommitRequestTopic::default()
            .with_name(topic_name(topic))
            .with_partitions(partitions.collect())
    });
    OffsetCommitRequest::default()
        .with_group_id(GroupId(text(group)))
        .with_member_id(text(member))
        .with_generation_id_or_member_epoch(generation)
        .with_topics(topics.collect())
}

/// Up to version 7; no topics: all.
pub fn offset_fetch(group: &str, topics: Option<&[(&str, &[i32])]>) -> OffsetFetchRequest {
    let topics = topics.map(|topics| {
        let topic = |(name, partitions): &(&str, &[i32])| {
            OffsetFetchRequestTopic::default()
                .with_name(topic_name(name))
                .with_partition_indexes(partitions.to_vec())
        };
        topics.iter().map(topic).collect()
    });
    OffsetFetchRequest::default()
        .with_group_id(GroupId(text(group)))
        .with_topics(topics)
}
