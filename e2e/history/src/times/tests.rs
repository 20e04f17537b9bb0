use super::*;

fn place(partition: i32, offset: i64) -> Place {
    Place { partition, offset }
}

#[test]
fn append_times_that_go_back_are_found() {
    let mut h = History::default();
    for (partition, offset, time) in [(0, 0, 10), (0, 1, 10), (0, 4, 12), (1, 0, 3)] {
        h.note_time(place(partition, offset), time, true);
    }
    assert_eq!(h.check(10), []);
    h.note_time(place(0, 3), 9, true);
    let back = Anomaly::TimeBack {
        place: place(0, 3),
        before: 10,
        after: 9,
    };
    assert_eq!(h.check(10), [back]);
}

#[test]
fn a_record_has_one_time_for_all() {
    let mut h = History::default();
    h.note_time(place(0, 0), 10, true);
    h.note_time(place(0, 0), 10, true);
    h.note_time(place(0, 1), 12, false);
    assert_eq!(h.check(10), []);
    h.note_time(place(0, 0), 11, true);
    let changed = Anomaly::TimeChanged {
        place: place(0, 0),
        first: 10,
        second: 11,
    };
    assert_eq!(h.check(10), [changed]);
}

#[test]
fn a_record_keeps_the_time_of_its_producer_unless_the_log_gives_it_another() {
    let mut h = History {
        acked: [(7, place(0, 0)), (8, place(0, 1))].into(),
        created: [(7, 100), (8, 200)].into(),
        ..History::default()
    };
    h.note_time(place(0, 0), 100, false);
    h.note_time(place(0, 1), 900, true);
    assert_eq!(h.check(10), []);
    h.created.insert(7, 101);
    let wrong = Anomaly::WrongRecordTime {
        value: 7,
        sent: 101,
        read: 100,
    };
    assert_eq!(h.check(10), [wrong]);
}

#[test]
fn what_is_younger_than_the_retention_is_kept() {
    let expiry = |start, at| Expiry {
        partition: 0,
        start,
        at,
    };
    let mut h = History {
        acked: [(7, place(0, 0)), (8, place(0, 1)), (9, place(1, 0))].into(),
        created: [(7, 100), (8, 200), (9, 300)].into(),
        retention: Some(50),
        expiries: vec![expiry(0, 110), expiry(1, 150), expiry(2, 250)],
        ..History::default()
    };
    assert_eq!(h.check(10), []);
    h.expiries.push(expiry(2, 249));
    let early = Anomaly::ExpiredEarly {
        place: place(0, 1),
        age: 49,
        least: 50,
    };
    assert_eq!(h.check(10), [early]);
}
