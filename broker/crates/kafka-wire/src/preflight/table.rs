//! Kafka's request schemas as far as lengths go, for every API in [`crate::versions::SUPPORTED`].
//!
//! Source: the message definitions of Apache Kafka 4.1 as generated into `kafka-protocol` 0.18.0. The tests of
//! this module produce bodies by these tables and have the protocol crate decode and encode them again, so a row
//! that differs from the crate fails.

use kafka_protocol::messages::{self as m, ApiKey};

use super::{Field, Kind, Schema};

const NEWEST: i16 = i16::MAX;
/// No version is flexible.
const NEVER: i16 = i16::MAX;

const BOOL: Kind = Kind::Fixed(1);
const I8: Kind = Kind::Fixed(1);
const I16: Kind = Kind::Fixed(2);
const I32: Kind = Kind::Fixed(4);
const I64: Kind = Kind::Fixed(8);
const UUID: Kind = Kind::Fixed(16);
const STRING: Kind = Kind::String;

const fn between(min: i16, max: i16, kind: Kind) -> Field {
    Field {
        versions: min..=max,
        kind,
        tag: None,
    }
}

const fn from(min: i16, kind: Kind) -> Field {
    between(min, NEWEST, kind)
}

const fn to(max: i16, kind: Kind) -> Field {
    between(0, max, kind)
}

const fn all(kind: Kind) -> Field {
    between(0, NEWEST, kind)
}

const fn tagged(tag: u32, min: i16, kind: Kind) -> Field {
    Field {
        versions: min..=NEWEST,
        kind,
        tag: Some(tag),
    }
}

/// An array of elements that decode to `T`.
const fn array<T>(element: &'static Kind) -> Kind {
    Kind::Array {
        element,
        size: size_of::<T>(),
    }
}

const fn strings<T>() -> Kind {
    array::<T>(&Kind::String)
}

const fn ints() -> Kind {
    array::<i32>(&Kind::Fixed(4))
}

const fn schema(key: ApiKey, flexible: i16, fields: &'static [Field]) -> Schema {
    Schema {
        key,
        flexible,
        fields,
    }
}

pub(super) static SCHEMAS: &[Schema] = &[
    schema(ApiKey::Produce, 9, PRODUCE),
    schema(ApiKey::Fetch, 12, FETCH),
    schema(ApiKey::ListOffsets, 6, LIST_OFFSETS),
    schema(ApiKey::Metadata, 9, METADATA),
    schema(ApiKey::OffsetCommit, 8, OFFSET_COMMIT),
    schema(ApiKey::OffsetFetch, 6, OFFSET_FETCH),
    schema(ApiKey::FindCoordinator, 3, FIND_COORDINATOR),
    schema(ApiKey::JoinGroup, 6, JOIN_GROUP),
    schema(ApiKey::Heartbeat, 4, HEARTBEAT),
    schema(ApiKey::LeaveGroup, 4, LEAVE_GROUP),
    schema(ApiKey::SyncGroup, 4, SYNC_GROUP),
    schema(ApiKey::DescribeGroups, 5, DESCRIBE_GROUPS),
    schema(ApiKey::ListGroups, 3, LIST_GROUPS),
    schema(ApiKey::ApiVersions, 3, API_VERSIONS),
    schema(ApiKey::CreateTopics, 5, CREATE_TOPICS),
    schema(ApiKey::DeleteTopics, 4, DELETE_TOPICS),
    schema(ApiKey::DeleteRecords, 2, DELETE_RECORDS),
    schema(ApiKey::InitProducerId, 2, INIT_PRODUCER_ID),
    schema(ApiKey::OffsetForLeaderEpoch, 4, OFFSET_FOR_LEADER_EPOCH),
    schema(ApiKey::DescribeConfigs, 4, DESCRIBE_CONFIGS),
    schema(ApiKey::CreatePartitions, 2, CREATE_PARTITIONS),
    schema(ApiKey::DeleteGroups, 2, DELETE_GROUPS),
    schema(ApiKey::IncrementalAlterConfigs, 1, INCREMENTAL_ALTER_CONFIGS),
    schema(ApiKey::DescribeCluster, 0, DESCRIBE_CLUSTER),
    schema(ApiKey::UpdateFeatures, 0, UPDATE_FEATURES),
    schema(ApiKey::AlterConfigs, 2, ALTER_CONFIGS),
    schema(ApiKey::DescribeLogDirs, 2, DESCRIBE_LOG_DIRS),
    schema(ApiKey::ElectLeaders, 2, ELECT_LEADERS),
    schema(ApiKey::AlterPartitionReassignments, 0, ALTER_REASSIGNMENTS),
    schema(ApiKey::ListPartitionReassignments, 0, LIST_REASSIGNMENTS),
    schema(ApiKey::OffsetDelete, NEVER, OFFSET_DELETE),
    schema(ApiKey::DescribeProducers, 0, DESCRIBE_PRODUCERS),
    schema(ApiKey::ListConfigResources, 0, LIST_CONFIG_RESOURCES),
    schema(ApiKey::DescribeTopicPartitions, 0, DESCRIBE_TOPIC_PARTITIONS),
];

