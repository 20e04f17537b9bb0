//! Inside a batch: offsets and timestamps of its records, for lookups by time.
//!
//! Records are read as a stream, so a batch that decompresses to gigabytes costs time up to a limit and no memory.

use std::io::{BufRead, BufReader, Read};

use bytes::Bytes;

use crate::batch::{BatchError, BatchHeader, Codec, HEADER_LEN};

/// Decompressed bytes read from one batch before giving up.
pub const MAX_DECOMPRESSED: u64 = 256 * 1024 * 1024;

/// Magic, version and compatible version before the first block of xerial's snappy framing.
const XERIAL_HEADER: usize = 16;
const XERIAL_MAGIC: &[u8] = b"\x82SNAPPY\0";

/// Snappy cannot expand more: a copy of 64 bytes takes three.
const SNAPPY_MAX_RATIO: usize = 22;

/// What a record says about its place: offset delta, and timestamp in milliseconds.
pub type OffsetAndTimestamp = (i32, i64);

/// The first record of `batch` at or after the offset `from` with a timestamp of at least `t` milliseconds, as offset
/// and timestamp, if the batch starts at `base_offset`. Offsets that a header already holds are ignored.
///
/// With [`BatchHeader::max_timestamp`] as `t` it finds the record that ListOffsets -3 asks for.
pub fn find_record_by_timestamp(
    batch: &Bytes,
    base_offset: i64,
    from: i64,
    t: i64,
) -> Result<Option<(i64, i64)>, BatchError> {
    let header = BatchHeader::parse(batch)?;
    if header.max_timestamp < t {
        return Ok(None);
    }
    if header.is_log_append_time() {
        return Ok(Some((base_offset.max(from), header.max_timestamp)));
    }
    for record in offsets_and_timestamps(batch)? {
        let (delta, timestamp) = record?;
        let offset = base_offset.saturating_add(delta.into());
        if timestamp >= t && offset >= from {
            return Ok(Some((offset, timestamp)));
        }
    }
    Ok(None)
}

/// Every record of `batch` in order, as offset delta and create time. Ends after an error.
pub fn offsets_and_timestamps(
    batch: &Bytes,
) -> Result<impl Iterator<Item = Result<OffsetAndTimestamp, BatchError>> + use<>, BatchError> {
    let header = BatchHeader::parse(batch)?;
    if header.total_size() > batch.len() {
        return Err(BatchError::Truncated);
    }
    let mut records = Records {
        input: decompress(header.codec()?, batch.slice(HEADER_LEN..header.total_size()))?,
        read: 0,
        limit: MAX_DECOMPRESSED,
    };
    let mut left = header.record_count;
    Ok(std::iter::from_fn(move || {
        if left <= 0 {
            return None;
        }
        left -= 1;
        let record = records.next(header.base_timestamp);
        if record.is_err() {
            left = 0;
        }
        Some(record)
    }))
}

/// Reads every record of a batch that a producer has sent, to its last byte: what is accepted here every consumer can
/// read. `see` is told each record's place in the batch and its create time in milliseconds.
///
/// `budget` is how many (decompressed) bytes may be read, [`MAX_DECOMPRESSED`] at most; it is lowered by those that were,
/// whatever the result. A batch that has more is [`BatchError::TooLarge`].
///
/// Offsets must count up from 0. Kafka takes other ones in a batch that is not compressed, and consumers then miss
/// records.
pub fn check(batch: &Bytes, budget: &mut u64, see: impl FnMut(i32, i64)) -> Result<(), BatchError> {
    let header = BatchHeader::parse(batch)?;
    let records = batch
        .get(HEADER_LEN..header.total_size())
        .ok_or(BatchError::Truncated)?;
    match header.codec()? {
        // The common case, without a call through a pointer for each byte.
        Codec::None => check_all(records, &header, budget, see),
        codec => check_all(decompress(codec, batch.slice_ref(records))?, &header, budget, see),
    }
}

fn check_all<R: BufRead>(
    input: R,
    header: &BatchHeader,
    budget: &mut u64,
    see: impl FnMut(i32, i64),
) -> Result<(), BatchError> {
    let limit = MAX_DECOMPRESSED.min(*budget);
    let mut records = Records {
        input,
        read: 0,
        limit,
    };
    let result = records.check(header, see);
    *budget = budget.saturating_sub(records.read);
    result
}

fn decompress(codec: Codec, compressed: Bytes) -> Result<Box<dyn BufRead + Send>, BatchError> {
    let input = bytes::Buf::reader(compressed.clone());
    Ok(match codec {
        Codec::None => Box::new(input),
        Codec::Gzip => Box::new(BufReader::new(flate2::bufread::MultiGzDecoder::new(input))),
        Codec::Snappy => Box::new(BufReader::new(Snappy::new(compressed))),
        Codec::Lz4 => Box::new(BufReader::new(lz4_flex::frame::FrameDecoder::new(input))),
        Codec::Zstd => {
            let decoder = zstd::stream::read::Decoder::with_buffer(input).map_err(|_| BatchError::Records)?;
            Box::new(BufReader::new(decoder))
        }
    })
}

