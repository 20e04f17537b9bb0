//! A client's way to the cluster: one broker at a time, another one after a failure.

use std::time::Duration;

use anyhow::bail;
use e2e::wire::Wire;
use kafka_protocol::error::ResponseError;
use kafka_protocol::protocol::Request;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// What a client waits for a connection or an answer: longer than it lets the broker take.
const PATIENCE: Duration = Duration::from_secs(6);
const PAUSE: Duration = Duration::from_millis(100);

/// What every client of Kafka takes for "ask again", whatever the API.
const RETRIED: [ResponseError; 8] = [
    ResponseError::UnknownTopicOrPartition,
    ResponseError::NotLeaderOrFollower,
    ResponseError::RequestTimedOut,
    ResponseError::CoordinatorLoadInProgress,
    ResponseError::CoordinatorNotAvailable,
    ResponseError::NotCoordinator,
    ResponseError::NotController,
    ResponseError::KafkaStorageError,
];

/// False: to be asked again. Fails with a code at which a client would give up.
pub fn is_done(what: &str, code: i16) -> anyhow::Result<bool> {
    if code != 0 && RETRIED.iter().all(|error| error.code() != code) {
        bail!("{what} is answered with error {code}");
    }
    Ok(code == 0)
}

pub struct Link {
    brokers: Vec<String>,
    wire: Option<Wire>,
    /// How many connections there were.
    pub connections: u64,
    pub random: StdRng,
}

impl Link {
    pub fn new(brokers: &[String], seed: u64) -> Link {
        Link {
            brokers: brokers.to_vec(),
            wire: None,
            connections: 0,
            random: StdRng::seed_from_u64(seed),
        }
    }

    /// Asks the broker it is connected to, or any if there is none.
    pub fn call<R: Request>(&mut self, request: &R, version: i16) -> anyhow::Result<R::Response> {
        let answer = match &mut self.wire {
            Some(wire) => wire.call(request, version),
            None => {
                let broker = &self.brokers[self.random.random_range(0..self.brokers.len())];
                self.connections += 1;
                let mut wire = Wire::connect_within(broker, PATIENCE)?;
                let answer = wire.call(request, version);
                self.wire = Some(wire);
                answer
            }
        };
        if answer.is_err() {
            self.leave();
        }
        answer
    }

    /// The next request goes to any broker.
    pub fn leave(&mut self) {
        self.wire = None;
        std::thread::sleep(PAUSE);
    }
}
