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
    /// `DisklessDescribePartitions`: sizes and producers, for administrators.
    pub const DESCRIBE_PARTITIONS: i16 = 7010;
    /// `DisklessHeartbeat`: a node tells the controller that it lives and learns the metadata image.
    pub const HEARTBEAT: i16 = 7020;
    /// `DisklessAllocateProducerIds`: a block of producer ids for a broker.
    pub const ALLOCATE_PRODUCER_IDS: i16 = 7021;
    /// `DisklessDescribeCluster`: the metadata image, for who does not take part in the cluster.
    pub const DESCRIBE_CLUSTER: i16 = 7022;
    /// `DisklessForward`: a client's request, passed on to who owns it (like Kafka's Envelope).
    pub const FORWARD: i16 = 7030;
    /// `DisklessCancel`: nobody waits any longer for the answer to a request.
    pub const CANCEL: i16 = 7031;
    /// `DisklessReadObject`: parts of a WAL object, from the broker that reads it for its zone.
    pub const READ_OBJECT: i16 = 7040;
}

flex_struct! {
    /// Binds partitions of a topic to this shard. Idempotent; answered when replicated. UNKNOWN_TOPIC_ID for a topic
    /// that was deleted: the request was late.
    pub struct CreatePartitionsRequest {
        /// The shard that is asked; its leader answers.
        pub shard: ShardId,
        /// Id of the topic.
        pub topic: TopicId,
        /// Name of the topic.
        pub name: String,
        /// Indexes of the partitions; those that are bound already are left alone.
        pub partitions: Vec<i32>,
    }
}

flex_struct! {
    /// An answer that is an error code or success (0).
    pub struct ErrorResponse {
        /// 0: no error.
        pub error_code: i16,
    }
}

flex_struct! {
    /// Forgets topics: their partitions here, and the group offsets kept for them.
    pub struct DeleteTopicsRequest {
        /// The shard that is asked; its leader answers.
        pub shard: ShardId,
        /// Those to forget.
        pub topics: Vec<DeleteTopic>,
    }
}

flex_struct! {
    /// One topic to forget. Offsets of groups are kept by name, batches by id.
    pub struct DeleteTopic {
        /// Id of the topic.
        pub topic: TopicId,
        /// Name of the topic.
        pub name: String,
    }
}

flex_struct! {
    /// Gives the batches of an uploaded file their place. Idempotent by `object`: the same file again gets the first
    /// answer.
    pub struct CommitFileRequest {
        /// The shard that is asked; its leader answers.
        pub shard: ShardId,
        /// Name of the WAL object: `wal/<hash prefix>/<object>`.
        pub object: Uuid,
        /// The broker that wrote the object.
        pub uploader: NodeId,
        /// Size of the object in bytes.
        pub size: u64,
        /// All shards that batches of the file belong to, in random order: the owner chain (KIP-1164).
        pub owners: Vec<ShardId>,
        /// The batches that belong to this shard, in the order of the file.
        pub batches: Vec<BatchRequest>,
    }
}

/// The most batches of a [`CommitFileRequest`]: what is logged of them fits into an entry of the log
/// ([`crate::replica::Options::max_entry_bytes`]), in whatever form.
pub const MAX_FILE_BATCHES: usize = 65_536;

flex_struct! {
    /// One record batch of a file, as its header (and the topic's configuration) says.
    pub struct BatchRequest {
        /// Id of the topic.
        pub topic: TopicId,
        /// Index of the partition.
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
        /// Epoch of the producer; -1: not idempotent.
        pub producer_epoch: i16,
        /// Sequence number of the first record; -1: not idempotent.
        pub base_sequence: i32,
        /// An earlier batch of the producer was lost on its way to the coordinator: this one must not be taken for the
        /// beginning of a producer that nothing is known of.
        pub must_follow: bool,
    }
}

