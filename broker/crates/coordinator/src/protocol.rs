//! The Diskless RPCs (KIP-1164) and their helpers, as they travel on the internal listener.
//!
//! Kafka framing (`int32` length, then a request header v2: api key, api version, correlation id, client id, tagged
//! fields), bodies in Kafka's flexible encoding, each struct closed by its tagged fields. Replies carry the response
//! header v1 and may come in any order on one connection; the correlation id pairs them.
#![allow(
    missing_docs,
    reason = "a field is explained where its name does not say it all"
)]

use kafka_wire::flex_struct;
use types::{LogOffset, NodeId, ShardId, Timestamp, TopicId, TopicPartition};
use uuid::Uuid;

/// Private API keys; Apache Kafka uses none above 2000.
pub mod api_key {
    /// `DisklessCreatePartitions`
    pub const CREATE_PARTITIONS: i16 = 7001;
    /// `DisklessDeleteTopics`
    pub const DELETE_TOPICS: i16 = 7002;
    /// `DisklessCommitFile`
    pub const COMMIT_FILE: i16 = 7003;
    /// `DisklessDeleteRecords`
    pub const DELETE_RECORDS: i16 = 7004;
    /// `DisklessListOffsets`
    pub const LIST_OFFSETS: i16 = 7005;
    /// `DisklessFindBatches`
    pub const FIND_BATCHES: i16 = 7006;
    /// `DisklessDescribeFiles`
    pub const DESCRIBE_FILES: i16 = 7007;
    /// `DisklessTail`: long poll for what was committed after a log offset.
    pub const TAIL: i16 = 7008;
    /// `DisklessHandOverFile`: the next owner of a file takes it over.
    pub const HAND_OVER_FILE: i16 = 7009;
    /// `DisklessHeartbeat`: a node tells the controller that it lives and learns the metadata image.
    pub const HEARTBEAT: i16 = 7020;
    /// `DisklessAllocateProducerIds`: a block of producer ids for a broker.
    pub const ALLOCATE_PRODUCER_IDS: i16 = 7021;
    /// `DisklessForward`: a client's request, passed on to who owns it (like Kafka's Envelope).
    pub const FORWARD: i16 = 7030;
}

flex_struct! {
    /// Binds partitions of a topic to this shard. Idempotent; answered when replicated.
    pub struct CreatePartitionsRequest {
        pub shard: ShardId,
        pub topic: TopicId,
        pub name: String,
        pub partitions: Vec<i32>,
    }
}

flex_struct! {
    /// An answer that is an error code or success (0).
    pub struct ErrorResponse {
        pub error_code: i16,
    }
}

flex_struct! {
    /// Forgets topics: their partitions here, and the group offsets kept for them.
    pub struct DeleteTopicsRequest {
        pub shard: ShardId,
        pub topics: Vec<DeleteTopic>,
    }
}

flex_struct! {
    /// One topic to forget. Group offsets are keyed by name, batches by id.
    pub struct DeleteTopic {
        pub topic: TopicId,
        pub name: String,
    }
}

flex_struct! {
    /// Gives the batches of an uploaded file their place. Idempotent by `object`: the same file again gets the first
    /// answer.
    pub struct CommitFileRequest {
        pub shard: ShardId,
        /// Name of the WAL object: `wal/<hash prefix>/<object>`.
        pub object: Uuid,
        pub uploader: NodeId,
        /// Size of the object in bytes.
        pub size: u64,
        /// All shards that batches of the file belong to, in random order: the owner chain (KIP-1164).
        pub owners: Vec<ShardId>,
        /// The batches that belong to this shard, in the order of the file.
        pub batches: Vec<BatchRequest>,
    }
}

flex_struct! {
    /// One record batch of a file, as its header (and the topic's configuration) says.
    pub struct BatchRequest {
        pub topic: TopicId,
        pub partition: i32,
        /// Where it starts in the object, in bytes.
        pub position: u32,
        /// Its length, in bytes.
        pub size: u32,
        /// Number of records minus one.
        pub last_offset_delta: i32,
        /// Largest timestamp of its records, ms.
        pub max_timestamp: Timestamp,
        /// The topic uses LogAppendTime: the coordinator's time replaces the records' own.
        pub log_append_time: bool,
        /// -1: not idempotent.
        pub producer_id: i64,
        pub producer_epoch: i16,
        pub base_sequence: i32,
        /// An earlier batch of the producer was lost on its way to the coordinator: this one must not be taken for the
        /// beginning of a producer that nothing is known of.
        pub must_follow: bool,
    }
}

flex_struct! {
    /// Results in the order of the request's batches. With `error_code` != 0 nothing was decided and `batches` is
    /// empty; the sender asks again (NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS).
    pub struct CommitFileResponse {
        pub error_code: i16,
        pub batches: Vec<BatchResult>,
    }
}

flex_struct! {
    /// What became of one batch.
    pub struct BatchResult {
        pub error_code: i16,
        /// -1 with an error.
        pub base_offset: i64,
        /// -1 unless the topic uses LogAppendTime.
        pub log_append_time: Timestamp,
        pub log_start_offset: i64,
        /// The batch was here before; `base_offset` is that of its first time.
        pub duplicate: bool,
    }
}

