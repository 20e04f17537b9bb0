use std::time::Duration;

use coordinator::protocol::ListOffsetsPartition;
use kafka_wire::ResponseError;
use kafka_wire::messages::offset_for_leader_epoch_response::{EpochEndOffset, OffsetForLeaderTopicResult};
use kafka_wire::messages::{OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse};

use super::Api;
use super::call::Call;
use super::topics;
use crate::net::Answer;

/// The only leader epoch there is.
const EPOCH: i32 = 0;
const UNDEFINED: i32 = -1;
const LATEST: i64 = -1;
const WAIT: Duration = Duration::from_secs(10);

impl Api {
    /// Epoch 0 ends at the high watermark, which the leader of the shard is asked for: an older one would look like lost
    /// records to a client that has read further at another broker.
    pub(super) async fn offset_for_leader_epoch(
        &self,
        call: Call,
        request: OffsetForLeaderEpochRequest,
    ) -> Answer {
        let image = self.metadata.image();
        let mut asked = Vec::new();
        for topic in &request.topics {
            let found = image
                .topic(topic.topic.as_str())
                .ok_or(ResponseError::UnknownTopicOrPartition);
            for partition in topic
                .partitions
                .iter()
                .filter(|partition| partition.leader_epoch == EPOCH)
            {
                if let Ok((id, shard)) = found.and_then(|topic| topics::partition(topic, partition.partition))
                {
                    asked.push((
                        shard,
                        ListOffsetsPartition {
                            partition: id,
                            timestamp: LATEST,
                        },
                    ));
                }
            }
        }
        let mut ends = self.offsets(asked, self.env.instant() + WAIT).await.into_iter();
        let topics = request.topics.iter().map(|topic| {
            let found = image
                .topic(topic.topic.as_str())
                .ok_or(ResponseError::UnknownTopicOrPartition);
            let partitions = topic.partitions.iter().map(|partition| {
                let end = EpochEndOffset::default()
                    .with_partition(partition.partition)
                    .with_leader_epoch(UNDEFINED)
                    .with_end_offset(-1);
                if let Err(error) = found.and_then(|topic| topics::partition(topic, partition.partition)) {
                    return end.with_error_code(error.code());
                }
                let asked = (partition.leader_epoch == EPOCH).then(|| ends.next()).flatten();
                if partition.current_leader_epoch > EPOCH {
                    return end.with_error_code(ResponseError::UnknownLeaderEpoch.code());
                }
                match asked {
                    None => end,
                    Some(result) if result.error_code != 0 => end.with_error_code(result.error_code),
                    Some(result) => end.with_leader_epoch(EPOCH).with_end_offset(result.offset),
                }
            });
            let partitions = partitions.collect();
            OffsetForLeaderTopicResult::default()
                .with_topic(topic.topic.clone())
                .with_partitions(partitions)
        });
        let topics = topics.collect();
        call.reply(OffsetForLeaderEpochResponse::default().with_topics(topics))
    }
}
