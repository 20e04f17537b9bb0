//! Kills: whatever dies, no acknowledged record is lost and none is stored twice.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use broker::auth::ClusterSecret;
use broker::rpc::{Pool, RpcError};
use coordinator::protocol::{
    BatchRequest, CommitFileRequest, CommitFileResponse, FindBatchesPartition, FindBatchesRequest,
    FindBatchesResponse, ListOffsetsPartition, ListOffsetsRequest, ListOffsetsResponse, api_key,
};
use e2e::clients::Library;
use e2e::history::History;
use e2e::node::{Cluster, Node, Plan};
use e2e::s3::S3Server;
use e2e::wire::{Wire, batch, list_offsets, topic_name};
use env::Env;
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{MetadataRequest, ProduceRequest};
use types::{NodeId, ShardId, Timestamp, TopicId, TopicPartition};
use uuid::Uuid;

const COUNT: u64 = 4_000;
const RATE: u64 = 200;

/// Produces and consumes with a group while `fault` happens to the cluster, then judges what all clients saw.
fn under_fault(
    producer: Library,
    consumer: Library,
    plan: Plan,
    fault: impl FnOnce(&mut Cluster) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut cluster = Cluster::start(plan)?;
    let bootstrap = cluster.bootstrap();
    let mut history = History {
        idempotent: true,
        ..History::default()
    };
    let warm_up = producer.produce(&bootstrap, "faulty", 0, 100, 0)?.finish()?;
    history.add_producer(&warm_up, 0, 100);
    let producing = producer.produce(&bootstrap, "faulty", 100, COUNT, RATE)?;
    let consuming = consumer.consume(&bootstrap, "faulty", "readers", COUNT + 100, 30)?;
    std::thread::sleep(Duration::from_secs(4));
    fault(&mut cluster)?;
    history.add_producer(&producing.finish()?, 100, COUNT);
    let live = consuming.finish()?;
    // Every record is delivered: none of them was given up.
    assert_eq!(history.acked.len() as u64, COUNT + 100);
    history.add_consumer(&live);
    let again = Library::FranzGo
        .consume(&bootstrap, "faulty", "afterwards", COUNT + 100, 20)?
        .finish()?;
    history.add_consumer(&again);
    history.assert_clean();
    Ok(())
}

#[test]
fn a_killed_broker_loses_nothing_with_franz_go() -> anyhow::Result<()> {
    under_fault(Library::FranzGo, Library::FranzGo, Plan::default(), |cluster| {
        cluster.brokers[0].kill();
        Ok(())
    })
}

#[test]
fn a_killed_broker_loses_nothing_with_librdkafka() -> anyhow::Result<()> {
    under_fault(Library::Confluent, Library::Java, Plan::default(), |cluster| {
        cluster.brokers[1].kill();
        Ok(())
    })
}

#[test]
fn killed_coordinators_lose_nothing() -> anyhow::Result<()> {
    under_fault(Library::Java, Library::Confluent, Plan::default(), |cluster| {
        for i in 0..cluster.coordinators.len() {
            cluster.coordinators[i].kill();
            std::thread::sleep(Duration::from_secs(4));
            cluster.coordinators[i].start()?;
            cluster.coordinators[i].wait_ready()?;
        }
        Ok(())
    })
}

#[test]
fn killed_nodes_over_s3_lose_nothing() -> anyhow::Result<()> {
    let s3 = S3Server::start()?;
    let plan = Plan {
        store: Some(s3.url("failover")),
        environment: s3.environment(),
        ..Plan::default()
    };
    under_fault(Library::FranzGo, Library::FranzGo, plan, |cluster| {
        cluster.brokers[2].kill();
        std::thread::sleep(Duration::from_secs(2));
        cluster.coordinators[0].kill();
        std::thread::sleep(Duration::from_secs(4));
        cluster.brokers[2].start()?;
        cluster.coordinators[0].start()?;
        cluster.brokers[2].wait_ready()?;
        cluster.coordinators[0].wait_ready()
    })
}

#[test]
fn a_paused_coordinator_that_comes_back_changes_nothing() -> anyhow::Result<()> {
    under_fault(Library::FranzGo, Library::FranzGo, Plan::default(), |cluster| {
        for i in 0..cluster.coordinators.len() {
            cluster.coordinators[i].signal("STOP")?;
            std::thread::sleep(Duration::from_secs(6));
            cluster.coordinators[i].signal("CONT")?;
            std::thread::sleep(Duration::from_secs(2));
        }
        Ok(())
    })
}

