//! One fetch: look, ask, wait, read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coordinator::protocol::{Coordinate, FindBatchesPartition, FindBatchesRequest, FindBatchesResult};
use env::{Env, Instant};
use kafka_wire::ResponseError;
use kafka_wire::fetch::FetchBatch;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use types::{ShardId, TopicPartition};

use super::memory::AnswerMemory;
use super::objects::{Objects, ReadError};
use super::plan::{Effort, Offer, Share, share};
use super::window::{Bounds, Look, Windows};
use crate::rpc::Coordinators;

/// Bound of an answer whatever the client allows, in bytes.
const MAX_BYTES: u64 = 64 << 20;
/// What is read for an answer, however little of it is sent: GETs that take a second together even if each of them takes as long
/// as S3 mostly does and a few other consumers read, too…
const MAX_READS: u64 = 256;
/// …and bytes.
const MAX_READ_BYTES: u64 = 64 << 20;
/// How long an answer waits for memory.
const ROOM: Duration = Duration::from_secs(2);
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
    memory: AnswerMemory,
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

    fn empty(self) -> Fetched {
        Fetched {
            error: self.error,
            bounds: self.bounds,
            batches: Vec::new(),
        }
    }

    /// There is more than the client's limit lets through: waiting brings nothing.
    fn is_full(&self) -> bool {
        self.batches
            .last()
            .is_some_and(|batch| batch.last_offset.saturating_add(1) < self.bounds.high_watermark)
    }
}

impl Fetcher {
    /// Serves what `windows` follows, with answers that fit in `memory`. Waiting fetches are answered when `draining` is
    /// cancelled.
    pub fn new(
        env: Env,
        windows: Windows,
        coordinators: Coordinators,
        objects: Objects,
        memory: AnswerMemory,
        draining: CancellationToken,
    ) -> Fetcher {
        Fetcher {
            env,
            windows,
            coordinators,
            objects,
            memory,
            draining,
        }
    }

    /// See [`Windows::deleted`].
    pub fn deleted(&self, partition: &TopicPartition, log_start_offset: i64) {
        self.windows.deleted(partition, log_start_offset);
    }

    /// One batch. It counts as an answer until it is dropped.
    pub async fn batch(&self, at: &Coordinate) -> Result<Bytes, ReadError> {
        let hold = self.env.timeout(ROOM, self.memory.take(u64::from(at.size))).await;
        let Ok(Some(hold)) = hold else {
            return Err(ReadError::Unavailable);
        };
        let read = self.objects.read(&[(at.clone(), false)]).await.into_iter().next();
        read.unwrap_or(Err(ReadError::Unavailable))
            .map(|batch| hold.attach(batch))
    }

    /// The answer for each of `wanted`, in their order.
    pub async fn fetch(&self, wanted: &[Wanted], limits: FetchLimits) -> Vec<Fetched> {
        let deadline = self.env.instant() + limits.max_wait;
        let max_bytes = limits.max_bytes.min(MAX_BYTES);
        let min_bytes = limits.min_bytes.min(max_bytes);
        let (begun, views) = loop {
            let begun = self.env.instant();
            let views = self.views(wanted).await;
            let enough = wanted.is_empty()
                || views.iter().map(View::bytes).sum::<u64>() >= min_bytes
                || views.iter().any(|view| view.error.is_some() || view.is_full());
            if enough || self.env.instant() >= deadline || self.draining.is_cancelled() {
                break (begun, views);
            }
            self.wait(wanted, &views, deadline).await;
        };
        self.read(wanted, views, max_bytes, begun).await
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
        for indexes in asked.values_mut() {
            // A leader names so many batches and no more, in the order of the request, which a session never changes.
            let first = self.env.random_below(indexes.len() as u64);
            indexes.rotate_left(usize::try_from(first).unwrap_or(0));
        }
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

    /// `begun`: when the coordinates were looked up.
    async fn read(
        &self,
        wanted: &[Wanted],
        views: Vec<View>,
        max_bytes: u64,
        begun: Instant,
    ) -> Vec<Fetched> {
        let offers: Vec<Offer<'_>> = wanted
            .iter()
            .zip(&views)
            .map(|(want, view)| Offer {
                batches: &view.batches,
                max_bytes: want.max_bytes,
                tail: view.tail,
            })
            .collect();
        let bounds = Effort {
            reads: MAX_READS,
            bytes: MAX_READ_BYTES,
            held: self.memory.share(),
        };
        let recent = self.objects.recent();
        let way = |at: &Coordinate, tail| self.objects.way(at, tail, recent);
        let share = share(&offers, max_bytes, bounds, self.env.random_u64(), way);
        let hold = self.env.timeout(ROOM, self.memory.take(share.effort.held)).await;
        let Ok(Some(hold)) = hold else {
            // It is not the consumer's fault, nor an error: it asks again, and waits again.
            tracing::debug!(used = self.memory.used(), "no memory for an answer");
            return views.into_iter().map(View::empty).collect();
        };
        let read = self.batches(&views, &share, begun).await;
        let fetched = views.into_iter().zip(read).map(|(view, read)| {
            let mut good = Vec::with_capacity(read.len());
            let mut failure = None;
            for (at, read) in view.batches.iter().zip(read) {
                // What comes before a batch that cannot be read, or not yet, is served, what comes after it is not.
                match read {
                    Some(Ok(batch)) => good.push(FetchBatch {
                        batch: hold.attach(batch),
                        base_offset: at.base_offset,
                        leader_epoch: LEADER_EPOCH,
                        log_append_time: (at.log_append_time.0 >= 0).then_some(at.log_append_time.0),
                    }),
                    Some(Err(why)) => {
                        failure = good.is_empty().then(|| why.response_error());
                        break;
                    }
                    None => break,
                }
            }
            Fetched {
                error: view.error.or(failure),
                bounds: view.bounds,
                batches: good,
            }
        });
        fetched.collect()
    }

    /// The first batches of each partition, `None` for what takes too long.
    async fn batches(
        &self,
        views: &[View],
        share: &Share,
        begun: Instant,
    ) -> Vec<Vec<Option<Result<Bytes, ReadError>>>> {
        let (indexes, coordinates, firsts) = rounds(views, &share.counts);
        let found = self
            .objects
            .read_some(&coordinates, &share.sliced, firsts, begun)
            .await;
        let mut read: Vec<Vec<_>> = vec![Vec::new(); views.len()];
        for (index, bytes) in indexes.into_iter().zip(found) {
            if let Some(of_partition) = read.get_mut(index) {
                of_partition.push(bytes);
            }
        }
        read
    }
}

/// The chosen batches and the partitions they are of: the first one of each, then the second ones, so that all have something
/// if time is short; and how many are first ones.
fn rounds(views: &[View], counts: &[usize]) -> (Vec<usize>, Vec<(Coordinate, bool)>, usize) {
    let of_all = views.iter().zip(counts).enumerate();
    let mut chosen: Vec<_> = of_all
        .flat_map(|(index, (view, count))| {
            let batches = view.batches.iter().take(*count).enumerate();
            batches.map(move |(depth, at)| (depth, index, (at.clone(), view.tail)))
        })
        .collect();
    // Stable: those of a partition stay in order.
    chosen.sort_by_key(|(depth, ..)| *depth);
    let firsts = chosen.partition_point(|(depth, ..)| *depth == 0);
    let (indexes, coordinates) = chosen.into_iter().map(|(_, index, at)| (index, at)).unzip();
    (indexes, coordinates, firsts)
}

#[cfg(test)]
mod tests;
