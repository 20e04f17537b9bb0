use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

use super::{ConfigError, invalid};

/// `[listeners]`: what Kafka clients connect to.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Listeners {
    /// Address to bind.
    pub host: String,
    /// Host that clients are told to connect to.
    pub advertised_host: String,
    /// Port for clients of unknown zone; 0 = any.
    pub port: u16,
    /// Port for the clients of each zone.
    pub zones: BTreeMap<String, u16>,
    /// Connections served at the same time, over all ports; more are closed at once.
    pub max_connections: usize,
}

impl Default for Listeners {
    fn default() -> Self {
        Listeners {
            host: "0.0.0.0".to_owned(),
            advertised_host: String::new(),
            port: 9092,
            zones: BTreeMap::new(),
            max_connections: 10_000,
        }
    }
}

impl Listeners {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        if self.advertised_host.is_empty() {
            return Err(invalid(
                "listeners.advertised_host",
                "missing: clients must be told where to connect",
            ));
        }
        if self.max_connections == 0 {
            return Err(invalid("listeners.max_connections", "must be at least 1"));
        }
        if self.zones.keys().any(String::is_empty) {
            return Err(invalid("listeners.zones", "a zone must have a name"));
        }
        Ok(())
    }
}

/// `[internal]`: what the other nodes connect to.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Internal {
    /// Address to bind.
    pub host: String,
    /// Port to bind; 0 = any.
    pub port: u16,
    /// Host that other nodes connect to; default: `listeners.advertised_host`, then `internal.host`.
    pub advertised_host: Option<String>,
    /// File with the secret by which the nodes of a cluster know each other, the same on all of them: 16 to 1024 bytes.
    /// It is read again when it changes. A node with both roles may do without; it is then the whole cluster.
    pub secret_file: Option<PathBuf>,
}

impl Default for Internal {
    fn default() -> Self {
        Internal {
            host: "0.0.0.0".to_owned(),
            port: 9190,
            advertised_host: None,
            secret_file: None,
        }
    }
}

impl Internal {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        if self.advertised_host.as_deref() == Some("") {
            return Err(invalid("internal.advertised_host", "must not be empty"));
        }
        Ok(())
    }
}

/// `[admin]`: `/healthz`, `/readyz`, `/metrics`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Admin {
    /// Address to bind.
    pub host: String,
    /// Port to bind; 0 = any.
    pub port: u16,
}

impl Default for Admin {
    fn default() -> Self {
        Admin {
            host: "0.0.0.0".to_owned(),
            port: 9644,
        }
    }
}
