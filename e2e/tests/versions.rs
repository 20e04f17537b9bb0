//! Every API in every version that is served gets an answer that decodes in that version, with the right content.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

#[path = "versions_support/administration.rs"]
mod administration;

use std::collections::BTreeSet;

use bytes::Bytes;
use e2e::node::{Cluster, Plan};
use e2e::wire::{Wire, batch, delete_records, list_offsets, text, topic_name};
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use kafka_protocol::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::*;
use kafka_protocol::protocol::{Request, StrBytes};
use kafka_protocol::records::RecordBatchDecoder;
use kafka_wire::versions::{SUPPORTED, range};
use uuid::Uuid;

const TOPIC: &str = "data";
const TIME: i64 = 1_700_000_000_000;
const MEMBER_ID_REQUIRED: i16 = 79;

/// A connection that keeps book of what was answered.
struct Asker {
    wire: Wire,
    answered: BTreeSet<(i16, i16)>,
}

impl Asker {
    fn new(address: &str) -> Asker {
        let wire = Wire::connect(address).expect("the broker accepts");
        Asker {
            wire,
            answered: BTreeSet::new(),
        }
    }

    fn ask<R: Request>(&mut self, version: i16, request: &R) -> R::Response {
        let response = self
            .wire
            .call(request, version)
            .unwrap_or_else(|error| panic!("{error:#}"));
        self.answered.insert((R::KEY, version));
        response
    }
}

fn versions(key: ApiKey) -> std::ops::RangeInclusive<i16> {
    range(key).expect("a served API")
}

#[test]
fn every_version_of_every_api_is_answered() {
    let plan = Plan {
        broker_zones: vec!["a"],
        coordinators: 1,
        settings: "[coordinator]\nnum_partitions = 3\n".to_owned(),
        ..Plan::default()
    };
    let cluster = Cluster::start(plan).expect("a cluster");
    let address = cluster.bootstrap();
    let mut asker = Asker::new(&address);
    asker.wire.create_topic(TOPIC, 2).expect("created");
    asker.wire.create_topic("cut", 1).expect("created");
    cluster_apis(&mut asker);
    let id = metadata(&mut asker);
    let values = produce(&mut asker, id);
    fetch(&mut asker, id, &values);
    offsets(&mut asker, values.len() as i64);
    admin(&mut asker);
    administration::apis(&mut asker);
    // A group waits some seconds for its first members: all of them at the same time.
    let groups: Vec<_> = (0..=9)
        .map(|step| {
            let mut asker = Asker::new(&address);
            std::thread::spawn(move || {
                group(&mut asker, step);
                asker.answered
            })
        })
        .collect();
    for thread in groups {
        asker
            .answered
            .extend(thread.join().expect("the group of a version"));
    }
    let all = SUPPORTED
        .iter()
        .flat_map(|row| (row.min..=row.max).map(|version| (row.key as i16, version)));
    let missing: Vec<_> = all.filter(|pair| !asker.answered.contains(pair)).collect();
    assert_eq!(missing, [], "(API key, version) without an answer");
}

/// What a client of today asks first (KIP-511).
fn named_client() -> ApiVersionsRequest {
    ApiVersionsRequest::default()
        .with_client_software_name(text("e2e"))
        .with_client_software_version(text("1"))
}

