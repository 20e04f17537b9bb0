//! What the log `cluster` holds.
//!
//! An entry is a version byte and the changes one command came to. They say what is, not how it came about, so that applying
//! them needs no checks. New fields are added as tags. A new kind of change needs a new version, and a level of
//! `diskless.version` from which it is written (ADR 0012).
//!
//! | version | from level | what is new |
//! | --- | --- | --- |
//! | 0 | 1 | all but the feature level |
//! | 1 | 2 | the feature level, in entries and snapshots |
#![allow(missing_docs, reason = "fields say what they are; what needs words has them")]

use bytes::{BufMut, Bytes, BytesMut};
use coordinator::replica::StateError;
use kafka_wire::flex::{Decode, Encode};
use kafka_wire::{flex_enum, flex_struct};
use types::feature::FEATURE;
use types::{FeatureLevel, FeatureLevels, ShardId, TopicId};

use crate::image::Config;

/// Of what holds the feature level: who reads no more than the first level must not take it for its own.
const LEVELLED: u8 = 1;
/// Of everything else.
const PLAIN: u8 = 0;

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
        6 => FeatureLevel(FeatureLevel),
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
        tagged {
            /// Missing: the first one.
            0 => pub feature_level: Option<FeatureLevel>,
        }
    }
}

/// What the log holds as one piece.
pub trait Logged: Encode + Decode {
    /// The lowest version that has all of it.
    fn version(&self) -> u8;
}

impl Logged for Vec<Change> {
    fn version(&self) -> u8 {
        match self
            .iter()
            .any(|change| matches!(change, Change::FeatureLevel(_)))
        {
            true => LEVELLED,
            false => PLAIN,
        }
    }
}

impl Logged for Snapshot {
    fn version(&self) -> u8 {
        match self.feature_level {
            Some(_) => LEVELLED,
            None => PLAIN,
        }
    }
}

/// Writes a versioned value.
pub fn encode(value: &impl Logged) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(value.version());
    value.encode(&mut out);
    out.freeze()
}

/// Reads what [`encode`] wrote, on a node that supports `levels`.
pub fn decode<T: Logged>(mut bytes: Bytes, levels: FeatureLevels) -> Result<T, StateError> {
    let corrupt = |error| StateError::Corrupt(format!("cluster log: {error}"));
    let version = u8::decode(&mut bytes).map_err(corrupt)?;
    let newest = match levels.max > FeatureLevel::FIRST {
        true => LEVELLED,
        false => PLAIN,
    };
    if version > newest {
        return Err(StateError::Unsupported(format!(
            "the cluster log has version {version}; this node reads up to {newest}, it supports {FEATURE} {levels}"
        )));
    }
    T::from_bytes(bytes).map_err(corrupt)
}
