//! What stock clients see: every library produces, every library consumes, and they agree.
#![allow(clippy::disallowed_methods, clippy::expect_used, reason = "tests")]

use e2e::clients::{LIBRARIES, Library, features, kcat};
use e2e::history::History;
use e2e::node::{Cluster, Plan};

const COUNT: u64 = 2_000;

#[test]
fn every_library_reads_what_every_library_wrote() -> anyhow::Result<()> {
    let cluster = Cluster::start(Plan::default())?;
    let bootstrap = cluster.bootstrap();
    let mut history = History {
        idempotent: true,
        ..History::default()
    };
    for (i, library) in (0..).zip(LIBRARIES) {
        let first = i * COUNT;
        let output = library.produce(&bootstrap, "matrix", first, COUNT, 0)?.finish()?;
        history.add_producer(&output, first, COUNT);
        assert_eq!(
            history.acked.len() as u64,
            (i + 1) * COUNT,
            "{library:?} got errors:\n{output:.2000}"
        );
    }
    let all = COUNT * LIBRARIES.len() as u64;
    for library in LIBRARIES {
        let output = library
            .consume(&bootstrap, "matrix", &format!("{library:?}"), all, 20)?
            .finish()?;
        history.add_consumer(&output);
    }
    history.assert_clean();
    Ok(())
}

#[test]
fn two_members_of_a_group_share_a_topic_and_commit() -> anyhow::Result<()> {
    let cluster = Cluster::start(Plan::default())?;
    let bootstrap = cluster.bootstrap();
    let created = kcat(&["-b", &bootstrap, "-L", "-t", "shared"], b"")?;
    assert!(
        created.status.success(),
        "{}",
        String::from_utf8_lossy(&created.stderr)
    );
    let mut history = History {
        idempotent: true,
        ..History::default()
    };
    let output = Library::FranzGo
        .produce(&bootstrap, "shared", 0, COUNT, 0)?
        .finish()?;
    history.add_producer(&output, 0, COUNT);
    // Neither can know when the other has the rest: both end after a quiet while.
    let one = Library::FranzGo.consume(&bootstrap, "shared", "pair", COUNT, 12)?;
    let two = Library::Confluent.consume(&bootstrap, "shared", "pair", COUNT, 12)?;
    let both = one.finish()? + &two.finish()?;
    history.add_consumer(&both);
    history.assert_clean();
    // What they committed holds: a third member finds nothing new.
    let third = Library::KafkaPython
        .consume(&bootstrap, "shared", "pair", 1, 8)?
        .finish()?;
    assert_eq!(
        third.lines().count(),
        0,
        "committed records came again:\n{third:.500}"
    );
    Ok(())
}

#[test]
fn kcat_keeps_codecs_headers_keys_and_tombstones() -> anyhow::Result<()> {
    let cluster = Cluster::start(Plan {
        broker_zones: vec!["a"],
        coordinators: 1,
        ..Plan::default()
    })?;
    let bootstrap = cluster.bootstrap();
    for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let topic = format!("codec-{codec}");
        let lines: String = (0..500).map(|i| format!("k{i}:value {i} of {codec}\n")).collect();
        let args = [
            "-P", "-b", &bootstrap, "-t", &topic, "-p", "0", "-z", codec, "-K", ":", "-H", "h=1",
        ];
        let produced = kcat(&args, lines.as_bytes())?;
        assert!(
            produced.status.success(),
            "{codec}: {}",
            String::from_utf8_lossy(&produced.stderr)
        );
        let args = [
            "-C",
            "-b",
            &bootstrap,
            "-t",
            &topic,
            "-o",
            "beginning",
            "-e",
            "-f",
            "%k:%s\n",
        ];
        let consumed = kcat(&args, b"")?;
        assert_eq!(String::from_utf8_lossy(&consumed.stdout), lines, "{codec}");
        let args = [
            "-C",
            "-b",
            &bootstrap,
            "-t",
            &topic,
            "-o",
            "beginning",
            "-c",
            "1",
            "-f",
            "%h",
        ];
        assert_eq!(String::from_utf8_lossy(&kcat(&args, b"")?.stdout), "h=1");
    }
    let produced = kcat(
        &["-P", "-b", &bootstrap, "-t", "tombs", "-p", "0", "-Z", "-K", ":"],
        b"gone:\nkept:v\n",
    )?;
    assert!(produced.status.success());
    let args = [
        "-C",
        "-b",
        &bootstrap,
        "-t",
        "tombs",
        "-o",
        "beginning",
        "-e",
        "-f",
        "%k %S\n",
    ];
    assert_eq!(
        String::from_utf8_lossy(&kcat(&args, b"")?.stdout),
        "gone -1\nkept 1\n"
    );
    Ok(())
}

#[test]
fn a_client_is_sent_to_brokers_of_the_zone_whose_port_it_uses() -> anyhow::Result<()> {
    let cluster = Cluster::start(Plan::default())?;
    let zone_b = cluster
        .brokers
        .iter()
        .find(|node| node.zone == "b")
        .expect("zone b");
    // As in Kafka, the first answer about a new topic may be that it is being created.
    let created = kcat(&["-P", "-b", &cluster.bootstrap(), "-t", "zoned"], b"one\n")?;
    assert!(created.status.success());
    for entry in &cluster.brokers {
        // Any broker's port for zone b: leaders must be brokers of zone b, at their ports for zone b.
        let address = format!("127.0.0.1:{}", entry.zone_ports["b"]);
        let listed = kcat(&["-b", &address, "-L", "-t", "zoned", "-J"], b"")?;
        let json: serde_json::Value = serde_json::from_slice(&listed.stdout)?;
        let partitions = json["topics"][0]["partitions"]
            .as_array()
            .expect("partitions")
            .clone();
        assert!(!partitions.is_empty(), "{json}");
        for partition in partitions {
            assert_eq!(partition["leader"], zone_b.id, "{json}");
        }
        let expected = format!("127.0.0.1:{}", zone_b.zone_ports["b"]);
        let brokers = json["brokers"].as_array().expect("brokers").clone();
        assert!(
            brokers.iter().any(|broker| broker["name"] == expected.as_str()),
            "{json}"
        );
    }
    Ok(())
}

#[test]
fn the_java_administrator_sees_and_finalises_the_feature() -> anyhow::Result<()> {
    let cluster = Cluster::start(Plan::default())?;
    let output = features(&cluster.bootstrap(), 2)?;
    for line in [
        "supported diskless.version 1 2",
        "finalized diskless.version 2",
        "updated diskless.version 2",
    ] {
        assert!(
            output.lines().any(|found| found == line),
            "no {line:?} in:\n{output}"
        );
    }
    let output = features(&cluster.bootstrap(), 9)?;
    assert!(
        output.contains("InvalidUpdateVersionException") && output.contains("only supports versions 1-2"),
        "{output}"
    );
    Ok(())
}
