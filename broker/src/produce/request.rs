//! A Produce request that waits for its batches.

use env::{Env, Instant};
use kafka_wire::ResponseError;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::net::memory::Memory;

/// What became of one batch, as a Produce response says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// 0: stored.
    pub error_code: i16,
    /// Offset of its first record; -1 with an error.
    pub base_offset: i64,
    /// Milliseconds; -1 unless the topic uses LogAppendTime.
    pub log_append_time: i64,
    /// First offset of the partition; -1 if unknown.
    pub log_start_offset: i64,
}

impl Outcome {
    /// Not stored, or not known to be.
    pub fn failed(error: ResponseError) -> Outcome {
        Outcome {
            error_code: error.code(),
            base_offset: -1,
            log_append_time: -1,
            log_start_offset: -1,
        }
    }
}

/// Batches of one request on their way. They may end in different segments and at different times.
#[derive(Debug)]
pub(super) struct Request {
    /// When the client gives up.
    pub(super) deadline: Instant,
    state: Mutex<State>,
    done: Notify,
}

#[derive(Debug)]
struct State {
    outcomes: Vec<Option<Outcome>>,
    missing: usize,
    /// What it holds of the memory for requests.
    memory: Option<Memory>,
}

impl Request {
    pub(super) fn new(batches: usize, deadline: Instant, memory: Option<Memory>) -> Request {
        let memory = memory.filter(|_| batches > 0);
        let state = State {
            outcomes: vec![None; batches],
            missing: batches,
            memory,
        };
        Request {
            deadline,
            state: Mutex::new(state),
            done: Notify::new(),
        }
    }

    /// The first outcome of a batch holds. After the last one its memory counts as free.
    pub(super) fn resolve(&self, index: usize, outcome: Outcome) {
        let mut state = self.state.lock();
        let Some(slot @ None) = state.outcomes.get_mut(index) else {
            return;
        };
        *slot = Some(outcome);
        state.missing -= 1;
        if state.missing == 0 {
            state.memory = None;
            self.done.notify_one();
        }
    }

    /// A batch of `size` bytes is in the object store: they are the cache's from now on.
    pub(super) fn written(&self, size: u32) {
        if let Some(memory) = &mut self.state.lock().memory {
            memory.release(size as usize);
        }
    }

    /// All outcomes; what has none when the deadline comes is REQUEST_TIMED_OUT.
    pub(super) async fn outcomes(&self, env: &Env) -> Vec<Outcome> {
        let done = async {
            while self.state.lock().missing > 0 {
                self.done.notified().await;
            }
        };
        // Whether all came in time shows in the outcomes.
        let _ = env.timeout_at(self.deadline, done).await;
        let late = Outcome::failed(ResponseError::RequestTimedOut);
        self.state
            .lock()
            .outcomes
            .iter()
            .map(|outcome| outcome.unwrap_or(late))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::net::memory::MemoryBudget;

    const STORED: Outcome = Outcome {
        error_code: 0,
        base_offset: 5,
        log_append_time: -1,
        log_start_offset: 0,
    };

    #[tokio::test(start_paused = true)]
    async fn late_batches_are_timed_out_and_keep_their_memory() {
        let env = Env::simulated(1);
        let budget = MemoryBudget::new(100);
        let memory = budget.take(60).await;
        let request = Request::new(2, env.instant() + Duration::from_secs(5), Some(memory));
        request.resolve(1, STORED);
        let outcomes = request.outcomes(&env).await;
        assert_eq!(
            outcomes,
            [Outcome::failed(ResponseError::RequestTimedOut), STORED]
        );
        assert_eq!(budget.used(), 60, "its bytes are still being written");
        request.written(40);
        assert_eq!(budget.used(), 20, "it is not answered yet");
        request.resolve(0, STORED);
        assert_eq!(budget.used(), 0);
        assert_eq!(request.outcomes(&env).await, [STORED, STORED]);
    }
}
