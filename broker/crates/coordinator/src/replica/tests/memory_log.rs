//! A metadata log in memory that a test can slow down, stop and take over.
#![allow(
    missing_docs,
    dead_code,
    reason = "shared by tests and the benchmark, which use parts of it"
)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use env::Env;
use futures::StreamExt;
use futures::stream;
use metalog::{
    LogError, LogWriter, MetadataLog, Opened, Owner, Slot, SnapshotBody, SnapshotPieces, SnapshotRef,
};
use parking_lot::Mutex;
use tokio::sync::watch;
use types::{Epoch, LogOffset};

#[derive(Clone)]
pub struct MemoryLog(Arc<Inner>);

struct Inner {
    env: Env,
    state: Mutex<State>,
    /// Appends wait while it is closed.
    gate: watch::Sender<bool>,
    /// Where the log ends, for those who listen.
    tail: watch::Sender<LogOffset>,
    /// Nobody hears of appends.
    mute: bool,
}

#[derive(Default)]
struct State {
    epoch: u64,
    owner: Option<Owner>,
    log_start: u64,
    slots: Vec<Slot>,
    snapshot: Option<SnapshotRef>,
    snapshots: BTreeMap<String, Bytes>,
    /// What the next reader of a snapshot meets when it has come so far, in bytes.
    snapshot_fault: Option<(usize, LogError)>,
    latency: Duration,
    unavailable: bool,
    /// Reads that failed because of that.
    refused: u32,
    checks: u32,
}

pub fn owner(node_id: i32) -> Owner {
    Owner {
        node_id,
        incarnation: uuid::Uuid::from_u128(7),
        address: format!("node{node_id}:9190"),
    }
}

impl MemoryLog {
    pub fn new(env: &Env) -> MemoryLog {
        MemoryLog::make(env, true)
    }

    /// One that tells of appends, as a database does.
    pub fn telling(env: &Env) -> MemoryLog {
        MemoryLog::make(env, false)
    }

    fn make(env: &Env, mute: bool) -> MemoryLog {
        MemoryLog(Arc::new(Inner {
            env: env.clone(),
            state: Mutex::default(),
            gate: watch::Sender::new(true),
            tail: watch::Sender::new(LogOffset(0)),
            mute,
        }))
    }

    /// Appends wait until the gate is opened again.
    pub fn set_open(&self, open: bool) {
        self.0.gate.send_replace(open);
    }

    /// How long an append takes.
    pub fn set_latency(&self, latency: Duration) {
        self.0.state.lock().latency = latency;
    }

    pub fn set_unavailable(&self, unavailable: bool) {
        self.0.state.lock().unavailable = unavailable;
    }

    /// Number of reads that found the log unavailable.
    pub fn refused(&self) -> u32 {
        self.0.state.lock().refused
    }

    /// The next reader of a snapshot meets `error` when it has got `at` bytes.
    pub fn fail_snapshot(&self, at: usize, error: LogError) {
        self.0.state.lock().snapshot_fault = Some((at, error));
    }

    /// The last `count` slots are gone, as after a failover to a standby that lagged behind.
    pub fn lose(&self, count: usize) {
        let mut state = self.0.state.lock();
        let left = state.slots.len() - count;
        state.slots.truncate(left);
    }

    /// Number of leadership checks so far.
    pub fn checks(&self) -> u32 {
        self.0.state.lock().checks
    }

    /// Slots with entries.
    pub fn slots(&self) -> Vec<Slot> {
        self.0
            .state
            .lock()
            .slots
            .iter()
            .filter(|slot| !slot.entries.is_empty())
            .cloned()
            .collect()
    }

    pub fn log_start(&self) -> LogOffset {
        LogOffset(self.0.state.lock().log_start)
    }

    async fn wait(&self) {
        let latency = self.0.state.lock().latency;
        if !latency.is_zero() {
            self.0.env.sleep(latency).await;
        }
        let _ = self.0.gate.subscribe().wait_for(|open| *open).await;
    }
}

#[async_trait]
impl MetadataLog for MemoryLog {
    async fn owner(&self) -> Result<Option<(Epoch, Owner)>, LogError> {
        let state = self.0.state.lock();
        Ok(state.owner.clone().map(|owner| (Epoch(state.epoch), owner)))
    }

    async fn open(&self, owner: Owner) -> Result<Opened, LogError> {
        let mut state = self.0.state.lock();
        if state.unavailable {
            return Err(LogError::Unavailable("test".to_owned()));
        }
        state.epoch += 1;
        state.owner = Some(owner);
        let (epoch, offset) = (
            Epoch(state.epoch),
            LogOffset(state.log_start + state.slots.len() as u64),
        );
        state.slots.push(Slot {
            offset,
            epoch,
            entries: Vec::new(),
        });
        let writer = Box::new(MemoryWriter {
            log: self.clone(),
            epoch,
        });
        let (snapshot, log_start) = (state.snapshot.clone(), LogOffset(state.log_start));
        Ok(Opened {
            writer,
            epoch,
            snapshot,
            log_start,
            tail: offset.next(),
        })
    }

