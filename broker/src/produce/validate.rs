//! What a producer's batch must satisfy before it is taken: the rules of Kafka's `LogValidator`.

use bytes::Bytes;
use cluster::configs::TopicConfig;
use kafka_wire::ResponseError;
use kafka_wire::batch::{self, BatchHeader, Codec};
use kafka_wire::records;
use types::Timestamp;

/// First version of Produce that may carry zstd (KIP-110).
const ZSTD: i16 = 7;

/// Records of a batch that a refusal names: all of them could be more than the batch itself.
const NAMED: usize = 100;

/// Why a batch is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// Kafka's code.
    pub error: ResponseError,
    /// For people.
    pub message: String,
    /// The records that are to blame, by their place in the batch, and why.
    pub records: Vec<(i32, String)>,
}

impl Refusal {
    /// Of the batch as a whole.
    pub fn new(error: ResponseError, message: impl Into<String>) -> Refusal {
        Refusal {
            error,
            message: message.into(),
            records: Vec::new(),
        }
    }
}

/// Checks the records that a Produce request of `version` holds for one partition: exactly one batch.
pub fn validate(
    batch: &Bytes,
    version: i16,
    config: &TopicConfig,
    now: Timestamp,
) -> Result<BatchHeader, Refusal> {
    if batch.len() > config.max_message_bytes as usize {
        let (size, max) = (batch.len(), config.max_message_bytes);
        let message =
            format!("The record batch size is {size} bytes, max.message.bytes of the topic is {max}");
        return Err(Refusal::new(ResponseError::MessageTooLarge, message));
    }
    let wrong = |error: batch::BatchError| Refusal::new(error.response_error(), error.to_string());
    let header = batch::validate(batch).map_err(wrong)?;
    if header.codec() == Ok(Codec::Zstd) && version < ZSTD {
        let message = format!("Produce version {version} cannot carry zstd");
        return Err(Refusal::new(ResponseError::UnsupportedCompressionType, message));
    }
    if header.is_transactional() {
        return Err(Refusal::new(
            ResponseError::InvalidRequest,
            "transactions are not supported by this version",
        ));
    }
    let mut late = Vec::new();
    let checked = records::check(batch, |index, time| {
        if !config.log_append_time && late.len() < NAMED {
            late.extend(wrong_time(Timestamp(time), config, now).map(|why| (index, why)));
        }
    });
    checked.map_err(wrong)?;
    match late.first() {
        None => Ok(header),
        Some((_, first)) => Err(Refusal {
            error: ResponseError::InvalidTimestamp,
            message: first.clone(),
            records: late,
        }),
    }
}

/// What is wrong with the create time of a record. -1 is none.
fn wrong_time(time: Timestamp, config: &TopicConfig, now: Timestamp) -> Option<String> {
    let (key, distance, limit) = match time <= now {
        true => ("before", now.since(time), config.before_max_ms),
        false => ("after", time.since(now), config.after_max_ms),
    };
    (time.0 != -1 && distance > limit).then(|| {
        format!(
            "Timestamp {time} is {distance} ms away from the broker's {now}: message.timestamp.{key}.max.ms is {limit}"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::produce::testing::{batch, topic_config};

    const NOW: Timestamp = Timestamp(1_800_000_000_000);

    fn check(
        change: impl FnOnce(&mut BatchHeader),
        version: i16,
        config: &TopicConfig,
    ) -> Result<(), ResponseError> {
        let bytes = batch(3, NOW.0, change);
        validate(&bytes, version, config, NOW)
            .map(drop)
            .map_err(|refusal| refusal.error)
    }

    #[test]
    fn a_plain_batch_is_taken() {
        assert_eq!(check(|_| {}, 3, &topic_config()), Ok(()));
    }

    #[test]
    fn limits_of_the_topic_hold() {
        let small = TopicConfig {
            max_message_bytes: 10,
            ..topic_config()
        };
        assert_eq!(check(|_| {}, 9, &small), Err(ResponseError::MessageTooLarge));
        let ahead = |header: &mut BatchHeader| header.base_timestamp += 3_600_001;
        assert_eq!(
            check(ahead, 9, &topic_config()),
            Err(ResponseError::InvalidTimestamp)
        );
        let append_time = TopicConfig {
            log_append_time: true,
            ..topic_config()
        };
        assert_eq!(check(ahead, 9, &append_time), Ok(()));
        let strict = TopicConfig {
            before_max_ms: 1000,
            ..topic_config()
        };
        let behind = |header: &mut BatchHeader| header.base_timestamp -= 1001;
        assert_eq!(check(behind, 9, &strict), Err(ResponseError::InvalidTimestamp));
        let without = |header: &mut BatchHeader| (header.base_timestamp, header.max_timestamp) = (-1, -1);
        assert_eq!(check(without, 9, &strict), Ok(()));
    }

    #[test]
    fn records_of_a_wrong_time_are_named() {
        let old = batch(3, NOW.0 - 1001, |header| header.max_timestamp = NOW.0);
        let strict = TopicConfig {
            before_max_ms: 1000,
            ..topic_config()
        };
        let refusal = validate(&old, 9, &strict, NOW).unwrap_err();
        let places: Vec<i32> = refusal.records.iter().map(|(place, _)| *place).collect();
        assert_eq!(
            (refusal.error, places),
            (ResponseError::InvalidTimestamp, vec![0, 1, 2])
        );
    }

    #[test]
    fn records_that_no_consumer_could_read_are_refused() {
        let lies = batch(3, NOW.0, |header| {
            (header.record_count, header.last_offset_delta) = (2, 1)
        });
        let refusal = validate(&lies, 9, &topic_config(), NOW).unwrap_err();
        assert_eq!(refusal.error, ResponseError::InvalidRecord);
    }

    #[test]
    fn what_producers_may_not_send_is_refused() {
        let cases: [(i16, i16, ResponseError); 4] = [
            (4, 6, ResponseError::UnsupportedCompressionType),
            (7, 9, ResponseError::UnsupportedCompressionType),
            (1 << 5, 9, ResponseError::InvalidRecord),
            (1 << 3, 9, ResponseError::InvalidTimestamp),
        ];
        for (attributes, version, error) in cases {
            let refused = check(|header| header.attributes = attributes, version, &topic_config());
            assert_eq!(refused, Err(error), "{attributes}");
        }
        let transactional = |header: &mut BatchHeader| {
            header.attributes = 1 << 4;
            (header.producer_id, header.producer_epoch, header.base_sequence) = (5, 0, 0);
        };
        assert_eq!(
            check(transactional, 9, &topic_config()),
            Err(ResponseError::InvalidRequest)
        );
    }

    #[test]
    fn damaged_bytes_are_corrupt() {
        let mut bytes = batch(3, NOW.0, |_| {}).to_vec();
        *bytes.last_mut().unwrap() ^= 1;
        let refusal = validate(&bytes.into(), 9, &topic_config(), NOW).unwrap_err();
        assert_eq!(refusal.error, ResponseError::CorruptMessage);
        assert!(validate(&Bytes::new(), 9, &topic_config(), NOW).is_err());
    }
}
