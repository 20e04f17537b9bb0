use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::records::{
    Compression, Record, RecordBatchDecoder, RecordBatchEncoder, RecordEncodeOptions, TimestampType,
};
use proptest::prelude::*;

use super::*;

pub(crate) fn record(offset: i64, timestamp: i64, value: &[u8]) -> Record {
    Record {
        transactional: false,
        control: false,
        delete_horizon: false,
        partition_leader_epoch: -1,
        producer_id: -1,
        producer_epoch: -1,
        timestamp_type: TimestampType::Creation,
        offset,
        sequence: -1 + offset as i32,
        timestamp,
        key: Some(Bytes::from_static(b"key")),
        value: Some(Bytes::copy_from_slice(value)),
        headers: [("h".into(), None)].into_iter().collect(),
    }
}

/// A batch as the protocol crate writes it.
pub(crate) fn batch(records: &[Record]) -> Bytes {
    let mut out = BytesMut::new();
    let options = RecordEncodeOptions {
        version: 2,
        compression: Compression::None,
    };
    RecordBatchEncoder::encode(&mut out, records, &options).unwrap();
    out.freeze()
}

fn simple() -> BytesMut {
    batch(&[
        record(0, 1_000, b"one"),
        record(1, 1_005, b"two"),
        record(2, 1_002, b"three"),
    ])
    .as_ref()
    .into()
}

/// Applies a change to the header and makes the checksum fit again.
fn with(change: impl FnOnce(&mut BatchHeader)) -> Bytes {
    let mut bytes = simple();
    let mut header = BatchHeader::parse(&bytes).unwrap();
    change(&mut header);
    bytes[..HEADER_LEN].copy_from_slice(&header.to_bytes());
    header.crc = crc_fast::crc32_iscsi(&bytes[CRC_START..]);
    bytes[..HEADER_LEN].copy_from_slice(&header.to_bytes());
    bytes.freeze()
}

fn refused(change: impl FnOnce(&mut BatchHeader)) -> ResponseError {
    validate(&with(change)).unwrap_err().response_error()
}

#[test]
fn a_batch_of_another_encoder_is_read_and_accepted() {
    let bytes = simple();
    let header = validate(&bytes).unwrap();
    assert_eq!(header.total_size(), bytes.len());
    assert_eq!(
        (header.base_offset, header.last_offset_delta, header.record_count),
        (0, 2, 3)
    );
    assert_eq!((header.base_timestamp, header.max_timestamp), (1_000, 1_005));
    assert_eq!(
        (header.producer_id, header.producer_epoch, header.base_sequence),
        (-1, -1, -1)
    );
    assert_eq!(header.codec(), Ok(Codec::None));
    assert_eq!(header.last_offset(), 2);
    assert!(!header.is_transactional() && !header.is_control() && !header.has_producer_id());
    assert_eq!(&header.to_bytes()[..], &bytes[..HEADER_LEN]);
}

#[test]
fn bytes_that_are_not_one_whole_batch_are_refused() {
    let bytes = simple().freeze();
    for len in 0..bytes.len() {
        validate(&bytes.slice(..len)).unwrap_err();
    }
    let twice = [&bytes[..], &bytes[..]].concat();
    assert_eq!(validate(&twice), Err(BatchError::Several));
    let with_length = |length| validate(&with(|header| header.length = length));
    for length in [-1, 0, 48, i32::MIN] {
        assert_eq!(with_length(length), Err(BatchError::Length(length)));
    }
    assert_eq!(with_length(i32::MAX), Err(BatchError::Truncated));
}

#[test]
fn every_flipped_bit_under_the_checksum_is_noticed() {
    let bytes = simple();
    for at in CRC_START..bytes.len() {
        for bit in 0..8 {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << bit;
            assert_eq!(validate(&flipped), Err(BatchError::Crc));
        }
    }
}

#[test]
fn kafkas_rules_for_producers() {
    validate(&with(|_| ())).unwrap();
    assert_eq!(refused(|header| header.magic = 1), ResponseError::InvalidRecord);
    assert_eq!(refused(|header| header.magic = 3), ResponseError::CorruptMessage);
    assert_eq!(
        refused(|header| header.base_offset = 1),
        ResponseError::InvalidRecord
    );
    // Bits that mean nothing (yet) are the producer's business.
    validate(&with(|header| header.attributes = 1 << 6)).unwrap();
    assert_eq!(
        refused(|header| header.record_count = 4),
        ResponseError::InvalidRecord
    );
    assert_eq!(
        refused(|header| header.last_offset_delta = 3),
        ResponseError::InvalidRecord
    );
    let no_records = |header: &mut BatchHeader| (header.record_count, header.last_offset_delta) = (0, -1);
    assert_eq!(refused(no_records), ResponseError::InvalidRecord);
    let overflow =
        |header: &mut BatchHeader| (header.record_count, header.last_offset_delta) = (i32::MIN, i32::MAX);
    assert_eq!(refused(overflow), ResponseError::InvalidRecord);
    let too_many = |header: &mut BatchHeader| (header.record_count, header.last_offset_delta) = (1000, 999);
    assert_eq!(refused(too_many), ResponseError::InvalidRecord);
    assert_eq!(
        refused(|header| header.attributes = CONTROL),
        ResponseError::InvalidRecord
    );
    assert_eq!(
        refused(|header| header.attributes = LOG_APPEND_TIME),
        ResponseError::InvalidTimestamp
    );
    assert_eq!(
        refused(|header| header.attributes = 5),
        ResponseError::UnsupportedCompressionType
    );
    assert_eq!(
        refused(|header| header.attributes = TRANSACTIONAL),
        ResponseError::InvalidRecord
    );
    assert_eq!(
        refused(|header| header.producer_id = 7),
        ResponseError::InvalidRecord
    );
    let idempotent = |header: &mut BatchHeader| {
        (header.producer_id, header.producer_epoch, header.base_sequence) = (7, 0, 0);
        header.attributes |= TRANSACTIONAL;
    };
    assert!(validate(&with(idempotent)).unwrap().is_transactional());
}

