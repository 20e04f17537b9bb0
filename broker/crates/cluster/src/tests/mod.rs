mod admin;
mod controller;
mod earlier_releases;
mod features;
mod picture;
mod sagas;
mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use blob::{MemoryStore, SharedStore};
use coordinator::protocol::{CreatePartitionsRequest, DeleteTopicsRequest};
use env::{Env, JoinHandle};
use kafka_wire::StrBytes;
use kafka_wire::messages::TopicName;
use kafka_wire::messages::create_topics_request::{CreatableTopic, CreateTopicsRequest};
use kafka_wire::messages::create_topics_response::CreateTopicsResponse;
use metalog::{MetadataLog, ObjectLog, Owner};
use parking_lot::Mutex;
use types::{FeatureLevels, NodeId, ShardId, TopicId};
use uuid::Uuid;

use crate::image::{ImageRecord, Shard};
use crate::protocol::HeartbeatRequest;
use crate::{ControllerService, RpcError, Settings, ShardRpc};

fn owner(id: i32) -> Owner {
    Owner {
        node_id: id,
        incarnation: Uuid::from_u128(1),
        address: format!("node-{id}:9190"),
    }
}

/// What a node that has both roles says first.
fn node(id: i32, zone: &str) -> HeartbeatRequest {
    HeartbeatRequest {
        node: NodeId(id),
        incarnation: Uuid::from_u128(u128::from(id.unsigned_abs())),
        zone: zone.to_owned(),
        broker: true,
        coordinator: true,
        internal: format!("node-{id}:9190"),
        host: format!("node-{id}"),
        port: 9092,
        zone_ports: Vec::new(),
        draining: false,
        leaving: false,
        leading: Vec::new(),
        following: Vec::new(),
        failing: Vec::new(),
        sequence: 0,
        controller_epoch: 0,
        version: 0,
        max_wait_ms: 500,
        supported: Some(FeatureLevels::SUPPORTED),
        serves_objects: None,
        reads_changes: None,
    }
}

fn name(name: &str) -> TopicName {
    TopicName(StrBytes::from_string(name.to_owned()))
}

/// What becomes of a call to a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It is lost on the way, and nobody is told.
    LostRequest,
    /// It is done, but the answer is lost.
    LostAnswer,
    /// It is refused.
    Refused,
}

/// Shards that keep no more than which partitions are bound to them.
#[derive(Default)]
struct Shards {
    bound: Mutex<BTreeSet<(ShardId, TopicId, i32)>>,
    /// Names whose group offsets were deleted.
    offsets_deleted: Mutex<BTreeSet<(ShardId, String)>>,
    calls: Mutex<usize>,
    /// By number of the call, from 0.
    fates: Mutex<BTreeMap<usize, Fate>>,
    /// Of all other calls that create.
    creations: Mutex<Option<Fate>>,
    /// Of all other calls that delete.
    deletions: Mutex<Option<Fate>>,
}

impl Shards {
    async fn call(&self, otherwise: Option<Fate>, work: impl FnOnce()) -> Result<(), RpcError> {
        let call = {
            let mut calls = self.calls.lock();
            *calls += 1;
            *calls - 1
        };
        let fate = self.fates.lock().get(&call).copied();
        let fate = fate.or(otherwise);
        match fate {
            Some(Fate::LostRequest) => std::future::pending().await,
            Some(Fate::Refused) => Err(RpcError("refused".to_owned())),
            Some(Fate::LostAnswer) => {
                work();
                std::future::pending().await
            }
            None => {
                work();
                Ok(())
            }
        }
    }

    fn of(&self, topic: TopicId) -> BTreeSet<i32> {
        self.bound
            .lock()
            .iter()
            .filter(|(_, id, _)| *id == topic)
            .map(|(_, _, partition)| *partition)
            .collect()
    }
}

