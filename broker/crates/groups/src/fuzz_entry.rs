//! What a group coordinator reads that others wrote, for bytes of anybody's. The fuzz targets and the tests with random bytes
//! call the same functions: whatever comes, nothing panics.

use bytes::Bytes;
use kafka_wire::flex::Encode;

use crate::record::GroupRecord;
use crate::subscription;

/// A group as the shard keeps it.
pub fn record(input: &[u8]) {
    if let Ok(record) = GroupRecord::read(Bytes::copy_from_slice(input)) {
        assert_eq!(GroupRecord::read(record.to_bytes()), Ok(record));
    }
}

/// What a member says it reads.
pub fn subscription(input: &[u8]) {
    let _ = subscription::names(Bytes::copy_from_slice(input), "topic");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    /// Bytes among which small numbers are common: lengths and counts that fit.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop_oneof![4 => 0u8..4, 1 => any::<u8>()], 0..200)
    }

    proptest! {
        #[test]
        fn whatever_is_stored_of_a_group_or_sent_by_a_member_is_read_or_refused(input in bytes()) {
            super::record(&input);
            super::subscription(&input);
        }
    }
}
