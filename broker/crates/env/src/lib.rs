//! Everything of the outside world that a run depends on: clock, randomness, sockets, tasks and threads.
//!
//! ```text
//!            Env ──┬── production: the machine's clock, entropy, TCP, a thread where one is asked for
//!                  └── simulated:  tokio's paused clock, one seeded generator, an in-memory network,
//!                                  everything on one thread; a node's tasks die with the node
//! ```
//!
//! No other crate may reach for these (clippy.toml has the list), so the code that runs in a cluster is, line for
//! line, the code that runs in the simulation.
#![allow(clippy::disallowed_methods, reason = "this is the crate that wraps them")]

mod mutation;
mod net;
mod sim;
mod task;

pub use mutation::{HAS_MUTATIONS, choose_mutation, mutation};
pub use net::{Listener, ReadHalf, Stream, WriteHalf};
pub use sim::{SimNet, Simulation};
use task::Gate;
pub use task::{Elapsed, JoinHandle};

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use types::Timestamp;
use uuid::Uuid;

/// A point on the monotonic clock; in a simulation it moves only when everything waits.
pub use tokio::time::Instant;

/// Handle to the outside world. Cheap to clone; one per node (process).
#[derive(Clone)]
pub struct Env(Arc<Inner>);

struct Inner {
    world: World,
    random: Mutex<StdRng>,
    /// Cancelled when the node dies (simulation) or has ended.
    alive: CancellationToken,
    tasks: TaskTracker,
    /// Closed while the node is paused (simulation).
    gate: Arc<Gate>,
}

enum World {
    Production,
    Simulated {
        net: SimNet,
        host: String,
        epoch: Instant,
    },
}

impl std::fmt::Debug for Env {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0.world {
            World::Production => f.write_str("Env(production)"),
            World::Simulated { host, .. } => write!(f, "Env(simulated {host})"),
        }
    }
}

impl Env {
    /// The real machine.
    pub fn production() -> Env {
        Env::new(World::Production, StdRng::from_rng(&mut rand::rng()))
    }

    /// A world of its own for a test: seeded randomness, the (pausable) tokio clock, a private network.
    pub fn simulated(seed: u64) -> Env {
        Simulation::new(seed).node("test")
    }

    fn new(world: World, random: StdRng) -> Env {
        let alive = CancellationToken::new();
        Env(Arc::new(Inner {
            world,
            random: Mutex::new(random),
            alive,
            tasks: TaskTracker::new(),
            gate: Arc::default(),
        }))
    }

    pub(crate) fn in_simulation(net: SimNet, host: &str, epoch: Instant, seed: u64) -> Env {
        let world = World::Simulated {
            net,
            host: host.to_owned(),
            epoch,
        };
        Env::new(world, StdRng::seed_from_u64(seed))
    }

    /// True in a simulation: tests use it to bound their work, production code has no reason to ask.
    pub fn is_simulated(&self) -> bool {
        matches!(self.0.world, World::Simulated { .. })
    }

    /// Wall-clock time. May go backwards; never use it for safety, only for what users see as time.
    pub fn now(&self) -> Timestamp {
        match &self.0.world {
            World::Production => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                Timestamp(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
            }
            World::Simulated { net, host, epoch } => {
                // Runs start in 2026, so that record timestamps look like real ones.
                let ms = i64::try_from(epoch.elapsed().as_millis()).unwrap_or(i64::MAX);
                Timestamp(1_767_225_600_000).plus(ms + net.clock_offset(host))
            }
        }
    }

    /// Monotonic time.
    pub fn instant(&self) -> Instant {
        Instant::now()
    }

    /// Waits.
    pub async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    /// Waits until `deadline`.
    pub async fn sleep_until(&self, deadline: Instant) {
        tokio::time::sleep_until(deadline).await;
    }

    /// Runs `future` for `duration` at most.
    pub async fn timeout<F: Future>(&self, duration: Duration, future: F) -> Result<F::Output, Elapsed> {
        tokio::time::timeout(duration, future).await.map_err(|_| Elapsed)
    }

