#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;

fn history(acks: &str, reads: &[&str], count: u64) -> History {
    let mut history = History {
        idempotent: true,
        ..History::default()
    };
    history.add_producer(acks, 0, count);
    for read in reads {
        history.add_consumer(read);
    }
    history
}

#[test]
fn a_clean_history_is_clean() {
    let h = history(
        "ack 0 0 0\nack 1 1 0\nack 2 0 1",
        &["got 0 0 0\ngot 2 0 1\ngot 1 1 0"],
        3,
    );
    assert_eq!(h.check(10), []);
}

#[test]
fn a_lost_record_is_found() {
    let h = history("ack 0 0 0\nack 1 0 1", &["got 0 0 0"], 2);
    let place = Place {
        partition: 0,
        offset: 1,
    };
    assert_eq!(h.check(10), [Anomaly::Lost { value: 1, place }]);
}

#[test]
fn an_unacknowledged_record_may_be_missing_or_there() {
    assert_eq!(
        history("ack 0 0 0\nerr 1 timeout", &["got 0 0 0"], 2).check(10),
        []
    );
    assert_eq!(
        history("ack 0 0 0\nerr 1 timeout", &["got 0 0 0\ngot 1 0 1"], 2).check(10),
        []
    );
}

#[test]
fn a_duplicate_is_found() {
    let h = history("ack 0 0 1", &["got 0 0 0\ngot 0 0 1"], 1);
    assert!(
        h.check(10)
            .iter()
            .any(|a| matches!(a, Anomaly::Duplicated { value: 0, .. }))
    );
}

#[test]
fn the_same_record_read_again_is_no_duplicate() {
    let h = history(
        "ack 0 0 0\nack 1 0 1",
        &["got 0 0 0\ngot 1 0 1\ngot 0 0 0\ngot 1 0 1"],
        2,
    );
    assert_eq!(h.check(10), []);
}

#[test]
fn two_records_at_one_offset_are_found() {
    let h = history("ack 0 0 0\nack 1 0 0", &["got 0 0 0"], 2);
    assert!(
        h.check(10)
            .iter()
            .any(|a| matches!(a, Anomaly::InconsistentOffset { .. }))
    );
}

#[test]
fn consumers_that_disagree_are_found() {
    let h = history("", &["got 0 0 5", "got 1 0 5"], 2);
    assert!(
        h.check(10)
            .iter()
            .any(|a| matches!(a, Anomaly::InconsistentOffset { .. }))
    );
}

#[test]
fn a_record_read_elsewhere_than_acknowledged_is_found() {
    let h = history("ack 0 0 7", &["got 0 0 3"], 1);
    assert!(h.check(10).iter().any(|a| matches!(a, Anomaly::Moved { .. })));
}

#[test]
fn a_phantom_is_found() {
    let h = history("ack 0 0 0", &["got 0 0 0\ngot 9 0 1"], 1);
    assert!(
        h.check(10)
            .iter()
            .any(|a| matches!(a, Anomaly::Phantom { value: 9, .. }))
    );
}

#[test]
fn reordering_is_found() {
    let h = history("ack 0 0 1\nack 1 0 0", &["got 1 0 0\ngot 0 0 1"], 2);
    assert!(h.check(10).iter().any(|a| matches!(a, Anomaly::Reordered { .. })));
}

#[test]
fn going_back_is_found() {
    let place = |offset| Place { partition: 0, offset };
    assert_eq!(check_monotonic(&[(0, place(0)), (1, place(1))]), []);
    assert_eq!(check_monotonic(&[(0, place(1)), (1, place(1))]).len(), 1);
}

fn place(partition: i32, offset: i64) -> Place {
    Place { partition, offset }
}

#[test]
fn what_was_trimmed_may_be_missing_and_no_more() {
    let mut h = history("ack 0 0 0\nack 1 0 1\nack 2 1 0", &["got 2 1 0"], 3);
    h.trimmed.insert(0, 2);
    assert_eq!(h.check(10), []);
    h.trimmed.insert(0, 1);
    let lost = Anomaly::Lost {
        value: 1,
        place: place(0, 1),
    };
    assert_eq!(h.check(10), [lost]);
    let h = history("ack 2 1 0", &[""], 3);
    assert_eq!(h.check(10).len(), 1, "the trim of another partition is no excuse");
}

