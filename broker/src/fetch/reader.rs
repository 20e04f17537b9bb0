//! One fetch: look, ask, wait, read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use coordinator::protocol::{Coordinate, FindBatchesPartition, FindBatchesRequest, FindBatchesResult};
use env::{Env, Instant};
use kafka_wire::ResponseError;
use kafka_wire::fetch::FetchBatch;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use types::{ShardId, TopicPartition};

use super::objects::Objects;
use super::plan::{Offer, share};
use super::window::{Bounds, Look, Windows};
use crate::rpc::Coordinators;

/// Bound of an answer whatever the client allows, in bytes.
const MAX_BYTES: u64 = 64 << 20;
/// How long a leader may take to find batches; a change of leaders fits in.
const FIND: Duration = Duration::from_secs(5);
/// The same, when other partitions of the request have something already.
const FIND_BESIDE: Duration = Duration::from_secs(1);
/// A partition that is not followed (yet) is looked at again after this time.
const UNFOLLOWED: Duration = Duration::from_millis(100);
/// The only leader epoch there is.
const LEADER_EPOCH: i32 = 0;

/// One partition of a fetch.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Which.
    pub partition: TopicPartition,
    /// Who orders it.
    pub shard: ShardId,
    /// From here on.
    pub offset: i64,
    /// The client's limit for the partition, in bytes.
    pub max_bytes: u64,
}

/// When an answer is due and how large it may be.
#[derive(Clone, Copy, Debug)]
pub struct FetchLimits {
    /// How long to wait for `min_bytes`.
    pub max_wait: Duration,
    /// Bytes worth an answer.
    pub min_bytes: u64,
    /// Bound over all partitions, in bytes.
    pub max_bytes: u64,
}

/// What a partition gave.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// With an error there are no batches.
    pub error: Option<ResponseError>,
    /// -1 where unknown.
    pub bounds: Bounds,
    /// In order.
    pub batches: Vec<FetchBatch>,
}

/// Serves fetches. Cheap to clone.
#[derive(Clone)]
pub struct Fetcher {
    env: Env,
    windows: Windows,
    coordinators: Coordinators,
    objects: Objects,
    /// Nobody waits any longer: the broker leaves.
    draining: CancellationToken,
}

const UNKNOWN: Bounds = Bounds {
    log_start_offset: -1,
    high_watermark: -1,
};

/// A partition at one moment.
struct View {
    error: Option<ResponseError>,
    bounds: Bounds,
    batches: Vec<Coordinate>,
    /// The coordinates were pushed here.
    tail: bool,
}

impl View {
    fn bytes(&self) -> u64 {
        self.batches.iter().map(|batch| u64::from(batch.size)).sum()
    }

    /// There is more than the client's limit lets through: waiting brings nothing.
    fn is_full(&self) -> bool {
        self.batches
            .last()
            .is_some_and(|batch| batch.last_offset.saturating_add(1) < self.bounds.high_watermark)
    }
}

impl Fetcher {
    /// Serves what `windows` follows. Waiting fetches are answered when `draining` is cancelled.
    pub fn new(
        env: Env,
        windows: Windows,
        coordinators: Coordinators,
        objects: Objects,
        draining: CancellationToken,
    ) -> Fetcher {
        Fetcher {
            env,
            windows,
            coordinators,
            objects,
            draining,
        }
    }

    /// What reads the objects.
    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    /// The answer for each of `wanted`, in their order.
    pub async fn fetch(&self, wanted: &[Wanted], limits: FetchLimits) -> Vec<Fetched> {
        let deadline = self.env.instant() + limits.max_wait;
        let max_bytes = limits.max_bytes.min(MAX_BYTES);
        let min_bytes = limits.min_bytes.min(max_bytes);
        let views = loop {
            let views = self.views(wanted).await;
            let enough = wanted.is_empty()
                || views.iter().map(View::bytes).sum::<u64>() >= min_bytes
                || views.iter().any(|view| view.error.is_some() || view.is_full());
            if enough || self.env.instant() >= deadline || self.draining.is_cancelled() {
                break views;
            }
            self.wait(wanted, &views, deadline).await;
        };
        self.read(wanted, views, max_bytes).await
    }

    async fn views(&self, wanted: &[Wanted]) -> Vec<View> {
        let mut asked: BTreeMap<ShardId, Vec<usize>> = BTreeMap::new();
        let mut views: Vec<View> = Vec::with_capacity(wanted.len());
        for (index, want) in wanted.iter().enumerate() {
            let (error, bounds, batches) =
                match self.windows.look(&want.partition, want.offset, want.max_bytes) {
                    Look::Batches(bounds, batches) => (None, bounds, batches),
                    Look::End(bounds) => (None, bounds, Vec::new()),
                    Look::Below(bounds) => (Some(ResponseError::OffsetOutOfRange), bounds, Vec::new()),
                    Look::Ask => {
                        asked.entry(want.shard).or_default().push(index);
                        (None, UNKNOWN, Vec::new())
                    }
                };
            views.push(View {
                error,
                bounds,
                batches,
                tail: true,
            });
        }
        if asked.is_empty() {
            return views;
        }
        let patience = if views.iter().any(|view| !view.batches.is_empty()) {
            FIND_BESIDE
        } else {
            FIND
        };
        let deadline = self.env.instant() + patience;
        let answers = asked
            .iter()
            .map(|(shard, indexes)| self.ask(*shard, indexes, wanted, deadline));
        for (index, view) in futures::future::join_all(answers).await.into_iter().flatten() {
            if let Some(slot) = views.get_mut(index) {
                *slot = view;
            }
        }
        views
    }

