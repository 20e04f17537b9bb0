//! Classic consumer groups (the protocol of JoinGroup and SyncGroup), as Apache Kafka's group coordinator serves them.
//!
//! ```text
//!             join (first member)              all joined, or time is over
//!   Empty ─────────────────────▶ Preparing ───────────────────────────────▶ Completing
//!     ▲                            ▲    │                                        │ leader's assignment
//!     │ last member left           │    └──────────────┐                         ▼
//!     └────────────────────────────┴─ join, leave, session over ───────────── Stable
//! ```
//!
//! - [`group`]: one group, a pure state machine. Requests that wait are tickets; it says when which is answered.
//! - [`service`]: all groups of a shard. It owns the tickets and the timers, keeps groups and offsets in the shard's log
//!   (crate `coordinator`), and restores them when the shard is opened: a take-over needs no rebalance.
//!
//! Members learn of their assignment only when its generation is durable. Time-outs are the leader's own: a group that moves starts
//! them anew.

mod describe;
mod expiry;
pub mod fuzz_entry;
mod group;
mod offsets;
mod record;
mod saves;
mod service;
mod settings;
mod subscription;

pub use service::GroupService;
pub use settings::GroupSettings;
