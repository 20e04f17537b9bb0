//! The leader's loop.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use env::{Env, Instant, JoinHandle};
use metalog::{LogError, LogWriter, MetadataLog, SnapshotRef};
use tokio::sync::{mpsc, oneshot, watch};
use types::{Epoch, LogOffset, Timestamp};

use super::handle::Message;
use super::open::Ready;
use super::{End, Options, ReplicaError, StateError, StateMachine, Status};

const SNAPSHOT_RETRY: Duration = Duration::from_secs(10);

type Reply<T> = oneshot::Sender<Result<T, ReplicaError>>;
type Writer = Box<dyn LogWriter>;

/// Something accepted that waits for its group.
enum Item<S: StateMachine> {
    Command {
        command: S::Command,
        now: Timestamp,
        output: S::Output,
        reply: Reply<S::Output>,
    },
    Barrier(Reply<LogOffset>),
}

impl<S: StateMachine> Item<S> {
    fn refuse(self, error: &ReplicaError) {
        match self {
            Item::Command { reply, .. } => drop(reply.send(Err(error.clone()))),
            Item::Barrier(reply) => drop(reply.send(Err(error.clone()))),
        }
    }
}

/// Items that are judged, and the entries they come to.
struct Group<S: StateMachine> {
    items: Vec<Item<S>>,
    entries: Vec<Bytes>,
    bytes: usize,
}

impl<S: StateMachine> Default for Group<S> {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            entries: Vec::new(),
            bytes: 0,
        }
    }
}

/// What the writer was last asked for.
enum Done {
    Append(Result<LogOffset, LogError>),
    Check(Result<(), LogError>),
    Install(LogOffset, Result<(), LogError>),
}

pub(super) struct Leader<'a, S: StateMachine> {
    env: Env,
    name: &'a str,
    log: Arc<dyn MetadataLog>,
    state: &'a mut S,
    options: &'a Options,
    epoch: Epoch,
    messages: &'a mut mpsc::Receiver<Message<S>>,
    status: &'a watch::Sender<Status>,
    /// How long the last group took to be applied, in nanoseconds.
    applied_in: &'a AtomicU64,
    /// Here while nothing is in flight.
    writer: Option<Writer>,
    flight: Option<JoinHandle<(Writer, Done)>>,
    /// The group in flight.
    flying: Group<S>,
    /// The group that accumulates.
    group: Group<S>,
    /// When the store was last asked for anything.
    asked: Instant,
    /// What has nothing to log. It rests on what is applied, but is true only if this node still leads: it is answered
    /// when a call that was begun after it has confirmed that.
    unconfirmed: Vec<Item<S>>,
    stopping: bool,
    snapshot: Snapshots,
}

/// Progress of the snapshots.
struct Snapshots {
    /// First slot after the newest snapshot.
    newest: LogOffset,
    /// Its size in bytes.
    size: u64,
    bytes_since: u64,
    job: Option<JoinHandle<Result<SnapshotRef, String>>>,
    /// Uploaded, and to be named in the log.
    ready: Option<SnapshotRef>,
    /// After a failure, the next one has to wait.
    not_before: Instant,
}

/// Polls an optional task; never resolves without one.
async fn poll<T>(task: &mut Option<JoinHandle<T>>) -> Option<T> {
    match task {
        Some(handle) => {
            let done = handle.await;
            *task = None;
            done
        }
        None => std::future::pending().await,
    }
}

impl<'a, S: StateMachine> Leader<'a, S> {
    #[allow(clippy::too_many_arguments, reason = "the parts of a leader, passed once")]
    pub(super) fn new(
        env: &Env,
        name: &'a str,
        log: Arc<dyn MetadataLog>,
        state: &'a mut S,
        options: &'a Options,
        ready: Ready,
        messages: &'a mut mpsc::Receiver<Message<S>>,
        status: &'a watch::Sender<Status>,
        applied_in: &'a AtomicU64,
    ) -> Self {
        let snapshot = Snapshots {
            newest: ready.snapshot,
            size: ready.snapshot_size,
            bytes_since: ready.log_bytes,
            job: None,
            ready: None,
            not_before: env.instant(),
        };
        Self {
            asked: env.instant(),
            env: env.clone(),
            name,
            log,
            state,
            options,
            epoch: ready.epoch,
            messages,
            status,
            applied_in,
            writer: Some(ready.writer),
            flight: None,
            flying: Group::default(),
            group: Group::default(),
            unconfirmed: Vec::new(),
            stopping: false,
            snapshot,
        }
    }

    /// Serves until the end.
    pub(super) async fn lead(mut self) -> End {
        let end = match self.serve().await {
            Ok(()) => End::Stopped,
            Err(end) => end,
        };
        // Nothing pending ever becomes part of the committed state: there is nothing to undo but the overlay.
        if let Err(error) = self.state.rollback() {
            tracing::warn!(log = self.name, %error, "rollback at the end failed");
        }
        let error = super::handle::error_of(&Status::Ended(end.clone()));
        let waiting = self.unconfirmed.drain(..).chain(self.flying.items.drain(..));
        for item in waiting.chain(self.group.items.drain(..)) {
            item.refuse(&error);
        }
        end
    }

