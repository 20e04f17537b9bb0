//! The shards that this node leads: opened and given up as the controller says.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use blob::SharedStore;
use cluster::configs::TopicConfig;
use coordinator::protocol::HandOverFileRequest;
use coordinator::replica::Options;
use coordinator::shard::{
    HandOver, JobOptions, Jobs, RetentionConfig, RetentionOf, ShardOptions, ShardService,
};
use env::{Env, Instant};
use groups::{GroupService, GroupSettings};
use kafka_wire::ResponseError;
use metalog::{MetadataLog, ObjectLog, Owner};
use parking_lot::Mutex;
use types::{ShardId, TopicId};

use crate::metadata::Metadata;
use crate::rpc::Coordinators;

/// A shard that was lost is not opened again before this time: whoever fenced it has the right of way until the
/// controller has learnt of it.
const AFTER_LOSS: Duration = Duration::from_secs(1);
const HAND_OVER: Duration = Duration::from_secs(10);

/// What the host needs from the node.
pub struct Parts {
    /// The outside world.
    pub env: Env,
    /// The bucket: logs and WAL objects.
    pub store: SharedStore,
    /// For the SQLite views.
    pub data_dir: PathBuf,
    /// This process.
    pub owner: Owner,
    /// Topic configurations, for retention.
    pub metadata: Metadata,
    /// Reaches the other owners of files.
    pub coordinators: Coordinators,
    /// Rules of consumer groups.
    pub groups: GroupSettings,
    /// Intervals of the background jobs.
    pub jobs: JobOptions,
}

/// Leads shards.
pub struct CoordinatorHost {
    parts: Parts,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    led: BTreeMap<ShardId, Led>,
    /// When a shard was lost.
    lost: BTreeMap<ShardId, Instant>,
    /// The node ends: nothing is opened any more.
    stopping: bool,
}

/// A shard that is led, or about to be.
#[derive(Clone)]
pub struct Led {
    /// Batches, files, offsets.
    pub shard: ShardService,
    /// The groups it keeps.
    pub groups: Arc<GroupService>,
}

impl CoordinatorHost {
    /// Leads nothing yet.
    pub fn new(parts: Parts) -> Arc<CoordinatorHost> {
        Arc::new(CoordinatorHost {
            parts,
            state: Mutex::default(),
        })
    }

    /// Opens the shards of `lead` that are not open, gives up all others.
    pub fn assign(self: &Arc<Self>, lead: &[ShardId]) {
        let mut state = self.state.lock();
        if state.stopping {
            return;
        }
        let now = self.parts.env.instant();
        state
            .lost
            .retain(|_, at| now.saturating_duration_since(*at) < AFTER_LOSS);
        for id in lead {
            if state.led.contains_key(id) || state.lost.contains_key(id) {
                continue;
            }
            match self.open(*id) {
                Ok(led) => drop(state.led.insert(*id, led)),
                Err(error) => {
                    tracing::error!(shard = %id, %error, "cannot open the shard");
                    state.lost.insert(*id, now);
                }
            }
        }
        let given_up: Vec<ShardId> = state
            .led
            .keys()
            .filter(|id| !lead.contains(id))
            .copied()
            .collect();
        for id in given_up {
            if let Some(led) = state.led.remove(&id) {
                self.parts.env.spawn(async move { led.shard.stop().await });
            }
        }
    }

    /// Shards that are open and serve.
    pub fn leading(&self) -> Vec<ShardId> {
        let state = self.state.lock();
        let serving = state.led.iter().filter(|(_, led)| led.shard.is_leading());
        serving.map(|(id, _)| *id).collect()
    }

    /// A shard that is led here (or about to be: it says so itself).
    pub fn led(&self, id: ShardId) -> Result<Led, ResponseError> {
        self.state
            .lock()
            .led
            .get(&id)
            .cloned()
            .ok_or(ResponseError::NotCoordinator)
    }

    /// Gives everything up; returns when all that was accepted is answered.
    pub async fn stop(&self) {
        let led = {
            let mut state = self.state.lock();
            state.stopping = true;
            std::mem::take(&mut state.led)
        };
        for led in led.into_values() {
            led.shard.stop().await;
        }
    }

    fn open(self: &Arc<Self>, id: ShardId) -> Result<Led, coordinator::replica::StateError> {
        let Parts {
            env,
            store,
            data_dir,
            owner,
            groups,
            ..
        } = &self.parts;
        let log = ObjectLog::new(
            store.clone(),
            &format!("shard-{id}"),
            metalog::Options::default(),
            env.clone(),
        );
        let log: Arc<dyn MetadataLog> = Arc::new(log);
        let options = ShardOptions {
            shard: id,
            data_dir: data_dir.clone(),
            replica: Options::default(),
        };
        let shard = ShardService::start(env, options, log, owner.clone())?;
        let groups = GroupService::start(env, shard.clone(), groups.clone());

        let (runner, jobs) = (shard.clone(), self.jobs());
        env.spawn(async move { runner.run_jobs(&jobs).await });
        let (host, watched) = (self.clone(), shard.clone());
        env.spawn(async move {
            let end = watched.ended().await;
            tracing::info!(shard = %id, ?end, "shard is no longer led here");
            let mut state = host.state.lock();
            // Unless it was given up (and perhaps opened again) meanwhile.
            if state.led.get(&id).is_some_and(|led| led.shard.same_as(&watched)) {
                state.led.remove(&id);
                let now = host.parts.env.instant();
                state.lost.insert(id, now);
            }
        });
        Ok(Led { shard, groups })
    }

    fn jobs(&self) -> Jobs {
        let Parts {
            env,
            store,
            metadata,
            coordinators,
            jobs,
            ..
        } = &self.parts;
        let metadata = metadata.clone();
        let retention: RetentionOf = Arc::new(move |topic: TopicId| {
            let image = metadata.image();
            let config = TopicConfig::of(image.topic_by_id(topic)?);
            // The shard's word for "no limit" is a negative number.
            let limit =
                |limit: Option<u64>| limit.map_or(-1, |limit| i64::try_from(limit).unwrap_or(i64::MAX));
            Some(RetentionConfig {
                retention_ms: limit(config.retention_ms),
                retention_bytes: limit(config.retention_bytes),
            })
        });
        let (env, coordinators) = (env.clone(), coordinators.clone());
        let hand_over: HandOver = Arc::new(move |request: HandOverFileRequest| {
            let (env, coordinators) = (env.clone(), coordinators.clone());
            Box::pin(async move {
                let deadline = env.instant() + HAND_OVER;
                match coordinators.hand_over_file(&request, deadline).await {
                    Ok(answer) => answer.error_code,
                    Err(_) => ResponseError::CoordinatorNotAvailable.code(),
                }
            })
        });
        Jobs {
            store: store.clone(),
            object_key: wal::object_key,
            retention,
            hand_over,
            options: jobs.clone(),
        }
    }
}
