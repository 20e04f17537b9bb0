//! The metadata log in PostgreSQL while the database is killed, stands still and hangs up, and a cluster on it.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "tests"
)]

#[path = "../../broker/crates/metalog/tests/support/mod.rs"]
mod support;

mod postgres_support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use blob::{MemoryStore, SharedStore};
use e2e::clients::Library;
use e2e::history::History;
use e2e::node::{Cluster, Plan};
use e2e::postgres::Postgres;
use env::Env;
use metalog::{Database, MetadataLog, PostgresLog, PostgresSettings};
use postgres_support::{owner, settings};
use support::{SharedHistory, check, lead, live, rebuild};

const RUN: Duration = Duration::from_secs(40);
const REST: Duration = Duration::from_millis(300);

/// Leads, dies, leads again, like a process that is restarted.
async fn node(id: i32, settings: PostgresSettings, store: SharedStore, env: Env, history: SharedHistory) {
    loop {
        env.sleep(Duration::from_millis(env.random_below(1500))).await;
        let life = Duration::from_millis(env.random_below(6000));
        let term = async {
            let database = Database::open(settings.clone(), env.clone()).await?;
            let log = PostgresLog::new(database, store.clone(), "x", Duration::from_secs(2), env.clone());
            lead(&log, owner(&env, id), &env, &history, REST).await
        };
        live(&env, life, term, &history).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_entries_survive_whatever_the_database_does() -> anyhow::Result<()> {
    let (mut server, env) = (Postgres::start()?, Env::production());
    let store: SharedStore = Arc::new(MemoryStore::new(env.clone()));
    let history = SharedHistory::default();
    let mut nodes = Vec::new();
    for id in 1..=3 {
        let node = node(id, settings(&server), store.clone(), env.clone(), history.clone());
        nodes.push(env.spawn(node));
    }
    let began = Instant::now();
    let mut round = 0;
    while began.elapsed() < RUN {
        env.sleep(Duration::from_millis(500 + env.random_below(1500)))
            .await;
        round += 1;
        match round % 4 {
            0 => {
                server.kill();
                env.sleep(Duration::from_millis(env.random_below(1000))).await;
                server.run()?;
            }
            // Longer than anybody waits for an answer, once.
            1 => {
                server.signal("STOP");
                let ms = if round == 5 {
                    12_000
                } else {
                    env.random_below(2000)
                };
                env.sleep(Duration::from_millis(ms)).await;
                server.signal("CONT");
            }
            // Its processes, but not the server: every connection is hung up, perhaps after COMMIT.
            _ => drop(server.psql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'diskless'",
            )),
        }
    }
    for node in &nodes {
        assert!(
            !node.is_finished(),
            "a node has met an error that it does not know"
        );
        node.abort();
    }
    for node in nodes {
        node.await;
    }
    let database = Database::open(settings(&server), env.clone()).await?;
    let log = PostgresLog::new(database, store, "x", Duration::from_secs(2), env.clone());
    let opened = log.open(owner(&env, 9)).await?;
    let last = rebuild(&log, &opened).await?;
    let mut history = history.lock();
    history.takeovers.push((opened.epoch, opened.tail));
    println!(
        "{} acknowledged, {} entries, {} takeovers, {} crashes, {} fenced, {} trims, {} swept, {round} faults",
        history.acknowledged.len(),
        last.len(),
        history.takeovers.len(),
        history.crashes,
        history.fenced,
        history.trims,
        history.swept,
    );
    check(&history, &last);
    assert!(history.acknowledged.len() > 100, "something was written");
    Ok(())
}

/// Produces and consumes while the coordinators, and then the database, are killed.
#[test]
fn a_cluster_on_a_database_loses_nothing() -> anyhow::Result<()> {
    const COUNT: u64 = 4_000;
    let mut server = Postgres::start()?;
    let mut cluster = Cluster::start(Plan {
        broker_zones: vec!["a", "b"],
        settings: format!(
            "[metadata_log]\nurl = \"{}\"\npassword_file = \"{}\"\ncluster = \"test\"\n",
            server.url(),
            server.password_file().display()
        ),
        ..Plan::default()
    })?;
    let bootstrap = cluster.bootstrap();
    let mut history = History {
        idempotent: true,
        ..History::default()
    };
    let producing = Library::FranzGo.produce(&bootstrap, "t", 0, COUNT, 200)?;
    let consuming = Library::FranzGo.consume(&bootstrap, "t", "readers", COUNT, 60)?;
    std::thread::sleep(Duration::from_secs(4));
    for i in 0..cluster.coordinators.len() {
        cluster.coordinators[i].kill();
        std::thread::sleep(Duration::from_secs(3));
        cluster.coordinators[i].start()?;
        cluster.coordinators[i].wait_ready()?;
    }
    server.kill();
    std::thread::sleep(Duration::from_secs(2));
    server.run()?;
    server.signal("STOP");
    std::thread::sleep(Duration::from_secs(2));
    server.signal("CONT");
    history.add_producer(&producing.finish()?, 0, COUNT);
    assert_eq!(history.acked.len() as u64, COUNT, "every record is delivered");
    history.add_consumer(&consuming.finish()?);
    let again = Library::FranzGo.consume(&bootstrap, "t", "afterwards", COUNT, 30)?;
    history.add_consumer(&again.finish()?);
    history.assert_clean();
    // It is really there, and nothing of it is in the object store.
    let clusters = server.psql("SELECT DISTINCT cluster FROM diskless.metalog_log")?;
    assert_eq!(clusters, "test");
    assert!(!cluster.dir().join("store/meta/cluster/manifest").exists());
    Ok(())
}
