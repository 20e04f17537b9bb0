//! End-to-end tests: real processes, real clients, a real S3 server, a real API server, real kills.
//!
//! The library is the harness; the tests are in `tests/`. Nothing here runs in the simulation, so the rules of the
//! crate `env` do not apply.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    missing_docs,
    reason = "tests"
)]

pub mod apiserver;
pub mod clients;
pub use history;
pub mod netns;
pub mod node;
pub mod postgres;
pub mod s3;
pub mod s3_proxy;
pub mod wire;

use std::path::PathBuf;

/// The repository's root folder: that of the checkout which cargo runs this in. Where checkouts share a target folder, the
/// test may have been compiled from another.
pub fn root() -> PathBuf {
    let run_by_cargo = std::env::var_os("CARGO_MANIFEST_DIR");
    let package = run_by_cargo.map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    package.join("..")
}
