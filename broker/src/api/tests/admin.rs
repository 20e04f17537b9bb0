//! What tools of administrators ask, and what becomes of the offsets of groups.

use kafka_wire::messages::alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_wire::messages::alter_partition_reassignments_request::{ReassignablePartition, ReassignableTopic};
use kafka_wire::messages::create_topics_request::CreatableTopic;
use kafka_wire::messages::delete_topics_request::DeleteTopicState;
use kafka_wire::messages::describe_configs_request::DescribeConfigsResource;
use kafka_wire::messages::describe_log_dirs_request::DescribableLogDirTopic;
use kafka_wire::messages::describe_producers_request::TopicRequest as ProducersOf;
use kafka_wire::messages::describe_topic_partitions_request::TopicRequest;
use kafka_wire::messages::elect_leaders_request::TopicPartitions;
use kafka_wire::messages::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use kafka_wire::messages::offset_delete_request::{OffsetDeleteRequestPartition, OffsetDeleteRequestTopic};
use kafka_wire::messages::offset_fetch_request::OffsetFetchRequestGroup;
use kafka_wire::messages::{
    AlterConfigsRequest, AlterPartitionReassignmentsRequest, BrokerId, CreateTopicsRequest,
    DeleteTopicsRequest, DescribeConfigsRequest, DescribeLogDirsRequest, DescribeProducersRequest,
    DescribeTopicPartitionsRequest, ElectLeadersRequest, GroupId, ListConfigResourcesRequest,
    ListPartitionReassignmentsRequest, OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest,
};

use super::*;

fn text(value: &str) -> StrBytes {
    StrBytes::from_string(value.to_owned())
}

impl Client {
    async fn create(&mut self, name: &str, partitions: i32) {
        let topic = CreatableTopic::default()
            .with_name(topic_name(name))
            .with_num_partitions(partitions)
            .with_replication_factor(-1);
        let request = CreateTopicsRequest::default()
            .with_topics(vec![topic])
            .with_timeout_ms(30_000);
        assert_eq!(self.call(&request, 7).await.topics[0].error_code, 0);
    }

    async fn delete(&mut self, name: &str) {
        let topic = DeleteTopicState::default().with_name(Some(topic_name(name)));
        let request = DeleteTopicsRequest::default()
            .with_topics(vec![topic])
            .with_timeout_ms(30_000);
        assert_eq!(self.call(&request, 6).await.responses[0].error_code, 0);
    }

    /// Commits for a group without members; error codes in order.
    async fn commit(&mut self, group: &str, partitions: &[(&str, i32)]) -> Vec<i16> {
        let topics = partitions.iter().map(|(topic, partition)| {
            let partition = OffsetCommitRequestPartition::default()
                .with_partition_index(*partition)
                .with_committed_offset(7);
            OffsetCommitRequestTopic::default()
                .with_name(topic_name(topic))
                .with_partitions(vec![partition])
        });
        let request = OffsetCommitRequest::default()
            .with_group_id(GroupId(text(group)))
            .with_generation_id_or_member_epoch(-1)
            .with_topics(topics.collect());
        let answer = self.call(&request, 9).await;
        let codes = answer.topics.iter().flat_map(|topic| &topic.partitions);
        codes.map(|partition| partition.error_code).collect()
    }

    /// All that a group has committed: topic and partition.
    async fn committed(&mut self, group: &str) -> Vec<(String, i32)> {
        let group = OffsetFetchRequestGroup::default()
            .with_group_id(GroupId(text(group)))
            .with_topics(None);
        let request = OffsetFetchRequest::default().with_groups(vec![group]);
        let answer = self.call(&request, 9).await;
        let topics = answer.groups[0].topics.iter();
        topics
            .flat_map(|topic| {
                let partitions = topic.partitions.iter();
                partitions.map(|partition| (topic.name.to_string(), partition.partition_index))
            })
            .collect()
    }
}

#[tokio::test(start_paused = true)]
async fn offsets_of_what_does_not_exist_are_refused_one_by_one() {
    let c = cluster().await;
    let mut client = c.client().await;
    client.create("t", 2).await;
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    let codes = client
        .commit("g", &[("t", 0), ("missing", 0), ("t", 2), ("t", 1)])
        .await;
    assert_eq!(codes, [0, unknown, unknown, 0]);
    assert_eq!(client.commit("g", &[("missing", 0)]).await, [unknown]);
    let expected = [("t".to_owned(), 0), ("t".to_owned(), 1)];
    assert_eq!(client.committed("g").await, expected);
}

