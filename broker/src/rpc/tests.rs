//! Who is served on the internal listener, and who is not.

mod failures;
mod held;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use coordinator::protocol::ErrorResponse;
use env::{Env, Simulation, Stream};
use kafka_wire::flex::Encode;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::server::{MAX_CONNECTIONS, MAX_STRANGERS};
use super::*;
use crate::auth::ClusterSecret;
use crate::metrics::Metrics;

const SECOND: Duration = Duration::from_secs(1);

/// A request that is answered when nobody waits for it any longer.
const HELD: i16 = 7999;
/// The same, and it says that it waits for others.
const ASIDE: i16 = 7998;
/// One that takes ten seconds.
const SLOW: i16 = 7997;

/// Answers with the key of the request. From 8000 on none is served.
struct Echo {
    env: Env,
    /// Counts the callers that went away.
    gone: Arc<AtomicUsize>,
    /// What it was asked.
    asked: Arc<Mutex<Vec<i16>>>,
}

#[async_trait]
impl Handler for Echo {
    async fn handle(&self, api_key: i16, body: Bytes, caller: &Caller) -> Result<Rope, ResponseError> {
        let request: ErrorResponse = read_request(body)?;
        assert_eq!(request.error_code, 0);
        self.asked.lock().push(api_key);
        match api_key {
            SLOW => self.env.sleep(10 * SECOND).await,
            HELD | ASIDE => {
                if api_key == ASIDE {
                    caller.wait_aside()?;
                }
                caller.gone.cancelled().await;
                self.gone.fetch_add(1, Ordering::Relaxed);
            }
            8000.. => return Err(ResponseError::UnsupportedVersion),
            _ => {}
        }
        Ok(ErrorResponse { error_code: api_key }.to_bytes().into())
    }
}

struct World {
    simulation: Simulation,
    /// Of who calls.
    env: Env,
    /// Of who answers.
    server: Env,
    /// Callers that went away.
    gone: Arc<AtomicUsize>,
    asked: Arc<Mutex<Vec<i16>>>,
    metrics: Arc<Metrics>,
    dir: tempfile::TempDir,
}

impl World {
    async fn new() -> World {
        let simulation = Simulation::new(3);
        let world = World {
            env: simulation.node("client"),
            server: simulation.node("server"),
            simulation,
            gone: Arc::default(),
            asked: Arc::default(),
            metrics: Arc::default(),
            dir: tempfile::tempdir().unwrap(),
        };
        world.serve("server:9190", "the right secret of it all").await;
        world
    }

    async fn serve(&self, address: &str, secret: &str) {
        let listener = self.server.listen(address).await.unwrap();
        let echo = Echo {
            env: self.server.clone(),
            gone: self.gone.clone(),
            asked: self.asked.clone(),
        };
        let (secret, metrics) = (self.secret("server", secret), self.metrics.clone());
        self.server.spawn(serve(
            self.server.clone(),
            listener,
            Arc::new(echo),
            secret,
            metrics,
        ));
    }

    /// Of a node that belongs to the cluster.
    fn pool(&self) -> Pool {
        Pool::new(
            self.env.clone(),
            self.secret("client", "the right secret of it all"),
        )
    }

    fn cut_off(&self) {
        self.simulation.net().cut("client", "server");
        self.simulation.net().cut("server", "client");
    }

    fn gone(&self) -> usize {
        self.gone.load(Ordering::Relaxed)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.dir.path().join(name), text).unwrap();
    }

    fn secret(&self, name: &str, text: &str) -> Arc<ClusterSecret> {
        self.write(name, text);
        Arc::new(ClusterSecret::read(&self.dir.path().join(name)).unwrap())
    }

    async fn call(&self, pool: &Pool, api_key: i16) -> Result<i16, RpcError> {
        self.call_on(pool, Lane::Prompt, api_key, 5 * SECOND).await
    }

    async fn call_on(&self, pool: &Pool, lane: Lane, api_key: i16, time: Duration) -> Result<i16, RpcError> {
        call_on(&self.env, pool, lane, api_key, time).await
    }

    /// Sends a frame as a stranger; gives the answer without its length, and whether the connection was closed then.
    async fn raw(&self, frame: &[u8]) -> (Vec<u8>, bool) {
        let mut stream: Stream = self.env.connect("server:9190").await.unwrap();
        let mut all = BytesMut::new();
        all.put_u32(frame.len() as u32);
        all.put_slice(frame);
        stream.write_all(&all).await.unwrap();
        let mut answer = Vec::new();
        let closed = self
            .env
            .timeout(60 * SECOND, stream.read_to_end(&mut answer))
            .await
            .is_ok();
        (answer.get(4..).unwrap_or_default().to_vec(), closed)
    }
}

async fn call_on(env: &Env, pool: &Pool, lane: Lane, key: i16, time: Duration) -> Result<i16, RpcError> {
    let (request, deadline) = (ErrorResponse { error_code: 0 }, env.instant() + time);
    let answer: ErrorResponse = pool.call_on(lane, "server:9190", key, &request, deadline).await?;
    Ok(answer.error_code)
}

fn request(key: i16, version: i16, body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    frame.put_i16(key);
    frame.put_i16(version);
    frame.put_i32(77);
    frame.put_i16(-1);
    frame.put_slice(body);
    frame
}

