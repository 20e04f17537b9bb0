//! Bad settings, bad stores, damaged files: a clear error that names the culprit, and nothing lost.
#![allow(clippy::disallowed_methods, clippy::expect_used, reason = "tests")]

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use bytes::Bytes;
use e2e::clients::{Library, kcat};
use e2e::history::History;
use e2e::node::{Cluster, Plan, binary, free_port};
use e2e::s3::S3Server;
use e2e::wire::{Wire, topic_name};
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::{BrokerId, FetchRequest};

/// Runs `serve` with a configuration until it ends by itself.
fn serve(config: &str, environment: &[(String, String)]) -> Output {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("broker.toml");
    fs::write(&file, config.replace("DIR", &dir.path().display().to_string())).expect("written");
    Command::new("timeout")
        .arg("60")
        .arg(binary("diskless-broker").expect("built"))
        .args(["serve", "--config"])
        .arg(&file)
        .envs(environment.iter().cloned())
        .output()
        .expect("started")
}

fn config(url: &str, extra: &str) -> String {
    format!(
        "[node]\nid = 1\nroles = [\"broker\", \"coordinator\"]\nzone = \"a\"\ndata_dir = \"DIR/data\"\n\
         [object_store]\nurl = \"{url}\"\n\
         [listeners]\nhost = \"127.0.0.1\"\nport = {}\nadvertised_host = \"127.0.0.1\"\n\
         [internal]\nhost = \"127.0.0.1\"\nport = {}\nadvertised_host = \"127.0.0.1\"\n\
         [admin]\nhost = \"127.0.0.1\"\nport = {}\n{extra}",
        free_port(),
        free_port(),
        free_port()
    )
}

/// The process failed by itself and its error names all of `words`.
fn assert_fails(output: &Output, words: &[&str]) {
    let text =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success(), "it ended with success:\n{text}");
    assert_ne!(
        output.status.code(),
        Some(124),
        "it did not end by itself:\n{text}"
    );
    assert!(
        output.status.code().is_some(),
        "it was killed by a signal:\n{text}"
    );
    for word in words {
        assert!(text.contains(word), "no {word:?} in:\n{text}");
    }
    let error = text.lines().last().unwrap_or_default();
    for part in error.split(": ").filter(|part| part.len() > 20) {
        assert_eq!(error.matches(part).count(), 1, "it says {part:?} twice:\n{text}");
    }
    assert!(!text.contains("panicked"), "{text}");
}

#[test]
fn a_wrong_key_is_named() {
    assert_fails(
        &serve(&config("file://DIR/store", "[produce]\nflush_byte = 5\n"), &[]),
        &["flush_byte"],
    );
    assert_fails(
        &serve(&config("file://DIR/store", "[produc]\nflush_bytes = 5\n"), &[]),
        &["produc"],
    );
    let variable = [("DISKLESS_PRODUCE__FLUSH_BYTE".to_owned(), "5".to_owned())];
    assert_fails(
        &serve(&config("file://DIR/store", ""), &variable),
        &["flush_byte"],
    );
}

#[test]
fn a_wrong_value_is_named() {
    assert_fails(
        &serve(
            &config("file://DIR/store", "[produce]\nflush_bytes = \"big\"\n"),
            &[],
        ),
        &["flush_bytes"],
    );
    assert_fails(
        &serve(&config("ftp://host/x", ""), &[]),
        &["object_store.url", "ftp"],
    );
    assert_fails(
        &serve(&config("s3://bucket/p?endpont=http://h", ""), &[]),
        &["endpont"],
    );
    // The operator leaves the address of the database to the environment: without it nothing begins in the object store.
    for environment in [
        vec![],
        vec![("DISKLESS_METADATA_LOG__URL".to_owned(), String::new())],
    ] {
        assert_fails(
            &serve(
                &config("file://DIR/store", "[metadata_log]\nurl = \"\"\n"),
                &environment,
            ),
            &["metadata_log.url", "postgres://"],
        );
    }
}

#[test]
fn an_unreachable_store_is_named() {
    let url = format!(
        "s3://bucket/p?region=us-east-1&path_style=true&endpoint=http://127.0.0.1:{}",
        free_port()
    );
    let keys = [
        ("AWS_ACCESS_KEY_ID".to_owned(), "a".to_owned()),
        ("AWS_SECRET_ACCESS_KEY".to_owned(), "b".to_owned()),
    ];
    assert_fails(&serve(&config(&url, ""), &keys), &["bucket", "127.0.0.1"]);
}

