//! Logs.

use tracing_subscriber::EnvFilter;

use crate::cli::LogFormat;

/// Starts logging to standard error in the given form; RUST_LOG sets the level (default: info).
pub fn init(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Text => builder.init(),
        LogFormat::Json => builder.json().init(),
    }
}
