//! What every replicated log of the cluster has in common: one leader that judges commands, logs what they
//! come to, and applies it only when it is durable.
//!
//! ```text
//!  command ─▶ speculate ─▶ group ─▶ slot in flight ─▶ durable ─▶ rollback ─▶ apply + commit ─▶ answer
//!                 ▲ pending state = committed + everything logged but not yet durable │
//!                 └──────────────── the next group is judged again ◀──────────────────┘
//! ```
//!
//! One group is in flight, one accumulates (bounded). Committed state never contains an operation that is
//! not durable, so a deposed leader has nothing to undo.
//!
//! A [`StateMachine`] holds the state; [`start`] opens the log (taking it over from whoever leads it), brings the
//! state up to its end and serves; the [`ReplicaHandle`] is how everybody else talks to it. [`follow`] makes a replica
//! that only reads the log and keeps its state warm, until [`ReplicaHandle::lead`] has it take the log over.

mod actor;
mod follower;
mod handle;
mod leader;
mod open;

#[cfg(test)]
pub(crate) mod tests;

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use metalog::{Slot, SnapshotBody};
use types::{LogOffset, Timestamp};

pub use actor::{follow, start};
pub use handle::{End, ReplicaError, ReplicaHandle, Status};

/// State that is rebuilt from a log. Synchronous; no clock, no I/O but its own file.
pub trait StateMachine: Send + 'static {
    /// A request to change the state.
    type Command: Send + 'static;
    /// The answer to a command.
    type Output: Send + 'static;
    /// A snapshot that is being received.
    type Staged: Staged;

    /// Judges `command` against committed and pending state and makes its effect pending. Entries carry everything
    /// that was decided (offsets, times, ids), so that [`StateMachine::apply`] is blind. A command may
    /// be judged several times, with the same `now`; the last judgement counts.
    fn speculate(
        &mut self,
        now: Timestamp,
        command: &Self::Command,
    ) -> Result<Speculated<Self::Output>, StateError>;

    /// Takes all pending state back.
    fn rollback(&mut self) -> Result<(), StateError>;

    /// Makes logged entries part of the committed state, all or nothing. `offset` is the position of their slot; a
    /// slot that is already applied does nothing. Called without pending state.
    fn apply(&mut self, offset: LogOffset, entries: &[Bytes]) -> Result<(), StateError>;

    /// Like [`StateMachine::apply`] for slots that follow each other, while catching up.
    fn apply_slots(&mut self, slots: &[Slot]) -> Result<(), StateError> {
        for slot in slots {
            self.apply(slot.offset, &slot.entries)?;
        }
        Ok(())
    }

    /// The last slot that is part of the committed state.
    fn applied(&self) -> Option<LogOffset>;

    /// Begins a snapshot of the committed state. The work is done by the returned job on another thread, beside the commands
    /// that follow.
    fn begin_snapshot(&mut self) -> Result<SnapshotJob, StateError>;

    /// Where the bytes of a snapshot go until they are known to be what was written. The state stays as it is.
    fn stage(&mut self) -> Result<Self::Staged, StateError>;

    /// Replaces the state by a snapshot taken at `offset`.
    fn restore(&mut self, offset: LogOffset, snapshot: Self::Staged) -> Result<(), StateError>;
}

/// Makes a snapshot: the last slot that is in it, and its bytes.
pub type SnapshotJob = Box<dyn FnOnce() -> Result<(LogOffset, SnapshotBody), StateError> + Send>;

/// Takes a snapshot in, piece by piece.
pub trait Staged: Send {
    /// The bytes that come next.
    fn push(&mut self, piece: &[u8]) -> Result<(), StateError>;
}

/// For states that are in memory anyway.
impl Staged for BytesMut {
    fn push(&mut self, piece: &[u8]) -> Result<(), StateError> {
        self.extend_from_slice(piece);
        Ok(())
    }
}

/// What a command came to.
#[derive(Debug)]
pub struct Speculated<O> {
    /// The answer, to be given once `entry` is durable.
    pub output: O,
    /// What to log; `None`: nothing changes (the answer still waits for what is pending before it).
    pub entry: Option<Bytes>,
}

/// The state cannot go on; the replica stops and is rebuilt.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// An entry or snapshot that cannot be read, or that contradicts the state.
    #[error("corrupt metadata: {0}")]
    Corrupt(String),
    /// What a later release has written, in a version that this node does not read.
    #[error("metadata of a later release: {0}")]
    Unsupported(String),
    /// The local view is broken; it can be deleted and rebuilt.
    #[error("local view: {0}")]
    View(String),
}

/// Bounds and intervals of a replica.
#[derive(Clone, Debug)]
pub struct Options {
    /// Commands that wait to be judged; more wait in [`ReplicaHandle::submit`].
    pub queue: usize,
    /// Most commands in a slot.
    pub group_commands: usize,
    /// About the most bytes of entries in a slot. Bounds how long it takes to judge a group again.
    pub group_bytes: usize,
    /// Largest entry, in bytes: a command that comes to more is refused. With `group_bytes` it stays below what a slot
    /// of the log can hold.
    pub max_entry_bytes: usize,
    /// An idle leader asks the store this often whether it still is the leader.
    pub check_interval: Duration,
    /// A snapshot is taken after this many slots,
    pub snapshot_slots: u64,
    /// or this many bytes of entries (and no fewer than a fourth of what the last snapshot has), whichever comes first.
    /// With the number of slots it bounds how long a take-over replays.
    pub snapshot_bytes: u64,
    /// A follower looks for new slots this often while there are some,
    pub poll_interval: Duration,
    /// and this often when the log has been at rest for a while.
    pub idle_poll_interval: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            queue: 1024,
            group_commands: 1024,
            group_bytes: 256 * 1024,
            max_entry_bytes: 8 * 1024 * 1024,
            check_interval: Duration::from_secs(5),
            snapshot_slots: 2_000,
            snapshot_bytes: 8 * 1024 * 1024,
            poll_interval: Duration::from_millis(200),
            idle_poll_interval: Duration::from_secs(2),
        }
    }
}
