//! The orphan scan: WAL objects that no shard knows.
//!
//! A broker that dies between the upload of an object and its commit leaves it behind. Nobody will ever ask for it, so it
//! is found by looking: every object below `wal/` that is old enough is shown to every shard (`DisklessDescribeFiles`,
//! KIP-1164). What none of them knows is an orphan.
//!
//! It is not deleted here. It is handed to the owner chain of *all* shards (`DisklessHandOverFile`), as a file whose last
//! batch has died: each shard takes note of it, so that it refuses a commit that comes late after all, and the last one
//! deletes it after the grace, like any other file. A shard that has accepted such a commit meanwhile keeps the file
//! instead. So neither clocks nor the age decide about data; the age only keeps the scan away from uploads whose commits
//! are still on their way.
//!
//! Objects whose names are not ours are counted and left alone.

pub mod command;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use blob::{BlobError, ObjectMeta, SharedStore};
use coordinator::protocol::{DescribeFilesRequest, HandOverFileRequest};
use env::{Env, Instant};
use parking_lot::Mutex;
use prometheus_client::registry::Unit;
use types::{ShardId, Timestamp};
use uuid::Uuid;

use crate::config::OrphanScan;
use crate::membership::Coordination;
use crate::metadata::Metadata;
use crate::metrics::{GaugeCollector, Metrics};
use crate::rpc::{Coordinators, RpcError};

/// Objects listed and asked about at a time: what one LIST gives.
const PAGE: usize = 1000;
/// One call, a change of leaders included.
const CALL: Duration = Duration::from_secs(30);
/// A node does not wait longer than this for its first scan.
const FIRST: Duration = Duration::from_secs(3600);
/// Names that a report carries.
const NAMES: usize = 10;

/// Why a scan ended early. What it had handed over by then stays so.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// The object store cannot be listed.
    #[error(transparent)]
    Store(#[from] BlobError),
    /// A shard did not answer.
    #[error("shard {0}: {1}")]
    Rpc(ShardId, RpcError),
    /// A shard refused.
    #[error("shard {0} answers with error {1}")]
    Refused(ShardId, i16),
    /// The cluster has no shards yet.
    #[error("no shard is known yet")]
    NoShards,
}

/// Objects of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// How many.
    pub objects: u64,
    /// Their size in bytes.
    pub bytes: u64,
    /// Keys of the first of them.
    pub first: Vec<String>,
}

impl Found {
    fn add(&mut self, object: &ObjectMeta) {
        self.objects += 1;
        self.bytes += object.size;
        if self.first.len() < NAMES {
            self.first.push(object.key.clone());
        }
    }
}

/// What a scan has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// All objects below `wal/`.
    pub listed: u64,
    /// Those that were too young to be asked about.
    pub young: u64,
    /// No shard knows them.
    pub orphans: Found,
    /// Their names are not those of WAL objects.
    pub foreign: Found,
    /// When the oldest file with live batches was committed, if there is one.
    pub oldest_live: Option<Timestamp>,
}

/// What a scan looks with.
#[derive(Clone)]
pub struct Scanner {
    /// Clock and randomness.
    pub env: Env,
    /// The bucket.
    pub store: SharedStore,
    /// Which shards there are.
    pub metadata: Metadata,
    /// The way to them.
    pub coordinators: Coordinators,
}

impl Scanner {
    /// Looks at all objects older than `min_age`. With `delete` orphans are handed over, and deleted by the last shard
    /// after the grace; without, they are only counted.
    pub async fn scan(&self, min_age: Duration, delete: bool) -> Result<Report, ScanError> {
        let mut report = Report::default();
        for shard in self.shards()? {
            let (oldest, _) = self.describe(shard, Vec::new()).await?;
            let live = [report.oldest_live, (oldest.0 >= 0).then_some(oldest)];
            report.oldest_live = live.into_iter().flatten().min();
        }
        let mut after: Option<String> = None;
        loop {
            let page = self.store.list(wal::PREFIX, after.as_deref(), PAGE).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.key.clone());
            let whole = page.len() >= PAGE;
            self.look_at(page, min_age, delete, &mut report).await?;
            if !whole {
                break;
            }
        }
        Ok(report)
    }

    async fn look_at(
        &self,
        page: Vec<ObjectMeta>,
        min_age: Duration,
        delete: bool,
        report: &mut Report,
    ) -> Result<(), ScanError> {
        let old = self
            .env
            .now()
            .plus(-i64::try_from(min_age.as_millis()).unwrap_or(i64::MAX));
        let mut asked: Vec<(Uuid, ObjectMeta)> = Vec::new();
        for object in page {
            report.listed += 1;
            match wal::object_id(&object.key) {
                None => report.foreign.add(&object),
                Some(_) if object.last_modified > old => report.young += 1,
                Some(id) => asked.push((id, object)),
            }
        }
        // Read anew for each page: a shard may have been added.
        let shards = self.shards()?;
        let mut unknown: BTreeSet<Uuid> = asked.iter().map(|(id, _)| *id).collect();
        for shard in &shards {
            if unknown.is_empty() {
                return Ok(());
            }
            let (_, known) = self.describe(*shard, unknown.iter().copied().collect()).await?;
            for id in &known {
                unknown.remove(id);
            }
        }
        for (id, object) in asked.iter().filter(|(id, _)| unknown.contains(id)) {
            report.orphans.add(object);
            if delete {
                self.hand_over(*id, object.size, &chain(*id, &shards)).await?;
            }
        }
        Ok(())
    }

    fn shards(&self) -> Result<Vec<ShardId>, ScanError> {
        let image = self.metadata.image();
        let shards: Vec<ShardId> = image.record().shards.iter().map(|shard| shard.id).collect();
        if shards.is_empty() {
            return Err(ScanError::NoShards);
        }
        Ok(shards)
    }

    async fn describe(
        &self,
        shard: ShardId,
        objects: Vec<Uuid>,
    ) -> Result<(Timestamp, Vec<Uuid>), ScanError> {
        let request = DescribeFilesRequest { shard, objects };
        let deadline = self.env.instant() + CALL;
        let answer = self.coordinators.describe_files(&request, deadline).await;
        match answer.map_err(|error| ScanError::Rpc(shard, error))? {
            answer if answer.error_code == 0 => Ok((answer.oldest_file, answer.known)),
            answer => Err(ScanError::Refused(shard, answer.error_code)),
        }
    }

    async fn hand_over(&self, object: Uuid, size: u64, chain: &[ShardId]) -> Result<(), ScanError> {
        let Some(&shard) = chain.first() else {
            return Ok(());
        };
        let request = HandOverFileRequest {
            shard,
            object,
            size,
            owners: chain.to_vec(),
        };
        let deadline = self.env.instant() + CALL;
        let answer = self.coordinators.hand_over_file(&request, deadline).await;
        match answer.map_err(|error| ScanError::Rpc(shard, error))?.error_code {
            0 => Ok(()),
            code => Err(ScanError::Refused(shard, code)),
        }
    }
}

