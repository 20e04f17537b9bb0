//! The shards that this node leads and follows: opened and given up as the controller says.

mod load;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use blob::SharedStore;
use cluster::configs::TopicConfig;
use coordinator::protocol::{DescribeFilesRequest, DescribeFilesResponse, HandOverFileRequest};
use coordinator::replica::{End, StateError, Status};
use coordinator::shard::{
    DescribeFiles, Features, HandOver, Jobs, RetentionConfig, RetentionOf, ShardOptions, ShardService,
    delete_view, views,
};
use env::{Env, Instant};
use groups::{GroupService, GroupSettings};
use kafka_wire::ResponseError;
use metalog::{Logs, Owner};
use parking_lot::Mutex;
use tokio::sync::watch;
use types::{ShardId, Timestamp, TopicId};

use crate::config::Tuning;
use crate::metadata::Metadata;
use crate::rpc::Coordinators;

pub use load::LoadCollector;
use load::{Limits, Load};

/// A shard that was lost is not opened again before this time: whoever fenced it has the right of way until the
/// controller has learnt of it.
const AFTER_LOSS: Duration = Duration::from_secs(1);
/// A shard that failed so often in a row is reported, so that another node gets it,
const ATTEMPTS: u32 = 3;
/// and one that has been opening for so long.
const OPENING: Duration = Duration::from_secs(60);
/// A failure is forgotten after this time.
const FAILURE_COUNTS: Duration = Duration::from_secs(300);
const HAND_OVER: Duration = Duration::from_secs(10);

/// What the host needs from the node.
pub struct Parts {
    /// The outside world.
    pub env: Env,
    /// The bucket of the WAL objects.
    pub store: SharedStore,
    /// The metadata logs.
    pub logs: Logs,
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
    /// Intervals of the background jobs, thresholds of the replicas.
    pub tuning: Tuning,
}

/// Leads and follows shards.
pub struct CoordinatorHost {
    parts: Parts,
    /// Every request for a shard takes it: only for moments.
    state: Mutex<State>,
    limits: Limits,
    /// Grows when the controller should hear from this node.
    changes: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    open: BTreeMap<ShardId, Open>,
    /// When a shard was lost.
    lost: BTreeMap<ShardId, Instant>,
    /// Shards that could not be led: how often in a row, and when that was last so.
    failures: BTreeMap<ShardId, (u32, Instant)>,
    load: BTreeMap<ShardId, Load>,
    /// The node ends: nothing is opened any more.
    stopping: bool,
}

/// A shard that is open here.
struct Open {
    shard: ShardService,
    /// With them it is led, or about to be; without, it is followed.
    groups: Option<Arc<GroupService>>,
    /// When it got its present role.
    since: Instant,
    /// It is being given up.
    leaving: bool,
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
    /// Leads nothing yet. What earlier processes have left of their shards is deleted.
    pub fn new(parts: Parts) -> Arc<CoordinatorHost> {
        Self::with_limits(parts, Limits::MEASURED)
    }

    fn with_limits(parts: Parts, limits: Limits) -> Arc<CoordinatorHost> {
        let host = Arc::new(CoordinatorHost {
            parts,
            state: Mutex::default(),
            limits,
            changes: watch::Sender::new(0),
        });
        let env = host.parts.env.clone();
        env.spawn(load::watch(host.clone()));
        let old = views(&host.parts.data_dir);
        let deleting = env.clone();
        env.spawn(async move {
            for view in old {
                delete_view(&deleting, view).await;
            }
        });
        host
    }

    /// Leads the shards of `lead`, follows those of `follow`, gives up all others. For one task at a time.
    pub fn assign(self: &Arc<Self>, lead: &[ShardId], follow: &[ShardId]) {
        for (id, leads) in self.change(lead, follow) {
            // That makes files and starts threads.
            let opened = self.open(id, leads);
            self.take(id, leads, opened);
        }
    }