    async fn serve(&mut self) -> Result<(), End> {
        self.publish()?;
        loop {
            while self.has_room() {
                match self.messages.try_recv() {
                    Ok(message) => self.accept(message)?,
                    Err(_) => break,
                }
            }
            self.launch()?;
            let idle = self.flight.is_none() && self.group.items.is_empty() && self.unconfirmed.is_empty();
            if self.stopping && idle {
                return Ok(());
            }
            let room = self.has_room();
            let check_at = self.asked + self.options.check_interval;
            tokio::select! {
                biased;
                done = poll(&mut self.flight) => {
                    // `None`: the node is being ended.
                    let (writer, done) = done.ok_or(End::Stopped)?;
                    self.landed(writer, done)?;
                }
                snapshot = poll(&mut self.snapshot.job) => self.snapshot_made(snapshot),
                message = self.messages.recv(), if room => match message {
                    Some(message) => self.accept(message)?,
                    None => self.stopping = true,
                },
                () = self.env.sleep_until(check_at), if idle => self.check(),
            }
        }
    }

    fn has_room(&self) -> bool {
        !self.stopping
            && self.group.items.len() < self.options.group_commands
            && self.group.bytes < self.options.group_bytes
    }

    fn publish(&self) -> Result<(), End> {
        let applied = self.state.applied();
        let applied =
            applied.ok_or_else(|| End::Failed("a log that was opened has a first slot".to_owned()))?;
        self.status.send_replace(Status::Leading {
            epoch: self.epoch,
            applied,
        });
        Ok(())
    }

    fn accept(&mut self, message: Message<S>) -> Result<(), End> {
        match message {
            Message::Command(command, reply) => {
                self.judge(command, self.env.now(), reply)?;
            }
            Message::Barrier(reply) => self.group.items.push(Item::Barrier(reply)),
            Message::Lead => {}
            Message::Stop(None) => self.stopping = true,
            Message::Stop(Some(reason)) => return Err(End::Failed(reason)),
        }
        Ok(())
    }

    fn judge(
        &mut self,
        command: S::Command,
        now: Timestamp,
        reply: Reply<S::Output>,
    ) -> Result<(), StateError> {
        let judged = self.state.speculate(now, &command)?;
        let limit = self.options.max_entry_bytes;
        if let Some(size) = judged.entry.as_ref().map(Bytes::len).filter(|size| *size > limit) {
            let _ = reply.send(Err(ReplicaError::TooLarge { size, limit }));
            return self.judge_again();
        }
        if let Some(entry) = judged.entry {
            self.group.bytes += entry.len();
            self.group.entries.push(entry);
        }
        self.group.items.push(Item::Command {
            command,
            now,
            output: judged.output,
            reply,
        });
        Ok(())
    }

    /// Makes pending what is waiting, and nothing else.
    fn judge_again(&mut self) -> Result<(), StateError> {
        self.state.rollback()?;
        for item in &self.flying.items {
            if let Item::Command { command, now, .. } = item {
                // It comes to the same as before, and that is already on its way.
                self.state.speculate(*now, command)?;
            }
        }
        self.judge_waiting()
    }

    /// Judges the accumulating group anew, on top of what is pending.
    fn judge_waiting(&mut self) -> Result<(), StateError> {
        for item in std::mem::take(&mut self.group).items {
            match item {
                Item::Command {
                    command, now, reply, ..
                } => self.judge(command, now, reply)?,
                barrier => self.group.items.push(barrier),
            }
        }
        Ok(())
    }

    /// Gives the writer something to do, if it is free.
    fn launch(&mut self) -> Result<(), End> {
        if self.flight.is_some() {
            return Ok(());
        }
        if self.group.entries.is_empty() {
            // Nothing to log, and nothing pending that the answers could rest on.
            self.unconfirmed.append(&mut self.group.items);
        }
        if let Some(snapshot) = self.snapshot.ready.take() {
            // Keep the log from the snapshot before on, for readers that are a little behind.
            let log_start = self.snapshot.newest;
            self.fly(move |mut writer| async move {
                let offset = snapshot.offset;
                let installed = writer.install_snapshot(snapshot, log_start).await;
                (writer, Done::Install(offset, installed))
            });
        } else if !self.group.entries.is_empty() {
            self.flying = std::mem::take(&mut self.group);
            // A controller that has formed no cluster has nothing to go on with.
            if env::mutation("ack-before-durable") && self.name != "cluster" {
                self.unconfirmed.append(&mut self.flying.items);
                self.answer_unconfirmed();
            }
            if env::mutation("serve-speculative")
                && let Some(applied) = self.state.applied()
            {
                self.state.rollback()?;
                self.state.apply(applied.next(), &self.flying.entries)?;
            }
            // Slices: the bytes are not copied.
            let entries = self.flying.entries.clone();
            self.fly(move |mut writer| async move {
                let appended = writer.append(entries).await;
                (writer, Done::Append(appended))
            });
        } else if !self.unconfirmed.is_empty() {
            self.check();
        }
        Ok(())
    }

