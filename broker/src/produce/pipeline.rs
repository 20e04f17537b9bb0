//! The buffer, and the task that empties it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use blob::SharedStore;
use bytes::Bytes;
use cache::ObjectCache;
use coordinator::protocol::MAX_FILE_BATCHES;
use env::{Env, Instant};
use kafka_wire::batch::BatchHeader;
use parking_lot::Mutex;
use prometheus_client::registry::Unit;
use tokio::sync::{Notify, Semaphore};
use types::{NodeId, ShardId, Timestamp, TopicPartition};
use wal::{Batch, Buffer, Due, Limits};

use super::request::{Outcome, Request};
use super::segment::{Commits, Tag, Writer};
use super::upload::Uploads;
use crate::config;
use crate::metrics::{GaugeCollector, Metrics};
use crate::net::memory::Memory;
use crate::rpc::Coordinators;

/// Segments that are being written. When there are so many the next ones grow instead. Those that wait for their commits
/// do not count: a shard that does not answer must not keep others from getting theirs.
const UPLOADS: usize = 32;

/// A validated batch and where it goes.
#[derive(Debug)]
pub struct Append {
    /// Its partition.
    pub partition: TopicPartition,
    /// Who orders the partition.
    pub shard: ShardId,
    /// The batch as it came in.
    pub batch: Bytes,
    /// Its header.
    pub header: BatchHeader,
    /// The topic uses LogAppendTime.
    pub log_append_time: bool,
}

/// Copies large batches out of a frame of so many bytes, unless they are most of it, and gives the size of the copies. The
/// cache keeps what it gets for a long time, counts its bytes and knows nothing of what else they would keep alive. Small
/// batches are copied on the way into a segment.
pub fn detach(batches: &mut [Append], frame: usize) -> usize {
    let mut large: Vec<&mut Bytes> = batches
        .iter_mut()
        .map(|append| &mut append.batch)
        .filter(|batch| batch.len() >= wal::COPY_BELOW)
        .collect();
    let size = large.iter().map(|batch| batch.len()).sum();
    if size >= frame / 4 * 3 {
        return 0;
    }
    for batch in &mut large {
        **batch = Bytes::copy_from_slice(batch);
    }
    size
}

/// The produce path of a broker. Cheap to clone.
#[derive(Clone)]
pub struct Producer(Arc<Inner>);

struct Inner {
    env: Env,
    buffer: Mutex<Buffer<Tag>>,
    /// There is something new about when to flush.
    changed: Notify,
    /// Everything is flushed at once: the broker leaves.
    draining: AtomicBool,
    uploads: Arc<Semaphore>,
    /// Segments that were taken from the buffer and have batches without an outcome.
    unfinished: AtomicUsize,
    writer: Writer,
}

impl Producer {
    /// Starts the produce path.
    pub fn start(
        env: Env,
        node: NodeId,
        settings: &config::Produce,
        store: SharedStore,
        cache: Arc<ObjectCache>,
        coordinators: Coordinators,
        metrics: Arc<Metrics>,
    ) -> Producer {
        let commits = Arc::new(coordinators);
        Producer::with_commits(env, node, settings, store, cache, commits, metrics)
    }

    pub(super) fn with_commits(
        env: Env,
        node: NodeId,
        settings: &config::Produce,
        store: SharedStore,
        cache: Arc<ObjectCache>,
        commits: Arc<dyn Commits>,
        metrics: Arc<Metrics>,
    ) -> Producer {
        let limits = Limits {
            flush_bytes: settings.flush_bytes,
            flush_batches: MAX_FILE_BATCHES,
            flush_interval: Duration::from_millis(settings.flush_interval_ms),
            puts_per_second: settings.puts_per_second,
        };
        let last_success = AtomicI64::new(0);
        let order = Default::default();
        let producer = Producer(Arc::new(Inner {
            env: env.clone(),
            buffer: Mutex::new(Buffer::new(limits, env.instant())),
            changed: Notify::new(),
            draining: AtomicBool::new(false),
            uploads: Arc::new(Semaphore::new(UPLOADS)),
            unfinished: AtomicUsize::new(0),
            writer: Writer {
                env: env.clone(),
                node,
                uploads: Uploads::new(env.clone(), node, store, metrics.clone()),
                cache,
                commits,
                metrics,
                order,
                gaps: Mutex::default(),
                last_success,
            },
        }));
        env.spawn(flush(producer.0.clone()));
        let inner = Arc::downgrade(&producer.0);
        let age = move || {
            inner
                .upgrade()
                .and_then(|inner| inner.flush_age())
                .unwrap_or_default()
                .as_secs_f64()
        };
        let help = "Since an object was last written and committed; 0 before the first";
        producer.0.writer.metrics.add(GaugeCollector::new(
            "last_flush_age",
            help,
            Some(Unit::Seconds),
            age,
        ));
        producer
    }

