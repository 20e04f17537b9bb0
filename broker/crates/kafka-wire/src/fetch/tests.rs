use bytes::{Buf, BytesMut};
use kafka_protocol::messages::FetchRequest;
use kafka_protocol::records::RecordBatchDecoder;

use super::*;
use crate::batch::tests::{batch, record};

fn stored(base_offset: i64, log_append_time: Option<i64>) -> FetchBatch {
    let batch = batch(&[record(0, 100, b"first"), record(1, 101, b"second")]);
    FetchBatch {
        batch,
        base_offset,
        leader_epoch: 0,
        log_append_time,
    }
}

fn partition(index: i32, batches: Vec<FetchBatch>) -> FetchPartition {
    FetchPartition {
        index,
        error_code: 0,
        high_watermark: 40,
        last_stable_offset: 39,
        log_start_offset: 3,
        aborted_transactions: None,
        preferred_read_replica: -1,
        batches,
    }
}

fn sample() -> Fetch {
    let mut failed = partition(1, vec![]);
    (failed.error_code, failed.high_watermark, failed.log_start_offset) = (1, -1, -1);
    let mut aborted = partition(9, vec![stored(7, Some(5_555))]);
    aborted.aborted_transactions = Some(vec![(11, 7), (12, 8)]);
    let id = Uuid::from_u128(77);
    Fetch {
        throttle_time_ms: 0,
        error_code: 0,
        session_id: 0,
        topics: vec![
            FetchTopic {
                name: "orders".into(),
                id,
                partitions: vec![partition(0, vec![stored(30, None), stored(32, None)]), failed],
            },
            FetchTopic {
                name: "x".into(),
                id: Uuid::nil(),
                partitions: vec![aborted],
            },
        ],
    }
}

#[test]
fn every_version_is_read_by_the_protocol_crate() {
    for version in 4..=18 {
        let mut frame = encode(version, 42, &sample()).unwrap().into_bytes();
        assert_eq!(frame.get_u32() as usize, frame.len());
        let (correlation_id, response) = crate::client::decode::<FetchRequest>(frame, version).unwrap();
        assert_eq!((correlation_id, response.responses.len()), (42, 2), "v{version}");
        let topic = &response.responses[0];
        if version >= 13 {
            assert_eq!(topic.topic_id, Uuid::from_u128(77));
        } else {
            assert_eq!(topic.topic.as_str(), "orders");
        }
        let data = &topic.partitions[0];
        assert_eq!(
            (data.partition_index, data.high_watermark, data.last_stable_offset),
            (0, 40, 39)
        );
        assert_eq!(data.log_start_offset, if version >= 5 { 3 } else { -1 });
        assert!(data.aborted_transactions.is_none());
        let mut records = data.records.clone().unwrap();
        let sets = RecordBatchDecoder::decode_all(&mut records).unwrap();
        let offsets: Vec<_> = sets
            .iter()
            .flat_map(|set| &set.records)
            .map(|record| record.offset)
            .collect();
        assert_eq!(offsets, [30, 31, 32, 33]);

        let failed = &topic.partitions[1];
        assert_eq!(failed.error_code, 1);
        assert_eq!(failed.records.as_deref(), Some(&[][..]), "empty, not null");

        let data = &response.responses[1].partitions[0];
        let aborted = data.aborted_transactions.as_ref().unwrap();
        assert_eq!(
            (aborted.len(), aborted[1].producer_id.0, aborted[1].first_offset),
            (2, 12, 8)
        );
        let header = crate::batch::verify(data.records.as_ref().unwrap()).unwrap();
        assert_eq!(
            (
                header.base_offset,
                header.max_timestamp,
                header.is_log_append_time()
            ),
            (7, 5_555, true)
        );
    }
}

#[test]
fn records_are_never_copied() {
    let fetch = sample();
    let rope = encode(18, 1, &fetch).unwrap();
    let stored = fetch
        .topics
        .iter()
        .flat_map(|topic| &topic.partitions)
        .flat_map(|partition| &partition.batches);
    for stored in stored {
        let payload = stored.batch[HEADER_LEN..].as_ptr();
        assert!(rope.segments().any(|segment| segment.as_ptr() == payload));
    }
    let len = rope.len();
    assert_eq!(rope.into_bytes().len(), len);
}

#[test]
fn an_empty_response_is_a_whole_one() {
    for version in 4..=18 {
        let frame = encode(
            version,
            1,
            &Fetch {
                error_code: 0,
                ..Fetch::default()
            },
        )
        .unwrap()
        .into_bytes();
        let (_, response) = crate::client::decode::<FetchRequest>(frame.slice(4..), version).unwrap();
        assert!(response.responses.is_empty());
    }
}

#[test]
fn a_corrupt_stored_batch_and_a_foreign_version_are_errors() {
    let mut fetch = sample();
    fetch.topics[0].partitions[0].batches[0].batch = BytesMut::zeroed(100).freeze();
    assert!(matches!(encode(12, 1, &fetch), Err(EncodeError::Batch(_))));
    assert!(encode(3, 1, &sample()).is_err());
    assert!(encode(19, 1, &sample()).is_err());
}
