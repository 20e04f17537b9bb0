//! Work that a leader does on its own: retention, purging, the deletion of files, expiry, checkpoints.
//!
//! Jobs look for work through readers, off the commit path, and change the state by ordinary commands. They keep
//! nothing that matters: a new leader starts them anew.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use blob::SharedStore;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use types::{Timestamp, TopicId, TopicPartition};
use uuid::Uuid;

use super::queries::{self, Boundary, Place};
use super::{Command, Expired, Output, ShardService};
use crate::protocol::{
    DeleteRecordsPartition, DescribeFilesRequest, DescribeFilesResponse, HandOverFileRequest,
};
use crate::replica::ReplicaError;

/// How long the records of a topic are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionConfig {
    /// `retention.ms`; below 0: for ever.
    pub retention_ms: i64,
    /// `retention.bytes` per partition; below 0: no bound.
    pub retention_bytes: i64,
}

/// The retention of a topic as of now; `None`: nothing is known of it, and nothing is deleted.
pub type RetentionOf = Arc<dyn Fn(TopicId) -> Option<RetentionConfig> + Send + Sync>;

/// Sends a request to the leader of the shard it names and returns the error code of the answer.
pub type HandOver = Arc<dyn Fn(HandOverFileRequest) -> BoxFuture<'static, i16> + Send + Sync>;

/// Sends a request to the leader of the shard it names and returns the answer, with an error code if there is none.
pub type DescribeFiles =
    Arc<dyn Fn(DescribeFilesRequest) -> BoxFuture<'static, DescribeFilesResponse> + Send + Sync>;

/// Intervals and bounds of the jobs.
#[derive(Clone, Debug)]
pub struct JobOptions {
    /// Pause between two passes of retention that found little.
    pub retention_interval: Duration,
    /// An object is deleted this long after its last batch: longer than the longest read and than any coordinate
    /// is cached.
    pub file_grace: Duration,
    /// Pause between two looks for dead files, and for garbage.
    pub file_interval: Duration,
    /// Producers are forgotten when unused for this long (`producer.id.expiration.ms`).
    pub producer_expiry: Duration,
    /// The answer to a commit is kept this long for a retry of the same file.
    pub result_expiry: Duration,
    /// A file that is gone is remembered this long, so that a late commit of it is refused.
    pub tombstone_expiry: Duration,
    /// Pause between two looks for what has expired.
    pub expiry_interval: Duration,
    /// The SQLite WAL is started anew beyond this size, in pages of 4 KiB.
    pub wal_pages: i64,
}

impl Default for JobOptions {
    fn default() -> Self {
        Self {
            retention_interval: Duration::from_secs(30),
            file_grace: Duration::from_secs(10 * 60),
            file_interval: Duration::from_secs(1),
            producer_expiry: Duration::from_secs(24 * 3600),
            result_expiry: Duration::from_secs(30 * 60),
            tombstone_expiry: Duration::from_secs(24 * 3600),
            expiry_interval: Duration::from_secs(60),
            wal_pages: 4096,
        }
    }
}

/// What the jobs need from outside.
#[derive(Clone)]
pub struct Jobs {
    /// Where the WAL objects are.
    pub store: SharedStore,
    /// The key of a WAL object.
    pub object_key: fn(Uuid) -> String,
    /// Asked for each topic in each pass, so that a changed configuration counts at once.
    pub retention: RetentionOf,
    /// Reaches the other owners of files.
    pub hand_over: HandOver,
    /// Asks the other owners of files.
    pub describe: DescribeFiles,
    /// Intervals and bounds.
    pub options: JobOptions,
}

/// Batches that retention looks at per partition and pass.
const RETENTION_BATCHES: usize = 2_000;
/// Partitions whose log start one command moves: about two milliseconds of the leader.
const RETENTION_MOVES: usize = 200;
/// Partitions that retention looks at in one read, and batches after which it stops: a few milliseconds, in which
/// nothing that is committed can be copied out of the WAL.
const RETENTION_PARTITIONS: usize = 256;
const RETENTION_READ: usize = 4_000;
/// Batches that are purged in one log entry, at least and at most. Fewer than the least are a millisecond or two even if each is the last
/// one of its file.
const PURGE_LEAST: u32 = 50;
const PURGE_MOST: u32 = 4_000;
/// A purge puts a page or two in the WAL for each batch that lies alone: after so many it is checkpointed.
const PURGED_PER_CHECKPOINT: u32 = 2_000;
/// Most things forgotten in one log entry.
const EXPIRE: usize = 1_000;