#[async_trait]
impl ShardRpc for Shards {
    async fn create_partitions(
        &self,
        leader: &Shard,
        request: CreatePartitionsRequest,
    ) -> Result<(), RpcError> {
        assert_eq!(leader.id, request.shard);
        let fate = *self.creations.lock();
        self.call(fate, || {
            let mut bound = self.bound.lock();
            bound.extend(
                request
                    .partitions
                    .iter()
                    .map(|partition| (request.shard, request.topic, *partition)),
            );
        })
        .await
    }

    async fn delete_topics(&self, leader: &Shard, request: DeleteTopicsRequest) -> Result<(), RpcError> {
        assert_eq!(leader.id, request.shard);
        let fate = *self.deletions.lock();
        self.call(fate, || {
            for topic in request.topics {
                self.bound
                    .lock()
                    .retain(|(shard, id, _)| (*shard, *id) != (request.shard, topic.topic));
                self.offsets_deleted.lock().insert((request.shard, topic.name));
            }
        })
        .await
    }
}

/// A bucket, shards, and what runs over them.
struct Lab {
    env: Env,
    store: SharedStore,
    shards: Arc<Shards>,
    nodes: Vec<JoinHandle<()>>,
}

impl Lab {
    fn new() -> Lab {
        let env = Env::simulated(7);
        let store: SharedStore = Arc::new(MemoryStore::new(env.clone()));
        Lab {
            env,
            store,
            shards: Arc::default(),
            nodes: Vec::new(),
        }
    }

    /// A new controller on node `id`; one before it is fenced.
    async fn controller(&self, id: i32) -> Arc<ControllerService> {
        let options = metalog::Options::default();
        let log: Arc<dyn MetadataLog> = Arc::new(ObjectLog::new(
            self.store.clone(),
            "cluster",
            options,
            self.env.clone(),
        ));
        let shards = self.shards.clone();
        ControllerService::open(&self.env, log, owner(id), shards, Settings::default(), None)
            .await
            .unwrap()
    }

    /// Ends the nodes and starts others that follow `controller`.
    async fn nodes(&mut self, controller: &Arc<ControllerService>, zones: &[&str]) {
        for node in self.nodes.drain(..) {
            node.abort();
        }
        for (id, zone) in (0..).zip(zones) {
            let (controller, env) = (controller.clone(), self.env.clone());
            let mut said = node(id, zone);
            self.nodes.push(self.env.spawn(async move {
                loop {
                    let answer = controller.heartbeat(&said, std::future::pending()).await;
                    if answer.error_code != 0 {
                        return;
                    }
                    said.leading = answer.lead;
                    let changes = answer.changes.map(|changes| changes.picture);
                    if let Some(image) = answer.image.or(changes) {
                        (said.controller_epoch, said.version) = (image.controller_epoch, image.version);
                    }
                    env.sleep(Duration::from_millis(1)).await;
                }
            }));
        }
        // All shards have a leader before anything is asked of them.
        self.until(|| {
            let image = controller.image();
            image.is_some_and(|image| image.shards.iter().all(|shard| shard.leader.0 >= 0))
        })
        .await;
    }

    async fn until(&self, mut done: impl FnMut() -> bool) {
        for _ in 0..10_000 {
            if done() {
                return;
            }
            self.env.sleep(Duration::from_millis(10)).await;
        }
        panic!("it does not come true");
    }
}

fn creatable(topic: &str, partitions: i32) -> CreatableTopic {
    CreatableTopic::default()
        .with_name(name(topic))
        .with_num_partitions(partitions)
        .with_replication_factor(-1)
}

async fn create(controller: &ControllerService, topics: Vec<CreatableTopic>) -> CreateTopicsResponse {
    let request = CreateTopicsRequest::default()
        .with_topics(topics)
        .with_timeout_ms(30_000);
    controller.create_topics(&request).await.unwrap()
}

fn visible(controller: &ControllerService, topic: &str) -> Option<Arc<crate::image::Topic>> {
    let image: Arc<ImageRecord> = controller.image()?;
    image.topics.iter().find(|found| found.name == topic).cloned()
}
