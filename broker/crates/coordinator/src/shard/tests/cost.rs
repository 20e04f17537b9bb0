//! What reads cost, in steps of SQLite's virtual machine: at ten thousand batches what it is at a hundred.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::commit::find;
use super::*;
use crate::shard::queries::{self, Boundary};
use crate::shard::schema;
use crate::shard::state::view;
use crate::shard::time_index;

const RECORDS: i64 = 10;

/// The largest timestamp of the `n`th batch: producers are some seconds off.
fn time(n: i64) -> Timestamp {
    Timestamp(1_000_000 + 1_000 * n + n * 7919 % 5_000)
}

/// A partition with so many batches of ten records and 100 bytes each.
fn deep(batches: i64) -> Shard {
    let mut shard = Shard::new();
    shard.create(1, 1);
    for first in (0..batches).step_by(100) {
        let file = (first..first + 100).map(|n| BatchRequest {
            max_timestamp: time(n),
            ..plain(tp(1, 0), RECORDS as i32)
        });
        shard.commit(first as u128, file.collect());
    }
    shard
}

/// Steps that `read` takes once its statements are prepared.
fn steps<T>(shard: &Shard, read: impl Fn(&Connection) -> rusqlite::Result<T>) -> u64 {
    let mut db = schema::open_reader(&view(shard.dir.path())).unwrap();
    read(&db).unwrap();
    let count = Arc::new(AtomicU64::new(0));
    let counter = count.clone();
    let step = move || {
        counter.fetch_add(1, Relaxed);
        false
    };
    db.progress_handler(1, Some(step)).unwrap();
    read(&db).unwrap();
    count.load(Relaxed)
}

#[test]
fn finding_batches_costs_the_same_however_far_behind_the_reader_is() {
    let mut costs = Vec::new();
    for depth in [100, 10_000] {
        let shard = deep(depth);
        for batch in [0, depth / 2, depth - 10] {
            let wanted = [FindBatchesPartition {
                max_bytes: 1_000,
                ..find(tp(1, 0), batch * RECORDS)
            }];
            let find = |db: &Connection| queries::find_batches(db, &wanted, 1 << 20);
            assert_eq!(shard.read(find)[0].batches.len(), 10);
            costs.push(steps(&shard, find));
        }
    }
    assert!(costs.iter().all(|cost| *cost == costs[0]), "{costs:?}");
}

#[test]
fn retention_looks_at_no_more_than_it_may() {
    const MOST: usize = 50;
    let by_time = |db: &Connection| {
        queries::retention(db, &tp(1, 0), Some(Timestamp(i64::MAX)), -1, MOST).map(|found| found.0)
    };
    let by_size = |db: &Connection| queries::retention(db, &tp(1, 0), None, 0, MOST).map(|found| found.0);
    let all = |from: i64| {
        Some(Boundary {
            offset: from * RECORDS + MOST as i64 * RECORDS,
            batches: MOST,
        })
    };
    let mut costs = Vec::new();
    for depth in [200, 10_000] {
        let mut shard = deep(depth);
        let mut cost = |shard: &Shard| costs.push((depth, steps(shard, by_time), steps(shard, by_size)));
        assert_eq!((shard.read(by_time), shard.read(by_size)), (all(0), all(0)));
        cost(&shard);
        // What waits for its purge is not looked at either. How large the rest is will be known afterwards.
        let start = depth - 60;
        shard.delete_records(tp(1, 0), start * RECORDS);
        assert_eq!((shard.read(by_time), shard.read(by_size)), (all(start), None));
        cost(&shard);
        while shard.run(Command::Purge { max_batches: 1_000 }) == Output::Purged(true) {}
        assert_eq!(
            (shard.read(by_time), shard.read(by_size)),
            (all(start), all(start))
        );
        cost(&shard);
    }
    let (shallow, deep) = costs.split_at(3);
    for (shallow, deep) in shallow.iter().zip(deep) {
        assert_eq!((shallow.1, shallow.2), (deep.1, deep.2), "{costs:?}");
    }
}

#[test]
fn offsets_of_times_are_found_without_a_look_at_every_batch() {
    let most = |depth: i64| {
        let shard = deep(depth);
        let times = (0..=20).map(|part| time(depth * part / 20).0).chain([-1, -2, -3]);
        let costs = times.map(|timestamp| {
            let wanted = [ListOffsetsPartition {
                partition: tp(1, 0),
                timestamp,
            }];
            steps(&shard, |db| queries::list_offsets(db, &wanted))
        });
        costs.max().unwrap()
    };
    let (shallow, deep) = (most(1_000), most(30_000));
    assert!(
        deep < 4 * shallow,
        "{shallow} steps at most, and {deep} at thirty times the depth"
    );
}