pub(super) type Pass = Result<(), ReplicaError>;

pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Batches to purge in the next entry, when `last` batches were logged and applied within `round`, `own` of it being the leader's time: a
/// fifth of that time, whether the log takes one millisecond or a hundred. Commits wait for no more than that, and purging keeps up with them.
fn purge_step(last: u32, round: Duration, own: Duration) -> u32 {
    let own = own.min(round).max(Duration::from_micros(1));
    let batches = u128::from(last) * ((round.saturating_sub(own)).as_nanos() / 4) / own.as_nanos();
    u32::try_from(batches)
        .unwrap_or(PURGE_MOST)
        // What one entry costs says little about the next.
        .min(last.saturating_mul(2))
        .clamp(PURGE_LEAST, PURGE_MOST)
}

impl ShardService {
    /// Runs the jobs until the shard is no longer led from here.
    pub async fn run_jobs(&self, jobs: &Jobs) {
        let options = &jobs.options;
        let asked = Mutex::new(Place::default());
        let forgotten = Mutex::new(0);
        let all = async {
            if self.leading().await.is_err() {
                return;
            }
            self.shared.has_jobs.store(true, Ordering::Relaxed);
            futures::join!(
                self.repeat("retention", options.retention_interval, || self
                    .retention_pass(jobs)),
                self.repeat("purge", options.file_interval, || self.purge(options)),
                self.repeat("hand-over", options.file_interval, || self.hand_files_over(jobs)),
                self.repeat("waiting files", options.file_interval, || self
                    .ask_first_owners(jobs, &asked)),
                self.repeat("deletion", options.file_interval, || self.delete_files(jobs)),
                self.repeat("expiry", options.expiry_interval, || self
                    .expire(options, &forgotten)),
                self.repeat("checkpoint", Duration::from_millis(250), || self
                    .checkpoint(options.wal_pages)),
            );
        };
        tokio::select! {
            biased;
            _ = self.ended() => {}
            () = all => {}
        }
    }

    async fn repeat<F: Future<Output = Pass>>(
        &self,
        job: &str,
        interval: Duration,
        mut pass: impl FnMut() -> F,
    ) {
        loop {
            if let Err(error) = pass().await {
                tracing::debug!(shard = %self.shard(), job, %error, "job interrupted");
            }
            self.env.sleep(self.env.jittered(interval)).await;
        }
    }

    /// Moves log starts up to where retention wants them, at once however much that is.
    pub(super) async fn retention_pass(&self, jobs: &Jobs) -> Pass {
        let mut work: Vec<TopicPartition> = self.scan(queries::partitions).await?;
        while !work.is_empty() {
            let mut again = Vec::new();
            let mut moves = Vec::new();
            let mut left = &work[..];
            while !left.is_empty() {
                let some = left.get(..RETENTION_PARTITIONS).unwrap_or(left);
                let (looked_at, boundaries) = self.boundaries(jobs, some).await?;
                left = left.get(looked_at..).unwrap_or_default();
                for (id, boundary) in boundaries {
                    if boundary.batches == RETENTION_BATCHES {
                        again.push(id);
                    }
                    moves.push(DeleteRecordsPartition {
                        partition: id,
                        offset: boundary.offset,
                    });
                    if moves.len() == RETENTION_MOVES {
                        self.submit(Command::DeleteRecords(std::mem::take(&mut moves)))
                            .await?;
                    }
                }
            }
            if !moves.is_empty() {
                self.submit(Command::DeleteRecords(moves)).await?;
            }
            if !again.is_empty() {
                // What was moved past must not be counted again for long.
                self.purge(&jobs.options).await?;
            }
            work = again;
        }
        Ok(())
    }

