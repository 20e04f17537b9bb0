//! APIs that only tools of administrators call.

use e2e::wire::{text, topic_name};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_protocol::messages::alter_partition_reassignments_request::{
    ReassignablePartition, ReassignableTopic,
};
use kafka_protocol::messages::describe_producers_request::TopicRequest as ProducersOf;
use kafka_protocol::messages::elect_leaders_request::TopicPartitions;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use kafka_protocol::messages::update_features_request::FeatureUpdateKey;
use kafka_protocol::messages::*;

use super::{Asker, TOPIC, named_client, versions};

pub fn apis(asker: &mut Asker) {
    configs(asker);
    replicas(asker);
    partitions(asker);
    features(asker);
    for version in versions(ApiKey::OffsetDelete) {
        let group = GroupId(text("forgetful"));
        let partition = OffsetCommitRequestPartition::default().with_committed_offset(3);
        let topic = OffsetCommitRequestTopic::default()
            .with_name(topic_name(TOPIC))
            .with_partitions(vec![partition]);
        let commit = OffsetCommitRequest::default()
            .with_group_id(group.clone())
            .with_generation_id_or_member_epoch(-1)
            .with_topics(vec![topic]);
        assert_eq!(asker.ask(9, &commit).topics[0].partitions[0].error_code, 0);
        let topic = OffsetDeleteRequestTopic::default()
            .with_name(topic_name(TOPIC))
            .with_partitions(vec![OffsetDeleteRequestPartition::default()]);
        let request = OffsetDeleteRequest::default()
            .with_group_id(group)
            .with_topics(vec![topic]);
        let response = asker.ask(version, &request);
        assert_eq!(
            (response.error_code, response.topics[0].partitions[0].error_code),
            (0, 0)
        );
    }
}

fn configs(asker: &mut Asker) {
    for version in versions(ApiKey::AlterConfigs) {
        let config = AlterableConfig::default()
            .with_name(text("retention.ms"))
            .with_value(Some(text("7200000")));
        let resource = AlterConfigsResource::default()
            .with_resource_type(2)
            .with_resource_name(text("cut"))
            .with_configs(vec![config]);
        let request = AlterConfigsRequest::default().with_resources(vec![resource]);
        let code = asker.ask(version, &request).responses[0].error_code;
        assert_eq!(code, 0, "version {version}");
    }
    for version in versions(ApiKey::ListConfigResources) {
        let response = asker.ask(version, &ListConfigResourcesRequest::default());
        let listed = response.config_resources.iter();
        let topic = listed.filter(|resource| resource.resource_name.as_str() == TOPIC);
        // Version 0 knows of client metrics only.
        assert_eq!(topic.count(), usize::from(version >= 1), "version {version}");
    }
}

fn replicas(asker: &mut Asker) {
    for version in versions(ApiKey::ElectLeaders) {
        let topic = TopicPartitions::default()
            .with_topic(topic_name(TOPIC))
            .with_partitions(vec![0]);
        let request = ElectLeadersRequest::default()
            .with_topic_partitions(Some(vec![topic]))
            .with_timeout_ms(1_000);
        let response = asker.ask(version, &request);
        assert_eq!(
            response.replica_election_results[0].partition_result[0].error_code,
            ResponseError::ElectionNotNeeded.code(),
            "version {version}"
        );
    }
    for version in versions(ApiKey::AlterPartitionReassignments) {
        let partition = ReassignablePartition::default().with_replicas(Some(vec![BrokerId(2000)]));
        let topic = ReassignableTopic::default()
            .with_name(topic_name(TOPIC))
            .with_partitions(vec![partition]);
        let request = AlterPartitionReassignmentsRequest::default().with_topics(vec![topic]);
        let response = asker.ask(version, &request);
        assert_eq!(
            response.responses[0].partitions[0].error_code,
            ResponseError::InvalidReplicaAssignment.code(),
            "version {version}"
        );
    }
    for version in versions(ApiKey::ListPartitionReassignments) {
        let request = ListPartitionReassignmentsRequest::default().with_topics(None);
        let response = asker.ask(version, &request);
        assert!(response.error_code == 0 && response.topics.is_empty());
    }
}

fn partitions(asker: &mut Asker) {
    for version in versions(ApiKey::DescribeLogDirs) {
        let response = asker.ask(version, &DescribeLogDirsRequest::default().with_topics(None));
        let topics = &response.results[0].topics;
        let sized = topics
            .iter()
            .find(|topic| topic.name.as_str() == TOPIC)
            .expect("described");
        assert!(sized.partitions[0].partition_size > 0, "version {version}");
    }
    for version in versions(ApiKey::DescribeProducers) {
        let topic = ProducersOf::default()
            .with_name(topic_name(TOPIC))
            .with_partition_indexes(vec![0]);
        let response = asker.ask(
            version,
            &DescribeProducersRequest::default().with_topics(vec![topic]),
        );
        assert_eq!(response.topics[0].partitions[0].error_code, 0);
    }
    for version in versions(ApiKey::DescribeTopicPartitions) {
        let request = DescribeTopicPartitionsRequest::default().with_response_partition_limit(1);
        let response = asker.ask(version, &request);
        assert_eq!(response.topics.len(), 1);
        assert!(response.next_cursor.is_some());
    }
}

fn features(asker: &mut Asker) {
    for version in versions(ApiKey::UpdateFeatures) {
        let supported = asker.ask(3, &named_client()).supported_features;
        let level = supported[0].max_version;
        for (level, expected) in [
            (level, 0),
            (level + 1, ResponseError::InvalidUpdateVersion.code()),
        ] {
            let update = FeatureUpdateKey::default()
                .with_feature(supported[0].name.clone())
                .with_max_version_level(level);
            let request = UpdateFeaturesRequest::default()
                .with_timeout_ms(10_000)
                .with_feature_updates(vec![update]);
            let response = asker.ask(version, &request);
            assert_eq!(response.error_code, expected, "version {version}");
            let named = usize::from(version <= 1 && expected == 0);
            assert_eq!(response.results.len(), named, "version {version}");
        }
    }
}