#[test]
fn sequences_wrap_to_zero() {
    let header = |base_sequence, last_offset_delta| {
        let mut header = BatchHeader::parse(&simple()).unwrap();
        (header.base_sequence, header.last_offset_delta) = (base_sequence, last_offset_delta);
        header.last_sequence()
    };
    assert_eq!(header(-1, 5), -1);
    assert_eq!(header(10, 5), 15);
    assert_eq!(header(i32::MAX, 0), i32::MAX);
    assert_eq!(header(i32::MAX, 1), 0);
    assert_eq!(header(i32::MAX - 1, 9), 7);
}

#[test]
fn a_patched_batch_has_its_offsets_and_a_valid_checksum() {
    let mut bytes = simple();
    let head = patched_head(&bytes, 123_456_789_012, 4, None).unwrap();
    assert_eq!(
        &head[16..],
        &bytes[16..HEADER_LEN],
        "only offset and epoch change"
    );
    bytes[..HEADER_LEN].copy_from_slice(&head);
    let header = verify(&bytes).unwrap();
    assert_eq!(
        (header.base_offset, header.partition_leader_epoch),
        (123_456_789_012, 4)
    );

    let records = RecordBatchDecoder::decode(&mut bytes.freeze()).unwrap().records;
    let offsets: Vec<_> = records
        .iter()
        .map(|record| record.offset - 123_456_789_012)
        .collect();
    assert_eq!(offsets, [0, 1, 2]);
}

proptest! {
    #[test]
    fn append_time_keeps_the_checksum_right(
        values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3000), 1..20),
        time in any::<i64>(),
        offset in any::<i64>(),
    ) {
        let records: Vec<_> = values.iter().zip(0..).map(|(value, i)| record(i, 1_000 + i, value)).collect();
        let mut bytes: BytesMut = batch(&records).as_ref().into();
        let head = patched_head(&bytes, offset, 0, Some(time)).unwrap();
        bytes[..HEADER_LEN].copy_from_slice(&head);
        let header = verify(&bytes).unwrap();
        prop_assert!(header.is_log_append_time());
        prop_assert_eq!((header.max_timestamp, header.base_offset), (time, offset));
        // Patching what is patched changes nothing.
        prop_assert_eq!(header.patched(offset, 0, Some(time)), head);
    }

    #[test]
    fn garbage_never_panics(input in prop::collection::vec(any::<u8>(), 0..200)) {
        crate::fuzz_entry::produced(&input);
        crate::fuzz_entry::lookup(&input);
    }

    #[test]
    fn mutated_batches_never_panic(at in 0usize..100, value in any::<u8>()) {
        let mut bytes = simple();
        let at = at % bytes.len();
        bytes[at] = value;
        crate::fuzz_entry::produced(&bytes);
        crate::fuzz_entry::lookup(&bytes);
    }
}

#[test]
fn consecutive_batches_are_slices() {
    let one = simple();
    let mut field = BytesMut::new();
    for _ in 0..3 {
        field.put_slice(&one);
    }
    let field = field.freeze();
    let found: Vec<_> = batches(&field).map(Result::unwrap).collect();
    assert_eq!(found.len(), 3);
    assert!(
        found
            .iter()
            .all(|(header, bytes)| header.record_count == 3 && bytes == &one)
    );
    assert_eq!(found[1].1.as_ptr(), field[one.len()..].as_ptr());
    assert_eq!(batches(&Bytes::new()).count(), 0);

    let cut: Vec<_> = batches(&field.slice(..field.len() - 1)).collect();
    assert_eq!(cut.len(), 3);
    assert_eq!(cut[2], Err(BatchError::Truncated));
    assert_eq!(
        batches(&Bytes::from(vec![0; 200])).collect::<Vec<_>>(),
        [Err(BatchError::Magic(0))]
    );
}

#[test]
fn sequences_wrap() {
    assert!(is_before(i32::MAX, 0) && is_before(i32::MAX - 5, 3) && is_before(0, 1));
    assert!(!is_before(0, i32::MAX) && !is_before(3, 3));
}
