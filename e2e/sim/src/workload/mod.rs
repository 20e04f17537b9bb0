//! What clients do.

mod admin;
mod after;
mod consumers;
mod members;
mod producers;

pub(crate) use admin::{audit, come_and_go, commit_offsets, delete_records, grow};
pub(crate) use after::{batch_bytes, check_leaks, check_retention};
pub(crate) use consumers::consume;
pub(crate) use members::run_group;
pub(crate) use producers::{Work, produce_idempotent, produce_late, produce_once, repeat};

use std::time::Duration;

/// After a failure.
const PAUSE: Duration = Duration::from_millis(100);
