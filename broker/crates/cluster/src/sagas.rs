//! What the controller has to do on the shards: bind the partitions of new topics, forget deleted ones.
//!
//! The log `cluster` holds the intent, so this can stop and start anywhere: every step is repeated until the shard has
//! answered, on this controller or the next, and repeating it changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use coordinator::protocol::{CreatePartitionsRequest, DeleteTopic, DeleteTopicsRequest};
use futures::future::try_join_all;
use futures::stream::{FuturesUnordered, StreamExt};
use types::{ShardId, TopicId};

use crate::image::Shard;
use crate::service::ControllerService;
use crate::state::{Command, Metadata, TopicRecord};

/// Topics that are created at the same time, and deleted. A deletion needs all shards that keep groups, a creation its own ones only: it
/// does not wait for deletions that cannot go on.
const AT_ONCE: usize = 64;
const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_secs(1);

/// How the controller reaches the leaders of shards. An error says what went wrong; the call is repeated.
#[async_trait]
pub trait ShardRpc: Send + Sync {
    /// `DisklessCreatePartitions` to `leader`, bounded in time.
    async fn create_partitions(
        &self,
        leader: &Shard,
        request: CreatePartitionsRequest,
    ) -> Result<(), RpcError>;
    /// `DisklessDeleteTopics` to `leader`, bounded in time.
    async fn delete_topics(&self, leader: &Shard, request: DeleteTopicsRequest) -> Result<(), RpcError>;
}

/// Why a shard did not do what it was asked: unreachable, not the leader, an error code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RpcError(pub String);

fn unfinished(topic: &TopicRecord) -> bool {
    topic.deleting || (topic.ready as usize) < topic.partitions.len()
}

/// Finishes whatever is unfinished, until the controller is deposed.
pub(crate) async fn run(service: Arc<ControllerService>) {
    let mut metadata = service.metadata_changes();
    let (mut creations, mut deletions) = (FuturesUnordered::new(), FuturesUnordered::new());
    let mut topics = BTreeSet::new();
    if env::mutation("forget-sagas") {
        let begun = metadata.borrow().clone();
        let begun = begun.topics.iter().filter(|(_, topic)| unfinished(topic));
        topics.extend(begun.map(|(id, _)| *id));
    }
    loop {
        let now = metadata.borrow_and_update().clone();
        let old = now.topics.values().filter(|topic| topic.deleting);
        let old: BTreeSet<&str> = old.map(|topic| topic.name.as_str()).collect();
        // Offsets of groups are kept by name: a new topic must not inherit those of one that still has them. It waits here and not in a
        // place of its own, which the deletion that it waits for could be in need of.
        let ready = |topic: &TopicRecord| topic.deleting || !old.contains(topic.name.as_str());
        for (id, topic) in now.topics.iter().filter(|(_, topic)| unfinished(topic)) {
            let running = match topic.deleting {
                true => &mut deletions,
                false => &mut creations,
            };
            if running.len() < AT_ONCE && ready(topic) && topics.insert(*id) {
                running.push(finish(service.clone(), *id, topic.deleting));
            }
        }
        tokio::select! {
            biased;
            // The state is gone together with the replica.
            changed = metadata.changed() => if changed.is_err() { return },
            Some(id) = creations.next() => drop(topics.remove(&id)),
            Some(id) = deletions.next() => drop(topics.remove(&id)),
        }
    }
}

/// Works on one topic until nothing is left to do, or it is deleted meanwhile: that is another kind of work.
async fn finish(service: Arc<ControllerService>, id: TopicId, deleting: bool) -> TopicId {
    let mut retry = FIRST_RETRY;
    loop {
        let metadata = service.metadata();
        let topic = metadata.topics.get(&id);
        let Some(topic) = topic.filter(|topic| unfinished(topic) && topic.deleting == deleting) else {
            return id;
        };
        let step = match deleting {
            true => delete(&service, &metadata, topic).await,
            false => create(&service, topic).await,
        };
        match step {
            // Only the log says what is done. Without an answer, whoever leads it next goes on from what it holds.
            Ok(done) => match service.submit(done).await {
                Ok(_) => retry = FIRST_RETRY,
                Err(_) => return id,
            },
            Err(error) => {
                tracing::warn!(topic = topic.name, deleting, %error, "a shard has not answered; trying again");
                service.env().sleep(service.env().jittered(retry)).await;
                retry = (retry * 2).min(LAST_RETRY);
            }
        }
    }
}

async fn create(service: &ControllerService, topic: &TopicRecord) -> Result<Command, RpcError> {
    let mut by_shard: BTreeMap<ShardId, Vec<i32>> = BTreeMap::new();
    for (index, shard) in (0i32..).zip(&topic.partitions).skip(topic.ready as usize) {
        by_shard.entry(*shard).or_default().push(index);
    }
    try_join_all(by_shard.into_iter().map(async |(shard, partitions)| {
        let request = CreatePartitionsRequest {
            shard,
            topic: topic.id,
            name: topic.name.clone(),
            partitions,
        };
        service
            .rpc()
            .create_partitions(&leader(service, shard)?, request)
            .await
    }))
    .await?;
    Ok(Command::TopicReady {
        id: topic.id,
        ready: u32::try_from(topic.partitions.len()).unwrap_or(u32::MAX),
    })
}

async fn delete(
    service: &ControllerService,
    metadata: &Metadata,
    topic: &TopicRecord,
) -> Result<Command, RpcError> {
    // A broker that still shows the topic would take commits of its offsets after they are gone.
    service.spread(service.env().instant() + LAST_RETRY).await;
    let groups = (0..metadata.group_shards).map(ShardId);
    let shards: BTreeSet<ShardId> = topic.partitions.iter().copied().chain(groups).collect();
    try_join_all(shards.into_iter().map(async |shard| {
        let topics = vec![DeleteTopic {
            topic: topic.id,
            name: topic.name.clone(),
        }];
        service
            .rpc()
            .delete_topics(&leader(service, shard)?, DeleteTopicsRequest { shard, topics })
            .await
    }))
    .await?;
    Ok(Command::TopicDeleted(topic.id))
}

fn leader(service: &ControllerService, shard: ShardId) -> Result<Shard, RpcError> {
    let shard = service.shard(shard);
    if shard.leader.0 < 0 {
        return Err(RpcError(format!("shard {} has no leader", shard.id)));
    }
    Ok(shard)
}
