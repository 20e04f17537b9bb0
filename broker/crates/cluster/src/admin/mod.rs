//! Admin requests of clients, one file per Kafka API.

mod alter_configs;
mod create_partitions;
mod create_topics;
mod delete_topics;
mod update_features;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use coordinator::replica::ReplicaError;
use env::Instant;
use kafka_wire::{ResponseError, StrBytes};

use crate::ApiError;
use crate::service::ControllerService;
use crate::state::{Command, Output, TopicRecord};

/// Longest time an admin request is held, whatever its client asks for.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Topics in one command: bounds what a request makes of a slot of the log, in which a topic takes up to about
/// 112 KiB.
const AT_ONCE: usize = 64;

/// What became of each topic of a request.
type Judged = Vec<Result<Arc<TopicRecord>, ApiError>>;

impl ControllerService {
    /// Has `items` judged, logged and applied, some at a time. Gives one result for each, in order.
    async fn submit_each<T: Clone>(
        &self,
        items: &[T],
        command: impl Fn(Vec<T>) -> Command,
    ) -> Result<Judged, ReplicaError> {
        let mut results = Vec::with_capacity(items.len());
        for some in items.chunks(AT_ONCE) {
            results.extend(judged(self.submit(command(some.to_vec())).await, some.len())?);
        }
        Ok(results)
    }

    fn deadline(&self, timeout_ms: i32) -> Instant {
        let wait = Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0));
        self.env().instant() + wait.min(LONGEST_WAIT)
    }
}

/// What the log made of a command for `count` topics. One that is too large for it stays so: its topics are refused, for
/// the other errors say that another node may do better.
fn judged(answer: Result<Output, ReplicaError>, count: usize) -> Result<Judged, ReplicaError> {
    match answer {
        Ok(Output::Topics(judged)) => Ok(judged),
        Err(error @ ReplicaError::TooLarge { .. }) => {
            Ok(vec![Err(ApiError::invalid_request(error.to_string())); count])
        }
        Ok(_) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Code and text of one result.
fn outcome<T>(result: &Result<T, ApiError>) -> (i16, Option<StrBytes>) {
    match result {
        Ok(_) => (0, None),
        Err(error) => (
            error.error.code(),
            Some(StrBytes::from_string(error.message.clone())),
        ),
    }
}

/// What every part of a request that names something twice gets.
fn duplicates<T: Ord + Clone>(items: impl IntoIterator<Item = T>) -> BTreeSet<T> {
    let mut seen = BTreeSet::new();
    items
        .into_iter()
        .filter(|item| !seen.insert(item.clone()))
        .collect()
}

/// The work is under way but not done.
fn timed_out() -> ApiError {
    ApiError::new(
        ResponseError::RequestTimedOut,
        "The request timed out; the work goes on.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_log_can_take_is_refused_for_good_and_the_rest_goes_elsewhere() {
        let too_large = ReplicaError::TooLarge { size: 9, limit: 8 };
        let refused = judged(Err(too_large), 2).unwrap();
        let codes: Vec<_> = refused.iter().map(|result| outcome(result).0).collect();
        assert_eq!(codes, [ResponseError::InvalidRequest.code(); 2]);
        let text = outcome(&refused[0]).1.unwrap();
        assert!(text.contains("9 bytes") && text.contains('8'), "{text:?}");
        for error in [ReplicaError::NotLeader, ReplicaError::Loading] {
            assert_eq!(judged(Err(error.clone()), 2).unwrap_err(), error);
        }
    }
}
