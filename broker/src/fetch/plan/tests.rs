use types::Timestamp;

use super::*;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

const UNBOUNDED: Effort = Effort {
    reads: u64::MAX,
    bytes: u64::MAX,
    held: u64::MAX,
};

fn at(object: u128, position: u64, size: u64) -> Coordinate {
    Coordinate {
        base_offset: 0,
        last_offset: 0,
        object: Uuid::from_u128(object),
        object_size: 4 * MIB,
        position: position as u32,
        size: size as u32,
        max_timestamp: Timestamp(0),
        log_append_time: Timestamp(-1),
    }
}

fn batches(sizes: &[u32]) -> Vec<Coordinate> {
    sizes.iter().map(|size| at(1, 0, u64::from(*size))).collect()
}

fn shared(partitions: &[(&[u32], u64)], max_bytes: u64, random: u64) -> Vec<usize> {
    let all: Vec<_> = partitions
        .iter()
        .map(|(sizes, limit)| (batches(sizes), *limit))
        .collect();
    let offers: Vec<_> = all
        .iter()
        .map(|(batches, max_bytes)| Offer {
            batches,
            max_bytes: *max_bytes,
            tail: false,
        })
        .collect();
    share(&offers, max_bytes, UNBOUNDED, random, |_, _| Way::AtHand).counts
}

#[test]
fn limits_hold_for_each_partition_and_for_all() {
    assert_eq!(
        shared(&[(&[10, 10, 10], 20), (&[10, 10, 10], 100)], 1000, 0),
        [2, 3]
    );
    assert_eq!(shared(&[(&[10, 10, 10], 100), (&[10, 10], 100)], 40, 0), [2, 2]);
}

#[test]
fn only_the_first_non_empty_partition_may_overshoot() {
    assert_eq!(
        shared(&[(&[], 10), (&[500, 1], 10), (&[500], 1000)], 100, 0),
        [0, 1, 0]
    );
    assert_eq!(shared(&[(&[5], 10), (&[50], 10)], 100, 0), [1, 0]);
    assert_eq!(shared(&[(&[7], 0)], 0, 0), [1]);
}

#[test]
fn any_of_those_that_have_something_may_be_the_first() {
    let partitions: [(&[u32], u64); 3] = [(&[100], 100), (&[100], 100), (&[100], 100)];
    assert_eq!(shared(&partitions, 100, 0), [1, 0, 0]);
    assert_eq!(shared(&partitions, 100, 1), [0, 1, 0]);
    assert_eq!(shared(&partitions, 200, 5), [1, 0, 1]);
    let few: [(&[u32], u64); 4] = [(&[], 100), (&[100], 100), (&[100], 100), (&[], 100)];
    assert_eq!(shared(&few, 100, 0), [0, 1, 0, 0]);
    assert_eq!(shared(&few, 100, 1), [0, 0, 1, 0]);
    assert!(shared(&[], 100, 5).is_empty());
}

/// What two partitions give of the objects 0, 1, 2…: a batch of 2 KiB each at the beginning and at the end of its object.
fn of_objects(count: u128, bounds: Effort, way: Way) -> Share {
    let first: Vec<_> = (0..count).map(|object| at(object, 0, 2 * KIB)).collect();
    let second: Vec<_> = (0..count)
        .map(|object| at(object, 4 * MIB - 2 * KIB, 2 * KIB))
        .collect();
    let offer = |batches| Offer {
        batches,
        max_bytes: MIB,
        tail: false,
    };
    share(&[offer(&first), offer(&second)], 64 * MIB, bounds, 0, |_, _| way)
}

