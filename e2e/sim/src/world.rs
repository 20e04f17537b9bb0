//! The nodes of a run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use blob::SharedStore;
use broker::config::{Config, Tuning};
use broker::server::Node;
use env::{Env, SimNet, Simulation};
use parking_lot::Mutex;
use tempfile::TempDir;
use types::FeatureLevels;

use crate::lab::Trace;
use crate::postgres::{self, Database};
use crate::scale;
use crate::store::{BUCKET, Bucket};
use crate::{Engine, class};

/// How long dead objects are kept.
pub(crate) const GRACE: Duration = Duration::from_secs(24);
/// How long files that are gone are remembered: longer than a request can be on its way.
const TOMBSTONES: Duration = Duration::from_secs(30);
const STOP: Duration = Duration::from_secs(30);

/// All nodes of a cluster.
pub(crate) struct World {
    simulation: Simulation,
    bucket: Arc<Bucket>,
    /// Where the metadata logs are, if not in the bucket.
    database: Option<Arc<Database>>,
    configs: BTreeMap<String, Config>,
    running: Mutex<BTreeMap<String, Life>>,
    /// Nodes of the first release.
    old: Mutex<BTreeSet<String>>,
    /// Hosts of clients.
    clients: Mutex<Vec<String>>,
    /// Nodes that a fault is about.
    taken: Mutex<BTreeSet<String>>,
    /// Nodes that are no part of the cluster now.
    absent: Mutex<BTreeSet<String>>,
    /// Partitions of `__diskless_metadata`, for nodes that start.
    shards: AtomicU32,
    /// The views of the nodes; they survive a kill, as files do.
    dir: TempDir,
}

/// Partitions of `__diskless_metadata` at first.
const SHARDS: u32 = 3;

/// Which formats a node knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    First,
    This,
}

/// One life of a node.
struct Life {
    env: Env,
    /// The node, once it has started.
    node: Arc<Mutex<Option<Node>>>,
}

impl World {
    /// Nodes that have yet to be started.
    pub(crate) fn new(seed: u64, trace: Trace) -> anyhow::Result<Arc<World>> {
        let simulation = Simulation::new(seed);
        let dir = match std::fs::metadata("/dev/shm") {
            Ok(memory) if memory.is_dir() => TempDir::new_in("/dev/shm")?,
            _ => tempfile::tempdir()?,
        };
        let engine = Engine::of(seed);
        let mut configs = BTreeMap::new();
        for (i, (zone, broker_zone)) in (0..).zip(["a", "b", "c"].into_iter().zip(broker_zones(seed))) {
            let (coordinator, broker) = (format!("c{i}"), format!("b{i}"));
            configs.insert(
                coordinator.clone(),
                config(&dir, i, &coordinator, zone, "coordinator", engine)?,
            );
            let of_broker = config(&dir, 1000 + i, &broker, broker_zone, "broker", engine)?;
            configs.insert(broker, of_broker);
        }
        Ok(Arc::new(World {
            bucket: Bucket::new(simulation.node(BUCKET), simulation.net().clone(), trace),
            database: (engine == Engine::Postgres).then(|| Database::new(&simulation)),
            simulation,
            configs,
            running: Mutex::default(),
            old: Mutex::default(),
            clients: Mutex::default(),
            taken: Mutex::default(),
            absent: Mutex::new(BTreeSet::from([scale::SPARE.to_owned()])),
            shards: AtomicU32::new(SHARDS),
            dir,
        }))
    }

    pub(crate) fn simulation(&self) -> &Simulation {
        &self.simulation
    }

    /// The host of a client.
    pub(crate) fn client(&self, host: String) -> Env {
        let env = self.simulation.node(&host);
        self.clients.lock().push(host);
        env
    }

    /// Deletes what a node has on its disk.
    pub(crate) fn wipe(&self, name: &str) {
        std::fs::remove_dir_all(self.dir.path().join(name)).ok();
    }

    pub(crate) fn net(&self) -> &SimNet {
        self.simulation.net()
    }

    pub(crate) fn bucket(&self) -> &Bucket {
        &self.bucket
    }

