//! The few Kafka messages that the operator sends and reads, in their oldest flexible version or a little later.
//!
//! Written with the bounded codec of `kafka-wire`: whatever answers behind a Service name cannot make the operator
//! reserve memory. Source of the layouts: the message definitions of Apache Kafka.

use bytes::{Buf, BytesMut};
use kafka_wire::flex::{Bytes, Decode, Encode, get_uvarint, put_uvarint, take};
use kafka_wire::{DecodeError, flex_struct};
use uuid::Uuid;

/// A compact nullable string.
#[derive(Debug, Clone, PartialEq)]
pub struct NullableString(pub Option<String>);

impl Encode for NullableString {
    fn encode(&self, out: &mut BytesMut) {
        match &self.0 {
            None => put_uvarint(out, 0),
            Some(value) => value.encode(out),
        }
    }
}

impl Decode for NullableString {
    const MIN_SIZE: usize = 1;

    fn decode(input: &mut Bytes) -> Result<Self, DecodeError> {
        let Some(len) = get_uvarint(input)?.checked_sub(1) else {
            return Ok(Self(None));
        };
        let bytes = take(input, len as usize)?;
        let text = std::str::from_utf8(&bytes).map_err(|_| DecodeError::Utf8)?;
        Ok(Self(Some(text.to_owned())))
    }
}

/// A compact nullable array.
#[derive(Debug, Clone, PartialEq)]
pub struct NullableArray<T>(pub Option<Vec<T>>);

impl<T: Encode> Encode for NullableArray<T> {
    fn encode(&self, out: &mut BytesMut) {
        match &self.0 {
            None => put_uvarint(out, 0),
            Some(values) => values.encode(out),
        }
    }
}

impl<T: Decode> Decode for NullableArray<T> {
    const MIN_SIZE: usize = 1;

    fn decode(input: &mut Bytes) -> Result<Self, DecodeError> {
        if input.first() == Some(&0) {
            input.advance(1);
            return Ok(Self(None));
        }
        Ok(Self(Some(Vec::decode(input)?)))
    }
}

/// A request the operator sends.
pub trait Request: Encode {
    /// API key.
    const API_KEY: i16;
    /// Version; always a flexible one.
    const VERSION: i16;
    /// Name in metrics and errors.
    const NAME: &'static str;
    /// Whether the header of the response has tags; one does not.
    const TAGGED_RESPONSE_HEADER: bool = true;
    /// What comes back.
    type Response: Decode;
}

macro_rules! request {
    ($request:ty => $response:ty, $key:literal v $version:literal, $name:literal) => {
        impl Request for $request {
            const API_KEY: i16 = $key;
            const VERSION: i16 = $version;
            const NAME: &'static str = $name;
            type Response = $response;
        }
    };
}

request!(MetadataRequest => MetadataResponse, 3 v 12, "Metadata");
request!(CreateTopicsRequest => CreateTopicsResponse, 19 v 7, "CreateTopics");
request!(DeleteTopicsRequest => DeleteTopicsResponse, 20 v 6, "DeleteTopics");
request!(DescribeConfigsRequest => DescribeConfigsResponse, 32 v 4, "DescribeConfigs");
request!(CreatePartitionsRequest => CreatePartitionsResponse, 37 v 3, "CreatePartitions");
request!(IncrementalAlterConfigsRequest => IncrementalAlterConfigsResponse, 44 v 1, "IncrementalAlterConfigs");

flex_struct! {
    /// Metadata of some topics.
    pub struct MetadataRequest {
        /// Topics asked for.
        pub topics: NullableArray<MetadataRequestTopic>,
        /// Never true here.
        pub allow_auto_topic_creation: bool,
        /// Never true here.
        pub include_topic_authorized_operations: bool,
    }
}

flex_struct! {
    /// A topic asked for by name (nil id) or by id (null name).
    pub struct MetadataRequestTopic {
        /// Topic id.
        pub topic_id: Uuid,
        /// Topic name.
        pub name: NullableString,
    }
}

flex_struct! {
    /// Answer to Metadata.
    pub struct MetadataResponse {
        /// Throttle time, ms.
        pub throttle_time_ms: i32,
        /// Live brokers.
        pub brokers: Vec<MetadataBroker>,
        /// Cluster id.
        pub cluster_id: NullableString,
        /// Controller.
        pub controller_id: i32,
        /// Topics asked for.
        pub topics: Vec<MetadataTopic>,
    }
}

