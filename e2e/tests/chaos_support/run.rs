//! One run: a cluster, its clients, a nemesis, a verdict.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use e2e::clients::Library;
use e2e::history::History;
use e2e::netns::Network;
use e2e::node::{Cluster, Plan};
use e2e::postgres::Postgres;
use e2e::s3::S3Server;
use e2e::s3_proxy::{Profile, Proxy};
use e2e::wire::Wire;

use crate::administrator::administer;
use crate::auditor::{Notes, audit, commit};
use crate::consumer::Consumer;
use crate::link::Link;
use crate::nemesis::Nemesis;
use crate::producer::produce;

pub const TOPIC: &str = "chaos";
pub const PARTITIONS: i32 = 6;
/// No request of a client may stay unanswered for longer, whatever the nemesis does: its faults last 5 s at most, and
/// processes of a debug build on a busy machine need a while to take over.
pub const UNAVAILABLE: Duration = Duration::from_secs(60);
/// Seconds after which a member that gets nothing ends; a group has to form again after a fault, too.
const GROUP_IDLE: u64 = 90;
const PRODUCERS: u64 = 3;
/// Values of each producer.
const VALUES: u64 = 1_000;
/// Readers beside the group.
const CONSUMERS: u64 = 2;

/// Where the nodes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum World {
    /// All on loopback: processes and the store fail.
    Loopback,
    /// Each in a network namespace: the network fails, and processes.
    Namespaces,
    /// All on loopback, the metadata log in PostgreSQL: the database fails, and processes.
    Database,
}

/// A setting of the environment.
pub fn number(name: &str, default: u64) -> anyhow::Result<u64> {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .with_context(|| format!("{name} is no number: {text}")),
        Err(_) => Ok(default),
    }
}

pub fn run(world: World, seed: u64) -> anyhow::Result<()> {
    let start = Instant::now();
    let s3 = S3Server::start()?;
    let network = match world {
        World::Loopback | World::Database => None,
        World::Namespaces => Some(Arc::new(Network::new()?)),
    };
    let host = network
        .as_ref()
        .map_or("127.0.0.1".to_owned(), |network| network.host());
    let proxy = Proxy::start(&host, &s3.endpoint(), Some(Profile::S3_STANDARD), seed)?;
    let mut database = match world {
        World::Database => Some(Postgres::start()?),
        World::Loopback | World::Namespaces => None,
    };
    let settings = database.as_ref().map(|database| {
        format!(
            "[metadata_log]\nurl = \"{}\"\npassword_file = \"{}\"\n",
            database.url(),
            database.password_file().display()
        )
    });
    let mut cluster = Cluster::start(Plan {
        settings: settings.unwrap_or_default(),
        store: Some(s3.url_through(&proxy.endpoint(), "chaos")),
        environment: s3.environment(),
        network: network.clone(),
        clocks: true,
        ..Plan::default()
    })?;
    let mut nemesis = Nemesis::new(seed, &mut cluster, &proxy, network.as_deref(), database.as_mut());
    let notes = Notes::new();
    let result = live(world, seed, &mut nemesis, &notes);
    let history = notes.history.into_inner().unwrap();
    let result = result.and_then(|()| judge(&history));
    let journal = std::mem::take(&mut nemesis.journal);
    let panics = cluster
        .nodes()
        .filter(|node| node.log().contains("panicked"))
        .map(|node| node.id)
        .collect::<Vec<_>>();
    let result = match panics.is_empty() {
        true => result,
        false => result.and_then(|()| bail!("nodes {panics:?} panicked")),
    };
    let faults = proxy.counts();
    if let Err(error) = result {
        let kept = keep(world, seed, &mut cluster, &journal, &history)?;
        bail!(
            "{world:?}, seed {seed}: {error:#}\nlogs: {}\n{}",
            kept.display(),
            journal.join("\n")
        );
    }
    println!(
        "{world:?}, seed {seed}: {} records, {} steps, {} requests to the store, {} of them faulty, {:.0?}",
        history.acked.len(),
        journal.len(),
        faults.requests.values().sum::<u64>(),
        faults.faults(),
        start.elapsed()
    );
    Ok(())
}