fn cluster_apis(asker: &mut Asker) {
    for version in versions(ApiKey::ApiVersions) {
        let request = match version {
            0..3 => ApiVersionsRequest::default(),
            _ => named_client(),
        };
        let response = asker.ask(version, &request);
        assert_eq!(response.error_code, 0);
        for row in SUPPORTED.iter().filter(|row| row.key != ApiKey::Produce) {
            let listed = response.api_keys.iter().find(|key| key.api_key == row.key as i16);
            let listed = listed.map(|key| (key.min_version, key.max_version));
            assert_eq!(
                listed,
                Some((row.min, row.max)),
                "{:?} in version {version}",
                row.key
            );
        }
    }
    for version in versions(ApiKey::DescribeCluster) {
        let response = asker.ask(version, &DescribeClusterRequest::default());
        assert_eq!(
            (response.error_code, response.brokers.len()),
            (0, 1),
            "version {version}"
        );
    }
    for version in versions(ApiKey::InitProducerId) {
        let request = InitProducerIdRequest::default()
            .with_transactional_id(None)
            .with_transaction_timeout_ms(60_000);
        let response = asker.ask(version, &request);
        assert_eq!(
            (response.error_code, response.producer_epoch),
            (0, 0),
            "version {version}"
        );
        assert!(response.producer_id.0 >= 0);
    }
    for version in versions(ApiKey::FindCoordinator) {
        let response = if version < 4 {
            asker.ask(
                version,
                &FindCoordinatorRequest::default().with_key(text("group")),
            )
        } else {
            asker.ask(
                version,
                &FindCoordinatorRequest::default().with_coordinator_keys(vec![text("group")]),
            )
        };
        let found = match response.coordinators.first() {
            Some(found) => (found.error_code, found.port),
            None => (response.error_code, response.port),
        };
        assert!(found.0 == 0 && found.1 > 0, "version {version}: {found:?}");
    }
}

fn metadata(asker: &mut Asker) -> Uuid {
    let mut id = Uuid::nil();
    for version in versions(ApiKey::Metadata) {
        let none = if version == 0 { Some(Vec::new()) } else { None };
        let all = asker.ask(version, &MetadataRequest::default().with_topics(none));
        assert_eq!((all.brokers.len(), all.topics.len()), (1, 2), "version {version}");
        let named = MetadataRequestTopic::default().with_name(Some(topic_name(TOPIC)));
        let response = asker.ask(
            version,
            &MetadataRequest::default().with_topics(Some(vec![named])),
        );
        let topic = &response.topics[0];
        assert_eq!(
            (topic.error_code, topic.partitions.len()),
            (0, 2),
            "version {version}"
        );
        assert_eq!(topic.partitions[0].leader_id.0, 1000);
        if version >= 10 {
            id = topic.topic_id;
            assert!(!id.is_nil());
        }
        if version >= 12 {
            let known = MetadataRequestTopic::default().with_name(None).with_topic_id(id);
            let response = asker.ask(
                version,
                &MetadataRequest::default().with_topics(Some(vec![known])),
            );
            assert_eq!(
                response.topics[0].name,
                Some(topic_name(TOPIC)),
                "version {version}"
            );
        }
    }
    id
}

fn produce(asker: &mut Asker, id: Uuid) -> Vec<String> {
    let mut values = Vec::new();
    for version in versions(ApiKey::Produce) {
        let value = format!("written in version {version}");
        let records = batch(&[&value], TIME + i64::from(version)).expect("encoded");
        let data = PartitionProduceData::default().with_records(Some(records));
        let mut topic = TopicProduceData::default().with_partition_data(vec![data]);
        topic = if version < 13 {
            topic.with_name(topic_name(TOPIC))
        } else {
            topic.with_topic_id(id)
        };
        let request = ProduceRequest::default()
            .with_transactional_id(None)
            .with_acks(-1)
            .with_timeout_ms(30_000)
            .with_topic_data(vec![topic]);
        let response = asker.ask(version, &request);
        let result = &response.responses[0].partition_responses[0];
        assert_eq!(
            (result.error_code, result.base_offset),
            (0, values.len() as i64),
            "version {version}"
        );
        values.push(value);
    }
    values
}

