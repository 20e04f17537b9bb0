//! Batches for tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use bytes::Bytes;
use cluster::configs::TopicConfig;
use kafka_wire::batch::BatchHeader;

/// A batch of `count` uncompressed records of time `time` (ms), its header changed by `change`, with a valid checksum.
pub(crate) fn batch(count: i32, time: i64, change: impl FnOnce(&mut BatchHeader)) -> Bytes {
    let mut records = Vec::new();
    for delta in 0..count {
        // Length 9, no attributes, time delta 0, offset delta, no key, a value of three bytes, no headers.
        records.extend_from_slice(&[18, 0, 0, (delta * 2) as u8, 1, 6, b'a', b'b', b'c', 0]);
    }
    with_records(&records, count, time, change)
}

/// The same with `records` for its records, whatever they are.
pub(crate) fn with_records(
    records: &[u8],
    count: i32,
    time: i64,
    change: impl FnOnce(&mut BatchHeader),
) -> Bytes {
    let mut header = BatchHeader {
        base_offset: 0,
        length: 49 + records.len() as i32,
        partition_leader_epoch: -1,
        magic: 2,
        crc: 0,
        attributes: 0,
        last_offset_delta: count - 1,
        base_timestamp: time,
        max_timestamp: time,
        producer_id: -1,
        producer_epoch: -1,
        base_sequence: -1,
        record_count: count,
    };
    change(&mut header);
    let summed = [&header.to_bytes()[21..], records].concat();
    header.crc = crc_fast::crc32_iscsi(&summed);
    [&header.to_bytes()[..], records].concat().into()
}

/// Bytes that say when nobody holds them any more.
struct Watched {
    bytes: Bytes,
    gone: Arc<AtomicBool>,
}

/// `bytes` of their own, and whether they are gone.
pub(crate) fn watched(bytes: Bytes) -> (Bytes, impl Fn() -> bool) {
    let gone = Arc::new(AtomicBool::new(false));
    let owner = Watched {
        bytes,
        gone: gone.clone(),
    };
    (Bytes::from_owner(owner), move || gone.load(Relaxed))
}

impl AsRef<[u8]> for Watched {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.gone.store(true, Relaxed);
    }
}

/// A batch of an idempotent producer.
pub(crate) fn sequenced(producer_id: i64, base_sequence: i32, count: i32, time: i64) -> Bytes {
    batch(count, time, |header| {
        (header.producer_id, header.producer_epoch, header.base_sequence) = (producer_id, 0, base_sequence);
    })
}

/// Kafka's defaults.
pub(crate) fn topic_config() -> TopicConfig {
    TopicConfig {
        retention_ms: None,
        retention_bytes: None,
        max_message_bytes: 1_048_588,
        log_append_time: false,
        before_max_ms: i64::MAX as u64,
        after_max_ms: 3_600_000,
    }
}

/// A positive number, zigzag-encoded.
pub(crate) fn varint(number: u64) -> Vec<u8> {
    let mut rest = number << 1;
    let mut out = Vec::new();
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
    out
}