static PRODUCE: &[Field] = &[
    all(STRING), // transactional id
    all(I16),    // acks
    all(I32),    // timeout
    all(array::<m::produce_request::TopicProduceData>(&PRODUCE_TOPIC)),
];
static PRODUCE_TOPIC: Kind = Kind::Struct(&[
    to(12, STRING),
    from(13, UUID),
    all(array::<m::produce_request::PartitionProduceData>(
        &PRODUCE_PARTITION,
    )),
]);
static PRODUCE_PARTITION: Kind = Kind::Struct(&[all(I32), all(Kind::Bytes)]);

static FETCH: &[Field] = &[
    tagged(0, 12, STRING), // cluster id
    to(14, I32),           // replica id
    tagged(1, 15, Kind::Struct(&[all(I32), all(I64)])),
    all(I32),     // max wait
    all(I32),     // min bytes
    all(I32),     // max bytes
    all(I8),      // isolation level
    from(7, I32), // session id
    from(7, I32), // session epoch
    all(array::<m::fetch_request::FetchTopic>(&FETCH_TOPIC)),
    from(7, array::<m::fetch_request::ForgottenTopic>(&FORGOTTEN_TOPIC)),
    from(11, STRING), // rack
];
static FETCH_TOPIC: Kind = Kind::Struct(&[
    to(12, STRING),
    from(13, UUID),
    all(array::<m::fetch_request::FetchPartition>(&FETCH_PARTITION)),
]);
static FETCH_PARTITION: Kind = Kind::Struct(&[
    all(I32),
    from(9, I32),  // current leader epoch
    all(I64),      // fetch offset
    from(12, I32), // last fetched epoch
    from(5, I64),  // log start offset
    all(I32),      // max bytes
    tagged(0, 17, UUID),
    tagged(1, 18, I64),
]);
static FORGOTTEN_TOPIC: Kind = Kind::Struct(&[to(12, STRING), from(13, UUID), all(ints())]);

static LIST_OFFSETS: &[Field] = &[
    all(I32),    // replica id
    from(2, I8), // isolation level
    all(array::<m::list_offsets_request::ListOffsetsTopic>(
        &LIST_OFFSETS_TOPIC,
    )),
    from(10, I32), // timeout
];
static LIST_OFFSETS_TOPIC: Kind = Kind::Struct(&[
    all(STRING),
    all(array::<m::list_offsets_request::ListOffsetsPartition>(
        &LIST_OFFSETS_PARTITION,
    )),
]);
static LIST_OFFSETS_PARTITION: Kind = Kind::Struct(&[all(I32), from(4, I32), all(I64)]);

