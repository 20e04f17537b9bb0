//! How fast requests of one kind may follow each other while the store throttles them.

use std::time::Duration;

use env::{Env, Instant};
use parking_lot::Mutex;

/// Between two requests after the first throttled one.
const FIRST: Duration = Duration::from_millis(20);
/// Between two requests at most: some must go on, or nobody would see the store recover.
const LONGEST: Duration = Duration::from_secs(1);

/// Lets requests pass freely until the store throttles one, and one by one from then on: the time between two doubles
/// with each throttled request and shrinks by a quarter with each that succeeds.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    rate: Mutex<Rate>,
    /// Who is next to go.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Rate {
    /// Between two requests; zero: they pass freely.
    interval: Duration,
    last: Option<Instant>,
    slowed: Option<Instant>,
}

impl Rate {
    /// An answer to what was sent before the last change says nothing about the change.
    fn is_news(&self, began: Instant) -> bool {
        self.slowed.is_none_or(|slowed| began >= slowed)
    }

    fn throttled(&mut self, began: Instant, now: Instant) {
        if self.is_news(began) {
            self.interval = (self.interval * 2).clamp(FIRST, LONGEST);
            self.slowed = Some(now);
        }
    }

    fn succeeded(&mut self, began: Instant) {
        if self.is_news(began) {
            let interval = self.interval / 4 * 3;
            self.interval = if interval < FIRST {
                Duration::ZERO
            } else {
                interval
            };
        }
    }
}

impl Pace {
    /// Waits until the next request may go.
    pub(crate) async fn wait(&self, env: &Env) {
        if self.rate.lock().interval.is_zero() {
            return;
        }
        let _turn = self.turn.lock().await;
        let (interval, last) = {
            let rate = self.rate.lock();
            (rate.interval, rate.last)
        };
        if let Some(last) = last.filter(|_| !interval.is_zero()) {
            env.sleep_until(last + env.jittered(interval)).await;
        }
        self.rate.lock().last = Some(env.instant());
    }

    /// The store throttled a request that was sent at `began`.
    pub(crate) fn throttled(&self, began: Instant, now: Instant) {
        self.rate.lock().throttled(began, now);
    }

    /// A request that was sent at `began` succeeded.
    pub(crate) fn succeeded(&self, began: Instant) {
        self.rate.lock().succeeded(began);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_slows_down_once_for_all_that_were_under_way_and_recovers_step_by_step() {
        let start = Env::production().instant();
        let at = |ms| start + Duration::from_millis(ms);
        let mut rate = Rate::default();
        for _ in 0..32 {
            rate.throttled(at(0), at(10));
        }
        assert_eq!(rate.interval, FIRST);
        for step in 1..20 {
            rate.throttled(at(step * 100), at(step * 100 + 10));
        }
        assert_eq!(rate.interval, LONGEST);
        rate.succeeded(at(0));
        assert_eq!(rate.interval, LONGEST, "it was sent before");
        let mut successes = 0;
        while !rate.interval.is_zero() {
            rate.succeeded(at(10_000));
            successes += 1;
        }
        assert_eq!(successes, 14);
    }
}
