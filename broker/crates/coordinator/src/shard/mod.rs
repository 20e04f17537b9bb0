//! One partition of `__diskless_metadata` (a *shard*): which batches its partitions hold and where their bytes lie.
//!
//! ```text
//!  partitions ──num──▶ batches ──file──▶ files ──object──▶ object store
//!      │ log start,     (num, last offset)   live batches here, owner chain
//!      │ high watermark                      LIVE ▸ DEAD ▸ handed over or deleted (tombstone) ▸ gone
//!      └─num──▶ producers (last five batches each)       groups, offsets
//! ```
//!
//! - *Judging* reads committed state and a small overlay of what is pending in memory; it writes nothing to SQLite.
//!   What it decides is logged in full ([`entry`]), so applying is blind.
//! - *Applying* a slot is one SQLite transaction, which also stores the slot's offset.
//! - *Deleting* is two steps: the log start moves (or the topic is forgotten) at once; the batches below it, and the producers and group
//!   offsets of a deleted topic, become garbage that [`Command::Purge`] removes in bounded steps, so no commit waits for a large deletion.
//! - *Files* die here when their last batch is purged. The first of the remaining owners holds a file; it hands a dead
//!   one to the next, and the last one deletes the object after a grace. A tombstone stays for a day: a commit
//!   that comes too late is refused, not accepted without its bytes.
//! - *Reads* use connections of their own, see committed state only, and never wait for the leader. What one costs does not depend on how
//!   many batches a partition has (`tests/cost.rs`); for times there is an index ([`time_index`]).
//! - *Followers* apply the same slots to a view of their own, find batches in it, and take over with it.
//! - *Size* follows what is live, not what was ever written (`tests/growth.rs` lives through a week). The view takes up to 60
//!   bytes for each live batch, 120 for each file until a day after its death, 200 for each producer of a partition in
//!   the last day, and a third of all that for pages that are free. The log is kept from the snapshot before the newest on, and
//!   until an hour after it could go; so are three or four snapshots.

mod apply;
mod command;
mod describe;
pub(crate) mod entry;
mod files;
mod groups;
mod jobs;
mod judge;
mod packed;
pub(crate) mod producer;
mod purge;
mod queries;
mod readers;
mod results;
mod schema;
mod service;
pub(crate) mod snapshot;
mod state;
mod tail;
mod time_index;
mod views;

#[cfg(test)]
mod tests;

pub use command::{Command, Expired, OffsetCommit, Output};
pub use groups::{StoredGroup, StoredOffset};
pub use jobs::{DescribeFiles, HandOver, JobOptions, Jobs, RetentionConfig, RetentionOf};
pub use service::{ShardOptions, ShardService};
pub use state::{Features, ShardState};
pub use views::{delete_view, views};
