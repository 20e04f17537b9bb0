//! Who is asked while leaders change, freeze or fall silent.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use blob::{MemoryStore, SharedStore};
use cluster::image::{ImageRecord, Shard};
use cluster::protocol::{DescribeClusterRequest, DescribeClusterResponse};
use coordinator::protocol::{BatchRequest, CreatePartitionsRequest, FindBatchesPartition, TailUpdate};
use env::Simulation;
use kafka_wire::rope::Rope;
use types::{LogOffset, Timestamp, TopicId, TopicPartition};
use uuid::Uuid;

use super::*;
use crate::auth::ClusterSecret;
use crate::config::Config;
use crate::metadata::{MetadataWriter, metadata};
use crate::metrics::Metrics;
use crate::rpc::{Caller, Handler, read_request, serve};
use crate::server::Node;

const SECOND: Duration = Duration::from_secs(1);
const SHARD: ShardId = ShardId(0);

/// A node that answers, or is frozen.
struct Leader {
    frozen: bool,
    asked: AtomicUsize,
    /// Requests whose callers have given up.
    let_go: AtomicUsize,
}

#[async_trait]
impl Handler for Leader {
    async fn handle(&self, key: i16, body: Bytes, caller: &Caller) -> Result<Rope, ResponseError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if self.frozen {
            caller.gone.cancelled().await;
            self.let_go.fetch_add(1, Ordering::Relaxed);
        }
        let answer = match key {
            api_key::FORWARD => ForwardResponse {
                error_code: 0,
                response: Bytes::from_static(b"done"),
            }
            .to_bytes(),
            api_key::TAIL => {
                let request: TailRequest = read_request(body)?;
                let news = TailUpdate {
                    partition: partition(),
                    log_start_offset: 0,
                    high_watermark: 5,
                    deleted: false,
                    batches: Vec::new(),
                };
                TailResponse {
                    error_code: 0,
                    reset: false,
                    next: LogOffset(1),
                    partitions: vec![news; usize::from(request.from == LogOffset(0))],
                    file_grace_ms: None,
                }
                .to_bytes()
            }
            _ => ErrorResponse { error_code: 0 }.to_bytes(),
        };
        Ok(answer.into())
    }
}

fn partition() -> TopicPartition {
    TopicPartition {
        topic: TopicId(Uuid::from_u128(1)),
        partition: 0,
    }
}

fn image(version: u64, leader: &str) -> ImageRecord {
    ImageRecord {
        version,
        controller_epoch: 1,
        controller_address: leader.to_owned(),
        shards: vec![Shard {
            id: SHARD,
            leader: NodeId(1),
            address: leader.to_owned(),
            follower: String::new(),
        }],
        ..metadata().1.image().record().clone()
    }
}

/// Two nodes, of which one is frozen and leads, and who calls.
struct World {
    env: Env,
    coordinators: Coordinators,
    image: MetadataWriter,
    old: Arc<Leader>,
    new: Arc<Leader>,
}

impl World {
    async fn new() -> World {
        let simulation = Simulation::new(2);
        let env = simulation.node("test");
        let secret = Arc::new(ClusterSecret::random(&env));
        let mut leaders = Vec::new();
        for (host, frozen) in [("old", true), ("new", false)] {
            let leader = Arc::new(Leader {
                frozen,
                asked: AtomicUsize::new(0),
                let_go: AtomicUsize::new(0),
            });
            let env = simulation.node(host);
            let listener = env.listen(&format!("{host}:9190")).await.unwrap();
            let metrics = Arc::new(Metrics::default());
            env.spawn(serve(
                env.clone(),
                listener,
                leader.clone(),
                secret.clone(),
                metrics,
            ));
            leaders.push(leader);
        }
        let (writer, metadata) = metadata();
        writer.update(image(1, "old:9190"));
        World {
            coordinators: Coordinators::new(env.clone(), metadata, Pool::new(env.clone(), secret)),
            env,
            image: writer,
            new: leaders.pop().unwrap(),
            old: leaders.pop().unwrap(),
        }
    }

