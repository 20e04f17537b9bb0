//! Batches of idempotent producers that were lost on the way, and what must not be taken before they come again.
//!
//! A producer has several requests in flight. When one fails, those behind it must fail, too, or the one that is sent
//! again would find its place taken. The coordinator sees to that by the sequence numbers, but not for a producer it
//! knows nothing of: there any sequence is a beginning. So it is told which batches cannot be one.
//!
//! What is told is meant for those that were under way when a batch was lost: a client sends nothing new before it has sent
//! the lost one again, or has given it up and begun with another epoch. They come within the client's request timeout (30 s
//! as a rule) and get to the coordinator before their deadline, two minutes at most. So after [`FORGET`] a lost batch says
//! nothing any more, and must say nothing: perhaps it was stored through another broker, and when the producer comes back
//! here, the coordinator may have forgotten it (`producer.id.expiration.ms`, a day), so that nothing else would ever close
//! the gap.

use std::hash::Hash;
use std::time::Duration;

use env::Instant;
use kafka_wire::batch::is_before;
use types::{FastMap, TopicPartition};

/// What was under way when a batch was lost has its answer after this time.
const FORGET: Duration = Duration::from_secs(600);
/// Bound of what is remembered.
const KEEP: usize = 10_000;
/// No topic has a longer name, or id: what is produced to one was never on the way to a partition.
const LONGEST_NAME: usize = 249;

/// A producer in one partition: id and epoch.
pub(super) type Key = (TopicPartition, i64, i16);

/// The same in a partition as requests name it: topic (name or id) and index, then id and epoch.
pub(super) type Named = (String, i32, i64, i16);

/// The first lost batch of each producer, by its base sequence, and when one was lost last.
type Lost<K> = FastMap<K, (i32, Instant)>;

/// What is missing.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    lost: Lost<Key>,
    /// Batches that were refused at the door, most often because this broker had not heard of their topic.
    refused: Lost<Named>,
}

impl Gaps {
    /// Whether a batch comes after one that was lost lately. Whether that one has been stored meanwhile, through another
    /// broker perhaps, only the coordinator knows.
    pub(super) fn must_follow(&self, key: &Key, sequence: i32, now: Instant) -> bool {
        self.lost
            .get(key)
            .is_some_and(|(missing, last)| is_recent(*last, now) && is_before(*missing, sequence))
    }

    /// A batch was accepted: what was missing before it is there.
    pub(super) fn accepted(&mut self, key: &Key, sequence: i32) {
        let closed = self
            .lost
            .get(key)
            .is_some_and(|(missing, _)| !is_before(sequence, *missing));
        if closed {
            self.lost.remove(key);
        }
    }

    /// A batch was not stored, or is not known to be.
    pub(super) fn lost(&mut self, key: Key, sequence: i32, now: Instant) {
        note(&mut self.lost, key, sequence, now);
    }

    /// A batch was refused before it was known where it belongs.
    pub(super) fn refused(&mut self, name: Named, sequence: i32, now: Instant) {
        if name.0.len() <= LONGEST_NAME {
            note(&mut self.refused, name, sequence, now);
        }
    }

    /// Whether [`Gaps::found`] can change anything.
    pub(super) fn has_refused(&self) -> bool {
        !self.refused.is_empty()
    }

    /// A later batch of the same producer was let in: what was refused before it counts as lost.
    pub(super) fn found(&mut self, name: &Named, partition: TopicPartition) {
        if let Some((missing, last)) = self.refused.remove(name) {
            self.lost((partition, name.2, name.3), missing, last);
        }
    }
}

fn note<K: Eq + Hash>(lost: &mut Lost<K>, key: K, sequence: i32, now: Instant) {
    if lost.len() >= KEEP {
        lost.retain(|_, (_, last)| is_recent(*last, now));
        if lost.len() >= KEEP {
            lost.clear();
        }
    }
    let (missing, last) = lost.entry(key).or_insert((sequence, now));
    if is_before(sequence, *missing) || !is_recent(*last, now) {
        *missing = sequence;
    }
    *last = now.max(*last);
}

fn is_recent(lost: Instant, now: Instant) -> bool {
    now.saturating_duration_since(lost) < FORGET
}