#[tokio::test(start_paused = true)]
async fn a_new_topic_of_the_name_does_not_inherit_offsets() {
    let c = cluster().await;
    let mut client = c.client().await;
    client.create("t", 1).await;
    client.create("other", 1).await;
    assert_eq!(client.commit("g", &[("t", 0), ("other", 0)]).await, [0, 0]);
    client.delete("t").await;
    client.create("t", 1).await;
    assert_eq!(client.committed("g").await, [("other".to_owned(), 0)]);
    // Nor if all who know of the deletion die before the creation.
    assert_eq!(client.commit("g", &[("t", 0)]).await, [0]);
    client.delete("t").await;
    let c = c.reborn().await;
    let mut client = c.client().await;
    client.create("t", 1).await;
    assert_eq!(client.committed("g").await, [("other".to_owned(), 0)]);
    assert_eq!(client.commit("g", &[("t", 0)]).await, [0]);
    let expected = [("other".to_owned(), 0), ("t".to_owned(), 0)];
    assert_eq!(client.committed("g").await, expected);
}

#[tokio::test(start_paused = true)]
async fn offsets_can_be_deleted() {
    let c = cluster().await;
    let mut client = c.client().await;
    client.create("t", 2).await;
    assert_eq!(client.commit("g", &[("t", 0), ("t", 1)]).await, [0, 0]);
    let delete = |group: &str, partitions: &[(&str, i32)]| {
        let topics = partitions.iter().map(|(topic, partition)| {
            let partition = OffsetDeleteRequestPartition::default().with_partition_index(*partition);
            OffsetDeleteRequestTopic::default()
                .with_name(topic_name(topic))
                .with_partitions(vec![partition])
        });
        OffsetDeleteRequest::default()
            .with_group_id(GroupId(text(group)))
            .with_topics(topics.collect())
    };
    let answer = client.call(&delete("g", &[("t", 0), ("missing", 0)]), 0).await;
    let codes: Vec<i16> = answer
        .topics
        .iter()
        .map(|topic| topic.partitions[0].error_code)
        .collect();
    assert_eq!(
        (answer.error_code, codes),
        (0, vec![0, ResponseError::UnknownTopicOrPartition.code()])
    );
    assert_eq!(client.committed("g").await, [("t".to_owned(), 1)]);
    let answer = client.call(&delete("nobody", &[("t", 0)]), 0).await;
    assert_eq!(answer.error_code, ResponseError::GroupIdNotFound.code());
}

#[tokio::test(start_paused = true)]
async fn topics_are_described_page_by_page() {
    let c = cluster().await;
    let mut client = c.client().await;
    client.create("b", 3).await;
    client.create("a", 2).await;
    let mut request = DescribeTopicPartitionsRequest::default().with_response_partition_limit(2);
    let mut pages = Vec::new();
    loop {
        let answer = client.call(&request, 0).await;
        let topics = answer.topics.iter().flat_map(|topic| {
            let name = topic.name.clone().unwrap().to_string();
            let partitions = topic.partitions.iter();
            partitions.map(move |partition| (name.clone(), partition.partition_index, partition.leader_id.0))
        });
        pages.push(topics.collect::<Vec<_>>());
        let Some(next) = answer.next_cursor else { break };
        let cursor = kafka_wire::messages::describe_topic_partitions_request::Cursor::default()
            .with_topic_name(next.topic_name)
            .with_partition_index(next.partition_index);
        request = request.with_cursor(Some(cursor));
    }
    let found = |topic: &str, partition| (topic.to_owned(), partition, 1);
    let expected = [
        vec![found("a", 0), found("a", 1)],
        vec![found("b", 0), found("b", 1)],
        vec![found("b", 2)],
    ];
    assert_eq!(pages, expected);
    let named = |name: &str| TopicRequest::default().with_name(topic_name(name));
    let request = DescribeTopicPartitionsRequest::default()
        .with_response_partition_limit(100)
        .with_topics(vec![named("missing"), named("b"), named("no/name")]);
    let answer = client.call(&request, 0).await;
    let codes: Vec<i16> = answer.topics.iter().map(|topic| topic.error_code).collect();
    let expected = [
        0,
        ResponseError::UnknownTopicOrPartition.code(),
        ResponseError::InvalidTopicException.code(),
    ];
    assert_eq!(codes, expected, "by name");
    assert!(answer.next_cursor.is_none());
}