fn fetch(asker: &mut Asker, id: Uuid, values: &[String]) {
    for version in versions(ApiKey::Fetch) {
        let partition = FetchPartition::default().with_partition_max_bytes(1 << 20);
        let mut topic = FetchTopic::default().with_partitions(vec![partition]);
        topic = if version < 13 {
            topic.with_topic(topic_name(TOPIC))
        } else {
            topic.with_topic_id(id)
        };
        let mut request = FetchRequest::default()
            .with_max_wait_ms(10_000)
            .with_min_bytes(1)
            .with_max_bytes(10 << 20)
            .with_topics(vec![topic]);
        if version < 15 {
            request = request.with_replica_id(BrokerId(-1));
        }
        let response = asker.ask(version, &request);
        let found = &response.responses[0].partitions[0];
        assert_eq!(
            (found.error_code, found.high_watermark),
            (0, values.len() as i64),
            "version {version}"
        );
        let mut records = found.records.clone().expect("records");
        let sets = RecordBatchDecoder::decode_all(&mut records).expect("decoded");
        let read: Vec<String> = sets
            .iter()
            .flat_map(|set| &set.records)
            .map(|record| String::from_utf8_lossy(record.value.as_ref().expect("a value")).into_owned())
            .collect();
        assert_eq!(read, values, "version {version}");
    }
}

fn offsets(asker: &mut Asker, end: i64) {
    for version in versions(ApiKey::ListOffsets) {
        // The time of the second record; the first one was written in version 3.
        for (timestamp, offset) in [(-1, end), (-2, 0), (TIME + 4, 1), (TIME + 1_000_000, -1)] {
            let response = asker.ask(version, &list_offsets(TOPIC, [0], timestamp));
            let found = &response.topics[0].partitions[0];
            assert_eq!(
                (found.error_code, found.offset),
                (0, offset),
                "{timestamp} in version {version}"
            );
        }
    }
    for version in versions(ApiKey::OffsetForLeaderEpoch) {
        let topic = OffsetForLeaderTopic::default()
            .with_topic(topic_name(TOPIC))
            .with_partitions(vec![OffsetForLeaderPartition::default()]);
        let mut request = OffsetForLeaderEpochRequest::default().with_topics(vec![topic]);
        if version >= 3 {
            request = request.with_replica_id(BrokerId(-1));
        }
        let response = asker.ask(version, &request);
        let found = &response.topics[0].partitions[0];
        assert_eq!(
            (found.error_code, found.leader_epoch, found.end_offset),
            (0, 0, end),
            "version {version}"
        );
    }
    for version in versions(ApiKey::DeleteRecords) {
        let response = asker.ask(version, &delete_records("cut", 0, -1, 30_000));
        let cut = &response.topics[0].partitions[0];
        assert_eq!((cut.error_code, cut.low_watermark), (0, 0), "version {version}");
    }
}