    /// Gives up and promotes what is open, and says what is to be opened, and whether to lead.
    fn change(&self, lead: &[ShardId], follow: &[ShardId]) -> BTreeMap<ShardId, bool> {
        let mut state = self.state.lock();
        if state.stopping {
            return BTreeMap::new();
        }
        let now = self.parts.env.instant();
        state
            .lost
            .retain(|_, at| now.saturating_duration_since(*at) < AFTER_LOSS);
        for (id, open) in &mut state.open {
            let leads = open.groups.is_some();
            match (leads, lead.contains(id), follow.contains(id)) {
                (true, true, _) | (false, false, true) => {}
                (false, true, _) if !open.leaving => self.promote(open),
                // Its next life begins when this one has ended.
                _ => self.give_up(open),
            }
        }
        let orders = follow.iter().map(|id| (*id, false));
        let mut orders: BTreeMap<_, _> = orders.chain(lead.iter().map(|id| (*id, true))).collect();
        orders.retain(|id, _| !state.open.contains_key(id) && !state.lost.contains_key(id));
        orders
    }

    /// Takes in what was opened.
    fn take(self: &Arc<Self>, id: ShardId, leads: bool, opened: Result<ShardService, StateError>) {
        let now = self.parts.env.instant();
        let mut state = self.state.lock();
        match opened {
            // It ends with its last handle; the next process deletes its view.
            Ok(_) if state.stopping => {}
            Ok(shard) => {
                let mut open = Open {
                    shard: shard.clone(),
                    groups: None,
                    since: now,
                    leaving: false,
                };
                if leads {
                    self.promote(&mut open);
                }
                state.open.insert(id, open);
                let host = self.clone();
                self.parts.env.spawn(async move { host.watch(id, shard).await });
            }
            Err(error) => {
                tracing::error!(shard = %id, %error, "cannot open the shard");
                state.lost.insert(id, now);
                if leads {
                    note_failure(&mut state.failures, id, now);
                }
            }
        }
    }

    /// Shards that are open and serve, those that are being given up included.
    pub fn leading(&self) -> Vec<ShardId> {
        self.select(|open| open.shard.is_leading())
    }

    /// Shards that could be taken over at once.
    pub fn following(&self) -> Vec<ShardId> {
        self.select(|open| !open.leaving && open.shard.is_warm())
    }

    fn select(&self, wanted: impl Fn(&Open) -> bool) -> Vec<ShardId> {
        let state = self.state.lock();
        let chosen = state.open.iter().filter(|(_, open)| wanted(open));
        chosen.map(|(id, _)| *id).collect()
    }

    /// Shards that are to be led here and cannot be opened, after some attempts.
    pub fn failing(&self) -> Vec<ShardId> {
        let now = self.parts.env.instant();
        let mut state = self.state.lock();
        state
            .failures
            .retain(|_, (_, at)| now.saturating_duration_since(*at) < FAILURE_COUNTS);
        let failed = state.failures.iter().filter(|(_, (times, _))| *times >= ATTEMPTS);
        let mut failing: Vec<ShardId> = failed.map(|(id, _)| *id).collect();
        let stuck = state.open.iter().filter(|(_, open)| {
            let opening = open.groups.is_some() && !open.leaving && !open.shard.is_leading();
            opening && now.saturating_duration_since(open.since) >= OPENING
        });
        failing.extend(stuck.map(|(id, _)| *id));
        failing.sort_unstable();
        failing.dedup();
        failing
    }

    /// Follows what [`CoordinatorHost::leading`] and [`CoordinatorHost::following`] say.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// A shard that is led here (or about to be: it says so itself).
    pub fn led(&self, id: ShardId) -> Result<Led, ResponseError> {
        let state = self.state.lock();
        let open = state.open.get(&id).filter(|open| !open.leaving);
        let led = open.and_then(|open| {
            Some(Led {
                shard: open.shard.clone(),
                groups: open.groups.clone()?,
            })
        });
        led.ok_or(ResponseError::NotCoordinator)
    }

    /// A shard that is led or followed here.
    pub fn replica(&self, id: ShardId) -> Result<ShardService, ResponseError> {
        let state = self.state.lock();
        let open = state.open.get(&id).ok_or(ResponseError::NotCoordinator)?;
        Ok(open.shard.clone())
    }

    /// How long after its last record an object is deleted, in milliseconds.
    pub fn file_grace_ms(&self) -> u64 {
        let grace = self.parts.tuning.jobs.file_grace.as_millis();
        u64::try_from(grace).unwrap_or(u64::MAX)
    }

