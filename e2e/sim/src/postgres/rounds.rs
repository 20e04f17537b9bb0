//! Three nodes fight for one log in a database that fails, stands still, hangs up and fails over. Everything follows from a
//! seed; `SEED=n` runs that one alone, `SEEDS=n` that many.

use std::sync::Arc;
use std::time::Duration;

use blob::{MemoryStore, SharedStore};
use env::{Env, SimNet, Simulation};
use metalog::{LogError, MetadataLog, Owner, PostgresLog};

use super::support::{SharedHistory, check, lead, live, rebuild};
use super::{Database, HOSTS, Kind, tests};
use crate::store::Storm;

const RUN: Duration = Duration::from_secs(300);
/// A leader rests for up to so long.
const REST: Duration = Duration::from_secs(2);
/// How long snapshots are kept after a later one.
const MIN_AGE: Duration = Duration::from_secs(20);
const NODES: [&str; 3] = ["n1", "n2", "n3"];

fn owner(env: &Env, node_id: i32) -> Owner {
    Owner {
        node_id,
        incarnation: env.uuid(),
        address: format!("node-{node_id}:9190"),
    }
}

async fn log(store: &SharedStore, env: &Env) -> Result<PostgresLog, LogError> {
    let database = metalog::Database::open(tests::settings(), env.clone()).await?;
    Ok(PostgresLog::new(
        database,
        store.clone(),
        "x",
        MIN_AGE,
        env.clone(),
    ))
}

/// Leads, dies, leads again, like a process that is restarted.
async fn node(id: i32, store: SharedStore, env: Env, history: SharedHistory) {
    loop {
        env.sleep(Duration::from_millis(env.random_below(5_000))).await;
        let life = Duration::from_millis(env.random_below(25_000));
        let term = async {
            let log = log(&store, &env).await?;
            lead(&log, owner(&env, id), &env, &history, REST).await
        };
        live(&env, life, Box::pin(term), &history).await;
    }
}

async fn trouble(env: Env, database: Arc<Database>, net: SimNet) {
    loop {
        let a_while = |longest: u64| env.sleep(Duration::from_millis(200 + env.random_below(longest)));
        a_while(6_000).await;
        let primary = database.primary();
        match env.random_below(6) {
            0 => {
                database.kill(primary).await;
                if env.random_below(2) == 0 {
                    database.promote();
                }
                a_while(3_000).await;
                database.start(primary);
            }
            1 => {
                database.pause(primary, true);
                a_while(14_000).await;
                database.pause(primary, false);
            }
            2 => net.reset(primary),
            3 | 4 => {
                let node = NODES[env.random_below(3) as usize];
                let deaf = env.random_below(2) == 0;
                let way = |host| if deaf { (host, node) } else { (node, host) };
                HOSTS
                    .map(way)
                    .into_iter()
                    .for_each(|(from, to)| net.cut(from, to));
                a_while(14_000).await;
                net.heal();
            }
            _ => {
                let storm = Storm {
                    until: env.instant() + Duration::from_millis(env.random_below(6_000)),
                    failing: 50,
                    slow: Duration::from_millis(env.random_below(1_000)),
                };
                database.storm([Kind::Read, Kind::Write][env.random_below(2) as usize], storm);
            }
        }
    }
}

async fn run(seed: u64) -> String {
    let world = Simulation::new(seed);
    let database = Database::new(&world);
    let store: SharedStore = Arc::new(MemoryStore::new(world.node("store")));
    let history = SharedHistory::default();
    database.drizzle(true);
    let outside = world.node("outside");
    let troubles = outside.spawn(trouble(outside.clone(), database.clone(), world.net().clone()));
    let (mut nodes, mut tasks) = (Vec::new(), Vec::new());
    for (id, name) in (1..).zip(NODES) {
        let env = world.node(name);
        tasks.push(env.spawn(node(id, store.clone(), env.clone(), history.clone())));
        nodes.push(env);
    }
    let reader = world.node("reader");
    reader.sleep(RUN).await;
    for env in nodes {
        env.shut_down().await;
    }
    for task in tasks {
        task.await; // goes on with its panic, if it had one
    }
    troubles.abort();
    world.net().heal();
    database.drizzle(false);
    // A host that is down or stands still is not any more.
    for host in HOSTS {
        database.kill(host).await;
        database.start(host);
    }
    reader.sleep(Duration::from_secs(1)).await;
    let log = log(&store, &reader).await.unwrap();
    let opened = log.open(owner(&reader, 9)).await.unwrap();
    let last = rebuild(&log, &opened).await.unwrap();
    assert_eq!(database.broken(), Vec::<String>::new());
    let mut history = history.lock();
    history.takeovers.push((opened.epoch, opened.tail));
    check(&history, &last);
    assert!(history.acknowledged.len() > 100, "little was written");
    format!(
        "{} acknowledged, {} entries, {} takeovers, {} crashes, {} fenced, {} trims, {} swept",
        history.acknowledged.len(),
        last.len(),
        history.takeovers.len(),
        history.crashes,
        history.fenced,
        history.trims,
        history.swept,
    )
}

fn simulate(seed: u64) {
    println!("SEED={seed}");
    println!("  {}", tests::simulate(run(seed)));
}

#[test]
fn acknowledged_entries_survive_whatever_the_simulated_database_does() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    match number("SEED") {
        Some(seed) => simulate(seed),
        None => (1..=number("SEEDS").unwrap_or(12)).for_each(simulate),
    }
}
