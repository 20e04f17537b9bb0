//! Layout of an object, format 0 (KIP-1163): one byte, then record batches (magic 2) back to back. Batches of a
//! partition are contiguous, partitions stand in the order of topic id and index, batches in order of arrival.

use bytes::{BufMut, Bytes, BytesMut};
use types::TopicPartition;

/// Byte 0 of every object.
pub const FORMAT_VERSION: u8 = 0;

/// Batches below this size are copied together, in bytes: handing a small piece to the system costs more than
/// copying it, and a small batch would keep the whole network buffer alive that it came in with.
pub const COPY_BELOW: usize = 16 << 10;

/// Size of the buffers that small batches are copied into, in bytes.
const COPY_CHUNK: usize = 256 << 10;

/// A record batch on its way into an object, with what its owner wants to know it by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch<T> {
    /// Where it was produced to.
    pub partition: TopicPartition,
    /// The batch as it came in.
    pub bytes: Bytes,
    /// Its owner's.
    pub tag: T,
}

/// A batch that has its place in an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed<T> {
    /// Where it was produced to.
    pub partition: TopicPartition,
    /// Where it starts in the object, in bytes.
    pub position: u32,
    /// Its length in bytes.
    pub size: u32,
    /// Its owner's.
    pub tag: T,
}

/// An object before it is written.
#[derive(Clone, Debug)]
pub struct Segment<T> {
    /// The bytes of the object. A batch never spans two pieces.
    pub body: Vec<Bytes>,
    /// Their number.
    pub size: u64,
    /// The batches in the order they lie in.
    pub batches: Vec<Placed<T>>,
}

impl<T> Segment<T> {
    /// Lays `batches`, given in order of arrival, out in an object. Together they must stay below 4 GiB, which
    /// [`crate::Buffer`] sees to.
    pub fn build(mut batches: Vec<Batch<T>>) -> Segment<T> {
        batches.sort_by_key(|batch| batch.partition);
        let mut body = Body::new();
        let mut placed = Vec::with_capacity(batches.len());
        for Batch {
            partition,
            bytes,
            tag,
        } in batches
        {
            let position = u32::try_from(body.size).unwrap_or(u32::MAX);
            let size = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            body.push(bytes);
            placed.push(Placed {
                partition,
                position,
                size,
                tag,
            });
        }
        let size = body.size;
        Segment {
            body: body.finish(),
            size,
            batches: placed,
        }
    }
}

/// Large batches by reference, runs of small ones by copy.
struct Body {
    pieces: Vec<Bytes>,
    small: BytesMut,
    size: u64,
}

impl Body {
    fn new() -> Body {
        let mut small = BytesMut::with_capacity(1);
        small.put_u8(FORMAT_VERSION);
        Body {
            pieces: Vec::new(),
            small,
            size: 1,
        }
    }

    fn push(&mut self, bytes: Bytes) {
        self.size += bytes.len() as u64;
        if bytes.len() >= COPY_BELOW {
            self.flush();
            self.pieces.push(bytes);
            return;
        }
        if self.small.len() + bytes.len() > COPY_CHUNK {
            self.flush();
        }
        self.small.put_slice(&bytes);
    }

    fn flush(&mut self) {
        if !self.small.is_empty() {
            self.pieces.push(std::mem::take(&mut self.small).freeze());
        }
    }

    fn finish(mut self) -> Vec<Bytes> {
        self.flush();
        self.pieces
    }
}

#[cfg(test)]
mod tests {
    use types::TopicId;
    use uuid::Uuid;

    use super::*;

    fn batch(topic: u128, partition: i32, fill: u8, len: usize) -> Batch<u8> {
        let partition = TopicPartition {
            topic: TopicId(Uuid::from_u128(topic)),
            partition,
        };
        Batch {
            partition,
            bytes: Bytes::from(vec![fill; len]),
            tag: fill,
        }
    }

    fn flat(segment: &Segment<u8>) -> Vec<u8> {
        segment.body.concat()
    }

    #[test]
    fn partitions_are_contiguous_and_keep_arrival_order() {
        let arrived = vec![
            batch(2, 0, 1, 100),
            batch(1, 1, 2, 20_000),
            batch(2, 0, 3, 30_000),
            batch(1, 0, 4, 50),
            batch(1, 1, 5, 60),
            batch(1, 1, 6, 40_000),
        ];
        let segment = Segment::build(arrived);
        let order: Vec<u8> = segment.batches.iter().map(|batch| batch.tag).collect();
        assert_eq!(order, [4, 2, 5, 6, 1, 3]);
        let bytes = flat(&segment);
        assert_eq!(bytes[0], FORMAT_VERSION);
        assert_eq!(bytes.len() as u64, segment.size);
        let mut end = 1;
        for placed in &segment.batches {
            assert_eq!(placed.position, end);
            end += placed.size;
            let range = placed.position as usize..end as usize;
            assert!(bytes[range].iter().all(|byte| *byte == placed.tag));
        }
        assert_eq!(u64::from(end), segment.size);
    }

    #[test]
    fn large_batches_are_not_copied_and_small_ones_are_joined() {
        let large = batch(1, 0, 9, 1 << 20);
        let pointer = large.bytes.as_ptr();
        let mut arrived = vec![large];
        arrived.extend((0..1000).map(|i| batch(1, 1, i as u8, 1000)));
        let segment = Segment::build(arrived);
        assert!(segment.body.iter().any(|piece| piece.as_ptr() == pointer));
        assert!(segment.body.len() < 10, "{} pieces", segment.body.len());
        // No batch spans two pieces.
        let mut edges = Vec::new();
        let mut at = 0;
        for piece in &segment.body {
            at += piece.len();
            edges.push(at);
        }
        for placed in &segment.batches {
            let (from, to) = (placed.position as usize, (placed.position + placed.size) as usize);
            assert!(!edges.iter().any(|edge| from < *edge && *edge < to));
        }
    }
}
