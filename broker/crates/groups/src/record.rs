//! A group as it is kept in the shard's log.
#![allow(missing_docs, reason = "fields say what they are; what needs words has them")]

use bytes::Bytes;
use kafka_wire::flex::Decode;
use kafka_wire::{DecodeError, flex_struct};
use types::Timestamp;

flex_struct! {
    /// The last completed generation, or an empty group.
    pub struct GroupRecord {
        pub version: u16,
        pub generation: i32,
        pub protocol_type: Option<String>,
        pub protocol: Option<String>,
        pub leader: Option<String>,
        /// When the group became what it is; offsets of an empty one expire by it.
        pub since: Timestamp,
        pub members: Vec<MemberRecord>,
    }
}

flex_struct! {
    pub struct MemberRecord {
        pub id: String,
        pub instance_id: Option<String>,
        pub client_id: String,
        pub client_host: String,
        pub session_timeout_ms: u32,
        pub rebalance_timeout_ms: u32,
        pub protocols: Vec<ProtocolRecord>,
        pub assignment: Bytes,
    }
}

flex_struct! {
    pub struct ProtocolRecord {
        pub name: String,
        pub metadata: Bytes,
    }
}

/// The only version there is.
pub(crate) const VERSION: u16 = 0;

impl GroupRecord {
    /// Reads a record of a version that is known.
    pub(crate) fn read(bytes: Bytes) -> Result<GroupRecord, DecodeError> {
        let record = GroupRecord::from_bytes(bytes)?;
        match record.version {
            VERSION => Ok(record),
            newer => Err(DecodeError::Malformed(format!("group record of version {newer}"))),
        }
    }
}
