//! Log lines, for people or as JSON.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

use crate::config::{ConfigError, Log, LogFormat, invalid};

/// Starts logging to standard error. `RUST_LOG` wins over `log.level`.
pub fn start(log: &Log) -> Result<(), ConfigError> {
    let filter = match std::env::var("RUST_LOG") {
        Ok(level) if !level.is_empty() => {
            EnvFilter::try_new(&level).map_err(|error| invalid("RUST_LOG", error.to_string()))?
        }
        _ => EnvFilter::try_new(&log.level).map_err(|error| invalid("log.level", error.to_string()))?,
    };
    let registry = tracing_subscriber::registry().with(filter);
    // Colours are for a terminal; in a file they would only be in the way.
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    let started: Result<(), TryInitError> = match log.format {
        LogFormat::Text => registry.with(lines).try_init(),
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).try_init(),
    };
    // A test process starts several nodes; the first one's settings hold.
    if let Err(error) = started {
        tracing::debug!(%error, "logging was started before");
    }
    Ok(())
}
