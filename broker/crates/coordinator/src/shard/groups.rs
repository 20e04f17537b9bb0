//! Storage of consumer groups and their offsets. What a group's metadata means is the business of crate `groups`.

use bytes::Bytes;
use rusqlite::{Connection, Row};
use types::{Timestamp, TopicId};
use uuid::Uuid;

use super::apply::{Applying, Done};
use super::entry::{GroupPut, Offset};
use super::{Command, OffsetCommit, Output, ShardService};
use crate::replica::ReplicaError;

/// A group as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredGroup {
    /// Group id.
    pub group: String,
    /// As given to [`ShardService::put_group`]. `None`: the group only ever committed offsets.
    pub metadata: Option<Bytes>,
}

/// An offset as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredOffset {
    /// What was committed.
    pub commit: OffsetCommit,
    /// When, by the time of the log.
    pub committed_at: Timestamp,
}

impl ShardService {
    /// Replaces a group's metadata and commits `offsets` with it, as one. `None` deletes the group and all its
    /// offsets. Returns when that is durable.
    pub async fn put_group(
        &self,
        group: String,
        metadata: Option<Bytes>,
        offsets: Vec<OffsetCommit>,
    ) -> Result<(), ReplicaError> {
        self.submit(Command::PutGroup {
            group,
            metadata,
            offsets,
        })
        .await
        .map(done)
    }

    /// Stores offsets of a group, all or nothing. Returns when they are durable. False: nothing is stored, one of the
    /// topics has been deleted.
    pub async fn commit_offsets(
        &self,
        group: String,
        offsets: Vec<OffsetCommit>,
    ) -> Result<bool, ReplicaError> {
        let output = self.submit(Command::CommitOffsets { group, offsets }).await?;
        Ok(!matches!(output, Output::Refused(_)))
    }

    /// Forgets offsets of a group, named by topic and partition; those that are not there are no error.
    pub async fn delete_offsets(
        &self,
        group: String,
        partitions: Vec<(String, i32)>,
    ) -> Result<(), ReplicaError> {
        self.submit(Command::DeleteOffsets { group, partitions })
            .await
            .map(done)
    }

    /// All groups, by id: with metadata, with offsets only, or both. For the start of a group coordinator. Strict.
    pub async fn load_groups(&self) -> Result<Vec<StoredGroup>, ReplicaError> {
        self.strict_scan(load_groups).await
    }

    /// The offsets of a group, by topic and partition. `None`: all. Those that were never committed are left out.
    /// Strict: it sees every commit that was answered before.
    pub async fn fetch_offsets(
        &self,
        group: String,
        partitions: Option<Vec<(String, i32)>>,
    ) -> Result<Vec<StoredOffset>, ReplicaError> {
        self.strict_scan(move |db| fetch_offsets(db, &group, partitions.as_deref()))
            .await
    }
}

fn done(_: Output) {}

pub(super) fn load_groups(db: &Connection) -> rusqlite::Result<Vec<StoredGroup>> {
    let mut rows = db.prepare_cached(&format!(
        "SELECT id, metadata FROM groups
         UNION ALL
         SELECT DISTINCT group_id, NULL FROM offsets WHERE {VISIBLE} AND group_id NOT IN (SELECT id FROM groups)
         ORDER BY 1"
    ))?;
    let groups = rows.query_map((), |row| {
        let metadata: Option<Vec<u8>> = row.get(1)?;
        Ok(StoredGroup {
            group: row.get(0)?,
            metadata: metadata.map(Bytes::from),
        })
    })?;
    groups.collect()
}

/// Offsets of deleted topics are there until they are purged.
const VISIBLE: &str = "NOT EXISTS (SELECT 1 FROM deleted_offsets d WHERE d.name = offsets.topic AND d.topic = offsets.topic_id)";

const OFFSET: &str =
    "SELECT topic, topic_id, partition, offset, leader_epoch, metadata, committed_at FROM offsets";

pub(super) fn fetch_offsets(
    db: &Connection,
    group: &str,
    partitions: Option<&[(String, i32)]>,
) -> rusqlite::Result<Vec<StoredOffset>> {
    let Some(partitions) = partitions else {
        let mut all = db.prepare_cached(&format!(
            "{OFFSET} WHERE {VISIBLE} AND group_id = ? ORDER BY topic, partition"
        ))?;
        return all.query_map((group,), stored_offset)?.collect();
    };
    let mut one = db.prepare_cached(&format!(
        "{OFFSET} WHERE {VISIBLE} AND group_id = ? AND topic = ? AND partition = ?"
    ))?;
    let mut found = Vec::with_capacity(partitions.len());
    for (topic, partition) in partitions {
        for row in one.query_map((group, topic, partition), stored_offset)? {
            found.push(row?);
        }
    }
    Ok(found)
}

fn stored_offset(row: &Row<'_>) -> rusqlite::Result<StoredOffset> {
    let topic_id: Option<[u8; 16]> = row.get(1)?;
    let commit = OffsetCommit {
        topic: row.get(0)?,
        topic_id: topic_id.map(|id| TopicId(Uuid::from_bytes(id))),
        partition: row.get(2)?,
        offset: row.get(3)?,
        leader_epoch: row.get(4)?,
        metadata: row.get(5)?,
    };
    Ok(StoredOffset {
        commit,
        committed_at: Timestamp(row.get(6)?),
    })
}

impl Applying<'_> {
    pub(super) fn group_put(&mut self, time: Timestamp, put: &GroupPut) -> Done {
        match &put.metadata {
            Some(metadata) => {
                self.db
                    .prepare_cached(
                        "INSERT INTO groups VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET metadata = excluded.metadata",
                    )?
                    .execute((&put.group, &metadata[..]))?;
            }
            None => {
                self.db
                    .prepare_cached("DELETE FROM groups WHERE id = ?")?
                    .execute((&put.group,))?;
                self.db
                    .prepare_cached("DELETE FROM offsets WHERE group_id = ?")?
                    .execute((&put.group,))?;
            }
        }
        self.offsets(time, &put.group, &put.offsets)
    }

    pub(super) fn offsets(&mut self, time: Timestamp, group: &str, offsets: &[Offset]) -> Done {
        let mut put = self.db.prepare_cached(
            "INSERT INTO offsets VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (group_id, topic, partition) DO UPDATE SET
             topic_id = excluded.topic_id, offset = excluded.offset, leader_epoch = excluded.leader_epoch,
             metadata = excluded.metadata, committed_at = excluded.committed_at",
        )?;
        let mut deleted = self.db.prepare_cached("SELECT 1 FROM deleted_offsets")?;
        let deleted = deleted.exists(())?;
        for commit in offsets {
            if let Some(topic) = commit.topic_id.filter(|_| deleted) {
                self.offsets_revived(&commit.topic, topic)?;
            }
            put.execute((
                group,
                &commit.topic,
                commit.partition,
                commit.topic_id.map(|id| *id.0.as_bytes()),
                commit.offset,
                commit.leader_epoch,
                &commit.metadata,
                time.0,
            ))?;
        }
        Ok(())
    }
}
