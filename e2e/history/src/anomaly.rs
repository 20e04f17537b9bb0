//! What is reported.

use std::fmt;

use crate::Place;

/// One thing that must not have happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are what their names say")]
pub enum Anomaly {
    /// Acknowledged, but a consumer that read to the end did not get it.
    Lost { value: u64, place: Place },
    /// A consumer that assigned its partitions itself went past it.
    Skipped { value: u64, place: Place },
    /// One value at two places, though it may be stored once only.
    Duplicated { value: u64, first: Place, second: Place },
    /// Two values at the same place.
    InconsistentOffset { place: Place, first: u64, second: u64 },
    /// Read elsewhere than acknowledged.
    Moved { value: u64, acked: Place, read: Place },
    /// Read, but never sent.
    Phantom { value: u64, place: Place },
    /// Read, though its producer was told for good that it is not stored.
    AbortedRead { value: u64, place: Place },
    /// A consumer that assigned its partitions itself went backwards.
    NonMonotonic { partition: i32, before: i64, after: i64 },
    /// Two values of one producer and partition stand in another order than sent.
    Reordered { partition: i32, first: u64, second: u64 },
    /// ListOffsets does not know what was acknowledged, or read, before it was asked.
    StaleEnd { partition: i32, known: i64, listed: i64 },
    /// ListOffsets gives an end before which nobody who has read everything found anything.
    WrongEnd { partition: i32, last: i64, listed: i64 },
    /// A partition ends earlier than it did in an answer that was there before the question was asked.
    EndBack { partition: i32, before: i64, after: i64 },
    /// The same of where it begins: by ListOffsets, by answers to producers, or by one broker's answers to Fetch.
    StartBack { partition: i32, before: i64, after: i64 },
    /// A Fetch gives records that are outside of the bounds that it tells.
    OutOfBounds {
        partition: i32,
        first: i64,
        last: i64,
        log_start: i64,
        high_watermark: i64,
    },
    /// ListOffsets does not know what was deleted before it was asked, or more is gone than anybody asked for.
    WrongStart {
        partition: i32,
        deleted: i64,
        asked: i64,
        listed: i64,
    },
    /// ListOffsets for a time gives another record than the first one.
    WrongTime {
        partition: i32,
        time: i64,
        first: i64,
        listed: i64,
    },
    /// A high watermark went backwards at one broker.
    WatermarkBack { partition: i32, before: i64, after: i64 },
    /// Log-append times go backwards in a partition.
    TimeBack { place: Place, before: i64, after: i64 },
    /// One record has two times.
    TimeChanged { place: Place, first: i64, second: i64 },
    /// A record has another time than its producer gave to it.
    WrongRecordTime { value: u64, sent: i64, read: i64 },
    /// Retention by time has taken a record that was younger than that.
    ExpiredEarly { place: Place, age: i64, least: i64 },
    /// A committed offset is not one that can be there.
    WrongCommit {
        partition: i32,
        oldest: i64,
        newest: i64,
        fetched: i64,
    },
    /// A commit in the name of a generation was taken that was sent when somebody had a place in a later one already.
    LateCommit {
        partition: i32,
        offset: i64,
        generation: i32,
        later: i32,
    },
    /// Two members of a group own one partition in the same generation.
    SharedPartition {
        generation: i32,
        partition: i32,
        first: String,
        second: String,
    },
    /// A generation has two leaders.
    TwoLeaders {
        generation: i32,
        first: String,
        second: String,
    },
    /// A member owns what no leader of its generation has given to it.
    WrongAssignment {
        generation: i32,
        member: String,
        partitions: Vec<i32>,
    },
    /// A group went back to an earlier generation.
    GenerationBack { before: i32, after: i32 },
    /// Acknowledged, but no member of a group that has come to the end got it.
    Unconsumed { value: u64, place: Place },
    /// Something was not served for longer than is promised.
    Unavailable { what: String, from: i64, to: i64 },
    /// A broker broke its word in another way; the text says how.
    Broken { what: String },
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}
