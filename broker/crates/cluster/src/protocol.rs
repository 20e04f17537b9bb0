//! RPCs between the nodes and the controller (the leader of the log `cluster`), on the internal listener.
#![allow(missing_docs, reason = "fields say what they are; what needs words has them")]

use kafka_wire::flex_struct;
use types::{NodeId, ShardId};
use uuid::Uuid;

use crate::image::{ImageRecord, ZonePort};

flex_struct! {
    /// "I live, this is me, this is the picture I have." Answered at once when there is something new, otherwise
    /// after `max_wait_ms`; the next one follows at once, so the controller sees a node's death by its silence.
    pub struct HeartbeatRequest {
        pub node: NodeId,
        /// New for every start of the process.
        pub incarnation: Uuid,
        pub zone: String,
        pub broker: bool,
        pub coordinator: bool,
        /// `host:port` of the internal listener.
        pub internal: String,
        /// Brokers only: see [`crate::image::Broker`].
        pub host: String,
        pub port: u16,
        pub zone_ports: Vec<ZonePort>,
        /// The node wants to leave: brokers drop out of metadata, coordinators get their shards taken.
        pub draining: bool,
        /// The process ends now: forget it at once.
        pub leaving: bool,
        /// Coordinators only: shards this node leads and serves right now.
        pub leading: Vec<ShardId>,
        /// The picture the node has (0, 0: none).
        pub controller_epoch: u64,
        pub version: u64,
        pub max_wait_ms: u32,
    }
}

flex_struct! {
    /// NOT_CONTROLLER: ask who owns the log `cluster` now. DUPLICATE_BROKER_REGISTRATION: another live process has
    /// this node id.
    pub struct HeartbeatResponse {
        pub error_code: i16,
        /// Epoch of the controller that answers.
        pub controller_epoch: u64,
        /// The newest picture, when it is newer than the node's.
        pub image: Option<ImageRecord>,
        /// Coordinators only: shards this node is to lead, all others it is to give up.
        pub lead: Vec<ShardId>,
    }
}

flex_struct! {
    /// Asks for a block of producer ids (like Kafka's AllocateProducerIds).
    pub struct AllocateProducerIdsRequest {
        pub node: NodeId,
    }
}

flex_struct! {
    /// Ids `first .. first + count` are this node's to give out; never given to another.
    pub struct AllocateProducerIdsResponse {
        pub error_code: i16,
        pub first: i64,
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
        pub request: bytes::Bytes,
    }
}

flex_struct! {
    /// The reply to the client (header and body, without the length prefix), or an error and no reply:
    /// NOT_COORDINATOR / NOT_CONTROLLER / COORDINATOR_LOAD_IN_PROGRESS.
    pub struct ForwardResponse {
        pub error_code: i16,
        pub response: bytes::Bytes,
    }
}
