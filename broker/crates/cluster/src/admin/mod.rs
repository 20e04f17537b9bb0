//! Admin requests of clients, one file per Kafka API.

mod alter_configs;
mod create_partitions;
mod create_topics;
mod delete_topics;

use std::collections::BTreeSet;
use std::time::Duration;

use env::Instant;
use kafka_wire::{ResponseError, StrBytes};

use crate::ApiError;
use crate::service::ControllerService;

/// Longest time an admin request is held, whatever its client asks for.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

impl ControllerService {
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
