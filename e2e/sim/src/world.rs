//! The nodes of a run, and the run itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::Context;
use blob::SharedStore;
use broker::config::{Config, Tuning};
use broker::server::Node;
use env::{Env, JoinHandle, SimNet, Simulation};
use futures::future::join_all;
use history::{Anomaly, check_outages};
use parking_lot::Mutex;
use tempfile::TempDir;
use types::FeatureLevels;

use crate::client::Client;
use crate::lab::{Lab, Topic, Trace};
use crate::store::{BUCKET, Bucket};
use crate::workload::{self, Work};
use crate::{Outcome, Scenario, faults, upgrade};

/// A cluster that has not come to rest after this long, in simulated time, is stuck.
const LIMIT: Duration = Duration::from_secs(180);
/// What is promised (docs/simulation.md): so long after a fault has ended everything works again,
const RECOVERY: i64 = 20_000;
/// and no request, repeated as clients do, takes longer than this. Both in ms.
const LONGEST: i64 = 12_000;
/// How long dead objects are kept.
const GRACE: Duration = Duration::from_secs(24);
const STOP: Duration = Duration::from_secs(30);

/// All nodes of a cluster.
pub(crate) struct World {
    simulation: Simulation,
    bucket: Arc<Bucket>,
    configs: BTreeMap<String, Config>,
    running: Mutex<BTreeMap<String, Life>>,
    /// Nodes of the first release.
    old: Mutex<BTreeSet<String>>,
    /// Nodes that a fault is about.
    taken: Mutex<BTreeSet<String>>,
    /// The views of the nodes; they survive a kill, as files do.
    dir: TempDir,
}

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
    pub(crate) fn net(&self) -> &SimNet {
        self.simulation.net()
    }

    pub(crate) fn bucket(&self) -> &Bucket {
        &self.bucket
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.configs.keys().cloned().collect()
    }

    pub(crate) fn random_node(&self, env: &Env) -> String {
        let index = usize::try_from(env.random_below(self.configs.len() as u64)).unwrap_or(0);
        self.configs.keys().nth(index).cloned().unwrap_or_default()
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
        let Some(mut config) = self.configs.get(name).cloned() else {
            return;
        };
        if self.old.lock().contains(name) {
            config.tuning.supported = FeatureLevels::FIRST_RELEASE;
        }
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
    tuning
}

fn config(dir: &TempDir, id: i32, host: &str, zone: &str, role: &str) -> anyhow::Result<Config> {
    let listeners = match role {
        "broker" => format!(
            "[listeners]\nhost = \"{host}\"\nadvertised_host = \"{host}\"\nport = 9092\nzones = {{ a = 9093, b = 9094, c = 9095 }}\n"
        ),
        _ => String::new(),
    };
    let data_dir = dir.path().join(host);
    let secret = dir.path().join("secret");
    std::fs::write(&secret, "the secret of a simulated cluster")?;
    let text = format!(
        "[node]\nid = {id}\nroles = [\"{role}\"]\nzone = \"{zone}\"\ndata_dir = \"{}\"\n[object_store]\nurl = \"memory://\"\n\
         {listeners}[internal]\nhost = \"{host}\"\nport = 9190\nadvertised_host = \"{host}\"\nsecret_file = \"{}\"\n\
         [admin]\nhost = \"{host}\"\n",
        data_dir.display(),
        secret.display()
    );
    let file = dir.path().join(format!("{host}.toml"));
    std::fs::write(&file, text)?;
    let mut config = Config::load(&file)?;
    config.tuning = tuning();
    // One broker writes every request as an object of its own, one gathers as much as it can.
    match host {
        "b0" => config.produce.puts_per_second = 1_000,
        "b1" => config.produce.puts_per_second = 1,
        _ => {}
    }
    Ok(config)
}

