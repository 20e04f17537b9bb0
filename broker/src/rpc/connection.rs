//! The calling side: one connection for each peer and [`Lane`], shared by all callers.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use coordinator::protocol::{CancelRequest, ErrorResponse, api_key};
use env::{Env, Instant};
use kafka_wire::ResponseError;
use kafka_wire::flex::{Decode, Encode, get_tagged};
use kafka_wire::frame::read_frame;
use kafka_wire::rope::Rope;
use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::io::InspectReader;
use tokio_util::sync::CancellationToken;
use types::FastMap;

use super::handshake::introduce;
use super::{MAX_FRAME, RpcError, UNCONFIRMED, request_frame, write_queue};
use crate::auth::ClusterSecret;

/// For the connection alone, and once more until both sides know each other.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const QUEUE: usize = 256;
/// A connection on which calls have been given up and nothing at all has arrived for so long is closed: its peer may have come
/// back under another address, or the next attempt of TCP to reach it may be minutes away.
const SILENCE: Duration = Duration::from_secs(2);

/// Which of the connections to a peer a call takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// For what is answered as soon as it is done.
    Prompt,
    /// For what waits for others, perhaps long, and may be very many. The peer is told when a caller gives up.
    Held,
}

/// Connections to the internal listeners of other nodes, opened when first needed.
#[derive(Clone)]
pub struct Pool {
    env: Env,
    secret: Arc<ClusterSecret>,
    peers: Arc<Mutex<BTreeMap<(String, Lane), Attempt>>>,
}

/// What has become of the last attempt to connect, which all callers share; `None`: it goes on.
type Attempt = watch::Receiver<Option<Result<Arc<Connection>, RpcError>>>;

impl Pool {
    /// An empty pool. Its connections begin with a proof that this node knows `secret`.
    pub fn new(env: Env, secret: Arc<ClusterSecret>) -> Pool {
        Pool {
            env,
            secret,
            peers: Arc::default(),
        }
    }

    /// Sends `request` to `address` and waits for its answer until `deadline`.
    pub async fn call<R: Decode>(
        &self,
        address: &str,
        api_key: i16,
        request: &impl Encode,
        deadline: Instant,
    ) -> Result<R, RpcError> {
        self.call_on(Lane::Prompt, address, api_key, request, deadline)
            .await
    }

    /// The same on a connection of one's choice.
    pub async fn call_on<R: Decode>(
        &self,
        lane: Lane,
        address: &str,
        api_key: i16,
        request: &impl Encode,
        deadline: Instant,
    ) -> Result<R, RpcError> {
        let answer = self.env.timeout_at(deadline, async {
            let connection = self.connection(address, lane).await?;
            connection.call(api_key, request).await
        });
        read(address, answer.await.map_err(|_| RpcError::TimedOut)??)
    }

    async fn connection(&self, address: &str, lane: Lane) -> Result<Arc<Connection>, RpcError> {
        let mut attempt = self.attempt(address, lane);
        let made = attempt.wait_for(Option::is_some).await;
        match made.ok().and_then(|made| made.clone()) {
            Some(made) => made,
            // The node is ending.
            None => std::future::pending().await,
        }
    }

    /// The attempt under way, or that has led to a connection which is still open; else a new one, which goes on
    /// whoever gives up waiting for it.
    fn attempt(&self, address: &str, lane: Lane) -> Attempt {
        let mut peers = self.peers.lock();
        let peer = (address.to_owned(), lane);
        if let Some(attempt) = peers.get(&peer) {
            let usable = match &*attempt.borrow() {
                None => true,
                Some(made) => made.as_ref().is_ok_and(|connection| connection.is_open()),
            };
            if usable {
                return attempt.clone();
            }
        }
        let (made, attempt) = watch::channel(None);
        peers.insert(peer, attempt.clone());
        let (pool, address) = (self.clone(), address.to_owned());
        self.env.spawn(async move {
            let opened = pool.open(&address, lane).await;
            made.send_replace(Some(opened));
        });
        attempt
    }

