use std::time::Duration;

use kafka_wire::messages::describe_log_dirs_response::{
    DescribeLogDirsPartition, DescribeLogDirsResult, DescribeLogDirsTopic,
};
use kafka_wire::messages::{DescribeLogDirsRequest, DescribeLogDirsResponse, TopicName};
use kafka_wire::{ResponseError, StrBytes};
use types::TopicPartition;

use super::Api;
use super::call::{Call, text};
use super::topics;
use crate::net::Answer;

/// The one place where all records lie.
const LOG_DIR: StrBytes = StrBytes::from_static_str("object-store");
const WAIT: Duration = Duration::from_secs(10);

impl Api {
    /// Sizes of the partitions that this client takes this broker for the leader of: a tool that asks every broker counts
    /// each partition once.
    pub(super) async fn describe_log_dirs(&self, call: Call, request: DescribeLogDirsRequest) -> Answer {
        let image = self.metadata.image();
        let steering = self.steering(&call, &image);
        let ours = |partition: TopicPartition| {
            steering
                .leader(partition)
                .is_some_and(|leader| leader.id == self.node)
        };
        let wanted: Vec<(String, Vec<i32>)> = match request.topics {
            Some(topics) => topics
                .into_iter()
                .map(|topic| (topic.topic.to_string(), topic.partitions))
                .collect(),
            None => {
                let all = image.record().topics.iter();
                all.map(|topic| {
                    let indexes = (0i32..).zip(&topic.partitions).map(|(index, _)| index);
                    (topic.name.clone(), indexes.collect())
                })
                .collect()
            }
        };
        let mut asked = Vec::new();
        let mut shown: Vec<(String, Vec<i32>)> = Vec::new();
        for (name, indexes) in wanted {
            let Some(topic) = image.topic(&name) else {
                continue;
            };
            let mut of_topic = Vec::new();
            for index in indexes {
                if let Ok((id, shard)) = topics::partition(topic, index)
                    && ours(id)
                {
                    asked.push((shard, id));
                    of_topic.push(index);
                }
            }
            if !of_topic.is_empty() {
                shown.push((name, of_topic));
            }
        }
        let deadline = self.env.instant() + WAIT;
        let mut found = self.describe_partitions(asked, false, deadline).await.into_iter();
        let mut error = None;
        let topics = shown.into_iter().map(|(name, indexes)| {
            let mut partitions = Vec::new();
            for index in indexes {
                match found.next().unwrap_or(Err(ResponseError::UnknownServerError)) {
                    Ok(described) => partitions.push(
                        DescribeLogDirsPartition::default()
                            .with_partition_index(index)
                            .with_partition_size(i64::try_from(described.bytes).unwrap_or(i64::MAX)),
                    ),
                    // It is gone since this broker has heard of it.
                    Err(ResponseError::UnknownTopicOrPartition) => {}
                    Err(failed) => error = Some(failed),
                }
            }
            DescribeLogDirsTopic::default()
                .with_name(TopicName(text(name)))
                .with_partitions(partitions)
        });
        let topics = topics.collect();
        let dir = DescribeLogDirsResult::default()
            .with_log_dir(LOG_DIR)
            .with_topics(topics)
            .with_total_bytes(-1)
            .with_usable_bytes(-1)
            .with_error_code(kafka_wire::code(error));
        call.reply(DescribeLogDirsResponse::default().with_results(vec![dir]))
    }
}