#[cfg(test)]
mod tests {
    use types::TopicId;

    use super::*;

    #[test]
    fn what_follows_a_lost_batch_waits_for_it() {
        let now = env::Env::production().instant();
        let partition = TopicPartition {
            topic: TopicId::default(),
            partition: 0,
        };
        let (key, other) = ((partition, 7, 0), (partition, 7, 1));
        let mut gaps = Gaps::default();
        gaps.lost(key, 10, now);
        gaps.lost(key, 5, now);
        gaps.lost(key, 12, now);
        assert!(!gaps.must_follow(&key, 4, now), "it was sent before");
        assert!(!gaps.must_follow(&key, 5, now), "it is the lost one itself");
        assert!(gaps.must_follow(&key, 6, now) && gaps.must_follow(&key, 10, now));
        assert!(!gaps.must_follow(&other, 10, now), "a new epoch begins anew");
        gaps.accepted(&key, 4);
        assert!(gaps.must_follow(&key, 6, now), "an earlier one closes nothing");
        gaps.accepted(&key, 5);
        assert!(!gaps.must_follow(&key, 6, now) && !gaps.must_follow(&key, 12, now));
    }

    #[test]
    fn a_gap_that_was_closed_through_another_broker_is_forgotten() {
        let now = env::Env::production().instant();
        let partition = TopicPartition {
            topic: TopicId::default(),
            partition: 0,
        };
        let key = (partition, 7, 0);
        let mut gaps = Gaps::default();
        gaps.lost(key, 5, now);
        // The coordinator has seen 5 elsewhere, and takes 9.
        gaps.accepted(&key, 9);
        assert!(!gaps.must_follow(&key, 10, now));
    }

    #[test]
    fn a_producer_that_comes_back_later_is_not_held_to_what_was_lost_then() {
        let now = env::Env::production().instant();
        let partition = TopicPartition {
            topic: TopicId::default(),
            partition: 0,
        };
        let key = (partition, 7, 0);
        let mut gaps = Gaps::default();
        gaps.lost(key, 5, now);
        let half = now + FORGET / 2;
        assert!(gaps.must_follow(&key, 9, half));
        // Lost again: those behind it have been sent again, too.
        gaps.lost(key, 5, half);
        gaps.lost(key, 6, half);
        let later = now + FORGET;
        assert!(gaps.must_follow(&key, 6, later));
        let late = half + FORGET;
        assert!(!gaps.must_follow(&key, 6, late) && !gaps.must_follow(&key, 900, late));
        // What is lost then is a gap of its own.
        gaps.lost(key, 900, late);
        assert!(gaps.must_follow(&key, 901, late));
        assert!(!gaps.must_follow(&key, 900, late), "the old one is forgotten");
    }

    #[test]
    fn what_was_refused_at_the_door_is_lost_once_its_partition_is_known() {
        let now = env::Env::production().instant();
        let partition = TopicPartition {
            topic: TopicId::default(),
            partition: 3,
        };
        let name = |producer| ("t".to_owned(), 3, producer, 0);
        let mut gaps = Gaps::default();
        gaps.refused(("t".repeat(250), 3, 7, 0), 0, now);
        assert!(!gaps.has_refused(), "nothing is kept of what cannot be a topic");
        gaps.refused(name(7), 0, now);
        gaps.refused(name(7), 1, now);
        assert!(gaps.has_refused());
        gaps.found(&name(8), partition);
        assert!(!gaps.must_follow(&(partition, 8, 0), 2, now), "another producer");
        gaps.found(&name(7), partition);
        assert!(gaps.must_follow(&(partition, 7, 0), 2, now) && gaps.must_follow(&(partition, 7, 0), 1, now));
        assert!(
            !gaps.must_follow(&(partition, 7, 0), 0, now),
            "it is the refused one itself"
        );
        assert!(!gaps.has_refused());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let now = env::Env::production().instant();
        let partition = TopicPartition {
            topic: TopicId::default(),
            partition: 0,
        };
        let mut gaps = Gaps::default();
        for producer in 0..(2 * KEEP as i64) {
            gaps.lost((partition, producer, 0), 0, now);
        }
        assert!(gaps.lost.len() <= KEEP);
    }
}