static METADATA: &[Field] = &[
    all(array::<m::metadata_request::MetadataRequestTopic>(
        &METADATA_TOPIC,
    )),
    from(4, BOOL),        // allow auto topic creation
    between(8, 10, BOOL), // include cluster authorized operations
    from(8, BOOL),        // include topic authorized operations
];
static METADATA_TOPIC: Kind = Kind::Struct(&[from(10, UUID), all(STRING)]);

static OFFSET_COMMIT: &[Field] = &[
    all(STRING),     // group
    all(I32),        // generation
    all(STRING),     // member
    from(7, STRING), // group instance
    to(4, I64),      // retention time
    all(array::<m::offset_commit_request::OffsetCommitRequestTopic>(
        &OFFSET_COMMIT_TOPIC,
    )),
];
static OFFSET_COMMIT_TOPIC: Kind = Kind::Struct(&[
    all(STRING),
    all(array::<m::offset_commit_request::OffsetCommitRequestPartition>(
        &OFFSET_COMMIT_PARTITION,
    )),
]);
static OFFSET_COMMIT_PARTITION: Kind = Kind::Struct(&[all(I32), all(I64), from(6, I32), all(STRING)]);

static OFFSET_FETCH: &[Field] = &[
    to(7, STRING), // group
    to(
        7,
        array::<m::offset_fetch_request::OffsetFetchRequestTopic>(&OFFSET_FETCH_TOPIC),
    ),
    from(
        8,
        array::<m::offset_fetch_request::OffsetFetchRequestGroup>(&OFFSET_FETCH_GROUP),
    ),
    from(7, BOOL), // require stable
];
static OFFSET_FETCH_TOPIC: Kind = Kind::Struct(&[all(STRING), all(ints())]);
static OFFSET_FETCH_GROUP: Kind = Kind::Struct(&[
    all(STRING),     // group
    from(9, STRING), // member
    from(9, I32),    // member epoch
    all(array::<m::offset_fetch_request::OffsetFetchRequestTopics>(
        &OFFSET_FETCH_TOPIC,
    )),
]);

static FIND_COORDINATOR: &[Field] = &[to(3, STRING), from(1, I8), from(4, strings::<m::GroupId>())];

static JOIN_GROUP: &[Field] = &[
    all(STRING),     // group
    all(I32),        // session timeout
    from(1, I32),    // rebalance timeout
    all(STRING),     // member
    from(5, STRING), // group instance
    all(STRING),     // protocol type
    all(array::<m::join_group_request::JoinGroupRequestProtocol>(
        &NAMED_BYTES,
    )),
    from(8, STRING), // reason
];
static NAMED_BYTES: Kind = Kind::Struct(&[all(STRING), all(Kind::Bytes)]);

static HEARTBEAT: &[Field] = &[all(STRING), all(I32), all(STRING), from(3, STRING)];

static LEAVE_GROUP: &[Field] = &[
    all(STRING),
    to(2, STRING),
    from(
        3,
        array::<m::leave_group_request::MemberIdentity>(&LEAVING_MEMBER),
    ),
];
static LEAVING_MEMBER: Kind = Kind::Struct(&[all(STRING), all(STRING), from(5, STRING)]);

static SYNC_GROUP: &[Field] = &[
    all(STRING),     // group
    all(I32),        // generation
    all(STRING),     // member
    from(3, STRING), // group instance
    from(5, STRING), // protocol type
    from(5, STRING), // protocol name
    all(array::<m::sync_group_request::SyncGroupRequestAssignment>(
        &NAMED_BYTES,
    )),
];

static DESCRIBE_GROUPS: &[Field] = &[all(strings::<m::GroupId>()), from(3, BOOL)];

static LIST_GROUPS: &[Field] = &[from(4, strings::<m::GroupId>()), from(5, strings::<m::GroupId>())];

static API_VERSIONS: &[Field] = &[from(3, STRING), from(3, STRING)];

