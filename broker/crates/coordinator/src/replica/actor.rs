use std::sync::Arc;

use env::Env;
use metalog::{LogError, MetadataLog, Owner};
use tokio::sync::{mpsc, watch};

use super::handle::{Message, error_of};
use super::leader::Leader;
use super::open::open;
use super::{End, Options, ReplicaHandle, StateError, StateMachine, Status};

/// Starts a replica that takes `log` over for `owner`, on a thread named `name` in production. It returns at once;
/// [`ReplicaHandle::leading`] waits. Fails only if the thread cannot be started.
pub fn start<S: StateMachine>(
    env: &Env,
    name: &str,
    log: Arc<dyn MetadataLog>,
    state: S,
    owner: Owner,
    options: Options,
) -> std::io::Result<ReplicaHandle<S>> {
    let (messages, received) = mpsc::channel(options.queue);
    let (status, watched) = watch::channel(Status::Opening);
    let actor = run(
        env.clone(),
        name.to_owned(),
        log,
        state,
        owner,
        options,
        received,
        status,
    );
    env.spawn_dedicated(name, actor)?;
    Ok(ReplicaHandle {
        messages,
        status: watched,
    })
}

#[allow(clippy::too_many_arguments, reason = "the parts of an actor, passed once")]
async fn run<S: StateMachine>(
    env: Env,
    name: String,
    log: Arc<dyn MetadataLog>,
    mut state: S,
    owner: Owner,
    options: Options,
    mut messages: mpsc::Receiver<Message<S>>,
    status: watch::Sender<Status>,
) {
    let opened = tokio::select! {
        biased;
        end = stopped(&mut messages) => Err(end),
        opened = open(&env, &name, log.as_ref(), &mut state, owner) => opened,
    };
    let end = match opened {
        Ok(opened) => {
            tracing::info!(log = name, epoch = %opened.epoch, applied = ?state.applied(), "leading");
            Leader::new(env, &name, log, state, options, opened, &mut messages, &status)
                .lead()
                .await
        }
        Err(end) => end,
    };
    match &end {
        End::Failed(reason) => tracing::error!(log = name, reason, "replica failed"),
        end => tracing::info!(log = name, ?end, "replica ended"),
    }
    let ended = Status::Ended(end);
    let error = error_of(&ended);
    status.send_replace(ended);
    messages.close();
    while let Ok(message) = messages.try_recv() {
        message.refuse(&error);
    }
}

/// Resolves with the end that somebody asked for. While a log is being opened nothing else can arrive.
async fn stopped<S: StateMachine>(messages: &mut mpsc::Receiver<Message<S>>) -> End {
    loop {
        match messages.recv().await {
            None | Some(Message::Stop(None)) => return End::Stopped,
            Some(Message::Stop(Some(reason))) => return End::Failed(reason),
            Some(message) => message.refuse(&super::ReplicaError::Loading),
        }
    }
}

impl From<LogError> for End {
    fn from(error: LogError) -> End {
        match error {
            LogError::Fenced { epoch, owner } => End::Fenced { epoch, owner },
            other => End::Failed(other.to_string()),
        }
    }
}

impl From<StateError> for End {
    fn from(error: StateError) -> End {
        End::Failed(error.to_string())
    }
}
