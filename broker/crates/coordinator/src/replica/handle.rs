use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use env::Instant;
use metalog::Owner;
use tokio::sync::{mpsc, oneshot, watch};
use types::{Epoch, LogOffset};

use super::StateMachine;

/// What a replica is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// It reads the log and serves nothing that must be fresh.
    Following {
        /// The last slot that is applied; `None`: nothing is.
        applied: Option<LogOffset>,
        /// When the state last was all of the log; `None`: never yet.
        current: Option<Instant>,
    },
    /// It takes the log over and replays it.
    Opening,
    /// It leads.
    Leading {
        /// Its term.
        epoch: Epoch,
        /// The last slot that is applied.
        applied: LogOffset,
    },
    /// It is over; only a new replica can lead the log from here.
    Ended(End),
}

/// Why a replica ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It was asked to.
    Stopped,
    /// Another node leads.
    Fenced {
        /// The newer term.
        epoch: Epoch,
        /// Who holds it, if known.
        owner: Option<Owner>,
    },
    /// Log or state broke down; the text says how.
    Failed(String),
    /// The log is of a later release than this node's; the text says which versions differ.
    Unsupported(String),
}

/// Why a command was not answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplicaError {
    /// The log is being opened: ask again.
    #[error("the log is being opened")]
    Loading,
    /// Another node leads, or will. The command may have been logged all the same.
    #[error("not the leader")]
    NotLeader,
    /// The log or the state failed. The command may have been logged all the same.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// The command comes to more than the log takes in one piece; nothing was changed.
    #[error("{size} bytes of metadata in one request, {limit} are allowed")]
    TooLarge {
        /// Of its log entry, in bytes.
        size: usize,
        /// [`super::Options::max_entry_bytes`]
        limit: usize,
    },
}

pub(super) enum Message<S: StateMachine> {
    Command(S::Command, oneshot::Sender<Result<S::Output, ReplicaError>>),
    Barrier(oneshot::Sender<Result<LogOffset, ReplicaError>>),
    /// A follower is to take the log over.
    Lead,
    /// `None`: stop in good order. Otherwise somebody found the state broken.
    Stop(Option<String>),
}

/// How to talk to a replica. Cheap to clone; the replica ends in good order when the last handle is dropped.
pub struct ReplicaHandle<S: StateMachine> {
    pub(super) messages: mpsc::Sender<Message<S>>,
    pub(super) status: watch::Receiver<Status>,
    /// In nanoseconds.
    pub(super) applied_in: Arc<AtomicU64>,
}

impl<S: StateMachine> Clone for ReplicaHandle<S> {
    fn clone(&self) -> Self {
        Self {
            messages: self.messages.clone(),
            status: self.status.clone(),
            applied_in: self.applied_in.clone(),
        }
    }
}

impl<S: StateMachine> ReplicaHandle<S> {
    /// Has `command` judged, logged and applied. It waits while the store fails: bound it with a deadline. An
    /// answer is given only once everything it rests on is durable. Without an answer the outcome is unknown.
    pub async fn submit(&self, command: S::Command) -> Result<S::Output, ReplicaError> {
        let (reply, answer) = oneshot::channel();
        self.send(Message::Command(command, reply)).await?;
        answer.await.map_err(|_| self.error())?
    }

    /// Resolves when everything accepted before the call is durable and applied, and leadership is confirmed. A
    /// read of the committed state that follows is strict. Returns the last slot applied.
    pub async fn barrier(&self) -> Result<LogOffset, ReplicaError> {
        let (reply, answer) = oneshot::channel();
        self.send(Message::Barrier(reply)).await?;
        answer.await.map_err(|_| self.error())?
    }

    /// What the replica is doing, and every change of it.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }

    /// How long a leader took to apply the last group.
    pub fn applied_in(&self) -> Duration {
        Duration::from_nanos(self.applied_in.load(Ordering::Relaxed))
    }

    /// An error unless the replica leads, as far as it knows.
    pub fn check_leading(&self) -> Result<(), ReplicaError> {
        match &*self.status.borrow() {
            Status::Leading { .. } => Ok(()),
            other => Err(error_of(other)),
        }
    }

    /// Waits until the replica leads and returns its term.
    pub async fn leading(&self) -> Result<Epoch, ReplicaError> {
        let mut status = self.status.clone();
        let settled = status
            .wait_for(|status| matches!(status, Status::Leading { .. } | Status::Ended(_)))
            .await;
        match settled.as_deref() {
            Ok(Status::Leading { epoch, .. }) => Ok(*epoch),
            Ok(other) => Err(error_of(other)),
            Err(_) => Err(ReplicaError::NotLeader),
        }
    }

    /// Has a follower take the log over; anybody else goes on as before. [`ReplicaHandle::leading`] waits.
    pub async fn lead(&self) {
        let _ = self.messages.send(Message::Lead).await;
    }

    /// Finishes what was accepted, then ends the replica.
    pub async fn stop(&self) {
        let _ = self.messages.send(Message::Stop(None)).await;
        self.ended().await;
    }

    /// Ends the replica because its state was found broken from outside.
    pub async fn fail(&self, reason: String) {
        let _ = self.messages.send(Message::Stop(Some(reason))).await;
    }

    /// Waits for the end of the replica.
    pub async fn ended(&self) -> End {
        let mut status = self.status.clone();
        let ended = status.wait_for(|status| matches!(status, Status::Ended(_))).await;
        match ended.as_deref() {
            Ok(Status::Ended(end)) => end.clone(),
            // The node itself was ended.
            _ => End::Stopped,
        }
    }

    async fn send(&self, message: Message<S>) -> Result<(), ReplicaError> {
        self.check_leading()?;
        self.messages.send(message).await.map_err(|_| self.error())
    }

    fn error(&self) -> ReplicaError {
        error_of(&self.status.borrow())
    }
}

pub(super) fn error_of(status: &Status) -> ReplicaError {
    match status {
        Status::Opening => ReplicaError::Loading,
        Status::Ended(End::Failed(reason) | End::Unsupported(reason)) => {
            ReplicaError::Unavailable(reason.clone())
        }
        // Leading, but the actor is gone: the node is being ended.
        Status::Following { .. } | Status::Ended(_) | Status::Leading { .. } => ReplicaError::NotLeader,
    }
}

impl<S: StateMachine> Message<S> {
    pub(super) fn refuse(self, error: &ReplicaError) {
        match self {
            Message::Command(_, reply) => drop(reply.send(Err(error.clone()))),
            Message::Barrier(reply) => drop(reply.send(Err(error.clone()))),
            Message::Lead | Message::Stop(_) => {}
        }
    }
}