    /// How many of `partitions`, one at least, were looked at, and how far retention lets those go that it lets go at all.
    async fn boundaries(
        &self,
        jobs: &Jobs,
        partitions: &[TopicPartition],
    ) -> Result<(usize, Vec<(TopicPartition, Boundary)>), ReplicaError> {
        let now = self.env.now();
        let bounded = partitions.iter().enumerate().filter_map(|(index, id)| {
            let config = (jobs.retention)(id.topic)?;
            let keep_from = (config.retention_ms >= 0).then(|| now.plus(-config.retention_ms));
            (keep_from.is_some() || config.retention_bytes >= 0).then_some((index, *id, keep_from, config))
        });
        let bounded: Vec<_> = bounded.collect();
        let all = partitions.len();
        if bounded.is_empty() {
            return Ok((all, Vec::new()));
        }
        // Not while the WAL is copied: what comes after the oldest state that is being read has to stay in it.
        let _alone = self.shared.checkpointed.lock().await;
        self.scan(move |db| {
            let (mut boundaries, mut read) = (Vec::new(), 0);
            for (index, id, keep_from, config) in bounded {
                let (boundary, batches) =
                    queries::retention(db, &id, keep_from, config.retention_bytes, RETENTION_BATCHES)?;
                read += batches;
                boundaries.extend(boundary.map(|boundary| (id, boundary)));
                if read >= RETENTION_READ {
                    return Ok((index + 1, boundaries));
                }
            }
            Ok((all, boundaries))
        })
        .await
    }

    /// Removes garbage until there is none, a small step at a time.
    pub(super) async fn purge(&self, options: &JobOptions) -> Pass {
        // A command without an effect would ask the store who leads: a shard at rest asks for nothing.
        if !self.read(queries::has_garbage).await? {
            return Ok(());
        }
        let (mut max_batches, mut purged) = (PURGE_LEAST, 0);
        loop {
            let began = self.env.instant();
            if self.submit(Command::Purge { max_batches }).await? != Output::Purged(true) {
                return Ok(());
            }
            let round = self.env.instant().saturating_duration_since(began);
            purged += max_batches;
            max_batches = purge_step(max_batches, round, self.applied_in());
            if purged >= PURGED_PER_CHECKPOINT {
                // A WAL that grows faster than it is copied would be the leader's to copy.
                purged = 0;
                self.checkpoint(options.wal_pages).await?;
            }
        }
    }

    /// Forgets producers, results and tombstones that are too old. Files get older in the order of their ids:
    /// `forgotten` is the last one whose results went.
    async fn expire(&self, options: &JobOptions, forgotten: &Mutex<u64>) -> Pass {
        let before = |age: Duration| -> Timestamp { self.env.now().plus(-millis(age)) };
        let producer_expiry = match env::mutation("expire-producers") {
            true => Duration::ZERO,
            false => options.producer_expiry,
        };
        let (producers_before, results_before) = (before(producer_expiry), before(options.result_expiry));
        let tombstones_before = before(options.tombstone_expiry);
        let mut producer = (0, i64::MIN);
        loop {
            let file = *forgotten.lock();
            let (producers, results, tombstones) = self
                .scan(move |db| {
                    let producers = queries::idle_producers(db, producers_before, producer, EXPIRE)?;
                    let results = queries::old_results(db, results_before, file, EXPIRE)?;
                    Ok((
                        producers,
                        results,
                        queries::old_tombstones(db, tombstones_before, EXPIRE)?,
                    ))
                })
                .await?;
            if producers.is_empty() && results.is_empty() && tombstones.is_empty() {
                return Ok(());
            }
            producer = producers.last().copied().unwrap_or(producer);
            let file = results.last().copied().unwrap_or(file);
            let expired = Expired {
                producers,
                producers_before,
                results,
                tombstones,
            };
            self.submit(Command::Expire(expired)).await?;
            *forgotten.lock() = file;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_purge_takes_a_fifth_of_the_time_whatever_a_batch_costs() {
        for cost in [1, 4, 25] {
            for rest in [1_000, 20_000, 100_000] {
                let mut step = PURGE_LEAST;
                for _ in 0..20 {
                    let own = u64::from(step) * cost;
                    step = purge_step(
                        step,
                        Duration::from_micros(rest + own),
                        Duration::from_micros(own),
                    );
                }
                let fifth = u32::try_from(rest / 4 / cost).unwrap();
                assert_eq!(
                    step,
                    fifth.clamp(PURGE_LEAST, PURGE_MOST),
                    "{cost} us a batch, {rest} us else"
                );
            }
        }
    }
}
