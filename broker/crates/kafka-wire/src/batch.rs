//! Record batches (format v2, KIP-98) seen from outside: the 61-byte header and the bytes behind it.
//!
//! ```text
//!  0 base offset      12 leader epoch  17 CRC-32C of 21..  23 last offset delta  35 max timestamp   53 base sequence
//!  8 length of 12..   16 magic = 2     21 attributes       27 base timestamp     43 producer id     57 record count
//!                                                                                51 producer epoch  61 records …
//! ```
//!
//! Base offset and leader epoch lie outside the checksum, so a broker gives a batch its offsets by writing 16 bytes
//! and leaves the producer's bytes as they are, compressed or not.

use bytes::Bytes;

use crate::ResponseError;

/// Size of the header, in bytes.
pub const HEADER_LEN: usize = 61;

/// Bytes before what the length field counts.
const LENGTH_OVERHEAD: usize = 12;

/// Where the bytes under the checksum start.
const CRC_START: usize = 21;

/// The fewest bytes a record takes uncompressed: length, attributes, two deltas, key, value and header counts.
const MIN_RECORD_LEN: u64 = 7;

const CODEC_MASK: i16 = 0b111;
const LOG_APPEND_TIME: i16 = 1 << 3;
const TRANSACTIONAL: i16 = 1 << 4;
const CONTROL: i16 = 1 << 5;

/// Compression of the records of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// Not compressed.
    None,
    /// RFC 1952.
    Gzip,
    /// Raw snappy or xerial's framing of it.
    Snappy,
    /// LZ4 frames.
    Lz4,
    /// Zstandard (KIP-110); Produce carries it from version 7 on.
    Zstd,
}

/// What is wrong with a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// Fewer bytes than a header, or than the header says.
    #[error("record batch is cut short")]
    Truncated,
    /// The length field does not fit the bytes given.
    #[error("record batch length {0} is invalid")]
    Length(i32),
    /// An old message format.
    #[error("record batch has magic {0}, only 2 is supported")]
    Magic(i8),
    /// The checksum does not fit.
    #[error("record batch checksum does not match")]
    Crc,
    /// Codec numbers 5 to 7.
    #[error("unknown compression codec {0}")]
    Codec(i16),
    /// Bytes behind the one batch that a producer may send for a partition.
    #[error("more than one record batch")]
    Several,
    /// Offsets are the broker's to give.
    #[error("base offset is {0}, only 0 is accepted from a producer")]
    BaseOffset(i64),
    /// Only brokers write control batches.
    #[error("control batches are not accepted from a producer")]
    Control,
    /// Only brokers set the append time.
    #[error("producers must not set the timestamp type to LogAppendTime")]
    TimestampType,
    /// Number of records and last offset delta disagree, or there are none.
    #[error("record count {count} does not match last offset delta {last_offset_delta}")]
    Count {
        /// The record count field.
        count: i32,
        /// The last offset delta field.
        last_offset_delta: i32,
    },
    /// Idempotent batch without sequence or epoch, or a transactional one without a producer.
    #[error("producer id {producer_id} with epoch {epoch} and sequence {sequence} is invalid")]
    Producer {
        /// The producer id field.
        producer_id: i64,
        /// The producer epoch field.
        epoch: i16,
        /// The base sequence field.
        sequence: i32,
    },
    /// The records cannot be decompressed or parsed.
    #[error("records of the batch cannot be read")]
    Records,
    /// Decompressed, the records exceed [`crate::records::MAX_DECOMPRESSED`], or what the caller allows.
    #[error("decompressed records exceed the limit")]
    TooLarge,
}

impl BatchError {
    /// The error a Produce response says it with, as Kafka does.
    pub fn response_error(self) -> ResponseError {
        match self {
            Self::Length(_) | Self::Crc => ResponseError::CorruptMessage,
            // Message formats of old are told from bytes that are none at all.
            Self::Magic(0 | 1) => ResponseError::InvalidRecord,
            Self::Magic(_) => ResponseError::CorruptMessage,
            Self::Codec(_) => ResponseError::UnsupportedCompressionType,
            Self::TimestampType => ResponseError::InvalidTimestamp,
            Self::TooLarge => ResponseError::MessageTooLarge,
            Self::Truncated
            | Self::Several
            | Self::BaseOffset(_)
            | Self::Control
            | Self::Count { .. }
            | Self::Producer { .. }
            | Self::Records => ResponseError::InvalidRecord,
        }
    }
}

