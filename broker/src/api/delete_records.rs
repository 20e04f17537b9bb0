use coordinator::protocol::{DeleteRecordsPartition, DeleteRecordsRequest as Ask};
use kafka_wire::ResponseError;
use kafka_wire::messages::delete_records_response::{DeleteRecordsPartitionResult, DeleteRecordsTopicResult};
use kafka_wire::messages::{DeleteRecordsRequest, DeleteRecordsResponse};

use super::Api;
use super::call::Call;
use super::{shards, topics};
use crate::net::Answer;

/// What a client may ask the shards to take for an answer, ms.
const TIMEOUT: std::ops::RangeInclusive<i32> = 5_000..=60_000;

impl Api {
    pub(super) async fn delete_records(&self, call: Call, request: DeleteRecordsRequest) -> Answer {
        let image = self.metadata.image();
        let find = |topic: &str, index: i32| topics::partition(image.topic(topic)?, index).ok();
        let mut asked = Vec::new();
        for topic in &request.topics {
            for partition in &topic.partitions {
                if let Some((id, shard)) = find(&topic.name, partition.partition_index) {
                    let wanted = DeleteRecordsPartition {
                        partition: id,
                        offset: partition.offset,
                    };
                    asked.push((shard, wanted));
                }
            }
        }
        let deadline = self.deadline(request.timeout_ms.clamp(*TIMEOUT.start(), *TIMEOUT.end()).into());
        let ask = |shard, partitions| async move {
            let request = Ask { shard, partitions };
            match self.coordinators.delete_records(&request, deadline).await {
                Ok(answer) if answer.error_code == 0 => {
                    // Whoever has the answer does not find here what it has deleted.
                    for (asked, result) in request.partitions.iter().zip(&answer.partitions) {
                        // -1 with an error.
                        self.fetcher.deleted(&asked.partition, result.low_watermark);
                    }
                    Some(answer.partitions)
                }
                other => {
                    tracing::debug!(failure = ?other.err(), "records cannot be deleted");
                    None
                }
            }
        };
        let mut results = shards::each(asked, ask).await.into_iter();
        let topics = request.topics.into_iter().map(|topic| {
            let partitions = topic.partitions.iter().map(|partition| {
                let (code, low_watermark) = match find(&topic.name, partition.partition_index) {
                    None => (ResponseError::UnknownTopicOrPartition.code(), -1),
                    Some(_) => match results.next().flatten() {
                        Some(result) => (result.error_code, result.low_watermark),
                        // Whether it was done is not known.
                        None => (ResponseError::RequestTimedOut.code(), -1),
                    },
                };
                DeleteRecordsPartitionResult::default()
                    .with_partition_index(partition.partition_index)
                    .with_low_watermark(low_watermark)
                    .with_error_code(code)
            });
            let partitions = partitions.collect();
            DeleteRecordsTopicResult::default()
                .with_name(topic.name)
                .with_partitions(partitions)
        });
        let topics = topics.collect();
        call.reply(DeleteRecordsResponse::default().with_topics(topics))
    }
}