fn admin(asker: &mut Asker) {
    let mut ids = Vec::new();
    for version in versions(ApiKey::CreateTopics) {
        let config = CreatableTopicConfig::default()
            .with_name(text("retention.ms"))
            .with_value(Some(text("3600000")));
        // Who leaves the number open gets that of the settings (KIP-464).
        let partitions = if version < 4 { 3 } else { -1 };
        let topic = CreatableTopic::default()
            .with_name(topic_name(&format!("made-{version}")))
            .with_num_partitions(partitions)
            .with_replication_factor(1)
            .with_configs(vec![config]);
        let request = CreateTopicsRequest::default()
            .with_topics(vec![topic])
            .with_timeout_ms(30_000);
        let made = asker.ask(version, &request).topics.remove(0);
        assert_eq!(made.error_code, 0, "version {version}: {:?}", made.error_message);
        if version >= 5 {
            assert_eq!(
                (made.num_partitions, made.replication_factor),
                (3, 1),
                "version {version}"
            );
            assert!(
                made.configs.is_some_and(|configs| !configs.is_empty()),
                "version {version}"
            );
        }
        ids.push(made.topic_id);
    }
    for version in versions(ApiKey::CreatePartitions) {
        let topic = CreatePartitionsTopic::default()
            .with_name(topic_name("made-7"))
            .with_count(4 + i32::from(version))
            .with_assignments(None);
        let request = CreatePartitionsRequest::default()
            .with_topics(vec![topic])
            .with_timeout_ms(30_000);
        assert_eq!(
            asker.ask(version, &request).results[0].error_code,
            0,
            "version {version}"
        );
    }
    const TOPIC_RESOURCE: i8 = 2;
    for version in versions(ApiKey::IncrementalAlterConfigs) {
        let config = AlterableConfig::default()
            .with_name(text("retention.bytes"))
            .with_value(Some(text("1000000")));
        let resource = AlterConfigsResource::default()
            .with_resource_type(TOPIC_RESOURCE)
            .with_resource_name(text("made-7"))
            .with_configs(vec![config]);
        let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
        assert_eq!(
            asker.ask(version, &request).responses[0].error_code,
            0,
            "version {version}"
        );
    }
    for version in versions(ApiKey::DescribeConfigs) {
        let resource = DescribeConfigsResource::default()
            .with_resource_type(TOPIC_RESOURCE)
            .with_resource_name(text("made-7"))
            .with_configuration_keys(None);
        let mut request = DescribeConfigsRequest::default()
            .with_resources(vec![resource])
            .with_include_synonyms(true);
        if version >= 3 {
            request = request.with_include_documentation(true);
        }
        let response = asker.ask(version, &request);
        let result = &response.results[0];
        assert_eq!(result.error_code, 0, "version {version}");
        for (name, value) in [("retention.ms", "3600000"), ("retention.bytes", "1000000")] {
            let config = result.configs.iter().find(|config| config.name.as_str() == name);
            assert_eq!(
                config.and_then(|config| config.value.clone()),
                Some(text(value)),
                "version {version}"
            );
        }
    }
    for version in versions(ApiKey::DeleteTopics) {
        // One of the topics made in versions 2 to 7 for each of the versions 1 to 6.
        let made = version + 1;
        let mut request = DeleteTopicsRequest::default().with_timeout_ms(30_000);
        request = if version < 6 {
            request.with_topic_names(vec![topic_name(&format!("made-{made}"))])
        } else {
            let id = *ids.last().expect("made in version 7");
            request.with_topics(vec![
                DeleteTopicState::default().with_name(None).with_topic_id(id),
            ])
        };
        let response = asker.ask(version, &request);
        let gone = &response.responses[0];
        assert_eq!(gone.error_code, 0, "version {version}");
        assert_eq!(gone.name, Some(topic_name(&format!("made-{made}"))));
    }
}

/// A whole life of a group, each of its APIs in the version `step`, or the one nearest to it that is served.
fn group(asker: &mut Asker, step: i16) {
    let version = |key| step.clamp(*versions(key).start(), *versions(key).end());
    let id = GroupId(text(&format!("group-{step}")));
    let (member, generation) = join(asker, version(ApiKey::JoinGroup), &id);

    let sync = version(ApiKey::SyncGroup);
    let assignment = SyncGroupRequestAssignment::default()
        .with_member_id(member.clone())
        .with_assignment(Bytes::from_static(b"assigned"));
    let mut request = SyncGroupRequest::default()
        .with_group_id(id.clone())
        .with_generation_id(generation)
        .with_member_id(member.clone())
        .with_assignments(vec![assignment]);
    if sync >= 5 {
        request = request
            .with_protocol_type(Some(text("consumer")))
            .with_protocol_name(Some(text("range")));
    }
    let response = asker.ask(sync, &request);
    assert_eq!(
        (response.error_code, response.assignment.as_ref()),
        (0, &b"assigned"[..]),
        "version {sync}"
    );

    let request = HeartbeatRequest::default()
        .with_group_id(id.clone())
        .with_generation_id(generation)
        .with_member_id(member.clone());
    assert_eq!(asker.ask(version(ApiKey::Heartbeat), &request).error_code, 0);

    commit(asker, step, &id, &member, generation);

    let describe = version(ApiKey::DescribeGroups);
    let described = asker.ask(
        describe,
        &DescribeGroupsRequest::default().with_groups(vec![id.clone()]),
    );
    let described = &described.groups[0];
    assert_eq!(
        (described.error_code, described.group_state.as_str()),
        (0, "Stable"),
        "version {describe}"
    );
    assert_eq!(described.members[0].member_id, member);
    assert_eq!(described.members[0].member_assignment.as_ref(), b"assigned");

    let list = version(ApiKey::ListGroups);
    let listed = asker.ask(list, &ListGroupsRequest::default());
    let listed = listed
        .groups
        .iter()
        .find(|group| group.group_id == id)
        .expect("listed");
    assert_eq!(listed.protocol_type.as_str(), "consumer");
    if list >= 4 {
        assert_eq!(listed.group_state.as_str(), "Stable");
    }

    let leave = version(ApiKey::LeaveGroup);
    let request = LeaveGroupRequest::default().with_group_id(id.clone());
    let request = if leave < 3 {
        request.with_member_id(member)
    } else {
        request.with_members(vec![
            MemberIdentity::default()
                .with_member_id(member)
                .with_group_instance_id(None),
        ])
    };
    assert_eq!(asker.ask(leave, &request).error_code, 0, "version {leave}");

    let request = DeleteGroupsRequest::default().with_groups_names(vec![id]);
    assert_eq!(
        asker.ask(version(ApiKey::DeleteGroups), &request).results[0].error_code,
        0
    );
}

