//! The broker process: Kafka's protocol towards clients, the Diskless RPCs towards the other nodes.
//!
//! [`server`] builds the graph of services; everything below it is handed its dependencies.

pub mod admin;
pub mod api;
pub mod auth;
pub mod config;
pub mod controller_host;
pub mod coordinator_host;
pub mod fetch;
pub mod fuzz_entry;
mod hedging;
pub mod internal;
pub mod membership;
pub mod metadata;
pub mod metrics;
pub mod net;
pub mod orphans;
pub mod produce;
pub mod rpc;
pub mod server;
pub mod stores;
pub mod telemetry;
