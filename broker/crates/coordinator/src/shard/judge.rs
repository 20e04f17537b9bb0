//! What a command comes to, given committed and pending state. Nothing here writes to SQLite.

use std::collections::BTreeSet;
use std::time::Duration;

use kafka_wire::batch::is_before;
use types::{FastMap, FastSet, FeatureLevel, ShardId, Timestamp, TopicId, TopicPartition};
use uuid::Uuid;

use super::entry::{
    Batch, BatchProducer, Change, FileCommitted, FileTakenOver, GroupPut, Objects, OffsetsCommitted,
    OffsetsDeleted, PartitionBatches, PartitionsCreated, Purged, RecordsDeleted, TopicsDeleted, encode,
};
use super::packed::Packed;
use super::producer::{self, Remembered, Verdict};
use super::results::{self, failed};
use super::state::{File, Partition, ShardState};
use super::{Command, Expired, OffsetCommit, Output, queries};
use crate::codes;
use crate::protocol::{
    BatchRequest, BatchResult, CommitFileRequest, CreatePartitionsRequest, DeleteRecordsPartition,
    DeleteRecordsResult, DeleteTopic,
};
use crate::replica::{Speculated, StateError};

/// A clock of a leader that is further off than this is wrong.
const CLOCK_ERROR: Duration = Duration::from_secs(15 * 60);

type Judged = Result<Speculated<Output>, StateError>;

fn unchanged(output: Output) -> Judged {
    Ok(Speculated { output, entry: None })
}

impl ShardState {
    pub(super) fn judge(&mut self, now: Timestamp, command: &Command) -> Judged {
        match command {
            Command::CommitFile(request) => self.judge_commit(now, request),
            Command::CreatePartitions(request) => self.judge_create(now, request),
            Command::DeleteTopics(topics) => self.judge_delete_topics(now, topics),
            Command::DeleteRecords(partitions) => self.judge_delete_records(now, partitions),
            Command::Purge { max_batches } => self.judge_purge(now, *max_batches),
            Command::TakeOverFile { object, size, owners } => {
                self.judge_take_over(now, *object, *size, owners)
            }
            Command::FilesHandedOver(objects) => self.log(
                now,
                Output::Done,
                &Change::FilesHandedOver(Objects {
                    objects: objects.clone(),
                }),
            ),
            Command::FilesDeleted(objects) => self.log(
                now,
                Output::Done,
                &Change::FilesDeleted(Objects {
                    objects: objects.clone(),
                }),
            ),
            // Groups are judged by their coordinator; here they are only kept.
            Command::PutGroup {
                group,
                metadata,
                offsets,
            } => {
                let offsets = offsets.iter().map(Into::into).collect();
                let put = GroupPut {
                    group: group.clone(),
                    metadata: metadata.clone(),
                    offsets,
                };
                self.log(now, Output::Done, &Change::GroupPut(put))
            }
            Command::CommitOffsets { group, offsets } => self.judge_commit_offsets(now, group, offsets),
            Command::DeleteOffsets { group, partitions } => {
                let deleted = OffsetsDeleted {
                    group: group.clone(),
                    partitions: partitions.clone(),
                };
                self.log(now, Output::Done, &Change::OffsetsDeleted(deleted))
            }
            Command::Expire(expired) => self.judge_expire(now, expired),
        }
    }

    fn log(&mut self, now: Timestamp, output: Output, change: &Change) -> Judged {
        let time = self.time(now);
        self.pending.counters.log_time = time;
        Ok(Speculated {
            output,
            entry: Some(encode(time, change)),
        })
    }

    /// Time of an entry that is judged now. It does not go back with the clock, so that what died under a clock that was ahead a little
    /// is kept for its whole grace. A clock that was ahead by more was wrong: nothing would be deleted or expire until its time has come.
    fn time(&self, now: Timestamp) -> Timestamp {
        let last = self.pending.counters.log_time;
        if u128::from(last.since(now)) > CLOCK_ERROR.as_millis() {
            return now;
        }
        last.max(now)
    }

