//! Cluster metadata: which topics there are, who is alive, and who leads which shard.
//!
//! ```text
//!             admin requests                     heartbeats (long poll)
//!                  │                                   │
//!                  ▼                                   ▼
//!  ControllerService ── commands ─▶ ClusterState   Controller ◀── what is committed
//!      │                            (log `cluster`)    │
//!      │ sagas: intent ▸ RPC to shards ▸ done          ▼
//!      ▼                                          MetadataImage, shards to lead
//!   ShardRpc
//! ```
//!
//! - [`state`]: what must not be forgotten (topics, their configs and shards, producer ids), rebuilt from the log
//!   `cluster`. Whoever leads that log is the *controller*.
//! - [`controller`]: what is true only now (live nodes, leaders of shards). It is never logged, so that an idle cluster
//!   writes nothing; a new controller learns it from the next heartbeats.
//! - [`image`]: both together, as every node knows it.
//! - Creating, growing and deleting topics concerns several logs. The log `cluster` takes the intent, every shard
//!   concerned is told until it has answered, then the log takes the result. Clients see only what is done, except that
//!   a deleted topic is gone at once. A new controller takes up whatever is unfinished.
//! - [`configs`]: the topic configurations that are served, and how they are described.

mod admin;
mod command;
pub mod configs;
pub mod controller;
mod describe;
mod entry;
mod error;
pub mod fuzz_entry;
pub mod image;
mod names;
mod picture;
pub mod placement;
pub mod protocol;
mod sagas;
mod service;
pub mod state;

#[cfg(test)]
mod tests;

pub use describe::{BrokerConfig, broker_configs, describe_broker, describe_topic};
pub use error::ApiError;
pub use sagas::{RpcError, ShardRpc};
pub use service::{ControllerService, Settings};