/// Snappy as Kafka's clients write it: xerial's blocks, or one raw block.
struct Snappy {
    rest: Bytes,
    framed: bool,
    block: Bytes,
}

impl Snappy {
    fn new(mut rest: Bytes) -> Self {
        let framed = rest.starts_with(XERIAL_MAGIC) && rest.len() >= XERIAL_HEADER;
        if framed {
            let _ = rest.split_to(XERIAL_HEADER);
        }
        Self {
            rest,
            framed,
            block: Bytes::new(),
        }
    }

    fn next_block(&mut self) -> Option<Vec<u8>> {
        let compressed = if self.framed {
            let len = bytes::Buf::try_get_u32(&mut self.rest).ok()? as usize;
            (len <= self.rest.len()).then(|| self.rest.split_to(len))?
        } else {
            std::mem::take(&mut self.rest)
        };
        // The length is the block's own word: it is believed only as far as the format can expand.
        let len = snap::raw::decompress_len(&compressed).ok()?;
        if len > compressed.len().saturating_mul(SNAPPY_MAX_RATIO) {
            return None;
        }
        snap::raw::Decoder::new().decompress_vec(&compressed).ok()
    }
}

impl Read for Snappy {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        while self.block.is_empty() && !self.rest.is_empty() {
            self.block = self.next_block().ok_or(std::io::ErrorKind::InvalidData)?.into();
        }
        bytes::Buf::reader(&mut self.block).read(out)
    }
}

/// A stream of records that counts what it has read.
struct Records<R> {
    input: R,
    read: u64,
    limit: u64,
}

impl<R: BufRead> Records<R> {
    fn check(&mut self, header: &BatchHeader, mut see: impl FnMut(i32, i64)) -> Result<(), BatchError> {
        for index in 0..header.record_count {
            let (delta, timestamp) = self.next_whole(header.base_timestamp)?;
            if delta != index {
                return Err(BatchError::Records);
            }
            see(index, timestamp);
        }
        match self.fill()?.is_empty() {
            true => Ok(()),
            false => Err(BatchError::Records),
        }
    }

    /// The place of the next record, and how much has been read where it ends by its own word.
    fn begin(&mut self, base_timestamp: i64) -> Result<(OffsetAndTimestamp, u64), BatchError> {
        let length = u64::try_from(self.varint()?).map_err(|_| BatchError::Records)?;
        let end = self.read.saturating_add(length);
        let _attributes = self.byte()?;
        let timestamp = base_timestamp.wrapping_add(self.varint()?);
        let offset_delta = i32::try_from(self.varint()?).map_err(|_| BatchError::Records)?;
        Ok(((offset_delta, timestamp), end))
    }

    fn next(&mut self, base_timestamp: i64) -> Result<OffsetAndTimestamp, BatchError> {
        let (place, end) = self.begin(base_timestamp)?;
        let rest = end.checked_sub(self.read).ok_or(BatchError::Records)?;
        self.skip(rest)?;
        Ok(place)
    }

    /// The same of a record whose key, value and headers must fill it.
    fn next_whole(&mut self, base_timestamp: i64) -> Result<OffsetAndTimestamp, BatchError> {
        let (place, end) = self.begin(base_timestamp)?;
        // Key and value; any negative length is null.
        for _ in 0..2 {
            let length = self.varint()?;
            self.skip(u64::try_from(length).unwrap_or(0))?;
        }
        let headers = self.varint()?;
        if headers < 0 {
            return Err(BatchError::Records);
        }
        for _ in 0..headers {
            let key = u64::try_from(self.varint()?).map_err(|_| BatchError::Records)?;
            self.skip(key)?;
            let value = self.varint()?;
            self.skip(u64::try_from(value).unwrap_or(0))?;
        }
        match self.read == end {
            true => Ok(place),
            false => Err(BatchError::Records),
        }
    }

    /// A zigzag varint of at most 64 bits.
    fn varint(&mut self) -> Result<i64, BatchError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed());
            }
        }
        Err(BatchError::Records)
    }

    fn byte(&mut self) -> Result<u8, BatchError> {
        let byte = *self.fill()?.first().ok_or(BatchError::Records)?;
        self.consume(1)?;
        Ok(byte)
    }

    fn skip(&mut self, mut count: u64) -> Result<(), BatchError> {
        while count > 0 {
            let available = self.fill()?.len();
            if available == 0 {
                return Err(BatchError::Records);
            }
            let step = available.min(usize::try_from(count).unwrap_or(usize::MAX));
            self.consume(step)?;
            count -= step as u64;
        }
        Ok(())
    }

    fn fill(&mut self) -> Result<&[u8], BatchError> {
        self.input.fill_buf().map_err(|_| BatchError::Records)
    }

    fn consume(&mut self, count: usize) -> Result<(), BatchError> {
        self.input.consume(count);
        self.read += count as u64;
        if self.read > self.limit {
            Err(BatchError::TooLarge)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests;