#[test]
fn a_missing_bucket_and_a_wrong_secret_are_told_apart() -> anyhow::Result<()> {
    let s3 = S3Server::start()?;
    let url = s3
        .url("p")
        .replace(&format!("s3://{}", s3.bucket()), "s3://no-such-bucket");
    assert_fails(&serve(&config(&url, ""), &s3.environment()), &["no-such-bucket"]);
    let mut wrong = s3.environment();
    for (name, value) in &mut wrong {
        if name == "AWS_SECRET_ACCESS_KEY" {
            *value = "wrong".to_owned();
        }
    }
    let output = serve(&config(&s3.url("p"), ""), &wrong);
    assert_fails(&output, &[s3.bucket()]);
    let text = String::from_utf8_lossy(&output.stderr).to_lowercase();
    assert!(text.contains("credentials") || text.contains("denied"), "{text}");
    Ok(())
}

#[test]
fn a_bucket_without_permission_is_named() -> anyhow::Result<()> {
    let s3 = S3Server::start()?;
    let output = serve(&config(&s3.url("p"), ""), &s3.stranger());
    assert_fails(&output, &[s3.bucket(), "denied"]);
    Ok(())
}

#[test]
fn a_store_that_lets_two_create_the_same_object_is_refused() -> anyhow::Result<()> {
    let s3 = S3Server::start()?;
    let port = tell_all_writers_that_they_won(&s3.endpoint())?;
    let url = s3.url_through(&format!("http://127.0.0.1:{port}"), "p");
    let output = serve(&config(&url, ""), &s3.environment());
    assert_fails(&output, &["If-None-Match", "4 of 4"]);
    Ok(())
}

/// A proxy before a store: who is late with creating an object is told that it was the first.
fn tell_all_writers_that_they_won(endpoint: &str) -> anyhow::Result<u16> {
    let upstream = endpoint.replace("http://", "");
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let far = TcpStream::connect(&upstream).expect("the store accepts");
            let (mut requests, mut to_store) = (
                near.try_clone().expect("cloned"),
                far.try_clone().expect("cloned"),
            );
            std::thread::spawn(move || std::io::copy(&mut requests, &mut to_store));
            let (mut answers, mut to_client) = (far, near);
            std::thread::spawn(move || {
                let mut chunk = [0; 65536];
                while let Ok(count @ 1..) = answers.read(&mut chunk) {
                    let lost = chunk[..count].starts_with(b"HTTP/1.1 412 ");
                    let sent = if lost {
                        to_client
                            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                    } else {
                        to_client.write_all(&chunk[..count])
                    };
                    if lost || sent.is_err() {
                        break;
                    }
                }
                let _ = to_client.shutdown(Shutdown::Both);
            });
        }
    });
    Ok(port)
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("address").port();
    let text = config("file://DIR/store", "");
    let line = text
        .lines()
        .rfind(|line| line.starts_with("port = "))
        .expect("a port")
        .to_owned();
    let text = text.replace(&line, &format!("port = {port}"));
    assert_fails(&serve(&text, &[]), &[&port.to_string()]);
}

#[test]
fn a_corrupt_sqlite_file_is_rebuilt() -> anyhow::Result<()> {
    let mut cluster = Cluster::start(Plan {
        broker_zones: vec!["a"],
        coordinators: 1,
        ..Plan::default()
    })?;
    let bootstrap = cluster.bootstrap();
    let mut history = History {
        idempotent: true,
        ..History::default()
    };
    history.add_producer(
        &Library::FranzGo.produce(&bootstrap, "t", 0, 500, 0)?.finish()?,
        0,
        500,
    );
    for kill in [true, false] {
        if kill {
            cluster.coordinators[0].kill();
        } else {
            cluster.coordinators[0].stop()?;
        }
        let mut damaged = 0;
        for_each_file(&cluster.coordinators[0].data_dir, &mut |path| {
            fs::write(path, vec![0x5a; 8192]).expect("written");
            damaged += 1;
        });
        // A node that stops in order deletes its views, as far as it gets.
        assert!(damaged > 0 || !kill, "no file of a view was found");
        cluster.coordinators[0].start()?;
        cluster.coordinators[0].wait_ready()?;
        let group = format!("after-{kill}");
        history.add_consumer(
            &Library::FranzGo
                .consume(&bootstrap, "t", &group, 500, 20)?
                .finish()?,
        );
    }
    history.assert_clean();
    Ok(())
}

