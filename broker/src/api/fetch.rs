use std::time::Duration;

use kafka_wire::fetch::{Fetch, FetchPartition, FetchTopic, encode};
use kafka_wire::messages::{FetchRequest, TopicName};
use kafka_wire::{ResponseError, StrBytes};
use uuid::Uuid;

use super::call::Call;
use super::{Api, topics};
use crate::fetch::{Asked, FetchLimits, Fetched, TopicKey, Wanted};
use crate::net::Answer;

/// First version that names topics by id.
const TOPIC_IDS: i16 = 13;
const READ_COMMITTED: i8 = 1;

/// The answer without data, what is wanted, and where in the answer it belongs.
struct Sorted {
    response: Fetch,
    wanted: Vec<Wanted>,
    places: Vec<(usize, usize)>,
}

impl Api {
    pub(super) async fn fetch(&self, call: Call, request: FetchRequest) -> Answer {
        let by_id = call.version() >= TOPIC_IDS;
        let round = match self.sessions.begin(&request, by_id, self.env.instant()) {
            Ok(round) => round,
            Err(error) => {
                let response = Fetch {
                    error_code: error.code(),
                    ..Fetch::default()
                };
                return call.send(encode(call.version(), call.header.correlation_id, &response));
            }
        };
        let Sorted {
            response,
            wanted,
            places,
        } = self.sort_out(&round.asked, request.isolation_level == READ_COMMITTED);
        let broken = response
            .topics
            .iter()
            .flat_map(|topic| &topic.partitions)
            .any(|p| p.error_code != 0);
        let milliseconds = |ms: i32| Duration::from_millis(u64::try_from(ms).unwrap_or(0));
        let bytes = |bytes: i32| u64::try_from(bytes).unwrap_or(0);
        let limits = FetchLimits {
            // An error is told at once.
            max_wait: if broken {
                Duration::ZERO
            } else {
                milliseconds(request.max_wait_ms)
            },
            min_bytes: bytes(request.min_bytes),
            max_bytes: bytes(request.max_bytes),
        };
        let fetched = self.fetcher.fetch(&wanted, limits).await;
        let mut response = fill(response, fetched, &places);
        self.sessions
            .finish(round, &mut response, self.env.instant(), self.env.random_u64());
        let sent = response
            .topics
            .iter()
            .flat_map(|topic| &topic.partitions)
            .flat_map(|p| &p.batches);
        self.metrics
            .fetch_bytes
            .inc_by(sent.map(|batch| batch.batch.len() as u64).sum());
        call.send(encode(call.version(), call.header.correlation_id, &response))
    }

    fn sort_out(&self, asked: &[Asked], committed: bool) -> Sorted {
        let image = self.metadata.image();
        let mut sorted = Sorted {
            response: Fetch::default(),
            wanted: Vec::with_capacity(asked.len()),
            places: Vec::with_capacity(asked.len()),
        };
        let topics = &mut sorted.response.topics;
        for of_topic in asked.chunk_by(|one, other| one.topic == other.topic) {
            let Some(Asked { topic: key, .. }) = of_topic.first() else {
                continue;
            };
            let (name, id) = match key {
                TopicKey::Name(name) => (name.clone(), Uuid::nil()),
                TopicKey::Id(id) => (StrBytes::default(), *id),
            };
            let by_id = matches!(key, TopicKey::Id(_));
            let topic = topics::find(&image, by_id, &TopicName(name.clone()), id);
            let mut partitions = Vec::with_capacity(of_topic.len());
            for asked in of_topic {
                let found = topic.and_then(|topic| topics::partition(topic, asked.partition));
                let error = match found {
                    Err(error) => Some(error),
                    // There is no epoch but 0.
                    Ok(_) if asked.wish.leader_epoch > 0 => Some(ResponseError::UnknownLeaderEpoch),
                    Ok((partition, shard)) => {
                        sorted.wanted.push(Wanted {
                            partition,
                            shard,
                            offset: asked.wish.offset,
                            max_bytes: u64::try_from(asked.wish.max_bytes).unwrap_or(0),
                        });
                        sorted.places.push((topics.len(), partitions.len()));
                        None
                    }
                };
                partitions.push(FetchPartition {
                    index: asked.partition,
                    error_code: kafka_wire::code(error),
                    high_watermark: -1,
                    last_stable_offset: -1,
                    log_start_offset: -1,
                    // As in Kafka: an empty list for what is not there, null for other errors.
                    aborted_transactions: match error {
                        Some(ResponseError::UnknownLeaderEpoch) => None,
                        error => (committed || error.is_some()).then(Vec::new),
                    },
                    preferred_read_replica: -1,
                    batches: Vec::new(),
                });
            }
            topics.push(FetchTopic { name, id, partitions });
        }
        sorted
    }
}

fn fill(mut response: Fetch, fetched: Vec<Fetched>, places: &[(usize, usize)]) -> Fetch {
    for ((topic, partition), fetched) in places.iter().zip(fetched) {
        let place = response
            .topics
            .get_mut(*topic)
            .and_then(|topic| topic.partitions.get_mut(*partition));
        let Some(place) = place else { continue };
        place.error_code = kafka_wire::code(fetched.error);
        if fetched.error.is_some() {
            // Kafka says no more of it.
            place.aborted_transactions = None;
            continue;
        }
        place.high_watermark = fetched.bounds.high_watermark;
        // There are no transactions: everything is stable at once.
        place.last_stable_offset = fetched.bounds.high_watermark;
        place.log_start_offset = fetched.bounds.log_start_offset;
        place.batches = fetched.batches;
    }
    response
}
