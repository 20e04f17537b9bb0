//! The calling side: one connection per peer, shared by all callers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use bytes::{Buf, Bytes, BytesMut};
use env::{Env, Instant};
use kafka_wire::flex::{Decode, Encode};
use kafka_wire::frame::read_frame;
use kafka_wire::rope::Rope;
use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;
use tokio::sync::{mpsc, oneshot};
use types::FastMap;

use super::handshake::introduce;
use super::{MAX_FRAME, RpcError, request_frame, write_queue};
use crate::auth::ClusterSecret;

/// For the connection alone, and once more until both sides know each other.
const CONNECT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(2);
const QUEUE: usize = 256;

/// Connections to the internal listeners of other nodes, opened when first needed.
#[derive(Clone)]
pub struct Pool {
    env: Env,
    secret: Arc<ClusterSecret>,
    peers: Arc<Mutex<BTreeMap<String, Arc<Peer>>>>,
}

/// The lock is held while connecting, so that callers share one attempt.
type Peer = tokio::sync::Mutex<Option<Arc<Connection>>>;

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
        let answer = self.env.timeout_at(deadline, async {
            let connection = self.connection(address).await?;
            connection.call(api_key, request).await
        });
        R::from_bytes(answer.await.map_err(|_| RpcError::TimedOut)??).map_err(RpcError::from)
    }

    async fn connection(&self, address: &str) -> Result<Arc<Connection>, RpcError> {
        let peer = self.peers.lock().entry(address.to_owned()).or_default().clone();
        let mut slot = peer.lock().await;
        if let Some(connection) = slot.as_ref().filter(|connection| connection.is_open()) {
            return Ok(connection.clone());
        }
        *slot = None;
        let unreachable = |reason: String| RpcError::Unreachable {
            address: address.to_owned(),
            reason,
        };
        let mut stream = self
            .env
            .timeout(CONNECT_TIMEOUT, self.env.connect(address))
            .await
            .map_err(|_| unreachable("connecting timed out".to_owned()))?
            .map_err(|error| unreachable(error.to_string()))?;
        // A process that listens and does not speak may be frozen: that is silence, not absence.
        self.env
            .timeout(
                CONNECT_TIMEOUT,
                introduce(&self.env, &mut stream, &self.secret, address),
            )
            .await
            .map_err(|_| RpcError::TimedOut)??;
        let connection = Arc::new(Connection::start(&self.env, stream, address));
        *slot = Some(connection.clone());
        Ok(connection)
    }
}

struct Connection {
    address: String,
    next_id: AtomicI32,
    outgoing: mpsc::Sender<Rope>,
    waiting: Arc<Waiting>,
}

/// Callers by correlation id; `None` once the connection is closed.
struct Waiting(Mutex<Option<FastMap<i32, oneshot::Sender<Bytes>>>>);

impl Waiting {
    fn close(&self) {
        *self.0.lock() = None;
    }
}

/// Takes a caller off the list when it gives up.
struct Call<'a> {
    waiting: &'a Waiting,
    id: i32,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if let Some(waiting) = self.waiting.0.lock().as_mut() {
            waiting.remove(&self.id);
        }
    }
}

impl Connection {
    fn start(env: &Env, stream: env::Stream, address: &str) -> Connection {
        let (mut reading, mut writing) = stream.into_split();
        let (outgoing, queue) = mpsc::channel(QUEUE);
        let waiting = Arc::new(Waiting(Mutex::new(Some(FastMap::default()))));

        let closing = waiting.clone();
        env.spawn(async move {
            write_queue(queue, &mut writing).await;
            closing.close();
            let _ = writing.shutdown().await;
        });

        let answers = waiting.clone();
        env.spawn(async move {
            let mut buffer = BytesMut::new();
            while let Ok(Some(frame)) = read_frame(&mut reading, &mut buffer, MAX_FRAME).await {
                let Some((id, body)) = split_response(frame) else {
                    break;
                };
                let caller = answers.0.lock().as_mut().and_then(|waiting| waiting.remove(&id));
                if let Some(caller) = caller {
                    // The caller may have given up in this very moment.
                    let _ = caller.send(body);
                }
            }
            answers.close();
        });
        Connection {
            address: address.to_owned(),
            next_id: AtomicI32::new(0),
            outgoing,
            waiting,
        }
    }

    fn is_open(&self) -> bool {
        self.waiting.0.lock().is_some()
    }

    async fn call(&self, api_key: i16, request: &impl Encode) -> Result<Bytes, RpcError> {
        let broken = || RpcError::Broken {
            address: self.address.clone(),
        };
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (caller, answer) = oneshot::channel();
        self.waiting
            .0
            .lock()
            .as_mut()
            .ok_or_else(broken)?
            .insert(id, caller);
        let _listed = Call {
            waiting: &self.waiting,
            id,
        };
        self.outgoing
            .send(request_frame(api_key, id, request.to_bytes()))
            .await
            .map_err(|_| broken())?;
        answer.await.map_err(|_| broken())
    }
}

pub(crate) fn split_response(mut frame: Bytes) -> Option<(i32, Bytes)> {
    if frame.len() < 5 {
        return None;
    }
    let id = frame.get_i32();
    // No tagged fields are defined for the response header.
    (frame.get_u8() == 0).then_some((id, frame))
}
