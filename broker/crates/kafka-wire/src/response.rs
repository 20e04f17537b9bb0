//! From a response to a frame. Fetch has its own encoder ([`crate::fetch`]), which copies no records.

use bytes::{BufMut, BytesMut};
use kafka_protocol::messages::{ApiKey, ResponseKind};

use crate::rope::Rope;
use crate::{EncodeError, ResponseError, versions};

/// A whole frame, length included, with the response header that belongs to the API and version.
///
/// Tagged fields that hold their default are left out, as Kafka's own serializer does: librdkafka before 2.2.0
/// cannot skip them (its PR 4278).
pub fn encode(version: i16, correlation_id: i32, response: &ResponseKind) -> Result<Rope, EncodeError> {
    let mut out = start(256, response.header_version(version), correlation_id);
    response
        .encode(&mut out, version)
        .map_err(|error| EncodeError::Message {
            version,
            reason: format!("{error:#}"),
        })?;
    Rope::frame(out, Vec::new())
}

/// A buffer with room for the length of the frame, then a response header of version 0 or 1.
pub(crate) fn start(capacity: usize, header_version: i16, correlation_id: i32) -> BytesMut {
    let mut out = BytesMut::with_capacity(capacity);
    out.put_i32(0);
    out.put_i32(correlation_id);
    if header_version >= 1 {
        out.put_u8(0);
    }
    out
}

/// The answer to an ApiVersions request in a version that is not served: header and body of version 0, the error
/// UNSUPPORTED_VERSION, and the versions of ApiVersions itself, with which the client tries again (KIP-511).
pub fn unsupported_api_versions(correlation_id: i32) -> Result<Rope, EncodeError> {
    let mut out = start(24, 0, correlation_id);
    out.put_i16(ResponseError::UnsupportedVersion.code());
    out.put_i32(1);
    let range = versions::range(ApiKey::ApiVersions).unwrap_or(0..=0);
    for value in [ApiKey::ApiVersions as i16, *range.start(), *range.end()] {
        out.put_i16(value);
    }
    Rope::frame(out, Vec::new())
}

#[cfg(test)]
mod tests {
    use bytes::{Buf, Bytes};
    use kafka_protocol::messages::api_versions_response::ApiVersion;
    use kafka_protocol::messages::{ApiVersionsResponse, MetadataResponse};
    use kafka_protocol::protocol::Decodable;

    use super::*;

    #[test]
    fn api_versions_carries_no_tags() {
        let keys = versions::advertised().map(|row| {
            ApiVersion::default()
                .with_api_key(row.key as i16)
                .with_min_version(row.min)
                .with_max_version(row.max)
        });
        let response = ApiVersionsResponse::default().with_api_keys(keys.collect());
        for version in 3..=4 {
            let frame = encode(version, 5, &ResponseKind::ApiVersions(response.clone()))
                .unwrap()
                .into_bytes();
            // Length, correlation id and no header tags, error, count: then 7 bytes a key, throttle time, no tags.
            assert_eq!(
                &frame[4..11],
                &[0, 0, 0, 5, 0, 0, versions::SUPPORTED.len() as u8 + 1]
            );
            assert_eq!(frame.len(), 11 + 7 * versions::SUPPORTED.len() + 4 + 1);
            assert_eq!(frame.last(), Some(&0));
        }
    }

    #[test]
    fn an_unknown_version_of_api_versions_is_answered_in_version_zero() {
        let mut frame = unsupported_api_versions(77).unwrap().into_bytes();
        assert_eq!(frame.get_u32() as usize, frame.len());
        assert_eq!(frame.get_i32(), 77);
        let response = ApiVersionsResponse::decode(&mut frame, 0).unwrap();
        assert_eq!(response.error_code, 35);
        let key = &response.api_keys[0];
        assert_eq!(
            (
                response.api_keys.len(),
                key.api_key,
                key.min_version,
                key.max_version
            ),
            (1, 18, 0, 4)
        );
        assert!(frame.is_empty());
    }

    #[test]
    fn a_response_is_framed_behind_the_header_of_its_version() {
        let response = ResponseKind::Metadata(MetadataResponse::default().with_controller_id(3.into()));
        for (version, header) in [(8, 4), (9, 5)] {
            let frame = encode(version, 9, &response).unwrap().into_bytes();
            assert_eq!(frame.clone().get_u32() as usize, frame.len() - 4);
            let mut body: Bytes = frame.slice(4 + header..);
            assert_eq!(
                MetadataResponse::decode(&mut body, version)
                    .unwrap()
                    .controller_id,
                3
            );
            assert!(body.is_empty());
        }
        assert!(encode(99, 9, &response).is_err());
    }

    /// A response of defaults for each API; a row of the table without one fails the test below.
    fn defaults() -> Vec<(ApiKey, ResponseKind)> {
        macro_rules! defaults {
            ($($name:ident)*) => {
                vec![ $( (ApiKey::$name, ResponseKind::$name(Default::default())), )* ]
            };
        }
        defaults! {
            Produce Fetch ListOffsets Metadata OffsetCommit OffsetFetch FindCoordinator JoinGroup Heartbeat LeaveGroup
            SyncGroup DescribeGroups ListGroups ApiVersions CreateTopics DeleteTopics DeleteRecords
            InitProducerId OffsetForLeaderEpoch DescribeConfigs CreatePartitions DeleteGroups
            IncrementalAlterConfigs DescribeCluster UpdateFeatures AlterConfigs DescribeLogDirs ElectLeaders
            AlterPartitionReassignments ListPartitionReassignments OffsetDelete DescribeProducers
            ListConfigResources DescribeTopicPartitions
        }
    }

    #[test]
    fn every_served_version_can_be_answered() {
        let defaults = defaults();
        for row in versions::SUPPORTED {
            let (_, response) = defaults.iter().find(|(key, _)| *key == row.key).unwrap();
            for version in row.min..=row.max {
                let frame = encode(version, 1, response).unwrap().into_bytes();
                let header = 8 + usize::from(versions::response_header_version(row.key, version) >= 1);
                let mut body = frame.slice(header..);
                let decoded = ResponseKind::decode(row.key, &mut body, version).unwrap();
                assert!(&decoded == response && body.is_empty(), "{row:?} v{version}");
                // Nothing but defaults: a flexible body ends in an empty tagged section.
                let flexible = versions::request_header_version(row.key, version) >= 2;
                assert!(!flexible || frame.last() == Some(&0), "{row:?} v{version}");
            }
        }
    }
}
