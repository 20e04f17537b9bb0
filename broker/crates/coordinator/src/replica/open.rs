//! Taking a log over and bringing the state up to its end.

use std::time::Duration;

use env::Env;
use futures::StreamExt;
use metalog::{LogError, LogWriter, MetadataLog, Owner, SnapshotRef};
use types::{Epoch, LogOffset};

use super::{End, Staged, StateError, StateMachine};

/// How much of the log is fetched at a time, in bytes.
pub(super) const READ_BYTES: usize = 4 * 1024 * 1024;
const RETRY: Duration = Duration::from_millis(200);

/// What a leader starts with.
pub(super) struct Ready {
    pub writer: Box<dyn LogWriter>,
    pub epoch: Epoch,
    /// Start of the newest snapshot's remaining log; 0 without one.
    pub snapshot: LogOffset,
    /// Size of that snapshot in bytes.
    pub snapshot_size: u64,
    /// Bytes of entries after the snapshot, as far as they were read.
    pub log_bytes: u64,
}

pub(super) async fn open<S: StateMachine>(
    env: &Env,
    name: &str,
    log: &dyn MetadataLog,
    state: &mut S,
    owner: Owner,
) -> Result<Ready, End> {
    let opened = retry(env, name, || log.open(owner.clone())).await?;
    let mut next = state.applied().map_or(LogOffset(0), LogOffset::next);
    let mut snapshot_offset = LogOffset(0);
    let snapshot_size = opened.snapshot.as_ref().map_or(0, |snapshot| snapshot.size);
    if let Some(snapshot) = &opened.snapshot {
        snapshot_offset = snapshot.offset;
        let behind = next < opened.log_start || state.applied().is_none();
        // The first slot after the snapshot may be 0: then the snapshot holds nothing.
        if let (true, Some(last)) = (behind, snapshot.offset.0.checked_sub(1)) {
            restore_retrying(env, name, log, state, snapshot, LogOffset(last)).await?;
            next = snapshot.offset;
        }
    }
    // Beyond the tail: the log has lost what it held when this replica followed it. That must not go unnoticed.
    if next > opened.tail || next < opened.log_start {
        let reason = format!(
            "state at {next} does not belong to a log of {}..{}: slots are lost",
            opened.log_start, opened.tail
        );
        return Err(End::Failed(reason));
    }
    let mut log_bytes = 0;
    while next < opened.tail {
        let slots = retry(env, name, || log.read(next, READ_BYTES)).await?;
        state.apply_slots(&slots)?;
        for slot in &slots {
            log_bytes += slot.entries.iter().map(|entry| entry.len() as u64).sum::<u64>();
        }
        match slots.last() {
            Some(slot) => next = slot.offset.next(),
            None => {
                return Err(End::Failed(format!(
                    "slot {next} is missing below the tail {}",
                    opened.tail
                )));
            }
        }
        // Replay holds the processor: a simulated node must be able to die in the middle of it.
        tokio::task::yield_now().await;
    }
    Ok(Ready {
        writer: opened.writer,
        epoch: opened.epoch,
        snapshot: snapshot_offset,
        snapshot_size,
        log_bytes,
    })
}

/// Why a snapshot did not become the state.
pub(super) enum NotRestored {
    Log(LogError),
    State(StateError),
}

impl From<LogError> for NotRestored {
    fn from(error: LogError) -> Self {
        NotRestored::Log(error)
    }
}

impl From<StateError> for NotRestored {
    fn from(error: StateError) -> Self {
        NotRestored::State(error)
    }
}

/// Replaces the state by a snapshot, whose last slot is `last`. Little of it is ever in memory, and nothing is replaced
/// unless all of it is what was written.
pub(super) async fn restore<S: StateMachine>(
    log: &dyn MetadataLog,
    state: &mut S,
    snapshot: &SnapshotRef,
    last: LogOffset,
) -> Result<(), NotRestored> {
    let mut staged = state.stage()?;
    let mut pieces = log.get_snapshot(snapshot);
    while let Some(piece) = pieces.next().await {
        staged.push(&piece?)?;
        // Unpacking holds the processor: a simulated node must be able to die in the middle of it.
        tokio::task::yield_now().await;
    }
    Ok(state.restore(last, staged)?)
}

async fn restore_retrying<S: StateMachine>(
    env: &Env,
    name: &str,
    log: &dyn MetadataLog,
    state: &mut S,
    snapshot: &SnapshotRef,
    last: LogOffset,
) -> Result<(), End> {
    loop {
        match restore(log, state, snapshot, last).await {
            Ok(()) => return Ok(()),
            Err(NotRestored::Log(LogError::Unavailable(reason))) => pause(env, name, &reason).await,
            Err(NotRestored::Log(error)) => return Err(error.into()),
            Err(NotRestored::State(error)) => return Err(error.into()),
        }
    }
}

/// Tries again while the store cannot be reached: somebody has to lead the log, and a log that is lost again
/// shows as fenced.
async fn retry<T, F>(env: &Env, name: &str, mut call: impl FnMut() -> F) -> Result<T, LogError>
where
    F: Future<Output = Result<T, LogError>>,
{
    loop {
        match call().await {
            Err(LogError::Unavailable(reason)) => pause(env, name, &reason).await,
            other => return other,
        }
    }
}

async fn pause(env: &Env, name: &str, reason: &str) {
    tracing::warn!(log = name, reason, "metadata log unavailable, trying again");
    env.sleep(env.jittered(RETRY)).await;
}