/// The header of a batch. Names are Kafka's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchHeader {
    /// Offset of the first record. Whatever the producer wrote, usually 0, until the batch is fetched.
    pub base_offset: i64,
    /// Bytes after this field.
    pub length: i32,
    /// Epoch of the leader that appended the batch.
    pub partition_leader_epoch: i32,
    /// Format version, always 2.
    pub magic: i8,
    /// CRC-32C of everything from the attributes on.
    pub crc: u32,
    /// Codec and flags; see the methods.
    pub attributes: i16,
    /// Offset of the last record relative to the base offset.
    pub last_offset_delta: i32,
    /// Timestamp that the deltas of the records are added to, in milliseconds.
    pub base_timestamp: i64,
    /// Largest timestamp of a record, or the append time, in milliseconds.
    pub max_timestamp: i64,
    /// Idempotent producer, -1 for none.
    pub producer_id: i64,
    /// Its epoch, -1 for none.
    pub producer_epoch: i16,
    /// Sequence number of the first record, -1 for none.
    pub base_sequence: i32,
    /// Number of records.
    pub record_count: i32,
}

impl BatchHeader {
    /// Reads the header at the front of `bytes`. Only magic and the smallest length are checked.
    pub fn parse(bytes: &[u8]) -> Result<Self, BatchError> {
        let head: &[u8; HEADER_LEN] = bytes.first_chunk().ok_or(BatchError::Truncated)?;
        let header = Self::read(head);
        // The magic comes first: in the old formats the other fields mean something else.
        if header.magic != 2 {
            return Err(BatchError::Magic(header.magic));
        }
        if usize::try_from(header.length).is_ok_and(|length| length >= HEADER_LEN - LENGTH_OVERHEAD) {
            Ok(header)
        } else {
            Err(BatchError::Length(header.length))
        }
    }

    fn read(head: &[u8; HEADER_LEN]) -> Self {
        let mut rest: &[u8] = head;
        macro_rules! next {
            ($ty:ty) => {{
                const N: usize = size_of::<$ty>();
                let (value, tail) = rest.split_first_chunk::<N>().unwrap_or((&[0; N], &[]));
                rest = tail;
                <$ty>::from_be_bytes(*value)
            }};
        }
        let header = Self {
            base_offset: next!(i64),
            length: next!(i32),
            partition_leader_epoch: next!(i32),
            magic: next!(i8),
            crc: next!(u32),
            attributes: next!(i16),
            last_offset_delta: next!(i32),
            base_timestamp: next!(i64),
            max_timestamp: next!(i64),
            producer_id: next!(i64),
            producer_epoch: next!(i16),
            base_sequence: next!(i32),
            record_count: next!(i32),
        };
        debug_assert!(rest.is_empty());
        header
    }

    /// The header as it lies on the wire.
    pub fn to_bytes(&self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        let mut rest = &mut out[..];
        macro_rules! put {
            ($($field:ident)*) => {
                $( bytes::BufMut::put_slice(&mut rest, &self.$field.to_be_bytes()); )*
            };
        }
        put!(base_offset length partition_leader_epoch magic crc attributes last_offset_delta base_timestamp);
        put!(max_timestamp producer_id producer_epoch base_sequence record_count);
        out
    }

    /// Bytes of the whole batch, header included.
    pub fn total_size(&self) -> usize {
        usize::try_from(self.length).unwrap_or(0) + LENGTH_OVERHEAD
    }

    /// Offset of the last record.
    pub fn last_offset(&self) -> i64 {
        self.base_offset.saturating_add(self.last_offset_delta.into())
    }

    /// Sequence number of the last record: it wraps from `i32::MAX` to 0. -1 without a producer id.
    pub fn last_sequence(&self) -> i32 {
        if self.base_sequence < 0 {
            return -1;
        }
        let last = i64::from(self.base_sequence) + i64::from(self.last_offset_delta);
        (last % (i64::from(i32::MAX) + 1)) as i32
    }

    /// Compression of the records.
    pub fn codec(&self) -> Result<Codec, BatchError> {
        Ok(match self.attributes & CODEC_MASK {
            0 => Codec::None,
            1 => Codec::Gzip,
            2 => Codec::Snappy,
            3 => Codec::Lz4,
            4 => Codec::Zstd,
            other => return Err(BatchError::Codec(other)),
        })
    }

    /// Whether the maximum timestamp is the broker's append time and holds for every record.
    pub fn is_log_append_time(&self) -> bool {
        self.attributes & LOG_APPEND_TIME != 0
    }

    /// Whether the batch belongs to a transaction.
    pub fn is_transactional(&self) -> bool {
        self.attributes & TRANSACTIONAL != 0
    }

    /// Whether the batch is a transaction marker.
    pub fn is_control(&self) -> bool {
        self.attributes & CONTROL != 0
    }

    /// Whether the producer is idempotent or transactional.
    pub fn has_producer_id(&self) -> bool {
        self.producer_id > -1
    }