    fn judge_commit_offsets(&mut self, now: Timestamp, group: &str, offsets: &[OffsetCommit]) -> Judged {
        let topics: BTreeSet<TopicId> = offsets.iter().filter_map(|offset| offset.topic_id).collect();
        for topic in topics {
            if self.is_deleted(topic)? && !env::mutation("revive-offsets") {
                // The request was held up on its way. Kept by name, its offsets would be those of a later topic.
                return unchanged(Output::Refused(codes::UNKNOWN_TOPIC_ID));
            }
        }
        let committed = OffsetsCommitted {
            group: group.to_owned(),
            offsets: offsets.iter().map(Into::into).collect(),
        };
        self.log(now, Output::Done, &Change::OffsetsCommitted(committed))
    }

    fn judge_create(&mut self, now: Timestamp, request: &CreatePartitionsRequest) -> Judged {
        if self.is_deleted(request.topic)? {
            // A request that was held up on its way: what it would create nobody would ever delete.
            return unchanged(Output::Refused(codes::UNKNOWN_TOPIC_ID));
        }
        let mut partitions = Vec::new();
        for &index in &request.partitions {
            let id = TopicPartition {
                topic: request.topic,
                partition: index,
            };
            if index < 0 || self.partition(&id).is_some() {
                continue;
            }
            let num = self.pending.counters.next_num;
            self.pending.counters.next_num += 1;
            self.pending.partitions.insert(id, Some(Partition::new(num)));
            partitions.push((index, num));
        }
        if partitions.is_empty() {
            return unchanged(Output::Done);
        }
        self.log(
            now,
            Output::Done,
            &Change::PartitionsCreated(PartitionsCreated {
                topic: request.topic,
                partitions,
            }),
        )
    }

    fn judge_delete_topics(&mut self, now: Timestamp, topics: &[DeleteTopic]) -> Judged {
        let gone: FastSet<_> = topics.iter().map(|topic| topic.topic).collect();
        let committed: Vec<_> = self
            .partitions
            .keys()
            .filter(|id| gone.contains(&id.topic))
            .copied()
            .collect();
        for (_, pending) in self
            .pending
            .partitions
            .iter_mut()
            .filter(|(id, _)| gone.contains(&id.topic))
        {
            *pending = None;
        }
        for id in committed {
            self.pending.partitions.insert(id, None);
        }
        self.pending.deleted_topics.extend(gone);
        // Logged even if no partition is here: offsets of groups may be.
        self.log(
            now,
            Output::Done,
            &Change::TopicsDeleted(TopicsDeleted {
                topics: topics.to_vec(),
            }),
        )
    }

    fn judge_delete_records(&mut self, now: Timestamp, partitions: &[DeleteRecordsPartition]) -> Judged {
        let mut moved = Vec::new();
        let mut results = Vec::with_capacity(partitions.len());
        for wanted in partitions {
            let refused = |error_code| DeleteRecordsResult {
                error_code,
                low_watermark: -1,
            };
            let Some(mut partition) = self.partition(&wanted.partition) else {
                results.push(refused(codes::UNKNOWN_TOPIC_OR_PARTITION));
                continue;
            };
            let offset = if wanted.offset == -1 {
                partition.high_watermark
            } else {
                wanted.offset
            };
            if offset < 0 || offset > partition.high_watermark {
                results.push(refused(codes::OFFSET_OUT_OF_RANGE));
                continue;
            }
            if offset > partition.log_start {
                partition.log_start = offset;
                self.pending.partitions.insert(wanted.partition, Some(partition));
                moved.push((wanted.partition, offset));
            }
            results.push(DeleteRecordsResult {
                error_code: codes::NONE,
                low_watermark: partition.log_start,
            });
        }
        let output = Output::RecordsDeleted(results);
        if moved.is_empty() || env::mutation("trim-unlogged") {
            return unchanged(output);
        }
        self.log(
            now,
            output,
            &Change::RecordsDeleted(RecordsDeleted { partitions: moved }),
        )
    }

    /// Looks at committed garbage only: what pending entries add is purged the next time.
    fn judge_purge(&mut self, now: Timestamp, limit: u32) -> Judged {
        if !queries::has_garbage(&self.db)? {
            return unchanged(Output::Purged(false));
        }
        self.log(
            now,
            Output::Purged(true),
            &Change::Purged(Purged { limit: limit.max(1) }),
        )
    }

