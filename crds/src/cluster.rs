//! `DisklessCluster`: the brokers and coordinators over one prefix of one bucket.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Toleration;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::common::{Condition, LocalReference, Resources};

/// A Kafka cluster whose records live in an object store: brokers in every zone that any client may use, and
/// coordinators that give records their order.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Deserialize, Serialize)]
#[kube(
    group = "diskless.dev",
    version = "v1alpha1",
    kind = "DisklessCluster",
    namespaced,
    status = "DisklessClusterStatus",
    derive = "PartialEq",
    shortname = "dkc",
    category = "diskless",
    doc = "A Kafka cluster whose records live in an object store.",
    scale(
        spec_replicas_path = ".spec.brokers.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(
        name = "Brokers",
        type_ = "integer",
        json_path = ".status.readyReplicas",
        description = "Brokers that serve clients."
    ),
    printcolumn(
        name = "Desired",
        type_ = "integer",
        json_path = ".spec.brokers.replicas",
        description = "Brokers asked for."
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Bootstrap", type_ = "string", json_path = ".status.bootstrap", priority = 1),
    printcolumn(name = "Zones", type_ = "string", json_path = ".spec.brokers.zones", priority = 1),
    printcolumn(name = "Image", type_ = "string", json_path = ".status.image", priority = 1),
    printcolumn(
        name = "Level",
        type_ = "integer",
        json_path = ".status.featureLevel",
        priority = 1,
        description = "Finalised level of diskless.version."
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = 1
    ),
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$')")
        .message("metadata.name must have at most 40 characters, begin with a letter, and hold only lower-case letters, digits and '-', as it becomes part of the names of Services")
        .reason(Reason::FieldValueInvalid),
    validation = Rule::new("self.spec.brokers.zones.all(z, size(self.metadata.name) + size(z.name) <= 51)")
        .message("metadata.name and the name of each of spec.brokers.zones together must have at most 51 characters, as they become the names of StatefulSets")
        .reason(Reason::FieldValueInvalid),
    // Not a comparison with the old value: one that was too high must be taken back, and one that is overtaken by
    // another tool must not keep the status from being written.
    validation = Rule::new(
        "!has(self.spec.featureLevel) \
         || (has(oldSelf.spec.featureLevel) && self.spec.featureLevel == oldSelf.spec.featureLevel) \
         || !has(self.status) || !has(self.status.featureLevel) || self.spec.featureLevel >= self.status.featureLevel",
    )
    .message("spec.featureLevel must not be below status.featureLevel: a finalised level is never lowered, as only nodes of that level can read what is written by then")
    .field_path(".spec.featureLevel")
    .reason(Reason::FieldValueForbidden)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.metadataLog) == has(oldSelf.metadataLog)")
    .message("spec.metadataLog cannot be set or removed later: what was acknowledged is in the log as it is")
    .field_path(".metadataLog")
    .reason(Reason::FieldValueForbidden))]
pub struct DisklessClusterSpec {
    /// Container image of brokers and coordinators. Without it the operator's own default is used, which moves
    /// with the operator's version.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image: Option<String>,

    /// Level of the feature `diskless.version` to finalise: what nodes may write. It is raised to this number once every
    /// pod runs as specified, and from then on images that do not support it have no place in the cluster; until then an
    /// upgrade can be undone by setting `spec.image` back. Without it nothing is raised, and the condition
    /// `FeatureLevelFinalized` says when there is a higher level. A new cluster begins with the highest level of its image.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 32767))]
    pub feature_level: Option<i32>,

    /// Settings of the whole cluster, under Kafka's names. One that is not set here has its default.
    #[serde(default, skip_serializing_if = "ClusterConfig::is_empty")]
    pub config: ClusterConfig,

    /// The brokers.
    pub brokers: Brokers,

    /// The coordinators.
    #[serde(default)]
    pub coordinators: Coordinators,

    /// Where records and metadata are kept.
    pub object_store: ObjectStore,

    /// Where the log of the metadata is kept, if not in the object store. It cannot be set or removed later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata_log: Option<MetadataLog>,
}

/// Settings of the whole cluster, under Kafka's names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct ClusterConfig {
    /// Partitions of a topic that is created without a number, by a request or automatically; 1 without it. A change
    /// replaces the coordinators one by one.
    #[serde(rename = "num.partitions", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub num_partitions: Option<i32>,
}

impl ClusterConfig {
    /// Whether every setting has its default.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The brokers: stateless, any of them takes any request.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Brokers {
    /// Brokers over all zones together, spread evenly, the first zones taking what is left over. This is what
    /// `kubectl scale` and autoscalers set.
    #[serde(default = "three")]
    #[schemars(range(min = 1, max = 1000))]
    pub replicas: i32,