    /// The header a consumer sees: real offsets, the leader epoch and, when the topic says so, the append time in
    /// milliseconds.
    ///
    /// The append time lies under the checksum. The new one is computed from the old one and the difference of the
    /// two headers, so the records need not be read: CRC is linear, and shifting the difference by the length of
    /// the records is what appending them does.
    pub fn patched(
        &self,
        base_offset: i64,
        leader_epoch: i32,
        log_append_time: Option<i64>,
    ) -> [u8; HEADER_LEN] {
        let mut header = Self {
            base_offset,
            partition_leader_epoch: leader_epoch,
            ..*self
        };
        if let Some(time) = log_append_time {
            header.attributes |= LOG_APPEND_TIME;
            header.max_timestamp = time;
            let difference = crc_of_fields(&self.to_bytes()) ^ crc_of_fields(&header.to_bytes());
            let records = (self.total_size() - HEADER_LEN) as u64;
            let shifted =
                crc_fast::checksum_combine(crc_fast::CrcAlgorithm::Crc32Iscsi, difference, 0, records);
            header.crc ^= shifted as u32;
        }
        header.to_bytes()
    }
}

/// Checksum of the part of a header that is under the checksum.
fn crc_of_fields(head: &[u8; HEADER_LEN]) -> u64 {
    crc_fast::checksum(
        crc_fast::CrcAlgorithm::Crc32Iscsi,
        head.get(CRC_START..).unwrap_or_default(),
    )
}

/// [`BatchHeader::patched`] of the batch at the front of `batch`.
pub fn patched_head(
    batch: &[u8],
    base_offset: i64,
    leader_epoch: i32,
    log_append_time: Option<i64>,
) -> Result<[u8; HEADER_LEN], BatchError> {
    Ok(BatchHeader::parse(batch)?.patched(base_offset, leader_epoch, log_append_time))
}

/// Checks that `batch` is one whole batch with a correct checksum.
pub fn verify(batch: &[u8]) -> Result<BatchHeader, BatchError> {
    let header = BatchHeader::parse(batch)?;
    let summed = batch
        .get(CRC_START..header.total_size())
        .ok_or(BatchError::Truncated)?;
    if crc_fast::crc32_iscsi(summed) != header.crc {
        return Err(BatchError::Crc);
    }
    if batch.len() > header.total_size() {
        return Err(BatchError::Several);
    }
    Ok(header)
}

/// Checks what a producer sent for a partition: exactly one batch, intact, with the rules of Kafka's validator.
///
/// The records inside are not looked at: see [`crate::records::check`]. Whether zstd is allowed depends on the version of the request, which is
/// the caller's to know.
pub fn validate(batch: &[u8]) -> Result<BatchHeader, BatchError> {
    let header = verify(batch)?;
    let BatchHeader {
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
        last_offset_delta,
        ..
    } = header;
    let codec = header.codec()?;
    if header.base_offset != 0 {
        return Err(BatchError::BaseOffset(header.base_offset));
    }
    if header.is_control() {
        return Err(BatchError::Control);
    }
    if header.is_log_append_time() {
        return Err(BatchError::TimestampType);
    }
    let records = (batch.len() - HEADER_LEN) as u64;
    let counted = record_count >= 1 && i64::from(record_count) == i64::from(last_offset_delta) + 1;
    // A count that the bytes cannot hold would use up offsets for nothing.
    let holds = codec != Codec::None || u64::from(record_count.unsigned_abs()) * MIN_RECORD_LEN <= records;
    if !counted || !holds {
        return Err(BatchError::Count {
            count: record_count,
            last_offset_delta,
        });
    }
    let sequenced = producer_epoch >= 0 && base_sequence >= 0;
    if (header.has_producer_id() && !sequenced) || (header.is_transactional() && !header.has_producer_id()) {
        return Err(BatchError::Producer {
            producer_id,
            epoch: producer_epoch,
            sequence: base_sequence,
        });
    }
    Ok(header)
}

/// The consecutive batches of a records field, as slices of it. Checksums are not verified. Ends after an error.
pub fn batches(records: &Bytes) -> impl Iterator<Item = Result<(BatchHeader, Bytes), BatchError>> {
    let mut rest = records.clone();
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let header = match BatchHeader::parse(&rest) {
            Ok(header) if header.total_size() <= rest.len() => header,
            Ok(_) => {
                rest.clear();
                return Some(Err(BatchError::Truncated));
            }
            Err(error) => {
                rest.clear();
                return Some(Err(error));
            }
        };
        Some(Ok((header, rest.split_to(header.total_size()))))
    })
}

/// Whether a producer's sequence is before another one. They have 31 bits and wrap: before is what is less than half the way round
/// behind.
pub fn is_before(sequence: i32, other: i32) -> bool {
    let distance = other.wrapping_sub(sequence) & i32::MAX;
    distance != 0 && distance < 1 << 30
}

#[cfg(test)]
pub(crate) mod tests;
