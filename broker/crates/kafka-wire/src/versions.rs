//! Which API in which versions this broker speaks.
//!
//! The lower ends are those that Kafka 4.4.0 still serves; the upper ends are the newest that `kafka-protocol`
//! 0.18.0 encodes in both directions (Kafka 4.4 is one version ahead for ListOffsets, OffsetCommit,
//! OffsetFetch, ApiVersions and DeleteGroups; clients negotiate down). The table is explicit because the protocol
//! crate's own ranges say what it can encode, not what is served.

use std::ops::RangeInclusive;

use kafka_protocol::messages::ApiKey;

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ApiVersionRange {
    /// The API.
    pub key: ApiKey,
    /// Oldest version served.
    pub min: i16,
    /// Newest version served.
    pub max: i16,
}

const fn row(key: ApiKey, min: i16, max: i16) -> ApiVersionRange {
    ApiVersionRange { key, min, max }
}

/// Every API that is served to clients, in the order of their keys.
pub const SUPPORTED: &[ApiVersionRange] = &[
    row(ApiKey::Produce, 3, 13),
    row(ApiKey::Fetch, 4, 18),
    row(ApiKey::ListOffsets, 1, 10),
    row(ApiKey::Metadata, 0, 13),
    row(ApiKey::OffsetCommit, 2, 9),
    row(ApiKey::OffsetFetch, 1, 9),
    row(ApiKey::FindCoordinator, 0, 6),
    row(ApiKey::JoinGroup, 0, 9),
    row(ApiKey::Heartbeat, 0, 4),
    row(ApiKey::LeaveGroup, 0, 5),
    row(ApiKey::SyncGroup, 0, 5),
    row(ApiKey::DescribeGroups, 0, 6),
    row(ApiKey::ListGroups, 0, 5),
    row(ApiKey::ApiVersions, 0, 4),
    row(ApiKey::CreateTopics, 2, 7),
    row(ApiKey::DeleteTopics, 1, 6),
    row(ApiKey::DeleteRecords, 0, 2),
    row(ApiKey::InitProducerId, 0, 5),
    row(ApiKey::OffsetForLeaderEpoch, 2, 4),
    row(ApiKey::DescribeConfigs, 1, 4),
    row(ApiKey::AlterConfigs, 0, 2),
    row(ApiKey::DescribeLogDirs, 1, 4),
    row(ApiKey::CreatePartitions, 0, 3),
    row(ApiKey::DeleteGroups, 0, 2),
    row(ApiKey::ElectLeaders, 0, 2),
    row(ApiKey::IncrementalAlterConfigs, 0, 1),
    row(ApiKey::AlterPartitionReassignments, 0, 1),
    row(ApiKey::ListPartitionReassignments, 0, 0),
    row(ApiKey::OffsetDelete, 0, 0),
    row(ApiKey::UpdateFeatures, 0, 2),
    row(ApiKey::DescribeCluster, 0, 2),
    row(ApiKey::DescribeProducers, 0, 0),
    row(ApiKey::ListConfigResources, 0, 1),
    row(ApiKey::DescribeTopicPartitions, 0, 0),
];

/// The versions served for an API; `None` when it is not served at all.
pub fn range(key: ApiKey) -> Option<RangeInclusive<i16>> {
    SUPPORTED
        .iter()
        .find(|row| row.key == key)
        .map(|row| row.min..=row.max)
}

/// Whether exactly this version is served.
pub fn is_supported(key: ApiKey, version: i16) -> bool {
    range(key).is_some_and(|range| range.contains(&version))
}

/// The table as an ApiVersions response says it.
///
/// It differs from [`SUPPORTED`] in one row: Produce is announced from version 0, as Kafka 4 does, because
/// librdkafka before 2.11 refuses to compress unless Produce 0 is on offer (KAFKA-18659). A request in one of
/// those versions is not served.
pub fn advertised() -> impl Iterator<Item = ApiVersionRange> {
    SUPPORTED.iter().map(|row| match row.key {
        ApiKey::Produce => ApiVersionRange { min: 0, ..*row },
        _ => *row,
    })
}

/// Header version of a request: 2 is flexible, 1 has a client id.
pub fn request_header_version(key: ApiKey, version: i16) -> i16 {
    key.request_header_version(version)
}

/// Header version of a response: 1 is flexible. ApiVersions always answers with 0, so that a client can read the
/// answer to a version that the broker does not know (KIP-511).
pub fn response_header_version(key: ApiKey, version: i16) -> i16 {
    key.response_header_version(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sorted_and_within_what_the_protocol_crate_encodes() {
        assert!(SUPPORTED.is_sorted_by_key(|row| row.key as i16));
        for row in SUPPORTED {
            let valid = row.key.valid_versions();
            assert!(
                row.min <= row.max && valid.min <= row.min && row.max <= valid.max,
                "{row:?}"
            );
        }
    }

    #[test]
    fn produce_is_announced_from_zero_but_served_from_three() {
        let produce = advertised().find(|row| row.key == ApiKey::Produce).unwrap();
        assert_eq!((produce.min, produce.max), (0, 13));
        assert!(!is_supported(ApiKey::Produce, 0));
        assert!(is_supported(ApiKey::Produce, 3));
    }

    #[test]
    fn api_versions_always_answers_with_header_zero() {
        for version in [0, 3, 4, 99] {
            assert_eq!(response_header_version(ApiKey::ApiVersions, version), 0);
        }
        assert_eq!(response_header_version(ApiKey::Metadata, 9), 1);
        assert_eq!(request_header_version(ApiKey::Metadata, 8), 1);
    }
}
