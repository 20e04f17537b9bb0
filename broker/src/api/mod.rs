//! Kafka's APIs as clients call them, one file per API key.
//!
//! ```text
//!  frame ─▶ router ─┬─ answered here: Produce, Fetch, Metadata, …      (image, produce path, fetch path)
//!                   ├─ answered by the shards: ListOffsets, …          (Diskless RPCs)
//!                   └─ passed on: groups to their shard, topic admin   (forward: the frame as it came in)
//!                      to the controller
//! ```
//!
//! Any broker serves every request. Which broker a client is sent to is a matter of zones alone ([`steering`]).

mod alter_configs;
mod alter_partition_reassignments;
mod api_versions;
mod call;
mod create_partitions;
mod create_topics;
mod delete_groups;
mod delete_records;
mod delete_topics;
mod describe_cluster;
mod describe_configs;
mod describe_groups;
mod describe_log_dirs;
mod describe_producers;
mod describe_topic_partitions;
mod elect_leaders;
mod fetch;
mod find_coordinator;
mod forward;
mod heartbeat;
mod incremental_alter_configs;
mod init_producer_id;
mod join_group;
mod leave_group;
mod list_config_resources;
mod list_groups;
mod list_offsets;
mod list_partition_reassignments;
mod metadata;
mod offset_commit;
mod offset_delete;
mod offset_fetch;
mod offset_for_leader_epoch;
mod produce;
mod router;
mod shards;
mod steering;
mod sync_group;
mod topics;
mod update_features;

use std::sync::Arc;

use env::{Env, Instant};
use tokio_util::sync::CancellationToken;
use types::{FeatureLevels, NodeId, Timestamp};

use crate::fetch::{Fetcher, Sessions};
use crate::metadata::Metadata;
use crate::metrics::Metrics;
use crate::produce::{Producer, Readers};
use crate::rpc::Coordinators;

pub use init_producer_id::ProducerIds;

use topics::TopicConfigs;

/// Everything the APIs are answered with.
pub struct Services {
    /// The outside world.
    pub env: Env,
    /// This broker.
    pub node: NodeId,
    /// Its zone.
    pub zone: String,
    /// `broker.auto_create_topics`
    pub auto_create_topics: bool,
    /// Levels of `diskless.version` that this broker supports.
    pub supported: FeatureLevels,
    /// The cluster.
    pub metadata: Metadata,
    /// The way to the shards and the controller.
    pub coordinators: Coordinators,
    /// The produce path.
    pub producer: Producer,
    /// The fetch path.
    pub fetcher: Fetcher,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Cancelled when the broker is to leave: clients are sent elsewhere and nobody waits any longer.
    pub draining: CancellationToken,
}

/// The APIs of a broker: the [`crate::net::Handler`] of its connections.
#[derive(Clone)]
pub struct Api {
    services: Arc<Services>,
    configs: Arc<TopicConfigs>,
    producer_ids: Arc<ProducerIds>,
    sessions: Arc<Sessions>,
    readers: Arc<Readers>,
}

impl std::ops::Deref for Api {
    type Target = Services;

    fn deref(&self) -> &Services {
        &self.services
    }
}

impl Api {
    /// Answers with `services`.
    pub fn new(services: Services) -> Api {
        Api {
            readers: Arc::new(Readers::new(services.env.clone())),
            services: Arc::new(services),
            configs: Arc::default(),
            producer_ids: Arc::default(),
            sessions: Arc::default(),
        }
    }

    /// In `ms` milliseconds (negative: at once).
    fn deadline(&self, ms: i64) -> Instant {
        self.env.instant() + std::time::Duration::from_millis(u64::try_from(ms).unwrap_or(0))
    }

    fn now(&self) -> Timestamp {
        self.env.now()
    }
}

#[cfg(test)]
mod tests;
