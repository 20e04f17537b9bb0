//! How much of what is there goes into one answer.

use std::ops::Range;

use coordinator::protocol::Coordinate;
use types::{FastMap, FastSet};
use uuid::Uuid;

/// Wanted ranges of an object are read in one go if no more than this lies between them, in bytes: about what the store
/// gives in the time that one more request takes.
const GAP: u64 = 256 << 10;
/// What is wanted of a whole is copied out of it if it is less than one part in so many: a slice would keep all of it.
const SPARSE: u64 = 4;

/// What one partition has to offer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer<'a> {
    /// In order, from the wanted offset on.
    pub(super) batches: &'a [Coordinate],
    /// The client's limit for the partition, in bytes.
    pub(super) max_bytes: u64,
    /// Its coordinates were pushed here.
    pub(super) tail: bool,
}

/// How the object of a batch is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// It is in memory.
    AtHand,
    /// As a whole.
    Whole,
    /// What is wanted of it.
    Ranges,
}

/// What an answer takes, or may take, beside what the client allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Effort {
    /// Reads of the store.
    pub(super) reads: u64,
    /// Bytes that they bring.
    pub(super) bytes: u64,
    /// Bytes in memory while the answer is on its way.
    pub(super) held: u64,
}

impl Effort {
    fn is_within(self, bounds: Effort) -> bool {
        self.reads <= bounds.reads && self.bytes <= bounds.bytes && self.held <= bounds.held
    }
}

/// What goes into an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// The number of batches of each partition.
    pub(super) counts: Vec<usize>,
    /// What they take.
    pub(super) effort: Effort,
    /// Objects that it may keep all of; of the others that are in memory as a whole, what is wanted is copied.
    pub(super) sliced: FastSet<Uuid>,
}

/// The number of batches of each partition, within `max_bytes` over all. Each that has something gives its first batch, then
/// each its second one, and so on: what lies side by side in objects comes in one answer, of few objects, and no partition falls
/// behind the others. `random` says which of them begins, so that each is as often the first as any other: a turn that passed
/// from partition to partition would mostly pass over empty ones, always to the same successor.
///
/// As in KIP-74 the first partition gives at least one batch, whatever its size: a consumer must always get on. No
/// other one exceeds a limit.
///
/// Nor does it exceed `bounds`: batches of a few KiB may lie in as many objects of several MiB, and a consumer that is far
/// behind would have all of them read for one answer. A batch in an object that is read anyway costs little or nothing.
pub(super) fn share(
    offers: &[Offer<'_>],
    max_bytes: u64,
    bounds: Effort,
    random: u64,
    way: impl Fn(&Coordinate, bool) -> Way,
) -> Share {
    let mut counts = vec![0; offers.len()];
    let mut plan = Plan::default();
    let mut left = max_bytes;
    let mut nothing_yet = true;
    let offering = offers
        .iter()
        .enumerate()
        .filter(|(_, offer)| !offer.batches.is_empty());
    let mut order: Vec<usize> = offering.map(|(index, _)| index).collect();
    let first = random.checked_rem(order.len() as u64).unwrap_or(0);
    order.rotate_left(usize::try_from(first).unwrap_or(0));
    let mut within: Vec<u64> = offers.iter().map(|offer| offer.max_bytes).collect();
    for depth in 0.. {
        order.retain(|index| {
            let (Some(offer), Some(within)) = (offers.get(*index), within.get_mut(*index)) else {
                return false;
            };
            let (Some(batch), Some(count)) = (offer.batches.get(depth), counts.get_mut(*index)) else {
                return false;
            };
            let size = u64::from(batch.size);
            let way = || way(batch, offer.tail);
            let fits = nothing_yet || size <= left.min(*within);
            if !fits || !plan.take(batch, way, bounds, nothing_yet) {
                return false;
            }
            nothing_yet = false;
            *within = within.saturating_sub(size);
            left = left.saturating_sub(size);
            *count += 1;
            true
        });
        if order.is_empty() {
            break;
        }
    }
    let sliced = plan.objects.iter().filter(|(_, part)| part.sliced);
    Share {
        counts,
        effort: plan.effort,
        sliced: sliced.map(|(object, _)| *object).collect(),
    }
}

/// What is to be read.
#[derive(Default)]
struct Plan {
    objects: FastMap<Uuid, Part>,
    effort: Effort,
}

/// What is wanted of an object.
#[derive(Clone)]
struct Part {
    way: Way,
    size: u64,
    wanted: u64,
    spans: Spans,
    /// All of it is kept; otherwise copies.
    sliced: bool,
}

impl Plan {
    /// Takes a batch in, if it is within the bounds or has to be.
    fn take(&mut self, batch: &Coordinate, way: impl FnOnce() -> Way, bounds: Effort, must: bool) -> bool {
        let known = self.objects.get(&batch.object).cloned();
        let before = known.as_ref().map_or(Effort::default(), Part::effort);
        let mut part = known.unwrap_or_else(|| Part {
            way: way(),
            size: batch.object_size,
            wanted: 0,
            spans: Spans::default(),
            sliced: false,
        });
        part.wanted += u64::from(batch.size);
        if part.way == Way::Ranges {
            part.spans.add(batch);
        }
        let with = |part: &Part| {
            let after = part.effort();
            // A span that closes a gap makes one of two.
            let with = |of: fn(&Effort) -> u64| (of(&self.effort) + of(&after)).saturating_sub(of(&before));
            Effort {
                reads: with(|effort| effort.reads),
                bytes: with(|effort| effort.bytes),
                held: with(|effort| effort.held),
            }
        };
        part.sliced = part.way != Way::Ranges && !is_sparse(part.wanted, part.size);
        part.sliced &= with(&part).held <= bounds.held;
        let effort = with(&part);
        if !must && !effort.is_within(bounds) {
            return false;
        }
        self.effort = effort;
        self.objects.insert(batch.object, part);
        true
    }
}

impl Part {
    fn effort(&self) -> Effort {
        let whole = if self.sliced {
            self.size.max(self.wanted)
        } else {
            self.wanted
        };
        let (reads, bytes, held) = match self.way {
            Way::AtHand => (0, 0, whole),
            Way::Whole => (1, self.size, whole),
            Way::Ranges => (self.spans.0.len() as u64, self.spans.bytes(), self.spans.bytes()),
        };
        Effort { reads, bytes, held }
    }
}

/// Whether `wanted` bytes of a whole are copied out of it.
pub(super) fn is_sparse(wanted: u64, whole: u64) -> bool {
    wanted.saturating_mul(SPARSE) < whole
}

/// Ranges of an object that are read in one go each: what is wanted, and what little lies between.
#[derive(Clone, Debug, Default)]
pub(super) struct Spans(Vec<Range<u64>>);

impl Spans {
    /// Takes a batch in.
    pub(super) fn add(&mut self, batch: &Coordinate) {
        let mut all = u64::from(batch.position)..u64::from(batch.position) + u64::from(batch.size);
        self.0.retain(|span| {
            let is_near = all.start <= span.end + GAP && span.start <= all.end + GAP;
            if is_near {
                all = all.start.min(span.start)..all.end.max(span.end);
            }
            !is_near
        });
        let place = self.0.partition_point(|span| span.start < all.start);
        self.0.insert(place, all);
    }

    /// In order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Range<u64>> {
        self.0.iter()
    }

    fn bytes(&self) -> u64 {
        self.0.iter().map(|span| span.end - span.start).sum()
    }
}

#[cfg(test)]
mod tests;
