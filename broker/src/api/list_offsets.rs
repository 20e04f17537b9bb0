use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use coordinator::protocol::{Coordinate, ListOffsetsPartition, ListOffsetsRequest as Ask, ListOffsetsResult};
use env::Instant;
use futures::StreamExt;
use kafka_wire::ResponseError;
use kafka_wire::batch::BatchHeader;
use kafka_wire::messages::list_offsets_request::ListOffsetsPartition as Asked;
use kafka_wire::messages::list_offsets_response::{ListOffsetsPartitionResponse, ListOffsetsTopicResponse};
use kafka_wire::messages::{ListOffsetsRequest, ListOffsetsResponse};
use kafka_wire::records::find_record_by_timestamp;
use types::{ShardId, Timestamp};

use super::Api;
use super::call::Call;
use super::{shards, topics};
use crate::net::Answer;

/// The only leader epoch there is.
const EPOCH: i32 = 0;
/// First version that answers with a leader epoch.
const WITH_EPOCH: i16 = 4;
/// Asks for the record with the largest timestamp.
const MAX_TIMESTAMP: i64 = -3;
/// The special timestamps that are not of the first version, and of which version they are (KIP-734, 405, 1005).
const SPECIAL: [(i64, i16); 3] = [(MAX_TIMESTAMP, 7), (-4, 8), (-5, 9)];
/// Asks for the beginning; what is not less is -1, the end, or a time.
const EARLIEST: i64 = -2;
const WAIT: Duration = Duration::from_secs(10);
/// Batches of a request that are read and searched at the same time.
const SEARCHES: usize = 32;

/// The partitions of a request, each once, and whether it is named more often than that.
fn distinct(partitions: &[Asked]) -> impl Iterator<Item = (&Asked, bool)> {
    let mut times: BTreeMap<i32, usize> = BTreeMap::new();
    for partition in partitions {
        *times.entry(partition.partition_index).or_default() += 1;
    }
    partitions
        .iter()
        .filter_map(move |partition| Some((partition, times.remove(&partition.partition_index)? > 1)))
}

impl Api {
    pub(super) async fn list_offsets(&self, call: Call, request: ListOffsetsRequest) -> Answer {
        let image = self.metadata.image();
        let mut asked = Vec::new();
        // An error of the request itself, or `None` for what is asked.
        let mut errors = Vec::new();
        let known = |timestamp: i64| {
            let special = SPECIAL.iter().find(|(special, _)| *special == timestamp);
            timestamp >= EARLIEST || special.is_some_and(|(_, since)| call.version() >= *since)
        };
        for topic in &request.topics {
            let found = image
                .topic(topic.name.as_str())
                .ok_or(ResponseError::UnknownTopicOrPartition);
            for (partition, twice) in distinct(&topic.partitions) {
                let judged = match found.and_then(|topic| topics::partition(topic, partition.partition_index))
                {
                    _ if twice => Err(ResponseError::InvalidRequest),
                    Ok(_) if !known(partition.timestamp) => Err(ResponseError::UnsupportedVersion),
                    Ok(_) if partition.current_leader_epoch > EPOCH => Err(ResponseError::UnknownLeaderEpoch),
                    other => other,
                };
                errors.push(judged.err());
                if let Ok((id, shard)) = judged {
                    asked.push((
                        shard,
                        ListOffsetsPartition {
                            partition: id,
                            timestamp: partition.timestamp,
                        },
                    ));
                }
            }
        }
        let timestamps: Vec<i64> = asked.iter().map(|(_, partition)| partition.timestamp).collect();
        let found = self.offsets(asked, self.env.instant() + WAIT).await;
        let exact = found
            .into_iter()
            .zip(timestamps)
            .map(|(result, timestamp)| self.exact(result, timestamp));
        let exact = futures::stream::iter(exact).buffered(SEARCHES);
        let mut results = exact.collect::<Vec<_>>().await.into_iter();
        let mut errors = errors.into_iter();
        let with_epoch = call.version() >= WITH_EPOCH;
        let topics = request.topics.into_iter().map(|topic| {
            let partitions = distinct(&topic.partitions).map(|(partition, _)| {
                let answer = ListOffsetsPartitionResponse::default()
                    .with_partition_index(partition.partition_index)
                    .with_offset(-1)
                    .with_timestamp(-1)
                    .with_leader_epoch(-1);
                match errors
                    .next()
                    .flatten()
                    .map_or_else(|| results.next(), |error| Some(failed(error)))
                {
                    Some(ListOffsetsResult {
                        error_code: 0,
                        offset,
                        timestamp,
                        ..
                    }) => answer
                        .with_offset(offset)
                        .with_timestamp(timestamp.0)
                        .with_leader_epoch(if offset >= 0 && with_epoch { EPOCH } else { -1 }),
                    Some(result) => answer.with_error_code(result.error_code),
                    None => answer.with_error_code(ResponseError::UnknownServerError.code()),
                }
            });
            let partitions = partitions.collect();
            ListOffsetsTopicResponse::default()
                .with_name(topic.name)
                .with_partitions(partitions)
        });
        let topics = topics.collect();
        call.reply(ListOffsetsResponse::default().with_topics(topics))
    }