#[tokio::test(start_paused = true)]
async fn nodes_with_the_secret_are_served() {
    let world = World::new().await;
    let pool = Pool::new(
        world.env.clone(),
        world.secret("client", "the right secret of it all\n"),
    );
    for key in [7001, 7030] {
        assert_eq!(world.call(&pool, key).await.unwrap(), key);
    }
}

#[tokio::test(start_paused = true)]
async fn another_secret_is_denied_and_a_replaced_file_counts_at_once() {
    let world = World::new().await;
    let pool = Pool::new(world.env.clone(), world.secret("client", "some other secret"));
    let denied = world.call(&pool, 7001).await.unwrap_err();
    assert!(matches!(denied, RpcError::Denied { .. }), "{denied}");
    assert!(!denied.to_string().contains("some other"), "{denied}");
    world.write("client", "the right secret of it all");
    assert_eq!(world.call(&pool, 7001).await.unwrap(), 7001);
    // The other way round: a connection that exists stays, a new one needs the new secret.
    world.write("server", "quite a new secret");
    assert_eq!(world.call(&pool, 7002).await.unwrap(), 7002);
    let late = Pool::new(
        world.env.clone(),
        world.secret("late", "the right secret of it all"),
    );
    assert!(matches!(
        world.call(&late, 7001).await,
        Err(RpcError::Denied { .. })
    ));
}

#[tokio::test(start_paused = true)]
async fn a_request_without_cluster_action_is_refused_and_the_connection_closed() {
    let world = World::new().await;
    for key in (7001..=7010).chain([7020, 7021, 7022, 7030, 7040, 0, 3, 18]) {
        let (mut answer, closed) = {
            let (answer, closed) = world.raw(&request(key, 0, &[0])).await;
            (Bytes::from(answer), closed)
        };
        assert!(closed, "{key}");
        assert_eq!(
            (answer.get_i32(), answer.get_u8(), answer.get_i16()),
            (77, 0, 31),
            "{key}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn strangers_get_nothing_out_of_the_handshake() {
    let world = World::new().await;
    // SaslAuthenticate before SaslHandshake.
    let (answer, closed) = world.raw(&request(36, 1, &[0, 0, 0, 0])).await;
    assert!(closed && answer.ends_with(&[0, 31, 0]), "{answer:?}");
    // A mechanism that would send the secret.
    let (answer, closed) = world.raw(&request(17, 1, b"\0\x05PLAIN")).await;
    assert!(closed && answer.starts_with(&[0, 0, 0, 77, 0, 33]), "{answer:?}");
    // Frames that are too large or too short, and silence.
    let (answer, closed) = world.raw(&vec![0; 9000]).await;
    assert!(closed && answer.is_empty());
    assert!(world.raw(&[0, 17]).await.1);
    let mut silent = world.env.connect("server:9190").await.unwrap();
    let read = world.env.timeout(60 * SECOND, silent.read_u8()).await;
    assert!(matches!(read, Ok(Err(_))), "it is closed");
}

#[tokio::test(start_paused = true)]
async fn a_server_without_the_secret_is_noticed() {
    let world = World::new().await;
    world.serve("server:9191", "no idea of the secret").await;
    let pool = world.pool();
    let deadline = world.env.instant() + 5 * SECOND;
    let answer = pool
        .call::<ErrorResponse>("server:9191", 7001, &ErrorResponse { error_code: 0 }, deadline)
        .await;
    assert!(matches!(answer, Err(RpcError::Denied { .. })), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn strangers_that_hold_connections_open_keep_no_node_out() {
    let world = World::new().await;
    let secret = world.secret("client", "the right secret of it all");
    let mut held = Vec::new();
    for _ in 0..MAX_STRANGERS + 50 {
        held.push(world.env.connect("server:9190").await.unwrap());
    }
    let pool = Pool::new(world.env.clone(), secret.clone());
    assert_eq!(world.call(&pool, 7001).await.unwrap(), 7001);
    // The oldest had to go; the newest may still say who they are.
    let closed = world.env.timeout(SECOND, held[0].read_u8()).await;
    assert!(matches!(closed, Ok(Err(_))), "{closed:?}");
    let open = world.env.timeout(SECOND, held[MAX_STRANGERS].read_u8()).await;
    assert!(open.is_err(), "{open:?}");
    // A node that is known stays, however many come.
    for _ in 0..2 * MAX_STRANGERS {
        held.push(world.env.connect("server:9190").await.unwrap());
    }
    assert_eq!(world.call(&pool, 7002).await.unwrap(), 7002);
    assert!(world.metrics.internal_connections_refused.get() >= 50);
    assert_eq!(world.metrics.internal_connections.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn so_many_connections_and_no_more_are_served() {
    let world = World::new().await;
    let secret = world.secret("client", "the right secret of it all");
    let mut pools: Vec<Pool> = (0..=MAX_CONNECTIONS)
        .map(|_| Pool::new(world.env.clone(), secret.clone()))
        .collect();
    for pool in &pools[1..] {
        assert_eq!(world.call(pool, 7001).await.unwrap(), 7001);
    }
    assert!(world.call(&pools[0], 7001).await.is_err());
    assert_eq!(world.metrics.internal_connections_refused.get(), 1);
    // One that ends makes room.
    pools.truncate(MAX_CONNECTIONS);
    world.env.sleep(SECOND).await;
    assert_eq!(world.call(&pools[0], 7001).await.unwrap(), 7001);
    assert_eq!(world.metrics.internal_connections.get(), MAX_CONNECTIONS as i64);
}
