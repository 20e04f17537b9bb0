//! Record batches as no client library makes them: every field is the test's to choose.

use std::io::Write as _;

use bytes::{BufMut, Bytes};

/// Create time of the first record, ms: far from the time of any test.
pub const TIME: i64 = 1_700_000_000_000;

pub const GZIP: i16 = 1;
pub const SNAPPY: i16 = 2;
pub const LZ4: i16 = 3;
pub const ZSTD: i16 = 4;

/// A record. Its deltas are its own business.
#[derive(Clone, Debug)]
pub struct Rec {
    pub attributes: i8,
    pub timestamp_delta: i64,
    pub offset_delta: i32,
    pub key: Option<Bytes>,
    pub value: Option<Bytes>,
    pub headers: Vec<(Option<&'static str>, Option<&'static str>)>,
}

impl Rec {
    pub fn new(delta: i32, value: &str) -> Rec {
        Rec {
            attributes: 0,
            timestamp_delta: delta.into(),
            offset_delta: delta,
            key: Some(Bytes::from_static(b"key")),
            value: Some(Bytes::copy_from_slice(value.as_bytes())),
            headers: Vec::new(),
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let mut body = vec![self.attributes.cast_unsigned()];
        varint(&mut body, self.timestamp_delta);
        varint(&mut body, self.offset_delta.into());
        bytes(&mut body, self.key.as_deref());
        bytes(&mut body, self.value.as_deref());
        varint(&mut body, self.headers.len() as i64);
        for (key, value) in &self.headers {
            bytes(&mut body, key.map(str::as_bytes));
            bytes(&mut body, value.map(str::as_bytes));
        }
        varint(out, body.len() as i64);
        out.extend(body);
    }
}

/// Zigzag, as records have it.
pub fn varint(out: &mut Vec<u8>, value: i64) {
    let mut left = (value.cast_unsigned() << 1) ^ (value >> 63).cast_unsigned();
    while left >= 0x80 {
        out.push((left & 0x7f) as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
}

fn bytes(out: &mut Vec<u8>, value: Option<&[u8]>) {
    match value {
        None => varint(out, -1),
        Some(value) => {
            varint(out, value.len() as i64);
            out.extend(value);
        }
    }
}

/// A batch. What it says and what it holds need not agree.
#[derive(Clone, Debug)]
pub struct Batch {
    pub base_offset: i64,
    pub leader_epoch: i32,
    pub magic: i8,
    pub attributes: i16,
    pub last_offset_delta: i32,
    pub base_timestamp: i64,
    pub max_timestamp: i64,
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub base_sequence: i32,
    pub count: i32,
    pub payload: Vec<u8>,
    /// Added to the length that is right.
    pub length_error: i32,
    /// Put over the checksum that is right.
    pub crc_error: u32,
}

impl Batch {
    pub fn of(values: &[&str]) -> Batch {
        let records = (0..).zip(values).map(|(delta, value)| Rec::new(delta, value));
        Batch::with(&records.collect::<Vec<_>>())
    }

    pub fn with(records: &[Rec]) -> Batch {
        let mut payload = Vec::new();
        records.iter().for_each(|record| record.encode(&mut payload));
        let count = i32::try_from(records.len()).expect("few");
        let latest = records.iter().map(|record| record.timestamp_delta).max();
        Batch {
            base_offset: 0,
            leader_epoch: -1,
            magic: 2,
            attributes: 0,
            last_offset_delta: count - 1,
            base_timestamp: TIME,
            max_timestamp: TIME + latest.unwrap_or(0),
            producer_id: -1,
            producer_epoch: -1,
            base_sequence: -1,
            count,
            payload,
            length_error: 0,
            crc_error: 0,
        }
    }

    /// With the records' times counted from `time`.
    pub fn at(mut self, time: i64) -> Batch {
        self.max_timestamp += time - self.base_timestamp;
        self.base_timestamp = time;
        self
    }

    /// Of an idempotent producer.
    pub fn by(mut self, producer_id: i64, epoch: i16, sequence: i32) -> Batch {
        (self.producer_id, self.producer_epoch, self.base_sequence) = (producer_id, epoch, sequence);
        self
    }

    pub fn change(mut self, change: impl FnOnce(&mut Batch)) -> Batch {
        change(&mut self);
        self
    }

    pub fn compressed(mut self, codec: i16) -> Batch {
        self.payload = compress(codec, &self.payload);
        self.attributes |= codec;
        self
    }

    pub fn encode(&self) -> Bytes {
        let mut summed = Vec::with_capacity(self.payload.len() + 40);
        summed.put_i16(self.attributes);
        summed.put_i32(self.last_offset_delta);
        summed.put_i64(self.base_timestamp);
        summed.put_i64(self.max_timestamp);
        summed.put_i64(self.producer_id);
        summed.put_i16(self.producer_epoch);
        summed.put_i32(self.base_sequence);
        summed.put_i32(self.count);
        summed.extend(&self.payload);
        let mut out = Vec::with_capacity(summed.len() + 21);
        out.put_i64(self.base_offset);
        let length = i32::try_from(summed.len() + 9).expect("small");
        out.put_i32(length + self.length_error);
        out.put_i32(self.leader_epoch);
        out.put_i8(self.magic);
        out.put_u32(crc32c(&summed) ^ self.crc_error);
        out.extend(summed);
        out.into()
    }
}

fn compress(codec: i16, plain: &[u8]) -> Vec<u8> {
    match codec {
        GZIP => {
            let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            gzip.write_all(plain).expect("in memory");
            gzip.finish().expect("in memory")
        }
        SNAPPY => {
            // xerial's framing: a header, then blocks with their lengths.
            let block = snap::raw::Encoder::new().compress_vec(plain).expect("in memory");
            let mut out = b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01".to_vec();
            out.put_u32(u32::try_from(block.len()).expect("small"));
            out.extend(block);
            out
        }
        LZ4 => {
            let mut lz4 = lz4_flex::frame::FrameEncoder::new(Vec::new());
            lz4.write_all(plain).expect("in memory");
            lz4.finish().expect("in memory")
        }
        ZSTD => zstd::encode_all(plain, 3).expect("in memory"),
        _ => plain.to_vec(),
    }
}

/// CRC-32C bit by bit: nothing of the code under test.
pub fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}
