//! When to write an object: at the first of enough bytes, enough waiting, or a PUT to spare.

use std::collections::VecDeque;
use std::time::Duration;

use env::Instant;

use crate::Batch;

/// How far a segment may pass `flush_bytes` when uploads cannot keep up: larger objects move more bytes per
/// request, so a slow store slows producers down later.
const GROWTH: usize = 4;

/// Bound of a segment whatever the limits say, in bytes: positions in it are 32 bits wide.
const MAX_SEGMENT: usize = 1 << 30;

/// When a buffer is to be flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// At so many bytes.
    pub flush_bytes: usize,
    /// At so many batches; a segment never has more.
    pub flush_batches: usize,
    /// When the first batch has waited so long.
    pub flush_interval: Duration,
    /// Earlier while fewer than so many segments a second were taken. 0: never early.
    pub puts_per_second: u32,
}

/// Whether a buffer is to be flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// At once.
    Now,
    /// At this time, unless more comes in.
    At(Instant),
    /// There is nothing in it.
    Never,
}

/// Batches of all producers of a broker, in order of arrival.
#[derive(Debug)]
pub struct Buffer<T> {
    limits: Limits,
    batches: VecDeque<Batch<T>>,
    bytes: usize,
    /// When the oldest batch came in.
    since: Option<Instant>,
    budget: Budget,
}

impl<T> Buffer<T> {
    /// An empty buffer.
    pub fn new(limits: Limits, now: Instant) -> Buffer<T> {
        Buffer {
            limits,
            batches: VecDeque::new(),
            bytes: 0,
            since: None,
            budget: Budget::new(limits.puts_per_second, now),
        }
    }

    /// Bytes in the buffer.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether there is as much in it as a segment is meant to have.
    pub fn is_full(&self) -> bool {
        self.bytes >= self.limits.flush_bytes || self.batches.len() >= self.limits.flush_batches
    }

    /// Adds a batch.
    pub fn push(&mut self, batch: Batch<T>, now: Instant) {
        self.since.get_or_insert(now);
        self.bytes += batch.bytes.len();
        self.batches.push_back(batch);
    }

    /// Whether it is time to [`Buffer::take`].
    pub fn due(&self, now: Instant) -> Due {
        let Some(since) = self.since else {
            return Due::Never;
        };
        if self.is_full() {
            return Due::Now;
        }
        let waited = since + self.limits.flush_interval;
        let at = self.budget.available().map_or(waited, |early| early.min(waited));
        if at <= now { Due::Now } else { Due::At(at) }
    }

    /// The oldest batches, enough for a segment; what remains counts as come in now.
    pub fn take(&mut self, now: Instant) -> Vec<Batch<T>> {
        let limit = self.limits.flush_bytes.saturating_mul(GROWTH).min(MAX_SEGMENT);
        let mut size = 0;
        let mut count = 0;
        for batch in &self.batches {
            let full = size + batch.bytes.len() > limit || count >= self.limits.flush_batches;
            if count > 0 && full {
                break;
            }
            size += batch.bytes.len();
            count += 1;
        }
        let taken: Vec<Batch<T>> = self.batches.drain(..count).collect();
        self.bytes -= size;
        self.since = (!self.batches.is_empty()).then_some(now);
        if !taken.is_empty() {
            self.budget.spend(now);
        }
        taken
    }
}

/// A token bucket that holds a second's worth of PUTs, kept as the time at which it will be full again.
#[derive(Debug)]
struct Budget {
    /// Time in which one token comes back; `None`: there are none.
    interval: Option<Duration>,
    /// Tokens it holds.
    burst: u32,
    full_at: Instant,
}

impl Budget {
    fn new(per_second: u32, now: Instant) -> Budget {
        let interval = Duration::from_secs(1).checked_div(per_second);
        Budget {
            interval,
            burst: per_second,
            full_at: now,
        }
    }

    /// When there is a token.
    fn available(&self) -> Option<Instant> {
        let missing = self.interval? * (self.burst - 1);
        Some(self.full_at.checked_sub(missing).unwrap_or(self.full_at))
    }

