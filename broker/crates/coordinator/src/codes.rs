//! The Kafka error codes that the coordinator answers with.

/// Success.
pub const NONE: i16 = 0;
/// The offset is below the log start or above the high watermark.
pub const OFFSET_OUT_OF_RANGE: i16 = 1;
/// The partition is not bound to this shard, or its topic was deleted.
pub const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
/// The shard is being opened, ask again (retriable).
pub const COORDINATOR_LOAD_IN_PROGRESS: i16 = 14;
/// The shard has no working leader here, or the outcome is not known; ask again (retriable).
pub const COORDINATOR_NOT_AVAILABLE: i16 = 15;
/// Another node leads the shard (retriable, elsewhere).
pub const NOT_COORDINATOR: i16 = 16;
/// The request comes to more metadata than one log entry can hold.
pub const RECORD_LIST_TOO_LARGE: i16 = 18;
/// A request that makes no sense.
pub const INVALID_REQUEST: i16 = 42;
/// The sequence does not follow the last one of the producer.
pub const OUT_OF_ORDER_SEQUENCE_NUMBER: i16 = 45;
/// A newer epoch of the producer was seen.
pub const INVALID_PRODUCER_EPOCH: i16 = 47;
/// The topic was deleted.
pub const UNKNOWN_TOPIC_ID: i16 = 100;
/// The file is known to be dead: its batches must be sent again in a new one (retriable for clients).
pub const KAFKA_STORAGE_ERROR: i16 = 56;
