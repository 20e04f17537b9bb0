use std::io::Write;

use futures::FutureExt;

use super::*;
use crate::produce::testing::{batch, topic_config, varint, with_records};

const NOW: Timestamp = Timestamp(1_800_000_000_000);
const MIB: usize = 1 << 20;

fn unread(batch: Bytes, config: TopicConfig) -> Unread {
    Unread {
        header: kafka_wire::batch::validate(&batch).unwrap(),
        batch,
        config,
        now: NOW,
    }
}

/// What becomes of a batch that is not compressed.
fn check(batch: Bytes, config: TopicConfig) -> Result<(), Refusal> {
    let mut reading = Reading::default();
    let read = reading.read(0, unread(batch, config));
    assert!(reading.is_done());
    read
}

/// A batch of one record of `size` zeroes and a little more, compressed with zstd.
fn zeroes(size: usize) -> Unread {
    let mut record = varint(size as u64 + 1000);
    // No attributes, deltas or key; a value that leaves room for nothing but the count of headers.
    record.extend_from_slice(&[0, 0, 0, 1]);
    let value = size + 1000 - 4 - varint(size as u64 + 900).len() - 1;
    record.extend_from_slice(&varint(value as u64));
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
    encoder.write_all(&record).unwrap();
    let chunk = vec![0; MIB];
    let mut left = value + 1;
    while left > 0 {
        let step = left.min(MIB);
        encoder.write_all(&chunk[..step]).unwrap();
        left -= step;
    }
    let records = encoder.finish().unwrap();
    let zstd = |header: &mut BatchHeader| header.attributes = 4;
    unread(with_records(&records, 1, NOW.0, zstd), topic_config())
}

#[test]
fn the_topic_bounds_create_times() {
    let ahead = batch(3, NOW.0, |header| header.base_timestamp += 3_600_001);
    let refused = check(ahead.clone(), topic_config()).unwrap_err();
    assert_eq!(refused.error, ResponseError::InvalidTimestamp);
    let append_time = TopicConfig {
        log_append_time: true,
        ..topic_config()
    };
    assert_eq!(check(ahead, append_time), Ok(()));
    let strict = TopicConfig {
        before_max_ms: 1000,
        ..topic_config()
    };
    let behind = batch(3, NOW.0, |header| header.base_timestamp -= 1001);
    let refused = check(behind, strict).unwrap_err();
    assert_eq!(refused.error, ResponseError::InvalidTimestamp);
    let without = |header: &mut BatchHeader| (header.base_timestamp, header.max_timestamp) = (-1, -1);
    assert_eq!(check(batch(3, NOW.0, without), strict), Ok(()));
}

#[test]
fn records_of_a_wrong_time_are_named() {
    let strict = TopicConfig {
        before_max_ms: 1000,
        ..topic_config()
    };
    let old = batch(3, NOW.0 - 1001, |header| header.max_timestamp = NOW.0);
    let mut reading = Reading::default();
    let mut named = 0;
    for place in 0..NAMED {
        let refusal = reading.read(place, unread(old.clone(), strict)).unwrap_err();
        assert_eq!(refusal.error, ResponseError::InvalidTimestamp);
        assert!(
            refusal
                .message
                .contains("message.timestamp.before.max.ms is 1000")
        );
        let places: Vec<i32> = refusal.records.iter().map(|(place, _)| *place).collect();
        assert_eq!(places, [0, 1, 2][..places.len()]);
        named += places.len();
    }
    assert_eq!(named, NAMED, "not all of them, when there are very many");
}

#[test]
fn records_that_no_consumer_could_read_are_refused() {
    let lies = batch(3, NOW.0, |header| {
        (header.record_count, header.last_offset_delta) = (2, 1)
    });
    let refusal = check(lies, topic_config()).unwrap_err();
    assert_eq!(refusal.error, ResponseError::InvalidRecord);
}

#[test]
fn only_what_is_small_is_decompressed_at_once() {
    let mut reading = Reading::default();
    assert_eq!(reading.read(0, zeroes(1000)), Ok(()));
    assert!(reading.is_done(), "most producers' batches are like this one");
    // A few kilobytes that come to a hundred mebibytes.
    let bomb = zeroes(100 * MIB);
    assert!(bomb.batch.len() < SMALL);
    assert_eq!(reading.read(1, bomb), Ok(()));
    assert!(!reading.is_done());
    // However small they are, each costs something.
    let mut reading = Reading::default();
    for place in 0..1000 {
        assert_eq!(reading.read(place, zeroes(1000)), Ok(()));
    }
    assert!(reading.later.len() > 900, "{}", reading.later.len());
}

/// The one test with real threads: what is decompressed must not hold the task that asked for it.
#[tokio::test]
async fn what_is_large_is_decompressed_beside_the_tasks() {
    let readers = Readers::new(Env::production());
    let mut reading = Reading::default();
    assert_eq!(reading.read(7, zeroes(200 * MIB)), Ok(()));
    let finish = readers.finish(reading);
    let mut finish = std::pin::pin!(finish);
    assert!(finish.as_mut().now_or_never().is_none());
    assert!(finish.await.is_empty());
}

#[tokio::test]
async fn a_request_decompresses_to_so_much_and_no_more() {
    let readers = Readers::new(Env::simulated(1));
    let mut reading = Reading::default();
    // Five of 240 MiB are more than 1 GiB; one of 300 MiB is too large in itself.
    let large = zeroes(300 * MIB);
    let whole = zeroes(240 * MIB);
    let again = || Unread {
        batch: whole.batch.clone(),
        ..whole
    };
    assert_eq!(reading.read(0, large), Ok(()));
    for place in 1..6 {
        assert_eq!(reading.read(place, again()), Ok(()));
    }
    let refused = readers.finish(reading).await;
    let places: Vec<usize> = refused.iter().map(|(place, _)| *place).collect();
    assert_eq!(places, [0, 4, 5]);
    for (_, refusal) in &refused {
        assert_eq!(refusal.error, ResponseError::MessageTooLarge);
    }
    assert!(refused[1].1.message.contains("of a request"), "{:?}", refused[1]);
    assert_eq!(readers.turns.available_permits(), READERS);
}
