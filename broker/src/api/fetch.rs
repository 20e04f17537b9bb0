use std::time::Duration;

use kafka_wire::ResponseError;
use kafka_wire::fetch::{Fetch, FetchPartition, FetchTopic, encode};
use kafka_wire::messages::FetchRequest;

use super::call::Call;
use super::{Api, topics};
use crate::fetch::{FetchLimits, Fetched, Wanted};
use crate::net::Answer;

/// First version that names topics by id.
const TOPIC_IDS: i16 = 13;
/// Epochs of a full request: a new session, or none.
const FULL: [i32; 2] = [0, -1];
const READ_COMMITTED: i8 = 1;

impl Api {
    /// Every request is answered in full and without a session (session id 0), which KIP-227 allows: the client goes
    /// on sending full requests.
    pub(super) async fn fetch(&self, call: Call, request: FetchRequest) -> Answer {
        if !FULL.contains(&request.session_epoch) {
            // An increment to a session that a broker has forgotten, or one on another broker.
            let error_code = ResponseError::FetchSessionIdNotFound.code();
            let response = Fetch {
                error_code,
                ..Fetch::default()
            };
            return call.send(encode(call.version(), call.header.correlation_id, &response));
        }
        let (response, wanted, places) = self.sort_out(&call, &request);
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
        let response = fill(response, fetched, &places);
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

    /// The response without data, what is wanted, and where in the response it belongs.
    fn sort_out(&self, call: &Call, request: &FetchRequest) -> (Fetch, Vec<Wanted>, Vec<(usize, usize)>) {
        let image = self.metadata.image();
        let committed = request.isolation_level == READ_COMMITTED;
        let (mut wanted, mut places) = (Vec::new(), Vec::new());
        let mut response = Fetch::default();
        for (topic_index, asked) in request.topics.iter().enumerate() {
            let topic = topics::find(&image, call.version() >= TOPIC_IDS, &asked.topic, asked.topic_id);
            let mut partitions = Vec::with_capacity(asked.partitions.len());
            for (index, partition) in asked.partitions.iter().enumerate() {
                let found = topic.and_then(|topic| topics::partition(topic, partition.partition));
                let error = match found {
                    Err(error) => Some(error),
                    // There is no epoch but 0.
                    Ok(_) if partition.current_leader_epoch > 0 => Some(ResponseError::UnknownLeaderEpoch),
                    Ok((id, shard)) => {
                        let max_bytes = u64::try_from(partition.partition_max_bytes).unwrap_or(0);
                        wanted.push(Wanted {
                            partition: id,
                            shard,
                            offset: partition.fetch_offset,
                            max_bytes,
                        });
                        places.push((topic_index, index));
                        None
                    }
                };
                partitions.push(FetchPartition {
                    index: partition.partition,
                    error_code: kafka_wire::code(error),
                    high_watermark: -1,
                    last_stable_offset: -1,
                    log_start_offset: -1,
                    aborted_transactions: committed.then(Vec::new),
                    preferred_read_replica: -1,
                    batches: Vec::new(),
                });
            }
            response.topics.push(FetchTopic {
                name: asked.topic.0.clone(),
                id: asked.topic_id,
                partitions,
            });
        }
        (response, wanted, places)
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
        place.high_watermark = fetched.bounds.high_watermark;
        // There are no transactions: everything is stable at once.
        place.last_stable_offset = fetched.bounds.high_watermark;
        place.log_start_offset = fetched.bounds.log_start_offset;
        place.batches = fetched.batches;
    }
    response
}
