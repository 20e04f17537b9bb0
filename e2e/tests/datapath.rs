//! The produce path over an object store that fails: real processes, an S3 server, and a proxy between them.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

#[path = "datapath_support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use e2e::clients::Library;
use e2e::history::History;
use e2e::node::{Cluster, Plan};
use e2e::s3::S3Server;
use e2e::s3_proxy::{Fault, Proxy, Rule, Verb};
use e2e::wire::{Wire, batch, batch_of, delete_records, list_offsets, topic_name};
use kafka_protocol::messages::ProduceRequest;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};

use crate::support::{deliver, is_retriable, now, producer_id, send, until};

const MIB: u64 = 1 << 20;
const SECOND: Duration = Duration::from_secs(1);
const SILENCE: Fault = Fault::Silence { after: false };
const SLOW_DOWN: Fault = Fault::Status {
    code: 503,
    after: false,
};

/// A store behind a proxy, and a cluster over it.
struct Rig {
    cluster: Cluster,
    proxy: Proxy,
    _s3: S3Server,
}

fn rig(brokers: Vec<&'static str>, coordinators: usize, settings: &str) -> anyhow::Result<Rig> {
    let s3 = S3Server::start()?;
    let proxy = Proxy::start("127.0.0.1", &s3.endpoint(), None, 1)?;
    let cluster = Cluster::start(Plan {
        store: Some(s3.url_through(&proxy.endpoint(), "data")),
        broker_zones: brokers,
        coordinators,
        settings: settings.to_owned(),
        environment: s3.environment(),
        ..Plan::default()
    })?;
    Ok(Rig {
        cluster,
        proxy,
        _s3: s3,
    })
}

fn ends(wire: &mut Wire, topic: &str, partitions: i32) -> anyhow::Result<Vec<i64>> {
    let request = list_offsets(topic, 0..partitions, -1);
    let answer = wire.call(&request, 7)?;
    let partitions = answer.topics[0].partitions.iter();
    Ok(partitions
        .map(|found| {
            assert_eq!(found.error_code, 0);
            found.offset
        })
        .collect())
}

/// No line of a log may grow with the number of partitions or objects that fail (log pipelines drop long lines).
fn assert_short_lines(cluster: &mut Cluster) {
    for node in cluster.nodes() {
        let log = node.log();
        let longest = log.lines().map(str::len).max().unwrap_or(0);
        assert!(longest < 2_000, "node {}: a line of {longest} bytes", node.id);
    }
}

