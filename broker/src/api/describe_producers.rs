use std::time::Duration;

use coordinator::protocol::PartitionDescription;
use kafka_wire::ResponseError;
use kafka_wire::messages::describe_producers_response::{PartitionResponse, ProducerState, TopicResponse};
use kafka_wire::messages::{DescribeProducersRequest, DescribeProducersResponse, ProducerId};

use super::Api;
use super::call::Call;
use super::topics;
use crate::net::Answer;

const WAIT: Duration = Duration::from_secs(10);

impl Api {
    pub(super) async fn describe_producers(&self, call: Call, request: DescribeProducersRequest) -> Answer {
        let image = self.metadata.image();
        let mut asked = Vec::new();
        for topic in &request.topics {
            if let Some(known) = image.topic(topic.name.as_str()) {
                let partitions = topic.partition_indexes.iter();
                let known = partitions.filter_map(|index| topics::partition(known, *index).ok());
                asked.extend(known.map(|(id, shard)| (shard, id)));
            }
        }
        let deadline = self.env.instant() + WAIT;
        let mut found = self.describe_partitions(asked, true, deadline).await.into_iter();
        let topics = request.topics.iter().map(|topic| {
            let partitions = topic.partition_indexes.iter().map(|index| {
                let described = if topics::exists(&image, &topic.name, *index) {
                    found.next().unwrap_or(Err(ResponseError::UnknownServerError))
                } else {
                    Err(ResponseError::UnknownTopicOrPartition)
                };
                let partition = PartitionResponse::default().with_partition_index(*index);
                match described {
                    Ok(described) => partition.with_active_producers(producers(&described)),
                    Err(error) => partition.with_error_code(error.code()),
                }
            });
            let partitions = partitions.collect();
            TopicResponse::default()
                .with_name(topic.name.clone())
                .with_partitions(partitions)
        });
        let topics = topics.collect();
        call.reply(DescribeProducersResponse::default().with_topics(topics))
    }
}

fn producers(described: &PartitionDescription) -> Vec<ProducerState> {
    let producers = described.producers.iter().map(|producer| {
        ProducerState::default()
            .with_producer_id(ProducerId(producer.id))
            .with_producer_epoch(producer.epoch.into())
            .with_last_sequence(producer.last_sequence)
            .with_last_timestamp(producer.used_at.0)
            .with_coordinator_epoch(-1)
            .with_current_txn_start_offset(-1)
    });
    producers.collect()
}