    async fn open(&self, address: &str, lane: Lane) -> Result<Arc<Connection>, RpcError> {
        let connection = self.connect(address, lane).await?;
        if lane == Lane::Prompt {
            return Ok(connection);
        }
        // Nothing is cancelled: the question is whether the peer understands it.
        let nothing = CancelRequest { correlation_id: -1 };
        let asked = connection.call(api_key::CANCEL, &nothing);
        match self.env.timeout(CONNECT_TIMEOUT, asked).await {
            Ok(Ok(answer)) => {
                let known = ErrorResponse::from_bytes(answer).is_ok_and(|answer| answer.error_code == 0);
                connection.cancels.store(known, Ordering::Relaxed);
                Ok(connection)
            }
            // The first release ends the connection.
            Ok(Err(_)) => self.connect(address, lane).await,
            Err(_) => Err(RpcError::TimedOut),
        }
    }

    async fn connect(&self, address: &str, lane: Lane) -> Result<Arc<Connection>, RpcError> {
        let unreachable = |reason: String| RpcError::Unreachable {
            address: address.to_owned(),
            reason,
        };
        let mut stream = self
            .env
            .timeout(CONNECT_TIMEOUT, self.env.connect(address))
            .await
            .map_err(|_| unreachable("connecting timed out".to_owned()))?
            .map_err(|error| not_connected(address, &error))?;
        stream
            .limit_silence(UNCONFIRMED)
            .map_err(|error| unreachable(error.to_string()))?;
        // A process that listens and does not speak may be frozen: that is silence, not absence.
        self.env
            .timeout(
                CONNECT_TIMEOUT,
                introduce(&self.env, &mut stream, &self.secret, address),
            )
            .await
            .map_err(|_| RpcError::TimedOut)??;
        Ok(Arc::new(Connection::start(&self.env, stream, address, lane)))
    }
}

/// Who refuses is up. Anything else may be this node's own trouble: its network, or its name service.
fn not_connected(address: &str, error: &io::Error) -> RpcError {
    let (address, reason) = (address.to_owned(), error.to_string());
    match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => {
            RpcError::Refused { address, reason }
        }
        _ => RpcError::Unreachable { address, reason },
    }
}

fn read<R: Decode>(address: &str, answer: Bytes) -> Result<R, RpcError> {
    R::from_bytes(answer.clone()).map_err(|malformed| {
        // Who does not serve a request cannot know the form of its answer.
        let code = ErrorResponse::from_bytes(answer).map(|refusal| refusal.error_code);
        match code.ok().and_then(ResponseError::try_from_code) {
            Some(error) => RpcError::Unserved {
                address: address.to_owned(),
                error,
            },
            None => malformed.into(),
        }
    })
}

struct Connection {
    env: Env,
    address: String,
    lane: Lane,
    /// The peer knows [`api_key::CANCEL`].
    cancels: AtomicBool,
    next_id: AtomicI32,
    outgoing: mpsc::Sender<Rope>,
    waiting: Arc<Waiting>,
}

struct Waiting {
    /// `None` once the connection is closed.
    callers: Mutex<Option<Callers>>,
    /// Cancelled then.
    closed: CancellationToken,
}

struct Callers {
    by_id: FastMap<i32, oneshot::Sender<Bytes>>,
    /// When something last arrived.
    heard: Instant,
    /// Since when a call, or several one after the other, have been without an answer that were given up; `None`: something has
    /// arrived since.
    unanswered: Option<Instant>,
}

impl Waiting {
    fn close(&self) {
        *self.callers.lock() = None;
        self.closed.cancel();
    }

    fn take(&self, id: i32) -> Option<oneshot::Sender<Bytes>> {
        self.callers.lock().as_mut()?.by_id.remove(&id)
    }

    fn heard(&self, now: Instant) {
        if let Some(callers) = self.callers.lock().as_mut() {
            (callers.heard, callers.unanswered) = (now, None);
        }
    }
}

/// Takes a caller off the list when it gives up.
struct Call<'a> {
    connection: &'a Connection,
    id: i32,
    made: Instant,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.connection.given_up(self.id, self.made);
    }
}