#[test]
fn brokers_stopped_one_by_one_hand_over_and_end_with_success() -> anyhow::Result<()> {
    under_fault(Library::Java, Library::FranzGo, Plan::default(), |cluster| {
        for i in 0..cluster.brokers.len() {
            let status = cluster.brokers[i].stop()?;
            assert!(
                status.success(),
                "broker {i} ended with {status}:\n{}",
                cluster.brokers[i].log()
            );
            cluster.brokers[i].start()?;
            cluster.brokers[i].wait_ready()?;
        }
        for i in 0..cluster.coordinators.len() {
            let status = cluster.coordinators[i].stop()?;
            assert!(
                status.success(),
                "coordinator {i} ended with {status}:\n{}",
                cluster.coordinators[i].log()
            );
            cluster.coordinators[i].start()?;
            cluster.coordinators[i].wait_ready()?;
        }
        Ok(())
    })
}

#[test]
fn every_view_and_cache_can_be_deleted() -> anyhow::Result<()> {
    let mut cluster = Cluster::start(Plan::default())?;
    let bootstrap = cluster.bootstrap();
    let mut history = History {
        idempotent: true,
        ..History::default()
    };
    history.add_producer(
        &Library::FranzGo
            .produce(&bootstrap, "kept", 0, 2_000, 0)?
            .finish()?,
        0,
        2_000,
    );
    assert_eq!(history.acked.len(), 2_000);
    for node in cluster.nodes() {
        node.kill();
        node.delete_data()?;
    }
    for node in cluster.nodes() {
        node.start()?;
    }
    for node in cluster.nodes() {
        node.wait_ready()?;
    }
    history.add_consumer(
        &Library::FranzGo
            .consume(&bootstrap, "kept", "after", 2_000, 20)?
            .finish()?,
    );
    history.add_producer(
        &Library::FranzGo
            .produce(&bootstrap, "kept", 2_000, 100, 0)?
            .finish()?,
        2_000,
        100,
    );
    history.reads.clear();
    history.add_consumer(
        &Library::Java
            .consume(&bootstrap, "kept", "later", 2_100, 20)?
            .finish()?,
    );
    history.assert_clean();
    Ok(())
}

const STRICT: &str = "strict";
const SHARD: ShardId = ShardId(0);
/// Longer than any answer takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Asks coordinators as a node of their cluster does.
struct Peer {
    env: Env,
    pool: Pool,
    partition: TopicPartition,
}

impl Peer {
    /// `wire`: to a broker that knows the topic.
    fn new(cluster: &Cluster, wire: &mut Wire) -> anyhow::Result<Peer> {
        let asked = MetadataRequestTopic::default().with_name(Some(topic_name(STRICT)));
        let answer = wire.call(&MetadataRequest::default().with_topics(Some(vec![asked])), 12)?;
        let env = Env::production();
        let secret = ClusterSecret::read(&cluster.dir().join("secret"))?;
        Ok(Peer {
            pool: Pool::new(env.clone(), Arc::new(secret)),
            env,
            partition: TopicPartition {
                topic: TopicId(answer.topics[0].topic_id),
                partition: 0,
            },
        })
    }

    /// The end of the partition; an error code if the node does not say.
    async fn end(&self, node: &Node) -> Result<Result<i64, i16>, RpcError> {
        let request = ListOffsetsRequest {
            shard: SHARD,
            partitions: vec![ListOffsetsPartition {
                partition: self.partition,
                timestamp: -1,
            }],
        };
        let deadline = self.env.instant() + PATIENCE;
        let (address, key) = (node.internal_address(), api_key::LIST_OFFSETS);
        let answer: ListOffsetsResponse = self.pool.call(&address, key, &request, deadline).await?;
        Ok(match answer.error_code {
            0 => Ok(answer.partitions[0].offset),
            code => Err(code),
        })
    }

    /// The error code of the commit of a file that nobody has.
    async fn commit(&self, node: &Node) -> Result<i16, RpcError> {
        let batch = BatchRequest {
            topic: self.partition.topic,
            partition: 0,
            position: 1,
            size: 100,
            last_offset_delta: 0,
            max_timestamp: Timestamp(1),
            log_append_time: false,
            producer_id: -1,
            producer_epoch: -1,
            base_sequence: -1,
            must_follow: false,
        };
        let request = CommitFileRequest {
            shard: SHARD,
            object: Uuid::from_u128(77),
            uploader: NodeId(1000),
            size: 101,
            owners: vec![SHARD],
            batches: vec![batch],
        };
        let deadline = self.env.instant() + PATIENCE;
        let (address, key) = (node.internal_address(), api_key::COMMIT_FILE);
        let answer: CommitFileResponse = self.pool.call(&address, key, &request, deadline).await?;
        Ok(answer.error_code)
    }

    /// Whether the node says that there is no such offset.
    async fn denies(&self, node: &Node, offset: i64) -> Result<bool, RpcError> {
        let request = FindBatchesRequest {
            shard: SHARD,
            partitions: vec![FindBatchesPartition {
                partition: self.partition,
                offset,
                max_bytes: 1 << 20,
            }],
            max_bytes: 1 << 20,
        };
        let deadline = self.env.instant() + PATIENCE;
        let (address, key) = (node.internal_address(), api_key::FIND_BATCHES);
        let answer: FindBatchesResponse = self.pool.call(&address, key, &request, deadline).await?;
        Ok(answer.error_code == 0 && answer.partitions[0].error_code != 0)
    }
}

