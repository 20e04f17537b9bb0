use std::sync::Arc;
use std::time::Duration;

use cluster::configs::TopicConfig;
use cluster::image::{MetadataImage, Topic};
use futures::FutureExt;
use futures::future::BoxFuture;
use kafka_wire::ResponseError;
use kafka_wire::batch::BatchHeader;
use kafka_wire::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_wire::messages::produce_response::{
    BatchIndexAndErrorMessage, PartitionProduceResponse, TopicProduceResponse,
};
use kafka_wire::messages::{ProduceRequest, ProduceResponse, TopicName};
use types::Timestamp;

use super::call::{Call, text};
use super::{Api, topics};
use crate::net::memory::Memory;
use crate::net::{Answer, Taken};
use crate::produce::{Append, Outcome, Reading, Refusal, Unread, detach, validate};

/// First version that names topics by id.
const TOPIC_IDS: i16 = 13;
/// An object takes its time: who gives less does not get an answer sooner.
const SHORTEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Nobody waits longer.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(120);
/// What a partition of a request takes beside its records until it is answered, about, in bytes.
const PARTITION: usize = 512;

/// A partition of the request: refused, or waiting for its outcome.
enum Entry {
    Refused(Refusal),
    Appended,
}

impl Api {
    /// Puts the batches into the buffer, at once unless it takes long to check them; the answer waits for what becomes of
    /// them.
    pub(super) fn produce(&self, call: Call, request: ProduceRequest, mut memory: Option<Memory>) -> Taken {
        let mut reading = Reading::default();
        let mut judged = self.judge(&call, &request, &mut reading);
        if let Some(memory) = &mut memory {
            memory.add(judged.len() * PARTITION);
        }
        if reading.is_done() {
            return Taken::Now(self.append(call, request, judged, memory));
        }
        let api = self.clone();
        let taking = async move {
            for (place, refusal) in api.readers.finish(reading).await {
                if let Some(judged) = judged.get_mut(place) {
                    *judged = Err(refusal);
                }
            }
            Taken::Now(api.append(call, request, judged, memory))
        };
        Taken::Later(taking.boxed())
    }

    /// What is known of every partition, in order; `reading` has the batches that are not read yet.
    fn judge(
        &self,
        call: &Call,
        request: &ProduceRequest,
        reading: &mut Reading,
    ) -> Vec<Result<Append, Refusal>> {
        let image = self.metadata.image();
        let mut judged = Vec::new();
        for data in &request.topic_data {
            let topic = Target::find(self, &image, call.version(), data);
            for partition in &data.partition_data {
                let append = match request.acks {
                    -1..=1 => topic.judge(partition),
                    _ => Err(refuse(ResponseError::InvalidRequiredAcks)),
                };
                let read = append.and_then(|(append, unread)| {
                    reading.read(judged.len(), unread)?;
                    Ok(append)
                });
                judged.push(read);
            }
        }
        judged
    }

    /// Puts what is not refused into the buffer.
    fn append(
        &self,
        mut call: Call,
        request: ProduceRequest,
        judged: Vec<Result<Append, Refusal>>,
        mut memory: Option<Memory>,
    ) -> BoxFuture<'static, Answer> {
        let by_id = call.version() >= TOPIC_IDS;
        let partitions = request
            .topic_data
            .iter()
            .flat_map(|data| data.partition_data.iter().map(move |partition| (data, partition)));
        let mut appends = Vec::new();
        let mut entries = Vec::new();
        for ((data, partition), judged) in partitions.zip(judged) {
            let named = || match by_id {
                true => data.topic_id.to_string(),
                false => data.name.to_string(),
            };
            entries.push(match judged {
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
        let copied = detach(&mut appends, call.frame.len());
        if let Some(memory) = &mut memory {
            memory.add(copied);
        }
        let timeout = Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0));
        let timeout = timeout.clamp(SHORTEST_TIMEOUT, LONGEST_TIMEOUT);
        let acks = request.acks;
        let outcomes = self.producer.append(appends, timeout, memory);
        let response = skeleton(request, by_id);
        // The batches hold what they need of it.
        call.let_go();
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
}

/// What the batches of a topic are judged by.
struct Target<'a> {
    topic: Result<(&'a Topic, TopicConfig), ResponseError>,
    version: i16,
    now: Timestamp,
}

impl Target<'_> {
    fn find<'a>(
        api: &Api,
        image: &'a Arc<MetadataImage>,
        version: i16,
        data: &TopicProduceData,
    ) -> Target<'a> {
        let topic = topics::find(image, version >= TOPIC_IDS, &data.name, data.topic_id);
        Target {
            topic: topic.map(|topic| (topic, api.configs.of(image, topic))),
            version,
            now: api.now(),
        }
    }

    fn judge(&self, partition: &PartitionProduceData) -> Result<(Append, Unread), Refusal> {
        let (topic, config) = self.topic.map_err(refuse)?;
        let (id, shard) = topics::partition(topic, partition.index).map_err(refuse)?;
        let batch = partition.records.clone().unwrap_or_default();
        let header = validate(&batch, self.version, &config)?;
        let append = Append {
            partition: id,
            shard,
            batch: batch.clone(),
            header,
            log_append_time: config.log_append_time,
        };
        let unread = Unread {
            batch,
            header,
            config,
            now: self.now,
        };
        Ok((append, unread))
    }
}

fn refuse(error: ResponseError) -> Refusal {
    Refusal::new(error, error.to_string())
}

/// The response without results, so that the request and its bytes need not be kept: the name of a topic is a part of them.
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
            response.with_name(TopicName(text(data.name.as_str())))
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use kafka_wire::{RequestKind, client};

    use super::*;
    use crate::api::router::parse;
    use crate::net::Peer;
    use crate::produce::testing::watched;

    #[test]
    fn an_answer_that_waits_does_not_keep_the_request() {
        let partition = PartitionProduceData::default().with_records(Some(Bytes::from(vec![1; 1000])));
        let topic = TopicProduceData::default()
            .with_name(TopicName(text("a-topic")))
            .with_partition_data(vec![partition]);
        let request = ProduceRequest::default()
            .with_acks(1)
            .with_topic_data(vec![topic]);
        let frame = client::encode(&request, 9, 5, "a-client").unwrap();
        let (frame, gone) = watched(frame.slice(4..));
        let peer = Peer {
            host: "/test".into(),
            zone: None,
        };
        let Ok((mut call, RequestKind::Produce(request))) = parse(&peer, frame) else {
            panic!("it is a request")
        };
        let response = skeleton(request, false);
        assert!(!gone());
        call.let_go();
        assert!(gone());
        assert_eq!(response.responses[0].name.as_str(), "a-topic");
    }
}
