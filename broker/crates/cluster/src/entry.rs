//! What the log `cluster` holds.
//!
//! An entry is a version byte and the changes one command came to. They say what is, not how it came about, so that applying
//! them needs no checks. New fields are added as tags; a new kind of change needs a version that every node reads.
#![allow(missing_docs, reason = "fields say what they are; what needs words has them")]

use bytes::{BufMut, Bytes, BytesMut};
use coordinator::replica::StateError;
use kafka_wire::flex::{Decode, Encode};
use kafka_wire::{flex_enum, flex_struct};
use types::{ShardId, TopicId};

use crate::image::Config;

const VERSION: u8 = 0;

flex_struct! {
    /// A topic as the log knows it.
    pub struct TopicRecord {
        pub id: TopicId,
        pub name: String,
        /// Shard of each partition, by index.
        pub partitions: Vec<ShardId>,
        /// The first so many partitions are bound to their shards; the others are being created.
        pub ready: u32,
        /// What was set on the topic; defaults are not in it.
        pub configs: Vec<Config>,
        /// Gone for clients; the shards still have to forget it.
        pub deleting: bool,
    }
}

flex_enum! {
    pub enum Change {
        1 => Formatted(Formatted),
        2 => ShardsGrown(u32),
        3 => TopicPut(TopicRecord),
        4 => TopicRemoved(TopicId),
        5 => ProducerIds(i64),
    }
}

flex_struct! {
    pub struct Formatted {
        pub cluster_id: String,
        pub shards: u32,
        pub group_shards: u32,
    }
}

flex_struct! {
    /// The whole state.
    pub struct Snapshot {
        pub cluster: Formatted,
        pub topics: Vec<TopicRecord>,
        pub next_producer_id: i64,
    }
}

/// Writes a versioned value.
pub fn encode(value: &impl Encode) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(VERSION);
    value.encode(&mut out);
    out.freeze()
}

/// Reads what [`encode`] wrote.
pub fn decode<T: Decode>(mut bytes: Bytes) -> Result<T, StateError> {
    let corrupt = |error| StateError::Corrupt(format!("cluster log: {error}"));
    let version = u8::decode(&mut bytes).map_err(corrupt)?;
    if version != VERSION {
        return Err(StateError::Corrupt(format!(
            "cluster log: unknown version {version}"
        )));
    }
    T::from_bytes(bytes).map_err(corrupt)
}
