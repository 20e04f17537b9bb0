//! What a producer's batch must satisfy before it is taken: the rules of Kafka's `LogValidator`. Its records are read by
//! [`super::reading`].

use bytes::Bytes;
use cluster::configs::TopicConfig;
use kafka_wire::ResponseError;
use kafka_wire::batch::{self, BatchError, BatchHeader, Codec};

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

    /// Of a batch that is wrong in itself.
    pub(super) fn wrong(error: BatchError) -> Refusal {
        Refusal::new(error.response_error(), error.to_string())
    }
}

/// Checks what a Produce request of `version` holds for one partition: exactly one batch. Its records are not looked at.
pub fn validate(batch: &Bytes, version: i16, config: &TopicConfig) -> Result<BatchHeader, Refusal> {
    if batch.len() > config.max_message_bytes as usize {
        let (size, max) = (batch.len(), config.max_message_bytes);
        let message =
            format!("The record batch size is {size} bytes, max.message.bytes of the topic is {max}");
        return Err(Refusal::new(ResponseError::MessageTooLarge, message));
    }
    let header = batch::validate(batch).map_err(Refusal::wrong)?;
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
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::produce::testing::{batch, topic_config};

    fn check(
        change: impl FnOnce(&mut BatchHeader),
        version: i16,
        config: &TopicConfig,
    ) -> Result<(), ResponseError> {
        let bytes = batch(3, 1000, change);
        validate(&bytes, version, config)
            .map(drop)
            .map_err(|refusal| refusal.error)
    }

    #[test]
    fn a_plain_batch_is_taken() {
        assert_eq!(check(|_| {}, 3, &topic_config()), Ok(()));
    }

    #[test]
    fn the_topic_bounds_the_size_of_a_batch() {
        let small = TopicConfig {
            max_message_bytes: 10,
            ..topic_config()
        };
        assert_eq!(check(|_| {}, 9, &small), Err(ResponseError::MessageTooLarge));
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
        let mut bytes = batch(3, 1000, |_| {}).to_vec();
        *bytes.last_mut().unwrap() ^= 1;
        let refusal = validate(&bytes.into(), 9, &topic_config()).unwrap_err();
        assert_eq!(refusal.error, ResponseError::CorruptMessage);
        assert!(validate(&Bytes::new(), 9, &topic_config()).is_err());
    }
}
