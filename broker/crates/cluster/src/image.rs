//! What every node knows of the cluster: an immutable picture, replaced as a whole when something changes. Only what has changed
//! travels, and pictures share the topics that are the same in them.
#![allow(missing_docs, reason = "fields say what they are; what needs words has them")]

use std::collections::BTreeSet;
use std::sync::Arc;

use kafka_wire::flex_struct;
use types::{FeatureLevel, NodeId, ShardId, TopicId};

/// Partitions of a topic created without a number, where no setting says otherwise (Kafka's default).
pub const DEFAULT_PARTITIONS: u32 = 1;

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
        /// All topics, by id.
        pub topics: Vec<Arc<Topic>>,
        /// By shard id.
        pub shards: Vec<Shard>,
        /// Groups are spread over the first shards; fixed when the cluster was formed, so that a group never moves.
        pub group_shards: u32,
        tagged {
            /// The finalised level of `diskless.version`; missing: 1.
            0 => pub feature_level: Option<FeatureLevel>,
            /// Partitions that the controller gives to topics created without a number; missing: 1.
            1 => pub default_partitions: Option<u32>,
        }
    }
}

impl ImageRecord {
    /// A topic by id, in a picture whose topics are in order.
    pub(crate) fn topic(&self, id: TopicId) -> Option<&Arc<Topic>> {
        let found = self.topics.binary_search_by_key(&id, |topic| topic.id);
        found.ok().and_then(|at| self.topics.get(at))
    }

    /// The finalised level of `diskless.version`.
    pub fn feature_level(&self) -> FeatureLevel {
        self.feature_level.unwrap_or_default()
    }

    /// Partitions that the controller gives to topics created without a number.
    pub fn default_partitions(&self) -> u32 {
        self.default_partitions.unwrap_or(DEFAULT_PARTITIONS)
    }
}

flex_struct! {
    /// What makes the picture of a version that of a later one of the same controller.
    pub struct ImageChanges {
        /// The version that is to be changed.
        pub base: u64,
        /// The later picture; of its topics, only those that are new or differ.
        pub picture: ImageRecord,
        /// Topics that are gone.
        pub removed: Vec<TopicId>,
        /// Number of topics in the later picture.
        pub topics: u32,
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
        tagged {
            /// Brokers of its zone may ask it for objects (DisklessReadObject); missing: an earlier release, which would close
            /// the connection.
            0 => pub serves_objects: Option<bool>,
        }
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
#[derive(Debug)]
pub struct MetadataImage {
    /// With its topics by id.
    record: ImageRecord,
    by_name: Vec<Arc<Topic>>,
}

impl MetadataImage {
    /// Builds the look-ups.
    pub fn new(mut record: ImageRecord) -> MetadataImage {
        record.topics.sort_by_key(|topic| topic.id);
        let mut by_name = record.topics.clone();
        by_name.sort_by(|a, b| a.name.cmp(&b.name));
        MetadataImage { record, by_name }
    }

    /// The later picture that `changes` lead to; `None` if they are not for this one.
    pub fn changed(&self, changes: &ImageChanges) -> Option<MetadataImage> {
        let picture = &changes.picture;
        if (picture.controller_epoch, changes.base) != (self.record.controller_epoch, self.record.version) {
            return None;
        }
        let touched = picture.topics.iter().map(|topic| topic.id);
        let touched: BTreeSet<TopicId> = touched.chain(changes.removed.iter().copied()).collect();
        let merged = |before: &[Arc<Topic>]| -> Vec<Arc<Topic>> {
            let kept = before.iter().filter(|topic| !touched.contains(&topic.id));
            kept.chain(&picture.topics).cloned().collect()
        };
        // What is in order already costs a sort next to nothing.
        let mut by_name = merged(&self.by_name);
        by_name.sort_by(|a, b| a.name.cmp(&b.name));
        let mut topics = merged(&self.record.topics);
        topics.sort_by_key(|topic| topic.id);
        let record = ImageRecord {
            topics,
            ..picture.clone()
        };
        (record.topics.len() == changes.topics as usize).then_some(MetadataImage { record, by_name })
    }

    /// The picture itself.
    pub fn record(&self) -> &ImageRecord {
        &self.record
    }

    /// Topic by name.
    pub fn topic(&self, name: &str) -> Option<&Topic> {
        let found = self
            .by_name
            .binary_search_by(|topic| topic.name.as_str().cmp(name));
        found.ok().and_then(|at| self.by_name.get(at)).map(Arc::as_ref)
    }

    /// Topic by id.
    pub fn topic_by_id(&self, id: TopicId) -> Option<&Topic> {
        self.record.topic(id).map(Arc::as_ref)
    }

    /// A shard by id.
    pub fn shard(&self, id: ShardId) -> Option<&Shard> {
        self.record.shards.iter().find(|shard| shard.id == id)
    }

    /// The shard that keeps a group: its members, generation and offsets. `None`: this node has not heard of any yet, and does
    /// not know how many share the groups.
    pub fn group_shard(&self, group: &str) -> Option<ShardId> {
        // FNV-1a: part of the stored layout, must never change.
        let hash = group.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        });
        let guess = u32::from(env::mutation("guess-group-shard"));
        hash.checked_rem(self.record.group_shards.max(guess)).map(ShardId)
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
