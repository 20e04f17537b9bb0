//! What a shard can be asked to change.

use bytes::Bytes;
use types::{ShardId, Timestamp, TopicId};
use uuid::Uuid;

use crate::protocol::{
    BatchResult, CommitFileRequest, CreatePartitionsRequest, DeleteRecordsPartition, DeleteRecordsResult,
    DeleteTopic,
};

/// A change of a shard's state.
#[derive(Clone, Debug)]
pub enum Command {
    /// Binds partitions to the shard; those it has are left alone.
    CreatePartitions(CreatePartitionsRequest),
    /// Forgets topics. Clients see it at once, the batches go in small steps ([`Command::Purge`]).
    DeleteTopics(Vec<DeleteTopic>),
    /// Gives the batches of a file their offsets.
    CommitFile(CommitFileRequest),
    /// Moves log starts forward, for DeleteRecords and for retention.
    DeleteRecords(Vec<DeleteRecordsPartition>),
    /// Deletes up to `max_batches` rows that nobody sees any more: batches, then producers and group offsets of deleted topics.
    Purge {
        /// Bound of the work done in one log entry.
        max_batches: u32,
    },
    /// This shard now answers for a file.
    TakeOverFile {
        /// The file.
        object: Uuid,
        /// Its size in bytes.
        size: u64,
        /// The owners that remain, this shard first.
        owners: Vec<ShardId>,
    },
    /// The next owners answer for these files now.
    FilesHandedOver(Vec<Uuid>),
    /// The objects of these files are gone.
    FilesDeleted(Vec<Uuid>),
    /// Replaces a group's metadata (`None`: deletes the group and all its offsets) and commits offsets, as one.
    PutGroup {
        /// Group id.
        group: String,
        /// Opaque to the shard.
        metadata: Option<Bytes>,
        /// Offsets to store with it.
        offsets: Vec<OffsetCommit>,
    },
    /// Stores offsets of a group; none, if one is of a topic that is known to be deleted.
    CommitOffsets {
        /// Group id.
        group: String,
        /// What to store.
        offsets: Vec<OffsetCommit>,
    },
    /// Forgets offsets of a group.
    DeleteOffsets {
        /// Group id.
        group: String,
        /// Topic name and partition of each.
        partitions: Vec<(String, i32)>,
    },
    /// Forgets what is too old to be asked for.
    Expire(Expired),
}

/// What [`Command::Expire`] forgets. Candidates come from a reader; each goes only if it still is that old.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Expired {
    /// Producers (partition number, producer id).
    pub producers: Vec<(u32, i64)>,
    /// They go if unused since before this log time.
    pub producers_before: Timestamp,
    /// Ids of files whose commit results go.
    pub results: Vec<u64>,
    /// Ids of tombstones that go.
    pub tombstones: Vec<u64>,
}

/// One committed offset of a group.
#[derive(Clone, Debug, PartialEq)]
pub struct OffsetCommit {
    /// Topic name: offsets outlive the identity of a topic in old clients.
    pub topic: String,
    /// Identity of the topic, as the broker knew it that the client has spoken to.
    pub topic_id: Option<TopicId>,
    /// Partition index.
    pub partition: i32,
    /// The next offset to read.
    pub offset: i64,
    /// -1: unknown.
    pub leader_epoch: i32,
    /// The client's own words.
    pub metadata: Option<String>,
}

/// The answer to a [`Command`].
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Done; nothing to say.
    Done,
    /// Nothing is done, for this reason (an error code).
    Refused(i16),
    /// Answer to [`Command::CommitFile`].
    Committed {
        /// Not 0: refused as a whole.
        error_code: i16,
        /// In the order of the request.
        batches: Vec<BatchResult>,
    },
    /// Answer to [`Command::DeleteRecords`], in the order of the request.
    RecordsDeleted(Vec<DeleteRecordsResult>),
    /// Answer to [`Command::Purge`]: whether there was something to delete.
    Purged(bool),
}
