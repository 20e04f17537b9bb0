//! Settings of a node: a TOML file, overridden by `DISKLESS_<SECTION>__<KEY>` in the environment.
//!
//! One struct per section. An unknown key is an error, and every error names the setting it is about.

mod listeners;
mod node;
mod storage;
#[cfg(test)]
mod testing;

pub use listeners::{Admin, Internal, Listeners};
pub use node::{Log, LogFormat, Node, Role};
pub use storage::{Cache, Coordinator, Fetch, MetadataLog, ObjectStore, OrphanScan, Produce};

use std::path::Path;
use std::time::Duration;

use figment::Figment;
use figment::providers::{Env, Format, Toml};
use serde::Deserialize;

/// Why a configuration cannot be used. The text names the setting.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file is missing or cannot be read.
    #[error("config file {path}: {reason}")]
    File {
        /// Path as given.
        path: String,
        /// What the system said.
        reason: String,
    },
    /// A key is unknown or missing, or a value has the wrong type.
    #[error("{0}")]
    Syntax(String),
    /// A value that cannot be.
    #[error("{setting}: {reason}")]
    Value {
        /// `section.key`
        setting: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

pub(crate) fn invalid(setting: &'static str, reason: impl Into<String>) -> ConfigError {
    ConfigError::Value {
        setting,
        reason: reason.into(),
    }
}

/// All settings of a node.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Who the node is.
    pub node: Node,
    /// Where everything that must not be lost is kept.
    pub object_store: ObjectStore,
    /// Where the metadata logs are kept.
    #[serde(default)]
    pub metadata_log: MetadataLog,
    /// What Kafka clients connect to; needed with the role `broker`.
    pub listeners: Option<Listeners>,
    /// What the other nodes connect to.
    #[serde(default)]
    pub internal: Internal,
    /// Health and metrics.
    #[serde(default)]
    pub admin: Admin,
    /// Settings of the role `coordinator`.
    #[serde(default)]
    pub coordinator: Coordinator,
    /// Settings of what clients see of the role `broker`.
    #[serde(default)]
    pub broker: Broker,
    /// How produced data is gathered into objects.
    #[serde(default)]
    pub produce: Produce,
    /// How objects are read for consumers.
    #[serde(default)]
    pub fetch: Fetch,
    /// The cache of objects.
    #[serde(default)]
    pub cache: Cache,
    /// The look for objects that a broker left behind when it died between upload and commit.
    #[serde(default)]
    pub orphan_scan: OrphanScan,
    /// Logging.
    #[serde(default)]
    pub log: Log,
    /// The node is the whole cluster (`dev`): there is nobody to wait for.
    #[serde(skip)]
    pub alone: bool,
    /// What no user sets.
    #[serde(skip)]
    pub tuning: Tuning,
}

/// Thresholds and intervals of the inner parts. No user sets them; simulations make them small, so that snapshots, trims
/// and deletions happen within seconds.
#[derive(Clone, Debug, Default)]
pub struct Tuning {
    /// Times of the metadata log's protocol.
    pub metadata_log: metalog::Options,
    /// Bounds of the replicas, and when they take snapshots.
    pub replica: coordinator::replica::Options,
    /// Intervals and grace periods of a shard's background jobs.
    pub jobs: coordinator::shard::JobOptions,
    /// Levels of `diskless.version` that the node supports: fewer are those of an earlier release.
    pub supported: types::FeatureLevels,
}

/// `[broker]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Broker {
    /// A Metadata request that allows it creates topics that do not exist (Kafka: `auto.create.topics.enable`).
    pub auto_create_topics: bool,
}

impl Default for Broker {
    fn default() -> Self {
        Broker {
            auto_create_topics: true,
        }
    }
}

