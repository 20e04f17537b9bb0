//! Tests of the shard; here is what they share.

mod commit;
mod cost;
mod earlier_releases;
mod file_jobs;
mod files;
mod follower;
mod growth;
mod limits;
mod property;
mod purge;
mod reads;
mod retention;
mod service;
mod snapshot;
mod versions;

use std::sync::Arc;

use bytes::Bytes;
use metalog::SnapshotBody;
use rusqlite::Connection;
use rusqlite::types::Value;
use types::{LogOffset, NodeId, ShardId, Timestamp, TopicId, TopicPartition};
use uuid::Uuid;

use super::producer::Producer;
use super::state::{ShardState, Shared};
use super::{Command, Features, Output};

use crate::protocol::*;
use crate::replica::{Staged, StateError, StateMachine};

pub const SHARD: ShardId = ShardId(0);

/// A state machine with a log, driven by hand.
pub struct Shard {
    pub state: ShardState,
    pub shared: Arc<Shared>,
    pub log: Vec<Vec<Bytes>>,
    pub now: i64,
    pub dir: tempfile::TempDir,
}

impl Shard {
    pub fn new() -> Shard {
        Shard::with_id(SHARD)
    }

    pub fn with_id(shard: ShardId) -> Shard {
        Shard::with(shard, Features::default())
    }

    pub fn with(shard: ShardId, features: Features) -> Shard {
        let dir = tempfile::tempdir().unwrap();
        let shared = Shared::new(dir.path());
        let state = ShardState::create(shard, dir.path(), shared.clone(), features).unwrap();
        Shard {
            state,
            shared,
            log: Vec::new(),
            now: 1_000_000,
            dir,
        }
    }

    pub fn judge(&mut self, command: &Command) -> (Output, Option<Bytes>) {
        let judged = self.state.speculate(Timestamp(self.now), command).unwrap();
        (judged.output, judged.entry)
    }

    pub fn apply(&mut self, entries: Vec<Bytes>) {
        self.state.rollback().unwrap();
        self.state
            .apply(LogOffset(self.log.len() as u64), &entries)
            .unwrap();
        self.log.push(entries);
    }

    /// Judges and applies one command.
    pub fn run(&mut self, command: Command) -> Output {
        let (output, entry) = self.judge(&command);
        self.apply(entry.into_iter().collect());
        output
    }

    pub fn create(&mut self, topic: u128, partitions: i32) {
        self.run(create(topic, partitions));
    }

    pub fn commit(&mut self, object: u128, batches: Vec<BatchRequest>) -> Vec<BatchResult> {
        match self.run(Command::CommitFile(file(object, batches))) {
            Output::Committed {
                error_code: 0,
                batches,
            } => batches,
            other => panic!("{other:?}"),
        }
    }

    pub fn refusal(&mut self, request: CommitFileRequest) -> i16 {
        match self.run(Command::CommitFile(request)) {
            Output::Committed { error_code, batches } if batches.is_empty() => error_code,
            other => panic!("{other:?}"),
        }
    }

    pub fn delete_records(&mut self, id: TopicPartition, offset: i64) -> DeleteRecordsResult {
        let partitions = vec![DeleteRecordsPartition {
            partition: id,
            offset,
        }];
        match self.run(Command::DeleteRecords(partitions)) {
            Output::RecordsDeleted(mut results) => results.remove(0),
            other => panic!("{other:?}"),
        }
    }

    pub fn purge(&mut self) {
        while self.run(Command::Purge { max_batches: 3 }) == Output::Purged(true) {}
    }

    /// The bytes of a snapshot, and the last slot in it.
    pub fn snapshot(&mut self) -> (LogOffset, Vec<u8>) {
        let (last, body) = self.state.begin_snapshot().unwrap()().unwrap();
        let SnapshotBody::File(file) = body else {
            panic!("a snapshot that is not in a file")
        };
        (last, std::fs::read(file.path()).unwrap())
    }

    /// Replaces the state by a snapshot that comes in pieces of so many bytes.
    pub fn restore(&mut self, last: LogOffset, snapshot: &[u8], piece: usize) -> Result<(), StateError> {
        let mut staged = self.state.stage()?;
        for piece in snapshot.chunks(piece) {
            staged.push(piece)?;
        }
        self.state.restore(last, staged)
    }

