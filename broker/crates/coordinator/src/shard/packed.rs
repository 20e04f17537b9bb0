//! A committed file in its packed form, which takes about a fifth of the plain one. Most of a shard's log is committed
//! files, and most of a file is batches; what follows from what stands before is left out.
//!
//! ```text
//!  file       id, object (16 bytes), uploader, size, owners, results, topics, tagged fields
//!  results    0 and the bytes; or 1: every batch was accepted, in the order in which they stand here
//!  topic      id (16 bytes), partitions
//!  partition  index, number, base offset, batches
//!  batch      flags, [position], size, last offset delta, timestamp, [producer id, epoch], [base sequence]
//! ```
//!
//! Numbers without a size are unsigned varints (KIP-482) of up to 64 bits; a list begins with the number of its elements.
//! A timestamp is the zigzag-encoded difference to that of the batch before, in whatever partition.

use bytes::{Bytes, BytesMut};
use kafka_wire::DecodeError;
use kafka_wire::flex::{
    Decode, Encode, get_tagged, get_uvarint, get_uvarlong, put_uvarint, put_uvarlong, take,
};
use types::{NodeId, ShardId, Timestamp, TopicId, TopicPartition};
use uuid::Uuid;

use super::entry::{Batch, BatchProducer, FileCommitted, PartitionBatches};
use super::results::pack_accepted;

/// See the module.
#[derive(Debug, Clone, PartialEq)]
pub struct Packed(pub FileCommitted);

const GIVEN: u8 = 0;
const ALL_ACCEPTED: u8 = 1;

/// Its timestamp is the log-append time.
const LOG_APPEND_TIME: u8 = 1;
/// It has a base sequence, and a producer:
const PRODUCER: u8 = 2;
/// that of the last batch that had one.
const SAME_PRODUCER: u8 = 4;
/// It lies where the batch before ends.
const ADJACENT: u8 = 8;
const FLAGS: u8 = LOG_APPEND_TIME | PRODUCER | SAME_PRODUCER | ADJACENT;

impl Encode for Packed {
    fn encode(&self, out: &mut BytesMut) {
        let file = &self.0;
        put_uvarlong(out, file.id);
        file.object.encode(out);
        put_uvarint(out, file.uploader.0.cast_unsigned());
        put_uvarlong(out, file.size);
        put_count(out, file.owners.len());
        file.owners.iter().for_each(|owner| put_uvarint(out, owner.0));
        if pack_accepted(&file.partitions) == file.results {
            ALL_ACCEPTED.encode(out);
        } else {
            GIVEN.encode(out);
            put_count(out, file.results.len());
            out.extend_from_slice(&file.results);
        }
        let topics = || {
            file.partitions
                .chunk_by(|a, b| a.partition.topic == b.partition.topic)
        };
        put_count(out, topics().count());
        let mut last = Last::default();
        for topic in topics() {
            if let Some(first) = topic.first() {
                first.partition.topic.encode(out);
            }
            put_count(out, topic.len());
            for partition in topic {
                put_uvarint(out, partition.partition.partition.cast_unsigned());
                put_uvarint(out, partition.num);
                put_uvarlong(out, partition.base_offset.cast_unsigned());
                put_count(out, partition.batches.len());
                for batch in &partition.batches {
                    last.put_next(out, batch);
                }
            }
        }
        // Tagged fields: none yet.
        put_uvarint(out, 0);
    }
}

impl Decode for Packed {
    const MIN_SIZE: usize = 16 + 7;

    fn decode(input: &mut Bytes) -> Result<Self, DecodeError> {
        let id = get_uvarlong(input)?;
        let object = Uuid::decode(input)?;
        let uploader = NodeId(get_uvarint(input)?.cast_signed());
        let size = get_uvarlong(input)?;
        let owners = list(input, 1, |input| Ok(ShardId(get_uvarint(input)?)))?;
        let given = match u8::decode(input)? {
            ALL_ACCEPTED => None,
            GIVEN => {
                let length = get_count(input, 1)?;
                Some(take(input, length)?)
            }
            other => return Err(unknown("results of a file", other)),
        };
        let mut partitions = Vec::new();
        let mut last = Last::default();
        for _ in 0..get_count(input, 16 + 1)? {
            let topic = TopicId::decode(input)?;
            for _ in 0..get_count(input, 4)? {
                let partition = get_uvarint(input)?.cast_signed();
                partitions.push(PartitionBatches {
                    partition: TopicPartition { topic, partition },
                    num: get_uvarint(input)?,
                    base_offset: get_uvarlong(input)?.cast_signed(),
                    batches: list(input, 4, |input| last.get_next(input))?,
                });
            }
        }
        get_tagged(input, |_, _| Ok(()))?;
        let results = given.unwrap_or_else(|| pack_accepted(&partitions));
        Ok(Packed(FileCommitted {
            id,
            object,
            uploader,
            size,
            owners,
            results,
            partitions,
        }))
    }
}