#[test]
fn a_consumer_that_jumps_over_an_acknowledged_record_is_found() {
    let reads = &["got 0 0 0\ngot 1 0 1\ngot 2 0 2", "got 0 0 0\ngot 2 0 2"];
    let mut h = history("ack 0 0 0\nack 1 0 1\nack 2 0 2", reads, 3);
    assert_eq!(h.check(10), [], "somebody got it");
    let skipped = Anomaly::Skipped {
        value: 1,
        place: place(0, 1),
    };
    assert_eq!(h.check_assigned(10), [skipped]);
    h.trimmed.insert(0, 2);
    assert_eq!(
        h.check_assigned(10),
        [],
        "it was deleted before the second came there"
    );
    // An offset without an acknowledged record is no jump: batches of producers that gave up leave none, deletions do.
    let h = history("ack 0 0 0\nack 2 0 2", &["got 0 0 0\ngot 2 0 2"], 3);
    assert_eq!(h.check_assigned(10), []);
}

#[test]
fn a_value_that_is_allowed_twice_is_no_duplicate() {
    let mut h = history("", &["got 0 0 0\ngot 0 0 1"], 1);
    assert_eq!(h.check(10).len(), 1);
    h.idempotent = false;
    assert_eq!(h.check(10), []);
}

#[test]
fn a_record_where_it_was_acknowledged_is_not_moved() {
    assert_eq!(history("ack 0 0 7", &["got 0 0 7"], 1).check(10), []);
}

#[test]
fn producers_are_ordered_among_their_own_records_of_a_partition_only() {
    let mut h = History::default();
    h.add_producer("ack 0 0 5\nack 1 1 0", 0, 2);
    h.add_producer("ack 2 0 1", 2, 1);
    h.add_consumer("got 2 0 1\ngot 0 0 5\ngot 1 1 0");
    assert_eq!(h.check(10), []);
}

#[test]
fn an_end_that_hides_an_acknowledged_record_is_stale() {
    let end = |acked, listed| ListedEnd {
        partition: 0,
        acked,
        listed,
    };
    let mut h = History {
        ends: vec![end(-1, 0), end(4, 5), end(4, 9)],
        ..History::default()
    };
    assert_eq!(h.check(10), []);
    h.ends.push(end(4, 4));
    let stale = Anomaly::StaleEnd {
        partition: 0,
        acked: 4,
        listed: 4,
    };
    assert_eq!(h.check(10), [stale]);
}

#[test]
fn a_watermark_that_goes_back_at_one_broker_is_found() {
    let mut h = History {
        watermarks: vec![vec![(0, 5), (1, 2), (0, 5), (0, 7)], vec![(0, 6)]],
        ..History::default()
    };
    assert_eq!(h.check(10), [], "another broker may be behind");
    h.watermarks.push(vec![(0, 6), (1, 9), (0, 5)]);
    let back = Anomaly::WatermarkBack {
        partition: 0,
        before: 6,
        after: 5,
    };
    assert_eq!(h.check(10), [back]);
}

#[test]
fn append_times_that_go_back_are_found() {
    let mut h = History {
        append_times: [
            (place(0, 0), 10),
            (place(0, 1), 10),
            (place(0, 4), 12),
            (place(1, 0), 3),
        ]
        .into(),
        ..Default::default()
    };
    assert_eq!(h.check(10), []);
    h.append_times.insert(place(0, 3), 9);
    let back = Anomaly::TimeBack {
        place: place(0, 3),
        before: 10,
        after: 9,
    };
    assert_eq!(h.check(10), [back]);
}