    /// Gives everything up; returns when all that was accepted is answered.
    pub async fn stop(&self) {
        let open: Vec<ShardService> = {
            let mut state = self.state.lock();
            state.stopping = true;
            state.open.values().map(|open| open.shard.clone()).collect()
        };
        for shard in open {
            shard.stop().await;
        }
    }

    fn open(&self, id: ShardId, leads: bool) -> Result<ShardService, StateError> {
        let Parts {
            env,
            logs,
            data_dir,
            owner,
            tuning,
            metadata,
            ..
        } = &self.parts;
        let metadata = metadata.clone();
        let log = logs.log(&format!("shard-{id}"));
        let options = ShardOptions {
            shard: id,
            data_dir: data_dir.clone(),
            replica: tuning.replica.clone(),
            features: Features {
                supported: tuning.supported,
                finalized: Arc::new(move || metadata.image().record().feature_level()),
            },
        };
        match leads {
            true => ShardService::start(env, options, log, owner.clone()),
            false => ShardService::follow(env, options, log, owner.clone()),
        }
    }

    /// Starts all that belongs to leading a shard.
    fn promote(&self, open: &mut Open) {
        let env = &self.parts.env;
        open.groups = Some(GroupService::start(
            env,
            open.shard.clone(),
            self.parts.groups.clone(),
        ));
        open.since = env.instant();
        let (shard, jobs) = (open.shard.clone(), self.jobs());
        env.spawn(async move {
            shard.lead().await;
            shard.run_jobs(&jobs).await;
        });
    }

    fn give_up(&self, open: &mut Open) {
        if !std::mem::replace(&mut open.leaving, true) {
            let shard = open.shard.clone();
            self.parts.env.spawn(async move { shard.stop().await });
        }
    }

    /// Accompanies a shard to its end, and cleans up after it.
    async fn watch(&self, id: ShardId, shard: ShardService) {
        let mut status = shard.status();
        let mut known = (false, false);
        let end = loop {
            let now = (shard.is_leading(), shard.is_warm());
            if std::mem::replace(&mut known, now) != now {
                if shard.is_leading() {
                    self.state.lock().failures.remove(&id);
                }
                self.changes.send_modify(|changes| *changes += 1);
            }
            if let Status::Ended(end) = &*status.borrow_and_update() {
                break end.clone();
            }
            if status.changed().await.is_err() {
                break End::Stopped;
            }
        };
        {
            let now = self.parts.env.instant();
            let mut state = self.state.lock();
            let led = state.open.remove(&id).is_some_and(|open| open.groups.is_some());
            state.load.remove(&id);
            if end != End::Stopped {
                state.lost.insert(id, now);
            }
            if let (End::Failed(_) | End::Unsupported(_), true) = (&end, led) {
                note_failure(&mut state.failures, id, now);
            }
        }
        tracing::info!(shard = %id, ?end, "shard is no longer open here");
        self.changes.send_modify(|changes| *changes += 1);
        // It may be opened again meanwhile, in another directory. What is deleted takes space until its last reader is gone.
        let view = shard.dir().to_owned();
        drop(shard);
        delete_view(&self.parts.env, view).await;
    }

    fn jobs(&self) -> Jobs {
        let Parts {
            env,
            store,
            metadata,
            coordinators,
            tuning,
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
        let (env, coordinators) = (self.parts.env.clone(), self.parts.coordinators.clone());
        let describe: DescribeFiles = Arc::new(move |request: DescribeFilesRequest| {
            let (env, coordinators) = (env.clone(), coordinators.clone());
            Box::pin(async move {
                let deadline = env.instant() + HAND_OVER;
                let answer = coordinators.describe_files(&request, deadline).await;
                answer.unwrap_or_else(|_| DescribeFilesResponse {
                    error_code: ResponseError::CoordinatorNotAvailable.code(),
                    oldest_file: Timestamp(-1),
                    known: Vec::new(),
                })
            })
        });
        Jobs {
            store: store.clone(),
            object_key: wal::object_key,
            retention,
            hand_over,
            describe,
            options: tuning.jobs.clone(),
        }
    }
}

fn note_failure(failures: &mut BTreeMap<ShardId, (u32, Instant)>, id: ShardId, now: Instant) {
    let (times, at) = failures.entry(id).or_insert((0, now));
    (*times, *at) = (*times + 1, now);
}
