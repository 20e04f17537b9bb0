//! The metadata log in PostgreSQL: the suite of every engine, what a database can do to a log, and a cluster on it.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests")]

mod postgres_support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use blob::{MemoryStore, SharedStore};
use bytes::Bytes;
use coordinator::protocol::{
    BatchRequest, CommitFileRequest, CreatePartitionsRequest, FindBatchesPartition, FindBatchesRequest,
};
use coordinator::shard::{ShardOptions, ShardService};
use e2e::postgres::Postgres;
use env::Env;
use metalog::{
    Database, Epoch, LogError, LogOffset, Logs, MetadataLog, ObjectLog, Opened, Options, Owner, PostgresLog,
    PostgresSettings, Slot, SnapshotBody, SnapshotPieces, SnapshotRef,
};
use postgres_support::{owner, settings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use types::{NodeId, ShardId, TopicId, TopicPartition};
use uuid::Uuid;

const DAY: Duration = Duration::from_secs(86_400);

fn entry(text: &str) -> Vec<Bytes> {
    vec![Bytes::copy_from_slice(text.as_bytes())]
}

fn memory(env: &Env) -> SharedStore {
    Arc::new(MemoryStore::new(env.clone()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_in_a_database_conforms() -> anyhow::Result<()> {
    let (server, env) = (Postgres::start()?, Env::production());
    let store = memory(&env);
    // As by as many processes.
    let mut databases = Vec::new();
    for _ in 0..3 {
        databases.push(Database::open(settings(&server), env.clone()).await?);
    }
    let turn = std::sync::atomic::AtomicUsize::new(0);
    let logs = |name: &str| -> Arc<dyn MetadataLog> {
        let database = databases[turn.fetch_add(1, Ordering::Relaxed) % databases.len()].clone();
        Arc::new(PostgresLog::new(database, store.clone(), name, DAY, env.clone()))
    };
    metalog::conformance::run(&logs, &env)
        .await
        .map_err(anyhow::Error::msg)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tables_are_made_once_and_hold_several_clusters() -> anyhow::Result<()> {
    let (server, env) = (Postgres::start()?, Env::production());
    let all = (0..8).map(|_| Database::open(settings(&server), env.clone()));
    for opened in futures::future::join_all(all).await {
        opened?;
    }
    assert_eq!(server.psql("SELECT version FROM diskless.metalog_version")?, "1");
    for cluster in ["one", "two"] {
        let named = PostgresSettings {
            cluster: cluster.to_owned(),
            ..settings(&server)
        };
        let logs = Logs::new(
            env.clone(),
            memory(&env),
            Options::default(),
            Some(Database::open(named, env.clone()).await?),
        );
        let mut opened = logs.log("x").open(owner(&env, 1)).await?;
        assert_eq!(opened.writer.append(entry(cluster)).await?, LogOffset(1));
        assert_eq!(
            logs.log("x").read(LogOffset(1), 1).await?[0].entries,
            entry(cluster)
        );
    }
    // A role that may use the tables but not make any.
    server.psql("CREATE ROLE guest LOGIN PASSWORD 'test-password'")?;
    let guest = PostgresSettings {
        url: server.url().replace("diskless@", "guest@"),
        ..settings(&server)
    };
    let error = Database::open(guest.clone(), env.clone()).await.unwrap_err();
    assert!(
        matches!(&error, LogError::Unavailable(text) if text.contains("42501")),
        "{error}"
    );
    server.psql(
        "GRANT USAGE ON SCHEMA diskless TO guest; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA diskless TO guest",
    )?;
    let database = Database::open(guest, env.clone()).await?;
    let log = PostgresLog::new(database, memory(&env), "x", DAY, env.clone());
    log.open(owner(&env, 1)).await?;
    // Tables of a later release.
    server.psql("UPDATE diskless.metalog_version SET version = 2")?;
    let error = Database::open(settings(&server), env.clone()).await.unwrap_err();
    assert!(
        matches!(&error, LogError::Invalid(text) if text.contains("version 2") && text.contains("metadata_log.url")),
        "{error}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_would_lose_data_or_keeps_us_out_is_refused() -> anyhow::Result<()> {
    let (mut server, env) = (Postgres::start()?, Env::production());
    let wrong = tempfile::NamedTempFile::new()?;
    std::fs::write(wrong.path(), "wrong\n")?;
    let open = async |change: &dyn Fn(&mut PostgresSettings)| {
        let mut settings = settings(&server);
        change(&mut settings);
        Database::open(settings, env.clone()).await.map(|_| ())
    };
    let error = open(&|settings| settings.password_file = Some(wrong.path().to_owned()))
        .await
        .unwrap_err();
    assert!(
        matches!(&error, LogError::Unavailable(text) if text.contains("28P01")),
        "{error}"
    );
    assert!(!format!("{error:?}").contains("wrong"), "{error:?}");
    let error = open(&|settings| settings.password_file = Some("/nonexistent".into()))
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("metadata_log.password_file: /nonexistent"),
        "{error}"
    );
    // The server has no TLS, and that is not quietly done without.
    let error = open(&|settings| settings.url = settings.url.replace("?sslmode=disable", ""))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("metadata_log"), "{error}");
    server.kill();
    let error = Database::open(settings(&server), env.clone()).await.unwrap_err();
    assert!(
        matches!(&error, LogError::Unavailable(text) if text.contains(&server.address())),
        "{error}"
    );
    server.settings("fsync = off")?;
    server.run()?;
    let error = Database::open(settings(&server), env.clone()).await.unwrap_err();
    assert!(
        matches!(&error, LogError::Invalid(text) if text.contains("fsync")),
        "{error}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_is_verified() -> anyhow::Result<()> {
    let (mut server, env) = (Postgres::start()?, Env::production());
    server.kill();
    let certificate = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()])?;
    let other = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()])?;
    let files = tempfile::tempdir()?;
    for (name, certificate) in [("ours", &certificate), ("other", &other)] {
        std::fs::write(files.path().join(name), certificate.cert.pem())?;
    }
    let (key, pem) = (server.data().join("server.key"), server.data().join("server.crt"));
    std::fs::write(&key, certificate.signing_key.serialize_pem())?;
    std::fs::write(&pem, certificate.cert.pem())?;
    server.own(&key)?;
    server.own(&pem)?;
    server.settings("ssl = on")?;
    server.run()?;
    let through = |authority: &str| PostgresSettings {
        url: server.url().replace("?sslmode=disable", ""),
        ca_file: Some(files.path().join(authority)),
        ..settings(&server)
    };
    let database = Database::open(through("ours"), env.clone()).await?;
    let log = PostgresLog::new(database, memory(&env), "x", DAY, env.clone());
    log.open(owner(&env, 1)).await?;
    let encrypted = server.psql("SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'diskless'")?;
    assert_eq!(encrypted, "t");
    let error = Database::open(through("other"), env.clone()).await.unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
    let error = Database::open(through("missing"), env.clone()).await.unwrap_err();
    assert!(error.to_string().contains("metadata_log.ca_file"), "{error}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_hears_of_an_append() -> anyhow::Result<()> {
    let (server, env) = (Postgres::start()?, Env::production());
    let store = memory(&env);
    let log = async || {
        let database = Database::open(settings(&server), env.clone()).await?;
        anyhow::Ok(PostgresLog::new(database, store.clone(), "x", DAY, env.clone()))
    };
    let mut opened = log().await?.open(owner(&env, 1)).await?;
    let follower = log().await?;
    let mut next = LogOffset(0);
    for number in 0..20 {
        while let Some(last) = follower.read(next, 1 << 20).await?.last() {
            next = last.offset.next();
        }
        let at = next;
        let waiting = async {
            follower.changed(at).await;
            follower.read(at, 1).await
        };
        let appending = opened.writer.append(entry(&format!("{number}")));
        // No poll beside it: without the NOTIFY this would never end.
        let (slots, appended) = futures::future::join(waiting, appending).await;
        assert_eq!(slots?.first().context("nothing is there")?.offset, appended?);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_is_never_begun_anew_beside_the_old_one() -> anyhow::Result<()> {
    let (server, env) = (Postgres::start()?, Env::production());
    let database = || Database::open(settings(&server), env.clone());
    let store = memory(&env);
    let in_database =
        |database: &Database| PostgresLog::new(database.clone(), store.clone(), "x", DAY, env.clone());
    let in_store = |name: &str| ObjectLog::new(store.clone(), name, Options::default(), env.clone());
    in_database(&database().await?).open(owner(&env, 1)).await?;
    let invalid = |result: Result<(), LogError>, text: &str| {
        let error = result.unwrap_err();
        assert!(
            matches!(&error, LogError::Invalid(said) if said.contains(text)),
            "{error}"
        );
    };
    // The setting is lost.
    invalid(in_store("x").open(owner(&env, 1)).await.map(|_| ()), "PostgreSQL");
    // The setting is new.
    in_store("y").open(owner(&env, 1)).await?;
    let y = PostgresLog::new(database().await?, store.clone(), "y", DAY, env.clone());
    invalid(
        y.open(owner(&env, 1)).await.map(|_| ()),
        "kept in the object store",
    );
    // Another bucket with the same name of a cluster.
    let foreign = PostgresLog::new(database().await?, memory(&env), "x", DAY, env.clone());
    invalid(foreign.open(owner(&env, 1)).await.map(|_| ()), "belongs to none");
    // The database is emptied, and then somebody begins anew in it.
    server.psql("DELETE FROM diskless.metalog_log")?;
    let emptied = in_database(&database().await?);
    invalid(
        emptied.open(owner(&env, 1)).await.map(|_| ()),
        "restore the database",
    );
    foreign_log(&server, &env).await?;
    invalid(
        in_database(&database().await?)
            .open(owner(&env, 1))
            .await
            .map(|_| ()),
        "belongs to",
    );
    Ok(())
}

async fn foreign_log(server: &Postgres, env: &Env) -> anyhow::Result<()> {
    let database = Database::open(settings(server), env.clone()).await?;
    let log = PostgresLog::new(database, memory(env), "x", DAY, env.clone());
    log.open(owner(env, 1)).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_in_the_tables_is_found() -> anyhow::Result<()> {
    let (server, env) = (Postgres::start()?, Env::production());
    let store = memory(&env);
    let log = async || {
        let database = Database::open(settings(&server), env.clone()).await?;
        anyhow::Ok(PostgresLog::new(database, store.clone(), "x", DAY, env.clone()))
    };
    let mut opened = log().await?.open(owner(&env, 1)).await?;
    while opened.writer.tail() < LogOffset(8) {
        opened.writer.append(entry("x")).await?;
    }
    let corrupt = |error: LogError, place: &str| {
        let found = matches!(&error, LogError::Corrupt(text) if text.contains(place));
        assert!(found, "{error}");
    };
    server.psql("UPDATE diskless.metalog_slot SET body = set_byte(body, 40, 255) WHERE \"offset\" = 3")?;
    let reader = log().await?;
    assert_eq!(
        reader.read(LogOffset(0), 1 << 20).await?.len(),
        3,
        "what is before it is read"
    );
    corrupt(
        reader.read(LogOffset(3), 1).await.unwrap_err(),
        "slot 3 of log x of cluster c",
    );
    server.psql("DELETE FROM diskless.metalog_slot WHERE \"offset\" = 3")?;
    corrupt(reader.read(LogOffset(3), 1).await.unwrap_err(), "slot 3 ");
    // A promoted standby that lacks the last slots: the writer does not write over them.
    server.psql(
        "DELETE FROM diskless.metalog_slot WHERE \"offset\" = 7; \
         UPDATE diskless.metalog_log SET tail = 7",
    )?;
    corrupt(
        opened.writer.append(entry("y")).await.unwrap_err(),
        "acknowledged slots are lost",
    );
    server.psql("UPDATE diskless.metalog_log SET epoch = 99")?;
    corrupt(
        log().await?.open(owner(&env, 2)).await.err().unwrap(),
        "log x of cluster c",
    );
    Ok(())
}

/// Passes bytes on between clients and the server; when it is told to, it loses the answer to the next append.
struct Proxy {
    address: String,
    lose_answer: Arc<AtomicBool>,
}

impl Proxy {
    async fn start(target: String) -> anyhow::Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (address, lose_answer) = (listener.local_addr()?.to_string(), Arc::<AtomicBool>::default());
        let lose = lose_answer.clone();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(&target).await else {
                    continue;
                };
                tokio::spawn(pass(near, far, lose.clone()));
            }
        });
        Ok(Proxy { address, lose_answer })
    }
}

async fn pass(near: TcpStream, far: TcpStream, lose: Arc<AtomicBool>) {
    let (mut near_read, mut near_write) = near.into_split();
    let (mut far_read, mut far_write) = far.into_split();
    let deaf = AtomicBool::new(false);
    let there = async {
        let mut bytes = vec![0; 64 * 1024];
        loop {
            let count = near_read.read(&mut bytes).await.unwrap_or(0);
            let append = b"INSERT INTO diskless.metalog_slot";
            if bytes[..count]
                .windows(append.len())
                .any(|window| window == append)
            {
                deaf.store(lose.swap(false, Ordering::SeqCst), Ordering::SeqCst);
            }
            if count == 0 || far_write.write_all(&bytes[..count]).await.is_err() {
                return;
            }
        }
    };
    let back = async {
        let mut bytes = vec![0; 64 * 1024];
        loop {
            let count = far_read.read(&mut bytes).await.unwrap_or(0);
            // It has been done, and nobody will hear of it.
            if deaf.load(Ordering::SeqCst) && bytes[..count].first() == Some(&b'1') {
                return;
            }
            if count == 0 || near_write.write_all(&bytes[..count]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = there => {}
        () = back => {}
    }
}

/// The connection ends after COMMIT and before its answer.
#[tokio::test(flavor = "multi_thread")]
async fn an_append_whose_answer_is_lost_is_in_the_log_once() -> anyhow::Result<()> {
    let (server, env) = (Postgres::start()?, Env::production());
    let proxy = Proxy::start(server.address()).await?;
    let through = PostgresSettings {
        url: server.url_at(&proxy.address),
        ..settings(&server)
    };
    let store = memory(&env);
    let database = Database::open(through, env.clone()).await?;
    let log = PostgresLog::new(database, store.clone(), "x", DAY, env.clone());
    let mut opened = log.open(owner(&env, 1)).await?;
    for number in 0..5 {
        opened.writer.append(entry(&format!("before {number}"))).await?;
        proxy.lose_answer.store(true, Ordering::SeqCst);
        let expected = opened.writer.tail();
        assert_eq!(opened.writer.append(entry(&format!("{number}"))).await?, expected);
        assert!(!proxy.lose_answer.load(Ordering::SeqCst), "an answer was lost");
    }
    assert_eq!(
        server.psql("SELECT count(*), max(\"offset\") FROM diskless.metalog_slot")?,
        "11|10"
    );
    // The same for a snapshot, and for one who takes over.
    let snapshot = log.put_snapshot(LogOffset(5), entry("state").into()).await?;
    opened.writer.install_snapshot(snapshot, LogOffset(5)).await?;
    opened.writer.check().await?;
    assert_eq!(
        log.read(LogOffset(4), 1).await,
        Err(LogError::Trimmed {
            log_start: LogOffset(5)
        })
    );
    assert_eq!(log.sweep().await?, 5);
    assert_eq!(
        server.psql("SELECT min(\"offset\") FROM diskless.metalog_slot")?,
        "5"
    );
    Ok(())
}

/// A log that tells nobody of appends.
struct Mute(PostgresLog);

#[async_trait::async_trait]
impl MetadataLog for Mute {
    async fn owner(&self) -> Result<Option<(Epoch, Owner)>, LogError> {
        self.0.owner().await
    }
    async fn open(&self, owner: Owner) -> Result<Opened, LogError> {
        self.0.open(owner).await
    }
    async fn read(&self, from: LogOffset, max_bytes: usize) -> Result<Vec<Slot>, LogError> {
        self.0.read(from, max_bytes).await
    }
    async fn snapshot(&self) -> Result<Option<SnapshotRef>, LogError> {
        self.0.snapshot().await
    }
    async fn put_snapshot(&self, offset: LogOffset, body: SnapshotBody) -> Result<SnapshotRef, LogError> {
        self.0.put_snapshot(offset, body).await
    }
    fn get_snapshot(&self, snapshot: &SnapshotRef) -> SnapshotPieces {
        self.0.get_snapshot(snapshot)
    }
    async fn sweep(&self) -> Result<usize, LogError> {
        self.0.sweep().await
    }
}

/// How long it takes from the answer to a commit until a follower's view shows it.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn the_lag_of_a_follower() -> anyhow::Result<()> {
    const SHARD: ShardId = ShardId(0);
    let (server, env) = (Postgres::start()?, Env::production());
    let store = memory(&env);
    let topic = TopicId(Uuid::from_u128(1));
    let mut files = 0u128;
    for (what, tells, pause_ms) in [
        ("NOTIFY, a commit every 50 ms", true, 50),
        ("NOTIFY, after a rest of 5 s", true, 5_000),
        ("poll alone, a commit every 50 ms", false, 50),
        ("poll alone, after a rest of 5 s", false, 5_000),
    ] {
        let name = format!("{}-{pause_ms}", if tells { "tells" } else { "mute" });
        let log = async || {
            let database = Database::open(settings(&server), env.clone()).await?;
            let log = PostgresLog::new(database, store.clone(), &name, DAY, env.clone());
            anyhow::Ok(match tells {
                true => Arc::new(log) as Arc<dyn MetadataLog>,
                false => Arc::new(Mute(log)),
            })
        };
        let dirs = (tempfile::tempdir()?, tempfile::tempdir()?);
        let options = |dir: &tempfile::TempDir| ShardOptions {
            shard: SHARD,
            data_dir: dir.path().to_owned(),
            replica: Default::default(),
            features: Default::default(),
        };
        let leader = ShardService::start(&env, options(&dirs.0), log().await?, owner(&env, 1))?;
        leader.leading().await?;
        let created = leader.create_partitions(CreatePartitionsRequest {
            shard: SHARD,
            topic,
            name: "t".to_owned(),
            partitions: vec![0],
        });
        assert_eq!(created.await.error_code, 0);
        let follower = ShardService::follow(&env, options(&dirs.1), log().await?, owner(&env, 2))?;
        let shown = async || {
            let find = FindBatchesRequest {
                shard: SHARD,
                partitions: vec![FindBatchesPartition {
                    partition: TopicPartition { topic, partition: 0 },
                    offset: 0,
                    max_bytes: 1,
                }],
                max_bytes: 1,
            };
            let found = follower.find_batches(find).await;
            found.partitions.first().map_or(-1, |found| found.high_watermark)
        };
        while shown().await < 0 {
            env.sleep(Duration::from_millis(10)).await;
        }
        let mut lags = Vec::new();
        for n in 0..if pause_ms > 1_000 { 8 } else { 200 } {
            env.sleep(Duration::from_millis(pause_ms)).await;
            files += 1;
            let answer = leader.commit_file(CommitFileRequest {
                shard: SHARD,
                object: Uuid::from_u128(files),
                uploader: NodeId(1),
                size: 101,
                owners: vec![SHARD],
                batches: vec![BatchRequest {
                    must_follow: false,
                    topic,
                    partition: 0,
                    position: 1,
                    size: 100,
                    last_offset_delta: 0,
                    max_timestamp: env.now(),
                    log_append_time: false,
                    producer_id: -1,
                    producer_epoch: -1,
                    base_sequence: -1,
                }],
            });
            assert_eq!(answer.await.error_code, 0);
            let acknowledged = env.instant();
            while shown().await <= n {
                env.sleep(Duration::from_micros(200)).await;
            }
            lags.push(env.instant() - acknowledged);
        }
        lags.sort();
        let at = |part: usize| lags[(lags.len() - 1) * part / 100];
        println!("{what}: p50 {:?}, p99 {:?}, max {:?}", at(50), at(99), at(100));
        leader.stop().await;
        follower.stop().await;
    }
    Ok(())
}