/// The clients' life: all of them work while the nemesis does.
fn live(world: World, seed: u64, nemesis: &mut Nemesis<'_>, notes: &Notes) -> anyhow::Result<()> {
    let bootstrap = nemesis.cluster.bootstrap();
    let brokers: Vec<String> = bootstrap.split(',').map(str::to_owned).collect();
    Wire::connect(&brokers[0])?.create_topic(TOPIC, PARTITIONS)?;
    let total = PRODUCERS * VALUES;
    let group = Library::FranzGo.consume(&bootstrap, TOPIC, "group", total, GROUP_IDLE)?;
    let (hurry, done) = (AtomicBool::new(false), AtomicBool::new(false));
    let steps = number("DISKLESS_CHAOS_STEPS", 5)?;
    std::thread::scope(|scope| -> anyhow::Result<()> {
        let link = |client: u64| Link::new(&brokers, seed * 100 + client);
        let (hurry, done) = (&hurry, &done);
        let producers: Vec<_> = (0..PRODUCERS)
            .map(|i| {
                let link = link(i);
                scope.spawn(move || produce(link, i * VALUES, VALUES, hurry, notes))
            })
            .collect();
        let consumers: Vec<_> = (0..CONSUMERS)
            .map(|i| {
                let consumer = Consumer::new(link(PRODUCERS + i), notes);
                scope.spawn(move || consumer.read(total, || done.load(Ordering::Relaxed)))
            })
            .collect();
        let administrator = Link::new(&brokers, seed * 100 + 98);
        let administrator = scope.spawn(move || administer(administrator, hurry));
        let auditor = Link::new(&brokers, seed * 100 + 97);
        let auditor = scope.spawn(move || audit(auditor, notes, done));
        let committer = Link::new(&brokers, seed * 100 + 96);
        let committer = scope.spawn(move || commit(committer, notes, done));
        let nemesis = nemesis.run(world, steps);
        hurry.store(true, Ordering::Relaxed);
        let produced: Vec<_> = producers.into_iter().map(|thread| thread.join()).collect();
        done.store(true, Ordering::Relaxed);
        let consumed: Vec<_> = consumers.into_iter().map(|thread| thread.join()).collect();
        let administered = administrator.join();
        let asked = [auditor.join(), committer.join()];
        nemesis?;
        for asked in asked {
            asked.expect("an auditor's thread")?;
        }
        let lives = administered.expect("the administrator's thread")?;
        println!("{world:?}, seed {seed}: {lives} topics came and went");
        for (i, lines) in (0..).zip(produced) {
            let mut history = notes.history.lock().unwrap();
            history.add_producer(&lines.expect("a producer's thread")?, i * VALUES, VALUES);
        }
        for lines in consumed {
            let mut history = notes.history.lock().unwrap();
            history.add_consumer(&lines.expect("a consumer's thread")?);
        }
        Ok(())
    })?;
    let group = group.finish()?;
    let got: BTreeSet<&str> = group
        .lines()
        .filter_map(|line| line.strip_prefix("got ")?.split(' ').next())
        .collect();
    let got = got.len() as u64;
    let last = Consumer::new(Link::new(&brokers, seed * 100 + 99), notes).read_to_end()?;
    let mut history = notes.history.lock().unwrap();
    history.add_consumer(&last);
    // It gives up after a while without records: that is no loss.
    if got < total {
        judge(&history)?;
        bail!("unavailable: the group got nothing more for {GROUP_IDLE} s after {got} of {total} records");
    }
    history.add_consumer(&group);
    Ok(())
}

fn judge(history: &History) -> anyhow::Result<()> {
    let found = history.check(20);
    if history.acked.len() as u64 != PRODUCERS * VALUES {
        bail!("{} of {} acknowledged", history.acked.len(), PRODUCERS * VALUES);
    }
    if !found.is_empty() {
        bail!("anomalies: {found:?}");
    }
    Ok(())
}

/// Puts what explains a failure where it survives.
fn keep(
    world: World,
    seed: u64,
    cluster: &mut Cluster,
    journal: &[String],
    history: &History,
) -> anyhow::Result<PathBuf> {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("chaos-{world:?}-{seed}"));
    std::fs::create_dir_all(&dir)?;
    for node in cluster.nodes() {
        std::fs::write(dir.join(format!("node-{}.log", node.id)), node.log())?;
    }
    std::fs::write(dir.join("journal.txt"), journal.join("\n"))?;
    std::fs::write(dir.join("history.txt"), format!("{history:#?}"))?;
    Ok(dir)
}