#[tokio::test(start_paused = true)]
async fn sizes_and_producers_of_partitions() {
    let c = cluster().await;
    let mut client = c.client().await;
    client.create("t", 2).await;
    let batches = [sequenced(77, 0, 3, c.now()), sequenced(77, 3, 2, c.now())];
    let size: usize = batches.iter().map(Bytes::len).sum();
    for batch in batches {
        assert_eq!(client.produce("t", 1, batch, -1).await.0, 0);
    }
    let some = DescribableLogDirTopic::default()
        .with_topic(topic_name("t"))
        .with_partitions(vec![1, 9]);
    for (asked, expected) in [
        (None, vec![(0, 0), (1, size)]),
        (Some(vec![some]), vec![(1, size)]),
    ] {
        let answer = client
            .call(&DescribeLogDirsRequest::default().with_topics(asked), 4)
            .await;
        let dir = &answer.results[0];
        assert_eq!((dir.error_code, dir.total_bytes, dir.topics.len()), (0, -1, 1));
        let sizes: Vec<_> = dir.topics[0]
            .partitions
            .iter()
            .map(|partition| (partition.partition_index, partition.partition_size as usize))
            .collect();
        assert_eq!(sizes, expected);
    }
    let topic = ProducersOf::default()
        .with_name(topic_name("t"))
        .with_partition_indexes(vec![0, 1, 2]);
    let answer = client
        .call(&DescribeProducersRequest::default().with_topics(vec![topic]), 0)
        .await;
    let [none, one, missing] = &answer.topics[0].partitions[..] else {
        panic!()
    };
    assert!(none.error_code == 0 && none.active_producers.is_empty());
    let producer = &one.active_producers[0];
    assert_eq!((producer.producer_id.0, producer.last_sequence), (77, 4));
    assert_eq!(missing.error_code, ResponseError::UnknownTopicOrPartition.code());
}

#[tokio::test(start_paused = true)]
async fn configurations_are_replaced_as_a_whole_by_the_older_request() {
    let c = cluster().await;
    let mut client = c.client().await;
    client.create("t", 1).await;
    for (name, value) in [("retention.ms", "5000"), ("max.message.bytes", "2000")] {
        let config = AlterableConfig::default()
            .with_name(text(name))
            .with_value(Some(text(value)));
        let resource = AlterConfigsResource::default()
            .with_resource_type(2)
            .with_resource_name(text("t"))
            .with_configs(vec![config]);
        let request = AlterConfigsRequest::default().with_resources(vec![resource]);
        assert_eq!(client.call(&request, 2).await.responses[0].error_code, 0);
    }
    let resource = DescribeConfigsResource::default()
        .with_resource_type(2)
        .with_resource_name(text("t"))
        .with_configuration_keys(None);
    let request = DescribeConfigsRequest::default().with_resources(vec![resource]);
    let answer = client.call(&request, 4).await;
    let set = answer.results[0]
        .configs
        .iter()
        .filter(|config| config.config_source == 1);
    let set: Vec<_> = set.map(|config| config.name.as_str()).collect();
    assert_eq!(set, ["max.message.bytes"]);
}

#[tokio::test(start_paused = true)]
async fn what_makes_no_sense_without_replicas_says_so() {
    let c = cluster().await;
    let mut client = c.client().await;
    client.create("t", 1).await;
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    let partitions = TopicPartitions::default()
        .with_topic(topic_name("t"))
        .with_partitions(vec![0, 5]);
    let request = ElectLeadersRequest::default().with_topic_partitions(Some(vec![partitions]));
    let answer = client.call(&request, 2).await;
    let results = &answer.replica_election_results[0].partition_result;
    let codes = [results[0].error_code, results[1].error_code];
    assert_eq!(codes, [ResponseError::ElectionNotNeeded.code(), unknown]);

    let partition = |index, replicas| {
        ReassignablePartition::default()
            .with_partition_index(index)
            .with_replicas(replicas)
    };
    let topic = ReassignableTopic::default()
        .with_name(topic_name("t"))
        .with_partitions(vec![
            partition(0, Some(vec![BrokerId(1)])),
            partition(0, Some(vec![BrokerId(1), BrokerId(2)])),
            partition(0, None),
            partition(5, None),
        ]);
    let request = AlterPartitionReassignmentsRequest::default().with_topics(vec![topic]);
    let answer = client.call(&request, 1).await;
    let results = answer.responses[0].partitions.iter();
    let codes: Vec<i16> = results.map(|result| result.error_code).collect();
    let expected = [
        0,
        ResponseError::InvalidReplicaAssignment.code(),
        ResponseError::NoReassignmentInProgress.code(),
        unknown,
    ];
    assert_eq!(codes, expected);
    let request = ListPartitionReassignmentsRequest::default().with_topics(None);
    let answer = client.call(&request, 0).await;
    assert!(answer.error_code == 0 && answer.topics.is_empty());

    let list = |kinds: &[i8]| ListConfigResourcesRequest::default().with_resource_types(kinds.to_vec());
    let answer = client.call(&list(&[]), 1).await;
    let found = answer.config_resources.iter();
    let found: Vec<_> = found
        .map(|resource| (resource.resource_type, resource.resource_name.as_str()))
        .collect();
    assert_eq!(found, [(2, "t"), (4, "1")]);
    let answer = client.call(&list(&[99]), 1).await;
    assert_eq!(answer.error_code, ResponseError::UnsupportedVersion.code());
}
