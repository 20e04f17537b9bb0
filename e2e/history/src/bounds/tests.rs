use super::*;

fn end(known: i64, listed: i64, from: i64, to: i64) -> ListedEnd {
    ListedEnd {
        partition: 0,
        known,
        listed,
        span: Span { from, to },
    }
}

fn with_ends(ends: &[ListedEnd]) -> History {
    History {
        ends: ends.to_vec(),
        ..History::default()
    }
}

#[test]
fn an_end_that_hides_a_known_record_is_stale() {
    let mut h = with_ends(&[end(-1, 0, 0, 0), end(4, 5, 0, 0), end(4, 9, 0, 0)]);
    assert_eq!(h.check(10), []);
    h.ends.push(end(4, 4, 0, 0));
    let stale = Anomaly::StaleEnd {
        partition: 0,
        known: 4,
        listed: 4,
    };
    assert_eq!(h.check(10), [stale]);
}

#[test]
fn an_end_does_not_go_back() {
    let other_partition = ListedEnd {
        partition: 1,
        ..end(-1, 1, 40, 50)
    };
    let ends = [
        end(-1, 5, 0, 10),
        end(-1, 9, 5, 20),
        end(-1, 5, 15, 30),
        other_partition,
    ];
    assert_eq!(
        with_ends(&ends).check(10),
        [],
        "5 was under way when 9 was answered"
    );
    let back = Anomaly::EndBack {
        partition: 0,
        before: 9,
        after: 5,
    };
    let ends = [end(-1, 5, 21, 30), end(-1, 9, 0, 20)];
    assert_eq!(with_ends(&ends).check(10), [back]);
}

#[test]
fn behind_an_end_there_is_what_readers_found() {
    let read = vec![(
        7,
        Place {
            partition: 0,
            offset: 9,
        },
    )];
    let mut h = History {
        sent: [7].into(),
        reads: vec![read, Vec::new()],
        ..with_ends(&[end(9, 10, 0, 10)])
    };
    assert_eq!(h.check(10), []);
    h.ends.push(end(9, 1_000_000, 0, 10));
    let wrong = Anomaly::WrongEnd {
        partition: 0,
        last: 10,
        listed: 1_000_000,
    };
    assert_eq!(h.check(10), [wrong]);
    h.trimmed.insert(0, 1_000_000);
    assert_eq!(h.check(10), [], "it was deleted before they came there");
    h.trimmed.clear();
    h.reads.clear();
    assert_eq!(h.check(10), [], "nobody has read what there is");
}

fn with_starts(starts: &[(i64, i64, i64)]) -> History {
    let start = |(deleted, asked, listed): &(i64, i64, i64)| ListedStart {
        partition: 0,
        deleted: *deleted,
        asked: *asked,
        listed: *listed,
        span: Span::default(),
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

#[test]
fn a_beginning_does_not_go_back() {
    // Neither is acknowledged: the second answer may not forget what the first one told.
    let mut h = with_starts(&[(0, 8, 8), (0, 8, 3)]);
    h.starts[0].span = Span { from: 0, to: 10 };
    h.starts[1].span = Span { from: 10, to: 20 };
    assert_eq!(h.check(10), [], "it was asked for before");
    h.starts[1].span.from = 11;
    let back = Anomaly::StartBack {
        partition: 0,
        before: 8,
        after: 3,
    };
    assert_eq!(h.check(10), [back]);
}

/// Partition, beginning, end, records.
type Answer = (i32, i64, i64, Option<(i64, i64)>);

/// Answers to Fetch, over some connections.
fn fetches(connections: &[&[Answer]]) -> Vec<Anomaly> {
    let fetch = |(partition, log_start, high_watermark, records): &Answer| FetchedBounds {
        partition: *partition,
        log_start: *log_start,
        high_watermark: *high_watermark,
        records: *records,
    };
    let history = History {
        fetches: connections
            .iter()
            .map(|answers| answers.iter().map(fetch).collect())
            .collect(),
        ..History::default()
    };
    history.check(10)
}

#[test]
fn bounds_that_go_back_at_one_broker_are_found() {
    let one: &[_] = &[(0, 2, 5, None), (1, 0, 2, None), (0, 2, 5, None), (0, 4, 7, None)];
    let other: &[_] = &[(0, 3, 6, None)];
    assert_eq!(fetches(&[one, other]), [], "another broker may be behind");
    let back = Anomaly::WatermarkBack {
        partition: 0,
        before: 6,
        after: 5,
    };
    let watermarks: &[_] = &[(0, 0, 6, None), (1, 0, 9, None), (0, 0, 5, None)];
    assert_eq!(fetches(&[one, watermarks]), [back]);
    let back = Anomaly::StartBack {
        partition: 0,
        before: 3,
        after: 2,
    };
    assert_eq!(fetches(&[&[(0, 3, 6, None), (0, 2, 6, None)]]), [back]);
}

#[test]
fn records_lie_within_the_bounds_that_come_with_them() {
    assert_eq!(
        fetches(&[&[(0, 3, 6, Some((3, 5))), (0, 3, 6, Some((4, 4)))]]),
        []
    );
    for records in [(3, 6), (2, 5), (6, 9)] {
        let found = fetches(&[&[(0, 3, 6, Some(records))]]);
        assert!(
            matches!(found.as_slice(), [Anomaly::OutOfBounds { .. }]),
            "{records:?}: {found:?}"
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
    // The last two: nobody ever found a record there.
    for wrong in [
        (20, 4, 2),
        (20, 4, 0),
        (45, 4, -1),
        (15, 1, 3),
        (11, 4, 0),
        (60, 4, 5),
        (60, -1, 70),
    ] {
        let found = lookups(&times, &[wrong]);
        assert!(
            matches!(found.as_slice(), [Anomaly::WrongTime { .. }]),
            "{wrong:?}: {found:?}"
        );
    }
}
