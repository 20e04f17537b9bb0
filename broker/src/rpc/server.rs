//! The answering side.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Buf, Bytes, BytesMut};
use env::{Env, Instant, Listener, ReadHalf, Stream, WriteHalf};
use kafka_wire::frame::read_frame;
use kafka_wire::rope::Rope;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::handshake::admit;
use super::{MAX_FRAME, response_frame, write_queue};
use crate::auth::ClusterSecret;
use crate::metrics::Metrics;

/// Requests of one connection that are worked on at the same time. Long polls of all partitions of a broker share
/// one connection, so this is not small.
const IN_FLIGHT: usize = 4096;

/// Record bytes of one connection that are not written yet.
const UNWRITTEN: usize = 32 << 20;

/// The connection that a request came on.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Cancelled when nobody is there any more to take the answer.
    pub gone: CancellationToken,
    /// A permit for each byte of records that may still be put into answers; it is kept until they are written.
    pub unwritten: Arc<Semaphore>,
}

impl Default for Caller {
    fn default() -> Self {
        Caller {
            gone: CancellationToken::new(),
            unwritten: Arc::new(Semaphore::new(UNWRITTEN)),
        }
    }
}

/// What answers internal requests.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// The encoded answer, or `None` for a request that cannot be understood: the connection is closed.
    async fn handle(&self, api_key: i16, body: Bytes, caller: &Caller) -> Option<Rope>;
}

/// Connections of nodes. Each node has one to each other, brokers of a zone a second one; tools come beside them.
pub(super) const MAX_CONNECTIONS: usize = 4096;

/// Connections of peers that have not said who they are. For one more the oldest is closed: nodes say so within
/// milliseconds, so whoever only holds connections open keeps none of them out.
pub(super) const MAX_STRANGERS: usize = 256;

/// Peers that are refused come back at once, so not every refusal is logged.
const WARN_EVERY: Duration = Duration::from_secs(10);

struct Shared {
    env: Env,
    handler: Arc<dyn Handler>,
    secret: Arc<ClusterSecret>,
    metrics: Arc<Metrics>,
    /// By order of arrival; cancelled to turn one away.
    strangers: Mutex<BTreeMap<u64, CancellationToken>>,
    connections: Arc<Semaphore>,
    warned: Mutex<Option<Instant>>,
}

/// Accepts connections until the node ends. Peers that do not know `secret` get CLUSTER_AUTHORIZATION_FAILED (or
/// SASL_AUTHENTICATION_FAILED) and are cut off.
pub async fn serve(
    env: Env,
    mut listener: Listener,
    handler: Arc<dyn Handler>,
    secret: Arc<ClusterSecret>,
    metrics: Arc<Metrics>,
) {
    let shared = Arc::new(Shared {
        env: env.clone(),
        handler,
        secret,
        metrics,
        strangers: Mutex::default(),
        connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
        warned: Mutex::new(None),
    });
    for arrival in 0.. {
        match listener.accept().await {
            Ok(stream) => {
                let turned_away = shared.arrived(arrival);
                env.spawn(connection(shared.clone(), stream, arrival, turned_away));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept an internal connection");
                env.sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

impl Shared {
    /// Makes room for one more stranger.
    fn arrived(&self, arrival: u64) -> CancellationToken {
        let mut strangers = self.strangers.lock();
        while strangers.len() >= MAX_STRANGERS
            && let Some((_, oldest)) = strangers.pop_first()
        {
            oldest.cancel();
        }
        let turned_away = CancellationToken::new();
        strangers.insert(arrival, turned_away.clone());
        turned_away
    }

    fn refused(&self, peer: &str, reason: &str) {
        self.metrics.internal_connections_refused.inc();
        let now = self.env.instant();
        let mut warned = self.warned.lock();
        if warned.is_none_or(|last| now.saturating_duration_since(last) >= WARN_EVERY) {
            *warned = Some(now);
            tracing::warn!(peer, reason, "internal connection refused");
        }
    }
}

async fn connection(shared: Arc<Shared>, stream: Stream, arrival: u64, turned_away: CancellationToken) {
    let env = &shared.env;
    let peer = stream.peer().to_owned();
    let (mut reading, mut writing) = stream.into_split();
    let mut buffer = BytesMut::new();
    let admitted = tokio::select! {
        biased;
        admitted = admit(env, &mut reading, &mut writing, &mut buffer, &shared.secret) => admitted,
        () = turned_away.cancelled() => Err("too many others that do not say who they are".to_owned()),
    };
    shared.strangers.lock().remove(&arrival);
    let slot = admitted.and_then(|()| {
        let slot = shared.connections.clone().try_acquire_owned();
        slot.map_err(|_| format!("there are {MAX_CONNECTIONS} already"))
    });
    let _slot = match slot {
        Ok(slot) => slot,
        Err(reason) => return shared.refused(&peer, &reason),
    };
    shared.metrics.internal_connections.inc();
    answer(&shared, &peer, reading, writing, buffer).await;
    shared.metrics.internal_connections.dec();
}

/// Answers a node until its connection ends.
async fn answer(
    shared: &Shared,
    peer: &str,
    mut reading: ReadHalf,
    mut writing: WriteHalf,
    mut buffer: BytesMut,
) {
    let env = &shared.env;
    let (answers, queue) = mpsc::channel(256);
    let writer = env.spawn(async move { write_queue(queue, &mut writing).await });
    let slots = Arc::new(Semaphore::new(IN_FLIGHT));
    let caller = Caller::default();
    // However this ends.
    let _gone = caller.gone.clone().drop_guard();
    loop {
        let frame = tokio::select! {
            biased;
            () = caller.gone.cancelled() => break,
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
        let (caller, peer) = (caller.clone(), peer.to_owned());
        env.spawn(async move {
            let _slot = slot;
            match handler.handle(api_key, body, &caller).await {
                Some(body) => {
                    // The peer may be gone.
                    let _ = answers.send(response_frame(correlation_id, body)).await;
                }
                None => {
                    tracing::warn!(%peer, api_key, "unreadable internal request: connection closed");
                    caller.gone.cancel();
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
