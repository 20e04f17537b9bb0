use std::path::PathBuf;

use serde::Deserialize;
use types::NodeId;

use super::{ConfigError, invalid};

/// What a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Serves Kafka clients.
    Broker,
    /// Leads metadata partitions.
    Coordinator,
}

/// `[node]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Unique over all brokers and coordinators of the cluster.
    pub id: Option<i32>,
    /// Instead of `id`: the id is `id_base + ordinal`.
    pub id_base: Option<i32>,
    /// Index of the pod in its StatefulSet.
    pub ordinal: Option<i32>,
    /// At least one.
    pub roles: Vec<Role>,
    /// Zone the node runs in.
    pub zone: String,
    /// Folder of caches and SQLite views; may be deleted at any moment.
    pub data_dir: PathBuf,
}

impl Node {
    /// The id of the node.
    pub fn node_id(&self) -> NodeId {
        let from_ordinal = || Some(self.id_base?.saturating_add(self.ordinal?));
        NodeId(self.id.or_else(from_ordinal).unwrap_or(-1))
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        match (self.id, self.id_base, self.ordinal) {
            (Some(_), None, _) | (None, Some(_), Some(_)) => {}
            (Some(_), Some(_), _) => return Err(invalid("node.id", "cannot be combined with node.id_base")),
            (None, Some(_), None) => return Err(invalid("node.ordinal", "missing: node.id_base needs it")),
            (None, None, _) => {
                return Err(invalid(
                    "node.id",
                    "missing (or give node.id_base and node.ordinal)",
                ));
            }
        }
        if self.ordinal.is_some_and(|ordinal| ordinal < 0) {
            return Err(invalid("node.ordinal", "must not be negative"));
        }
        if self.node_id().0 < 0 {
            return Err(invalid(
                "node.id",
                format!("must be 0 or more, is {}", self.node_id()),
            ));
        }
        if self.roles.is_empty() {
            return Err(invalid(
                "node.roles",
                "must name \"broker\", \"coordinator\" or both",
            ));
        }
        if self.zone.is_empty() {
            return Err(invalid("node.zone", "must not be empty"));
        }
        Ok(())
    }
}

/// `[log]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// How lines look.
    pub format: LogFormat,
    /// A `tracing` filter such as `info` or `broker=debug,info`; the variable `RUST_LOG` wins.
    pub level: String,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl Default for Log {
    fn default() -> Self {
        Log {
            format: LogFormat::Text,
            level: "info".to_owned(),
        }
    }
}
