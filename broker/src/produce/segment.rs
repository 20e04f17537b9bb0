//! One segment on its way: upload, then a commit at every shard concerned.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use async_trait::async_trait;
use bytes::Bytes;
use cache::ObjectCache;
use coordinator::protocol::{BatchRequest, BatchResult, CommitFileRequest, CommitFileResponse};
use env::{Env, Instant};
use kafka_wire::ResponseError;
use kafka_wire::batch::BatchHeader;
use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;
use types::{NodeId, ShardId, Timestamp};
use uuid::Uuid;
use wal::{Batch, Placed, Segment};

use super::gaps::{Gaps, Key};
use super::order::{Order, Turn};
use super::request::{Outcome, Request};
use super::upload::Uploads;
use crate::metrics::Metrics;
use crate::rpc::{Coordinators, RpcError};

/// `DisklessCommitFile`, as the pipeline needs it.
#[async_trait]
pub(super) trait Commits: Send + Sync {
    /// Commits at the leader of `request.shard`; asks again by the same object until `deadline`.
    async fn commit(
        &self,
        request: &CommitFileRequest,
        deadline: Instant,
    ) -> Result<CommitFileResponse, RpcError>;
}

#[async_trait]
impl Commits for Coordinators {
    async fn commit(
        &self,
        request: &CommitFileRequest,
        deadline: Instant,
    ) -> Result<CommitFileResponse, RpcError> {
        self.commit_file(request, deadline).await
    }
}

/// Who waits for a batch, and what its commit says about it.
#[derive(Debug)]
pub(super) struct Tag {
    pub(super) request: Arc<Request>,
    /// Which batch of the request it is.
    pub(super) index: usize,
    pub(super) shard: ShardId,
    pub(super) header: BatchHeader,
    pub(super) log_append_time: bool,
}

/// What segments are written with.
pub(super) struct Writer {
    pub(super) env: Env,
    pub(super) node: NodeId,
    pub(super) uploads: Uploads,
    pub(super) cache: Arc<ObjectCache>,
    pub(super) commits: Arc<dyn Commits>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) order: Order,
    pub(super) gaps: Mutex<Gaps>,
    /// When an object was last written and committed, ms since the epoch; 0: never.
    pub(super) last_success: AtomicI64,
}

/// The batches of a segment that one shard orders.
struct Group {
    batches: Vec<Placed<Tag>>,
    turn: Turn,
}

/// A segment that has its place in the order of commits.
pub(super) struct Prepared {
    body: Vec<Bytes>,
    size: u64,
    groups: BTreeMap<ShardId, Group>,
    deadline: Instant,
}

impl Writer {
    /// Lays a segment out. Must be called in the order in which the batches were taken from the buffer.
    pub(super) fn prepare(&self, batches: Vec<Batch<Tag>>) -> Prepared {
        let Segment { body, size, batches } = Segment::build(batches);
        let mut by_shard: BTreeMap<ShardId, Vec<Placed<Tag>>> = BTreeMap::new();
        let mut deadline = self.env.instant();
        for batch in batches {
            deadline = deadline.max(batch.tag.request.deadline);
            by_shard.entry(batch.tag.shard).or_default().push(batch);
        }
        let groups = by_shard.into_iter().map(|(shard, batches)| {
            let partitions = batches.chunk_by(|a, b| a.partition == b.partition);
            let turn = self
                .order
                .enter(partitions.filter_map(|of| Some(of.first()?.partition)));
            (shard, Group { batches, turn })
        });
        Prepared {
            body,
            size,
            groups: groups.collect(),
            deadline,
        }
    }

    /// Writes and commits a segment; every batch gets its outcome. `upload` is dropped once it is written.
    pub(super) async fn write(&self, segment: Prepared, upload: OwnedSemaphorePermit) {
        let Prepared {
            body,
            size,
            groups,
            deadline,
        } = segment;
        let written = self.uploads.write(&body, size, deadline).await;
        drop(upload);
        self.metrics.segment_bytes.observe(size as f64);
        let written = match written {
            Err(_) if env::mutation("commit-unwritten") => Ok(self.env.uuid()),
            other => other,
        };
        match written {
            Ok(object) => {
                // Before the commit: who hears of it finds the object here.
                self.cache.insert(object, body);
                for batch in groups.values().flat_map(|group| &group.batches) {
                    batch.tag.request.written(batch.size);
                }
                let owners = self.owners(groups.keys().copied().collect());
                let commits = groups.into_iter().map(|(shard, group)| {
                    let file = File {
                        object,
                        size,
                        owners: owners.clone(),
                    };
                    self.commit(shard, file, group, deadline)
                });
                let sent = futures::future::join_all(commits).await;
                if !sent.contains(&true) {
                    self.cache.forget(object);
                    self.uploads.discard(object);
                }
            }
            Err(error) => {
                tracing::warn!(%error, size, "a wal object could not be written, its batches are refused");
                drop(body);
                let failures = groups.into_values().map(|Group { batches, turn }| {
                    self.lose(&batches, ResponseError::KafkaStorageError);
                    drop(batches);
                    async move { turn.come().await }
                });
                futures::future::join_all(failures).await;
            }
        }
    }