    /// Asks the leader of a shard for some of the partitions.
    async fn ask(
        &self,
        shard: ShardId,
        indexes: &[usize],
        wanted: &[Wanted],
        deadline: Instant,
    ) -> Vec<(usize, View)> {
        let wants = || {
            indexes
                .iter()
                .filter_map(|index| Some((*index, wanted.get(*index)?)))
        };
        let limit = |bytes: u64| u32::try_from(bytes.min(MAX_BYTES)).unwrap_or(u32::MAX);
        let partitions = wants().map(|(_, want)| FindBatchesPartition {
            partition: want.partition,
            offset: want.offset,
            max_bytes: limit(want.max_bytes),
        });
        let request = FindBatchesRequest {
            shard,
            partitions: partitions.collect(),
            max_bytes: limit(MAX_BYTES),
        };
        let found = match self.coordinators.find_batches(&request, deadline).await {
            Ok(answer) if answer.error_code == 0 && answer.partitions.len() == request.partitions.len() => {
                answer
            }
            other => {
                tracing::debug!(%shard, failure = ?other.err(), "batches cannot be found");
                // Retriable; the client asks for metadata and comes back.
                let error = Some(ResponseError::NotLeaderOrFollower);
                let view = |index| {
                    (
                        index,
                        View {
                            error,
                            bounds: UNKNOWN,
                            batches: Vec::new(),
                            tail: false,
                        },
                    )
                };
                return indexes.iter().map(|index| view(*index)).collect();
            }
        };
        let view = |((index, want), result): ((usize, &Wanted), FindBatchesResult)| {
            if result.high_watermark >= 0 {
                self.windows.learn(shard, want.partition, found.applied, &result);
            }
            let bounds = Bounds {
                log_start_offset: result.log_start_offset,
                high_watermark: result.high_watermark,
            };
            let error = match result.error_code {
                0 => None,
                code => Some(ResponseError::try_from_code(code).unwrap_or(ResponseError::UnknownServerError)),
            };
            (
                index,
                View {
                    error,
                    bounds,
                    batches: result.batches,
                    tail: false,
                },
            )
        };
        wants().zip(found.partitions).map(view).collect()
    }

    /// Until there is news of a partition that has nothing, or the deadline.
    async fn wait(&self, wanted: &[Wanted], views: &[View], deadline: Instant) {
        let news = Arc::new(Notify::new());
        let mut until = deadline;
        for (want, view) in wanted.iter().zip(views) {
            let followed = match view.batches.last() {
                None => self.windows.wait(&want.partition, want.offset, &news),
                Some(last) => self
                    .windows
                    .wait(&want.partition, last.last_offset.saturating_add(1), &news),
            };
            if !followed {
                until = until.min(self.env.instant() + UNFOLLOWED);
            }
        }
        tokio::select! {
            biased;
            () = news.notified() => {}
            () = self.draining.cancelled() => {}
            () = self.env.sleep_until(until) => {}
        }
    }

    async fn read(&self, wanted: &[Wanted], views: Vec<View>, max_bytes: u64) -> Vec<Fetched> {
        let offers: Vec<Offer<'_>> = wanted
            .iter()
            .zip(&views)
            .map(|(want, view)| Offer {
                batches: &view.batches,
                max_bytes: want.max_bytes,
            })
            .collect();
        let counts = share(&offers, max_bytes, self.env.random_u64());
        let chosen = views.iter().zip(&counts).flat_map(|(view, count)| {
            view.batches
                .iter()
                .take(*count)
                .map(|batch| (batch.clone(), view.tail))
        });
        let chosen: Vec<(Coordinate, bool)> = chosen.collect();
        let mut bytes = self.objects.read(&chosen).await.into_iter();
        let fetched = views.into_iter().zip(counts).map(|(view, count)| {
            let View {
                mut error,
                bounds,
                batches,
                ..
            } = view;
            let mut good = Vec::with_capacity(count);
            let mut failure = None;
            for (at, read) in batches.iter().zip(bytes.by_ref().take(count)) {
                match read {
                    // What comes before a batch that cannot be read is served, what comes after it is not.
                    Ok(batch) if failure.is_none() => good.push(FetchBatch {
                        batch,
                        base_offset: at.base_offset,
                        leader_epoch: LEADER_EPOCH,
                        log_append_time: (at.log_append_time.0 >= 0).then_some(at.log_append_time.0),
                    }),
                    Ok(_) => {}
                    Err(why) => failure = failure.or(Some(why)),
                }
            }
            if good.is_empty() {
                error = error.or(failure.map(|failure| failure.response_error()));
            }
            Fetched {
                error,
                bounds,
                batches: good,
            }
        });
        fetched.collect()
    }
}