    async fn read(&self, from: LogOffset, max_bytes: usize) -> Result<Vec<Slot>, LogError> {
        let mut state = self.0.state.lock();
        if state.unavailable {
            state.refused += 1;
            return Err(LogError::Unavailable("test".to_owned()));
        }
        let log_start = LogOffset(state.log_start);
        if from < log_start {
            return Err(LogError::Trimmed { log_start });
        }
        let mut bytes = 0;
        let first = usize::try_from(from.0 - state.log_start).unwrap_or(usize::MAX);
        let slots = state.slots.iter().skip(first).take_while(|slot| {
            let room = bytes < max_bytes;
            bytes += slot.entries.iter().map(Bytes::len).sum::<usize>();
            room
        });
        Ok(slots.cloned().collect())
    }

    async fn changed(&self, from: LogOffset) {
        if self.0.mute {
            std::future::pending().await
        }
        let _ = self.0.tail.subscribe().wait_for(|tail| *tail > from).await;
    }

    async fn snapshot(&self) -> Result<Option<SnapshotRef>, LogError> {
        Ok(self.0.state.lock().snapshot.clone())
    }

    async fn put_snapshot(&self, offset: LogOffset, body: SnapshotBody) -> Result<SnapshotRef, LogError> {
        let key = format!("snapshot/{offset}");
        let body = match body {
            SnapshotBody::Memory(body) => body.concat(),
            SnapshotBody::File(file) => std::fs::read(file.path()).unwrap_or_default(),
        };
        let size = body.len() as u64;
        self.0.state.lock().snapshots.insert(key.clone(), body.into());
        Ok(SnapshotRef {
            offset,
            key,
            size,
            sha256: [0; 32],
            chain: [0; 32],
        })
    }

    fn get_snapshot(&self, snapshot: &SnapshotRef) -> SnapshotPieces {
        let (log, key) = (self.clone(), snapshot.key.clone());
        let size = usize::try_from(snapshot.size).unwrap_or(0);
        // Three pieces at least, if it has so many bytes.
        let length = size.div_ceil(3).clamp(1, 4 << 20);
        let piece = move |start: usize| {
            let mut state = log.0.state.lock();
            if let Some((_, error)) = state.snapshot_fault.take_if(|(at, _)| start >= *at) {
                return Err(error);
            }
            let body = state.snapshots.get(&key);
            let body = body.ok_or_else(|| LogError::Corrupt(key.clone()))?;
            Ok(body.slice(start..body.len().min(start + length)))
        };
        stream::iter((0..size).step_by(length).map(piece)).boxed()
    }

    async fn sweep(&self) -> Result<usize, LogError> {
        Ok(0)
    }
}

struct MemoryWriter {
    log: MemoryLog,
    epoch: Epoch,
}

impl MemoryWriter {
    fn check_epoch(&self, state: &State) -> Result<(), LogError> {
        if state.epoch == self.epoch.0 {
            return Ok(());
        }
        Err(LogError::Fenced {
            epoch: Epoch(state.epoch),
            owner: state.owner.clone(),
        })
    }
}

#[async_trait]
impl LogWriter for MemoryWriter {
    fn epoch(&self) -> Epoch {
        self.epoch
    }

    fn tail(&self) -> LogOffset {
        let state = self.log.0.state.lock();
        LogOffset(state.log_start + state.slots.len() as u64)
    }

    async fn append(&mut self, entries: Vec<Bytes>) -> Result<LogOffset, LogError> {
        self.log.wait().await;
        let mut state = self.log.0.state.lock();
        self.check_epoch(&state)?;
        let offset = LogOffset(state.log_start + state.slots.len() as u64);
        state.slots.push(Slot {
            offset,
            epoch: self.epoch,
            entries,
        });
        self.log.0.tail.send_replace(offset.next());
        Ok(offset)
    }

    async fn install_snapshot(
        &mut self,
        snapshot: SnapshotRef,
        log_start: LogOffset,
    ) -> Result<(), LogError> {
        let mut state = self.log.0.state.lock();
        self.check_epoch(&state)?;
        let log_start = log_start.min(snapshot.offset).0.max(state.log_start);
        state.slots.retain(|slot| slot.offset.0 >= log_start);
        state.log_start = log_start;
        state.snapshot = Some(snapshot);
        Ok(())
    }

    async fn check(&mut self) -> Result<(), LogError> {
        let mut state = self.log.0.state.lock();
        state.checks += 1;
        if state.unavailable {
            return Err(LogError::Unavailable("test".to_owned()));
        }
        self.check_epoch(&state)?;
        Ok(())
    }
}