flex_struct! {
    /// Where a committed batch lies.
    pub struct Coordinate {
        pub base_offset: i64,
        pub last_offset: i64,
        pub object: Uuid,
        /// Size of the object, bytes.
        pub object_size: u64,
        pub position: u32,
        pub size: u32,
        pub max_timestamp: Timestamp,
        /// -1: the records keep their own times.
        pub log_append_time: Timestamp,
    }
}

flex_struct! {
    /// Moves the log start of partitions forward.
    pub struct DeleteRecordsRequest {
        pub shard: ShardId,
        pub partitions: Vec<DeleteRecordsPartition>,
    }
}

flex_struct! {
    /// `offset` -1 = up to the high watermark.
    pub struct DeleteRecordsPartition {
        pub partition: TopicPartition,
        pub offset: i64,
    }
}

flex_struct! {
    /// In the order of the request.
    pub struct DeleteRecordsResponse {
        pub error_code: i16,
        pub partitions: Vec<DeleteRecordsResult>,
    }
}

flex_struct! {
    /// The new log start, or -1 with an error.
    pub struct DeleteRecordsResult {
        pub error_code: i16,
        pub low_watermark: i64,
    }
}

flex_struct! {
    /// Strict: the answer reflects everything accepted before the call (KIP-1164).
    pub struct ListOffsetsRequest {
        pub shard: ShardId,
        pub partitions: Vec<ListOffsetsPartition>,
    }
}

flex_struct! {
    /// `timestamp` as in Kafka's ListOffsets: a time in ms, or -1 latest, -2 earliest, -3 max timestamp, -4 earliest
    /// local, -5 latest tiered, -6 earliest pending upload.
    pub struct ListOffsetsPartition {
        pub partition: TopicPartition,
        pub timestamp: i64,
    }
}

flex_struct! {
    /// In the order of the request.
    pub struct ListOffsetsResponse {
        pub error_code: i16,
        pub partitions: Vec<ListOffsetsResult>,
    }
}

flex_struct! {
    /// For a time (and -3) `batch` is the batch that holds the wanted record; the broker reads it to find the record
    /// itself. Without such a batch offset and timestamp are -1.
    pub struct ListOffsetsResult {
        pub error_code: i16,
        pub offset: i64,
        pub timestamp: Timestamp,
        pub batch: Option<Coordinate>,
    }
}

flex_struct! {
    /// Batches from an offset on, for each partition.
    pub struct FindBatchesRequest {
        pub shard: ShardId,
        pub partitions: Vec<FindBatchesPartition>,
        /// Bound of the bytes of all batches named in the answer; at least one batch is named whatever its size.
        pub max_bytes: u32,
    }
}

flex_struct! {
    pub struct FindBatchesPartition {
        pub partition: TopicPartition,
        pub offset: i64,
        pub max_bytes: u32,
    }
}

flex_struct! {
    /// In the order of the request. `applied` is the log offset the answer is true at.
    pub struct FindBatchesResponse {
        pub error_code: i16,
        pub applied: LogOffset,
        pub partitions: Vec<FindBatchesResult>,
    }
}

flex_struct! {
    /// OFFSET_OUT_OF_RANGE below the log start and above the high watermark, both of which are always given; an
    /// offset equal to the high watermark finds nothing, without error.
    pub struct FindBatchesResult {
        pub error_code: i16,
        pub log_start_offset: i64,
        pub high_watermark: i64,
        pub batches: Vec<Coordinate>,
    }
}

flex_struct! {
    /// The two questions of the orphan scan: the time of the oldest live file, and which of these are known.
    pub struct DescribeFilesRequest {
        pub shard: ShardId,
        pub objects: Vec<Uuid>,
    }
}

flex_struct! {
    pub struct DescribeFilesResponse {
        pub error_code: i16,
        /// -1: no file is live.
        pub oldest_file: Timestamp,
        /// The asked-for objects that this shard knows, live or about to be deleted.
        pub known: Vec<Uuid>,
    }
}

flex_struct! {
    /// Waits up to `max_wait_ms` for something committed at or after `from`.
    pub struct TailRequest {
        pub shard: ShardId,
        pub from: LogOffset,
        pub max_wait_ms: u32,
    }
}

flex_struct! {
    /// What was committed in `[from, next)`. `reset`: `from` is older than what the leader remembers (or newer than
    /// the log); forget what was learned and go on from `next`.
    pub struct TailResponse {
        pub error_code: i16,
        pub reset: bool,
        pub next: LogOffset,
        pub partitions: Vec<TailUpdate>,
    }
}

flex_struct! {
    /// News of one partition: batches in offset order, and its bounds after them. `deleted`: the topic is gone.
    pub struct TailUpdate {
        pub partition: TopicPartition,
        pub log_start_offset: i64,
        pub high_watermark: i64,
        pub deleted: bool,
        pub batches: Vec<Coordinate>,
    }
}

flex_struct! {
    /// `from` has no live batch of the file left; the receiver is next in `owners` and now answers for it. A shard
    /// that never saw the file notes it as dead, so that a late commit of it is refused.
    pub struct HandOverFileRequest {
        pub shard: ShardId,
        pub object: Uuid,
        pub size: u64,
        /// The owners that remain, the receiver first.
        pub owners: Vec<ShardId>,
    }
}
