//! The nodes of a run, and the run itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, bail};
use blob::faults::Faulty;
use blob::{MemoryStore, SharedStore};
use broker::config::Config;
use broker::server::Node;
use e2e::history::{History, check_monotonic};
use env::{Env, SimNet, Simulation};
use parking_lot::Mutex;
use tempfile::TempDir;

use crate::client::Client;
use crate::{Outcome, Scenario, Trace, faults, workload};

/// A cluster that has not come to rest after this long, in simulated time, is stuck.
const LIMIT: Duration = Duration::from_secs(600);

/// All nodes of a cluster.
pub(crate) struct World {
    simulation: Simulation,
    store: SharedStore,
    configs: BTreeMap<String, Config>,
    running: Mutex<BTreeMap<String, Env>>,
    // The views of the nodes; they survive a kill, as files do.
    _dir: TempDir,
}

impl World {
    pub(crate) fn net(&self) -> &SimNet {
        self.simulation.net()
    }

    pub(crate) fn random_node(&self, env: &Env) -> String {
        let index = usize::try_from(env.random_below(self.configs.len() as u64)).unwrap_or(0);
        self.configs.keys().nth(index).cloned().unwrap_or_default()
    }

    /// As SIGKILL.
    pub(crate) async fn kill(&self, name: &str) {
        let env = self.running.lock().remove(name);
        if let Some(env) = env {
            env.shut_down().await;
        }
    }

    /// Starts a node; it keeps trying to start as a supervisor would make it.
    pub(crate) async fn start(&self, name: &str) {
        let Some(config) = self.configs.get(name).cloned() else {
            return;
        };
        let env = self.simulation.node(name);
        self.running.lock().insert(name.to_owned(), env.clone());
        let store = self.store.clone();
        let inner = env.clone();
        env.spawn(async move {
            loop {
                match Node::start(inner.clone(), config.clone(), store.clone()).await {
                    Ok(_node) => std::future::pending::<()>().await,
                    Err(error) => {
                        tracing::info!(%error, "node did not start");
                        inner.sleep(Duration::from_millis(200)).await;
                    }
                }
            }
        });
    }
}

fn config(dir: &TempDir, id: i32, host: &str, zone: &str, role: &str) -> anyhow::Result<Config> {
    let listeners = match role {
        "broker" => format!(
            "[listeners]\nhost = \"{host}\"\nadvertised_host = \"{host}\"\nport = 9092\nzones = {{ a = 9093, b = 9094, c = 9095 }}\n"
        ),
        _ => String::new(),
    };
    let data_dir = dir.path().join(host);
    let text = format!(
        "[node]\nid = {id}\nroles = [\"{role}\"]\nzone = \"{zone}\"\ndata_dir = \"{}\"\n[object_store]\nurl = \"memory://\"\n\
         {listeners}[internal]\nhost = \"{host}\"\nport = 9190\nadvertised_host = \"{host}\"\n[admin]\nhost = \"{host}\"\n",
        data_dir.display()
    );
    let file = dir.path().join(format!("{host}.toml"));
    std::fs::write(&file, text)?;
    Ok(Config::load(&file)?)
}