/// 500 connections send 1 MiB each to a broker whose store takes nothing; then it does again.
#[test]
fn produced_data_stays_within_its_memory_while_the_store_is_silent() -> anyhow::Result<()> {
    const CONNECTIONS: i32 = 500;
    const PARTITIONS: i32 = 20;
    let settings = "[produce]\nmemory_bytes = 67108864\n\n[cache]\nmemory_bytes = 16777216\n";
    let rig = rig(vec!["a"], 1, settings)?;
    let broker = &rig.cluster.brokers[0];
    let address = broker.address();
    let mut wire = Wire::connect(&address)?;
    wire.create_topic("flood", PARTITIONS)?;
    let producers: Vec<_> = (0..CONNECTIONS)
        .map(|_| producer_id(&mut wire))
        .collect::<Result<_, _>>()?;
    let before = broker.resident_bytes()?;
    rig.proxy
        .set_rules(vec![Rule::new(SILENCE).on(Verb::Put, "/wal/")]);
    let acked = Arc::new(AtomicU32::new(0));
    let sending: Vec<_> = (0..)
        .zip(producers)
        .map(|(i, producer)| {
            let (address, acked) = (address.clone(), acked.clone());
            std::thread::Builder::new().stack_size(256 << 10).spawn(move || {
                let value = format!("{i} ") + &"x".repeat(MIB as usize - 200);
                let partition = i % PARTITIONS;
                let place = deliver(&address, "flood", partition, producer, 0, &value);
                acked.fetch_add(1, Ordering::Relaxed);
                place.map(|(offset, attempts)| (partition, offset, attempts))
            })
        })
        .collect::<Result<_, _>>()?;
    let mut most = 0;
    let start = Instant::now();
    while start.elapsed() < 25 * SECOND {
        most = most.max(broker.resident_bytes()?);
        std::thread::sleep(SECOND / 5);
    }
    assert_eq!(acked.load(Ordering::Relaxed), 0, "nothing was stored");
    rig.proxy.set_rules(Vec::new());
    let mut places = BTreeSet::new();
    let mut again = 0;
    for thread in sending {
        let (partition, offset, attempts) = thread.join().expect("a producer panicked")?;
        again += attempts - 1;
        assert!(places.insert((partition, offset)), "{partition} {offset} twice");
        most = most.max(broker.resident_bytes()?);
    }
    // Acknowledged at 500 places, and there is nothing else.
    let stored: i64 = ends(&mut wire, "flood", PARTITIONS)?.iter().sum();
    assert_eq!(stored, i64::from(CONNECTIONS));
    println!(
        "rss {} MiB before, {} MiB at most; {again} batches sent again",
        before / MIB,
        most / MIB
    );
    // The budget, the cache, a read buffer for each connection, and what allocator and HTTP client need beside them.
    let bound = before + (64 + 16 + 32 + 64) * MIB;
    assert!(most < bound, "{} MiB, bound {} MiB", most / MIB, bound / MIB);
    Ok(())
}

/// A batch for each partition of a topic.
fn for_all_partitions(topic: &str, partitions: i32) -> anyhow::Result<ProduceRequest> {
    let mut data = Vec::new();
    for index in 0..partitions {
        let records = batch(&["to all"], now())?;
        data.push(
            PartitionProduceData::default()
                .with_index(index)
                .with_records(Some(records)),
        );
    }
    let topic = TopicProduceData::default()
        .with_name(topic_name(topic))
        .with_partition_data(data);
    Ok(ProduceRequest::default()
        .with_acks(-1)
        .with_timeout_ms(5_000)
        .with_topic_data(vec![topic]))
}

/// Until `over`, writes to all partitions of a topic at once and asks for their ends. Says how many partitions that failed for.
fn fail_for_all(address: &str, topic: &str, partitions: i32, over: &AtomicBool) -> anyhow::Result<usize> {
    let request = for_all_partitions(topic, partitions)?;
    let mut wire = Wire::connect(address)?;
    let mut failed = 0;
    while !over.load(Ordering::Relaxed) {
        let answer = wire.call(&request, 9)?;
        let results = answer
            .responses
            .iter()
            .flat_map(|topic| &topic.partition_responses);
        failed += results.filter(|result| result.error_code != 0).count();
        let answer = wire.call(&list_offsets(topic, 0..partitions, -1), 7)?;
        let results = answer.topics.iter().flat_map(|topic| &topic.partitions);
        failed += results.filter(|result| result.error_code != 0).count();
    }
    Ok(failed)
}