/// Runs `scenario` and judges it.
pub(crate) async fn run(scenario: Scenario) -> anyhow::Result<Outcome> {
    let simulation = Simulation::new(scenario.seed);
    let dir = match std::fs::metadata("/dev/shm") {
        Ok(memory) if memory.is_dir() => TempDir::new_in("/dev/shm")?,
        _ => tempfile::tempdir()?,
    };
    let trace = Trace::default();
    let bucket = Bucket::new(simulation.node(BUCKET), simulation.net().clone(), trace.clone());
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
    let lab = Arc::new(Lab {
        trace: trace.clone(),
        bootstrap,
        topics: topics(),
        ..Lab::default()
    });
    let world = Arc::new(World {
        simulation,
        bucket,
        configs,
        running: Mutex::default(),
        old: Mutex::default(),
        taken: Mutex::default(),
        dir,
    });
    let names = world.names();
    for name in &names {
        world.install(name, upgrade::first_release(scenario.seed));
        world.start(name);
    }
    let env = world.simulation.node("test");
    let ended = env.timeout(LIMIT, live(&env, &world, &lab, scenario)).await;
    for name in &names {
        world.kill(name).await;
    }
    let mut anomalies = match ended {
        Ok(result) => {
            result?;
            let mut found = judge(&lab);
            found.extend(lab.group.lock().unconsumed(&lab.topic("grown").history.lock(), 5));
            found
        }
        // What was seen so far may say why.
        Err(_) => {
            let mut found = judge_unfinished(&lab);
            let to = i64::try_from(LIMIT.as_millis())?;
            let what = "all of it: the run does not come to its end".to_owned();
            found.push(Anomaly::Unavailable { what, from: 0, to });
            found
        }
    };
    let broken = world.bucket.broken().into_iter();
    anomalies.extend(broken.map(|what| Anomaly::Broken { what }));
    Ok(Outcome {
        acknowledged: lab
            .topics
            .iter()
            .map(|topic| topic.history.lock().acked.len())
            .sum(),
        anomalies,
        trace: trace.lines(),
    })
}

fn topics() -> Vec<Topic> {
    const FOREVER: (&str, &str) = ("retention.ms", "-1");
    vec![
        // Nothing is ever deleted here.
        Topic::new("events", 4, &[FOREVER]),
        // Beginnings are deleted by request.
        Topic::new(
            "short",
            2,
            &[FOREVER, ("message.timestamp.type", "LogAppendTime")],
        ),
        // Producers without idempotence.
        Topic::new("plain", 2, &[FOREVER]),
        // It grows. A group reads it.
        Topic::new("grown", 2, &[FOREVER]),
        Topic::new("kept", 2, &[("retention.ms", "3000")]).expiring(),
    ]
}