static CREATE_TOPICS: &[Field] = &[
    all(array::<m::create_topics_request::CreatableTopic>(
        &CREATABLE_TOPIC,
    )),
    all(I32),  // timeout
    all(BOOL), // validate only
];
static CREATABLE_TOPIC: Kind = Kind::Struct(&[
    all(STRING),
    all(I32), // partitions
    all(I16), // replication factor
    all(array::<m::create_topics_request::CreatableReplicaAssignment>(
        &REPLICA_ASSIGNMENT,
    )),
    all(array::<m::create_topics_request::CreatableTopicConfig>(
        &TOPIC_CONFIG,
    )),
]);
static REPLICA_ASSIGNMENT: Kind = Kind::Struct(&[all(I32), all(ints())]);
static TOPIC_CONFIG: Kind = Kind::Struct(&[all(STRING), all(STRING)]);

static DELETE_TOPICS: &[Field] = &[
    from(
        6,
        array::<m::delete_topics_request::DeleteTopicState>(&DELETE_TOPIC),
    ),
    to(5, strings::<m::TopicName>()),
    all(I32), // timeout
];
static DELETE_TOPIC: Kind = Kind::Struct(&[all(STRING), all(UUID)]);

static DELETE_RECORDS: &[Field] = &[
    all(array::<m::delete_records_request::DeleteRecordsTopic>(
        &DELETE_RECORDS_TOPIC,
    )),
    all(I32), // timeout
];
static DELETE_RECORDS_TOPIC: Kind = Kind::Struct(&[
    all(STRING),
    all(array::<m::delete_records_request::DeleteRecordsPartition>(
        &DELETE_RECORDS_PARTITION,
    )),
]);
static DELETE_RECORDS_PARTITION: Kind = Kind::Struct(&[all(I32), all(I64)]);

static INIT_PRODUCER_ID: &[Field] = &[
    all(STRING),  // transactional id
    all(I32),     // transaction timeout
    from(3, I64), // producer id
    from(3, I16), // producer epoch
];

static OFFSET_FOR_LEADER_EPOCH: &[Field] = &[
    from(3, I32), // replica id
    all(array::<m::offset_for_leader_epoch_request::OffsetForLeaderTopic>(
        &LEADER_EPOCH_TOPIC,
    )),
];
static LEADER_EPOCH_TOPIC: Kind = Kind::Struct(&[
    all(STRING),
    all(array::<
        m::offset_for_leader_epoch_request::OffsetForLeaderPartition,
    >(&LEADER_EPOCH_PARTITION)),
]);
static LEADER_EPOCH_PARTITION: Kind = Kind::Struct(&[all(I32), all(I32), all(I32)]);

static DESCRIBE_CONFIGS: &[Field] = &[
    all(array::<m::describe_configs_request::DescribeConfigsResource>(
        &DESCRIBE_RESOURCE,
    )),
    all(BOOL),     // include synonyms
    from(3, BOOL), // include documentation
];
static DESCRIBE_RESOURCE: Kind = Kind::Struct(&[all(I8), all(STRING), all(strings::<m::TopicName>())]);

static CREATE_PARTITIONS: &[Field] = &[
    all(array::<m::create_partitions_request::CreatePartitionsTopic>(
        &PARTITIONS_TOPIC,
    )),
    all(I32),  // timeout
    all(BOOL), // validate only
];
static PARTITIONS_TOPIC: Kind = Kind::Struct(&[
    all(STRING),
    all(I32), // count
    all(array::<m::create_partitions_request::CreatePartitionsAssignment>(
        &PARTITION_ASSIGNMENT,
    )),
]);
static PARTITION_ASSIGNMENT: Kind = Kind::Struct(&[all(ints())]);

static DELETE_GROUPS: &[Field] = &[all(strings::<m::GroupId>())];

static INCREMENTAL_ALTER_CONFIGS: &[Field] = &[
    all(array::<m::incremental_alter_configs_request::AlterConfigsResource>(&ALTER_RESOURCE)),
    all(BOOL), // validate only
];
static ALTER_RESOURCE: Kind = Kind::Struct(&[
    all(I8),
    all(STRING),
    all(array::<m::incremental_alter_configs_request::AlterableConfig>(
        &ALTERABLE_CONFIG,
    )),
]);
static ALTERABLE_CONFIG: Kind = Kind::Struct(&[all(STRING), all(I8), all(STRING)]);

