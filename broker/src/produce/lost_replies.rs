//! Commits whose answers get lost between the processes: the file is asked for again, under the same name.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use blob::{MemoryStore, SharedStore};
use bytes::Bytes;
use cache::ObjectCache;
use cluster::image::{ImageRecord, Shard};
use coordinator::protocol::{BatchResult, CommitFileRequest, CommitFileResponse, api_key};
use env::{SimNet, Simulation};
use kafka_wire::flex::{Decode, Encode};
use kafka_wire::rope::Rope;
use kafka_wire::{ResponseError, batch};
use parking_lot::Mutex;
use types::{NodeId, ShardId, Timestamp, TopicId, TopicPartition};
use uuid::Uuid;

use super::testing::sequenced;
use super::{Append, Outcome, Producer};
use crate::auth::ClusterSecret;
use crate::config;
use crate::metadata::metadata;
use crate::metrics::Metrics;
use crate::rpc::{Caller, Coordinators, Handler, Pool, serve};

const SECOND: Duration = Duration::from_secs(1);
const SHARD: ShardId = ShardId(1);

/// Takes every commit and loses the first answers: the connection ends instead.
struct Shards {
    net: SimNet,
    lost: Mutex<u32>,
    objects: Mutex<Vec<Uuid>>,
}

#[async_trait]
impl Handler for Shards {
    async fn handle(&self, key: i16, mut body: Bytes, _: &Caller) -> Result<Rope, ResponseError> {
        assert_eq!(key, api_key::COMMIT_FILE);
        let request = CommitFileRequest::decode(&mut body).unwrap();
        self.objects.lock().push(request.object);
        let mut lost = self.lost.lock();
        if *lost > 0 {
            *lost -= 1;
            self.net.reset("test");
            return Err(ResponseError::UnknownServerError);
        }
        let result = BatchResult {
            error_code: 0,
            base_offset: 7,
            log_append_time: Timestamp(-1),
            log_start_offset: 0,
            duplicate: false,
        };
        let answer = CommitFileResponse {
            error_code: 0,
            batches: vec![result],
        };
        Ok(answer.to_bytes().into())
    }
}

/// Produces one batch to a shard that loses so many answers.
async fn produce(lost: u32, timeout: Duration) -> (Vec<Outcome>, Vec<Uuid>, Vec<String>) {
    let simulation = Simulation::new(3);
    let env = simulation.node("test");
    let secret = Arc::new(ClusterSecret::random(&env));
    let shards = Arc::new(Shards {
        net: simulation.net().clone(),
        lost: Mutex::new(lost),
        objects: Mutex::default(),
    });
    let listener = env.listen("test:9190").await.unwrap();
    let metrics = Arc::new(Metrics::default());
    let served = serve(env.clone(), listener, shards.clone(), secret.clone(), metrics);
    env.spawn(served);
    let (writer, metadata) = metadata();
    writer.update(ImageRecord {
        version: 1,
        controller_epoch: 1,
        cluster_id: "c".to_owned(),
        controller: NodeId(1),
        controller_address: String::new(),
        brokers: Vec::new(),
        topics: Vec::new(),
        shards: vec![
            Shard {
                id: ShardId(0),
                leader: NodeId(-1),
                address: String::new(),
                follower: String::new(),
            },
            Shard {
                id: SHARD,
                leader: NodeId(1),
                address: "test:9190".to_owned(),
                follower: String::new(),
            },
        ],
        group_shards: 1,
        feature_level: None,
        default_partitions: None,
    });
    let pool = Pool::new(env.clone(), secret);
    let coordinators = Coordinators::new(env.clone(), metadata, pool);
    let store: SharedStore = Arc::new(MemoryStore::new(env.clone()));
    let producer = Producer::start(
        env.clone(),
        NodeId(7),
        &config::Produce::default(),
        store.clone(),
        Arc::new(ObjectCache::new(store.clone(), 1 << 20)),
        coordinators,
        Arc::new(Metrics::default()),
    );
    let bytes = sequenced(9, 0, 1, 1000);
    let append = Append {
        partition: TopicPartition {
            topic: TopicId(Uuid::from_u128(1)),
            partition: 0,
        },
        shard: SHARD,
        header: batch::validate(&bytes).unwrap(),
        batch: bytes,
        log_append_time: false,
    };
    let outcomes = producer.append(vec![append], timeout, None).await;
    env.sleep(600 * SECOND).await;
    let stored = store.list(wal::PREFIX, None, 10).await.unwrap();
    let keys = stored.into_iter().map(|object| object.key).collect();
    let objects = shards.objects.lock().clone();
    (outcomes, objects, keys)
}

#[tokio::test(start_paused = true)]
async fn a_commit_is_asked_for_again_by_the_same_object_until_it_is_answered() {
    let (outcomes, objects, keys) = produce(3, 30 * SECOND).await;
    assert_eq!((outcomes[0].error_code, outcomes[0].base_offset), (0, 7));
    assert_eq!(objects.len(), 4);
    assert!(objects.iter().all(|object| *object == objects[0]));
    assert_eq!(keys, [wal::object_key(objects[0])]);
}

#[tokio::test(start_paused = true)]
async fn an_object_whose_commit_was_never_answered_is_kept() {
    let (outcomes, objects, keys) = produce(u32::MAX, 5 * SECOND).await;
    assert_eq!(outcomes[0].error_code, ResponseError::RequestTimedOut.code());
    assert!(objects.len() > 1 && objects.iter().all(|object| *object == objects[0]));
    assert_eq!(keys, [wal::object_key(objects[0])]);
}
