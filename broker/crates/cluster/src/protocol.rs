//! RPCs between the nodes and the controller (the leader of the log `cluster`), on the internal listener.
#![allow(missing_docs, reason = "fields say what they are; what needs words has them")]

use kafka_wire::flex_struct;
use types::{FeatureLevel, FeatureLevels, NodeId, ShardId, TopicId};
use uuid::Uuid;

use crate::image::{ImageChanges, ImageRecord, ZonePort};

flex_struct! {
    /// "I live, this is me, this is the picture I have." Answered at once when there is something new, otherwise
    /// after `max_wait_ms`; the next one follows at once, so the controller sees a node's death by its silence.
    pub struct HeartbeatRequest {
        /// Id of the node.
        pub node: NodeId,
        /// New for every start of the process.
        pub incarnation: Uuid,
        /// Where it runs.
        pub zone: String,
        /// It serves clients.
        pub broker: bool,
        /// It leads shards.
        pub coordinator: bool,
        /// `host:port` of the internal listener.
        pub internal: String,
        /// Brokers only: see [`crate::image::Broker`].
        pub host: String,
        /// Brokers only: port for clients of unknown zone.
        pub port: u16,
        /// Brokers only: port for the clients of each zone.
        pub zone_ports: Vec<ZonePort>,
        /// The node wants to leave: brokers drop out of metadata, coordinators get their shards taken.
        pub draining: bool,
        /// The process ends now: forget it at once.
        pub leaving: bool,
        /// Coordinators only: shards this node leads and serves right now.
        pub leading: Vec<ShardId>,
        /// Coordinators only: shards this node follows with a view that is up to date.
        pub following: Vec<ShardId>,
        /// Coordinators only: shards this node was told to lead and could not open: they belong elsewhere.
        pub failing: Vec<ShardId>,
        /// Grows with every heartbeat of the process: orders are given to the newest one, others may have been given
        /// up by their sender.
        pub sequence: u64,
        /// The picture the node has (0, 0: none).
        pub controller_epoch: u64,
        /// Version of the picture the node has.
        pub version: u64,
        /// How long the answer may be held back, ms.
        pub max_wait_ms: u32,
        tagged {
            /// Lowest and highest level of `diskless.version` that the node supports; missing: 1 and 1.
            0 => pub supported: Option<FeatureLevels>,
            /// Brokers only: see [`crate::image::Broker`].
            1 => pub serves_objects: Option<bool>,
            /// True: the node takes `changes` in the answer. False or missing: it wants all of the picture.
            2 => pub reads_changes: Option<bool>,
        }
    }
}

flex_struct! {
    /// NOT_CONTROLLER: ask who owns the log `cluster` now. COORDINATOR_LOAD_IN_PROGRESS: this node is about to be the
    /// controller. DUPLICATE_BROKER_REGISTRATION: another live process has this node id. UNSUPPORTED_VERSION: the node does
    /// not support `feature_level`.
    pub struct HeartbeatResponse {
        /// 0: no error.
        pub error_code: i16,
        /// Epoch of the controller that answers.
        pub controller_epoch: u64,
        /// The newest picture, when it is newer than the node's and `changes` do not lead to it.
        pub image: Option<ImageRecord>,
        /// Coordinators only: shards this node is to lead, all others it is to give up.
        pub lead: Vec<ShardId>,
        /// Coordinators only: shards this node is to follow.
        pub follow: Vec<ShardId>,
        tagged {
            /// With UNSUPPORTED_VERSION: the level of `diskless.version` that every node has to support.
            0 => pub feature_level: Option<FeatureLevel>,
            /// What leads from the picture that the node has to the newest one.
            1 => pub changes: Option<ImageChanges>,
        }
    }
}

flex_struct! {
    /// Asks for a block of producer ids (like Kafka's AllocateProducerIds).
    pub struct AllocateProducerIdsRequest {
        /// Who asks.
        pub node: NodeId,
    }
}

flex_struct! {
    /// Ids `first .. first + count` are this node's to give out; never given to another.
    pub struct AllocateProducerIdsResponse {
        /// 0: no error.
        pub error_code: i16,
        /// The first id of the block.
        pub first: i64,
        /// Ids in the block.
        pub count: i32,
    }
}

flex_struct! {
    /// A client's request as it came in (header and body, without the length prefix).
    pub struct ForwardRequest {
        /// The group's shard; -1: the controller.
        pub shard: i32,
        /// Address of the client, as DescribeGroups shows it.
        pub client_host: String,
        /// Header and body, without the length.
        pub request: bytes::Bytes,
        tagged {
            /// Which topics the request means by their names: some old requests do not tell them from earlier ones.
            0 => pub topics: Option<Vec<NamedTopic>>,
        }
    }
}

flex_struct! {
    /// The topic that has a name at the time.
    pub struct NamedTopic {
        /// Name of the topic.
        pub name: String,
        /// Id of the topic.
        pub id: TopicId,
    }
}

flex_struct! {
    /// The reply to the client (header and body, without the length prefix), or an error and no reply:
    /// NOT_COORDINATOR / NOT_CONTROLLER / COORDINATOR_LOAD_IN_PROGRESS.
    pub struct ForwardResponse {
        /// 0: no error.
        pub error_code: i16,
        /// Header and body, without the length; empty with an error.
        pub response: bytes::Bytes,
    }
}

flex_struct! {
    /// Asks for the picture of the cluster without taking part in it: tools do.
    pub struct DescribeClusterRequest {
        /// Who asks, for the log; any number.
        pub node: NodeId,
    }
}

flex_struct! {
    /// The picture that the asked coordinator has.
    pub struct DescribeClusterResponse {
        /// Always 0.
        pub error_code: i16,
        /// None until the node has reached the controller.
        pub image: Option<ImageRecord>,
    }
}