    /// False: the file was never named to the shard.
    async fn commit(&self, shard: ShardId, file: File, group: Group, deadline: Instant) -> bool {
        let start = self.env.instant();
        let Group { batches, turn } = group;
        let in_turn = async {
            if !env::mutation("skip-commit-order") {
                turn.come().await;
            }
        };
        if self.env.timeout_at(deadline, in_turn).await.is_err() {
            // Its producers have gone; those behind still wait for those before.
            self.lose(&batches, ResponseError::RequestTimedOut);
            drop(batches);
            turn.come().await;
            return false;
        }
        let request = CommitFileRequest {
            shard,
            object: file.object,
            uploader: self.node,
            size: file.size,
            owners: file.owners,
            batches: self.batch_requests(&batches),
        };
        let answer = self.commits.commit(&request, deadline).await;
        let took = self.env.instant().saturating_duration_since(start);
        self.metrics.commit_latency.observe(took.as_secs_f64());
        match answer {
            Ok(answer) if answer.error_code == 0 && answer.batches.len() == batches.len() => {
                self.last_success.store(self.env.now().0, Relaxed);
                self.note_gaps(&batches, &answer.batches);
                self.resolve(&batches, answer.batches.iter().map(outcome));
            }
            Ok(answer) => {
                self.metrics.commit_failures.inc();
                tracing::error!(%shard, code = answer.error_code, "the coordinator refuses a file");
                // With an error code nothing was decided; otherwise the answer makes no sense.
                let undecided = answer.error_code != 0;
                let error = if undecided {
                    ResponseError::KafkaStorageError
                } else {
                    ResponseError::RequestTimedOut
                };
                self.lose(&batches, error);
            }
            Err(error) => {
                self.metrics.commit_failures.inc();
                tracing::warn!(%shard, %error, object = %file.object, "no answer to the commit of a file");
                self.lose(&batches, ResponseError::RequestTimedOut);
            }
        }
        true
    }

    fn batch_requests(&self, batches: &[Placed<Tag>]) -> Vec<BatchRequest> {
        let now = self.env.instant();
        let gaps = self.gaps.lock();
        let must_follow = |batch: &Placed<Tag>| {
            producer(batch).is_some_and(|key| gaps.must_follow(&key, batch.tag.header.base_sequence, now))
        };
        let request = |batch| batch_request(batch, must_follow(batch));
        batches.iter().map(request).collect()
    }

    fn note_gaps(&self, batches: &[Placed<Tag>], results: &[BatchResult]) {
        let now = self.env.instant();
        let mut gaps = self.gaps.lock();
        for (batch, result) in batches.iter().zip(results) {
            if let Some(key) = producer(batch) {
                let sequence = batch.tag.header.base_sequence;
                match result.error_code {
                    0 => gaps.accepted(&key, sequence),
                    _ => gaps.lost(key, sequence, now),
                }
            }
        }
    }

    /// Gives batches up that were not stored, or are not known to be.
    fn lose(&self, batches: &[Placed<Tag>], error: ResponseError) {
        let now = self.env.instant();
        {
            let mut gaps = self.gaps.lock();
            for batch in batches {
                if let Some(key) = producer(batch) {
                    gaps.lost(key, batch.tag.header.base_sequence, now);
                }
            }
        }
        self.resolve(
            batches,
            std::iter::repeat_n(Outcome::failed(error), batches.len()),
        );
    }

    fn resolve(&self, batches: &[Placed<Tag>], outcomes: impl Iterator<Item = Outcome>) {
        let mut failed = 0;
        for (batch, outcome) in batches.iter().zip(outcomes) {
            failed += u64::from(outcome.error_code != 0);
            batch.tag.request.resolve(batch.tag.index, outcome);
        }
        self.metrics.produce_failed_batches.inc_by(failed);
    }

    /// The owner chain: random, so that no shard answers for more files than another (KIP-1164).
    fn owners(&self, mut shards: Vec<ShardId>) -> Vec<ShardId> {
        for last in (1..shards.len()).rev() {
            let chosen = usize::try_from(self.env.random_below(last as u64 + 1)).unwrap_or(0);
            shards.swap(last, chosen);
        }
        shards
    }
}

struct File {
    object: Uuid,
    size: u64,
    owners: Vec<ShardId>,
}

fn batch_request(batch: &Placed<Tag>, must_follow: bool) -> BatchRequest {
    let header = &batch.tag.header;
    BatchRequest {
        topic: batch.partition.topic,
        partition: batch.partition.partition,
        position: batch.position,
        size: batch.size,
        last_offset_delta: header.last_offset_delta,
        max_timestamp: Timestamp(header.max_timestamp),
        log_append_time: batch.tag.log_append_time,
        producer_id: header.producer_id,
        producer_epoch: header.producer_epoch,
        base_sequence: header.base_sequence,
        must_follow,
    }
}

fn outcome(result: &BatchResult) -> Outcome {
    Outcome {
        error_code: result.error_code,
        base_offset: if result.error_code == 0 {
            result.base_offset
        } else {
            -1
        },
        log_append_time: if result.error_code == 0 {
            result.log_append_time.0
        } else {
            -1
        },
        log_start_offset: result.log_start_offset,
    }
}

/// The idempotent producer of a batch, if it has one.
fn producer(batch: &Placed<Tag>) -> Option<Key> {
    let header = &batch.tag.header;
    header
        .has_producer_id()
        .then_some((batch.partition, header.producer_id, header.producer_epoch))
}

#[cfg(test)]
mod tests;