flex_struct! {
    /// A live broker.
    pub struct MetadataBroker {
        /// Node id.
        pub node_id: i32,
        /// Host.
        pub host: String,
        /// Port.
        pub port: i32,
        /// Zone.
        pub rack: NullableString,
    }
}

flex_struct! {
    /// A topic.
    pub struct MetadataTopic {
        /// Error.
        pub error_code: i16,
        /// Name.
        pub name: NullableString,
        /// Topic id.
        pub topic_id: Uuid,
        /// Internal topics are not for users.
        pub is_internal: bool,
        /// Partitions.
        pub partitions: Vec<MetadataPartition>,
        /// Not asked for.
        pub topic_authorized_operations: i32,
    }
}

flex_struct! {
    /// A partition.
    pub struct MetadataPartition {
        /// Error.
        pub error_code: i16,
        /// Index.
        pub partition_index: i32,
        /// Leader.
        pub leader_id: i32,
        /// Leader epoch.
        pub leader_epoch: i32,
        /// Replicas.
        pub replica_nodes: Vec<i32>,
        /// In-sync replicas.
        pub isr_nodes: Vec<i32>,
        /// Offline replicas.
        pub offline_replicas: Vec<i32>,
    }
}

flex_struct! {
    /// CreateTopics.
    pub struct CreateTopicsRequest {
        /// New topics.
        pub topics: Vec<NewTopic>,
        /// Time to wait, ms.
        pub timeout_ms: i32,
        /// Dry run.
        pub validate_only: bool,
    }
}

flex_struct! {
    /// A new topic.
    pub struct NewTopic {
        /// Name.
        pub name: String,
        /// Partitions.
        pub num_partitions: i32,
        /// -1: the broker's default, the only meaningful value where data is in an object store.
        pub replication_factor: i16,
        /// Always empty.
        pub assignments: Vec<ReplicaAssignment>,
        /// Configs that differ from the default.
        pub configs: Vec<NewTopicConfig>,
    }
}

flex_struct! {
    /// Manual assignment; never sent.
    pub struct ReplicaAssignment {
        /// Partition.
        pub partition_index: i32,
        /// Brokers.
        pub broker_ids: Vec<i32>,
    }
}

flex_struct! {
    /// A config of a new topic.
    pub struct NewTopicConfig {
        /// Key.
        pub name: String,
        /// Value.
        pub value: NullableString,
    }
}

flex_struct! {
    /// Answer to CreateTopics.
    pub struct CreateTopicsResponse {
        /// Throttle time, ms.
        pub throttle_time_ms: i32,
        /// By topic.
        pub topics: Vec<CreatedTopic>,
    }
}

flex_struct! {
    /// A topic that was, or was not, created.
    pub struct CreatedTopic {
        /// Name.
        pub name: String,
        /// Its new id.
        pub topic_id: Uuid,
        /// Error.
        pub error_code: i16,
        /// In words.
        pub error_message: NullableString,
        /// Partitions.
        pub num_partitions: i32,
        /// Replicas.
        pub replication_factor: i16,
        /// Configs as they are now.
        pub configs: NullableArray<CreatedTopicConfig>,
    }
}

flex_struct! {
    /// A config of a created topic.
    pub struct CreatedTopicConfig {
        /// Key.
        pub name: String,
        /// Value.
        pub value: NullableString,
        /// Read only.
        pub read_only: bool,
        /// Source.
        pub config_source: i8,
        /// Secret.
        pub is_sensitive: bool,
    }
}

flex_struct! {
    /// CreatePartitions.
    pub struct CreatePartitionsRequest {
        /// Topics to grow.
        pub topics: Vec<GrownTopic>,
        /// Time to wait, ms.
        pub timeout_ms: i32,
        /// Dry run.
        pub validate_only: bool,
    }
}

flex_struct! {
    /// A topic to grow.
    pub struct GrownTopic {
        /// Name.
        pub name: String,
        /// New total.
        pub count: i32,
        /// Always null.
        pub assignments: NullableArray<PartitionAssignment>,
    }
}

flex_struct! {
    /// Manual assignment; never sent.
    pub struct PartitionAssignment {
        /// Brokers.
        pub broker_ids: Vec<i32>,
    }
}

flex_struct! {
    /// Answer to CreatePartitions.
    pub struct CreatePartitionsResponse {
        /// Throttle time, ms.
        pub throttle_time_ms: i32,
        /// By topic.
        pub results: Vec<NamedResult>,
    }
}

flex_struct! {
    /// How one topic fared.
    pub struct NamedResult {
        /// Name.
        pub name: String,
        /// Error.
        pub error_code: i16,
        /// In words.
        pub error_message: NullableString,
    }
}