    pub(crate) fn database(&self) -> Option<&Arc<Database>> {
        self.database.as_ref()
    }

    /// Hosts that keep the metadata logs.
    pub(crate) fn log_hosts(&self) -> &'static [&'static str] {
        match self.database {
            None => &[BUCKET],
            Some(_) => &postgres::HOSTS,
        }
    }

    /// Turns the small faults of the stores on or off; off ends storms, too.
    pub(crate) fn drizzle(&self, on: bool) {
        self.bucket.drizzle(on);
        if let Some(database) = &self.database {
            database.drizzle(on);
        }
    }

    /// What the stores have seen that must not have happened.
    pub(crate) fn broken(&self) -> Vec<String> {
        let mut broken = self.bucket.broken();
        broken.extend(self.database.iter().flat_map(|database| database.broken()));
        broken
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let absent = self.absent.lock();
        let names = self.configs.keys().filter(|name| !absent.contains(*name));
        names.cloned().collect()
    }

    pub(crate) fn clients(&self) -> Vec<String> {
        self.clients.lock().clone()
    }

    pub(crate) fn random_node(&self, env: &Env) -> String {
        let mut names = self.names();
        let index = usize::try_from(env.random_below(names.len() as u64)).unwrap_or(0);
        names.swap_remove(index)
    }

    /// A node that was no part of the cluster becomes one.
    pub(crate) fn add(&self, name: &str) {
        self.absent.lock().remove(name);
        self.start(name);
    }

    /// A node that is stopped for good.
    pub(crate) async fn remove(&self, name: &str) {
        self.absent.lock().insert(name.to_owned());
        self.stop(name).await;
    }

    /// From their next starts on nodes want so many partitions of `__diskless_metadata`.
    pub(crate) fn want_shards(&self, shards: u32) {
        self.shards.store(shards, Relaxed);
    }

    /// A random node for one fault alone; `None`: another fault has it.
    pub(crate) fn take_random(&self, env: &Env) -> Option<String> {
        let name = self.random_node(env);
        self.take(&name).then_some(name)
    }

    /// The same of a certain one.
    pub(crate) fn take(&self, name: &str) -> bool {
        self.taken.lock().insert(name.to_owned())
    }

    pub(crate) fn give_back(&self, name: &str) {
        self.taken.lock().remove(name);
    }

    /// As SIGSTOP and SIGCONT.
    pub(crate) fn pause(&self, name: &str, paused: bool) {
        if let Some(life) = self.running.lock().get(name) {
            if paused {
                life.env.pause();
            } else {
                life.env.resume();
            }
        }
    }

    /// As SIGKILL.
    pub(crate) async fn kill(&self, name: &str) {
        let life = self.running.lock().remove(name);
        if let Some(life) = life {
            life.env.shut_down().await;
            life.node.lock().take();
        }
    }

    /// As SIGTERM.
    pub(crate) async fn stop(&self, name: &str) {
        let node = {
            let running = self.running.lock();
            running.get(name).and_then(|life| life.node.lock().take())
        };
        if let Some(node) = node {
            let test = self.simulation.node("supervisor");
            let _ = test.timeout(STOP, node.stop()).await;
        }
        self.kill(name).await;
    }

    /// What the node is from its next start on.
    pub(crate) fn install(&self, name: &str, release: Release) {
        let mut old = self.old.lock();
        match release {
            Release::First => drop(old.insert(name.to_owned())),
            Release::This => drop(old.remove(name)),
        }
    }

    /// Whether the node takes part in the cluster.
    pub(crate) fn is_ready(&self, name: &str) -> bool {
        let running = self.running.lock();
        let life = running.get(name);
        life.is_some_and(|life| life.node.lock().as_ref().is_some_and(Node::is_ready))
    }

    /// Starts a node; it keeps trying to start as a supervisor would make it.
    pub(crate) fn start(&self, name: &str) {
        // Whoever restarts nodes one by one may not know yet that this one has left.
        if self.absent.lock().contains(name) {
            return;
        }
        let Some(mut config) = self.configs.get(name).cloned() else {
            return;
        };
        if self.old.lock().contains(name) {
            config.tuning.supported = FeatureLevels::FIRST_RELEASE;
        }
        config.coordinator.metadata_partitions = self.shards.load(Relaxed);
        let env = self.simulation.node(name);
        let started: Arc<Mutex<Option<Node>>> = Arc::default();
        let life = Life {
            env: env.clone(),
            node: started.clone(),
        };
        self.running.lock().insert(name.to_owned(), life);
        let store: SharedStore = Arc::new(self.bucket.seen_from(name));
        let inner = env.clone();
        env.spawn(async move {
            loop {
                match Node::start(inner.clone(), config.clone(), store.clone()).await {
                    Ok(node) => {
                        *started.lock() = Some(node);
                        return;
                    }
                    Err(error) => {
                        tracing::info!(%error, "node did not start");
                        inner.sleep(Duration::from_millis(200)).await;
                    }
                }
            }
        });
    }
}