    /// Runs `future` until `deadline` at most.
    pub async fn timeout_at<F: Future>(&self, deadline: Instant, future: F) -> Result<F::Output, Elapsed> {
        tokio::time::timeout_at(deadline, future)
            .await
            .map_err(|_| Elapsed)
    }

    /// A random number over the whole range.
    pub fn random_u64(&self) -> u64 {
        self.0.random.lock().next_u64()
    }

    /// A random number in `0..bound` (0 when `bound` is 0).
    pub fn random_below(&self, bound: u64) -> u64 {
        if bound == 0 {
            0
        } else {
            self.0.random.lock().random_range(0..bound)
        }
    }

    /// `duration` stretched by a random part of up to a half, so that nodes do not act in step.
    pub fn jittered(&self, duration: Duration) -> Duration {
        let half = u64::try_from(duration.as_nanos() / 2).unwrap_or(u64::MAX);
        duration + Duration::from_nanos(self.random_below(half))
    }

    /// A random (version 4) UUID.
    pub fn uuid(&self) -> Uuid {
        let mut bytes = [0u8; 16];
        self.0.random.lock().fill_bytes(&mut bytes);
        uuid::Builder::from_random_bytes(bytes).into_uuid()
    }

    /// Opens a connection to `address` (`host:port`).
    pub async fn connect(&self, address: &str) -> std::io::Result<Stream> {
        match &self.0.world {
            World::Production => Stream::connect(address).await,
            World::Simulated { net, host, .. } => net.connect(host, address).await,
        }
    }

    /// Listens on `address` (`host:port`, port 0 = any).
    pub async fn listen(&self, address: &str) -> std::io::Result<Listener> {
        match &self.0.world {
            World::Production => Listener::bind(address).await,
            World::Simulated { net, host, .. } => net.listen(host, address),
        }
    }

    /// Starts a task that ends with its node.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let alive = self.0.alive.clone();
        let running = async move { alive.run_until_cancelled_owned(future).await };
        if self.is_simulated() {
            return JoinHandle::new(self.0.tasks.spawn(self.0.gate.clone().guard(running)));
        }
        JoinHandle::new(self.0.tasks.spawn(running))
    }

    /// Starts a task on a thread of its own (named `name`), for work that holds the processor: the SQLite view of
    /// a shard. In a simulation it is an ordinary task.
    pub fn spawn_dedicated<F>(&self, name: &str, future: F) -> std::io::Result<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if self.is_simulated() {
            self.spawn(future);
            return Ok(());
        }
        let runtime = tokio::runtime::Handle::current();
        let alive = self.0.alive.clone();
        let token = self.0.tasks.token();
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _counted = token;
            runtime.block_on(alive.run_until_cancelled_owned(future));
        })?;
        Ok(())
    }

    /// Runs blocking work (file I/O) where it does not hold up the tasks. In a simulation it runs in place.
    pub async fn blocking<T, F>(&self, work: F) -> T
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        if self.is_simulated() {
            return work();
        }
        match tokio::task::spawn_blocking(work).await {
            Ok(value) => value,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The runtime is shutting down: nobody is left to take the value.
            Err(_) => std::future::pending().await,
        }
    }

    /// Stops every task of a simulated node where it is, as SIGSTOP would; time, network and store go on.
    pub fn pause(&self) {
        self.0.gate.close();
    }

    /// Lets a node that was paused go on.
    pub fn resume(&self) {
        self.0.gate.open();
    }

    /// Ends every task of this node at its next await point, as a kill would.
    pub fn kill(&self) {
        self.0.alive.cancel();
        self.0.gate.open();
        if let World::Simulated { net, host, .. } = &self.0.world {
            net.drop_host(host);
        }
    }

    /// Resolves when the node is being ended.
    pub async fn killed(&self) {
        self.0.alive.cancelled().await;
    }

    /// Ends the node's tasks and waits until all are gone.
    pub async fn shut_down(&self) {
        self.kill();
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }
}