flex_struct! {
    /// Results in the order of the request's batches. With `error_code` != 0 `batches` is empty. After NOT_COORDINATOR,
    /// COORDINATOR_NOT_AVAILABLE and COORDINATOR_LOAD_IN_PROGRESS the sender asks again, by the same `object`: the file may have
    /// been committed. After RECORD_LIST_TOO_LARGE it was not.
    pub struct CommitFileResponse {
        /// 0: no error.
        pub error_code: i16,
        /// One for each batch of the request.
        pub batches: Vec<BatchResult>,
    }
}

flex_struct! {
    /// What became of one batch.
    pub struct BatchResult {
        /// 0: no error.
        pub error_code: i16,
        /// -1 with an error.
        pub base_offset: i64,
        /// -1 unless the topic uses LogAppendTime.
        pub log_append_time: Timestamp,
        /// First offset that is kept; -1 if the partition is unknown.
        pub log_start_offset: i64,
        /// The batch was here before; `base_offset` is that of its first time.
        pub duplicate: bool,
    }
}

flex_struct! {
    /// Where a committed batch lies.
    pub struct Coordinate {
        /// Offset of the first record.
        pub base_offset: i64,
        /// Offset of the last record.
        pub last_offset: i64,
        /// Id of the WAL object.
        pub object: Uuid,
        /// Size of the object, bytes.
        pub object_size: u64,
        /// Where the batch starts in the object, in bytes.
        pub position: u32,
        /// Length of the batch, in bytes.
        pub size: u32,
        /// Largest timestamp of the records, ms.
        pub max_timestamp: Timestamp,
        /// -1: the records keep their own times.
        pub log_append_time: Timestamp,
    }
}

flex_struct! {
    /// Moves the log start of partitions forward.
    pub struct DeleteRecordsRequest {
        /// The shard that is asked; its leader answers.
        pub shard: ShardId,
        /// The partitions and their new log starts.
        pub partitions: Vec<DeleteRecordsPartition>,
    }
}

flex_struct! {
    /// `offset` -1 = up to the high watermark.
    pub struct DeleteRecordsPartition {
        /// Which partition.
        pub partition: TopicPartition,
        /// The new log start; -1: the high watermark.
        pub offset: i64,
    }
}

flex_struct! {
    /// In the order of the request.
    pub struct DeleteRecordsResponse {
        /// 0: no error.
        pub error_code: i16,
        /// One for each partition of the request.
        pub partitions: Vec<DeleteRecordsResult>,
    }
}

flex_struct! {
    /// The new log start, or -1 with an error.
    pub struct DeleteRecordsResult {
        /// 0: no error.
        pub error_code: i16,
        /// The log start as it is then; -1 with an error.
        pub low_watermark: i64,
    }
}

flex_struct! {
    /// Strict: the answer reflects everything accepted before the call (KIP-1164).
    pub struct ListOffsetsRequest {
        /// The shard that is asked; its leader answers.
        pub shard: ShardId,
        /// What is asked of each partition.
        pub partitions: Vec<ListOffsetsPartition>,
    }
}

flex_struct! {
    /// `timestamp` as in Kafka's ListOffsets: a time in ms, or -1 latest, -2 earliest, -3 max timestamp, -4 earliest
    /// local, -5 latest tiered, -6 earliest pending upload.
    pub struct ListOffsetsPartition {
        /// Which partition.
        pub partition: TopicPartition,
        /// Kafka's ListOffsets timestamp.
        pub timestamp: i64,
    }
}

flex_struct! {
    /// In the order of the request.
    pub struct ListOffsetsResponse {
        /// 0: no error.
        pub error_code: i16,
        /// One for each partition of the request.
        pub partitions: Vec<ListOffsetsResult>,
    }
}