    fn judge_take_over(&mut self, now: Timestamp, object: Uuid, size: u64, owners: &[ShardId]) -> Judged {
        let known = self.file(&object)?;
        if owners.first() != Some(&self.shard) || known.as_ref().is_some_and(|file| file.settled) {
            return unchanged(Output::Done);
        }
        let id = self.pending.counters.next_file;
        if known.is_none() {
            self.pending.counters.next_file += 1;
        }
        // A commit of what was unknown so far is refused from here on.
        let results = known.and_then(|file| file.results);
        self.pending.files.insert(
            object,
            File {
                results,
                settled: true,
            },
        );
        self.log(
            now,
            Output::Done,
            &Change::FileTakenOver(FileTakenOver {
                id,
                object,
                size,
                owners: owners.to_vec(),
            }),
        )
    }

    fn judge_expire(&mut self, now: Timestamp, expired: &Expired) -> Judged {
        for &(num, id) in &expired.producers {
            let old = self
                .producer(num, id)?
                .is_some_and(|producer| producer.used_at < expired.producers_before);
            if old {
                self.pending.producers.insert((num, id), None);
            }
        }
        self.log(now, Output::Done, &Change::Expired(expired.into()))
    }

    fn judge_commit(&mut self, now: Timestamp, request: &CommitFileRequest) -> Judged {
        let refused = |error_code| {
            unchanged(Output::Committed {
                error_code,
                batches: Vec::new(),
            })
        };
        if let Some(file) = self.file(&request.object)? {
            let first = file
                .results
                .and_then(|packed| results::unpack(packed, &request.batches, |id| self.log_start(id)));
            return match first {
                Some(batches) => unchanged(Output::Committed {
                    error_code: codes::NONE,
                    batches,
                }),
                // Taken over unseen, or its answer is forgotten: its bytes may be gone.
                None => refused(codes::KAFKA_STORAGE_ERROR),
            };
        }
        if !request.owners.contains(&self.shard)
            || request
                .batches
                .iter()
                .any(|batch| !well_formed(batch, request.size))
        {
            return refused(codes::INVALID_REQUEST);
        }
        let time = self.time(now);
        let mut file = Accepted::default();
        let mut batches = Vec::with_capacity(request.batches.len());
        for batch in &request.batches {
            batches.push(self.judge_batch(now, time, batch, &mut file)?);
        }
        let id = self.pending.counters.next_file;
        self.pending.counters.next_file += 1;
        let results = results::pack(&batches);
        let settled = request.owners.first() == Some(&self.shard);
        self.pending.files.insert(
            request.object,
            File {
                results: Some(results.clone()),
                settled,
            },
        );
        let committed = FileCommitted {
            id,
            object: request.object,
            uploader: request.uploader,
            size: request.size,
            owners: request.owners.clone(),
            results,
            partitions: file.partitions,
        };
        let finalized = (self.features.finalized)() >= FeatureLevel::PACKED_FILES;
        let change = match finalized || env::mutation("format-early") {
            true => Change::FilePacked(Packed(committed)),
            false => Change::FileCommitted(committed),
        };
        self.log(
            now,
            Output::Committed {
                error_code: codes::NONE,
                batches,
            },
            &change,
        )
    }

    /// -1 for a partition that is not here.
    fn log_start(&self, id: &TopicPartition) -> i64 {
        self.partition(id).map_or(-1, |partition| partition.log_start)
    }