    /// Zones to run brokers in. Zones can be added at the end; they cannot be removed or put into another
    /// order, as a zone's place decides the port that its clients use and the ids of its brokers.
    #[schemars(length(min = 1, max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    #[x_kube(validation = Rule::new(
        "oldSelf.all(i, zone, i < size(self) && self[i].name == zone.name)",
    )
    .message("spec.brokers.zones must keep its zones in their order; zones can only be added at the end")
    .reason(Reason::FieldValueForbidden))]
    pub zones: Vec<Zone>,

    /// Resources of each broker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
}

/// A zone: what nodes call `topology.kubernetes.io/zone`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Zone {
    /// Name of the zone: the value of the label `topology.kubernetes.io/zone` of its nodes. It becomes part of
    /// the names of the zone's objects.
    #[schemars(length(min = 1, max = 32), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    #[x_kube(validation = Rule::new("!(self in ['bootstrap', 'brokers', 'coordinator', 'coordinators'])")
        .message("name of a zone must not be bootstrap, brokers, coordinator or coordinators: other objects of the cluster have these names")
        .reason(Reason::FieldValueInvalid))]
    pub name: String,
}

/// The coordinators: they give records their offsets and hold groups, topics and producer state, all of which
/// is in the object store before it is answered.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Coordinators {
    /// Coordinators. With one, commits pause while it is replaced.
    #[serde(default = "two")]
    #[schemars(range(min = 1, max = 100))]
    pub replicas: i32,

    /// Partitions of the cluster's metadata: each is one ordered log that one coordinator leads, so this bounds
    /// how many coordinators share the work. It can grow and never shrinks. What is added takes new partitions of topics only:
    /// nothing that exists moves, and consumer groups stay on the partitions that the cluster was formed with.
    #[serde(default = "three")]
    #[schemars(range(min = 1, max = 100))]
    #[x_kube(validation = Rule::new("self >= oldSelf")
        .message("spec.coordinators.metadataPartitions can grow but not shrink")
        .reason(Reason::FieldValueForbidden))]
    pub metadata_partitions: i32,

    /// Where coordinators run.
    #[serde(default)]
    pub placement: Placement,

    /// Resources of each coordinator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
}

impl Default for Coordinators {
    fn default() -> Self {
        Self {
            replicas: two(),
            metadata_partitions: three(),
            placement: Placement::default(),
            resources: None,
        }
    }
}

/// Where coordinators run. In either case they are spread over nodes and zones as far as there are enough.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.type != 'Dedicated' || (has(self.nodeSelector) && size(self.nodeSelector) > 0)")
        .message("placement.nodeSelector must name the nodes of the pool when placement.type is Dedicated")
        .field_path(".nodeSelector")
        .reason(Reason::FieldValueRequired),
    validation = Rule::new("self.type != 'Colocated' || !has(self.nodeSelector)")
        .message("placement.nodeSelector can only be set when placement.type is Dedicated")
        .field_path(".nodeSelector")
        .reason(Reason::FieldValueForbidden),
    validation = Rule::new("self.type != 'Colocated' || !has(self.tolerations)")
        .message("placement.tolerations can only be set when placement.type is Dedicated")
        .field_path(".tolerations")
        .reason(Reason::FieldValueForbidden)
)]
pub struct Placement {
    /// `Colocated`: on any node, beside brokers. `Dedicated`: only on the nodes of a pool.
    #[serde(rename = "type", default)]
    pub type_: PlacementType,

    /// Labels of the pool's nodes. For `Dedicated`, which needs it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "node_selector")]
    pub node_selector: BTreeMap<String, String>,

    /// Taints of the pool's nodes that coordinators bear. For `Dedicated`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "tolerations")]
    pub tolerations: Vec<Toleration>,
}

/// Whether coordinators have nodes of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum PlacementType {
    /// On any node, beside brokers.
    #[default]
    Colocated,
    /// On the nodes of a pool.
    Dedicated,
}

/// Where records and metadata are kept, and what opens it. The kind of store is the name of the member that is
/// set: `s3` is the one of this version.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectStore {
    /// A bucket of Amazon S3 or of a store that speaks its protocol and creates objects conditionally
    /// (`If-None-Match: *`).
    pub s3: S3,

    /// What opens the store. Without it brokers use what their environment gives them, such as the role of their
    /// node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials: Option<Credentials>,
}

