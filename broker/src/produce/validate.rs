//! What a producer's batch must satisfy before it is taken: the rules of Kafka's `LogValidator`, by the header alone.

use cluster::configs::TopicConfig;
use kafka_wire::ResponseError;
use kafka_wire::batch::{self, BatchHeader, Codec};
use types::Timestamp;

/// First version of Produce that may carry zstd (KIP-110).
const ZSTD: i16 = 7;

/// Why a batch is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// Kafka's code.
    pub error: ResponseError,
    /// For people.
    pub message: String,
}

fn refuse(error: ResponseError, message: impl Into<String>) -> Refusal {
    Refusal {
        error,
        message: message.into(),
    }
}

/// Checks the records that a Produce request of `version` holds for one partition: exactly one batch.
pub fn validate(
    records: &[u8],
    version: i16,
    config: &TopicConfig,
    now: Timestamp,
) -> Result<BatchHeader, Refusal> {
    if records.len() > config.max_message_bytes as usize {
        let (size, max) = (records.len(), config.max_message_bytes);
        let message =
            format!("The record batch size is {size} bytes, max.message.bytes of the topic is {max}");
        return Err(refuse(ResponseError::MessageTooLarge, message));
    }
    let header =
        batch::validate(records).map_err(|error| refuse(error.response_error(), error.to_string()))?;
    if header.codec() == Ok(Codec::Zstd) && version < ZSTD {
        let message = format!("Produce version {version} cannot carry zstd");
        return Err(refuse(ResponseError::UnsupportedCompressionType, message));
    }
    if header.is_transactional() {
        return Err(refuse(
            ResponseError::InvalidRequest,
            "transactions are not supported by this version",
        ));
    }
    if !config.log_append_time {
        check_times(&header, config, now)?;
    }
    Ok(header)
}

/// By the first and the largest timestamp; the records between are the producer's business.
fn check_times(header: &BatchHeader, config: &TopicConfig, now: Timestamp) -> Result<(), Refusal> {
    for time in [header.base_timestamp, header.max_timestamp]
        .map(Timestamp)
        .into_iter()
        .filter(|time| time.0 >= 0)
    {
        let (past, limit) = if time <= now {
            (true, config.before_max_ms)
        } else {
            (false, config.after_max_ms)
        };
        let distance = if past { now.since(time) } else { time.since(now) };
        if distance > limit {
            let key = if past { "before" } else { "after" };
            let message = format!(
                "Timestamp {time} is {distance} ms away from the broker's {now}: message.timestamp.{key}.max.ms is {limit}"
            );
            return Err(refuse(ResponseError::InvalidTimestamp, message));
        }
    }
    Ok(())
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
        let ahead = |header: &mut BatchHeader| header.max_timestamp += 3_600_001;
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
        let refusal = validate(&bytes, 9, &topic_config(), NOW).unwrap_err();
        assert_eq!(refusal.error, ResponseError::CorruptMessage);
        assert!(validate(&[], 9, &topic_config(), NOW).is_err());
    }
}
