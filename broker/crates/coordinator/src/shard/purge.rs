//! Deleting in steps what nobody sees any more: batches below a log start or of a deleted partition, then producers and group offsets
//! of deleted topics.
//!
//! A `Purged` entry says how many rows go. Which batches these are is part of what the entry means, the same in every release (ADR 0012):
//! files die with their last batch, and what is dead is handed over and deleted. Producers and offsets come out of what is left of the
//! limit, and need not be the same rows everywhere. The first releases deleted them at once with the entry that deleted the topic (the
//! partition's last batch), so in a roll one node has rows that another has not. Nobody can tell: of a partition that is gone no producer
//! is asked for, offsets in `deleted_offsets` are left out of every answer, and snapshots have neither.

use rusqlite::{OptionalExtension, Params};
use types::{Timestamp, TopicId, TopicPartition};

use super::apply::{Applying, Done, unpack_owners};
use super::{schema, time_index};
use crate::replica::StateError;

impl Applying<'_> {
    /// Deletes garbage rows, and lets go of the files that hold their bytes.
    pub(super) fn purge(&mut self, time: Timestamp, limit: u32) -> Done {
        let left = self.purge_batches(time, i64::from(limit))?;
        let left = self.purge_producers(left)?;
        self.purge_offsets(left)
    }

    /// Says how much of `left` is left.
    fn purge_batches(&mut self, time: Timestamp, mut left: i64) -> Result<i64, StateError> {
        while left > 0 {
            let garbage = self
                .db
                .prepare_cached("SELECT num, topic, partition, below FROM garbage ORDER BY num LIMIT 1")?
                .query_row((), |row| {
                    let id = TopicPartition {
                        topic: TopicId(schema::uuid(row, 1)?),
                        partition: row.get(2)?,
                    };
                    Ok((row.get::<_, u32>(0)?, id, row.get::<_, i64>(3)?))
                })
                .optional()?;
            let Some((num, id, below)) = garbage else { break };
            let cut: Option<i64> = self
                .db
                .prepare_cached(
                    "SELECT last_offset FROM batches WHERE num = ? AND last_offset < ?
                     ORDER BY last_offset LIMIT 1 OFFSET ?",
                )?
                .query_row((num, below, left), |row| row.get(0))
                .optional()?;
            // `cut` is the first row that stays for the next time.
            let end = cut.unwrap_or(below);
            left -= self.delete_batches(time, num, &id, end)?;
            if cut.is_none() {
                self.db
                    .prepare_cached("DELETE FROM garbage WHERE num = ?")?
                    .execute((num,))?;
                // A partition costs something even without batches.
                left -= 1;
                if self
                    .partitions
                    .get(&id)
                    .is_none_or(|partition| partition.num != num)
                {
                    self.db
                        .prepare_cached("INSERT OR IGNORE INTO deleted_producers VALUES (?)")?
                        .execute((num,))?;
                }
            }
        }
        Ok(left)
    }

    /// Says how much of `left` is left.
    fn purge_producers(&self, mut left: i64) -> Result<i64, StateError> {
        while left > 0 {
            let num: Option<u32> = self
                .db
                .prepare_cached("SELECT num FROM deleted_producers ORDER BY num LIMIT 1")?
                .query_row((), |row| row.get(0))
                .optional()?;
            let Some(num) = num else { break };
            let cut: Option<i64> = self
                .db
                .prepare_cached(
                    "SELECT producer FROM producers WHERE num = ? ORDER BY producer LIMIT 1 OFFSET ?",
                )?
                .query_row((num, left), |row| row.get(0))
                .optional()?;
            left -= match cut {
                Some(cut) => {
                    self.delete("DELETE FROM producers WHERE num = ? AND producer < ?", (num, cut))?
                }
                None => {
                    self.delete("DELETE FROM producers WHERE num = ?", (num,))?
                        + self.delete("DELETE FROM deleted_producers WHERE num = ?", (num,))?
                }
            };
        }
        Ok(left)
    }

    fn purge_offsets(&self, mut left: i64) -> Done {
        while left > 0 {
            let topic: Option<(String, [u8; 16])> = self
                .db
                .prepare_cached("SELECT name, topic FROM deleted_offsets ORDER BY name, topic LIMIT 1")?
                .query_row((), |row| Ok((row.get(0)?, row.get(1)?)))
                .optional()?;
            let Some((name, topic)) = topic else { break };
            let mut some = self.db.prepare_cached(
                "SELECT group_id, partition FROM offsets WHERE topic = ? AND topic_id = ? ORDER BY group_id, partition LIMIT ?",
            )?;
            let some = some.query_map((&name, topic, left), |row| Ok((row.get(0)?, row.get(1)?)))?;
            let some: Vec<(String, i32)> = some.collect::<Result<_, _>>()?;
            for (group, partition) in some {
                let sql = "DELETE FROM offsets WHERE group_id = ? AND topic = ? AND partition = ?";
                left -= self.delete(sql, (group, &name, partition))?;
            }
            if left > 0 {
                left -= self.delete(
                    "DELETE FROM deleted_offsets WHERE name = ? AND topic = ?",
                    (name, topic),
                )?;
            }
        }
        Ok(())
    }

    /// Says how many rows that were.
    fn delete(&self, sql: &str, parameters: impl Params) -> Result<i64, StateError> {
        let rows = self.db.prepare_cached(sql)?.execute(parameters)?;
        Ok(i64::try_from(rows).unwrap_or(i64::MAX))
    }

    /// Hides the offsets of a deleted topic. Those without a topic's id are the topic's by their name alone and go at once: with a row
    /// of the same name that comes later they could not be told apart. Brokers name the id of every topic they know, so there are none
    /// in practice.
    pub(super) fn offsets_deleted(&self, name: &str, topic: TopicId) -> Done {
        self.delete(
            "DELETE FROM offsets WHERE topic = ? AND topic_id IS NULL",
            (name,),
        )?;
        self.db
            .prepare_cached(
                "INSERT OR IGNORE INTO deleted_offsets SELECT ?1, ?2
                 WHERE EXISTS (SELECT 1 FROM offsets WHERE topic = ?1 AND topic_id = ?2)",
            )?
            .execute((name, topic.0.as_bytes()))?;
        Ok(())
    }

    /// An offset of a deleted topic is about to be stored all the same. Leaders refuse that for a day, so hardly anything can be left; it
    /// goes now, because what comes is to be seen.
    pub(super) fn offsets_revived(&self, name: &str, topic: TopicId) -> Done {
        let topic = topic.0.as_bytes();
        if self.delete(
            "DELETE FROM deleted_offsets WHERE name = ? AND topic = ?",
            (name, topic),
        )? > 0
        {
            self.delete(
                "DELETE FROM offsets WHERE topic = ? AND topic_id = ?",
                (name, topic),
            )?;
        }
        Ok(())
    }

    fn delete_batches(
        &mut self,
        time: Timestamp,
        num: u32,
        id: &TopicPartition,
        end: i64,
    ) -> Result<i64, StateError> {
        let mut select = self.db.prepare_cached(
            "SELECT file, count(*), sum(size) FROM batches WHERE num = ? AND last_offset < ? GROUP BY file ORDER BY file",
        )?;
        let files = select.query_map((num, end), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        let files: Vec<(i64, i64, i64)> = files.collect::<Result<_, _>>()?;
        self.db
            .prepare_cached("DELETE FROM batches WHERE num = ? AND last_offset < ?")?
            .execute((num, end))?;
        time_index::delete(self.db, num, end)?;
        let mut deleted = 0;
        for (file, count, bytes) in files {
            deleted += count;
            if let Some(partition) = self
                .partitions
                .get_mut(id)
                .filter(|partition| partition.num == num)
            {
                partition.bytes = partition.bytes.saturating_sub(bytes.cast_unsigned());
                self.changed.insert(*id);
            }
            let live: i64 = self
                .db
                .prepare_cached("UPDATE live_batches SET count = count - ? WHERE file = ? RETURNING count")?
                .query_row((count, file), |row| row.get(0))?;
            if live == 0 {
                self.file_died(time, file)?;
            }
        }
        Ok(deleted)
    }

    fn file_died(&self, time: Timestamp, file: i64) -> Done {
        self.db
            .prepare_cached("DELETE FROM live_batches WHERE file = ?")?
            .execute((file,))?;
        let owners: Vec<u8> = self
            .db
            .prepare_cached("SELECT owners FROM files WHERE id = ?")?
            .query_row((file,), |row| row.get(0))?;
        let state = self.dead_state(&unpack_owners(&owners));
        self.db
            .prepare_cached("UPDATE files SET live = 0, state = ?, state_since = ? WHERE id = ?")?
            .execute((state, time.0, file))?;
        Ok(())
    }
}