    fn check(&mut self) {
        self.fly(move |mut writer| async move {
            let checked = writer.check().await;
            (writer, Done::Check(checked))
        });
    }

    fn fly<F>(&mut self, work: impl FnOnce(Writer) -> F)
    where
        F: Future<Output = (Writer, Done)> + Send + 'static,
    {
        if let Some(writer) = self.writer.take() {
            self.flight = Some(self.env.spawn(work(writer)));
        }
    }

    fn landed(&mut self, writer: Writer, done: Done) -> Result<(), End> {
        self.asked = self.env.instant();
        self.writer = Some(writer);
        match done {
            // What waits for a confirmation was accepted before the call that has just confirmed it.
            Done::Append(offset) => self.durable(offset?)?,
            Done::Check(Ok(())) => self.answer_unconfirmed(),
            Done::Install(newest, Ok(())) => {
                self.answer_unconfirmed();
                self.snapshot.newest = newest;
                self.sweep();
            }
            Done::Check(Err(LogError::Unavailable(reason))) => {
                tracing::warn!(log = self.name, reason, "leadership could not be confirmed");
                let error = ReplicaError::Unavailable(reason);
                for item in self.unconfirmed.drain(..) {
                    item.refuse(&error);
                }
            }
            Done::Install(_, Err(LogError::Unavailable(reason))) => {
                tracing::warn!(
                    log = self.name,
                    reason,
                    "snapshot not installed; the next one will be"
                );
            }
            Done::Check(Err(error)) | Done::Install(_, Err(error)) => return Err(error.into()),
        }
        Ok(())
    }

    /// The group in flight can no longer be lost.
    fn durable(&mut self, offset: LogOffset) -> Result<(), End> {
        let mut flown = std::mem::take(&mut self.flying);
        if env::mutation("apply-out-of-order") {
            flown.entries.reverse();
        }
        self.state.rollback()?;
        let began = self.env.instant();
        self.state.apply(offset, &flown.entries)?;
        let took = self.env.instant().saturating_duration_since(began).as_nanos();
        self.applied_in
            .store(u64::try_from(took).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.snapshot.bytes_since += flown.bytes as u64;
        self.publish()?;
        self.unconfirmed.extend(flown.items);
        self.answer_unconfirmed();
        // What was judged on top of the pending group is judged again on top of the committed one.
        self.judge_waiting()?;
        self.maybe_snapshot(offset)
    }

    /// Everything that waits for a confirmation is true: it is applied or changes nothing, and this node leads.
    fn answer_unconfirmed(&mut self) {
        let applied = self.state.applied().unwrap_or(LogOffset(0));
        for item in self.unconfirmed.drain(..) {
            // A caller that is gone does not want its answer.
            match item {
                Item::Command { output, reply, .. } => drop(reply.send(Ok(output))),
                Item::Barrier(reply) => drop(reply.send(Ok(applied))),
            }
        }
    }

    fn maybe_snapshot(&mut self, applied: LogOffset) -> Result<(), End> {
        let slots = applied.next().0.saturating_sub(self.snapshot.newest.0);
        // Packed, a batch takes a fourth of what it takes in the view: so no more batches are replayed at a cold take-over
        // than there are in the snapshot.
        let bytes = self.options.snapshot_bytes.max(self.snapshot.size / 4);
        let due = slots >= self.options.snapshot_slots || self.snapshot.bytes_since >= bytes;
        let busy = self.snapshot.job.is_some() || self.snapshot.ready.is_some();
        if !due || busy || self.env.instant() < self.snapshot.not_before {
            return Ok(());
        }
        let make = self.state.begin_snapshot()?;
        let (env, log) = (self.env.clone(), self.log.clone());
        self.snapshot.bytes_since = 0;
        self.snapshot.job = Some(self.env.spawn(async move {
            let (last, body) = env.blocking(make).await.map_err(|error| error.to_string())?;
            log.put_snapshot(last.next(), body)
                .await
                .map_err(|error| error.to_string())
        }));
        Ok(())
    }

    fn snapshot_made(&mut self, made: Option<Result<SnapshotRef, String>>) {
        match made {
            Some(Ok(snapshot)) => {
                self.snapshot.size = snapshot.size;
                self.snapshot.ready = Some(snapshot);
            }
            Some(Err(reason)) => {
                tracing::warn!(
                    log = self.name,
                    reason,
                    "snapshot failed; it is tried again later"
                );
                self.snapshot.not_before = self.env.instant() + SNAPSHOT_RETRY;
            }
            None => {}
        }
    }

    /// Deletes what the log no longer needs, beside everything else.
    fn sweep(&self) {
        let (log, name) = (self.log.clone(), self.name.to_owned());
        self.env.spawn(async move {
            match log.sweep().await {
                Ok(deleted) => tracing::debug!(log = name, deleted, "swept the metadata log"),
                Err(error) => tracing::warn!(log = name, %error, "sweep of the metadata log failed"),
            }
        });
    }
}