#[test]
fn a_committed_offset_is_the_last_acknowledged_or_one_that_was_given_up() {
    use OffsetStep::{Acked, Fetched, Sent};
    let check = |steps: &[OffsetStep]| {
        let h = History {
            commits: vec![steps.iter().map(|step| (0, *step)).collect()],
            ..History::default()
        };
        h.check(10)
    };
    assert_eq!(check(&[Fetched(-1), Sent(3), Acked(3), Fetched(3)]), []);
    assert_eq!(check(&[Sent(3), Acked(3), Sent(5), Fetched(5), Fetched(3)]), []);
    assert_eq!(check(&[Sent(3), Sent(5), Acked(5), Fetched(5)]), []);
    assert_eq!(
        check(&[Sent(3), Sent(5), Acked(5), Fetched(3)]),
        [],
        "it came late"
    );
    assert_eq!(check(&[Sent(3), Acked(3), Fetched(-1)]).len(), 1, "forgotten");
    assert_eq!(
        check(&[Sent(3), Acked(3), Sent(5), Acked(5), Fetched(3)]).len(),
        1,
        "gone back"
    );
    assert_eq!(check(&[Sent(3), Acked(3), Fetched(4)]).len(), 1, "never sent");
}

#[test]
fn time_in_which_something_was_broken_is_no_outage() {
    let operation = |from, to| Operation {
        what: "produce".to_owned(),
        span: Span { from, to },
    };
    let faults = [Span { from: 100, to: 200 }, Span { from: 150, to: 300 }];
    let check = |from, to| check_outages(&[operation(from, to)], &faults, 50, 100);
    assert_eq!(check(0, 100), []);
    assert_eq!(check(50, 400), [], "50 before, 50 after the recovery");
    assert_eq!(check(120, 340), [], "all of it excused");
    assert_eq!(check(400, 500), []);
    assert_eq!(check(400, 501).len(), 1);
    assert_eq!(check(0, 420).len(), 1, "100 before, 70 after");
    assert_eq!(check_outages(&[operation(0, 101)], &[], 50, 100).len(), 1);
}

fn with_starts(starts: &[(i64, i64, i64)]) -> History {
    let start = |(deleted, asked, listed): &(i64, i64, i64)| ListedStart {
        partition: 0,
        deleted: *deleted,
        asked: *asked,
        listed: *listed,
    };
    History {
        starts: starts.iter().map(start).collect(),
        ..History::default()
    }
}

#[test]
fn a_log_begins_where_it_was_cut_and_no_further() {
    // Asked for and not acknowledged yet: both are right.
    assert_eq!(
        with_starts(&[(0, 0, 0), (3, 3, 3), (3, 8, 3), (3, 8, 8)]).check(10),
        []
    );
    for wrong in [(3, 8, 2), (3, 8, 9), (0, 0, 1), (5, 5, 0)] {
        let found = with_starts(&[wrong]).check(10);
        assert!(
            matches!(found.as_slice(), [Anomaly::WrongStart { .. }]),
            "{wrong:?}: {found:?}"
        );
    }
}

/// Records at 0, 1, 2… with these times; questions as (time, last acknowledged offset, answer).
fn lookups(times: &[i64], lookups: &[(i64, i64, i64)]) -> Vec<Anomaly> {
    let places = (0..).map(|offset| Place { partition: 0, offset });
    let lookup = |(time, acked, listed): &(i64, i64, i64)| TimeLookup {
        partition: 0,
        time: *time,
        acked: *acked,
        listed: *listed,
    };
    let history = History {
        times: places.zip(times.iter().copied()).collect(),
        lookups: lookups.iter().map(lookup).collect(),
        ..History::default()
    };
    history.check(10)
}

#[test]
fn a_time_begins_with_the_first_record_that_is_late_enough() {
    let times = [10, 40, 20, 30, 50];
    // What is not acknowledged may be there or not.
    let right = [
        (5, 4, 0),
        (20, 4, 1),
        (45, 4, 4),
        (45, 3, 4),
        (45, 3, -1),
        (60, 4, -1),
        (5, -1, -1),
    ];
    assert_eq!(lookups(&times, &right), []);
    for wrong in [(20, 4, 2), (20, 4, 0), (45, 4, -1), (15, 1, 3), (11, 4, 0)] {
        let found = lookups(&times, &[wrong]);
        assert!(
            matches!(found.as_slice(), [Anomaly::WrongTime { .. }]),
            "{wrong:?}: {found:?}"
        );
    }
}
