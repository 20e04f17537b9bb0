//! The answering side.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Buf, Bytes, BytesMut};
use coordinator::protocol::{CancelRequest, ErrorResponse, api_key};
use env::{Env, Instant, Listener, ReadHalf, Stream, WriteHalf};
use kafka_wire::flex::{Decode, Encode, get_tagged, take};
use kafka_wire::frame::read_frame;
use kafka_wire::rope::Rope;
use kafka_wire::{DecodeError, ResponseError};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use types::FastMap;

use super::handshake::admit;
use super::{MAX_FRAME, UNCONFIRMED, VERSION, response_frame, write_queue};
use crate::auth::ClusterSecret;
use crate::metrics::Metrics;

/// Requests of one connection that are worked on at the same time. Many clients share it, so this is not small; past
/// it, the connection is not read.
pub(super) const IN_FLIGHT: usize = 4096;

/// Requests of one connection that only wait for others ([`Caller::wait_aside`]): several times what a group may have
/// members. They hold nobody up; past this they are refused.
pub(super) const WAITING: usize = 32_768;

/// Record bytes of one connection that are not written yet.
const UNWRITTEN: usize = 32 << 20;

/// Who waits for the answer to a request.
#[derive(Debug)]
pub struct Caller {
    /// Cancelled when nobody is there any more to take the answer.
    pub gone: CancellationToken,
    /// A permit for each byte of records that may still be put into answers of the connection; it is kept until they are written.
    pub unwritten: Arc<Semaphore>,
    /// The request's place among those that are worked on, or that wait.
    place: Mutex<Option<OwnedSemaphorePermit>>,
    waiting: Arc<Semaphore>,
}

impl Default for Caller {
    fn default() -> Self {
        Caller {
            gone: CancellationToken::new(),
            unwritten: Arc::new(Semaphore::new(UNWRITTEN)),
            place: Mutex::default(),
            waiting: Arc::new(Semaphore::new(WAITING)),
        }
    }
}

impl Caller {
    /// From here on the request only waits for others, so that it no longer counts among those that are worked on. An error:
    /// too many wait already.
    pub fn wait_aside(&self) -> Result<(), ResponseError> {
        let place = self.waiting.clone().try_acquire_owned();
        *self.place.lock() = Some(place.map_err(|_| ResponseError::CoordinatorNotAvailable)?);
        Ok(())
    }
}

/// What answers internal requests.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// The encoded answer. An error says that there is none: UNSUPPORTED_VERSION for a request that is not served,
    /// INVALID_REQUEST for one that cannot be read. When the caller is gone, nothing is sent.
    async fn handle(&self, api_key: i16, body: Bytes, caller: &Caller) -> Result<Rope, ResponseError>;
}

/// Reads the body of a request.
pub fn read_request<R: Decode>(body: Bytes) -> Result<R, ResponseError> {
    R::from_bytes(body).map_err(|_| ResponseError::InvalidRequest)
}

/// Connections of nodes. Each node has up to two to each other, brokers of a zone a third one; tools come beside them.
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
        if self.may_warn() {
            tracing::warn!(peer, reason, "internal connection refused");
        }
    }

    fn may_warn(&self) -> bool {
        let now = self.env.instant();
        let mut warned = self.warned.lock();
        let may = warned.is_none_or(|last| now.saturating_duration_since(last) >= WARN_EVERY);
        if may {
            *warned = Some(now);
        }
        may
    }
}

