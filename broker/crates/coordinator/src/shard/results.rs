//! The answer to a commit as it is kept with the file, for a second commit of the same file: 9 bytes a batch where nothing
//! is special.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use types::{Timestamp, TopicPartition};

use super::entry::PartitionBatches;
use crate::codes;
use crate::protocol::{BatchRequest, BatchResult};

const REFUSED: u8 = 1;
const DUPLICATE: u8 = 2;
const WITH_TIME: u8 = 4;

/// Log starts are left out.
pub fn pack(results: &[BatchResult]) -> Bytes {
    let mut out = BytesMut::with_capacity(results.len() * 9);
    for result in results {
        if result.error_code == codes::NONE {
            put_accepted(
                &mut out,
                result.duplicate,
                result.base_offset,
                result.log_append_time,
            );
        } else {
            out.put_u8(REFUSED);
            out.put_i16(result.error_code);
        }
    }
    out.freeze()
}

/// What [`pack`] makes of batches that were all accepted, in this order.
pub fn pack_accepted(partitions: &[PartitionBatches]) -> Bytes {
    let batches: usize = partitions.iter().map(|partition| partition.batches.len()).sum();
    let mut out = BytesMut::with_capacity(batches * 9);
    for partition in partitions {
        let mut base_offset = partition.base_offset;
        for batch in &partition.batches {
            let log_append_time = match batch.log_append_time {
                true => batch.timestamp,
                false => Timestamp(-1),
            };
            put_accepted(&mut out, false, base_offset, log_append_time);
            base_offset = base_offset.wrapping_add(i64::from(batch.last_offset_delta).wrapping_add(1));
        }
    }
    out.freeze()
}

fn put_accepted(out: &mut BytesMut, duplicate: bool, base_offset: i64, log_append_time: Timestamp) {
    let with_time = log_append_time.0 >= 0;
    out.put_u8(u8::from(duplicate) * DUPLICATE + u8::from(with_time) * WITH_TIME);
    out.put_i64(base_offset);
    if with_time {
        out.put_i64(log_append_time.0);
    }
}

/// The answer to `batches`, with the log starts of now. `None`: it answers another request.
pub fn unpack(
    mut packed: Bytes,
    batches: &[BatchRequest],
    log_start: impl Fn(&TopicPartition) -> i64,
) -> Option<Vec<BatchResult>> {
    let mut results = Vec::with_capacity(batches.len());
    for batch in batches {
        let log_start_offset = log_start(&TopicPartition {
            topic: batch.topic,
            partition: batch.partition,
        });
        let kind = packed.try_get_u8().ok()?;
        if kind & REFUSED != 0 {
            results.push(failed(packed.try_get_i16().ok()?, log_start_offset));
            continue;
        }
        let base_offset = packed.try_get_i64().ok()?;
        let log_append_time = Timestamp(match kind & WITH_TIME != 0 {
            true => packed.try_get_i64().ok()?,
            false => -1,
        });
        results.push(BatchResult {
            error_code: codes::NONE,
            base_offset: base_offset + i64::from(env::mutation("wrong-repeat")),
            log_append_time,
            log_start_offset,
            duplicate: kind & DUPLICATE != 0,
        });
    }
    packed.is_empty().then_some(results)
}

/// The result of a batch that is refused.
pub fn failed(error_code: i16, log_start_offset: i64) -> BatchResult {
    BatchResult {
        error_code,
        base_offset: -1,
        log_append_time: Timestamp(-1),
        log_start_offset,
        duplicate: false,
    }
}