/// All shards, each object's from another one on, so that no shard gets all the work of being the last. Two scans at the same time
/// come to the same order: with orders of their own the shards would pass an object on to each other, and nobody would be the last.
fn chain(object: Uuid, shards: &[ShardId]) -> Vec<ShardId> {
    let mut chain = shards.to_vec();
    let (_, random) = object.as_u64_pair();
    if let Some(first) = random.checked_rem(chain.len() as u64) {
        chain.rotate_left(usize::try_from(first).unwrap_or(0));
    }
    chain
}

/// The last scan of this node, for its metrics.
type Last = Arc<Mutex<Option<(Instant, Report)>>>;

/// Scans every `settings.interval_ms` while this node is the controller, until the node ends.
pub async fn run(scanner: Scanner, coordination: Coordination, settings: OrphanScan, metrics: Arc<Metrics>) {
    if settings.interval_ms == 0 {
        return;
    }
    let env = scanner.env.clone();
    let last: Last = Arc::default();
    publish(&metrics, &env, &last);
    let interval = Duration::from_millis(settings.interval_ms);
    let min_age = Duration::from_millis(settings.min_age_ms);
    let mut pause = interval.min(FIRST);
    loop {
        env.sleep(env.jittered(pause)).await;
        pause = interval;
        if coordination.controller.current().is_none() {
            continue;
        }
        match scanner.scan(min_age, true).await {
            Ok(report) => {
                let Report {
                    listed,
                    orphans,
                    foreign,
                    ..
                } = &report;
                tracing::info!(
                    listed,
                    orphans = orphans.objects,
                    orphan_bytes = orphans.bytes,
                    foreign = foreign.objects,
                    "orphan scan"
                );
                if let Some(key) = foreign.first.first() {
                    tracing::warn!(
                        objects = foreign.objects,
                        key,
                        "objects that are not ours lie among the wal objects"
                    );
                }
                *last.lock() = Some((env.instant(), report));
            }
            Err(error) => tracing::warn!(%error, "orphan scan cut off, the next one starts anew"),
        }
    }
}

fn publish(metrics: &Metrics, env: &Env, last: &Last) {
    let gauge = |name, help, unit, value: fn(&Report) -> u64| {
        let last = last.clone();
        GaugeCollector::new(name, help, unit, move || {
            last.lock()
                .as_ref()
                .map_or(0.0, |(_, report)| value(report) as f64)
        })
    };
    metrics.add(gauge(
        "orphan_objects",
        "WAL objects that no shard knew, in the last orphan scan of this node",
        None,
        |report| report.orphans.objects,
    ));
    metrics.add(gauge(
        "orphan_size",
        "Size of these objects",
        Some(Unit::Bytes),
        |report| report.orphans.bytes,
    ));
    metrics.add(gauge(
        "foreign_objects",
        "Objects below wal/ whose names are not those of WAL objects, in the last orphan scan of this node",
        None,
        |report| report.foreign.objects,
    ));
    let (env, last) = (env.clone(), last.clone());
    let age = move || {
        let last = last.lock();
        last.as_ref().map_or(-1.0, |(at, _)| {
            env.instant().saturating_duration_since(*at).as_secs_f64()
        })
    };
    let help = "Time since the last orphan scan of this node that came to its end; -1: none yet";
    metrics.add(GaugeCollector::new(
        "orphan_scan_age",
        help,
        Some(Unit::Seconds),
        age,
    ));
}

#[cfg(test)]
mod tests;
