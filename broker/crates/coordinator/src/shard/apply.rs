//! Making slots part of the committed state: one SQLite transaction, without a check that could fail.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension};
use types::{FastMap, LogOffset, ShardId, Timestamp, TopicPartition};

use super::entry::{
    Change, ExpiredEntry, FileCommitted, FileTakenOver, Objects, PartitionBatches, PartitionsCreated,
    RecordsDeleted, TopicsDeleted, decode,
};
use super::packed::Packed;
use super::producer::{self, Producer, Remembered};
use super::schema::file_state;
use super::state::{Counters, Partition, ShardState, read_producer};
use super::time_index;
use crate::protocol::{Coordinate, TailUpdate};
use crate::replica::StateError;

pub(super) type Done = Result<(), StateError>;

/// How long a deleted topic is remembered, ms: far longer than any request that would create it can be on its way.
const DELETED_TOPIC: i64 = 24 * 3600 * 1000;

impl ShardState {
    /// Applies slots that follow each other in one transaction; those that are applied already are left out.
    pub(super) fn apply_transaction(&mut self, slots: &[(LogOffset, &[Bytes])]) -> Done {
        let mut expected = self.applied.map_or(LogOffset(0), LogOffset::next);
        let fresh = slots.iter().filter(|(offset, _)| *offset >= expected);
        let fresh: Vec<_> = fresh.copied().collect();
        if fresh.is_empty() {
            return Ok(());
        }
        let transaction = self.db.unchecked_transaction()?;
        // On an error memory and file part ways: the replica ends, and the view is built anew.
        let mut applying = Applying {
            db: &transaction,
            shard: self.shard,
            partitions: &mut self.partitions,
            counters: &mut self.counters,
            changed: BTreeSet::new(),
            producers: BTreeMap::new(),
            batches: 0,
            news: Vec::new(),
            news_index: FastMap::default(),
        };
        let mut news = Vec::with_capacity(fresh.len());
        for (offset, entries) in fresh {
            if offset != expected {
                return Err(StateError::Corrupt(format!(
                    "slot {offset} follows, but {expected} is next"
                )));
            }
            // A fencing slot: a new leader begins here.
            if entries.is_empty() && env::mutation("forget-dedupe") {
                applying.db.execute("DELETE FROM producers", ())?;
            }
            if entries.is_empty() && env::mutation("forget-offsets") {
                applying.db.execute("DELETE FROM offsets", ())?;
            }
            for entry in entries {
                let (time, change) = decode(entry.clone(), self.features.supported)?;
                applying.counters.log_time = time;
                applying.apply(time, change)?;
            }
            news.push((offset, applying.take_news()));
            expected = offset.next();
        }
        let batches = applying.batches;
        let Some(last) = news.last().map(|(offset, _)| *offset) else {
            return Ok(());
        };
        applying.finish(last)?;
        transaction.commit()?;
        self.applied = Some(last);
        self.shared.batches.fetch_add(batches, Ordering::Relaxed);
        for (offset, updates) in news {
            self.shared.tail.push(offset, updates);
        }
        self.forget_pending();
        self.shrink_if_due()?;
        self.checkpoint_if_due()
    }
}

/// Slots that are being applied. Partitions and producers are written once, at the end.
pub(super) struct Applying<'a> {
    pub(super) db: &'a Connection,
    shard: ShardId,
    pub(super) partitions: &'a mut FastMap<TopicPartition, Partition>,
    counters: &'a mut Counters,
    pub(super) changed: BTreeSet<TopicPartition>,
    producers: BTreeMap<(u32, i64), Producer>,
    batches: u64,
    /// Of the slot that is being applied.
    news: Vec<TailUpdate>,
    news_index: FastMap<TopicPartition, usize>,
}

