//! When a request (an upload, a read) has taken so long that a second one beside it is worth its price.

use std::time::Duration;

/// Durations that are remembered of each class.
const REMEMBERED: usize = 64;
/// Fewer say nothing.
const ENOUGH: usize = 16;
/// Nothing is gained below.
const SHORTEST: Duration = Duration::from_millis(50);
/// Requests that pay for one more, and how many may be saved up for a bad moment.
const PRICE: u32 = 20;
const SAVED: u32 = 5;
/// Upper bounds of the classes, in bytes; the last one has none. Large objects take longer, and it says nothing
/// against them.
const CLASSES: [u64; 2] = [64 << 10, 1 << 20];

/// Remembers how long requests took, and how many second ones may be made: one for every twenty, so that a slow store is
/// not given more to do for being slow.
#[derive(Debug)]
pub(crate) struct Hedging {
    classes: [Took; CLASSES.len() + 1],
    /// In requests.
    credit: u32,
    /// Late, until enough is known.
    at_first: Duration,
}

/// The last durations of one class.
#[derive(Debug)]
struct Took {
    last: [Duration; REMEMBERED],
    count: usize,
}

impl Hedging {
    /// Until enough is known, `at_first` is late.
    pub(crate) fn new(at_first: Duration) -> Hedging {
        Hedging {
            classes: std::array::from_fn(|_| Took {
                last: [Duration::ZERO; REMEMBERED],
                count: 0,
            }),
            credit: SAVED * PRICE,
            at_first,
        }
    }

    /// A request for `size` bytes begins. After how long a second one would help: later than 19 of 20 took.
    pub(crate) fn begin(&mut self, size: u64) -> Duration {
        self.credit = (self.credit + 1).min(SAVED * PRICE);
        let at_first = self.at_first;
        self.class(size).and_then(|took| took.late()).unwrap_or(at_first)
    }

    /// Takes the price of a second request, if it is there.
    pub(crate) fn pay(&mut self) -> bool {
        let left = self.credit.checked_sub(PRICE);
        self.credit = left.unwrap_or(self.credit);
        left.is_some()
    }

    /// A request took so long, the second one included.
    pub(crate) fn end(&mut self, size: u64, duration: Duration) {
        let Some(took) = self.class(size) else { return };
        if let Some(slot) = took.last.get_mut(took.count % REMEMBERED) {
            *slot = duration;
            took.count += 1;
        }
    }

    fn class(&mut self, size: u64) -> Option<&mut Took> {
        let class = CLASSES.iter().filter(|bound| size > **bound).count();
        self.classes.get_mut(class)
    }
}

impl Took {
    fn late(&self) -> Option<Duration> {
        let mut last = self.last;
        let known = last.get_mut(..self.count.min(REMEMBERED))?;
        if known.len() < ENOUGH {
            return None;
        }
        let at = known.len() * 95 / 100;
        let (_, late, _) = known.select_nth_unstable(at);
        Some((*late).max(SHORTEST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const AT_FIRST: Duration = Duration::from_secs(1);

    #[test]
    fn late_is_what_few_of_the_last_ones_were() {
        let mut hedging = Hedging::new(AT_FIRST);
        assert_eq!(hedging.begin(100), AT_FIRST);
        for i in 1..=100 {
            hedging.end(100, i * 10 * MS);
        }
        // The last 64 took 370 to 1000 ms.
        assert_eq!(hedging.begin(100), 970 * MS);
        assert_eq!(hedging.begin(4 << 20), AT_FIRST, "large ones are another matter");
        for _ in 0..100 {
            hedging.end(100, MS);
        }
        assert_eq!(hedging.begin(100), SHORTEST);
    }

    #[test]
    fn second_requests_are_few() {
        let mut hedging = Hedging::new(AT_FIRST);
        let paid = (0..1000).filter(|_| {
            hedging.begin(100);
            hedging.pay()
        });
        let paid = paid.count();
        assert!((50..=56).contains(&paid), "{paid} of 1000");
    }
}
