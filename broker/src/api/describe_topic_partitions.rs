use std::collections::BTreeSet;

use cluster::image::Topic;
use kafka_wire::ResponseError;
use kafka_wire::messages::describe_topic_partitions_response::{
    Cursor, DescribeTopicPartitionsResponsePartition, DescribeTopicPartitionsResponseTopic,
};
use kafka_wire::messages::{
    BrokerId, DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse, TopicName,
};
use types::TopicPartition;

use super::Api;
use super::call::{Call, text};
use super::metadata::{TOPIC_OPERATIONS, is_legal};
use super::steering::Steering;
use crate::net::Answer;

/// Partitions in one answer at most (Kafka's `max.request.partition.size.limit`).
const LIMIT: usize = 2_000;

impl Api {
    /// A page of topics by name, from where the client's cursor stands (KIP-966).
    pub(super) fn describe_topic_partitions(
        &self,
        call: Call,
        request: DescribeTopicPartitionsRequest,
    ) -> Answer {
        let image = self.metadata.image();
        let steering = self.steering(&call, &image);
        let all = request.topics.is_empty();
        let mut names: BTreeSet<&str> = if all {
            let topics = image.record().topics.iter();
            topics.map(|topic| topic.name.as_str()).collect()
        } else {
            request.topics.iter().map(|topic| topic.name.as_str()).collect()
        };
        let from = request.cursor.as_ref();
        if let Some(from) = from {
            names = names.split_off(from.topic_name.as_str());
        }
        let mut room = usize::try_from(request.response_partition_limit)
            .unwrap_or(1)
            .clamp(1, LIMIT);
        let mut response = DescribeTopicPartitionsResponse::default();
        for name in names {
            let start = from
                .filter(|from| from.topic_name.as_str() == name)
                .map_or(0, |from| usize::try_from(from.partition_index).unwrap_or(0));
            if room == 0 {
                response.next_cursor = Some(cursor(name, start));
                break;
            }
            let Some(topic) = image.topic(name) else {
                response.topics.push(missing(name));
                continue;
            };
            let described: Vec<_> = partitions(&steering, topic, start).take(room).collect();
            let next = start + described.len();
            room -= described.len();
            response.topics.push(
                DescribeTopicPartitionsResponseTopic::default()
                    .with_name(Some(TopicName(text(name))))
                    .with_topic_id(topic.id.0)
                    .with_partitions(described)
                    .with_topic_authorized_operations(TOPIC_OPERATIONS),
            );
            if next < topic.partitions.len() {
                response.next_cursor = Some(cursor(name, next));
                break;
            }
        }
        call.reply(response)
    }
}

fn cursor(topic: &str, partition: usize) -> Cursor {
    Cursor::default()
        .with_topic_name(TopicName(text(topic)))
        .with_partition_index(i32::try_from(partition).unwrap_or(i32::MAX))
}

fn missing(name: &str) -> DescribeTopicPartitionsResponseTopic {
    let error = if is_legal(name) {
        ResponseError::UnknownTopicOrPartition
    } else {
        ResponseError::InvalidTopicException
    };
    DescribeTopicPartitionsResponseTopic::default()
        .with_name(Some(TopicName(text(name))))
        .with_error_code(error.code())
}

/// The partitions from `start` on, each with the one broker that this client takes for its leader and only replica.
fn partitions<'a>(
    steering: &'a Steering<'_>,
    topic: &'a Topic,
    start: usize,
) -> impl Iterator<Item = DescribeTopicPartitionsResponsePartition> + 'a {
    let indexes = (0i32..).zip(&topic.partitions).skip(start);
    indexes.map(|(index, _)| {
        let partition = DescribeTopicPartitionsResponsePartition::default()
            .with_partition_index(index)
            .with_eligible_leader_replicas(Some(Vec::new()))
            .with_last_known_elr(Some(Vec::new()));
        match steering.leader(TopicPartition {
            topic: topic.id,
            partition: index,
        }) {
            Some(leader) => {
                let leader = BrokerId(leader.id.0);
                partition
                    .with_leader_id(leader)
                    .with_leader_epoch(0)
                    .with_replica_nodes(vec![leader])
                    .with_isr_nodes(vec![leader])
            }
            None => partition
                .with_error_code(ResponseError::LeaderNotAvailable.code())
                .with_leader_id(BrokerId(-1)),
        }
    })
}