#[test]
fn a_foreign_object_and_a_corrupt_one_are_named_and_nothing_is_lost() -> anyhow::Result<()> {
    let mut cluster = Cluster::start(Plan {
        broker_zones: vec!["a"],
        coordinators: 1,
        ..Plan::default()
    })?;
    let bootstrap = cluster.bootstrap();
    let mut history = History {
        idempotent: true,
        ..History::default()
    };
    history.add_producer(
        &Library::FranzGo.produce(&bootstrap, "t", 0, 500, 0)?.finish()?,
        0,
        500,
    );
    let store = cluster.dir().join("store");
    fs::write(store.join("readme.txt"), "not ours")?;
    fs::create_dir_all(store.join("wal/zz"))?;
    fs::write(store.join("wal/zz/stranger"), "not ours")?;
    cluster.coordinators[0].kill();
    cluster.coordinators[0].start()?;
    cluster.coordinators[0].wait_ready()?;
    history.add_consumer(
        &Library::FranzGo
            .consume(&bootstrap, "t", "a", 500, 20)?
            .finish()?,
    );
    history.assert_clean();
    assert_eq!(fs::read_to_string(store.join("readme.txt"))?, "not ours");
    assert_eq!(fs::read_to_string(store.join("wal/zz/stranger"))?, "not ours");

    // One flipped byte in every WAL object: the records are refused, not passed on changed, and other topics live.
    cluster.brokers[0].kill();
    for_each_file(&store.join("wal"), &mut |path| {
        let mut bytes = fs::read(path).expect("read");
        let middle = bytes.len() / 2;
        if bytes.len() > 100 {
            bytes[middle] ^= 1;
        }
        fs::write(path, bytes).expect("written");
    });
    cluster.brokers[0].start()?;
    cluster.brokers[0].wait_ready()?;
    let wanted = FetchPartition::default().with_partition_max_bytes(1 << 20);
    let topic = FetchTopic::default()
        .with_topic(topic_name("t"))
        .with_partitions(vec![wanted]);
    let request = FetchRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_max_wait_ms(1_000)
        .with_max_bytes(1 << 20)
        .with_topics(vec![topic]);
    let mut wire = Wire::connect(&bootstrap)?;
    let fetched = wire.call(&request, 11)?;
    let fetched = &fetched.responses[0].partitions[0];
    assert_eq!(fetched.error_code, ResponseError::CorruptMessage.code());
    assert!(fetched.records.as_ref().is_none_or(Bytes::is_empty));
    let line = cluster.brokers[0]
        .log()
        .lines()
        .rfind(|line| line.contains("corrupt"))
        .map(str::to_owned);
    assert!(
        line.as_ref().is_some_and(|line| line.contains("wal/")),
        "no object is named: {line:?}"
    );
    let produced = kcat(&["-P", "-b", &bootstrap, "-t", "other", "-p", "0"], b"fine\n")?;
    assert!(produced.status.success());
    let args = [
        "-C",
        "-b",
        &bootstrap,
        "-t",
        "other",
        "-p",
        "0",
        "-o",
        "beginning",
        "-c",
        "1",
    ];
    assert_eq!(kcat(&args, b"")?.stdout, b"fine\n");
    assert_eq!(fs::read_to_string(store.join("readme.txt"))?, "not ours");
    Ok(())
}

#[test]
fn a_corrupt_log_entry_is_named_and_nothing_is_lost() -> anyhow::Result<()> {
    let mut cluster = Cluster::start(Plan {
        broker_zones: vec!["a"],
        coordinators: 1,
        ..Plan::default()
    })?;
    let bootstrap = cluster.bootstrap();
    let mut history = History {
        idempotent: true,
        ..History::default()
    };
    let produced = Library::FranzGo.produce(&bootstrap, "t", 0, 500, 0)?.finish()?;
    history.add_producer(&produced, 0, 500);
    cluster.coordinators[0].kill();
    cluster.coordinators[0].delete_data()?;
    // The longest entry of all shards' logs is one with coordinates of batches.
    let (mut longest, mut size) = (PathBuf::new(), 0);
    for shard in 0..3 {
        let log = cluster.dir().join(format!("store/meta/shard-{shard}/log"));
        for_each_file(&log, &mut |path| {
            let len = fs::metadata(path).expect("a file").len();
            if len > size {
                (longest, size) = (path.to_owned(), len);
            }
        });
    }
    let intact = fs::read(&longest)?;
    let mut damaged = intact.clone();
    damaged[intact.len() / 2] ^= 1;
    fs::write(&longest, damaged)?;
    cluster.coordinators[0].start()?;
    let key = longest
        .strip_prefix(cluster.dir().join("store"))?
        .display()
        .to_string();
    let start = Instant::now();
    while !cluster.coordinators[0].log().contains(&key) {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{key} is not named:\n{}",
            cluster.coordinators[0].log()
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    let line = cluster.coordinators[0]
        .log()
        .lines()
        .find(|line| line.contains(&key))
        .map(str::to_owned);
    assert!(line.is_some_and(|line| line.contains("corrupt")));

    // With the object as it was, from a backup say, everything is there, without a restart.
    fs::write(&longest, intact)?;
    let consumed = Library::FranzGo
        .consume(&bootstrap, "t", "after", 500, 30)?
        .finish()?;
    history.add_consumer(&consumed);
    history.assert_clean();
    Ok(())
}

fn for_each_file(dir: &Path, visit: &mut impl FnMut(&Path)) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            for_each_file(&path, visit);
        } else {
            visit(&path);
        }
    }
}
