//! The words of the project as types: ids, offsets, epochs and times. No behaviour, no I/O.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub mod fast;
pub mod feature;
pub use fast::{FastMap, FastSet};
pub use feature::{FeatureLevel, FeatureLevels};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl From<$inner> for $name {
            fn from(value: $inner) -> Self {
                Self(value)
            }
        }
    };
}

number! {
    /// Wall-clock time in milliseconds since the Unix epoch, as Kafka puts it on the wire. -1 = none.
    Timestamp(i64)
}
number! {
    /// Identity of a process in the cluster: brokers and coordinators share one number space.
    NodeId(i32)
}
number! {
    /// A partition of `__diskless_metadata` (KIP-1164): one replicated log with one leader.
    ShardId(u32)
}
number! {
    /// Leadership term of a metadata log; grows by one with every take-over.
    Epoch(u64)
}
number! {
    /// Position in a metadata log. Positions are dense and never reused.
    LogOffset(u64)
}

impl Timestamp {
    /// Milliseconds from `earlier` to `self`; 0 when the clock went backwards.
    pub fn since(self, earlier: Timestamp) -> u64 {
        u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0)
    }

    /// `self` moved by `ms` milliseconds.
    pub fn plus(self, ms: i64) -> Timestamp {
        Timestamp(self.0.saturating_add(ms))
    }
}

impl LogOffset {
    /// The position after this one.
    pub fn next(self) -> LogOffset {
        LogOffset(self.0 + 1)
    }
}

/// Identity of a topic (KIP-516). A topic deleted and created again gets a new one.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TopicId(pub Uuid);

impl fmt::Debug for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One partition of a user topic, by identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TopicPartition {
    /// The topic.
    pub topic: TopicId,
    /// Index of the partition within it, from 0.
    pub partition: i32,
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.topic, self.partition)
    }
}
