//! Taking a log over and bringing the state up to its end.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use env::Env;
use metalog::{LogError, LogWriter, MetadataLog, Owner};
use types::{Epoch, LogOffset};

use super::{End, StateMachine};

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
            let pieces = retry(env, name, || log.get_snapshot(snapshot)).await?;
            state.restore(LogOffset(last), join(pieces))?;
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

pub(super) fn join(mut pieces: Vec<Bytes>) -> Bytes {
    if pieces.len() == 1 {
        return pieces.pop().unwrap_or_default();
    }
    let mut all = BytesMut::with_capacity(pieces.iter().map(Bytes::len).sum());
    for piece in pieces {
        all.extend_from_slice(&piece);
    }
    all.freeze()
}

/// Tries again while the store cannot be reached: somebody has to lead the log, and a log that is lost again
/// shows as fenced.
async fn retry<T, F>(env: &Env, name: &str, mut call: impl FnMut() -> F) -> Result<T, LogError>
where
    F: Future<Output = Result<T, LogError>>,
{
    loop {
        match call().await {
            Err(LogError::Unavailable(reason)) => {
                tracing::warn!(log = name, reason, "metadata log unavailable, trying again");
                env.sleep(env.jittered(RETRY)).await;
            }
            other => return other,
        }
    }
}
