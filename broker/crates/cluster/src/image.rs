//! What every node knows of the cluster: an immutable picture, replaced as a whole when something changes.
#![allow(missing_docs, reason = "fields say what they are; what needs words has them")]

use std::collections::BTreeMap;
use std::sync::Arc;

use kafka_wire::flex_struct;
use types::{FastMap, FeatureLevel, NodeId, ShardId, TopicId};

flex_struct! {
    /// The picture as it travels from the controller to the nodes.
    pub struct ImageRecord {
        /// Grows with every change under one controller; compare only together with `controller_epoch`.
        pub version: u64,
        /// Epoch of the cluster log's leader that made the picture.
        pub controller_epoch: u64,
        /// As Metadata shows it.
        pub cluster_id: String,
        /// Node id of the controller.
        pub controller: NodeId,
        /// `host:port` of the controller's internal listener.
        pub controller_address: String,
        /// The live brokers.
        pub brokers: Vec<Broker>,
        /// All topics.
        pub topics: Vec<Topic>,
        /// By shard id.
        pub shards: Vec<Shard>,
        /// Groups are spread over the first shards; fixed when the cluster was formed, so that a group never moves.
        pub group_shards: u32,
        tagged {
            /// The finalised level of `diskless.version`; missing: 1.
            0 => pub feature_level: Option<FeatureLevel>,
        }
    }
}

impl ImageRecord {
    /// The finalised level of `diskless.version`.
    pub fn feature_level(&self) -> FeatureLevel {
        self.feature_level.unwrap_or_default()
    }
}

flex_struct! {
    /// A live broker, as clients and other nodes reach it.
    pub struct Broker {
        /// Node id.
        pub id: NodeId,
        /// Where it runs.
        pub zone: String,
        /// Host that clients connect to.
        pub host: String,
        /// Port for clients of unknown zone.
        pub port: u16,
        /// Port for clients of each zone; the port a client came in through tells its zone.
        pub zone_ports: Vec<ZonePort>,
        /// `host:port` of the internal listener.
        pub internal: String,
        /// About to leave: clients are no longer sent to it.
        pub draining: bool,
    }
}

flex_struct! {
    pub struct ZonePort {
        /// Name of the zone.
        pub zone: String,
        /// Port for clients of the zone.
        pub port: u16,
    }
}

flex_struct! {
    pub struct Topic {
        /// Never used again.
        pub id: TopicId,
        /// Unique among the topics that exist.
        pub name: String,
        /// Shard of each partition, by partition index.
        pub partitions: Vec<ShardId>,
        /// What was set on the topic itself; defaults are not in it.
        pub configs: Vec<Config>,
    }
}

flex_struct! {
    pub struct Config {
        /// As in Kafka.
        pub name: String,
        /// As text.
        pub value: String,
    }
}

flex_struct! {
    /// A partition of `__diskless_metadata` and who leads it.
    pub struct Shard {
        /// Partition of `__diskless_metadata`.
        pub id: ShardId,
        /// -1: nobody right now.
        pub leader: NodeId,
        /// `host:port` of the leader's internal listener; empty without a leader.
        pub address: String,
        /// `host:port` of a follower whose view is up to date: it finds batches, too. Empty without one.
        pub follower: String,
    }
}

/// [`ImageRecord`] with its look-ups.
#[derive(Clone, Debug)]
pub struct MetadataImage {
    record: Arc<ImageRecord>,
    by_name: BTreeMap<String, usize>,
    by_id: FastMap<TopicId, usize>,
}

impl MetadataImage {
    /// Builds the look-ups.
    pub fn new(record: ImageRecord) -> MetadataImage {
        let by_name = record
            .topics
            .iter()
            .enumerate()
            .map(|(i, t)| (t.name.clone(), i))
            .collect();
        let by_id = record.topics.iter().enumerate().map(|(i, t)| (t.id, i)).collect();
        MetadataImage {
            record: Arc::new(record),
            by_name,
            by_id,
        }
    }

    /// The picture itself.
    pub fn record(&self) -> &ImageRecord {
        &self.record
    }

    /// Topic by name.
    pub fn topic(&self, name: &str) -> Option<&Topic> {
        self.record.topics.get(*self.by_name.get(name)?)
    }

    /// Topic by id.
    pub fn topic_by_id(&self, id: TopicId) -> Option<&Topic> {
        self.record.topics.get(*self.by_id.get(&id)?)
    }

    /// A shard by id.
    pub fn shard(&self, id: ShardId) -> Option<&Shard> {
        self.record.shards.iter().find(|shard| shard.id == id)
    }

    /// The shard that keeps a group: its members, generation and offsets.
    pub fn group_shard(&self, group: &str) -> ShardId {
        // FNV-1a: part of the stored layout, must never change.
        let hash = group.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        });
        ShardId(hash % self.record.group_shards.max(1))
    }

    /// A live broker by id.
    pub fn broker(&self, id: NodeId) -> Option<&Broker> {
        self.record.brokers.iter().find(|broker| broker.id == id)
    }
}

impl Topic {
    /// The value set on the topic, if any.
    pub fn config(&self, name: &str) -> Option<&str> {
        self.configs
            .iter()
            .find(|config| config.name == name)
            .map(|config| config.value.as_str())
    }
}
