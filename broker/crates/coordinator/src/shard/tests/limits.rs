//! What the log must be able to take.

use types::FeatureLevel;

use super::*;
use crate::protocol::MAX_FILE_BATCHES;
use crate::replica::Options;

/// About the largest entry that a file can come to: every batch in a partition of its own, of a producer of its own, and
/// nothing follows from what stands before.
#[test]
fn the_largest_file_fits_into_an_entry_in_either_form() {
    let limit = Options::default().max_entry_bytes;
    let count = i32::try_from(MAX_FILE_BATCHES).unwrap();
    for level in [FeatureLevel::FIRST, FeatureLevel::PACKED_FILES] {
        let finalized = Arc::new(move || level);
        let features = Features {
            finalized,
            ..Features::default()
        };
        let mut shard = Shard::with(SHARD, features);
        shard.create(1, count / 2);
        shard.create(2, count / 2);
        let batch = |index: i32| {
            let id = tp(1 + (index % 2).unsigned_abs() as u128, index / 2);
            BatchRequest {
                // With it the plain form is larger, and the packed one without.
                log_append_time: level == FeatureLevel::FIRST,
                max_timestamp: Timestamp(i64::from(index % 2) * i64::MAX),
                ..idem(id, 1, i64::MAX - i64::from(index), i16::MAX, i32::MAX)
            }
        };
        let mut request = file(7, (0..count).map(batch).collect());
        request.size = u64::from(u32::MAX);
        for (index, batch) in (0..).zip(&mut request.batches) {
            (batch.position, batch.size) = ((1 << 29) - index, 1 << 28);
        }
        let (output, entry) = shard.judge(&Command::CommitFile(request));
        let Output::Committed {
            error_code: 0,
            batches,
        } = output
        else {
            panic!("{output:?}")
        };
        assert!(batches.iter().all(|batch| batch.error_code == 0));
        // Offsets of a long log, and numbers of records, may take so much more.
        let size = entry.unwrap().len() + 12 * MAX_FILE_BATCHES;
        println!("{size} bytes at {level:?}, {limit} are allowed");
        assert!(size <= limit, "{size} bytes at {level:?}");
    }
}