fn join(asker: &mut Asker, version: i16, id: &GroupId) -> (StrBytes, i32) {
    let protocol = JoinGroupRequestProtocol::default()
        .with_name(text("range"))
        .with_metadata(Bytes::from_static(b"subscribed"));
    let mut request = JoinGroupRequest::default()
        .with_group_id(id.clone())
        .with_session_timeout_ms(45_000)
        .with_protocol_type(text("consumer"))
        .with_protocols(vec![protocol]);
    if version >= 1 {
        request = request.with_rebalance_timeout_ms(60_000);
    }
    let mut response = asker.ask(version, &request);
    if version >= 4 {
        assert_eq!(response.error_code, MEMBER_ID_REQUIRED, "version {version}");
        response = asker.ask(version, &request.with_member_id(response.member_id));
    }
    assert_eq!(response.error_code, 0, "version {version}");
    assert_eq!(response.leader, response.member_id);
    assert_eq!(response.protocol_name, Some(text("range")));
    assert_eq!(response.members[0].metadata.as_ref(), b"subscribed");
    (response.member_id, response.generation_id)
}

fn commit(asker: &mut Asker, step: i16, id: &GroupId, member: &StrBytes, generation: i32) {
    let version = |key| step.clamp(*versions(key).start(), *versions(key).end());
    let commit = version(ApiKey::OffsetCommit);
    let partition = OffsetCommitRequestPartition::default()
        .with_partition_index(1)
        .with_committed_offset(5)
        .with_committed_metadata(Some(text("why")));
    let topic = OffsetCommitRequestTopic::default()
        .with_name(topic_name(TOPIC))
        .with_partitions(vec![partition]);
    let request = OffsetCommitRequest::default()
        .with_group_id(id.clone())
        .with_generation_id_or_member_epoch(generation)
        .with_member_id(member.clone())
        .with_topics(vec![topic]);
    assert_eq!(
        asker.ask(commit, &request).topics[0].partitions[0].error_code,
        0,
        "version {commit}"
    );

    let fetch = version(ApiKey::OffsetFetch);
    let expected = (0, 5, Some(text("why")));
    if fetch < 8 {
        let topic = OffsetFetchRequestTopic::default()
            .with_name(topic_name(TOPIC))
            .with_partition_indexes(vec![1]);
        let request = OffsetFetchRequest::default().with_group_id(id.clone());
        let response = asker.ask(fetch, &request.with_topics(Some(vec![topic])));
        let found = &response.topics[0].partitions[0];
        let found = (found.error_code, found.committed_offset, found.metadata.clone());
        assert_eq!(found, expected, "version {fetch}");
    } else {
        let topic = OffsetFetchRequestTopics::default()
            .with_name(topic_name(TOPIC))
            .with_partition_indexes(vec![1]);
        let group = OffsetFetchRequestGroup::default()
            .with_group_id(id.clone())
            .with_topics(Some(vec![topic]));
        let response = asker.ask(fetch, &OffsetFetchRequest::default().with_groups(vec![group]));
        let found = &response.groups[0].topics[0].partitions[0];
        let found = (found.error_code, found.committed_offset, found.metadata.clone());
        assert_eq!(found, expected, "version {fetch}");
    }
}
