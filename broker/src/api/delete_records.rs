use std::collections::BTreeMap;

use coordinator::protocol::{DeleteRecordsPartition, DeleteRecordsRequest as Ask};
use kafka_wire::ResponseError;
use kafka_wire::messages::delete_records_response::{DeleteRecordsPartitionResult, DeleteRecordsTopicResult};
use kafka_wire::messages::{DeleteRecordsRequest, DeleteRecordsResponse};
use types::ShardId;

use super::Api;
use super::call::Call;
use super::topics;
use crate::net::Answer;

/// Where results belong in the response (topic, partition), and what is asked for them.
type Asked = (Vec<(usize, usize)>, Vec<DeleteRecordsPartition>);

/// What a client may ask the shards to take for an answer, ms.
const TIMEOUT: std::ops::RangeInclusive<i32> = 5_000..=60_000;

impl Api {
    pub(super) async fn delete_records(&self, call: Call, request: DeleteRecordsRequest) -> Answer {
        let image = self.metadata.image();
        let mut by_shard: BTreeMap<ShardId, Asked> = BTreeMap::new();
        let mut topics = Vec::with_capacity(request.topics.len());
        for (topic_index, asked) in request.topics.iter().enumerate() {
            let found = image
                .topic(asked.name.as_str())
                .ok_or(ResponseError::UnknownTopicOrPartition);
            let mut partitions = Vec::with_capacity(asked.partitions.len());
            for (index, partition) in asked.partitions.iter().enumerate() {
                let error = match found.and_then(|topic| topics::partition(topic, partition.partition_index))
                {
                    Ok((id, shard)) => {
                        let (places, wanted) = by_shard.entry(shard).or_default();
                        places.push((topic_index, index));
                        wanted.push(DeleteRecordsPartition {
                            partition: id,
                            offset: partition.offset,
                        });
                        // Until the shard has answered.
                        ResponseError::RequestTimedOut
                    }
                    Err(error) => error,
                };
                let result = DeleteRecordsPartitionResult::default()
                    .with_partition_index(partition.partition_index)
                    .with_low_watermark(-1)
                    .with_error_code(error.code());
                partitions.push(result);
            }
            let name = asked.name.clone();
            topics.push(
                DeleteRecordsTopicResult::default()
                    .with_name(name)
                    .with_partitions(partitions),
            );
        }
        let deadline = self.deadline(request.timeout_ms.clamp(*TIMEOUT.start(), *TIMEOUT.end()).into());
        let answers = by_shard
            .into_iter()
            .map(|(shard, (places, partitions))| async move {
                (
                    places,
                    self.coordinators
                        .delete_records(&Ask { shard, partitions }, deadline)
                        .await,
                )
            });
        for (places, answer) in futures::future::join_all(answers).await {
            let results = match answer {
                Ok(answer) if answer.error_code == 0 => answer.partitions,
                other => {
                    tracing::debug!(failure = ?other.err(), "records cannot be deleted");
                    continue;
                }
            };
            for ((topic, partition), result) in places.into_iter().zip(results) {
                let place = topics
                    .get_mut(topic)
                    .and_then(|topic| topic.partitions.get_mut(partition));
                if let Some(place) = place {
                    place.error_code = result.error_code;
                    place.low_watermark = result.low_watermark;
                }
            }
        }
        call.reply(DeleteRecordsResponse::default().with_topics(topics))
    }
}
