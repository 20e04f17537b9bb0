//! The answering side.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Buf, Bytes, BytesMut};
use env::{Env, Instant, Listener, Stream};
use kafka_wire::frame::read_frame;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::handshake::admit;
use super::{MAX_FRAME, response_frame, write_queue};
use crate::auth::ClusterSecret;

/// Requests of one connection that are worked on at the same time. Long polls of all partitions of a broker share
/// one connection, so this is not small.
const IN_FLIGHT: usize = 4096;

/// What answers internal requests.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// The encoded answer, or `None` for a request that cannot be understood: the connection is closed. `gone` is cancelled
    /// when nobody is there any more to take the answer.
    async fn handle(&self, api_key: i16, body: Bytes, gone: &CancellationToken) -> Option<Bytes>;
}

/// Peers that are refused come back at once, so not every refusal is logged.
const WARN_EVERY: Duration = Duration::from_secs(10);

struct Shared {
    env: Env,
    handler: Arc<dyn Handler>,
    secret: Arc<ClusterSecret>,
    warned: Mutex<Option<Instant>>,
}

/// Accepts connections until the node ends. Peers that do not know `secret` get CLUSTER_AUTHORIZATION_FAILED (or
/// SASL_AUTHENTICATION_FAILED) and are cut off.
pub async fn serve(env: Env, mut listener: Listener, handler: Arc<dyn Handler>, secret: Arc<ClusterSecret>) {
    let shared = Arc::new(Shared {
        env: env.clone(),
        handler,
        secret,
        warned: Mutex::new(None),
    });
    loop {
        match listener.accept().await {
            Ok(stream) => {
                env.spawn(connection(shared.clone(), stream));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept an internal connection");
                env.sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

impl Shared {
    fn refused(&self, peer: &str, reason: &str) {
        let now = self.env.instant();
        let mut warned = self.warned.lock();
        if warned.is_none_or(|last| now.saturating_duration_since(last) >= WARN_EVERY) {
            *warned = Some(now);
            tracing::warn!(peer, reason, "internal connection refused");
        }
    }
}

async fn connection(shared: Arc<Shared>, stream: Stream) {
    let env = &shared.env;
    let peer = stream.peer().to_owned();
    let (mut reading, mut writing) = stream.into_split();
    let mut buffer = BytesMut::new();
    if let Err(reason) = admit(env, &mut reading, &mut writing, &mut buffer, &shared.secret).await {
        shared.refused(&peer, &reason);
        return;
    }
    let (answers, queue) = mpsc::channel(256);
    let writer = env.spawn(async move { write_queue(queue, &mut writing).await });
    let slots = Arc::new(Semaphore::new(IN_FLIGHT));
    let gone = CancellationToken::new();
    // However this ends.
    let _gone = gone.clone().drop_guard();
    loop {
        let frame = tokio::select! {
            biased;
            () = gone.cancelled() => break,
            frame = read_frame(&mut reading, &mut buffer, MAX_FRAME) => frame,
        };
        let Ok(Some(frame)) = frame else { break };
        let Some((api_key, correlation_id, body)) = split_request(frame) else {
            tracing::warn!(%peer, "not an internal request: connection closed");
            break;
        };
        let Ok(slot) = slots.clone().acquire_owned().await else {
            break;
        };
        let (handler, answers) = (shared.handler.clone(), answers.clone());
        let (gone, peer) = (gone.clone(), peer.clone());
        env.spawn(async move {
            let _slot = slot;
            match handler.handle(api_key, body, &gone).await {
                Some(body) => {
                    // The peer may be gone.
                    let _ = answers.send(response_frame(correlation_id, body)).await;
                }
                None => {
                    tracing::warn!(%peer, api_key, "unreadable internal request: connection closed");
                    gone.cancel();
                }
            }
        });
        if writer.is_finished() {
            break;
        }
    }
}

fn split_request(mut frame: Bytes) -> Option<(i16, i32, Bytes)> {
    if frame.len() < 11 {
        return None;
    }
    let api_key = frame.get_i16();
    let version = frame.get_i16();
    let correlation_id = frame.get_i32();
    let client_id = frame.get_i16();
    let tags = frame.get_u8();
    (version == 0 && client_id == -1 && tags == 0).then_some((api_key, correlation_id, frame))
}