flex_struct! {
    /// For a time (and -3) `batch` is the batch that holds the wanted record; the broker reads it to find the record
    /// itself. Without such a batch offset and timestamp are -1.
    pub struct ListOffsetsResult {
        /// 0: no error.
        pub error_code: i16,
        /// The offset; -1: there is none.
        pub offset: i64,
        /// Its timestamp, ms; -1: unknown.
        pub timestamp: Timestamp,
        /// The batch to look into for the exact record.
        pub batch: Option<Coordinate>,
    }
}

flex_struct! {
    /// Batches from an offset on, for each partition.
    pub struct FindBatchesRequest {
        /// The shard that is asked; its leader answers, or a follower that is up to date.
        pub shard: ShardId,
        /// Where to begin in each partition.
        pub partitions: Vec<FindBatchesPartition>,
        /// Bound of the bytes of all batches named in the answer; at least one batch is named whatever its size.
        pub max_bytes: u32,
    }
}

flex_struct! {
    pub struct FindBatchesPartition {
        /// Which partition.
        pub partition: TopicPartition,
        /// The first offset that is wanted.
        pub offset: i64,
        /// Bound of the batches of this partition, in bytes.
        pub max_bytes: u32,
    }
}

flex_struct! {
    /// In the order of the request. `applied` is the log offset the answer is true at.
    pub struct FindBatchesResponse {
        /// 0: no error.
        pub error_code: i16,
        /// The slot that the answer is true at.
        pub applied: LogOffset,
        /// One for each partition of the request.
        pub partitions: Vec<FindBatchesResult>,
    }
}

flex_struct! {
    /// OFFSET_OUT_OF_RANGE below the log start and above the high watermark, both of which are always given; an
    /// offset equal to the high watermark finds nothing, without error.
    pub struct FindBatchesResult {
        /// 0: no error.
        pub error_code: i16,
        /// First offset that is kept; -1 if the partition is unknown.
        pub log_start_offset: i64,
        /// Offset after the last record; -1 if the partition is unknown.
        pub high_watermark: i64,
        /// In offset order, without gaps but those of deleted records.
        pub batches: Vec<Coordinate>,
    }
}

flex_struct! {
    /// The two questions of the orphan scan: the time of the oldest live file, and which of these are known.
    pub struct DescribeFilesRequest {
        /// The shard that is asked; its leader answers.
        pub shard: ShardId,
        /// Ids of WAL objects; may be empty.
        pub objects: Vec<Uuid>,
    }
}

flex_struct! {
    pub struct DescribeFilesResponse {
        /// 0: no error.
        pub error_code: i16,
        /// -1: no file is live.
        pub oldest_file: Timestamp,
        /// The asked-for objects that this shard knows, live or about to be deleted.
        pub known: Vec<Uuid>,
    }
}

flex_struct! {
    /// Asks what partitions take and, with `producers`, who writes to them.
    pub struct DescribePartitionsRequest {
        /// The shard that is asked; its leader answers.
        pub shard: ShardId,
        /// Which partitions.
        pub partitions: Vec<TopicPartition>,
        /// Whether their producers are wanted, too.
        pub producers: bool,
    }
}

flex_struct! {
    /// In the order of the request.
    pub struct DescribePartitionsResponse {
        /// 0: no error.
        pub error_code: i16,
        /// One for each partition of the request.
        pub partitions: Vec<PartitionDescription>,
    }
}

flex_struct! {
    /// UNKNOWN_TOPIC_OR_PARTITION unless the partition is bound to this shard.
    pub struct PartitionDescription {
        /// 0: no error.
        pub error_code: i16,
        /// Of all its batches, bytes.
        pub bytes: u64,
        /// By id; empty unless asked for.
        pub producers: Vec<ProducerDescription>,
    }
}

flex_struct! {
    /// An idempotent producer that the partition remembers.
    pub struct ProducerDescription {
        /// Producer id.
        pub id: i64,
        /// Its newest epoch.
        pub epoch: i16,
        /// Sequence number of its last record.
        pub last_sequence: i32,
        /// Log time of its last batch.
        pub used_at: Timestamp,
    }
}

