use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use kafka_wire::ResponseError;
use kafka_wire::batch::BatchHeader;
use kafka_wire::messages::produce_response::{
    BatchIndexAndErrorMessage, PartitionProduceResponse, TopicProduceResponse,
};
use kafka_wire::messages::{ProduceRequest, ProduceResponse};
use tokio::sync::OwnedSemaphorePermit;

use super::call::{Call, text};
use super::{Api, topics};
use crate::net::Answer;
use crate::produce::{Append, Outcome, Refusal, validate};

/// First version that names topics by id.
const TOPIC_IDS: i16 = 13;
/// An object takes its time: who gives less does not get an answer sooner.
const SHORTEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Nobody waits longer.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(120);

/// A partition of the request: refused, or waiting for its outcome.
enum Entry {
    Refused(Refusal),
    Appended,
}

impl Api {
    /// Puts the batches into the buffer at once; the future waits for what becomes of them.
    pub(super) fn produce(
        &self,
        mut call: Call,
        request: ProduceRequest,
        permit: Option<OwnedSemaphorePermit>,
    ) -> BoxFuture<'static, Answer> {
        let acks = request.acks;
        let mut appends = Vec::new();
        let entries = self.take_in(&call, &request, &mut appends);
        let timeout = Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0));
        let timeout = timeout.clamp(SHORTEST_TIMEOUT, LONGEST_TIMEOUT);
        let outcomes = self.producer.append(appends, timeout, permit);
        let response = skeleton(request, call.version() >= TOPIC_IDS);
        // The batches hold what they need of it.
        call.frame.clear();
        if acks == 0 {
            // Nobody hears of an error but by the end of the connection, after which a client asks for metadata.
            let refused = entries.iter().any(|entry| matches!(entry, Entry::Refused(_)));
            return std::future::ready(if refused { Answer::Close } else { Answer::Silence }).boxed();
        }
        async move {
            let outcomes = outcomes.await;
            call.reply(fill(response, entries, outcomes))
        }
        .boxed()
    }

    /// Judges every partition, in order.
    fn take_in(&self, call: &Call, request: &ProduceRequest, appends: &mut Vec<Append>) -> Vec<Entry> {
        let image = self.metadata.image();
        let now = self.now();
        let acks_known = matches!(request.acks, -1..=1);
        let mut entries = Vec::new();
        for data in &request.topic_data {
            let topic = topics::find(&image, call.version() >= TOPIC_IDS, &data.name, data.topic_id);
            let config = topic.ok().map(|topic| self.configs.of(&image, topic));
            let named = || match call.version() >= TOPIC_IDS {
                true => data.topic_id.to_string(),
                false => data.name.to_string(),
            };
            for partition in &data.partition_data {
                let judged = || -> Result<Append, Refusal> {
                    let refuse = |error: ResponseError| Refusal::new(error, error.to_string());
                    if !acks_known {
                        return Err(refuse(ResponseError::InvalidRequiredAcks));
                    }
                    let (id, shard) = topic
                        .and_then(|topic| topics::partition(topic, partition.index))
                        .map_err(refuse)?;
                    let config = config.ok_or_else(|| refuse(ResponseError::UnknownTopicOrPartition))?;
                    let records = partition.records.clone().unwrap_or_default();
                    let header = validate(&records, call.version(), &config, now)?;
                    let log_append_time = config.log_append_time;
                    Ok(Append {
                        partition: id,
                        shard,
                        batch: records,
                        header,
                        log_append_time,
                    })
                };
                entries.push(match judged() {
                    Ok(append) => {
                        self.producer.found(named, &append);
                        appends.push(append);
                        Entry::Appended
                    }
                    Err(refusal) => {
                        let records = partition.records.as_deref().unwrap_or_default();
                        if let Ok(header) = BatchHeader::parse(records) {
                            self.producer.refused(named(), partition.index, &header);
                        }
                        self.metrics.produce_failed_batches.inc();
                        Entry::Refused(refusal)
                    }
                });
            }
        }
        entries
    }
}

/// The response without results, so that the request and its bytes need not be kept.
fn skeleton(request: ProduceRequest, by_id: bool) -> ProduceResponse {
    let topics = request.topic_data.into_iter().map(|data| {
        let partitions = data
            .partition_data
            .into_iter()
            .map(|partition| PartitionProduceResponse::default().with_index(partition.index));
        let response = TopicProduceResponse::default().with_partition_responses(partitions.collect());
        if by_id {
            response.with_topic_id(data.topic_id)
        } else {
            response.with_name(data.name)
        }
    });
    ProduceResponse::default().with_responses(topics.collect())
}

fn fill(mut response: ProduceResponse, entries: Vec<Entry>, outcomes: Vec<Outcome>) -> ProduceResponse {
    let mut outcomes = outcomes.into_iter();
    let partitions = response
        .responses
        .iter_mut()
        .flat_map(|topic| &mut topic.partition_responses);
    for (partition, entry) in partitions.zip(entries) {
        let outcome = match entry {
            Entry::Refused(refusal) => {
                let record = |(place, why): (i32, String)| {
                    BatchIndexAndErrorMessage::default()
                        .with_batch_index(place)
                        .with_batch_index_error_message(Some(text(why)))
                };
                partition.record_errors = refusal.records.into_iter().map(record).collect();
                partition.error_message = Some(text(refusal.message));
                Outcome::failed(refusal.error)
            }
            // One for each that was appended; a default here would tell the client of a success.
            Entry::Appended => {
                let missing = Outcome::failed(ResponseError::UnknownServerError);
                outcomes.next().unwrap_or(missing)
            }
        };
        partition.error_code = outcome.error_code;
        partition.base_offset = outcome.base_offset;
        partition.log_append_time_ms = outcome.log_append_time;
        partition.log_start_offset = outcome.log_start_offset;
    }
    response
}