    /// Passes a request with this key on; after a second another leader is named. Gives the answer and when it came.
    async fn forward(&self, to: Destination, key: ApiKey) -> (Result<Bytes, RpcError>, Duration) {
        let begun = self.env.instant();
        let mut frame = (key as i16).to_be_bytes().to_vec();
        frame.extend([0; 8]);
        let forward = self
            .coordinators
            .forward(to, "", frame.into(), None, begun + 60 * SECOND);
        let news = async {
            self.env.sleep(SECOND).await;
            // News that name the same leader change nothing.
            self.image.update(image(2, "old:9190"));
            self.env.sleep(SECOND).await;
            assert_eq!(self.old.asked.load(Ordering::Relaxed), 1, "{key:?}");
            self.image.update(image(3, "new:9190"));
        };
        let (answer, ()) = tokio::join!(forward, news);
        (answer, self.env.instant() - begun)
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_owner_is_asked_as_soon_as_it_is_named() {
    for key in [
        ApiKey::JoinGroup,
        ApiKey::SyncGroup,
        ApiKey::Heartbeat,
        ApiKey::OffsetCommit,
        ApiKey::OffsetFetch,
        ApiKey::OffsetDelete,
        ApiKey::DescribeGroups,
        ApiKey::ListGroups,
    ] {
        let world = World::new().await;
        let (answer, took) = world.forward(Destination::Shard(SHARD), key).await;
        assert_eq!(answer.unwrap(), "done", "{key:?}");
        assert!(took < 3 * SECOND, "{key:?} {took:?}");
        world.env.sleep(SECOND).await;
        if matches!(key, ApiKey::JoinGroup | ApiKey::SyncGroup) {
            assert_eq!(
                world.old.let_go.load(Ordering::Relaxed),
                1,
                "{key:?}: who waits is let go"
            );
        }
    }
    let world = World::new().await;
    let request = HandOverFileRequest {
        shard: SHARD,
        object: Uuid::from_u128(1),
        size: 1,
        owners: vec![SHARD],
    };
    let deadline = world.env.instant() + 4 * SECOND;
    let handed_over = world.coordinators.hand_over_file(&request, deadline);
    let news = async {
        world.env.sleep(SECOND).await;
        world.image.update(image(2, "new:9190"));
    };
    let (handed_over, ()) = tokio::join!(handed_over, news);
    assert_eq!(handed_over.unwrap().error_code, 0);
}

/// Made twice, it fails the second time, because the first one was done.
#[tokio::test(start_paused = true)]
async fn what_must_not_be_done_twice_stays_where_it_is() {
    for (to, key) in [
        (Destination::Shard(SHARD), ApiKey::LeaveGroup),
        (Destination::Shard(SHARD), ApiKey::DeleteGroups),
        (Destination::Controller, ApiKey::CreateTopics),
        (Destination::Controller, ApiKey::DeleteTopics),
        (Destination::Controller, ApiKey::CreatePartitions),
        (Destination::Controller, ApiKey::IncrementalAlterConfigs),
    ] {
        let world = World::new().await;
        let (answer, _) = world.forward(to, key).await;
        assert!(matches!(answer, Err(RpcError::TimedOut)), "{key:?} {answer:?}");
        let asked = [&world.old, &world.new].map(|leader| leader.asked.load(Ordering::Relaxed));
        assert_eq!(asked, [1, 0], "{key:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_seen_of_topics_that_are_gone_is_forgotten() {
    let world = World::new().await;
    world.image.update(image(2, "new:9190"));
    let tail = async |from| {
        let request = TailRequest {
            shard: SHARD,
            from: LogOffset(from),
            max_wait_ms: 0,
        };
        let deadline = world.env.instant() + SECOND;
        world.coordinators.tail(&request, deadline).await.unwrap();
        world.coordinators.seen.len()
    };
    assert_eq!(tail(0).await, 1);
    world.env.sleep(120 * SECOND).await;
    // No leader says that it is gone.
    assert_eq!(tail(1).await, 0);
}

/// Two coordinators, and a broker's view of them.
async fn coordinators(
    simulation: &Simulation,
    dir: &std::path::Path,
) -> (Vec<Node>, Coordinators, MetadataWriter) {
    let env = simulation.node("test");
    let file = dir.join("secret");
    std::fs::write(&file, "the secret of the cluster").unwrap();
    let store: SharedStore = Arc::new(MemoryStore::new(env.clone()));
    let mut nodes = Vec::new();
    for (id, host) in [(0, "c0"), (1, "c1")] {
        let config = Config::coordinator(&dir.join(host), host, id, &file);
        let node = Node::start(simulation.node(host), config, store.clone())
            .await
            .unwrap();
        env.timeout(60 * SECOND, node.ready()).await.unwrap();
        nodes.push(node);
    }
    let pool = Pool::new(env.clone(), Arc::new(ClusterSecret::read(&file).unwrap()));
    let (writer, metadata) = metadata();
    let ready = |shard: &Shard| !shard.address.is_empty() && !shard.follower.is_empty();
    let limit = env.instant() + 120 * SECOND;
    loop {
        assert!(env.instant() < limit, "no follower: {:?}", metadata.image());
        let request = DescribeClusterRequest { node: NodeId(9) };
        let until = env.instant() + SECOND;
        let cluster: DescribeClusterResponse = pool
            .call("c0:9190", api_key::DESCRIBE_CLUSTER, &request, until)
            .await
            .unwrap();
        cluster.image.into_iter().for_each(|image| writer.update(image));
        if metadata.image().shard(SHARD).is_some_and(ready) {
            break;
        }
        env.sleep(SECOND).await;
    }
    (nodes, Coordinators::new(env, metadata, pool), writer)
}

#[tokio::test(start_paused = true)]
async fn a_follower_finds_batches_while_the_leader_is_silent() {
    let simulation = Simulation::new(4);
    let dir = tempfile::tempdir().unwrap();
    let (_nodes, coordinators, _image) = coordinators(&simulation, dir.path()).await;
    let env = coordinators.env.clone();
    let deadline = || env.instant() + 5 * SECOND;
    let image = coordinators.metadata.image();
    let shard = image.shard(SHARD).unwrap().clone();
    let bind = CreatePartitionsRequest {
        shard: SHARD,
        topic: partition().topic,
        name: "events".to_owned(),
        partitions: vec![0],
    };
    let bound: ErrorResponse = coordinators
        .ask(SHARD, api_key::CREATE_PARTITIONS, &bind, deadline())
        .await
        .unwrap();
    assert_eq!(bound.error_code, 0);
    let file = CommitFileRequest {
        shard: SHARD,
        object: Uuid::from_u128(77),
        uploader: NodeId(9),
        size: 100,
        owners: vec![SHARD],
        batches: vec![BatchRequest {
            topic: partition().topic,
            partition: 0,
            position: 1,
            size: 90,
            last_offset_delta: 4,
            max_timestamp: Timestamp(1),
            log_append_time: false,
            producer_id: -1,
            producer_epoch: -1,
            base_sequence: -1,
            must_follow: false,
        }],
    };
    let committed = coordinators.commit_file(&file, deadline()).await.unwrap();
    assert_eq!(committed.batches[0].error_code, 0);
    let request = FindBatchesRequest {
        shard: SHARD,
        partitions: vec![FindBatchesPartition {
            partition: partition(),
            offset: 0,
            max_bytes: 1000,
        }],
        max_bytes: 1000,
    };
    let led = coordinators.find_batches(&request, deadline()).await.unwrap();

    let leader = shard.address.split(':').next().unwrap();
    simulation.net().cut("test", leader);
    simulation.net().cut(leader, "test");
    let found = coordinators.find_batches(&request, deadline()).await.unwrap();
    assert_eq!(found.partitions, led.partitions);
    assert_eq!(found.partitions[0].high_watermark, 5);
    assert_eq!(found.partitions[0].batches[0].object, file.object);
}
