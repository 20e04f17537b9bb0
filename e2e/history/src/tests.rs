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
    let lost = Anomaly::Lost {
        value: 1,
        place: place(0, 1),
    };
    assert_eq!(h.check(10), [lost], "though another one got it");
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

#[test]
fn a_record_that_comes_long_after_its_acknowledgement_is_an_outage() {
    let mut h = history("ack 0 0 0\nack 1 0 1", &["got 0 0 0\ngot 1 0 1"], 2);
    h.acked_at = [(place(0, 0), 1_000), (place(0, 1), 2_000)].into();
    let found = |offset, asked, now| {
        let span = h.waited(place(0, offset), asked, now)?;
        let what = "waits".to_owned();
        check_outages(&[Operation { what, span }], &[], 0, 500).pop()
    };
    assert_eq!(found(0, 0, 1_400), None);
    assert!(found(0, 0, 1_600).is_some(), "it stood still");
    assert_eq!(found(1, 0, 2_100), None);
    assert_eq!(found(0, 9_000, 9_100), None, "it has not asked before");
    assert_eq!(found(7, 0, 9_000), None, "nobody has acknowledged it");
    assert_eq!(found(0, 0, 900), None, "it was faster than the acknowledgement");
}

#[test]
fn what_one_reader_alone_missed_is_lost() {
    let h = history("ack 0 0 0\nack 1 1 0", &["got 0 0 0\ngot 1 1 0", "got 0 0 0"], 2);
    let lost = Anomaly::Lost {
        value: 1,
        place: place(1, 0),
    };
    assert_eq!(h.check(10), [lost]);
}

#[test]
fn what_was_refused_for_good_is_not_read() {
    let mut h = history("ack 0 0 0", &["got 0 0 0\ngot 1 0 1"], 2);
    assert_eq!(h.check(10), [], "nobody knew what became of it");
    h.refused.insert(1);
    let aborted = Anomaly::AbortedRead {
        value: 1,
        place: place(0, 1),
    };
    assert_eq!(h.check(10), [aborted]);
}

#[test]
fn a_value_is_acknowledged_where_it_was_before() {
    let h = history("ack 0 0 0\nack 0 0 0", &["got 0 0 0"], 1);
    assert_eq!(h.check(10), []);
    let h = history("ack 0 0 0\nack 0 0 3", &["got 0 0 0"], 1);
    let moved = Anomaly::Moved {
        value: 0,
        acked: place(0, 0),
        read: place(0, 3),
    };
    assert_eq!(h.check(10), [moved]);
}