impl Config {
    /// Reads `path` and the environment.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|error| ConfigError::File {
            path: path.display().to_string(),
            reason: error.to_string(),
        })?;
        Config::parse(&text, environment())
    }

    /// Settings of `diskless-broker dev`: one node with both roles on localhost.
    ///
    /// A local folder has no request bill, so every produce request may be flushed at once.
    pub fn dev(data_dir: &Path, port: u16, object_store: Option<&str>) -> Config {
        let local = format!("file://{}", data_dir.join("objects").display());
        let url = object_store.unwrap_or(&local).to_owned();
        let local = !url.starts_with("s3:");
        Config {
            node: Node {
                id: Some(1),
                id_base: None,
                ordinal: None,
                roles: vec![Role::Broker, Role::Coordinator],
                zone: "local".to_owned(),
                data_dir: data_dir.join("node"),
            },
            object_store: ObjectStore {
                url,
                credentials_dir: None,
            },
            metadata_log: MetadataLog::default(),
            listeners: Some(Listeners {
                host: "127.0.0.1".to_owned(),
                advertised_host: "localhost".to_owned(),
                port,
                ..Listeners::default()
            }),
            internal: Internal {
                host: "127.0.0.1".to_owned(),
                port: 0,
                advertised_host: Some("127.0.0.1".to_owned()),
                secret_file: None,
            },
            admin: Admin {
                host: "127.0.0.1".to_owned(),
                port: 0,
            },
            coordinator: Coordinator::default(),
            broker: Broker::default(),
            produce: Produce {
                // A folder costs nothing for each object but processor time: more than this a second would halve what a busy
                // broker moves per core, and 5 ms more or less are not seen by a client.
                puts_per_second: if local { 200 } else { 4 },
                ..Produce::default()
            },
            fetch: Fetch::default(),
            cache: Cache::default(),
            orphan_scan: OrphanScan::default(),
            log: Log::default(),
            alone: true,
            tuning: Tuning::default(),
        }
    }

    fn parse(text: &str, environment: Env) -> Result<Config, ConfigError> {
        let mut config: Config = Figment::from(Toml::string(text))
            .merge(environment)
            .extract()
            .map_err(|error| ConfigError::Syntax(describe(error)))?;
        config.validate()?;
        config.tuning.jobs.file_grace = Duration::from_millis(config.coordinator.file_grace_ms);
        Ok(config)
    }

    fn validate(&self) -> Result<(), ConfigError> {
        self.node.validate()?;
        self.object_store.validate()?;
        self.metadata_log.validate()?;
        self.internal.validate()?;
        let alone = self.has(Role::Broker) && self.has(Role::Coordinator);
        if self.internal.secret_file.is_none() && !alone {
            return Err(invalid(
                "internal.secret_file",
                "missing: the nodes of a cluster know each other by it (only a node with both roles can be alone)",
            ));
        }
        self.coordinator.validate()?;
        self.produce.validate()?;
        self.fetch.validate(&self.coordinator)?;
        self.cache.validate()?;
        if self.has(Role::Broker) {
            let Some(listeners) = &self.listeners else {
                return Err(invalid(
                    "listeners",
                    "missing section: the role \"broker\" needs it",
                ));
            };
            listeners.validate()?;
        }
        self.ports_differ()
    }

    /// Whether the node has a role.
    pub fn has(&self, role: Role) -> bool {
        self.node.roles.contains(&role)
    }

    /// The host other nodes reach this one at.
    pub fn internal_host(&self) -> &str {
        let listeners = self
            .listeners
            .as_ref()
            .map(|listeners| listeners.advertised_host.as_str());
        self.internal
            .advertised_host
            .as_deref()
            .or(listeners)
            .unwrap_or(&self.internal.host)
    }

    fn ports_differ(&self) -> Result<(), ConfigError> {
        let mut used = vec![
            ("internal.port", self.internal.port),
            ("admin.port", self.admin.port),
        ];
        if let Some(listeners) = &self.listeners {
            used.push(("listeners.port", listeners.port));
            used.extend(listeners.zones.values().map(|port| ("listeners.zones", *port)));
        }
        used.sort_by_key(|(_, port)| *port);
        for pair in used.windows(2) {
            if let [(first, a), (second, b)] = pair
                && a == b
                && *a != 0
            {
                return Err(invalid(second, format!("port {b} is also used by {first}")));
            }
        }
        Ok(())
    }
}

/// Only names with a section: `DISKLESS_CACHE` and the like belong to other tools. An empty variable is none: that is
/// what Kubernetes makes of a label that a pod does not have.
fn environment() -> Env {
    let prefixed = Env::prefixed("DISKLESS_");
    let empty = prefixed.iter().filter(|(_, value)| value.is_empty());
    let empty: Vec<_> = empty.map(|(key, _)| key).collect();
    prefixed
        .filter(move |key| key.as_str().contains("__") && !empty.iter().any(|empty| empty == key))
        .split("__")
}