impl Connection {
    fn start(env: &Env, stream: env::Stream, address: &str, lane: Lane) -> Connection {
        let (reading, mut writing) = stream.into_split();
        let (outgoing, queue) = mpsc::channel(QUEUE);
        let waiting = Arc::new(Waiting {
            callers: Mutex::new(Some(Callers {
                by_id: FastMap::default(),
                heard: env.instant(),
                unanswered: None,
            })),
            closed: CancellationToken::new(),
        });

        let sending = waiting.clone();
        env.spawn(async move {
            let written = write_queue(queue, &mut writing);
            sending.closed.run_until_cancelled(written).await;
            if sending.closed.is_cancelled() {
                // The calls are made again, and must not come after those that follow them.
                writing.abort();
            } else {
                sending.close();
                let _ = writing.shutdown().await;
            }
        });

        let (answers, clock) = (waiting.clone(), env.clone());
        env.spawn(async move {
            // Part of a long answer is a sign of life, too.
            let mut reading = InspectReader::new(reading, |_: &[u8]| answers.heard(clock.instant()));
            let mut buffer = BytesMut::new();
            let received = async {
                while let Ok(Some(frame)) = read_frame(&mut reading, &mut buffer, MAX_FRAME).await {
                    let Some((id, body)) = split_response(frame) else {
                        break;
                    };
                    let caller = answers.take(id);
                    if let Some(caller) = caller {
                        // The caller may have given up in this very moment.
                        let _ = caller.send(body);
                    }
                }
            };
            answers.closed.run_until_cancelled(received).await;
            answers.close();
        });
        Connection {
            env: env.clone(),
            address: address.to_owned(),
            lane,
            cancels: AtomicBool::new(false),
            next_id: AtomicI32::new(0),
            outgoing,
            waiting,
        }
    }

    fn is_open(&self) -> bool {
        self.waiting.callers.lock().is_some()
    }

    async fn call(&self, api_key: i16, request: &impl Encode) -> Result<Bytes, RpcError> {
        let broken = || RpcError::Broken {
            address: self.address.clone(),
        };
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (caller, answer) = oneshot::channel();
        self.waiting
            .callers
            .lock()
            .as_mut()
            .ok_or_else(broken)?
            .by_id
            .insert(id, caller);
        let _listed = Call {
            connection: self,
            id,
            made: self.env.instant(),
        };
        self.outgoing
            .send(request_frame(api_key, id, request.to_bytes()))
            .await
            .map_err(|_| broken())?;
        answer.await.map_err(|_| broken())
    }

    /// Nobody waits any longer for the answer to a call that was made then.
    fn given_up(&self, id: i32, made: Instant) {
        let mut lock = self.waiting.callers.lock();
        let Some(callers) = lock.as_mut() else { return };
        if callers.by_id.remove(&id).is_none() {
            // It was answered.
            return;
        }
        match self.lane {
            Lane::Prompt => {
                let since = *callers.unanswered.get_or_insert(made.max(callers.heard));
                drop(lock);
                if self.env.instant().saturating_duration_since(since) >= SILENCE {
                    tracing::info!(address = self.address, "a silent internal connection is closed");
                    self.waiting.close();
                }
            }
            // Here silence is usual.
            Lane::Held => {
                drop(lock);
                if self.cancels.load(Ordering::Relaxed) {
                    self.cancel(id);
                }
            }
        }
    }

    fn cancel(&self, id: i32) {
        let request = CancelRequest { correlation_id: id };
        let own = self.next_id.fetch_add(1, Ordering::Relaxed);
        let frame = request_frame(api_key::CANCEL, own, request.to_bytes());
        if let Err(TrySendError::Full(frame)) = self.outgoing.try_send(frame) {
            let outgoing = self.outgoing.clone();
            self.env.spawn(async move {
                let _ = outgoing.send(frame).await;
            });
        }
    }
}

/// Correlation id and body of an answer. Nothing is known of tagged fields in the header of one; they are skipped.
pub(crate) fn split_response(mut frame: Bytes) -> Option<(i32, Bytes)> {
    let id = frame.try_get_i32().ok()?;
    get_tagged(&mut frame, |_, _| Ok(())).ok()?;
    Some((id, frame))
}
