use std::path::PathBuf;

use cluster::state::MAX_NEW_PARTITIONS;
use metalog::PostgresSettings;
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

/// `[metadata_log]`: where the metadata logs are kept. The same for all nodes, and for the life of the cluster.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MetadataLog {
    /// `object` (in the object store), or the database `postgres://user@host[:port][,host…]/name`, without a password. The
    /// connection uses TLS and verifies the server's certificate, unless the URL ends with `?sslmode=disable`.
    pub url: String,
    /// File with the database's password.
    pub password_file: Option<PathBuf>,
    /// PEM file of the authorities that sign the database's certificate; without it the system's.
    pub ca_file: Option<PathBuf>,
    /// Name of this cluster in the database, which may hold several.
    pub cluster: String,
}

impl Default for MetadataLog {
    fn default() -> Self {
        MetadataLog {
            url: "object".to_owned(),
            password_file: None,
            ca_file: None,
            cluster: "default".to_owned(),
        }
    }
}

impl MetadataLog {
    /// The database; `None` if the logs are in the object store.
    pub fn postgres(&self) -> Option<PostgresSettings> {
        (self.url != "object").then(|| PostgresSettings {
            url: self.url.clone(),
            password_file: self.password_file.clone(),
            ca_file: self.ca_file.clone(),
            cluster: self.cluster.clone(),
        })
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        if self.cluster.is_empty() {
            return Err(invalid("metadata_log.cluster", "must not be empty"));
        }
        match self.postgres().and_then(|settings| settings.problem()) {
            Some(problem) => Err(invalid("metadata_log.url", problem)),
            None => Ok(()),
        }
    }
}

/// `[coordinator]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Coordinator {
    /// Partitions of `__diskless_metadata`. Used when the cluster is formed. A higher number later adds partitions, for new partitions of
    /// topics only: nothing that exists moves, and groups stay on those that the cluster was formed with.
    pub metadata_partitions: u32,
    /// Partitions of a topic that is created without a number, by a request or automatically (Kafka: `num.partitions`). What
    /// counts is the setting of the coordinator that is the controller; every broker shows that one.
    pub num_partitions: u32,
    /// An object is deleted so long after its last record, in milliseconds: longer than any reader can still be busy with
    /// it, that is more than `fetch.read_timeout_ms` and `fetch.coordinates_max_age_ms` together. A node does not start
    /// otherwise; a broker whose own settings are too long for the coordinators' logs an error.
    pub file_grace_ms: u64,
}

impl Default for Coordinator {
    fn default() -> Self {
        Coordinator {
            metadata_partitions: 3,
            num_partitions: 1,
            file_grace_ms: 600_000,
        }
    }
}

impl Coordinator {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        if !(1..=1024).contains(&self.metadata_partitions) {
            return Err(invalid("coordinator.metadata_partitions", "must be 1 to 1024"));
        }
        if !(1..=MAX_NEW_PARTITIONS).contains(&self.num_partitions) {
            let text = format!("must be 1 to {MAX_NEW_PARTITIONS}");
            return Err(invalid("coordinator.num_partitions", text));
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
    /// Bound of the memory for requests of producers and for produced data that is not in the object store yet, in bytes.
    /// Beyond it sockets are not read. No request can be larger.
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

/// `[fetch]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Fetch {
    /// Longest read for a consumer, from the look-up of where its batches lie to the last of them, all retries included, in
    /// milliseconds. Clients give up after `request.timeout.ms`, 30 seconds by default.
    pub read_timeout_ms: u64,
    /// A broker that has not heard from a metadata partition for so long forgets where its batches lie, in milliseconds.
    pub coordinates_max_age_ms: u64,
    /// Bound of what answers to consumers keep in memory until they are written, in bytes. The closer it is, the smaller they
    /// become. Answers to the brokers of the zone may take half as much again. Without it half of `cache.memory_bytes`, but at
    /// least 32 MiB and at most 256 MiB.
    pub memory_bytes: Option<u64>,
}

impl Default for Fetch {
    fn default() -> Self {
        Fetch {
            read_timeout_ms: 15_000,
            coordinates_max_age_ms: 60_000,
            memory_bytes: None,
        }
    }
}

impl Fetch {
    /// Bound of what answers keep in memory, in bytes.
    pub fn memory(&self, cache: &Cache) -> u64 {
        let usual = (cache.memory_bytes / 2).clamp(32 << 20, 256 << 20);
        self.memory_bytes.unwrap_or(usual)
    }

    pub(super) fn validate(&self, coordinator: &Coordinator) -> Result<(), ConfigError> {
        if self.read_timeout_ms == 0 {
            return Err(invalid("fetch.read_timeout_ms", "must be at least 1"));
        }
        if self.coordinates_max_age_ms < 100 {
            return Err(invalid("fetch.coordinates_max_age_ms", "must be at least 100"));
        }
        if self.memory_bytes.is_some_and(|bytes| bytes < 1 << 20) {
            return Err(invalid("fetch.memory_bytes", "must be at least 1048576"));
        }
        self.fits(coordinator.file_grace_ms)
            .map_err(|problem| invalid("coordinator.file_grace_ms", problem))
    }

    /// Whether objects that are deleted so long after their last record, in milliseconds, are there for all reads; if not, what
    /// to say of it.
    pub(crate) fn fits(&self, file_grace_ms: u64) -> Result<(), String> {
        let longest = self.read_timeout_ms.saturating_add(self.coordinates_max_age_ms);
        if file_grace_ms > longest {
            return Ok(());
        }
        Err(format!(
            "{file_grace_ms} is too short: a read may end {longest} ms after an object has died \
             (fetch.read_timeout_ms {} + fetch.coordinates_max_age_ms {})",
            self.read_timeout_ms, self.coordinates_max_age_ms
        ))
    }
}

/// `[orphan_scan]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OrphanScan {
    /// Pause between two scans, in milliseconds; 0: none. A scan lists all of `wal/`.
    pub interval_ms: u64,
    /// Objects younger than this are not looked at, in milliseconds: their commits may be on their way.
    pub min_age_ms: u64,
}

impl Default for OrphanScan {
    fn default() -> Self {
        OrphanScan {
            interval_ms: 86_400_000,
            min_age_ms: 3_600_000,
        }
    }
}
