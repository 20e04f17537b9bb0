//! The feature `diskless.version` (KIP-584): one number that says what the nodes of a cluster may write to logs, and so what
//! every node must be able to read. It rises only, when an administrator has it raised; until then a roll to a new
//! release can be undone.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The name of the feature, as clients see it.
pub const FEATURE: &str = "diskless.version";

/// A level of [`FEATURE`]. A cluster whose log says nothing has the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FeatureLevel(pub i16);

impl FeatureLevel {
    /// What the first release writes.
    pub const FIRST: FeatureLevel = FeatureLevel(1);
    /// Logs of shards hold committed files in a packed form.
    pub const PACKED_FILES: FeatureLevel = FeatureLevel(2);
}

impl Default for FeatureLevel {
    fn default() -> Self {
        FeatureLevel::FIRST
    }
}

impl fmt::Display for FeatureLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The levels that a node can write and read: all from `min` to `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeatureLevels {
    /// The lowest one.
    pub min: FeatureLevel,
    /// The highest one.
    pub max: FeatureLevel,
}

impl FeatureLevels {
    /// Of this release.
    pub const SUPPORTED: FeatureLevels = FeatureLevels {
        min: FeatureLevel::FIRST,
        max: FeatureLevel::PACKED_FILES,
    };
    /// Of the first release, which does not tell others.
    pub const FIRST_RELEASE: FeatureLevels = FeatureLevels {
        min: FeatureLevel::FIRST,
        max: FeatureLevel::FIRST,
    };

    /// Whether `level` is one of them.
    pub fn contains(self, level: FeatureLevel) -> bool {
        self.min <= level && level <= self.max
    }
}

impl Default for FeatureLevels {
    fn default() -> Self {
        FeatureLevels::SUPPORTED
    }
}

impl fmt::Display for FeatureLevels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.min, self.max)
    }
}