/// Everything that takes hours in a cluster takes seconds here. What must be longer than something else still is:
/// `confirm_after` < `min_age`, and `file_grace` is longer than any read, pause or cut and twice the error of clocks.
fn tuning() -> Tuning {
    let mut tuning = Tuning::default();
    tuning.metadata_log.confirm_after = Duration::from_secs(2);
    tuning.metadata_log.min_age = Duration::from_secs(12);
    tuning.replica.snapshot_slots = 15;
    tuning.jobs.retention_interval = Duration::from_secs(1);
    tuning.jobs.file_grace = GRACE;
    tuning.jobs.file_interval = Duration::from_millis(500);
    tuning.jobs.result_expiry = Duration::from_secs(60);
    tuning.jobs.expiry_interval = Duration::from_secs(5);
    tuning.jobs.tombstone_expiry = TOMBSTONES;
    tuning
}

/// Where the three brokers are. Those that share a zone read the bucket for each other.
fn broker_zones(seed: u64) -> [&'static str; 3] {
    match class(seed, "zones", 4) {
        0 => ["a", "b", "c"],
        1 => ["a", "a", "a"],
        2 => ["a", "a", "b"],
        _ => ["a", "b", "b"],
    }
}

fn config(
    dir: &TempDir,
    id: i32,
    host: &str,
    zone: &str,
    role: &str,
    engine: Engine,
) -> anyhow::Result<Config> {
    let listeners = match role {
        "broker" => format!(
            "[listeners]\nhost = \"{host}\"\nadvertised_host = \"{host}\"\nport = 9092\nzones = {{ a = 9093, b = 9094, c = 9095 }}\n"
        ),
        _ => String::new(),
    };
    let metadata_log = match engine {
        Engine::Object => String::new(),
        Engine::Postgres => format!("[metadata_log]\nurl = \"{}\"\n", postgres::URL),
    };
    let data_dir = dir.path().join(host);
    let secret = dir.path().join("secret");
    std::fs::write(&secret, "the secret of a simulated cluster")?;
    let text = format!(
        "[node]\nid = {id}\nroles = [\"{role}\"]\nzone = \"{zone}\"\ndata_dir = \"{}\"\n[object_store]\nurl = \"memory://\"\n\
         {metadata_log}{listeners}[internal]\nhost = \"{host}\"\nport = 9190\nadvertised_host = \"{host}\"\nsecret_file = \"{}\"\n\
         [admin]\nhost = \"{host}\"\n",
        data_dir.display(),
        secret.display()
    );
    let file = dir.path().join(format!("{host}.toml"));
    std::fs::write(&file, text)?;
    let mut config = Config::load(&file)?;
    config.tuning = tuning();
    config.fetch.read_timeout_ms = 10_000;
    config.fetch.coordinates_max_age_ms = 6_000;
    config.orphan_scan.interval_ms = 5_000;
    config.orphan_scan.min_age_ms = 5_000;
    // One broker writes every request as an object of its own, one gathers as much as it can.
    match host {
        "b0" => config.produce.puts_per_second = 1_000,
        "b1" => config.produce.puts_per_second = 1,
        _ => {}
    }
    Ok(config)
}