/// Against a look at every batch, from different starts.
fn compare(db: &Connection, num: u32, starts: &[i64], times: &[i64]) {
    for &from in starts {
        let largest: Option<i64> = db
            .prepare_cached("SELECT max(timestamp) FROM batches WHERE num = ? AND last_offset >= ?")
            .unwrap()
            .query_row((num, from), |row| row.get(0))
            .unwrap();
        let first = |time: i64| -> Option<i64> {
            db.prepare_cached(
                "SELECT min(last_offset) FROM batches WHERE num = ? AND last_offset >= ? AND timestamp >= ?",
            )
            .unwrap()
            .query_row((num, from, time), |row| row.get(0))
            .unwrap()
        };
        for &time in times {
            let found = time_index::first_since(db, num, from, time).unwrap();
            assert_eq!(found, first(time), "{num}: time {time} from {from} on");
        }
        let latest = time_index::latest(db, num, from).unwrap();
        assert_eq!(
            latest,
            largest.and_then(first),
            "{num}: the latest from {from} on"
        );
    }
}

/// Batches `from..to` of partition 1, and some of partition 2. Times grow, more or less; some are far ahead, some are missing.
fn insert(db: &Connection, from: i64, to: i64) {
    db.execute(
        "INSERT INTO batches WITH RECURSIVE n(i) AS (VALUES (?1) UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?2)
         SELECT iif(i % 1000 = 0, 2, 1), 3 * i + 2, 2, 1, 0, 100,
            CASE WHEN i % 1009 = 0 THEN -1 WHEN i % 50021 = 0 THEN i + 90000 ELSE i + i * 7919 % 500 END, 0 FROM n",
        (from, to),
    )
    .unwrap();
}

#[test]
fn the_time_index_finds_what_a_look_at_every_batch_finds() {
    const BATCHES: i64 = 400_000;
    let dir = tempfile::tempdir().unwrap();
    let db = schema::create(&dir.path().join("view.db")).unwrap();
    insert(&db, 0, BATCHES);
    db.execute_batch("BEGIN").unwrap();
    time_index::build(&db).unwrap();
    db.execute_batch("COMMIT").unwrap();
    let entries = |level: i64| -> i64 {
        db.query_row(
            "SELECT count(*) FROM time_index WHERE level = ?",
            (level,),
            |row| row.get(0),
        )
        .unwrap()
    };
    assert!((5_000..8_000).contains(&entries(1)), "{}", entries(1));
    assert!(entries(3) > 0, "the topmost level is not tested");
    let times = [0, 1, 777, 100_042, 100_500, 250_000, 399_000, 450_000, i64::MAX];
    compare(
        &db,
        1,
        &[0, 2, 5, 300_001, 3 * BATCHES - 100, 3 * BATCHES],
        &times,
    );
    compare(&db, 2, &[0, 600_000], &times);
    compare(&db, 3, &[0], &times);
    // The beginning goes, and more comes, a batch at a time.
    db.execute("DELETE FROM batches WHERE num = 1 AND last_offset < 601_000", ())
        .unwrap();
    time_index::delete(&db, 1, 601_000).unwrap();
    insert(&db, BATCHES, BATCHES + 5_000);
    for n in BATCHES..BATCHES + 5_000 {
        time_index::add(&db, 1, 3 * n + 2).unwrap();
    }
    compare(&db, 1, &[601_000, 900_000], &times);
    assert!((2_500..4_000).contains(&entries(1)), "{}", entries(1));
}

#[test]
fn times_are_found_in_what_was_restored() {
    let mut shard = deep(3_000);
    shard.delete_records(tp(1, 0), 12_345);
    shard.run(Command::Purge { max_batches: 700 });
    let (last, snapshot) = shard.snapshot();
    let mut other = Shard::new();
    other.restore(last, &snapshot, 10_000).unwrap();
    for shard in [&mut shard, &mut other] {
        let more = (3_000..3_100).map(|n| BatchRequest {
            max_timestamp: time(n),
            ..plain(tp(1, 0), RECORDS as i32)
        });
        shard.log.truncate(last.0 as usize + 1);
        shard.log.resize(last.0 as usize + 1, Vec::new());
        shard.commit(3_000, more.collect());
        let times = [
            0, 1_000_000, 2_500_000, 3_900_000, 4_000_500, 4_050_000, 5_000_000,
        ];
        shard.read(|db| {
            compare(db, 1, &[12_345, 20_000, 30_500, 31_000], &times);
            Ok(())
        });
        assert!(shard.count("SELECT count(*) FROM time_index") > 20);
    }
}