/// What the next batch may refer to.
#[derive(Default)]
struct Last {
    end: u32,
    timestamp: i64,
    producer: Option<(i64, i16)>,
}

impl Last {
    fn put_next(&mut self, out: &mut BytesMut, batch: &Batch) {
        let producer = batch
            .producer
            .as_ref()
            .map(|producer| (producer.id, producer.epoch));
        let set = |flag, is: bool| if is { flag } else { 0 };
        let same = producer.is_some() && producer == self.producer;
        let adjacent = batch.position == self.end;
        let flags = set(LOG_APPEND_TIME, batch.log_append_time)
            | set(PRODUCER, producer.is_some())
            | set(SAME_PRODUCER, same)
            | set(ADJACENT, adjacent);
        flags.encode(out);
        if !adjacent {
            put_uvarint(out, batch.position);
        }
        put_uvarint(out, batch.size);
        put_uvarint(out, batch.last_offset_delta.cast_unsigned());
        let later = batch.timestamp.0.wrapping_sub(self.timestamp);
        put_uvarlong(out, ((later << 1) ^ (later >> 63)).cast_unsigned());
        if let Some(producer) = &batch.producer {
            if !same {
                put_uvarlong(out, producer.id.cast_unsigned());
                put_uvarint(out, producer.epoch.cast_unsigned().into());
            }
            put_uvarint(out, producer.base_sequence.cast_unsigned());
        }
        self.pass(batch);
    }

    fn get_next(&mut self, input: &mut Bytes) -> Result<Batch, DecodeError> {
        let flags = u8::decode(input)?;
        if flags & !FLAGS != 0 {
            return Err(unknown("flags of a batch", flags));
        }
        let has = |flag| flags & flag != 0;
        let position = match has(ADJACENT) {
            true => self.end,
            false => get_uvarint(input)?,
        };
        let size = get_uvarint(input)?;
        let last_offset_delta = get_uvarint(input)?.cast_signed();
        let later = get_uvarlong(input)?;
        let later = (later >> 1).cast_signed() ^ -(later & 1).cast_signed();
        let producer = match has(PRODUCER) {
            false => None,
            true => {
                let (id, epoch) = match (has(SAME_PRODUCER), self.producer) {
                    (true, Some(known)) => known,
                    (true, None) => return Err(unknown("flags of a batch", flags)),
                    (false, _) => {
                        let id = get_uvarlong(input)?.cast_signed();
                        let epoch = get_uvarint(input)?;
                        let epoch = u16::try_from(epoch).map_err(|_| DecodeError::VarInt)?;
                        (id, epoch.cast_signed())
                    }
                };
                let base_sequence = get_uvarint(input)?.cast_signed();
                Some(BatchProducer {
                    id,
                    epoch,
                    base_sequence,
                })
            }
        };
        let batch = Batch {
            position,
            size,
            last_offset_delta,
            timestamp: Timestamp(self.timestamp.wrapping_add(later)),
            log_append_time: has(LOG_APPEND_TIME),
            producer,
        };
        self.pass(&batch);
        Ok(batch)
    }

    fn pass(&mut self, batch: &Batch) {
        self.end = batch.position.wrapping_add(batch.size);
        self.timestamp = batch.timestamp.0;
        if let Some(producer) = &batch.producer {
            self.producer = Some((producer.id, producer.epoch));
        }
    }
}

fn unknown(what: &'static str, value: u8) -> DecodeError {
    DecodeError::Tag {
        what,
        value: value.into(),
    }
}

/// No list here has more elements than an entry has bytes.
fn put_count(out: &mut BytesMut, count: usize) {
    put_uvarint(out, u32::try_from(count).unwrap_or(u32::MAX));
}

/// Takes the number of elements that take at least `min_size` bytes each.
fn get_count(input: &mut Bytes, min_size: usize) -> Result<usize, DecodeError> {
    let count = get_uvarint(input)?;
    match usize::try_from(count) {
        Ok(count) if count <= input.len() / min_size => Ok(count),
        _ => Err(DecodeError::Count {
            count: count.into(),
            remaining: input.len(),
        }),
    }
}

fn list<T>(
    input: &mut Bytes,
    min_size: usize,
    mut element: impl FnMut(&mut Bytes) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    let count = get_count(input, min_size)?;
    (0..count).map(|_| element(input)).collect()
}