static DESCRIBE_CLUSTER: &[Field] = &[all(BOOL), from(1, I8), from(2, BOOL)];

static UPDATE_FEATURES: &[Field] = &[
    all(I32), // timeout
    all(array::<m::update_features_request::FeatureUpdateKey>(
        &FEATURE_UPDATE,
    )),
    from(1, BOOL), // validate only
];
static FEATURE_UPDATE: Kind = Kind::Struct(&[
    all(STRING),
    all(I16),    // level
    to(0, BOOL), // allow downgrade
    from(1, I8), // upgrade type
]);

static ALTER_CONFIGS: &[Field] = &[
    all(array::<m::alter_configs_request::AlterConfigsResource>(
        &REPLACE_RESOURCE,
    )),
    all(BOOL), // validate only
];
static REPLACE_RESOURCE: Kind = Kind::Struct(&[
    all(I8),
    all(STRING),
    all(array::<m::alter_configs_request::AlterableConfig>(&TOPIC_CONFIG)),
]);

/// A topic's name and numbers of partitions: what most requests of administrators are made of.
static TOPIC_PARTITIONS: Kind = Kind::Struct(&[all(STRING), all(ints())]);

static DESCRIBE_LOG_DIRS: &[Field] = &[all(
    array::<m::describe_log_dirs_request::DescribableLogDirTopic>(&TOPIC_PARTITIONS),
)];

static ELECT_LEADERS: &[Field] = &[
    from(1, I8), // election type
    all(array::<m::elect_leaders_request::TopicPartitions>(
        &TOPIC_PARTITIONS,
    )),
    all(I32), // timeout
];

static ALTER_REASSIGNMENTS: &[Field] = &[
    all(I32),      // timeout
    from(1, BOOL), // allow another replication factor
    all(array::<m::alter_partition_reassignments_request::ReassignableTopic>(&REASSIGNED_TOPIC)),
];
static REASSIGNED_TOPIC: Kind = Kind::Struct(&[
    all(STRING),
    all(array::<
        m::alter_partition_reassignments_request::ReassignablePartition,
    >(&REASSIGNED_PARTITION)),
]);
static REASSIGNED_PARTITION: Kind = Kind::Struct(&[all(I32), all(ints())]);

static LIST_REASSIGNMENTS: &[Field] = &[
    all(I32), // timeout
    all(array::<
        m::list_partition_reassignments_request::ListPartitionReassignmentsTopics,
    >(&TOPIC_PARTITIONS)),
];

static OFFSET_DELETE: &[Field] = &[
    all(STRING), // group
    all(array::<m::offset_delete_request::OffsetDeleteRequestTopic>(
        &OFFSET_DELETE_TOPIC,
    )),
];
static OFFSET_DELETE_TOPIC: Kind = Kind::Struct(&[
    all(STRING),
    all(array::<m::offset_delete_request::OffsetDeleteRequestPartition>(
        &OFFSET_DELETE_PARTITION,
    )),
]);
static OFFSET_DELETE_PARTITION: Kind = Kind::Struct(&[all(I32)]);

static DESCRIBE_PRODUCERS: &[Field] = &[all(array::<m::describe_producers_request::TopicRequest>(
    &TOPIC_PARTITIONS,
))];

static LIST_CONFIG_RESOURCES: &[Field] = &[from(1, array::<i8>(&Kind::Fixed(1)))];

static DESCRIBE_TOPIC_PARTITIONS: &[Field] = &[
    all(array::<m::describe_topic_partitions_request::TopicRequest>(
        &DESCRIBED_TOPIC,
    )),
    all(I32), // limit
    all(Kind::NullableStruct(&[all(STRING), all(I32)])),
];
static DESCRIBED_TOPIC: Kind = Kind::Struct(&[all(STRING)]);
