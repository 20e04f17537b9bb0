//! The internal listener: who is served, and the orphans that a broker leaves behind when it dies between the upload of an
//! object and its commit.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use e2e::clients::kcat;
use e2e::node::{Cluster, Plan, binary};

const PATIENCE: Duration = Duration::from_secs(60);

fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Sends one request with an empty body as nobody in particular; gives all that comes back until the peer closes.
fn raw(address: &str, key: i16) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut frame = vec![0, 0, 0, 12];
    frame.extend(key.to_be_bytes());
    frame.extend([0, 0, 0, 0, 0, 7, 0xff, 0xff, 0, 0]);
    stream.write_all(&frame).unwrap();
    let mut answer = Vec::new();
    stream
        .read_to_end(&mut answer)
        .expect("the peer closes the connection");
    answer
}

/// `host:port` of the internal listener, from the node's own configuration.
fn internal_address(cluster: &Cluster, node: i32) -> String {
    let text = std::fs::read_to_string(config(cluster, node)).unwrap();
    let (_, section) = text.split_once("[internal]").unwrap();
    let value = |key: &str| {
        let line = section.lines().find(|line| line.starts_with(key)).unwrap();
        line.rsplit('=')
            .next()
            .unwrap()
            .trim()
            .trim_matches('"')
            .to_owned()
    };
    format!("{}:{}", value("host"), value("port"))
}

fn config(cluster: &Cluster, node: i32) -> PathBuf {
    cluster.dir().join(format!("node-{node}.toml"))
}

fn private_keys() -> impl Iterator<Item = i16> {
    (7001..=7010).chain([7020, 7021, 7022, 7030, 7040])
}

#[test]
fn private_requests_are_answered_to_nodes_only() -> anyhow::Result<()> {
    let cluster = Cluster::start(Plan {
        broker_zones: vec!["a"],
        coordinators: 1,
        ..Plan::default()
    })?;
    let internal = internal_address(&cluster, 0);
    let client = cluster.bootstrap();
    for key in private_keys() {
        // CLUSTER_AUTHORIZATION_FAILED, and the end.
        assert_eq!(
            raw(&internal, key),
            [0, 0, 0, 8, 0, 0, 0, 7, 0, 0, 31, 0],
            "{key}"
        );
        assert_eq!(raw(&client, key), [0u8; 0], "{key} on a client listener");
    }
    Ok(())
}

/// More connections than are let in of peers that do not say who they are, and more of them all the time.
#[test]
fn strangers_that_hold_connections_open_keep_no_node_out() -> anyhow::Result<()> {
    let mut cluster = Cluster::start(Plan {
        broker_zones: vec!["a"],
        coordinators: 1,
        ..Plan::default()
    })?;
    let internal = internal_address(&cluster, 0);
    let hold = || TcpStream::connect(&internal).expect("the coordinator accepts");
    let mut held: Vec<TcpStream> = (0..600).map(|_| hold()).collect();
    held[0].set_read_timeout(Some(PATIENCE))?;
    assert_eq!(held[0].read(&mut [0])?, 0, "the oldest has to go");
    assert!(cluster.brokers[0].stop()?.success());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                held.push(hold());
                held.remove(0);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let ready = cluster.brokers[0]
            .start()
            .and_then(|()| cluster.brokers[0].wait_ready());
        let produced = kcat(
            &["-P", "-b", &cluster.bootstrap(), "-t", "alive", "-p", "0"],
            b"still here\n",
        );
        stop.store(true, Ordering::Relaxed);
        ready?;
        assert!(produced?.status.success());
        anyhow::Ok(())
    })?;
    let refused = cluster.coordinators[0].metric("diskless_internal_connections_refused_total")?;
    assert!(refused >= 300.0, "{refused}");
    assert!(
        cluster.coordinators[0]
            .log()
            .contains("internal connection refused")
    );
    Ok(())
}

#[test]
fn a_node_with_another_secret_stays_outside() -> anyhow::Result<()> {
    let mut cluster = Cluster::start(Plan {
        broker_zones: vec!["a", "b"],
        coordinators: 1,
        ..Plan::default()
    })?;
    let file = config(&cluster, 1001);
    let text = std::fs::read_to_string(&file)?;
    let secret = cluster.dir().join("secret").display().to_string();
    let other = cluster.dir().join("other-secret");
    std::fs::write(&other, "not the secret of this cluster")?;
    assert!(cluster.brokers[1].stop()?.success());
    std::fs::write(&file, text.replace(&secret, &other.display().to_string()))?;
    cluster.brokers[1].start()?;
    eventually("it says why", || {
        let log = cluster.brokers[1].log();
        log.contains("internal.secret_file") && log.contains("authentication failed")
    });
    assert!(e2e::node::http_get(cluster.brokers[1].admin_port, "/readyz")?.0 != 200);
    // With the right one, without a restart.
    std::fs::copy(secret, &other)?;
    cluster.brokers[1].wait_ready()
}