/// A prefix of a bucket.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct S3 {
    /// Name of the bucket, which must exist. It cannot be changed.
    #[schemars(length(min = 3, max = 63), regex(pattern = "^[a-z0-9][a-z0-9.-]*[a-z0-9]$"))]
    #[x_kube(validation = Rule::new("self == oldSelf")
        .message("spec.objectStore.s3.bucket cannot be changed: the records are in this bucket")
        .reason(Reason::FieldValueForbidden))]
    pub bucket: String,

    /// Prefix of the keys of all objects of the cluster, without slashes at its ends; empty is the whole bucket.
    /// No two clusters may share one. It cannot be changed.
    #[serde(default)]
    #[schemars(
        length(max = 256),
        regex(pattern = "^([A-Za-z0-9_][A-Za-z0-9._=-]*(/[A-Za-z0-9_][A-Za-z0-9._=-]*)*)?$")
    )]
    #[x_kube(validation = Rule::new("self == oldSelf")
        .message("spec.objectStore.s3.prefix cannot be changed: the records are under this prefix")
        .reason(Reason::FieldValueForbidden))]
    pub prefix: String,

    /// Region of the bucket, such as `eu-central-1`.
    #[schemars(length(min = 1, max = 64), regex(pattern = "^[a-z0-9-]+$"))]
    pub region: String,

    /// URL of the store, such as `https://minio.example.org:9000`. Without it: Amazon S3 of the region.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    #[x_kube(validation = Rule::new(
        "isURL(self) && url(self).getScheme() in ['http', 'https'] && url(self).getHost() != '' \
         && url(self).getEscapedPath() in ['', '/'] && size(url(self).getQuery()) == 0 \
         && !self.contains('@') && !self.contains('?') && !self.contains('#')",
    )
    .message("spec.objectStore.s3.endpoint must be an http or https URL of a host, without user, path or query")
    .reason(Reason::FieldValueInvalid))]
    pub endpoint: Option<String>,

    /// Puts the bucket into the path of requests instead of the name of the host; most stores other than Amazon S3
    /// need it.
    #[serde(default)]
    pub path_style: bool,
}

/// What opens the object store. The kind of credentials is the name of the member that is set: `secretRef` is the
/// one of this version.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Credentials {
    /// A Secret with the keys `access_key_id` and `secret_access_key`. A change of the Secret takes effect without
    /// a restart.
    pub secret_ref: LocalReference,
}

/// Where the log of the metadata is kept. The kind is the name of the member that is set: `postgres` is the one of this
/// version.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MetadataLog {
    /// A PostgreSQL database: commits take a millisecond instead of a request to the object store, and are as durable as
    /// the database is.
    pub postgres: Postgres,
}

/// A PostgreSQL database, which several clusters may share.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Postgres {
    /// A Secret with the keys `url` (`postgres://user@host[:port][,host…]/database`, without a password) and `password`. A
    /// change of `password` takes effect without a restart, a change of `url` when a pod is restarted.
    pub secret_ref: LocalReference,

    /// A Secret with the key `ca.crt`: the authorities, in PEM, that sign the database's certificate. Without it those
    /// count that the image knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_secret_ref: Option<LocalReference>,
}

/// What the operator knows of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DisklessClusterStatus {
    /// Generation of the object that this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// What holds for the cluster. `Ready` sums it up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::common::conditions")]
    pub conditions: Vec<Condition>,

    /// Id of the cluster as Kafka's clients see it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,

    /// Image that brokers and coordinators run or are being moved to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,

    /// Finalised level of the feature `diskless.version`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub feature_level: Option<i32>,

    /// Levels of `diskless.version` that the running image supports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub supported_feature_levels: Option<FeatureLevels>,

    /// `host:port` for clients anywhere in the Kubernetes cluster; brokers take a client's zone to be their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<String>,

    /// Broker pods that exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,

    /// Broker pods that are ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,

    /// Label selector of the broker pods, for autoscalers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,

    /// The zones, in the order of `spec.brokers.zones`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 8),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub zones: Vec<ZoneStatus>,
}

/// A range of levels of a feature.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct FeatureLevels {
    /// The lowest.
    pub min: i32,
    /// The highest.
    pub max: i32,
}

/// The brokers of one zone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ZoneStatus {
    /// Name of the zone.
    pub name: String,
    /// `host:port` for clients in this zone: metadata then leads them to brokers of their own zone.
    pub bootstrap: String,
    /// Broker pods that exist.
    pub replicas: i32,
    /// Broker pods that are ready.
    pub ready_replicas: i32,
}

fn two() -> i32 {
    2
}

fn three() -> i32 {
    3
}

fn node_selector(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "maxProperties": 16,
        "additionalProperties": {"type": "string", "maxLength": 63}
    })
}

fn tolerations(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let toleration = generator.subschema_for::<Toleration>();
    schemars::json_schema!({
        "type": "array",
        "maxItems": 16,
        "x-kubernetes-list-type": "atomic",
        "items": toleration
    })
}
