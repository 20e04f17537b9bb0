//! Admin requests of clients, one file per Kafka API.

mod alter_configs;
mod create_partitions;
mod create_topics;
mod delete_topics;

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
            if let Output::Topics(judged) = self.submit(command(some.to_vec())).await? {
                results.extend(judged);
            }
        }
        Ok(results)
    }

    fn deadline(&self, timeout_ms: i32) -> Instant {
        let wait = Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0));
        self.env().instant() + wait.min(LONGEST_WAIT)
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
