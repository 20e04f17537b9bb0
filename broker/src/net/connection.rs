//! One connection: a reader and a writer, and the bounded queue of replies between them.

use std::sync::Arc;
use std::time::Duration;

use env::{Env, Stream, WriteHalf};
use futures::FutureExt;
use futures::future::BoxFuture;
use kafka_wire::frame::{DEFAULT_MAX_FRAME, FrameError};
use kafka_wire::rope::{Rope, write_vectored_all};
use tokio::io::AsyncWriteExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::frames::FrameReader;
use super::memory::MemoryBudget;
use super::{Answer, Handler, Peer, Taken};
use crate::metrics::Metrics;

/// Requests of a connection that are read but not answered. Clients that do not batch send many small ones.
const QUEUE: usize = 1024;
/// Bytes of those that hold nothing of the memory budget.
const UNBUDGETED: usize = 256 << 10;
/// Kafka's `connections.max.idle.ms`.
const IDLE: Duration = Duration::from_secs(600);
/// A writer gathers answers that are ready up to this size, in bytes.
const GATHER: usize = 256 << 10;

/// What all connections of a broker use.
pub(super) struct Shared {
    pub(super) env: Env,
    pub(super) budget: MemoryBudget,
    pub(super) handler: Arc<dyn Handler>,
    pub(super) metrics: Arc<Metrics>,
    /// No more requests are taken.
    pub(super) stop: CancellationToken,
}

/// A request that is read but not answered; the token counts it, and so does its part of [`UNBUDGETED`].
struct Pending {
    answer: BoxFuture<'static, Answer>,
    _unanswered: Arc<()>,
    _unbudgeted: OwnedSemaphorePermit,
}

/// Serves a connection until its end.
pub(super) async fn serve(shared: &Shared, stream: Stream, peer: Peer) {
    let (reading, writing) = stream.into_split();
    let frames = FrameReader::new(
        reading,
        shared.env.clone(),
        shared.budget.clone(),
        DEFAULT_MAX_FRAME,
    );
    let (queue, pending) = mpsc::channel(QUEUE);
    let closed = CancellationToken::new();
    let writer = shared
        .env
        .spawn(write(shared.env.clone(), writing, pending, closed.clone()));
    let end = tokio::select! {
        biased;
        () = closed.cancelled() => Ok(End::Closed),
        end = read(shared, frames, &peer, &queue) => end,
    };
    match end {
        Ok(End::Stopping) => {}
        // Nobody is left to read the answers.
        Ok(End::Closed) => writer.abort(),
        Err(error) => {
            // One line for each hostile or broken peer, without what it sent.
            tracing::debug!(peer = %peer.host, %error, "connection closed");
            shared.metrics.connections_broken.inc();
            writer.abort();
        }
    }
    drop(queue);
    writer.await;
}

enum End {
    /// The peer closed, or was idle for too long.
    Closed,
    /// The broker stops: what was read is still answered.
    Stopping,
}

async fn read<R>(
    shared: &Shared,
    mut frames: FrameReader<R>,
    peer: &Peer,
    queue: &mpsc::Sender<Pending>,
) -> Result<End, FrameError>
where
    R: tokio::io::AsyncRead + Unpin,
{
    let unanswered = Arc::new(());
    let unbudgeted = Arc::new(Semaphore::new(UNBUDGETED));
    loop {
        let ready = tokio::select! {
            biased;
            () = shared.stop.cancelled() => return Ok(End::Stopping),
            ready = shared.env.timeout(IDLE, frames.ready()) => ready,
        };
        match ready {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => return Ok(End::Closed),
            Ok(Err(error)) => return Err(error),
            Err(_) if Arc::strong_count(&unanswered) == 1 => return Ok(End::Closed),
            // It waits for an answer.
            Err(_) => continue,
        }
        let frame = tokio::select! {
            biased;
            () = shared.stop.cancelled() => return Ok(End::Stopping),
            frame = frames.next() => frame?,
        };
        let Some(frame) = frame else {
            return Ok(End::Closed);
        };
        let bytes = if frame.memory.is_some() {
            0
        } else {
            frame.bytes.len()
        };
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let Ok(held) = unbudgeted.clone().acquire_many_owned(bytes).await else {
            return Ok(End::Closed);
        };
        let Ok(slot) = queue.reserve().await else {
            return Ok(End::Closed);
        };
        let mut taken = shared.handler.handle(peer, frame);
        let answer = loop {
            match taken {
                Taken::Now(answer) => break answer,
                Taken::Later(taking) => taken = taking.await,
            }
        };
        slot.send(Pending {
            answer,
            _unanswered: unanswered.clone(),
            _unbudgeted: held,
        });
    }
}

/// Answers in order. Answers that are ready go out together.
async fn write(
    env: Env,
    mut writing: WriteHalf,
    mut pending: mpsc::Receiver<Pending>,
    closed: CancellationToken,
) {
    let _ends_reader = closed.drop_guard();
    let mut out = Rope::default();
    loop {
        let next = if out.is_empty() {
            pending.recv().await
        } else {
            pending.try_recv().ok()
        };
        let Some(mut next) = next else {
            if out.is_empty() {
                break;
            }
            if !send(&env, &mut writing, &mut out).await {
                return;
            }
            continue;
        };
        let answer = match (&mut next.answer).now_or_never() {
            Some(answer) => answer,
            None => {
                if !out.is_empty() && !send(&env, &mut writing, &mut out).await {
                    return;
                }
                next.answer.await
            }
        };
        match answer {
            Answer::Reply(reply) => out.append(reply),
            Answer::Silence => {}
            Answer::Close => break,
        }
        if out.len() >= GATHER && !send(&env, &mut writing, &mut out).await {
            return;
        }
    }
    if !out.is_empty() {
        send(&env, &mut writing, &mut out).await;
    }
    let _ = writing.shutdown().await;
}

/// False when the connection is gone, or the peer has not read for as long as an idle one is kept.
async fn send(env: &Env, writing: &mut WriteHalf, out: &mut Rope) -> bool {
    let written = env
        .timeout(IDLE, write_vectored_all(writing, std::mem::take(out)))
        .await;
    matches!(written, Ok(Ok(())))
}
