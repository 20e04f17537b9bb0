//! `DisklessTopic`: one topic of a cluster.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::common::{Condition, LocalReference};

/// A topic of a diskless cluster.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Deserialize, Serialize)]
#[kube(
    group = "diskless.dev",
    version = "v1alpha1",
    kind = "DisklessTopic",
    namespaced,
    status = "DisklessTopicStatus",
    derive = "PartialEq",
    shortname = "dkt",
    category = "diskless",
    doc = "A topic of a DisklessCluster of the same namespace.",
    printcolumn(name = "Cluster", type_ = "string", json_path = ".spec.clusterRef.name"),
    printcolumn(name = "Partitions", type_ = "integer", json_path = ".spec.partitions"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Topic", type_ = "string", json_path = ".status.topicName", priority = 1),
    printcolumn(name = "TopicId", type_ = "string", json_path = ".status.topicId", priority = 1),
    printcolumn(name = "Deletion", type_ = "string", json_path = ".spec.deletionPolicy", priority = 1),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = 1
    ),
    validation = Rule::new("has(self.spec.topicName) || size(self.metadata.name) <= 249")
        .message("metadata.name must have at most 249 characters, as Kafka's topic names do, unless spec.topicName is set")
        .reason(Reason::FieldValueInvalid)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new(
    "has(self.topicName) == has(oldSelf.topicName) && (!has(self.topicName) || self.topicName == oldSelf.topicName)",
)
.message("spec.topicName cannot be changed, set or removed later: the topic exists under its name")
.field_path(".topicName")
.reason(Reason::FieldValueForbidden))]
pub struct DisklessTopicSpec {
    /// The DisklessCluster, of the same namespace, that the topic belongs to. It cannot be changed.
    #[x_kube(validation = Rule::new("self == oldSelf")
        .message("spec.clusterRef cannot be changed: a topic stays in its cluster")
        .reason(Reason::FieldValueForbidden))]
    pub cluster_ref: LocalReference,

    /// Name of the topic in Kafka, where `metadata.name` cannot say it (capitals, `_`). It cannot be changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 249), regex(pattern = "^[A-Za-z0-9._-]+$"))]
    #[x_kube(validation = Rule::new("self != '.' && self != '..' && !self.startsWith('__')")
        .message("spec.topicName must not be '.' or '..' nor begin with '__', which is kept for internal topics")
        .reason(Reason::FieldValueInvalid))]
    pub topic_name: Option<String>,

    /// Partitions of the topic. They can be added and never removed.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 10000))]
    #[x_kube(validation = Rule::new("self >= oldSelf")
        .message("spec.partitions can grow but not shrink: Kafka cannot remove partitions")
        .reason(Reason::FieldValueForbidden))]
    pub partitions: i32,

    /// Settings of the topic. One that is not set here has the brokers' default, whatever other tools set.
    #[serde(default, skip_serializing_if = "TopicConfig::is_empty")]
    pub config: TopicConfig,

    /// What becomes of the topic and its records when this object is deleted.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
}

/// Settings of a topic, under Kafka's names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct TopicConfig {
    /// How old records are dropped: `delete`, after the retention of the topic.
    #[serde(rename = "cleanup.policy", skip_serializing_if = "Option::is_none")]
    pub cleanup_policy: Option<CleanupPolicy>,

    /// Which compression brokers keep batches in: `producer`, as the producer sent them.
    #[serde(rename = "compression.type", skip_serializing_if = "Option::is_none")]
    pub compression_type: Option<CompressionType>,

    /// Largest record batch that is taken, in bytes.
    #[serde(rename = "max.message.bytes", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub max_message_bytes: Option<i32>,

    /// Whose clock a record's timestamp is of: `CreateTime`, the producer's, or `LogAppendTime`, the cluster's.
    #[serde(rename = "message.timestamp.type", skip_serializing_if = "Option::is_none")]
    pub message_timestamp_type: Option<TimestampType>,

    /// Bytes of a partition that are kept at least before the oldest are dropped; -1 is no limit.
    #[serde(rename = "retention.bytes", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1))]
    pub retention_bytes: Option<i64>,

    /// Milliseconds that records are kept at least before they are dropped; -1 is no limit.
    #[serde(rename = "retention.ms", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1))]
    pub retention_ms: Option<i64>,
}

impl TopicConfig {
    /// Whether every setting has the brokers' default.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The settings as Kafka's admin protocol takes them, by name.
    pub fn entries(&self) -> BTreeMap<&'static str, String> {
        let entries = [
            (
                "cleanup.policy",
                self.cleanup_policy
                    .map(|CleanupPolicy::Delete| "delete".to_owned()),
            ),
            (
                "compression.type",
                self.compression_type
                    .map(|CompressionType::Producer| "producer".to_owned()),
            ),
            ("max.message.bytes", self.max_message_bytes.map(|v| v.to_string())),
            (
                "message.timestamp.type",
                self.message_timestamp_type.map(|v| {
                    match v {
                        TimestampType::CreateTime => "CreateTime",
                        TimestampType::LogAppendTime => "LogAppendTime",
                    }
                    .to_owned()
                }),
            ),
            ("retention.bytes", self.retention_bytes.map(|v| v.to_string())),
            ("retention.ms", self.retention_ms.map(|v| v.to_string())),
        ];
        entries
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .collect()
    }
}

/// How old records are dropped: `delete`, after the retention of the topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum CleanupPolicy {
    /// Records are dropped when they are older or more than retention says.
    #[serde(rename = "delete")]
    Delete,
}

/// Which compression brokers keep batches in: `producer`, as the producer sent them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum CompressionType {
    /// Batches are kept as the producer sent them.
    #[serde(rename = "producer")]
    Producer,
}

/// Whose clock a record's timestamp is of: `CreateTime`, the producer's, or `LogAppendTime`, the cluster's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum TimestampType {
    /// The producer's clock.
    CreateTime,
    /// The cluster's clock.
    LogAppendTime,
}

/// What becomes of a topic when its object is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum DeletionPolicy {
    /// The topic and its records stay.
    #[default]
    Retain,
    /// The topic and its records are deleted.
    Delete,
}

/// What the operator knows of a topic.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DisklessTopicStatus {
    /// Generation of the object that this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// What holds for the topic. `Ready` sums it up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::common::conditions")]
    pub conditions: Vec<Condition>,

    /// Name of the topic in Kafka.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic_name: Option<String>,

    /// Id of the topic in Kafka. A topic that is created anew has another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic_id: Option<String>,

    /// Partitions that the topic has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partitions: Option<i32>,
}

fn one() -> i32 {
    1
}