#[test]
fn what_has_to_be_read_and_kept_is_bounded_but_for_the_first_batch() {
    let reads = Effort {
        reads: 5,
        ..UNBOUNDED
    };
    let bytes = Effort {
        bytes: 9 * MIB,
        ..UNBOUNDED
    };
    let held = Effort {
        held: 25 * KIB,
        ..UNBOUNDED
    };
    for (bounds, way, expected) in [
        // What is in memory costs no read, and what is read for one partition nothing for another.
        (reads, Way::AtHand, [100, 100]),
        (reads, Way::Whole, [5, 5]),
        (reads, Way::Ranges, [3, 2]),
        (bytes, Way::AtHand, [100, 100]),
        (bytes, Way::Whole, [2, 2]),
        (bytes, Way::Ranges, [100, 100]),
        // Little is copied.
        (held, Way::AtHand, [6, 6]),
        (held, Way::Whole, [6, 6]),
        (held, Way::Ranges, [6, 6]),
        (Effort::default(), Way::Ranges, [1, 0]),
        (Effort::default(), Way::Whole, [1, 0]),
    ] {
        let share = of_objects(100, bounds, way);
        assert_eq!(share.counts, expected, "{bounds:?} {way:?}");
        assert!(
            share.effort.is_within(bounds) || expected == [1, 0],
            "{bounds:?} {way:?}: {:?}",
            share.effort
        );
    }
}

#[test]
fn all_of_an_object_is_held_once() {
    let all: Vec<_> = (0..4).map(|part| at(1, part * MIB, MIB)).collect();
    let offer = Offer {
        batches: &all,
        max_bytes: 64 * MIB,
        tail: false,
    };
    for way in [Way::Ranges, Way::Whole, Way::AtHand] {
        let effort = share(&[offer], 64 * MIB, UNBOUNDED, 0, |_, _| way).effort;
        assert_eq!(effort.held, 4 * MIB);
        let read = if way == Way::AtHand { 0 } else { 1 };
        assert_eq!((effort.reads, effort.bytes), (read, read * 4 * MIB));
    }
}

#[test]
fn what_has_no_room_as_a_whole_is_copied() {
    let all: Vec<_> = (1..=3)
        .flat_map(|object| [at(object, 0, MIB), at(object, MIB, MIB / 2)])
        .collect();
    let offer = Offer {
        batches: &all,
        max_bytes: 64 * MIB,
        tail: true,
    };
    for (bound, count, sliced, held) in [(24, 6, 3, 24), (12, 4, 1, 11), (8, 2, 1, 8), (0, 1, 0, 2)] {
        let bounds = Effort {
            held: bound * MIB / 2,
            ..UNBOUNDED
        };
        let share = share(&[offer], 64 * MIB, bounds, 0, |_, _| Way::AtHand);
        let found = (share.counts, share.sliced.len(), share.effort.held);
        assert_eq!(found, (vec![count], sliced, held * MIB / 2), "{bound}");
    }
}

#[test]
fn spans_end_at_large_gaps() {
    let spans = |places: &[(u64, u64)]| {
        let mut spans = Spans::default();
        for (position, size) in places {
            spans.add(&at(1, *position, *size));
        }
        let ends = spans.iter().map(|span| (span.start, span.end));
        ends.collect::<Vec<_>>()
    };
    assert_eq!(spans(&[(5, 10), (15, 5)]), [(5, 20)]);
    let far = 20 + GAP + 1;
    assert_eq!(spans(&[(5, 15), (far, 5)]), [(5, 20), (far, far + 5)]);
    assert_eq!(spans(&[(5, 15), (far - 1, 5)]), [(5, far + 4)]);
    assert_eq!(
        spans(&[(far, 5), (5, 15)]),
        [(5, 20), (far, far + 5)],
        "in any order"
    );
    // What lies between joins both.
    assert_eq!(spans(&[(far, 5), (5, 15), (100, 5)]), [(5, far + 5)]);
    assert_eq!(spans(&[(5, 15), (7, 3)]), [(5, 20)]);
    let last = u64::from(u32::MAX);
    assert_eq!(spans(&[(last, last)]), [(last, 2 * last)]);
}
