//! What is read from the object store or the database, for bytes of anybody's. The fuzz targets and the tests with random
//! bytes call the same functions: whatever comes, nothing panics, and what is taken for a value is written again as it was.

use bytes::{BufMut, Bytes};

use crate::LogOffset;
use crate::format::{MANIFEST_MAGIC, Manifest, SLOT_MAGIC, StoredSlot, crc, preamble};

/// Where the offset stands behind the checksum of a slot.
const OFFSET_AT: usize = 24;

/// A slot: as it is, and as the rest of one whose beginning and checksum are right, since little gets past these.
pub fn slot(input: &[u8]) {
    let _ = StoredSlot::decode("fuzz", LogOffset(0), &Bytes::copy_from_slice(input));
    let offset = LogOffset(number_at(input, OFFSET_AT));
    let body = sealed(SLOT_MAGIC, input);
    let Ok(slot) = StoredSlot::decode("fuzz", offset, &body) else {
        return;
    };
    assert_eq!(slot.encode().map(|body| body.concat()), Ok(body.to_vec()));
}

/// A manifest, likewise.
pub fn manifest(input: &[u8]) {
    let _ = Manifest::decode("fuzz", 0, &Bytes::copy_from_slice(input));
    let sequence = number_at(input, 0);
    let Ok(manifest) = Manifest::decode("fuzz", sequence, &sealed(MANIFEST_MAGIC, input)) else {
        return;
    };
    let body = Bytes::from(manifest.encode().concat());
    assert_eq!(Manifest::decode("fuzz", sequence, &body), Ok(manifest));
}

fn sealed(magic: &[u8; 8], rest: &[u8]) -> Bytes {
    let mut body = preamble(magic, crc(&[rest]));
    body.put_slice(rest);
    body.freeze()
}

/// The number that the decoder expects from the key.
fn number_at(input: &[u8], at: usize) -> u64 {
    let bytes = input.get(at..).and_then(|rest| rest.first_chunk());
    bytes.map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bytes among which small numbers are common: lengths and counts that fit.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop_oneof![4 => 0u8..3, 1 => any::<u8>()], 0..220)
    }

    proptest! {
        #[test]
        fn whatever_lies_in_the_bucket_is_read_or_refused(input in bytes()) {
            slot(&input);
            manifest(&input);
        }
    }
}
