//! The engine `postgres` over the simulated database: the suite of every engine, and what the faults of the database are.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use blob::{MemoryStore, SharedStore};
use bytes::Bytes;
use env::{Env, Simulation};
use metalog::{LogError, LogOffset, MetadataLog, Owner, PostgresLog, PostgresSettings};

use super::{Database, HOSTS, Kind, URL};
use crate::store::Storm;

const DAY: Duration = Duration::from_secs(86_400);

struct Rig {
    simulation: Simulation,
    database: Arc<Database>,
    store: SharedStore,
}

impl Rig {
    fn new() -> Rig {
        let simulation = Simulation::new(7);
        Rig {
            database: Database::new(&simulation),
            store: Arc::new(MemoryStore::new(simulation.node("store"))),
            simulation,
        }
    }

    async fn connect(&self, env: &Env) -> metalog::Database {
        metalog::Database::open(settings(), env.clone()).await.unwrap()
    }

    /// The log `x` as a node of that name has it.
    async fn log(&self, host: &str) -> (Env, PostgresLog) {
        let env = self.simulation.node(host);
        let database = self.connect(&env).await;
        let log = PostgresLog::new(database, self.store.clone(), "x", DAY, env.clone());
        (env, log)
    }
}

pub(super) fn settings() -> PostgresSettings {
    PostgresSettings {
        url: URL.to_owned(),
        cluster: "c".to_owned(),
        ..PostgresSettings::default()
    }
}

fn owner(env: &Env, node_id: i32) -> Owner {
    Owner {
        node_id,
        incarnation: env.uuid(),
        address: format!("n{node_id}:9190"),
    }
}

fn entry(text: &str) -> Vec<Bytes> {
    vec![Bytes::copy_from_slice(text.as_bytes())]
}

pub(super) fn simulate<F: Future>(run: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(run)
}

#[test]
fn a_log_in_the_simulated_database_conforms() {
    simulate(async {
        let rig = Rig::new();
        // As by as many processes.
        let mut nodes = Vec::new();
        for host in ["n1", "n2", "n3"] {
            let env = rig.simulation.node(host);
            nodes.push((rig.connect(&env).await, env));
        }
        let turn = AtomicUsize::new(0);
        let logs = |name: &str| -> Arc<dyn MetadataLog> {
            let (database, env) = nodes[turn.fetch_add(1, Relaxed) % nodes.len()].clone();
            Arc::new(PostgresLog::new(database, rig.store.clone(), name, DAY, env))
        };
        let env = rig.simulation.node("test");
        metalog::conformance::run(&logs, &env).await.unwrap();
        assert_eq!(rig.database.broken(), Vec::<String>::new());
    });
}

#[test]
fn what_is_acknowledged_outlives_the_primary() {
    simulate(async {
        let rig = Rig::new();
        let (env, log) = rig.log("n1").await;
        let mut opened = log.open(owner(&env, 1)).await.unwrap();
        let mut acknowledged = Vec::new();
        for round in 0..6 {
            acknowledged.push(opened.writer.append(entry(&round.to_string())).await.unwrap());
            let primary = rig.database.primary();
            rig.database.kill(primary).await;
            if round % 2 == 0 {
                assert_ne!(rig.database.promote(), primary);
            }
            rig.database.start(primary);
        }
        let (_, reader) = rig.log("n2").await;
        let slots = reader.read(LogOffset(1), 1 << 20).await.unwrap();
        let read: Vec<LogOffset> = slots.iter().map(|slot| slot.offset).collect();
        assert_eq!(read, acknowledged);
        assert_eq!(rig.database.broken(), Vec::<String>::new());
    });
}

#[test]
fn a_statement_that_was_on_its_way_happens_later_unless_another_leads() {
    for taken_over in [false, true] {
        simulate(async {
            let rig = Rig::new();
            let (env, log) = rig.log("n1").await;
            let mut opened = log.open(owner(&env, 1)).await.unwrap();
            let (other, reader) = rig.log("n2").await;
            rig.simulation.net().cut("n1", HOSTS[0]);
            let appending = opened.writer.append(entry("late"));
            assert!(env.timeout(Duration::from_secs(1), appending).await.is_err());
            drop(opened);
            let found = async || reader.read(LogOffset(1), 1).await.unwrap();
            assert!(found().await.is_empty());
            if taken_over {
                reader.open(owner(&other, 2)).await.unwrap();
            }
            rig.simulation.net().mend("n1", HOSTS[0]);
            // TCP tries again ever more rarely.
            env.sleep(Duration::from_secs(30)).await;
            let entries = found().await.remove(0).entries;
            assert_eq!(entries, if taken_over { vec![] } else { entry("late") });
        });
    }
}

#[test]
fn storms_hit_one_kind_of_statement() {
    simulate(async {
        let rig = Rig::new();
        let (env, log) = rig.log("n1").await;
        let mut opened = log.open(owner(&env, 1)).await.unwrap();
        rig.database.drizzle(true);
        let storm = Storm {
            until: env.instant() + Duration::from_secs(5),
            failing: 100,
            slow: Duration::ZERO,
        };
        rig.database.storm(Kind::Write, storm);
        let began = env.instant();
        // The writer tries until it works.
        assert_eq!(opened.writer.append(entry("a")).await.unwrap(), LogOffset(1));
        assert!(env.instant() >= began + Duration::from_secs(5));
        rig.database.drizzle(false);
        rig.database.drizzle(true);
        rig.database.storm(
            Kind::Read,
            Storm {
                until: env.instant() + DAY,
                ..storm
            },
        );
        let read = log.read(LogOffset(1), 1).await;
        assert!(matches!(read, Err(LogError::Unavailable(_))), "{read:?}");
    });
}