    pub fn read<T>(&self, read: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> T {
        self.shared.readers.read(read).unwrap()
    }

    pub fn count(&self, sql: &str) -> i64 {
        self.read(|db| db.query_row(sql, (), |row| row.get(0)))
    }

    /// Every row of every table.
    pub fn dump(&self) -> Vec<(String, Vec<Value>)> {
        self.read(dump)
    }
}

/// Every row of every table, as snapshots have them: without those that only wait for their purge.
pub fn dump(db: &Connection) -> rusqlite::Result<Vec<(String, Vec<Value>)>> {
    let tables = [
        "meta",
        "partitions",
        "batches",
        "garbage",
        "files",
        "producers",
        "groups",
        "offsets",
        "deleted_topics",
    ];
    let mut all = Vec::new();
    for table in tables {
        let order = match table {
            "groups" | "deleted_topics" => "1",
            _ => "1, 2, 3",
        };
        let columns = match table {
            "files" => "id, object, uploader, size, owners, ifnull((SELECT count FROM live_batches WHERE file = id), 0),
                committed_at, state, state_since, results",
            _ => "*",
        };
        let kept = match table {
            "producers" => "num NOT IN (SELECT num FROM deleted_producers)",
            "offsets" => {
                "NOT EXISTS (SELECT 1 FROM deleted_offsets d WHERE d.name = offsets.topic AND d.topic = topic_id)"
            }
            _ => "true",
        };
        let mut select = db.prepare(&format!(
            "SELECT {columns} FROM {table} WHERE {kept} ORDER BY {order}"
        ))?;
        let columns = select.column_count();
        let mut rows = select.query(())?;
        while let Some(row) = rows.next()? {
            let row: Result<Vec<Value>, _> = (0..columns).map(|column| row.get(column)).collect();
            all.push((table.to_owned(), row?));
        }
    }
    Ok(all)
}

pub fn topic(n: u128) -> TopicId {
    TopicId(Uuid::from_u128(n))
}

pub fn tp(n: u128, partition: i32) -> TopicPartition {
    TopicPartition {
        topic: topic(n),
        partition,
    }
}

pub fn object(n: u128) -> Uuid {
    Uuid::from_u128(n)
}

pub fn create(n: u128, partitions: i32) -> Command {
    Command::CreatePartitions(CreatePartitionsRequest {
        shard: SHARD,
        topic: topic(n),
        name: format!("t{n}"),
        partitions: (0..partitions).collect(),
    })
}

pub fn delete_topic(n: u128) -> Command {
    Command::DeleteTopics(vec![DeleteTopic {
        topic: topic(n),
        name: format!("t{n}"),
    }])
}

/// A file of this shard alone.
pub fn file(n: u128, mut batches: Vec<BatchRequest>) -> CommitFileRequest {
    let mut position = 1;
    for batch in &mut batches {
        batch.position = position;
        position += batch.size;
    }
    let (size, owners) = (u64::from(position), vec![SHARD]);
    CommitFileRequest {
        shard: SHARD,
        object: object(n),
        uploader: NodeId(1),
        size,
        owners,
        batches,
    }
}

/// A batch of `records` without a producer.
pub fn plain(id: TopicPartition, records: i32) -> BatchRequest {
    BatchRequest {
        must_follow: false,
        topic: id.topic,
        partition: id.partition,
        position: 0,
        size: 100,
        last_offset_delta: records - 1,
        max_timestamp: Timestamp(5_000),
        log_append_time: false,
        producer_id: -1,
        producer_epoch: -1,
        base_sequence: -1,
    }
}

/// A batch of an idempotent producer.
pub fn idem(id: TopicPartition, records: i32, producer: i64, epoch: i16, sequence: i32) -> BatchRequest {
    BatchRequest {
        must_follow: false,
        producer_id: producer,
        producer_epoch: epoch,
        base_sequence: sequence,
        ..plain(id, records)
    }
}

pub fn ok(base_offset: i64) -> BatchResult {
    let log_append_time = Timestamp(-1);
    BatchResult {
        error_code: 0,
        base_offset,
        log_append_time,
        log_start_offset: 0,
        duplicate: false,
    }
}

pub fn duplicate(base_offset: i64) -> BatchResult {
    BatchResult {
        duplicate: true,
        ..ok(base_offset)
    }
}

pub fn error(error_code: i16) -> BatchResult {
    BatchResult { error_code, ..ok(-1) }
}

#[test]
fn a_producer_is_read_back_as_it_was_stored() {
    use super::producer::{Remembered, accepted};
    let mut producer = None;
    for n in 0..7 {
        let batch = Remembered {
            base_sequence: n * 10,
            last_sequence: n * 10 + 9,
            base_offset: i64::from(n) * 100,
            log_append_time: Timestamp(i64::from(n) - 1),
        };
        producer = Some(accepted(producer, 3, batch, Timestamp(77)));
    }
    let producer = producer.unwrap();
    assert_eq!(
        Producer::unpack(3, Timestamp(77), &producer.pack()).unwrap(),
        producer
    );
    assert!(Producer::unpack(3, Timestamp(77), &producer.pack()[1..]).is_err());
    assert_eq!(producer.pack().len(), 5 * 24, "five batches are remembered");
}