/// Runs `scenario` and judges it.
pub(crate) async fn run(scenario: Scenario) -> anyhow::Result<Outcome> {
    let simulation = Simulation::new(scenario.seed);
    let dir = tempfile::tempdir()?;
    let active = Arc::new(AtomicBool::new(false));
    let bucket = simulation.node("bucket");
    let plan = faults::store_plan(bucket.clone(), active.clone());
    let memory: SharedStore = Arc::new(MemoryStore::new(bucket.clone()));
    let store: SharedStore = Arc::new(Faulty::new(memory, bucket.clone(), Arc::new(plan)));
    let mut configs = BTreeMap::new();
    for (id, zone) in [(0, "a"), (1, "b")] {
        let host = format!("c{id}");
        configs.insert(host.clone(), config(&dir, id, &host, zone, "coordinator")?);
    }
    let mut bootstrap = Vec::new();
    for (i, zone) in (0..).zip(["a", "b", "c"]) {
        let host = format!("b{i}");
        bootstrap.push(format!("{host}:9092"));
        configs.insert(host.clone(), config(&dir, 1000 + i, &host, zone, "broker")?);
    }
    let names: Vec<String> = configs.keys().cloned().collect();
    let world = Arc::new(World {
        simulation,
        store,
        configs,
        running: Mutex::default(),
        _dir: dir,
    });
    for name in &names {
        world.start(name).await;
    }
    let env = world.simulation.node("test");
    let trace = Trace::default();
    let outcome = env
        .timeout(LIMIT, clients(&env, &world, &trace, scenario, bootstrap, active))
        .await;
    for name in &names {
        world.kill(name).await;
    }
    let lines = trace.0.lock().clone();
    match outcome {
        Ok(Ok(history)) => {
            let mut anomalies = history.check(10);
            anomalies.extend(history.reads.iter().flat_map(|read| check_monotonic(read)));
            Ok(Outcome {
                history,
                anomalies,
                trace: lines,
            })
        }
        Ok(Err(error)) => Err(error.context(tail(&lines))),
        Err(_) => bail!(
            "stuck: not done after {LIMIT:?} of simulated time\n{}",
            tail(&lines)
        ),
    }
}

fn tail(lines: &[String]) -> String {
    lines
        .iter()
        .skip(lines.len().saturating_sub(40))
        .map(|line| format!("{line}\n"))
        .collect()
}

async fn clients(
    env: &Env,
    world: &Arc<World>,
    trace: &Trace,
    scenario: Scenario,
    bootstrap: Vec<String>,
    active: Arc<AtomicBool>,
) -> anyhow::Result<History> {
    let mut client = Client::new(env.clone(), bootstrap.clone());
    let partitions = loop {
        env.sleep(Duration::from_millis(200)).await;
        let Ok(metadata) = client.metadata().await else {
            continue;
        };
        let topic = metadata.topics.first().context("no topic in the answer")?;
        if topic.error_code == 0 && !topic.partitions.is_empty() {
            break i32::try_from(topic.partitions.len())?;
        }
    };
    trace.add(env, format_args!("topic with {partitions} partitions"));
    active.store(true, std::sync::atomic::Ordering::Relaxed);
    let trouble = faults::run(
        env.clone(),
        world.clone(),
        trace.clone(),
        scenario.trouble,
        active,
    );
    let trouble = env.spawn(trouble);

    let history = Arc::new(Mutex::new(History {
        idempotent: true,
        ..History::default()
    }));
    let total = usize::try_from(scenario.producers * scenario.records)?;
    let mut producers = Vec::new();
    for i in 0..scenario.producers {
        let (first, count) = (i * scenario.records, scenario.records);
        let node = world.simulation.node(&format!("producer{i}"));
        let run = workload::produce(
            node.clone(),
            bootstrap.clone(),
            partitions,
            first,
            count,
            history.clone(),
            trace.clone(),
        );
        producers.push(node.spawn(run));
    }
    let mut consumers = Vec::new();
    for i in 0..2 {
        let node = world.simulation.node(&format!("consumer{i}"));
        let run = workload::consume(
            node.clone(),
            bootstrap.clone(),
            partitions,
            total,
            trace.clone(),
            i,
        );
        consumers.push(node.spawn(run));
    }
    for producer in producers {
        producer.await.context("a producer was ended")??;
    }
    trouble.await.context("the faults were ended")?;
    for consumer in consumers {
        let read = consumer.await.context("a consumer was ended")?;
        history.lock().reads.push(read);
    }
    // One who comes later reads the same.
    let late = workload::consume(env.clone(), bootstrap, partitions, total, trace.clone(), 9).await;
    history.lock().reads.push(late);
    let history = history.lock().clone();
    Ok(history)
}
