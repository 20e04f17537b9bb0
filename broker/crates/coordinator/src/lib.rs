//! The Diskless Coordinator (KIP-1164): it decides where every record batch stands, and remembers where its bytes lie.
//!
//! ```text
//!   RPC ──▶ ShardService ──▶ ReplicaHandle ──▶ Replica (actor, a thread of its own)
//!             │                                  │ judge ▸ log ▸ apply
//!             │ read-only connections            ▼
//!             └───────────────────────────▶ ShardState (SQLite view)      metalog (the truth)
//! ```
//!
//! - [`replica`]: what every replicated log has in common. A command is judged against committed and pending state,
//!   what it comes to is appended to the metadata log, and only when it is durable there is it applied and answered.
//! - [`shard`]: one partition of `__diskless_metadata`: batches, files, producers, groups and offsets. Its SQLite file
//!   is a view that can be deleted at any moment; it is rebuilt from snapshot and log whenever a shard is opened.
//! - [`protocol`]: the RPCs as they travel on the internal listener.
//! - [`codes`]: the Kafka error codes they answer with.
pub mod codes;
pub mod fuzz_entry;
pub mod protocol;
pub mod replica;
pub mod shard;