async fn connection(shared: Arc<Shared>, stream: Stream, arrival: u64, turned_away: CancellationToken) {
    let env = &shared.env;
    let peer = stream.peer().to_owned();
    let limited = stream.limit_silence(UNCONFIRMED);
    let (mut reading, mut writing) = stream.into_split();
    let mut buffer = BytesMut::new();
    let admitted = tokio::select! {
        biased;
        admitted = admit(env, &mut reading, &mut writing, &mut buffer, &shared.secret) => admitted,
        () = turned_away.cancelled() => Err("too many others that do not say who they are".to_owned()),
    };
    shared.strangers.lock().remove(&arrival);
    let limited = limited.map_err(|error| error.to_string());
    let slot = admitted.and(limited).and_then(|()| {
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

/// What the requests of a connection share.
struct Requests {
    /// Cancelled when the connection ends.
    ended: CancellationToken,
    unwritten: Arc<Semaphore>,
    in_flight: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    /// By correlation id, to be cancelled when its caller gives up.
    unanswered: Mutex<FastMap<i32, CancellationToken>>,
}

impl Requests {
    fn new() -> Arc<Requests> {
        Arc::new(Requests {
            ended: CancellationToken::new(),
            unwritten: Arc::new(Semaphore::new(UNWRITTEN)),
            in_flight: Arc::new(Semaphore::new(IN_FLIGHT)),
            waiting: Arc::new(Semaphore::new(WAITING)),
            unanswered: Mutex::default(),
        })
    }

    /// Takes a request in when there is a place for it.
    async fn begin(&self, correlation_id: i32) -> Caller {
        let place = self.in_flight.clone().acquire_owned().await.ok();
        let gone = self.ended.child_token();
        self.unanswered.lock().insert(correlation_id, gone.clone());
        Caller {
            gone,
            unwritten: self.unwritten.clone(),
            place: Mutex::new(place),
            waiting: self.waiting.clone(),
        }
    }

    /// `DisklessCancel`
    fn cancel(&self, body: Bytes) -> ErrorResponse {
        let request: CancelRequest = match read_request(body) {
            Ok(request) => request,
            Err(error) => {
                let error_code = error.code();
                return ErrorResponse { error_code };
            }
        };
        if let Some(gone) = self.unanswered.lock().remove(&request.correlation_id) {
            gone.cancel();
        }
        ErrorResponse { error_code: 0 }
    }
}

/// Answers a node until its connection ends.
async fn answer(
    shared: &Arc<Shared>,
    peer: &str,
    mut reading: ReadHalf,
    mut writing: WriteHalf,
    mut buffer: BytesMut,
) {
    let env = &shared.env;
    let (answers, queue) = mpsc::channel(256);
    let writer = env.spawn(async move { write_queue(queue, &mut writing).await });
    let requests = Requests::new();
    // However this ends.
    let _ended = requests.ended.clone().drop_guard();
    while let Ok(Some(frame)) = read_frame(&mut reading, &mut buffer, MAX_FRAME).await {
        let (header, body) = match split_request(frame) {
            Ok(request) => request,
            Err(error) => {
                tracing::warn!(%peer, %error, "not a request: internal connection closed");
                break;
            }
        };
        if (header.api_key, header.version) == (api_key::CANCEL, VERSION) {
            // It must not have to wait for a place of its own.
            let answer = requests.cancel(body).to_bytes().into();
            let _ = answers.send(response_frame(header.correlation_id, answer)).await;
            continue;
        }
        let caller = requests.begin(header.correlation_id).await;
        let (requests, answers) = (requests.clone(), answers.clone());
        let (shared, peer) = (shared.clone(), peer.to_owned());
        env.spawn(async move {
            let answer = match header.version {
                VERSION => shared.handler.handle(header.api_key, body, &caller).await,
                _ => Err(ResponseError::UnsupportedVersion),
            };
            if caller.gone.is_cancelled() {
                return;
            }
            requests.unanswered.lock().remove(&header.correlation_id);
            let answer = answer.unwrap_or_else(|error| {
                if shared.may_warn() {
                    tracing::warn!(%peer, ?header, ?error, "an internal request is refused");
                }
                let error_code = error.code();
                ErrorResponse { error_code }.to_bytes().into()
            });
            // The peer may be gone.
            let _ = answers.send(response_frame(header.correlation_id, answer)).await;
        });
        if writer.is_finished() {
            break;
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    api_key: i16,
    version: i16,
    correlation_id: i32,
}

/// Takes the header (version 2) off a request. Client id and tagged fields are skipped.
pub(crate) fn split_request(mut frame: Bytes) -> Result<(Header, Bytes), DecodeError> {
    let header = Header {
        api_key: frame.try_get_i16()?,
        version: frame.try_get_i16()?,
        correlation_id: frame.try_get_i32()?,
    };
    if let Ok(client_id) = usize::try_from(frame.try_get_i16()?) {
        take(&mut frame, client_id)?;
    }
    get_tagged(&mut frame, |_, _| Ok(()))?;
    Ok((header, frame))
}
