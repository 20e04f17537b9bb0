use std::path::PathBuf;

use serde::Deserialize;

use super::{ConfigError, invalid};

/// `[object_store]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectStore {
    /// `s3://bucket/prefix?…` or `file:///directory`.
    pub url: String,
    /// Folder with the files `access_key_id` and `secret_access_key`; without it the default AWS chain is asked.
    pub credentials_dir: Option<PathBuf>,
}

impl ObjectStore {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        if self.url.is_empty() {
            return Err(invalid("object_store.url", "must not be empty"));
        }
        Ok(())
    }
}

/// `[coordinator]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Coordinator {
    /// Partitions of `__diskless_metadata`. Used when the cluster is formed; a higher number later adds partitions.
    pub metadata_partitions: u32,
}

impl Default for Coordinator {
    fn default() -> Self {
        Coordinator {
            metadata_partitions: 3,
        }
    }
}

impl Coordinator {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        if !(1..=1024).contains(&self.metadata_partitions) {
            return Err(invalid("coordinator.metadata_partitions", "must be 1 to 1024"));
        }
        Ok(())
    }
}

/// `[produce]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Produce {
    /// A WAL object is written when so many bytes are gathered…
    pub flush_bytes: usize,
    /// …or when the first of them has waited so long, in milliseconds…
    pub flush_interval_ms: u64,
    /// …or at once, while fewer than so many objects a second are written.
    pub puts_per_second: u32,
    /// Bound of produced data that is not acknowledged yet, in bytes. Beyond it sockets are not read.
    pub memory_bytes: usize,
}

impl Default for Produce {
    fn default() -> Self {
        Produce {
            flush_bytes: 4 << 20,
            flush_interval_ms: 250,
            puts_per_second: 4,
            memory_bytes: 256 << 20,
        }
    }
}

impl Produce {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        // Positions in an object are 32 bits wide, and a segment may pass `flush_bytes` by a frame.
        if !(1..=1 << 30).contains(&self.flush_bytes) {
            return Err(invalid("produce.flush_bytes", "must be 1 to 1073741824"));
        }
        if self.flush_interval_ms > 60_000 {
            return Err(invalid("produce.flush_interval_ms", "must be at most 60000"));
        }
        if self.memory_bytes < 1 << 20 {
            return Err(invalid("produce.memory_bytes", "must be at least 1048576"));
        }
        Ok(())
    }
}

/// `[cache]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cache {
    /// Size of the cache of WAL objects, in bytes.
    pub memory_bytes: u64,
}

impl Default for Cache {
    fn default() -> Self {
        Cache {
            memory_bytes: 256 << 20,
        }
    }
}

impl Cache {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        if self.memory_bytes < 1 << 20 {
            return Err(invalid("cache.memory_bytes", "must be at least 1048576"));
        }
        Ok(())
    }
}
