//! Bad settings, bad stores, damaged files: a clear error that names the culprit, and nothing lost.
#![allow(clippy::disallowed_methods, clippy::expect_used, reason = "tests")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use e2e::clients::{Library, kcat};
use e2e::history::History;
use e2e::node::{Cluster, Plan, binary, free_port};
use e2e::s3::S3Server;

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
fn a_port_in_use_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
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
        assert!(damaged > 0, "no file of a view was found");
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
