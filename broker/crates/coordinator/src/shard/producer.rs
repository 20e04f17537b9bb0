//! Idempotent producers: what a partition remembers of each, and what it makes of the next batch.
//!
//! Rules of Apache Kafka (`ProducerAppendInfo`, KIP-98, KIP-360): the last five batches are remembered; an exact repeat
//! of one is a duplicate; otherwise sequences follow without gaps and wrap from `i32::MAX` to 0; a new epoch starts
//! at 0; a producer that is not known at all may start anywhere, because its state may have expired.

use bytes::{Buf, BufMut};
use types::Timestamp;

use crate::codes;
use crate::replica::StateError;

/// Batches that are remembered (a producer has at most five requests in flight).
const REMEMBERED: usize = 5;

/// A batch that was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remembered {
    pub base_sequence: i32,
    pub last_sequence: i32,
    pub base_offset: i64,
    /// -1 unless the topic uses LogAppendTime.
    pub log_append_time: Timestamp,
}

/// What a partition knows of a producer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Producer {
    pub epoch: i16,
    /// Log time of its last batch.
    pub used_at: Timestamp,
    /// Of the current epoch, oldest first; never empty.
    batches: Vec<Remembered>,
}

/// What to do with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Accept it.
    Next,
    /// Answer with what became of it the first time.
    Duplicate(Remembered),
    /// Refuse it with this error code.
    Refused(i16),
}

/// Sequence of the last record of a batch.
pub fn last_sequence(base: i32, last_offset_delta: i32) -> i32 {
    // Sequences have 31 bits: the sum of two wraps by masking the sign away.
    base.wrapping_add(last_offset_delta) & i32::MAX
}

/// Judges a batch by what is known of its producer (`None`: nothing). `must_follow`: an earlier batch is on its way, so
/// this one is no beginning.
pub fn judge(
    known: Option<&Producer>,
    epoch: i16,
    base_sequence: i32,
    last_sequence: i32,
    must_follow: bool,
) -> Verdict {
    let Some(known) = known else {
        return match must_follow && !env::mutation("ignore-must-follow") {
            true => Verdict::Refused(codes::OUT_OF_ORDER_SEQUENCE_NUMBER),
            false => Verdict::Next,
        };
    };
    if known.epoch > epoch && !env::mutation("forget-epochs") {
        return Verdict::Refused(codes::INVALID_PRODUCER_EPOCH);
    }
    if known.epoch < epoch {
        return match base_sequence {
            0 => Verdict::Next,
            _ => Verdict::Refused(codes::OUT_OF_ORDER_SEQUENCE_NUMBER),
        };
    }
    let same = |b: &&Remembered| b.base_sequence == base_sequence && b.last_sequence == last_sequence;
    if let Some(first) = known.batches.iter().find(same) {
        return Verdict::Duplicate(*first);
    }
    let expected = known
        .batches
        .last()
        .map(|last| last.last_sequence.wrapping_add(1) & i32::MAX);
    if expected.is_none_or(|expected| expected == base_sequence) || env::mutation("accept-gaps") {
        Verdict::Next
    } else {
        Verdict::Refused(codes::OUT_OF_ORDER_SEQUENCE_NUMBER)
    }
}

/// What is known of a producer after a batch of it was accepted.
pub fn accepted(known: Option<Producer>, epoch: i16, batch: Remembered, at: Timestamp) -> Producer {
    let mut producer = match known {
        Some(known) if known.epoch == epoch => known,
        _ => Producer {
            epoch,
            used_at: at,
            batches: Vec::with_capacity(REMEMBERED),
        },
    };
    if producer.batches.len() >= REMEMBERED {
        producer.batches.remove(0);
    }
    producer.batches.push(batch);
    producer.used_at = at;
    producer
}

const PACKED: usize = 24;

impl Producer {
    /// Sequence of its last record.
    pub fn last_sequence(&self) -> Option<i32> {
        self.batches.last().map(|batch| batch.last_sequence)
    }

    /// The batches as they are stored.
    pub fn pack(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.batches.len() * PACKED);
        for batch in &self.batches {
            out.put_i32(batch.base_sequence);
            out.put_i32(batch.last_sequence);
            out.put_i64(batch.base_offset);
            out.put_i64(batch.log_append_time.0);
        }
        out
    }

    /// Reads what [`Producer::pack`] wrote.
    pub fn unpack(epoch: i16, used_at: Timestamp, mut packed: &[u8]) -> Result<Producer, StateError> {
        if packed.is_empty() || !packed.len().is_multiple_of(PACKED) {
            return Err(StateError::View(format!(
                "a producer's batches take {} bytes",
                packed.len()
            )));
        }
        let mut batches = Vec::with_capacity(REMEMBERED);
        while packed.has_remaining() {
            batches.push(Remembered {
                base_sequence: packed.get_i32(),
                last_sequence: packed.get_i32(),
                base_offset: packed.get_i64(),
                log_append_time: Timestamp(packed.get_i64()),
            });
        }
        Ok(Producer {
            epoch,
            used_at,
            batches,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_after_a_lost_one_is_no_beginning() {
        let refused = Verdict::Refused(codes::OUT_OF_ORDER_SEQUENCE_NUMBER);
        assert_eq!(judge(None, 0, 3, 3, false), Verdict::Next);
        assert_eq!(judge(None, 0, 3, 3, true), refused);
        // What was lost at one broker has come through another: sequences decide.
        let batch = Remembered {
            base_sequence: 2,
            last_sequence: 2,
            base_offset: 0,
            log_append_time: Timestamp(-1),
        };
        let known = accepted(None, 0, batch, Timestamp(0));
        assert_eq!(judge(Some(&known), 0, 3, 3, true), Verdict::Next);
        assert_eq!(judge(Some(&known), 0, 4, 4, true), refused);
    }
}