    /// Asks the leaders of the shards, in parallel; the answers come in the order of `asked`.
    pub(super) async fn offsets(
        &self,
        asked: Vec<(ShardId, ListOffsetsPartition)>,
        deadline: Instant,
    ) -> Vec<ListOffsetsResult> {
        let ask = |shard, partitions| async move {
            let request = Ask { shard, partitions };
            match self.coordinators.list_offsets(&request, deadline).await {
                Ok(answer) if answer.error_code == 0 => Some(answer.partitions),
                other => {
                    tracing::debug!(failure = ?other.err(), "offsets cannot be listed");
                    None
                }
            }
        };
        let results = shards::each(asked, ask).await.into_iter();
        results
            .map(|result| result.unwrap_or_else(|| failed(ResponseError::NotLeaderOrFollower)))
            .collect()
    }

    /// Finds the record itself in the batch that the coordinator has named. What was deleted of the batch does not count.
    async fn exact(&self, result: ListOffsetsResult, timestamp: i64) -> ListOffsetsResult {
        let Some(at) = result.batch.clone().filter(|_| result.error_code == 0) else {
            return result;
        };
        let from = if timestamp == MAX_TIMESTAMP {
            at.base_offset
        } else {
            result.offset
        };
        if at.log_append_time.0 >= 0 || env::mutation("time-by-batch") {
            // All records of the batch carry the same time: the first one is the earliest.
            return ListOffsetsResult {
                offset: from,
                timestamp: at.log_append_time,
                ..result
            };
        }
        let batch = match self.fetcher.batch(&at).await {
            Ok(batch) => batch,
            Err(error) => return failed(error.response_error()),
        };
        let find = move || find(&batch, &at, from, timestamp);
        match self.readers.turn(find).await {
            Ok(Some((offset, time))) => ListOffsetsResult {
                offset,
                timestamp: Timestamp(time),
                ..result
            },
            // The one that was so late is deleted, or the header says more than is true: all that follows is from here on.
            Ok(None) => result,
            Err(error) => failed(error),
        }
    }
}

/// Decompresses: not for a thread that serves others.
fn find(
    batch: &Bytes,
    at: &Coordinate,
    from: i64,
    timestamp: i64,
) -> Result<Option<(i64, i64)>, ResponseError> {
    let wanted = if timestamp == MAX_TIMESTAMP {
        BatchHeader::parse(batch)
            .map_err(|error| error.response_error())?
            .max_timestamp
    } else {
        timestamp
    };
    find_record_by_timestamp(batch, at.base_offset, from, wanted).map_err(|error| {
        tracing::warn!(%error, object = %at.object, "records cannot be searched by time");
        ResponseError::CorruptMessage
    })
}

fn failed(error: ResponseError) -> ListOffsetsResult {
    ListOffsetsResult {
        error_code: error.code(),
        offset: -1,
        timestamp: Timestamp(-1),
        batch: None,
    }
}
