//! How long a shard with a million batches is away when the process that leads it is killed, or leaves. Measurements, run by hand:
//! `cargo test -p e2e --test takeover -- --ignored --nocapture`, with `TAKEOVER_BATCHES` for another number.
#![allow(
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "tests"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use e2e::node::{Cluster, Plan};
use e2e::s3::S3Server;
use e2e::wire::{Wire, batch, topic_name};
use kafka_protocol::messages::ProduceRequest;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};

const TOPIC: &str = "many";
const PARTITIONS: i32 = 1_000;
const CONNECTIONS: usize = 16;
/// A gap that needs an explanation.
const LONG: Duration = Duration::from_secs(3);

/// One batch for each of these partitions.
fn request(partitions: std::ops::Range<i32>) -> anyhow::Result<ProduceRequest> {
    let mut data = Vec::new();
    for index in partitions {
        let records = batch(&["a record"], 1_700_000_000_000)?;
        data.push(
            PartitionProduceData::default()
                .with_index(index)
                .with_records(Some(records)),
        );
    }
    let topic = TopicProduceData::default()
        .with_name(topic_name(TOPIC))
        .with_partition_data(data);
    Ok(ProduceRequest::default()
        .with_acks(-1)
        .with_timeout_ms(30_000)
        .with_topic_data(vec![topic]))
}

/// Whether all of it was taken.
fn produce(wire: &mut Wire, request: &ProduceRequest) -> anyhow::Result<bool> {
    let answer = wire.call(request, 9)?;
    let mut partitions = answer
        .responses
        .iter()
        .flat_map(|topic| &topic.partition_responses);
    Ok(partitions.all(|partition| partition.error_code == 0))
}

fn fill(address: &str, batches: usize) -> anyhow::Result<()> {
    let requests = batches / PARTITIONS as usize / CONNECTIONS;
    let threads: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let address = address.to_owned();
            std::thread::spawn(move || -> anyhow::Result<()> {
                let mut wire = Wire::connect(&address)?;
                let request = request(0..PARTITIONS)?;
                for _ in 0..requests {
                    while !produce(&mut wire, &request)? {}
                }
                Ok(())
            })
        })
        .collect();
    for thread in threads {
        match thread.join() {
            Ok(done) => done?,
            Err(_) => bail!("a producer failed"),
        }
    }
    Ok(())
}

/// Produces one batch after the other until `stop`; gives the times of the answers.
fn probe(address: String, stop: Arc<AtomicBool>) -> std::thread::JoinHandle<anyhow::Result<Vec<Instant>>> {
    std::thread::spawn(move || {
        let mut wire = Wire::connect_within(&address, Duration::from_secs(40))?;
        let request = request(0..1)?;
        let mut acked = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            if produce(&mut wire, &request)? {
                acked.push(Instant::now());
            }
        }
        Ok(acked)
    })
}

/// Index of the coordinator whose log says last that it is what `line` says.
fn last_to_say(cluster: &Cluster, line: &[&str]) -> anyhow::Result<usize> {
    let when = |log: String| {
        let said = log
            .lines()
            .rfind(|text| line.iter().all(|part| text.contains(part)));
        said.map(|text| text.split_whitespace().next().unwrap_or_default().to_owned())
    };
    let all = cluster.coordinators.iter().enumerate();
    let said = all.filter_map(|(index, node)| Some((when(node.log())?, index)));
    Ok(said.max().context("nobody has said it")?.1)
}

fn measure(plan: Plan) -> anyhow::Result<()> {
    let batches = std::env::var("TAKEOVER_BATCHES").map_or(Ok(1_000_000), |text| text.parse())?;
    let plan = Plan {
        broker_zones: vec!["a"],
        coordinators: 3,
        settings: "[coordinator]\nmetadata_partitions = 1\n".to_owned(),
        ..plan
    };
    let mut cluster = Cluster::start(plan)?;
    let address = cluster.bootstrap();
    Wire::connect(&address)?.create_topic(TOPIC, PARTITIONS)?;
    let began = Instant::now();
    fill(&address, batches)?;
    println!("{batches} batches after {:.0?}", began.elapsed());
    for round in 0..6 {
        // The others get warm.
        std::thread::sleep(Duration::from_secs(10));
        let leader = last_to_say(&cluster, &["shard-0", "leading"])?;
        let controller = last_to_say(&cluster, &["controller", "formed"])?;
        let stop = Arc::new(AtomicBool::new(false));
        let probing = probe(address.clone(), stop.clone());
        std::thread::sleep(Duration::from_secs(3));
        let planned = round % 2 == 1;
        let began = Instant::now();
        if planned {
            cluster.coordinators[leader].stop()?;
        } else {
            cluster.coordinators[leader].kill();
        }
        std::thread::sleep(Duration::from_secs(10));
        stop.store(true, Ordering::Relaxed);
        let acked = match probing.join() {
            Ok(acked) => acked?,
            Err(_) => bail!("the probe failed"),
        };
        let gaps = |after: bool| {
            let pairs = acked.windows(2).filter(move |pair| (pair[1] > began) == after);
            pairs.map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
        };
        println!(
            "{}{}: longest gap between two answers {:.0?}, before {:.0?}",
            if planned { "SIGTERM" } else { "SIGKILL" },
            if leader == controller {
                " of the controller, too"
            } else {
                ""
            },
            gaps(true),
            gaps(false)
        );
        if gaps(true) > LONG {
            for node in &cluster.coordinators {
                let log = node.log();
                let lines = log.lines().rev().take(12).collect::<Vec<_>>();
                println!("{}", lines.into_iter().rev().collect::<Vec<_>>().join("\n"));
            }
        }
        cluster.coordinators[leader].start()?;
        cluster.coordinators[leader].wait_ready()?;
    }
    Ok(())
}

#[test]
#[ignore = "a measurement"]
fn over_a_folder() -> anyhow::Result<()> {
    measure(Plan::default())
}

#[test]
#[ignore = "a measurement"]
fn over_s3() -> anyhow::Result<()> {
    let s3 = S3Server::start()?;
    measure(Plan {
        store: Some(s3.url("takeover")),
        environment: s3.environment(),
        ..Plan::default()
    })
}
