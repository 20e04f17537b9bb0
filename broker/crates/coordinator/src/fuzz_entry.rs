//! What a coordinator reads that others wrote, for bytes of anybody's. The fuzz targets and the tests with random bytes call
//! the same functions: whatever comes, nothing panics, and what is taken for a value survives being written and read again.

use std::path::Path;

use bytes::Bytes;
use kafka_wire::fuzz_entry::{again, one_of};
use types::{FeatureLevels, LogOffset, Timestamp};

use crate::protocol::{
    CommitFileRequest, CommitFileResponse, CreatePartitionsRequest, DeleteRecordsRequest,
    DeleteRecordsResponse, DeleteTopicsRequest, DescribeFilesRequest, DescribeFilesResponse,
    DescribePartitionsRequest, DescribePartitionsResponse, ErrorResponse, FindBatchesRequest,
    FindBatchesResponse, HandOverFileRequest, ListOffsetsRequest, ListOffsetsResponse, ReadObjectRequest,
    ReadObjectResponse, TailRequest, TailResponse,
};
use crate::replica::Staged;
use crate::shard::entry;
use crate::shard::producer::Producer;
use crate::shard::snapshot;

/// An entry of a shard's log.
pub fn log_entry(input: &[u8]) {
    let levels = FeatureLevels::SUPPORTED;
    if let Ok((time, change)) = entry::decode(Bytes::copy_from_slice(input), levels) {
        let again = entry::decode(entry::encode(time, &change), levels);
        assert_eq!(again.ok(), Some((time, change)));
    }
}

/// The batches of a producer, as a row of the view has them.
pub fn producer(input: &[u8]) {
    if let Ok(producer) = Producer::unpack(0, Timestamp(0), input) {
        assert_eq!(producer.pack(), input);
    }
}

/// A snapshot, which is unpacked in the folder `dir`.
pub fn snapshot(dir: &Path, input: &[u8]) {
    let staged = snapshot::Staged::create(dir).and_then(|mut staged| {
        let (first, rest) = input.split_at(input.len() / 2);
        staged.push(first)?;
        staged.push(rest)?;
        staged.finish(LogOffset(0))
    });
    assert!(staged.is_err(), "taken for a snapshot");
}

/// A message of the internal listener; the first byte chooses which.
pub fn rpc(input: &[u8]) {
    const READERS: [fn(Bytes); 20] = [
        again::<CommitFileRequest>,
        again::<CommitFileResponse>,
        again::<CreatePartitionsRequest>,
        again::<DeleteRecordsRequest>,
        again::<DeleteRecordsResponse>,
        again::<DeleteTopicsRequest>,
        again::<DescribeFilesRequest>,
        again::<DescribeFilesResponse>,
        again::<DescribePartitionsRequest>,
        again::<DescribePartitionsResponse>,
        again::<ErrorResponse>,
        again::<FindBatchesRequest>,
        again::<FindBatchesResponse>,
        again::<HandOverFileRequest>,
        again::<ListOffsetsRequest>,
        again::<ListOffsetsResponse>,
        again::<ReadObjectRequest>,
        again::<ReadObjectResponse>,
        again::<TailRequest>,
        again::<TailResponse>,
    ];
    one_of(&READERS, input);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bytes among which small numbers are common: lengths and counts that fit.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop_oneof![4 => 0u8..4, 1 => any::<u8>()], 0..200)
    }

    proptest! {
        #[test]
        fn whatever_is_in_the_log_or_comes_from_a_peer_is_read_or_refused(input in bytes()) {
            log_entry(&input);
            producer(&input);
            rpc(&input);
        }
    }

    #[test]
    fn whatever_lies_in_the_place_of_a_snapshot_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut runner = proptest::test_runner::TestRunner::default();
        let header = prop_oneof![Just(b"DSNP\0\0\0".to_vec()), Just(Vec::new())];
        let frame = prop_oneof![
            Just(zstd::encode_all(&b"SQLite format 3\0"[..], 3).unwrap()),
            bytes()
        ];
        runner
            .run(&(header, 0u8..10, frame), |(mut input, version, frame)| {
                input.push(version);
                input.extend(frame);
                snapshot(dir.path(), &input);
                Ok(())
            })
            .unwrap();
    }
}