flex_struct! {
    /// DeleteTopics.
    pub struct DeleteTopicsRequest {
        /// By id, so that a topic of the same name made since is safe.
        pub topics: Vec<TopicToDelete>,
        /// Time to wait, ms.
        pub timeout_ms: i32,
    }
}

flex_struct! {
    /// A topic to delete (null name: by id).
    pub struct TopicToDelete {
        /// Name.
        pub name: NullableString,
        /// Topic id.
        pub topic_id: Uuid,
    }
}

flex_struct! {
    /// Answer to DeleteTopics.
    pub struct DeleteTopicsResponse {
        /// Throttle time, ms.
        pub throttle_time_ms: i32,
        /// By topic.
        pub responses: Vec<DeletedTopic>,
    }
}

flex_struct! {
    /// A topic that was, or was not, deleted.
    pub struct DeletedTopic {
        /// Name.
        pub name: NullableString,
        /// Topic id.
        pub topic_id: Uuid,
        /// Error.
        pub error_code: i16,
        /// In words.
        pub error_message: NullableString,
    }
}

flex_struct! {
    /// DescribeConfigs.
    pub struct DescribeConfigsRequest {
        /// Resources asked for.
        pub resources: Vec<DescribedResource>,
        /// Never true here.
        pub include_synonyms: bool,
        /// Never true here.
        pub include_documentation: bool,
    }
}

flex_struct! {
    /// A resource asked for.
    pub struct DescribedResource {
        /// 2 = topic.
        pub resource_type: i8,
        /// Name.
        pub resource_name: String,
        /// Null: all keys.
        pub configuration_keys: NullableArray<String>,
    }
}

flex_struct! {
    /// Answer to DescribeConfigs.
    pub struct DescribeConfigsResponse {
        /// Throttle time, ms.
        pub throttle_time_ms: i32,
        /// By resource.
        pub results: Vec<ResourceConfigs>,
    }
}

flex_struct! {
    /// Configs of one resource.
    pub struct ResourceConfigs {
        /// Error.
        pub error_code: i16,
        /// In words.
        pub error_message: NullableString,
        /// 2 = topic.
        pub resource_type: i8,
        /// Name.
        pub resource_name: String,
        /// Configs.
        pub configs: Vec<ConfigEntry>,
    }
}

flex_struct! {
    /// One config.
    pub struct ConfigEntry {
        /// Key.
        pub name: String,
        /// Value.
        pub value: NullableString,
        /// Read only.
        pub read_only: bool,
        /// 1 = set on the topic, 5 = default.
        pub config_source: i8,
        /// Secret.
        pub is_sensitive: bool,
        /// Not asked for.
        pub synonyms: Vec<ConfigSynonym>,
        /// Type of the value.
        pub config_type: i8,
        /// Not asked for.
        pub documentation: NullableString,
    }
}

flex_struct! {
    /// Another place where a config may be set.
    pub struct ConfigSynonym {
        /// Key.
        pub name: String,
        /// Value.
        pub value: NullableString,
        /// Source.
        pub source: i8,
    }
}

flex_struct! {
    /// IncrementalAlterConfigs.
    pub struct IncrementalAlterConfigsRequest {
        /// Resources to alter.
        pub resources: Vec<AlteredResource>,
        /// Dry run.
        pub validate_only: bool,
    }
}

flex_struct! {
    /// A resource to alter.
    pub struct AlteredResource {
        /// 2 = topic.
        pub resource_type: i8,
        /// Name.
        pub resource_name: String,
        /// Changes.
        pub configs: Vec<AlteredConfig>,
    }
}

flex_struct! {
    /// One change.
    pub struct AlteredConfig {
        /// Key.
        pub name: String,
        /// 0 = set, 1 = back to the default.
        pub config_operation: i8,
        /// Value; null when back to the default.
        pub value: NullableString,
    }
}

flex_struct! {
    /// Answer to IncrementalAlterConfigs.
    pub struct IncrementalAlterConfigsResponse {
        /// Throttle time, ms.
        pub throttle_time_ms: i32,
        /// By resource.
        pub responses: Vec<ResourceResult>,
    }
}

flex_struct! {
    /// How one resource fared.
    pub struct ResourceResult {
        /// Error.
        pub error_code: i16,
        /// In words.
        pub error_message: NullableString,
        /// 2 = topic.
        pub resource_type: i8,
        /// Name.
        pub resource_name: String,
    }
}