    /// Takes a token, or what there is: flushes that do not ask must not leave a debt behind.
    fn spend(&mut self, now: Instant) {
        if let Some(interval) = self.interval {
            self.full_at = (self.full_at.max(now) + interval).min(now + interval * self.burst);
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use types::{TopicId, TopicPartition};

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn batch(len: usize) -> Batch<()> {
        let partition = TopicPartition {
            topic: TopicId::default(),
            partition: 0,
        };
        Batch {
            partition,
            bytes: Bytes::from(vec![0; len]),
            tag: (),
        }
    }

    fn buffer(puts_per_second: u32) -> (Buffer<()>, Instant) {
        let now = env::Env::production().instant();
        let limits = Limits {
            flush_bytes: 1000,
            flush_batches: 500,
            flush_interval: 250 * MS,
            puts_per_second,
        };
        (Buffer::new(limits, now), now)
    }

    #[test]
    fn without_a_budget_it_waits_for_time_or_size() {
        let (mut buffer, start) = buffer(0);
        assert_eq!(buffer.due(start), Due::Never);
        buffer.push(batch(400), start);
        buffer.push(batch(400), start + 100 * MS);
        assert_eq!(buffer.due(start + 100 * MS), Due::At(start + 250 * MS));
        assert_eq!(buffer.due(start + 250 * MS), Due::Now);
        buffer.push(batch(200), start + 120 * MS);
        assert_eq!(buffer.due(start + 120 * MS), Due::Now);
        assert_eq!(buffer.take(start + 120 * MS).len(), 3);
        assert_eq!((buffer.due(start + 500 * MS), buffer.bytes()), (Due::Never, 0));
    }

    #[test]
    fn an_idle_broker_flushes_at_once_and_a_busy_one_keeps_its_bill() {
        let (mut buffer, start) = buffer(4);
        let mut flushes = 0;
        // A small batch every 5 ms for 10 seconds.
        for step in 0..2000 {
            let now = start + step * 5 * MS;
            buffer.push(batch(1), now);
            if buffer.due(now) == Due::Now {
                if step == 0 {
                    assert_eq!(flushes, 0, "the first is flushed at once");
                }
                buffer.take(now);
                flushes += 1;
            }
        }
        assert!((40..=45).contains(&flushes), "{flushes} flushes in 10 s");
        // A pause fills the bucket again.
        let later = start + Duration::from_secs(20);
        buffer.push(batch(1), later);
        assert_eq!(buffer.due(later), Due::Now);
    }

    #[test]
    fn many_flushes_by_size_leave_no_debt() {
        let (mut buffer, start) = buffer(4);
        for _ in 0..100 {
            buffer.push(batch(1000), start);
            assert_eq!(buffer.due(start), Due::Now);
            buffer.take(start);
        }
        let after = start + 250 * MS;
        buffer.push(batch(1), after);
        assert_eq!(buffer.due(after), Due::Now);
    }

    /// From the flush to the answer: PUT of a few MiB and the commit, as over S3.
    const ROUND_TRIP: Duration = Duration::from_millis(140);

    /// Latency of records that arrive one a millisecond for a minute, at the median and at the worst, in ms, and
    /// flushes a second. A client sends what has gathered every `linger` while fewer than `in_flight` requests are
    /// unanswered.
    fn steady(puts_per_second: u32, in_flight: usize, linger: Duration) -> (u128, u128, f64) {
        let (mut buffer, start) = buffer(puts_per_second);
        let (mut gathered, mut sent) = (Vec::new(), start);
        // Requests in the buffer, and those on their way with the time of their answer.
        let (mut waiting, mut flying) = (Vec::new(), VecDeque::new());
        let (mut latencies, mut flushes) = (Vec::new(), 0);
        for ms in 0..60_000 {
            let now = start + ms * MS;
            gathered.push(now);
            while flying.front().is_some_and(|(answer, _)| *answer <= now) {
                let (_, records): (Instant, Vec<Instant>) = flying.pop_front().unwrap();
                latencies.extend(records.into_iter().map(|at| (now - at).as_millis()));
            }
            if waiting.len() + flying.len() < in_flight && now >= sent + linger {
                sent = now;
                buffer.push(batch(1), now);
                waiting.push(std::mem::take(&mut gathered));
            }
            if buffer.due(now) == Due::Now {
                buffer.take(now);
                flushes += 1;
                flying.extend(waiting.drain(..).map(|records| (now + ROUND_TRIP, records)));
            }
        }
        // Without the first second, which has tokens to spare.
        let mut latencies = latencies.split_off(1000);
        latencies.sort_unstable();
        (
            latencies[latencies.len() / 2],
            latencies[latencies.len() - 1],
            f64::from(flushes) / 60.0,
        )
    }

    #[test]
    fn an_open_loop_waits_for_half_a_window() {
        let (median, worst, flushes) = steady(4, usize::MAX, 5 * MS);
        assert!((255..=275).contains(&median) && worst <= 400, "{median} {worst}");
        assert!(flushes <= 4.1, "{flushes}");
        // A client that gathers for a fifth of the window has five requests to fill it with.
        let (median, worst, _) = steady(4, 5, 50 * MS);
        assert!(median <= 310 && worst <= 500, "{median} {worst}");
    }

    /// A client whose requests in flight are used up right after an answer sends the next ones only after the next
    /// answer: once a window whatever the broker does, so a record waits for what is left of one window and for all of
    /// the next. Only more PUTs a second shorten the window: 1.5 of them is the median.
    #[test]
    fn a_closed_loop_waits_for_a_window_and_a_half() {
        // With 7 the window is the round trip. With 8 there is a flush for the first of the five alone, and the others wait for the next.
        for (puts, expected) in [(4, 375), (5, 300), (7, 215), (8, 300)] {
            let (median, _, flushes) = steady(puts, 5, 5 * MS);
            assert!(
                median.abs_diff(expected) <= 25,
                "{median} with {puts} PUTs a second"
            );
            assert!(flushes <= f64::from(puts) + 0.2, "{flushes}");
        }
        // The round trip itself is the window then.
        let (median, _, flushes) = steady(1000, 5, 5 * MS);
        assert!(
            (180..=240).contains(&median) && flushes > 7.0,
            "{median} {flushes}"
        );
    }

    #[test]
    fn a_few_requests_a_second_are_flushed_at_once() {
        for (in_flight, pause) in [(1, 400 * MS), (5, 300 * MS), (usize::MAX, 260 * MS)] {
            let (mut buffer, start) = buffer(4);
            for step in 0..100 {
                let now = start + step * pause;
                buffer.push(batch(1), now);
                assert_eq!(
                    buffer.due(now),
                    Due::Now,
                    "{in_flight} in flight, every {pause:?}"
                );
                buffer.take(now);
            }
        }
    }

    #[test]
    fn a_segment_is_bounded_when_uploads_fall_behind() {
        let (mut buffer, start) = buffer(4);
        for _ in 0..10 {
            buffer.push(batch(900), start);
        }
        assert_eq!(buffer.take(start).len(), 4);
        assert_eq!((buffer.bytes(), buffer.due(start)), (5400, Due::Now));
        buffer.push(batch(50_000), start);
        assert_eq!(buffer.take(start).len(), 4);
        assert_eq!(buffer.take(start).len(), 2);
        assert_eq!(buffer.take(start).len(), 1, "a batch above the bound goes alone");
    }

    #[test]
    fn a_segment_has_no_more_batches_than_a_commit_takes() {
        let (mut buffer, start) = buffer(0);
        for _ in 0..1300 {
            buffer.push(batch(0), start);
        }
        assert_eq!(buffer.due(start), Due::Now);
        assert_eq!(buffer.take(start).len(), 500);
        assert_eq!(buffer.due(start), Due::Now);
        assert_eq!(buffer.take(start).len(), 500);
        assert_eq!(buffer.due(start), Due::At(start + 250 * MS));
        assert_eq!(buffer.take(start).len(), 300);
    }
}