/// Figment's text, with the path of the key in front.
fn describe(error: figment::Error) -> String {
    let all: Vec<String> = error
        .into_iter()
        .map(|error| {
            let path = error.path.join(".");
            let source = error.metadata.as_ref().map(|metadata| metadata.name.to_string());
            let text = match source {
                Some(source) if source.contains("environment") => {
                    format!("{} (from the environment)", error.kind)
                }
                _ => error.kind.to_string(),
            };
            if path.is_empty() {
                text
            } else {
                format!("{path}: {text}")
            }
        })
        .collect();
    all.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const BROKER: &str = r#"
        [node]
        id = 1001
        roles = ["broker"]
        zone = "a"
        data_dir = "/var/lib/diskless"
        [object_store]
        url = "s3://bucket/prefix?region=us-east-1"
        [listeners]
        host = "0.0.0.0"
        advertised_host = "demo-a-0"
        port = 9092
        zones = { a = 9093, b = 9094 }
        [internal]
        advertised_host = "demo-a-0"
        secret_file = "/etc/diskless/internal/secret"
    "#;

    fn parse(text: &str) -> Result<Config, ConfigError> {
        Config::parse(text, Env::raw().only(&["nothing"]))
    }

    fn error(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    #[test]
    fn the_documented_file_is_read() {
        let config = parse(BROKER).unwrap();
        assert_eq!(config.node.node_id(), types::NodeId(1001));
        assert_eq!(config.produce.flush_bytes, 4 << 20);
        assert_eq!(config.listeners.as_ref().unwrap().zones["b"], 9094);
        assert_eq!((config.internal.port, config.admin.port), (9190, 9644));
        assert!(config.broker.auto_create_topics);
        assert_eq!(config.internal_host(), "demo-a-0");
    }

    #[test]
    fn pods_get_their_id_from_base_and_ordinal() {
        let text = BROKER.replace("id = 1001", "id_base = 2000\nordinal = 3");
        assert_eq!(parse(&text).unwrap().node.node_id(), types::NodeId(2003));
    }

    #[test]
    fn unknown_keys_are_named() {
        let text = format!("{BROKER}\n[produce]\nflush_byte = 1");
        assert!(error(&text).contains("flush_byte"), "{}", error(&text));
        let text = format!("{BROKER}\n[prodduce]\nflush_bytes = 1");
        assert!(error(&text).contains("prodduce"), "{}", error(&text));
    }

    #[test]
    fn wrong_values_name_the_setting() {
        let cases = [
            ("id = 1001", "id = -1", "node.id"),
            ("id = 1001", "id = \"x\"", "node.id"),
            ("id = 1001", "", "node.id"),
            ("id = 1001", "id_base = 1000", "node.ordinal"),
            ("id = 1001", "id = 1\nid_base = 1000\nordinal = 1", "node.id"),
            ("roles = [\"broker\"]", "roles = []", "node.roles"),
            ("roles = [\"broker\"]", "roles = [\"brokr\"]", "node.roles"),
            ("zone = \"a\"", "zone = \"\"", "node.zone"),
            ("s3://bucket/prefix?region=us-east-1", "", "object_store.url"),
            ("port = 9092", "port = 9093", "listeners.zones"),
            ("port = 9092", "port = 99999", "listeners.port"),
            (
                "advertised_host = \"demo-a-0\"\n        port",
                "advertised_host = \"\"\n port",
                "listeners.advertised_host",
            ),
            ("[internal]", "[internal]\nport = 9092", "9092"),
            (
                "[internal]",
                "[produce]\nflush_bytes = 0\n[internal]",
                "produce.flush_bytes",
            ),
            (
                "[internal]",
                "[produce]\nmemory_bytes = 1000\n[internal]",
                "produce.memory_bytes",
            ),
            (
                "[internal]",
                "[fetch]\nmemory_bytes = 1000\n[internal]",
                "fetch.memory_bytes",
            ),
            (
                "[internal]",
                "[coordinator]\nmetadata_partitions = 0\n[internal]",
                "coordinator.metadata_partitions",
            ),
            (
                "[internal]",
                "[coordinator]\nnum_partitions = 0\n[internal]",
                "coordinator.num_partitions",
            ),
            (
                "[internal]",
                "[coordinator]\nnum_partitions = 10001\n[internal]",
                "coordinator.num_partitions",
            ),
        ];
        for (from, to, named) in cases {
            assert!(BROKER.contains(from), "{from}");
            let message = error(&BROKER.replace(from, to));
            assert!(message.contains(named), "{to}: {message}");
        }
    }

    #[test]
    fn the_metadata_log_is_in_the_object_store_or_in_a_database_named_without_a_password() {
        let with = |url: &str| format!("{BROKER}\n[metadata_log]\nurl = \"{url}\"\n");
        assert!(parse(BROKER).unwrap().metadata_log.postgres().is_none());
        assert!(parse(&with("object")).unwrap().metadata_log.postgres().is_none());
        let settings = parse(&with("postgres://diskless@a:1,b:2/logs?sslmode=disable"))
            .unwrap()
            .metadata_log
            .postgres();
        assert_eq!(settings.unwrap().cluster, "default");
        for wrong in [
            "s3://bucket",
            "postgres://a/logs",
            "postgres://u@/logs",
            "postgres://u@a:none/logs",
            "postgres://u:secret@a/logs",
        ] {
            let message = error(&with(wrong));
            assert!(
                message.starts_with("metadata_log.url: ") && !message.contains("secret"),
                "{wrong}: {message}"
            );
        }
    }

    #[test]
    fn the_grace_of_files_is_longer_than_any_read() {
        let with = |text: &str| format!("{BROKER}\n{text}");
        for text in [
            "[coordinator]\nfile_grace_ms = 75000",
            "[fetch]\nread_timeout_ms = 540000",
            "[fetch]\ncoordinates_max_age_ms = 585000",
        ] {
            let message = error(&with(text));
            for setting in [
                "coordinator.file_grace_ms",
                "fetch.read_timeout_ms",
                "fetch.coordinates_max_age_ms",
            ] {
                assert!(message.contains(setting), "{text}: {message}");
            }
        }
        let config = parse(&with("[coordinator]\nfile_grace_ms = 75001")).unwrap();
        assert_eq!(config.tuning.jobs.file_grace, Duration::from_millis(75_001));
    }

    #[test]
    fn answers_may_take_half_as_much_memory_as_the_cache_unless_it_is_said() {
        let memory = |text: &str| {
            let config = parse(&format!("{BROKER}\n{text}")).unwrap();
            config.fetch.memory(&config.cache) >> 20
        };
        assert_eq!(memory(""), 128);
        assert_eq!(memory("[cache]\nmemory_bytes = 1048576"), 32);
        assert_eq!(memory("[cache]\nmemory_bytes = 10737418240"), 256);
        assert_eq!(memory("[fetch]\nmemory_bytes = 1048576"), 1);
    }

    #[test]
    fn a_broker_needs_listeners_and_a_coordinator_does_not() {
        let (head, rest) = BROKER.split_once("[listeners]").unwrap();
        let (_, internal) = rest.split_once("[internal]").unwrap();
        let head = format!("{head}[internal]{internal}");
        assert!(error(&head).contains("listeners"));
        let coordinator = head.replace("[\"broker\"]", "[\"coordinator\"]");
        parse(&coordinator).unwrap();
    }

    #[test]
    fn only_a_node_that_is_the_whole_cluster_needs_no_secret() {
        let text = BROKER.replace("secret_file", "#");
        assert!(error(&text).contains("internal.secret_file"), "{}", error(&text));
        parse(&text.replace("[\"broker\"]", "[\"broker\", \"coordinator\"]")).unwrap();
    }

    #[test]
    #[allow(clippy::result_large_err, reason = "the signature is figment's")]
    fn the_environment_overrides_the_file() {
        figment::Jail::expect_with(|jail| {
            jail.set_env("DISKLESS_NODE__ZONE", "b");
            jail.set_env("DISKLESS_PRODUCE__FLUSH_INTERVAL_MS", "10");
            jail.set_env("DISKLESS_CACHE", "/somewhere");
            jail.set_env("DISKLESS_INTERNAL__ADVERTISED_HOST", "");
            let config = Config::parse(BROKER, environment()).unwrap();
            assert_eq!(
                (config.node.zone.as_str(), config.produce.flush_interval_ms),
                ("b", 10)
            );
            assert_eq!(config.internal_host(), "demo-a-0");
            jail.set_env("DISKLESS_PRODUCE__FLUSH", "10");
            let message = Config::parse(BROKER, environment()).unwrap_err().to_string();
            assert!(
                message.contains("flush") && message.contains("produce"),
                "{message}"
            );
            Ok(())
        });
    }

    #[test]
    fn dev_settings_are_valid() {
        let config = Config::dev(Path::new("/tmp/x"), 9092, None);
        config.validate().unwrap();
        assert_eq!(config.object_store.url, "file:///tmp/x/objects");
        assert_eq!(
            Config::dev(Path::new("/tmp/x"), 9092, Some("s3://b"))
                .produce
                .puts_per_second,
            4
        );
    }
}