#[test]
fn a_store_that_is_gone_for_a_minute_costs_a_minute() -> anyhow::Result<()> {
    const COUNT: u64 = 8_000;
    const RATE: u64 = 100;
    /// A list of so many would be a line of thousands of bytes.
    const PARTITIONS: i32 = 1_000;
    let mut rig = rig(vec!["a", "b"], 2, "")?;
    let bootstrap = rig.cluster.bootstrap();
    let address = rig.cluster.brokers[0].address();
    let mut wire = Wire::connect(&address)?;
    wire.create_topic("wide", PARTITIONS)?;
    let mut history = History {
        idempotent: true,
        ..History::default()
    };
    let warm_up = Library::Confluent.produce(&bootstrap, "gone", 0, 100, 0)?;
    history.add_producer(&warm_up.finish()?, 0, 100);
    let producing = Library::Confluent.produce(&bootstrap, "gone", 100, COUNT, RATE)?;
    // More patient than the store is away.
    let consuming = Library::FranzGo.consume(&bootstrap, "gone", "readers", COUNT + 100, 120)?;
    std::thread::sleep(5 * SECOND);
    // Everything, the metadata log included: first refused, then without an answer.
    rig.proxy
        .set_rules(vec![Rule::new(Fault::Reset { after: false })]);
    let over = Arc::new(AtomicBool::new(false));
    let failing = {
        let over = over.clone();
        std::thread::spawn(move || fail_for_all(&address, "wide", PARTITIONS, &over))
    };
    std::thread::sleep(30 * SECOND);
    rig.proxy.set_rules(vec![Rule::new(SILENCE)]);
    std::thread::sleep(30 * SECOND);
    rig.proxy.set_rules(Vec::new());
    over.store(true, Ordering::Relaxed);
    let failed = failing.join().expect("the writer to all partitions")?;
    assert!(failed >= PARTITIONS as usize, "{failed} partitions failed");
    let output = producing.finish()?;
    history.add_producer(&output, 100, COUNT);
    history.add_consumer(&consuming.finish()?);
    assert_eq!(
        history.acked.len() as u64,
        COUNT + 100,
        "given up: {:?}",
        output.lines().find(|line| line.starts_with("err"))
    );
    let again = Library::FranzGo.consume(&bootstrap, "gone", "afterwards", COUNT + 100, 20)?;
    history.add_consumer(&again.finish()?);
    history.assert_clean();
    assert_short_lines(&mut rig.cluster);
    for node in rig.cluster.nodes() {
        assert!(node.ended()?.is_none(), "node {} had to be restarted", node.id);
    }
    Ok(())
}

#[test]
fn a_broker_asks_a_store_that_throttles_less_often_and_comes_back() -> anyhow::Result<()> {
    let rig = rig(
        vec!["a"],
        1,
        "[produce]\nflush_interval_ms = 20\nputs_per_second = 50\n",
    )?;
    let mut history = History {
        idempotent: true,
        ..History::default()
    };
    let bootstrap = rig.cluster.bootstrap();
    let warm_up = Library::Confluent.produce(&bootstrap, "storm", 0, 100, 0)?;
    history.add_producer(&warm_up.finish()?, 0, 100);
    let producing = Library::Confluent.produce(&bootstrap, "storm", 100, 8_000, 200)?;
    std::thread::sleep(3 * SECOND);
    let puts = || rig.proxy.counts().of(Verb::Put);
    let counted = |time: Duration| {
        let before = puts();
        std::thread::sleep(time);
        puts() - before
    };
    let calm = counted(5 * SECOND);
    rig.proxy
        .set_rules(vec![Rule::new(SLOW_DOWN).on(Verb::Put, "/wal/")]);
    std::thread::sleep(10 * SECOND);
    let storm = counted(5 * SECOND);
    rig.proxy.set_rules(Vec::new());
    std::thread::sleep(8 * SECOND);
    let after = counted(5 * SECOND);
    println!("puts in 5 s: {calm} before, {storm} in the storm, {after} after it");
    history.add_producer(&producing.finish()?, 100, 8_000);
    assert_eq!(history.acked.len(), 8_100);
    let read = Library::FranzGo.consume(&bootstrap, "storm", "readers", 8_100, 20)?;
    history.add_consumer(&read.finish()?);
    history.assert_clean();
    assert!(storm * 4 < calm, "{storm} puts in the storm, {calm} before");
    assert!(after * 2 > calm, "{after} puts after it, {calm} before");
    let throttled = rig.cluster.brokers[0].metric("diskless_object_store_throttled_total")?;
    assert!(throttled > 0.0);
    Ok(())
}

