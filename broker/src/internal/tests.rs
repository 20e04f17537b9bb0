//! A coordinator as other nodes find it on its internal listener.

use bytes::{BufMut, BytesMut};
use env::{Env, Simulation};
use futures::future::join_all;
use kafka_protocol::protocol::{Request, StrBytes};
use kafka_wire::client;
use kafka_wire::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_wire::messages::{HeartbeatRequest as GroupHeartbeat, JoinGroupRequest, JoinGroupResponse};
use std::time::Duration;
use types::NodeId;

use super::*;
use crate::auth::ClusterSecret;
use crate::config::Config;
use crate::metadata::{MetadataWriter, metadata};
use crate::rpc::{Coordinators, Destination, Pool, RpcError};
use crate::server::Node;

const SECOND: Duration = Duration::from_secs(1);
const ADDRESS: &str = "server:9190";

/// A cluster of one node, and another that belongs to it.
struct World {
    env: Env,
    pool: Pool,
    coordinators: Coordinators,
    node: Node,
    _image: MetadataWriter,
    _dir: tempfile::TempDir,
}

impl World {
    async fn new() -> World {
        let simulation = Simulation::new(5);
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("secret");
        std::fs::write(&file, "the secret of the cluster").unwrap();
        let mut config = Config::dev(dir.path(), 9092, Some("memory://"));
        (config.internal.host, config.internal.port) = ("server".to_owned(), 9190);
        config.internal.advertised_host = Some("server".to_owned());
        config.internal.secret_file = Some(file.clone());
        let server = simulation.node("server");
        let store: blob::SharedStore = Arc::new(blob::MemoryStore::new(server.clone()));
        let node = Node::start(server, config, store).await.unwrap();
        let env = simulation.node("test");
        env.timeout(60 * SECOND, node.ready()).await.unwrap();
        let pool = Pool::new(env.clone(), Arc::new(ClusterSecret::read(&file).unwrap()));
        let request = DescribeClusterRequest { node: NodeId(9) };
        let deadline = env.instant() + SECOND;
        let cluster: DescribeClusterResponse = pool
            .call(ADDRESS, api_key::DESCRIBE_CLUSTER, &request, deadline)
            .await
            .unwrap();
        let (image, metadata) = metadata();
        image.update(cluster.image.unwrap());
        World {
            coordinators: Coordinators::new(env.clone(), metadata, pool.clone()),
            env,
            pool,
            node,
            _image: image,
            _dir: dir,
        }
    }

    /// Passes a client's request on to the first shard.
    async fn forward<R: Request>(
        &self,
        request: &R,
        version: i16,
        time: Duration,
    ) -> Result<R::Response, RpcError> {
        let frame = client::encode(request, version, 7, "test").unwrap().slice(4..);
        let (to, deadline) = (Destination::Shard(ShardId(0)), self.env.instant() + time);
        let answer = self
            .coordinators
            .forward(to, "/10.0.0.1", frame, None, deadline)
            .await?;
        Ok(client::decode::<R>(answer, version).unwrap().1)
    }

    async fn join(&self, member: &str) -> JoinGroupResponse {
        let text = |text: &str| StrBytes::from_string(text.to_owned());
        let protocol = JoinGroupRequestProtocol::default().with_name(text("range"));
        let request = JoinGroupRequest::default()
            .with_group_id(text("many").into())
            .with_member_id(text(member))
            .with_session_timeout_ms(60_000)
            .with_rebalance_timeout_ms(60_000)
            .with_protocol_type(text("consumer"))
            .with_protocols(vec![protocol]);
        // The last version in which a new member is taken in at once.
        self.forward(&request, 3, 70 * SECOND).await.unwrap()
    }
}

/// A body as it is.
struct Body(&'static [u8]);

impl Encode for Body {
    fn encode(&self, out: &mut BytesMut) {
        out.put_slice(self.0);
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_understood_costs_other_requests_nothing() {
    let world = World::new().await;
    let connections = || world.node.metrics().internal_connections.get();
    let tail = async {
        let request = TailRequest {
            shard: ShardId(0),
            from: LogOffset(u64::MAX),
            max_wait_ms: 0,
        };
        let deadline = world.env.instant() + 60 * SECOND;
        let now = world.coordinators.tail(&request, deadline).await.unwrap();
        let request = TailRequest {
            from: now.next,
            max_wait_ms: 10_000,
            ..request
        };
        world.coordinators.tail(&request, deadline).await.unwrap()
    };
    let nonsense = async {
        world.env.sleep(SECOND).await;
        let before = connections();
        let unknown = [0, 18, 7000, 7050];
        for key in (7001..=7010)
            .chain([7020, 7021, 7022, 7030, 7031, 7040])
            .chain(unknown)
        {
            for body in [&[][..], &[0xff; 7]] {
                let deadline = world.env.instant() + SECOND;
                let answer: Result<ErrorResponse, _> =
                    world.pool.call(ADDRESS, key, &Body(body), deadline).await;
                let expected = if unknown.contains(&key) { 35 } else { 42 };
                assert_eq!(answer.unwrap().error_code, expected, "{key} {body:?}");
            }
        }
        assert_eq!(connections(), before);
    };
    let (tail, ()) = tokio::join!(tail, nonsense);
    assert_eq!(tail.error_code, 0);
}

/// More than may be worked on at a time.
#[tokio::test(start_paused = true)]
async fn a_group_of_thousands_behind_one_broker_comes_together_and_holds_nobody_up() {
    const OTHERS: usize = 4_200;
    let world = World::new().await;
    let first = world.join("").await;
    assert_eq!(first.error_code, 0);
    let others = join_all((0..OTHERS).map(|_| world.join("")));
    let rest = async {
        world.env.sleep(5 * SECOND).await;
        let beat = GroupHeartbeat::default()
            .with_group_id(StrBytes::from_static_str("many").into())
            .with_member_id(first.member_id.clone())
            .with_generation_id(first.generation_id);
        let beat = world.forward(&beat, 3, 2 * SECOND).await.unwrap();
        assert_eq!(beat.error_code, ResponseError::RebalanceInProgress.code());
        // The last one that is waited for.
        world.join(&first.member_id).await
    };
    let (others, leader) = tokio::join!(others, rest);
    assert_eq!((leader.error_code, leader.members.len()), (0, OTHERS + 1));
    for other in others {
        assert_eq!((other.error_code, other.generation_id), (0, leader.generation_id));
    }
}