    fn judge_batch(
        &mut self,
        now: Timestamp,
        time: Timestamp,
        batch: &BatchRequest,
        file: &mut Accepted,
    ) -> Result<BatchResult, StateError> {
        let id = TopicPartition {
            topic: batch.topic,
            partition: batch.partition,
        };
        let Some(mut partition) = self.partition(&id) else {
            return Ok(failed(codes::UNKNOWN_TOPIC_OR_PARTITION, -1));
        };
        let log_start_offset = partition.log_start;
        let base_offset = partition.high_watermark;
        let Some(next_offset) = base_offset.checked_add(i64::from(batch.last_offset_delta) + 1) else {
            return Ok(failed(codes::INVALID_REQUEST, log_start_offset));
        };
        let append_time = match env::mutation("append-time-back") {
            true => now,
            false => partition.append_time.max(now),
        };
        let log_append_time = if batch.log_append_time {
            append_time
        } else {
            Timestamp(-1)
        };
        let mut producer = None;
        if batch.producer_id >= 0 && batch.producer_epoch >= 0 {
            let this = (id, batch.producer_id, batch.producer_epoch);
            let last_sequence = producer::last_sequence(batch.base_sequence, batch.last_offset_delta);
            let known = self.producer(partition.num, batch.producer_id)?;
            let after_refused = |refused: &i32| !is_before(batch.base_sequence, *refused);
            if known.is_none() && file.refused.get(&this).is_some_and(after_refused) {
                // It has a gap before it, which sequences cannot show. What comes before the refused one was sent again.
                return Ok(failed(codes::OUT_OF_ORDER_SEQUENCE_NUMBER, log_start_offset));
            }
            match producer::judge(
                known.as_ref(),
                batch.producer_epoch,
                batch.base_sequence,
                last_sequence,
                batch.must_follow,
            ) {
                Verdict::Refused(code) => {
                    file.refused.entry(this).or_insert(batch.base_sequence);
                    return Ok(failed(code, log_start_offset));
                }
                Verdict::Duplicate(first) => {
                    return Ok(BatchResult {
                        error_code: codes::NONE,
                        base_offset: first.base_offset,
                        log_append_time: first.log_append_time,
                        log_start_offset,
                        duplicate: true,
                    });
                }
                Verdict::Next => {}
            }
            let base_sequence = batch.base_sequence;
            let remembered = Remembered {
                base_sequence,
                last_sequence,
                base_offset,
                log_append_time,
            };
            let after = producer::accepted(known, batch.producer_epoch, remembered, time);
            self.pending
                .producers
                .insert((partition.num, batch.producer_id), Some(after));
            producer = Some(BatchProducer {
                id: batch.producer_id,
                epoch: batch.producer_epoch,
                base_sequence,
            });
        }
        partition.high_watermark = next_offset;
        if batch.log_append_time {
            partition.append_time = append_time;
        }
        partition.bytes += u64::from(batch.size);
        self.pending.partitions.insert(id, Some(partition));
        let timestamp = if batch.log_append_time {
            append_time
        } else {
            batch.max_timestamp
        };
        file.add(
            id,
            partition.num,
            base_offset,
            Batch {
                position: batch.position,
                size: batch.size,
                last_offset_delta: batch.last_offset_delta,
                timestamp,
                log_append_time: batch.log_append_time,
                producer,
            },
        );
        Ok(BatchResult {
            error_code: codes::NONE,
            base_offset,
            log_append_time,
            log_start_offset,
            duplicate: false,
        })
    }
}

/// A broker has checked the batch itself; this is what would break the shard.
fn well_formed(batch: &BatchRequest, file_size: u64) -> bool {
    batch.size > 0
        && u64::from(batch.position) + u64::from(batch.size) <= file_size
        && batch.last_offset_delta >= 0
        && (batch.producer_id < 0 || batch.base_sequence >= 0)
}

/// What was made of the batches of a file so far.
#[derive(Default)]
struct Accepted {
    partitions: Vec<PartitionBatches>,
    index: FastMap<TopicPartition, usize>,
    /// Base sequences of the first refused batches of producers (by epoch).
    refused: FastMap<(TopicPartition, i64, i16), i32>,
}

impl Accepted {
    fn add(&mut self, id: TopicPartition, num: u32, base_offset: i64, batch: Batch) {
        // Batches of a partition lie side by side in a file.
        if let Some(last) = self.partitions.last_mut().filter(|last| last.partition == id) {
            last.batches.push(batch);
            return;
        }
        let next = self.partitions.len();
        let at = *self.index.entry(id).or_insert(next);
        match self.partitions.get_mut(at) {
            Some(partition) => partition.batches.push(batch),
            None => self.partitions.push(PartitionBatches {
                partition: id,
                num,
                base_offset,
                batches: vec![batch],
            }),
        }
    }
}
