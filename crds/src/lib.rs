//! The Kubernetes API of the project: [`DisklessCluster`] and [`DisklessTopic`], group `diskless.dev`,
//! version `v1alpha1`.
//!
//! The Rust types are the only source. `cargo xtask generate` turns them into `crds/generated/*.yaml`, the
//! chart's CRDs and `docs/api.md`; tests fail when those are stale. What a user may not write is refused by
//! the API server, from the structural schema and the CEL rules on the types, so neither webhook nor
//! conversion is needed. Rules for a field live on that field:
//!
//! - every field of `spec` has an effect; a field that this version does not honour does not exist;
//! - what never changes by itself is defaulted in the schema, what a controller finds out is in `status`;
//! - `status` holds nothing that changes while nothing happens (no ages, offsets, rates).

mod cluster;
mod common;
mod definition;
mod topic;

pub use cluster::{
    Brokers, ClusterConfig, Coordinators, Credentials, DisklessCluster, DisklessClusterSpec,
    DisklessClusterStatus, FeatureLevels, MetadataLog, ObjectStore, Placement, PlacementType, Postgres, S3,
    Zone, ZoneStatus,
};
pub use common::{Condition, LocalReference, ResourceList, Resources};
pub use definition::{Error, all, definition_yaml, to_yaml};
pub use topic::{
    CleanupPolicy, CompressionType, DeletionPolicy, DisklessTopic, DisklessTopicSpec, DisklessTopicStatus,
    TimestampType, TopicConfig,
};

/// The API group of all kinds.
pub const GROUP: &str = "diskless.dev";
/// The API version of all kinds.
pub const VERSION: &str = "v1alpha1";