flex_struct! {
    /// Waits up to `max_wait_ms` for something committed at or after `from`.
    pub struct TailRequest {
        /// The shard that is asked; its leader answers.
        pub shard: ShardId,
        /// The slot after the last one that the asker knows.
        pub from: LogOffset,
        /// How long the answer may be held back, ms.
        pub max_wait_ms: u32,
    }
}

flex_struct! {
    /// What was committed in `[from, next)`. `reset`: `from` is older than what the leader remembers (or newer than
    /// the log); forget what was learned and go on from `next`.
    pub struct TailResponse {
        /// 0: no error.
        pub error_code: i16,
        /// Forget what was learned of the shard.
        pub reset: bool,
        /// What to ask from the next time.
        pub next: LogOffset,
        /// One for each partition with news.
        pub partitions: Vec<TailUpdate>,
        tagged {
            /// How long after its last record an object is deleted, ms; missing: an earlier release. Whoever reads longer than that
            /// from a coordinate it was told may find nothing.
            0 => pub file_grace_ms: Option<u64>,
        }
    }
}

flex_struct! {
    /// News of one partition: batches in offset order, and its bounds after them. `deleted`: the topic is gone.
    pub struct TailUpdate {
        /// Which partition.
        pub partition: TopicPartition,
        /// First offset that is kept; -1 if the partition is unknown.
        pub log_start_offset: i64,
        /// Offset after the last record; -1 if the partition is unknown.
        pub high_watermark: i64,
        /// The topic is gone.
        pub deleted: bool,
        /// New batches, in offset order.
        pub batches: Vec<Coordinate>,
    }
}

flex_struct! {
    /// The owner before has no live batch of the file left; the shard that is asked, the first of `owners`, now answers
    /// for the file. A shard that never saw it notes it as dead, so that a late commit of it is refused.
    pub struct HandOverFileRequest {
        /// The shard that is asked; its leader answers.
        pub shard: ShardId,
        /// Id of the WAL object.
        pub object: Uuid,
        /// Size of the object, in bytes.
        pub size: u64,
        /// The owners that remain, the receiver first.
        pub owners: Vec<ShardId>,
    }
}

flex_struct! {
    /// The answer to an earlier request of the connection is no longer wanted. Who waits only for others, as a JoinGroup does, is let go; work
    /// that has begun goes on. The request gets no answer, unless that is on its way already; this one does, always
    /// without error. Nothing happens if the request is unknown, so that a node can ask whether its peer serves this.
    pub struct CancelRequest {
        /// The correlation id of that request.
        pub correlation_id: i32,
    }
}

flex_struct! {
    /// Only a broker that says so in its heartbeat (`serves_objects`) is asked, and only by brokers of its zone. It answers from
    /// memory, or reads the object from the store, once for all who ask.
    pub struct ReadObjectRequest {
        /// Id of the WAL object.
        pub object: Uuid,
        /// Size of the object in bytes, as its coordinates say; at most 33554432.
        pub size: u64,
        /// The wanted parts: at most 10000, of 16777216 bytes together.
        pub ranges: Vec<ObjectRange>,
    }
}

flex_struct! {
    /// A part of an object.
    pub struct ObjectRange {
        /// Where it starts in the object, in bytes.
        pub position: u32,
        /// Its length, in bytes.
        pub size: u32,
    }
}

flex_struct! {
    /// Who gets an error reads the store. THROTTLING_QUOTA_EXCEEDED: too much of what was asked for is not sent yet.
    /// KAFKA_STORAGE_ERROR: the object cannot be read. INVALID_REQUEST: not within the bounds, or a part lies outside the object.
    pub struct ReadObjectResponse {
        /// 0: no error.
        pub error_code: i16,
        /// The parts, one behind the other; empty with an error. They are as the store has them: whoever asked checks them.
        pub records: bytes::Bytes,
    }
}