async fn live(env: &Env, world: &Arc<World>, lab: &Arc<Lab>, scenario: Scenario) -> anyhow::Result<()> {
    form(env, lab).await?;
    world.bucket.drizzle(true);
    faults::set_clocks(env, world, lab);
    let mut number = 0;
    let mut node = |name: &str| {
        number += 1;
        world.simulation.node(&format!("{name}{number}"))
    };
    let mut troubles = Vec::new();
    for _ in 0..2 {
        let node = node("trouble");
        let run = faults::run(node.clone(), world.clone(), lab.clone(), scenario.trouble);
        troubles.push(node.spawn(run));
    }
    let mut producers: Vec<JoinHandle<()>> = Vec::new();
    for (first, topic, lives) in [
        (1_000_000, "events", 4),
        // Short lives: most batches are the first ones of a producer.
        (2_000_000, "events", 16),
        (3_000_000, "short", 4),
        (7_000_000, "grown", 4),
    ] {
        let work = Work {
            first,
            lives,
            bursts: scenario.bursts * 4 / lives,
            pause: 500,
        };
        let node = node("producer");
        producers.push(node.spawn(workload::produce_idempotent(
            node.clone(),
            lab.clone(),
            topic,
            work,
        )));
    }
    for (first, topic) in [(4_000_000, "plain"), (5_000_000, "kept")] {
        let node = node("producer");
        let (lab, count) = (lab.clone(), scenario.bursts * 15);
        producers.push(node.spawn(workload::produce_once(
            node.clone(),
            lab,
            topic,
            first,
            count,
            500,
        )));
    }
    let mut clients: Vec<JoinHandle<()>> = Vec::new();
    for i in 0..2 {
        let node = node("consumer");
        let run = workload::consume(node.clone(), lab.clone(), format!("consumer {i}"));
        clients.push(node.spawn(run));
    }
    let auditor = node("auditor");
    let topics = &["events", "short", "plain", "grown"];
    clients.push(auditor.spawn(workload::audit(auditor.clone(), lab.clone(), topics)));
    let committer = node("committer");
    let run = workload::commit_offsets(committer.clone(), lab.clone(), "events", "group".to_owned());
    clients.push(committer.spawn(run));
    let readers = node("readers");
    let run = workload::run_group(
        readers.clone(),
        world.simulation.clone(),
        lab.clone(),
        "grown",
        scenario.trouble,
    );
    clients.push(readers.spawn(run));
    let grower = node("grower");
    clients.push(grower.spawn(workload::grow(grower.clone(), lab.clone(), "grown", 5)));
    let deleter = node("deleter");
    clients.push(deleter.spawn(workload::delete_records(deleter.clone(), lab.clone(), "short")));
    let temporary = node("temporary");
    let run = workload::come_and_go(temporary.clone(), lab.clone(), "temporary".to_owned(), 6_000_000);
    clients.push(temporary.spawn(run));

    let upgrade = (upgrade::first_release(scenario.seed) == Release::First).then(|| {
        let node = node("upgrader");
        node.spawn(upgrade::run(node.clone(), world.clone(), lab.clone()))
    });

    for trouble in troubles {
        trouble.await.context("the faults were ended")?;
    }
    world.net().heal();
    world.bucket.drizzle(false);
    lab.trace.add(env, "mended");
    if let Some(upgrade) = upgrade {
        upgrade.await.context("the upgrade was ended")?;
    }
    for producer in producers {
        producer.await.context("a producer was ended")?;
    }
    lab.quiet.store(true, Relaxed);
    lab.trace.add(env, "quiet");
    for client in clients {
        client.await.context("a client was ended")?;
    }
    // By now every dead object is deleted. Nothing but the bucket survives; one who comes later reads the same.
    env.sleep(GRACE + GRACE / 2).await;
    for name in world.names() {
        world.kill(&name).await;
        lab.trace.add(env, format_args!("start {name} with nothing"));
        std::fs::remove_dir_all(world.dir.path().join(&name)).ok();
        world.start(&name);
    }
    workload::consume(env.clone(), lab.clone(), "late consumer".to_owned()).await;
    upgrade::check(env, lab).await;
    Ok(())
}

/// Waits for the cluster and makes the topics.
async fn form(env: &Env, lab: &Arc<Lab>) -> anyhow::Result<()> {
    let mut client = Client::new(env.clone(), lab.bootstrap.clone());
    for topic in &lab.topics {
        let id = loop {
            env.sleep(Duration::from_millis(200)).await;
            client.disconnect();
            if client
                .create(topic.name, topic.partitions(), topic.configs)
                .await
                .is_err()
            {
                continue;
            }
            if let Ok(Some((id, partitions))) = client.describe(topic.name).await
                && partitions == topic.partitions()
            {
                break id;
            }
        };
        *topic.id.lock() = id;
        lab.trace.add(env, format_args!("topic {} is {id}", topic.name));
    }
    // Every broker has to know them before a consumer asks it.
    let everywhere = lab.bootstrap.iter().map(|broker| {
        let mut client = Client::new(env.clone(), vec![broker.clone()]);
        async move {
            for topic in &lab.topics {
                while !matches!(client.describe(topic.name).await, Ok(Some((_, n))) if n == topic.partitions())
                {
                    env.sleep(Duration::from_millis(100)).await;
                }
            }
        }
    });
    join_all(everywhere).await;
    Ok(())
}

fn judge(lab: &Lab) -> Vec<Anomaly> {
    let mut found = lab.found.lock().clone();
    for topic in &lab.topics {
        let history = topic.history.lock();
        found.extend(history.check(5));
        found.extend(history.check_assigned(5));
    }
    for history in lab.past.lock().iter() {
        found.extend(history.check(5));
        found.extend(history.check_assigned(5));
    }
    found.extend(lab.group.lock().check(5));
    let outages = check_outages(&lab.operations.lock(), &lab.faults.lock(), RECOVERY, LONGEST);
    found.extend(outages.into_iter().take(5));
    found
}

/// The same before consumers have come to the end: what is missing may still come.
fn judge_unfinished(lab: &Lab) -> Vec<Anomaly> {
    let mut found = judge(lab);
    found.retain(|anomaly| !matches!(anomaly, Anomaly::Lost { .. }));
    found
}