/// Asks until there is something.
fn until<T>(what: &str, mut ask: impl FnMut() -> anyhow::Result<Option<T>>) -> anyhow::Result<T> {
    let start = Instant::now();
    loop {
        if let Some(found) = ask()? {
            return Ok(found);
        }
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Writes a record, again if nobody says that it is stored.
fn write(wire: &mut Wire) -> anyhow::Result<()> {
    let data = PartitionProduceData::default()
        .with_index(0)
        .with_records(Some(batch(&["x"], 1_700_000_000_000)?));
    let topic = TopicProduceData::default()
        .with_name(topic_name(STRICT))
        .with_partition_data(vec![data]);
    let request = ProduceRequest::default()
        .with_acks(-1)
        .with_timeout_ms(30_000)
        .with_topic_data(vec![topic]);
    until("a record is stored", || {
        let answer = wire.call(&request, 9)?;
        let code = answer.responses[0].partition_responses[0].error_code;
        Ok((code == 0).then_some(()))
    })
}

/// What a broker says of the end; `None` after an error that a client answers with another attempt.
fn end_by(wire: &mut Wire) -> anyhow::Result<Option<i64>> {
    let answer = wire.call(&list_offsets(STRICT, [0], -1), 7)?;
    let found = &answer.topics[0].partitions[0];
    let error = ResponseError::try_from_code(found.error_code);
    assert!(error.is_none_or(|error| error.is_retriable()), "{error:?}");
    Ok(error.is_none().then_some(found.offset))
}

/// The leader of a shard stands still while another takes the shard over and goes on. Requests are waiting for it when it wakes up
/// and knows of nothing: some of a node that talks to it directly, and one of a broker that stood still as long and still takes it for the leader.
#[test]
fn a_paused_leader_answers_nothing_strictly() -> anyhow::Result<()> {
    let cluster = Cluster::start(Plan {
        broker_zones: vec!["a", "b"],
        settings: "[coordinator]\nmetadata_partitions = 1\n".to_owned(),
        ..Plan::default()
    })?;
    let (present, absent) = (&cluster.brokers[0], &cluster.brokers[1]);
    let mut wire = Wire::connect(&present.address())?;
    wire.create_topic(STRICT, 1)?;
    let mut old_wire = Wire::connect(&absent.address())?;
    let runtime = tokio::runtime::Runtime::new()?;
    // Its tasks need the runtime that they are made in.
    let _entered = runtime.enter();
    let peer = Peer::new(&cluster, &mut wire)?;
    for round in 0..3 {
        write(&mut wire)?;
        let before = end_by(&mut wire)?.context("the end")?;
        until("the other broker knows as much", || {
            Ok((end_by(&mut old_wire)? == Some(before)).then_some(()))
        })?;
        let leader = until("somebody leads", || {
            for node in &cluster.coordinators {
                if runtime.block_on(peer.end(node))? == Ok(before) {
                    return Ok(Some(node));
                }
            }
            Ok(None)
        })?;
        leader.signal("STOP")?;
        absent.signal("STOP")?;
        for _ in 0..5 {
            write(&mut wire)?;
        }
        let end = until("the end", || end_by(&mut wire))?;
        assert!(end >= before + 5, "{before} {end}");

        let by_broker = std::thread::scope(|scope| -> anyhow::Result<Option<i64>> {
            let asking = scope.spawn(|| end_by(&mut old_wire));
            let (listed, committed, denied) = runtime.block_on(async {
                let waking = async {
                    // The requests are on their way.
                    peer.env.sleep(Duration::from_millis(500)).await;
                    leader.signal("CONT").and_then(|()| absent.signal("CONT"))
                };
                let (listed, committed, denied, woken) = tokio::join!(
                    peer.end(leader),
                    peer.commit(leader),
                    peer.denies(leader, end),
                    waking
                );
                woken?;
                anyhow::Ok((listed?, committed?, denied?))
            })?;
            assert!(
                listed.is_err() || listed == Ok(end),
                "round {round}: the end is {listed:?}, not {end}"
            );
            assert_ne!(
                committed, 0,
                "round {round}: a deposed leader has committed a file"
            );
            assert!(
                !denied,
                "round {round}: offset {end} is out of range, says a deposed leader"
            );
            asking.join().expect("the thread that asks")
        })?;
        assert!(
            by_broker.is_none_or(|said| said == end),
            "round {round}: {by_broker:?}, not {end}"
        );
        // Both are back, and nothing has changed.
        until("the broker that was away knows the end", || {
            Ok((end_by(&mut old_wire)? == Some(end)).then_some(()))
        })?;
        assert_eq!(until("the end", || end_by(&mut wire))?, end);
    }
    Ok(())
}