#[test]
fn half_bodies_and_lost_answers_change_nothing() -> anyhow::Result<()> {
    const COUNT: u64 = 3_000;
    // A cache that holds next to nothing: consumers read from the store.
    let rig = rig(vec!["a", "b"], 1, "[cache]\nmemory_bytes = 1048576\n")?;
    let bootstrap = rig.cluster.bootstrap();
    let lost = Fault::Reset { after: true };
    rig.proxy.set_rules(vec![
        Rule::new(Fault::TruncateRequest)
            .on(Verb::Put, "/wal/")
            .share(0.2),
        Rule::new(lost).on(Verb::Put, "/wal/").share(0.2),
        Rule::new(lost).on(Verb::Put, "/meta/").share(0.1),
        Rule::new(Fault::TruncateResponse)
            .on(Verb::Get, "/wal/")
            .share(0.2),
    ]);
    let mut history = History {
        idempotent: true,
        ..History::default()
    };
    let producing = Library::FranzGo.produce(&bootstrap, "halves", 0, COUNT, 200)?;
    let consuming = Library::Confluent.consume(&bootstrap, "halves", "readers", COUNT, 30)?;
    history.add_producer(&producing.finish()?, 0, COUNT);
    history.add_consumer(&consuming.finish()?);
    assert_eq!(history.acked.len() as u64, COUNT);
    let again = Library::Java.consume(&bootstrap, "halves", "afterwards", COUNT, 20)?;
    history.add_consumer(&again.finish()?);
    history.assert_clean();
    println!("{:?}", rig.proxy.counts());
    for fault in ["reset", "truncate_request"] {
        assert!(rig.proxy.counts().faults.contains_key(fault), "no {fault}");
    }
    Ok(())
}

#[test]
fn a_stuck_upload_holds_up_its_partition_alone() -> anyhow::Result<()> {
    let rig = rig(vec!["a"], 1, "")?;
    let address = rig.cluster.brokers[0].address();
    let mut wire = Wire::connect(&address)?;
    wire.create_topic("stuck", 2)?;
    let producer = producer_id(&mut wire)?;
    // The first upload and its second under another name.
    rig.proxy
        .set_rules(vec![Rule::new(SILENCE).on(Verb::Put, "/wal/").times(2)]);
    let place = address.clone();
    let stuck = std::thread::spawn(move || deliver(&place, "stuck", 0, producer, 0, "stuck"));
    until("both uploads are stuck", || rig.proxy.counts().faults() >= 2);
    for i in 0..5 {
        let records = batch(&[&i.to_string()], now())?;
        let answer = send(&mut wire, "stuck", 1, records, 30 * SECOND)?;
        assert_eq!((answer.error_code, answer.base_offset), (0, i));
        assert!(!stuck.is_finished());
    }
    let (offset, _) = stuck.join().expect("the producer panicked")?;
    assert_eq!(offset, 0);
    // A single stuck upload is overtaken by its second.
    rig.proxy
        .set_rules(vec![Rule::new(SILENCE).on(Verb::Put, "/wal/").times(1)]);
    let batch = batch_of(producer, 1, &["overtaken"], now())?;
    let answer = send(&mut wire, "stuck", 0, batch, 30 * SECOND)?;
    assert_eq!((answer.error_code, answer.base_offset), (0, 1));
    let won = rig.cluster.brokers[0].metric("diskless_upload_hedges_won_total")?;
    assert!(won >= 1.0, "{won}");
    Ok(())
}