#[test]
fn a_missing_secret_is_named() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let start = |secret: &str| -> anyhow::Result<String> {
        let file = dir.path().join("node.toml");
        std::fs::write(
            &file,
            format!(
                "[node]\nid = 1\nroles = [\"coordinator\"]\nzone = \"a\"\ndata_dir = \"{0}/data\"\n[object_store]\nurl = \"file://{0}/store\"\n\
                 [internal]\nhost = \"127.0.0.1\"\nport = 0\n{secret}\n[admin]\nhost = \"127.0.0.1\"\nport = 0\n",
                dir.path().display()
            ),
        )?;
        std::fs::create_dir_all(dir.path().join("store"))?;
        let output = Command::new("timeout")
            .arg("60")
            .arg(binary("diskless-broker")?)
            .args(["serve", "--config"])
            .arg(&file)
            .output()?;
        assert_eq!(output.status.code(), Some(1));
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for secret in ["".to_owned(), "secret_file = \"/no/such/file\"".to_owned()] {
        let text = start(&secret)?;
        assert!(text.contains("internal.secret_file"), "{text}");
    }
    Ok(())
}

/// Names of the objects below `wal/` in the cluster's folder.
fn objects(cluster: &Cluster) -> BTreeSet<PathBuf> {
    fn walk(folder: &Path, found: &mut BTreeSet<PathBuf>) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            if path.is_dir() {
                walk(&path, found);
            } else if !name.to_string_lossy().starts_with('.') {
                found.insert(path);
            }
        }
    }
    let mut found = BTreeSet::new();
    walk(&cluster.dir().join("store/wal"), &mut found);
    found
}

fn orphans(cluster: &Cluster, more: &[&str]) -> anyhow::Result<String> {
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new("timeout")
        .arg("60")
        .arg(binary("diskless-broker")?)
        .args(["orphans", "--config"])
        .arg(config(cluster, 0))
        .args(more)
        .output()?;
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    Ok(String::from_utf8(stdout)?)
}

/// aiven/inkless issue 494: a crash after the upload and before the commit leaves an object that nobody asks for.
#[test]
fn what_a_broker_leaves_between_upload_and_commit_is_found_and_removed() -> anyhow::Result<()> {
    let mut cluster = Cluster::start(Plan {
        broker_zones: vec!["a", "b"],
        settings: "[coordinator]\nfile_grace_ms = 3000\n[fetch]\nread_timeout_ms = 1000\ncoordinates_max_age_ms = 1000\n\
                   [orphan_scan]\ninterval_ms = 0\nmin_age_ms = 1000\n"
            .to_owned(),
        ..Plan::default()
    })?;
    let bootstrap = cluster.bootstrap();
    let mut sent = Vec::new();
    for n in 0..20 {
        let line = format!("record {n}\n");
        let output = kcat(
            &["-P", "-b", &bootstrap, "-t", "kept", "-p", "0", "-X", "acks=all"],
            line.as_bytes(),
        )?;
        assert!(output.status.success(), "{output:?}");
        sent.extend(line.into_bytes());
    }
    let live = objects(&cluster);
    assert!(!live.is_empty());
    let foreign = cluster.dir().join("store/wal/notes/readme");
    std::fs::create_dir_all(foreign.parent().unwrap())?;
    std::fs::write(&foreign, "not ours")?;

    // Nobody can take the commit; the broker dies while it tries.
    cluster.coordinators.iter_mut().for_each(e2e::node::Node::kill);
    let address = format!("{}:{}", cluster.brokers[0].host, cluster.brokers[0].port);
    let mut kcat_path = Command::new("kcat");
    kcat_path.args([
        "-P",
        "-b",
        &address,
        "-t",
        "kept",
        "-p",
        "0",
        "-X",
        "acks=all",
        "-X",
        "message.timeout.ms=30000",
    ]);
    let mut producing = kcat_path
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()?;
    producing
        .stdin
        .take()
        .unwrap()
        .write_all(b"never acknowledged\n")?;
    eventually("an object is uploaded", || {
        objects(&cluster).len() > live.len() + 1
    });
    cluster.brokers[0].kill();
    producing.kill()?;
    producing.wait()?;
    let left: Vec<_> = objects(&cluster)
        .difference(&live)
        .filter(|path| **path != foreign)
        .cloned()
        .collect();
    for node in &mut cluster.coordinators {
        node.start()?;
    }
    for node in &mut cluster.coordinators {
        node.wait_ready()?;
    }
    std::thread::sleep(Duration::from_secs(2));

    let text = orphans(&cluster, &[])?;
    assert!(
        text.contains(&format!("orphans: {} objects", left.len())),
        "{text}"
    );
    assert!(
        text.contains("foreign: 1 objects") && text.contains("wal/notes/readme"),
        "{text}"
    );
    let name = left[0].file_name().unwrap().to_string_lossy().into_owned();
    assert!(
        text.contains(&name) && text.contains("nothing was changed"),
        "{text}"
    );
    assert!(left.iter().all(|path| path.exists()), "a look changes nothing");

    let text = orphans(&cluster, &["--delete"])?;
    assert!(text.contains("given to the shards"), "{text}");
    eventually("the orphans are gone", || !left.iter().any(|path| path.exists()));
    assert!(foreign.exists());
    assert!(live.iter().all(|path| path.exists()));
    let text = orphans(&cluster, &["--delete"])?;
    assert!(text.contains("orphans: 0 objects"), "{text}");

    let other = format!("{}:{}", cluster.brokers[1].host, cluster.brokers[1].port);
    let output = kcat(&["-C", "-b", &other, "-t", "kept", "-p", "0", "-e", "-q"], b"")?;
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&sent)
    );
    Ok(())
}
