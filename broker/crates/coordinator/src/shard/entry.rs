//! What a shard writes to its log. Entries say what was decided, in full: replay needs no checks and no clock.
//!
//! An entry is a version byte, the log time (ms) and the change. New fields are added as tags. A new kind of change, or a
//! new meaning of an old one, needs a new version, and a level of `diskless.version` from which it is written (ADR 0012): below
//! that level there may be nodes that do not read it.
//!
//! | version | from level | what is new |
//! | --- | --- | --- |
//! | 0 | 1 | all but `FilePacked` |
//! | 1 | 2 | `FilePacked` |
#![allow(
    missing_docs,
    reason = "a field is explained where its name does not say it all"
)]

use bytes::{BufMut, Bytes, BytesMut};
use kafka_wire::flex::{Decode, Encode};
use kafka_wire::{flex_enum, flex_struct};
use types::feature::FEATURE;
use types::{FeatureLevel, FeatureLevels, NodeId, ShardId, Timestamp, TopicId, TopicPartition};
use uuid::Uuid;

use super::command::{Expired, OffsetCommit};
use super::packed::Packed;
use crate::protocol::DeleteTopic;
use crate::replica::StateError;

/// Of entries with a packed file.
const PACKED: u8 = 1;
/// Of all others.
const PLAIN: u8 = 0;

flex_enum! {
    /// A change of a shard.
    pub enum Change {
        1 => PartitionsCreated(PartitionsCreated),
        2 => TopicsDeleted(TopicsDeleted),
        3 => FileCommitted(FileCommitted),
        4 => RecordsDeleted(RecordsDeleted),
        5 => Purged(Purged),
        6 => FileTakenOver(FileTakenOver),
        7 => FilesHandedOver(Objects),
        8 => FilesDeleted(Objects),
        9 => GroupPut(GroupPut),
        10 => OffsetsCommitted(OffsetsCommitted),
        11 => OffsetsDeleted(OffsetsDeleted),
        12 => Expired(ExpiredEntry),
        13 => FilePacked(Packed),
    }
}

flex_struct! {
    /// Partition indexes and the numbers they have within the shard.
    pub struct PartitionsCreated {
        pub topic: TopicId,
        pub partitions: Vec<(i32, u32)>,
    }
}

flex_struct! {
    pub struct TopicsDeleted {
        pub topics: Vec<DeleteTopic>,
    }
}

flex_struct! {
    /// A file, with the batches that were accepted.
    pub struct FileCommitted {
        pub id: u64,
        pub object: Uuid,
        pub uploader: NodeId,
        pub size: u64,
        pub owners: Vec<ShardId>,
        /// The packed answer (see `judge`), for a second commit of the same file.
        pub results: Bytes,
        /// In the order in which each first appears in the file.
        pub partitions: Vec<PartitionBatches>,
    }
}

flex_struct! {
    /// Accepted batches of one partition, in offset order and without gaps.
    pub struct PartitionBatches {
        pub partition: TopicPartition,
        pub num: u32,
        pub base_offset: i64,
        pub batches: Vec<Batch>,
    }
}

flex_struct! {
    pub struct Batch {
        pub position: u32,
        pub size: u32,
        pub last_offset_delta: i32,
        /// Largest record timestamp, or the log-append time if the topic uses that.
        pub timestamp: Timestamp,
        pub log_append_time: bool,
        tagged {
            0 => pub producer: Option<BatchProducer>,
        }
    }
}

flex_struct! {
    pub struct BatchProducer {
        pub id: i64,
        pub epoch: i16,
        pub base_sequence: i32,
    }
}

flex_struct! {
    /// New log starts.
    pub struct RecordsDeleted {
        pub partitions: Vec<(TopicPartition, i64)>,
    }
}

flex_struct! {
    /// Up to this many garbage batches go, those of the lowest partition numbers first; what is left of the limit is spent on what
    /// only the view still has (see `purge`).
    pub struct Purged {
        pub limit: u32,
    }
}

flex_struct! {
    pub struct FileTakenOver {
        pub id: u64,
        pub object: Uuid,
        pub size: u64,
        pub owners: Vec<ShardId>,
    }
}

flex_struct! {
    pub struct Objects {
        pub objects: Vec<Uuid>,
    }
}

flex_struct! {
    pub struct GroupPut {
        pub group: String,
        pub metadata: Option<Bytes>,
        pub offsets: Vec<Offset>,
    }
}

flex_struct! {
    pub struct OffsetsCommitted {
        pub group: String,
        pub offsets: Vec<Offset>,
    }
}

flex_struct! {
    pub struct Offset {
        pub topic: String,
        pub topic_id: Option<TopicId>,
        pub partition: i32,
        pub offset: i64,
        pub leader_epoch: i32,
        pub metadata: Option<String>,
    }
}

flex_struct! {
    pub struct OffsetsDeleted {
        pub group: String,
        pub partitions: Vec<(String, i32)>,
    }
}

flex_struct! {
    pub struct ExpiredEntry {
        pub producers: Vec<(u32, i64)>,
        pub producers_before: Timestamp,
        pub results: Vec<u64>,
        pub tombstones: Vec<u64>,
    }
}

impl From<&OffsetCommit> for Offset {
    fn from(commit: &OffsetCommit) -> Self {
        Self {
            topic: commit.topic.clone(),
            topic_id: commit.topic_id,
            partition: commit.partition,
            offset: commit.offset,
            leader_epoch: commit.leader_epoch,
            metadata: commit.metadata.clone(),
        }
    }
}

impl From<&Expired> for ExpiredEntry {
    fn from(expired: &Expired) -> Self {
        Self {
            producers: expired.producers.clone(),
            producers_before: expired.producers_before,
            results: expired.results.clone(),
            tombstones: expired.tombstones.clone(),
        }
    }
}

/// The bytes of an entry.
pub fn encode(time: Timestamp, change: &Change) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(match change {
        Change::FilePacked(_) => PACKED,
        _ => PLAIN,
    });
    time.encode(&mut out);
    change.encode(&mut out);
    out.freeze()
}

/// Reads an entry, on a node that supports `levels`.
pub fn decode(mut bytes: Bytes, levels: FeatureLevels) -> Result<(Timestamp, Change), StateError> {
    let version = u8::decode(&mut bytes).map_err(corrupt)?;
    let newest = match levels.contains(FeatureLevel::PACKED_FILES) {
        true => PACKED,
        false => PLAIN,
    };
    if version > newest {
        return Err(StateError::Unsupported(format!(
            "a log entry has version {version}; this node reads up to {newest}, it supports {FEATURE} {levels}"
        )));
    }
    let time = Timestamp::decode(&mut bytes).map_err(corrupt)?;
    Ok((time, Change::from_bytes(bytes).map_err(corrupt)?))
}

fn corrupt(error: kafka_wire::DecodeError) -> StateError {
    StateError::Corrupt(format!("log entry: {error}"))
}