#[test]
fn without_coordinators_clients_hear_that_they_may_try_again() -> anyhow::Result<()> {
    let mut rig = rig(vec!["a"], 1, "")?;
    let address = rig.cluster.brokers[0].address();
    let mut wire = Wire::connect(&address)?;
    wire.create_topic("frozen", 1)?;
    let write = |wire: &mut Wire, value: &str| {
        let records = batch(&[value], now())?;
        send(wire, "frozen", 0, records, 6 * SECOND)
    };
    assert_eq!(write(&mut wire, "0")?.error_code, 0);
    // Its memory of what was committed goes.
    rig.cluster.brokers[0].kill();
    rig.cluster.brokers[0].start()?;
    rig.cluster.brokers[0].wait_ready()?;
    rig.cluster.coordinators[0].signal("STOP")?;
    let mut wire = Wire::connect(&address)?;
    let fetched = e2e_fetch(&mut wire, "frozen", 0)?;
    assert!(
        fetched == 0 || is_retriable(fetched),
        "fetch: error {fetched} is not retriable"
    );
    let start = Instant::now();
    let refused = write(&mut wire, "1")?.error_code;
    assert!(is_retriable(refused), "produce: error {refused}");
    assert!(start.elapsed() < 30 * SECOND, "it took {:?}", start.elapsed());
    rig.cluster.coordinators[0].signal("CONT")?;
    let start = Instant::now();
    while write(&mut wire, "2")?.error_code != 0 {
        assert!(start.elapsed() < 60 * SECOND, "it does not recover");
    }
    Ok(())
}

fn e2e_fetch(wire: &mut Wire, topic: &str, offset: i64) -> anyhow::Result<i16> {
    use kafka_protocol::messages::FetchRequest;
    use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
    let partition = FetchPartition::default()
        .with_fetch_offset(offset)
        .with_partition_max_bytes(1 << 20);
    let topic = FetchTopic::default()
        .with_topic(e2e::wire::topic_name(topic))
        .with_partitions(vec![partition]);
    let request = FetchRequest::default()
        .with_replica_id((-1).into())
        .with_max_wait_ms(500)
        .with_min_bytes(1)
        .with_max_bytes(1 << 20)
        .with_topics(vec![topic]);
    let answer = wire.call(&request, 11)?;
    assert_eq!(answer.error_code, 0);
    Ok(answer.responses[0].partitions[0].error_code)
}

#[test]
fn nodes_end_when_they_are_told_to_though_the_store_is_silent() -> anyhow::Result<()> {
    // The shortest life of dead objects that is allowed.
    let settings = "[fetch]\nread_timeout_ms = 1000\ncoordinates_max_age_ms = 500\n\n[coordinator]\nfile_grace_ms = 1501\n";
    let mut rig = rig(vec!["a"], 1, settings)?;
    let address = rig.cluster.brokers[0].address();
    let mut wire = Wire::connect(&address)?;
    wire.create_topic("ending", 1)?;
    let records = batch(&["0"], now())?;
    assert_eq!(send(&mut wire, "ending", 0, records, 10 * SECOND)?.error_code, 0);
    // Its object dies, and the coordinator waits for an answer to its deletion.
    rig.proxy.set_rules(vec![Rule::new(SILENCE).on(Verb::Delete, "")]);
    let deleted = wire.call(&delete_records("ending", 0, -1, 10_000), 2)?;
    assert_eq!(deleted.topics[0].partitions[0].low_watermark, 1);
    until("the object is being deleted", || rig.proxy.counts().faults() > 0);
    rig.proxy.set_rules(vec![Rule::new(SILENCE)]);
    let puts = rig.proxy.counts().of(Verb::Put);
    let place = address.clone();
    let pending = std::thread::spawn(move || -> anyhow::Result<i16> {
        let mut wire = Wire::connect(&place)?;
        let records = batch(&["1"], now())?;
        Ok(send(&mut wire, "ending", 0, records, 60 * SECOND)?.error_code)
    });
    until("the upload is on its way", || {
        rig.proxy.counts().of(Verb::Put) > puts
    });
    // Within 60 s, or `stop` fails.
    rig.cluster.brokers[0].stop()?;
    rig.cluster.coordinators[0].stop()?;
    assert!(
        !matches!(pending.join().expect("the producer panicked"), Ok(0)),
        "it was acknowledged"
    );
    Ok(())
}