    /// Takes batches in, in order and at once; the future resolves with their outcomes, in the same order. What has
    /// none when `timeout` is over is REQUEST_TIMED_OUT. Of `memory` the batches' bytes are given back when they are
    /// written, and the rest when all have an outcome.
    pub fn append(
        &self,
        batches: Vec<Append>,
        timeout: Duration,
        memory: Option<Memory>,
    ) -> impl Future<Output = Vec<Outcome>> + Send + 'static {
        let inner = self.0.clone();
        let now = inner.env.instant();
        let request = Arc::new(Request::new(batches.len(), now + timeout, memory));
        if !batches.is_empty() {
            inner.push(batches, &request, now);
        }
        async move { request.outcomes(&inner.env).await }
    }

    /// A batch for a partition of `topic` (as the request names it) was refused, and is not appended: a later one of the
    /// same idempotent producer must not pass for its first.
    pub fn refused(&self, topic: String, partition: i32, header: &BatchHeader) {
        if header.has_producer_id() {
            let name = (topic, partition, header.producer_id, header.producer_epoch);
            let now = self.0.env.instant();
            self.0.writer.gaps.lock().refused(name, header.base_sequence, now);
        }
    }

    /// A batch is about to be appended to a partition that its request calls by this name.
    pub fn found(&self, topic: impl FnOnce() -> String, append: &Append) {
        let header = &append.header;
        if header.has_producer_id() {
            let mut gaps = self.0.writer.gaps.lock();
            if gaps.has_refused() {
                let index = append.partition.partition;
                let name = (topic(), index, header.producer_id, header.producer_epoch);
                gaps.found(&name, append.partition);
            }
        }
    }

    /// From now on everything is flushed at once.
    pub fn drain(&self) {
        self.0.draining.store(true, Relaxed);
        self.0.changed.notify_one();
    }

    /// Waits until all that was taken in has its outcome, at most until `deadline`. False: not all has.
    pub async fn finish(&self, deadline: Instant) -> bool {
        let busy = || self.0.buffer.lock().bytes() > 0 || self.0.unfinished.load(Relaxed) > 0;
        let idle = async {
            while busy() {
                self.0.env.sleep(Duration::from_millis(5)).await;
            }
        };
        self.0.env.timeout_at(deadline, idle).await.is_ok()
    }
}

impl Inner {
    /// Since an object was last written and committed; `None`: not yet.
    fn flush_age(&self) -> Option<Duration> {
        let last = Timestamp(self.writer.last_success.load(Relaxed));
        (last.0 > 0).then(|| Duration::from_millis(self.env.now().since(last)))
    }

    fn push(&self, batches: Vec<Append>, request: &Arc<Request>, now: Instant) {
        let metrics = &self.writer.metrics;
        metrics.produce_batches.inc_by(batches.len() as u64);
        metrics
            .produce_bytes
            .inc_by(batches.iter().map(|append| append.batch.len() as u64).sum());
        let mut buffer = self.buffer.lock();
        let (before, was_full) = (buffer.bytes(), buffer.is_full());
        for (index, append) in batches.into_iter().enumerate() {
            let Append {
                partition,
                shard,
                batch,
                header,
                log_append_time,
            } = append;
            let tag = Tag {
                request: request.clone(),
                index,
                shard,
                header,
                log_append_time,
            };
            buffer.push(
                Batch {
                    partition,
                    bytes: batch,
                    tag,
                },
                now,
            );
        }
        let (after, is_full) = (buffer.bytes(), buffer.is_full());
        drop(buffer);
        metrics.buffer_bytes.set(i64::try_from(after).unwrap_or(i64::MAX));
        // Only the first batch and the last one change when the buffer is due.
        if before == 0 || is_full && !was_full {
            self.changed.notify_one();
        }
    }

    fn due(&self, now: Instant) -> Due {
        match self.buffer.lock().due(now) {
            Due::At(_) if self.draining.load(Relaxed) => Due::Now,
            due => due,
        }
    }
}

/// Takes segments from the buffer for ever.
async fn flush(inner: Arc<Inner>) {
    loop {
        due(&inner).await;
        let Ok(upload) = inner.uploads.clone().acquire_owned().await else {
            return;
        };
        // Before the buffer is empty: who sees that sees this.
        inner.unfinished.fetch_add(1, Relaxed);
        let now = inner.env.instant();
        let (batches, left) = {
            let mut buffer = inner.buffer.lock();
            (buffer.take(now), buffer.bytes())
        };
        inner
            .writer
            .metrics
            .buffer_bytes
            .set(i64::try_from(left).unwrap_or(i64::MAX));
        let segment = inner.writer.prepare(batches);
        let writing = inner.clone();
        inner.env.spawn(async move {
            writing.writer.write(segment, upload).await;
            writing.unfinished.fetch_sub(1, Relaxed);
        });
    }
}

/// Waits until the buffer is to be flushed.
async fn due(inner: &Inner) {
    loop {
        match inner.due(inner.env.instant()) {
            Due::Now => return,
            Due::Never => inner.changed.notified().await,
            Due::At(at) => {
                tokio::select! {
                    biased;
                    () = inner.changed.notified() => {}
                    () = inner.env.sleep_until(at) => {}
                }
            }
        }
    }
}
