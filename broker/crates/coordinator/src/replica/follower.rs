//! Following a log without leading it: the state stays warm, so that taking over is a matter of a few slots.
//!
//! A follower polls, sooner if the log tells that it has grown. It never asks the leader for anything, so a leader that
//! hangs does not hold it up, and all it applies is durable: a slot that can be read is part of the log for good.

use std::time::Duration;

use env::Env;
use metalog::{LogError, MetadataLog};
use tokio::sync::watch;
use types::LogOffset;

use super::open::{self, NotRestored, READ_BYTES};
use super::{End, Options, StateMachine, Status};

/// Shortest pause between two looks, however often the log tells that it has grown.
const GATHER: Duration = Duration::from_millis(5);

/// Applies what the log gets, until something breaks for good.
pub(super) async fn follow_log<S: StateMachine>(
    env: &Env,
    name: &str,
    log: &dyn MetadataLog,
    state: &mut S,
    options: &Options,
    status: &watch::Sender<Status>,
) -> End {
    let mut pause = options.poll_interval;
    loop {
        let looked = env.instant();
        let before = state.applied();
        let caught_up = match catch_up(log, state).await {
            Ok(()) => {
                status.send_replace(Status::Following {
                    applied: state.applied(),
                    current: Some(looked),
                });
                true
            }
            Err(Stopped::Unavailable(reason)) => {
                tracing::debug!(log = name, reason, "the log cannot be followed; trying again");
                false
            }
            Err(Stopped::Ended(end)) => return end,
        };
        pause = match state.applied() == before {
            true => (pause * 2).min(options.idle_poll_interval),
            false => options.poll_interval,
        };
        // What is appended in a burst is read together.
        env.sleep(GATHER).await;
        let next = state.applied().map_or(LogOffset(0), LogOffset::next);
        tokio::select! {
            biased;
            () = log.changed(next), if caught_up => {}
            () = env.sleep(env.jittered(pause)) => {}
        }
    }
}

enum Stopped {
    Unavailable(String),
    Ended(End),
}

impl From<LogError> for Stopped {
    fn from(error: LogError) -> Self {
        match error {
            LogError::Unavailable(reason) => Stopped::Unavailable(reason),
            other => Stopped::Ended(other.into()),
        }
    }
}

impl From<super::StateError> for Stopped {
    fn from(error: super::StateError) -> Self {
        Stopped::Ended(error.into())
    }
}

/// Applies all slots that are there.
async fn catch_up<S: StateMachine>(log: &dyn MetadataLog, state: &mut S) -> Result<(), Stopped> {
    if state.applied().is_none() {
        restore(log, state).await?;
    }
    loop {
        let next = state.applied().map_or(LogOffset(0), LogOffset::next);
        match log.read(next, READ_BYTES).await {
            Ok(slots) if slots.is_empty() => return Ok(()),
            Ok(slots) => state.apply_slots(&slots)?,
            // It was away for so long that the leader has gone on without these slots.
            Err(error @ LogError::Trimmed { .. }) => {
                restore(log, state).await?;
                if state.applied().map_or(LogOffset(0), LogOffset::next) == next {
                    return Err(Stopped::Unavailable(error.to_string()));
                }
            }
            Err(error) => return Err(error.into()),
        }
        // Applying holds the processor: a simulated node must be able to die in the middle of it.
        tokio::task::yield_now().await;
    }
}

/// Starts again from the newest snapshot, if it is newer than the state.
async fn restore<S: StateMachine>(log: &dyn MetadataLog, state: &mut S) -> Result<(), Stopped> {
    let Some(snapshot) = log.snapshot().await? else {
        return Ok(());
    };
    let next = state.applied().map_or(LogOffset(0), LogOffset::next);
    match snapshot.offset.0.checked_sub(1) {
        Some(last) if snapshot.offset > next => {
            match open::restore(log, state, &snapshot, LogOffset(last)).await {
                Ok(()) => Ok(()),
                // A newer one has taken its place meanwhile: the next look finds it.
                Err(NotRestored::Log(LogError::Trimmed { .. })) => {
                    Err(Stopped::Unavailable("the snapshot is gone".to_owned()))
                }
                Err(NotRestored::Log(error)) => Err(error.into()),
                Err(NotRestored::State(error)) => Err(error.into()),
            }
        }
        _ => Ok(()),
    }
}