impl Applying<'_> {
    fn apply(&mut self, time: Timestamp, change: Change) -> Done {
        match change {
            Change::PartitionsCreated(created) => self.partitions_created(&created),
            Change::TopicsDeleted(deleted) => self.topics_deleted(time, &deleted),
            Change::FileCommitted(file) | Change::FilePacked(Packed(file)) => self.file_committed(time, file),
            Change::RecordsDeleted(deleted) => self.records_deleted(&deleted),
            Change::Purged(purged) => self.purge(time, purged.limit),
            Change::FileTakenOver(file) => self.taken_over(time, &file),
            Change::FilesHandedOver(files) => self.tombstones(time, &files, file_state::HAND_OVER),
            Change::FilesDeleted(files) => self.tombstones(time, &files, file_state::DELETE),
            Change::GroupPut(put) => self.group_put(time, &put),
            Change::OffsetsCommitted(committed) => self.offsets(time, &committed.group, &committed.offsets),
            Change::OffsetsDeleted(deleted) => {
                let mut delete = self.db.prepare_cached(
                    "DELETE FROM offsets WHERE group_id = ? AND topic = ? AND partition = ?",
                )?;
                for (topic, partition) in &deleted.partitions {
                    delete.execute((&deleted.group, topic, partition))?;
                }
                Ok(())
            }
            Change::Expired(expired) => self.expired(&expired),
        }
    }

    fn partitions_created(&mut self, created: &PartitionsCreated) -> Done {
        let mut insert = self
            .db
            .prepare_cached("INSERT INTO partitions VALUES (?, ?, ?, 0, 0, 0, -1)")?;
        for &(index, num) in &created.partitions {
            let id = TopicPartition {
                topic: created.topic,
                partition: index,
            };
            insert.execute((id.topic.0.as_bytes(), index, num))?;
            self.partitions.insert(id, Partition::new(num));
            self.counters.next_num = self.counters.next_num.max(num + 1);
            self.tell(id).high_watermark = 0;
        }
        Ok(())
    }

    fn topics_deleted(&mut self, time: Timestamp, deleted: &TopicsDeleted) -> Done {
        self.db
            .prepare_cached("DELETE FROM deleted_topics WHERE at < ?")?
            .execute((time.plus(-DELETED_TOPIC).0,))?;
        for topic in &deleted.topics {
            let mut gone: Vec<_> = self
                .partitions
                .keys()
                .filter(|id| id.topic == topic.topic)
                .copied()
                .collect();
            gone.sort_unstable();
            for id in gone {
                let Some(partition) = self.partitions.remove(&id) else {
                    continue;
                };
                self.changed.remove(&id);
                self.producers.retain(|(num, _), _| *num != partition.num);
                self.db
                    .prepare_cached("DELETE FROM partitions WHERE topic = ? AND partition = ?")?
                    .execute((id.topic.0.as_bytes(), id.partition))?;
                self.garbage(partition.num, &id, i64::MAX)?;
                self.tell(id).deleted = true;
            }
            self.offsets_deleted(&topic.name, topic.topic)?;
            self.db
                .prepare_cached("INSERT OR REPLACE INTO deleted_topics VALUES (?, ?)")?
                .execute((topic.topic.0.as_bytes(), time.0))?;
        }
        Ok(())
    }

    fn garbage(&self, num: u32, id: &TopicPartition, below: i64) -> Done {
        self.db
            .prepare_cached(
                "INSERT INTO garbage VALUES (?, ?, ?, ?) ON CONFLICT (num) DO UPDATE SET below = excluded.below",
            )?
            .execute((num, id.topic.0.as_bytes(), id.partition, below))?;
        Ok(())
    }

    fn file_committed(&mut self, time: Timestamp, file: FileCommitted) -> Done {
        let live: usize = file
            .partitions
            .iter()
            .map(|partition| partition.batches.len())
            .sum();
        let state = if live > 0 {
            file_state::LIVE
        } else {
            self.dead_state(&file.owners)
        };
        self.db
            .prepare_cached("INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")?
            .execute((
                file.id.cast_signed(),
                file.object.as_bytes(),
                file.uploader.0,
                file.size.cast_signed(),
                pack_owners(&file.owners),
                live.cast_signed() as i64,
                time.0,
                state,
                time.0,
                &file.results[..],
            ))?;
        if live > 0 {
            self.db
                .prepare_cached("INSERT INTO live_batches VALUES (?, ?)")?
                .execute((file.id.cast_signed(), live.cast_signed() as i64))?;
        }
        self.counters.next_file = self.counters.next_file.max(file.id + 1);
        for batches in &file.partitions {
            self.batches(time, &file, batches)?;
        }
        Ok(())
    }

    fn batches(&mut self, time: Timestamp, file: &FileCommitted, committed: &PartitionBatches) -> Done {
        let id = committed.partition;
        let partition = self
            .partitions
            .get(&id)
            .copied()
            .filter(|partition| partition.num == committed.num);
        let mut partition = partition
            .filter(|partition| partition.high_watermark == committed.base_offset)
            .ok_or_else(|| {
                StateError::Corrupt(format!("{id}: batches at {} do not fit", committed.base_offset))
            })?;
        let mut insert = self
            .db
            .prepare_cached("INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?, ?, ?)")?;
        let mut coordinates = Vec::with_capacity(committed.batches.len());
        self.batches += committed.batches.len() as u64;
        for batch in &committed.batches {
            let base_offset = partition.high_watermark;
            let last_offset = base_offset + i64::from(batch.last_offset_delta);
            insert.execute((
                committed.num,
                last_offset,
                batch.last_offset_delta,
                file.id.cast_signed(),
                batch.position,
                batch.size,
                batch.timestamp.0,
                batch.log_append_time,
            ))?;
            time_index::add(self.db, committed.num, last_offset)?;
            let log_append_time = if batch.log_append_time {
                batch.timestamp
            } else {
                Timestamp(-1)
            };
            if let Some(producer) = &batch.producer {
                let key = (committed.num, producer.id);
                let known = match self.producers.remove(&key) {
                    Some(known) => Some(known),
                    None => read_producer(self.db, key.0, key.1)?,
                };
                let last_sequence = producer::last_sequence(producer.base_sequence, batch.last_offset_delta);
                let base_sequence = producer.base_sequence;
                let remembered = Remembered {
                    base_sequence,
                    last_sequence,
                    base_offset,
                    log_append_time,
                };
                self.producers
                    .insert(key, producer::accepted(known, producer.epoch, remembered, time));
            }
            partition.high_watermark = last_offset + 1;
            partition.append_time = partition.append_time.max(log_append_time);
            partition.bytes += u64::from(batch.size);
            coordinates.push(Coordinate {
                base_offset,
                last_offset,
                object: file.object,
                object_size: file.size,
                position: batch.position,
                size: batch.size,
                max_timestamp: batch.timestamp,
                log_append_time,
            });
        }
        self.partitions.insert(id, partition);
        self.changed.insert(id);
        self.tell(id).batches.append(&mut coordinates);
        Ok(())
    }

    fn records_deleted(&mut self, deleted: &RecordsDeleted) -> Done {
        for (id, log_start) in &deleted.partitions {
            let Some(partition) = self.partitions.get_mut(id) else {
                continue;
            };
            partition.log_start = *log_start;
            let num = partition.num;
            self.changed.insert(*id);
            self.garbage(num, id, *log_start)?;
            self.tell(*id);
        }
        Ok(())
    }

    /// The state of a file whose last batch here is gone.
    pub(super) fn dead_state(&self, owners: &[ShardId]) -> i64 {
        match owners {
            [first, ..] if *first != self.shard => file_state::WAITING,
            [_, _, ..] if !env::mutation("delete-shared-file") => file_state::HAND_OVER,
            _ => file_state::DELETE,
        }
    }

    fn taken_over(&mut self, time: Timestamp, file: &FileTakenOver) -> Done {
        let object = file.object.as_bytes();
        let state: Option<i64> = self
            .db
            .prepare_cached("SELECT state FROM files WHERE object = ?")?
            .query_row((object,), |row| row.get(0))
            .optional()?;
        let owners = pack_owners(&file.owners);
        let dead = self.dead_state(&file.owners);
        let state = match env::mutation("take-over-live") {
            true => state.map(|_| file_state::WAITING),
            false => state,
        };
        match state {
            None => {
                self.db
                    .prepare_cached("INSERT INTO files VALUES (?, ?, -1, ?, ?, 0, ?, ?, ?, NULL)")?
                    .execute((
                        file.id.cast_signed(),
                        object,
                        file.size.cast_signed(),
                        owners,
                        time.0,
                        dead,
                        time.0,
                    ))?;
                self.counters.next_file = self.counters.next_file.max(file.id + 1);
            }
            Some(file_state::LIVE) => {
                self.db
                    .prepare_cached("UPDATE files SET owners = ? WHERE object = ?")?
                    .execute((owners, object))?;
            }
            Some(file_state::WAITING) => {
                self.db
                    .prepare_cached(
                        "UPDATE files SET owners = ?, state = ?, state_since = ? WHERE object = ?",
                    )?
                    .execute((owners, dead, time.0, object))?;
            }
            // It was taken over before.
            Some(_) => {}
        }
        Ok(())
    }

    fn tombstones(&mut self, time: Timestamp, files: &Objects, from: i64) -> Done {
        let mut update = self
            .db
            .prepare_cached("UPDATE files SET state = ?, state_since = ? WHERE object = ? AND state = ?")?;
        for object in &files.objects {
            update.execute((file_state::TOMBSTONE, time.0, object.as_bytes(), from))?;
        }
        Ok(())
    }

    fn expired(&mut self, expired: &ExpiredEntry) -> Done {
        let before = expired.producers_before;
        let mut delete = self
            .db
            .prepare_cached("DELETE FROM producers WHERE num = ? AND producer = ? AND used_at < ?")?;
        for key in &expired.producers {
            // Used again in this very transaction: its row is about to be written anew.
            if self
                .producers
                .get(key)
                .is_some_and(|producer| producer.used_at >= before)
            {
                continue;
            }
            self.producers.remove(key);
            delete.execute((key.0, key.1, before.0))?;
        }
        let mut forget = self
            .db
            .prepare_cached("UPDATE files SET results = NULL WHERE id = ?")?;
        for id in &expired.results {
            forget.execute((id.cast_signed(),))?;
        }
        let mut delete = self
            .db
            .prepare_cached("DELETE FROM files WHERE id = ? AND state = ?")?;
        for id in &expired.tombstones {
            delete.execute((id.cast_signed(), file_state::TOMBSTONE))?;
        }
        Ok(())
    }

    /// The news of a partition in this slot.
    fn tell(&mut self, id: TopicPartition) -> &mut TailUpdate {
        let at = *self.news_index.entry(id).or_insert(self.news.len());
        if at >= self.news.len() {
            // Bounds are filled in at the end of the slot (`take_news`).
            let batches = Vec::new();
            self.news.push(TailUpdate {
                partition: id,
                log_start_offset: 0,
                high_watermark: 0,
                deleted: false,
                batches,
            });
        }
        #[allow(
            clippy::indexing_slicing,
            reason = "`at` is an index of `news` or was just made one"
        )]
        &mut self.news[at]
    }

    /// The news of the slot that has just been applied.
    fn take_news(&mut self) -> Vec<TailUpdate> {
        self.news_index.clear();
        let mut news = std::mem::take(&mut self.news);
        for update in &mut news {
            if let Some(partition) = self.partitions.get(&update.partition) {
                update.log_start_offset = partition.log_start;
                update.high_watermark = partition.high_watermark;
            }
        }
        news
    }

    fn finish(self, offset: LogOffset) -> Done {
        let mut update = self.db.prepare_cached(
            "UPDATE partitions SET log_start = ?, high_watermark = ?, bytes = ?, append_time = ?
             WHERE topic = ? AND partition = ?",
        )?;
        for id in &self.changed {
            if let Some(partition) = self.partitions.get(id) {
                update.execute((
                    partition.log_start,
                    partition.high_watermark,
                    partition.bytes.cast_signed(),
                    partition.append_time.0,
                    id.topic.0.as_bytes(),
                    id.partition,
                ))?;
            }
        }
        let mut put = self
            .db
            .prepare_cached("INSERT OR REPLACE INTO producers VALUES (?, ?, ?, ?, ?)")?;
        for ((num, id), producer) in &self.producers {
            put.execute((num, id, producer.epoch, producer.used_at.0, producer.pack()))?;
        }
        self.db
            .prepare_cached("UPDATE meta SET applied = ?, next_file = ?, next_num = ?, log_time = ?")?
            .execute((
                offset.0.cast_signed(),
                self.counters.next_file.cast_signed(),
                self.counters.next_num,
                self.counters.log_time.0,
            ))?;
        Ok(())
    }
}

/// Owners as they are stored: four bytes each, big-endian.
pub fn pack_owners(owners: &[ShardId]) -> Vec<u8> {
    owners.iter().flat_map(|owner| owner.0.to_be_bytes()).collect()
}

/// Reads what [`pack_owners`] wrote.
pub fn unpack_owners(packed: &[u8]) -> Vec<ShardId> {
    let (owners, _) = packed.as_chunks::<4>();
    owners
        .iter()
        .map(|owner| ShardId(u32::from_be_bytes(*owner)))
        .collect()
}
