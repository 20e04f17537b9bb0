use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use env::Env;
use metalog::{LogError, MetadataLog, Owner};
use tokio::sync::{mpsc, watch};

use super::follower::follow_log;
use super::handle::{Message, error_of};
use super::leader::Leader;
use super::open::open;
use super::{End, Options, ReplicaError, ReplicaHandle, StateError, StateMachine, Status};

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
    spawn(env, name, log, state, owner, options, Status::Opening)
}

/// Starts a replica that follows `log`, on a thread named `name` in production, until [`ReplicaHandle::lead`] has it
/// take the log over for `owner`. Fails only if the thread cannot be started.
pub fn follow<S: StateMachine>(
    env: &Env,
    name: &str,
    log: Arc<dyn MetadataLog>,
    state: S,
    owner: Owner,
    options: Options,
) -> std::io::Result<ReplicaHandle<S>> {
    let (applied, current) = (state.applied(), None);
    spawn(
        env,
        name,
        log,
        state,
        owner,
        options,
        Status::Following { applied, current },
    )
}

fn spawn<S: StateMachine>(
    env: &Env,
    name: &str,
    log: Arc<dyn MetadataLog>,
    state: S,
    owner: Owner,
    options: Options,
    first: Status,
) -> std::io::Result<ReplicaHandle<S>> {
    let (messages, received) = mpsc::channel(options.queue);
    let (status, watched) = watch::channel(first);
    let applied_in = Arc::new(AtomicU64::new(0));
    let actor = Actor {
        env: env.clone(),
        name: name.to_owned(),
        log,
        state,
        options,
        messages: received,
        status,
        applied_in: applied_in.clone(),
    };
    env.spawn_dedicated(name, actor.run(owner))?;
    Ok(ReplicaHandle {
        messages,
        status: watched,
        applied_in,
    })
}

struct Actor<S: StateMachine> {
    env: Env,
    name: String,
    log: Arc<dyn MetadataLog>,
    state: S,
    options: Options,
    messages: mpsc::Receiver<Message<S>>,
    status: watch::Sender<Status>,
    applied_in: Arc<AtomicU64>,
}

impl<S: StateMachine> Actor<S> {
    async fn run(mut self, owner: Owner) {
        let name = self.name.clone();
        // Held until the callers that still wait have been told: nobody can send to an actor that is gone.
        let end = self.live(owner).await;
        match &end {
            End::Failed(reason) | End::Unsupported(reason) => {
                tracing::error!(log = name, reason, "replica failed");
            }
            end => tracing::info!(log = name, ?end, "replica ended"),
        }
        let Actor {
            mut messages, status, ..
        } = self;
        let ended = Status::Ended(end);
        let error = error_of(&ended);
        status.send_replace(ended);
        messages.close();
        while let Ok(message) = messages.try_recv() {
            message.refuse(&error);
        }
    }

    async fn live(&mut self, owner: Owner) -> End {
        let Actor {
            env,
            name,
            log,
            state,
            options,
            messages,
            status,
            applied_in,
        } = self;
        let follows = matches!(*status.borrow(), Status::Following { .. });
        if follows {
            let told = tokio::select! {
                biased;
                end = orders(messages, true, &ReplicaError::NotLeader) => end,
                end = follow_log(env, name, log.as_ref(), state, options, status) => Some(end),
            };
            if let Some(end) = told {
                return end;
            }
            status.send_replace(Status::Opening);
        }
        let opened = tokio::select! {
            biased;
            end = orders(messages, false, &ReplicaError::Loading) => Err(end.unwrap_or(End::Stopped)),
            opened = open(env, name, log.as_ref(), state, owner) => opened,
        };
        match opened {
            Ok(opened) => {
                tracing::info!(log = name, epoch = %opened.epoch, applied = ?state.applied(), "leading");
                Leader::new(
                    env,
                    name,
                    log.clone(),
                    state,
                    options,
                    opened,
                    messages,
                    status,
                    applied_in,
                )
                .lead()
                .await
            }
            Err(end) => end,
        }
    }
}

/// Waits for an order: `None` is the order to lead, if that is awaited. Requests are refused meanwhile.
async fn orders<S: StateMachine>(
    messages: &mut mpsc::Receiver<Message<S>>,
    lead: bool,
    refusal: &ReplicaError,
) -> Option<End> {
    loop {
        match messages.recv().await {
            None | Some(Message::Stop(None)) => return Some(End::Stopped),
            Some(Message::Stop(Some(reason))) => return Some(End::Failed(reason)),
            Some(Message::Lead) if lead => return None,
            Some(message) => message.refuse(refusal),
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
        match error {
            StateError::Unsupported(_) => End::Unsupported(error.to_string()),
            StateError::Corrupt(_) | StateError::View(_) => End::Failed(error.to_string()),
        }
    }
}
