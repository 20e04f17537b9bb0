//! The Fetch response, versions 4 to 18, written without copying records.
//!
//! The structure and the patched batch headers go into one buffer; what follows each header is a slice of the
//! stored batch, put between by the [`Rope`].

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{ApiKey, FetchResponse};
use kafka_protocol::protocol::{HeaderVersion, StrBytes};
use uuid::Uuid;

use crate::batch::{BatchHeader, HEADER_LEN};
use crate::flex::put_uvarint;
use crate::rope::Rope;
use crate::{EncodeError, response, versions};

/// First version with compact lengths and tagged fields.
const FLEXIBLE: i16 = 12;

/// First version that names topics by id (KIP-516).
const TOPIC_IDS: i16 = 13;

/// Room reserved for the structure around the records, in bytes.
const TOPIC_ROOM: usize = 64;
const PARTITION_ROOM: usize = 64;

/// A Fetch response.
#[derive(Debug, Clone, Default)]
pub struct Fetch {
    /// Time the client was throttled for, in milliseconds.
    pub throttle_time_ms: i32,
    /// Error of the whole request, 0 for none; not sent before version 7.
    pub error_code: i16,
    /// Fetch session, 0 for none; not sent before version 7.
    pub session_id: i32,
    /// One entry for each topic.
    pub topics: Vec<FetchTopic>,
}

/// A topic of a Fetch response.
#[derive(Debug, Clone)]
pub struct FetchTopic {
    /// Sent up to version 12.
    pub name: StrBytes,
    /// Sent from version 13 on.
    pub id: Uuid,
    /// One entry for each partition.
    pub partitions: Vec<FetchPartition>,
}

/// A partition of a Fetch response.
#[derive(Debug, Clone)]
pub struct FetchPartition {
    /// Index of the partition.
    pub index: i32,
    /// Error of the partition, 0 for none.
    pub error_code: i16,
    /// End of what may be read, -1 if unknown.
    pub high_watermark: i64,
    /// End of what is decided, for read_committed; -1 if unknown.
    pub last_stable_offset: i64,
    /// First offset that is kept, -1 if unknown; not sent before version 5.
    pub log_start_offset: i64,
    /// Producer id and first offset of each aborted transaction; `None` under read_uncommitted.
    pub aborted_transactions: Option<Vec<(i64, i64)>>,
    /// Replica that the client should read from, -1 for none; not sent before version 11.
    pub preferred_read_replica: i32,
    /// The batches in order. Without any the records field is empty, never null: librdkafka takes null ill.
    pub batches: Vec<FetchBatch>,
}

/// A stored batch and what a consumer is to see in its header.
#[derive(Debug, Clone)]
pub struct FetchBatch {
    /// The whole batch as the producer sent it.
    pub batch: Bytes,
    /// Offset of its first record.
    pub base_offset: i64,
    /// Leader epoch.
    pub leader_epoch: i32,
    /// Append time in milliseconds, for topics with `message.timestamp.type=LogAppendTime`.
    pub log_append_time: Option<i64>,
}

/// A whole frame, length included.
pub fn encode(version: i16, correlation_id: i32, fetch: &Fetch) -> Result<Rope, EncodeError> {
    if !versions::is_supported(ApiKey::Fetch, version) {
        return Err(EncodeError::Message {
            version,
            reason: "version is not served".to_owned(),
        });
    }
    let partitions = || fetch.topics.iter().flat_map(|topic| &topic.partitions);
    let batches = partitions()
        .map(|partition| partition.batches.len())
        .sum::<usize>();
    let names = fetch
        .topics
        .iter()
        .map(|topic| topic.name.len() + TOPIC_ROOM)
        .sum::<usize>();
    let capacity = TOPIC_ROOM + names + partitions().count() * PARTITION_ROOM + batches * HEADER_LEN;
    let header_version = FetchResponse::header_version(version);
    let mut writer = Writer {
        out: response::start(capacity, header_version, correlation_id),
        inserts: Vec::with_capacity(batches),
        version,
    };
    writer.response(fetch)?;
    Rope::frame(writer.out, writer.inserts)
}

struct Writer {
    out: BytesMut,
    inserts: Vec<(usize, Bytes)>,
    version: i16,
}

impl Writer {
    fn response(&mut self, fetch: &Fetch) -> Result<(), EncodeError> {
        self.out.put_i32(fetch.throttle_time_ms);
        if self.version >= 7 {
            self.out.put_i16(fetch.error_code);
            self.out.put_i32(fetch.session_id);
        }
        self.length(Some(fetch.topics.len()))?;
        for topic in &fetch.topics {
            self.topic(topic)?;
        }
        self.no_tags();
        Ok(())
    }

    fn topic(&mut self, topic: &FetchTopic) -> Result<(), EncodeError> {
        if self.version >= TOPIC_IDS {
            self.out.put_slice(topic.id.as_bytes());
        } else {
            if self.version >= FLEXIBLE {
                self.length(Some(topic.name.len()))?;
            } else {
                let len =
                    i16::try_from(topic.name.len()).map_err(|_| EncodeError::TooLarge(topic.name.len()))?;
                self.out.put_i16(len);
            }
            self.out.put_slice(topic.name.as_bytes());
        }
        self.length(Some(topic.partitions.len()))?;
        for partition in &topic.partitions {
            self.partition(partition)?;
        }
        self.no_tags();
        Ok(())
    }

    fn partition(&mut self, partition: &FetchPartition) -> Result<(), EncodeError> {
        self.out.put_i32(partition.index);
        self.out.put_i16(partition.error_code);
        self.out.put_i64(partition.high_watermark);
        self.out.put_i64(partition.last_stable_offset);
        if self.version >= 5 {
            self.out.put_i64(partition.log_start_offset);
        }
        let aborted = partition.aborted_transactions.as_deref();
        self.length(aborted.map(<[_]>::len))?;
        for (producer_id, first_offset) in aborted.unwrap_or_default() {
            self.out.put_i64(*producer_id);
            self.out.put_i64(*first_offset);
            self.no_tags();
        }
        if self.version >= 11 {
            self.out.put_i32(partition.preferred_read_replica);
        }
        self.length(Some(
            partition.batches.iter().map(|stored| stored.batch.len()).sum(),
        ))?;
        for stored in &partition.batches {
            let header = BatchHeader::parse(&stored.batch)?;
            let head = header.patched(stored.base_offset, stored.leader_epoch, stored.log_append_time);
            self.out.put_slice(&head);
            self.inserts
                .push((self.out.len(), stored.batch.slice(HEADER_LEN..)));
        }
        self.no_tags();
        Ok(())
    }

    /// Length of an array or of bytes; `None` is null.
    fn length(&mut self, len: Option<usize>) -> Result<(), EncodeError> {
        let len = match len {
            None => -1,
            Some(len) => i32::try_from(len).map_err(|_| EncodeError::TooLarge(len))?,
        };
        if self.version >= FLEXIBLE {
            put_uvarint(&mut self.out, (len + 1).cast_unsigned());
        } else {
            self.out.put_i32(len);
        }
        Ok(())
    }

    fn no_tags(&mut self) {
        if self.version >= FLEXIBLE {
            self.out.put_u8(0);
        }
    }
}

#[cfg(test)]
mod tests;
