//! What readers see: find batches, offsets, retention, the tail.

use super::commit::find;
use super::*;
use crate::codes::*;
use crate::shard::queries::{self, Boundary};

fn batches(shard: &Shard, wanted: &[FindBatchesPartition], max_bytes: u32) -> Vec<FindBatchesResult> {
    shard.read(|db| queries::find_batches(db, wanted, max_bytes))
}

fn bases(result: &FindBatchesResult) -> Vec<i64> {
    result.batches.iter().map(|batch| batch.base_offset).collect()
}

/// Ten batches of two records and 100 bytes in each of two partitions.
fn filled() -> Shard {
    let mut shard = Shard::new();
    shard.create(1, 2);
    for n in 0..10 {
        let at = |id| BatchRequest {
            must_follow: false,
            max_timestamp: Timestamp(1000 + 10 * n as i64),
            ..plain(id, 2)
        };
        shard.commit(n, vec![at(tp(1, 0)), at(tp(1, 1))]);
    }
    shard
}

#[test]
fn batches_are_found_from_the_one_that_holds_the_offset() {
    let shard = filled();
    let found = batches(&shard, &[find(tp(1, 0), 5)], 1 << 20).remove(0);
    assert_eq!(bases(&found), [4, 6, 8, 10, 12, 14, 16, 18]);
    assert_eq!((found.log_start_offset, found.high_watermark), (0, 20));
    let first = &found.batches[0];
    assert_eq!(
        (first.object, first.position, first.size, first.object_size),
        (object(2), 1, 100, 201)
    );
}

#[test]
fn offsets_outside_are_out_of_range_and_the_end_is_empty() {
    let mut shard = filled();
    assert_eq!(shard.delete_records(tp(1, 0), 7).low_watermark, 7);
    let found = |offset| batches(&shard, &[find(tp(1, 0), offset)], 1 << 20).remove(0);
    for outside in [-1, 0, 6, 21] {
        let result = found(outside);
        assert_eq!(
            (result.error_code, result.log_start_offset, result.high_watermark),
            (OFFSET_OUT_OF_RANGE, 7, 20)
        );
        assert!(result.batches.is_empty());
    }
    assert_eq!((found(20).error_code, found(20).batches.len()), (NONE, 0));
    assert_eq!(
        bases(&found(7))[0],
        6,
        "the batch that straddles the log start is still there"
    );
    let unknown = batches(&shard, &[find(tp(9, 9), 0)], 1).remove(0);
    assert_eq!(unknown.error_code, UNKNOWN_TOPIC_OR_PARTITION);
}

#[test]
fn budgets_are_spent_in_order_and_the_batch_that_crosses_is_named() {
    let shard = filled();
    let wanted = |a, b| {
        let one = |partition, max_bytes| FindBatchesPartition {
            max_bytes,
            ..find(tp(1, partition), 0)
        };
        [one(0, a), one(1, b)]
    };
    let counts = |wanted: &[FindBatchesPartition], max| -> Vec<usize> {
        batches(&shard, wanted, max)
            .iter()
            .map(|result| result.batches.len())
            .collect()
    };
    assert_eq!(counts(&wanted(250, 1000), 1 << 20), [3, 10]);
    assert_eq!(counts(&wanted(250, 1000), 450), [3, 2]);
    assert_eq!(counts(&wanted(1000, 1000), 200), [2, 0]);
    assert_eq!(
        counts(&wanted(0, 0), 1 << 20),
        [1, 0],
        "one batch at least, but not one for each partition"
    );
    assert_eq!(counts(&wanted(0, 1000), 0), [1, 0]);
}

#[test]
fn list_offsets() {
    let mut shard = filled();
    shard.delete_records(tp(1, 0), 3);
    let list = |timestamp| {
        let wanted = [ListOffsetsPartition {
            partition: tp(1, 0),
            timestamp,
        }];
        shard.read(|db| queries::list_offsets(db, &wanted)).remove(0)
    };
    for (asked, offset) in [(-1, 20), (-2, 3), (-4, 3), (-5, -1), (-6, -1)] {
        assert_eq!(
            (
                list(asked).error_code,
                list(asked).offset,
                list(asked).timestamp.0
            ),
            (NONE, offset, -1),
            "{asked}"
        );
    }
    assert_eq!(list(-7).error_code, INVALID_REQUEST);
    let latest = list(-3);
    assert_eq!(
        (
            latest.offset,
            latest.timestamp.0,
            latest.batch.unwrap().base_offset
        ),
        (19, 1090, 18)
    );
    let by_time = list(1041);
    assert_eq!(
        (
            by_time.offset,
            by_time.timestamp.0,
            by_time.batch.unwrap().base_offset
        ),
        (10, 1050, 10)
    );
    // The batch that straddles the log start, and no batch so late.
    assert_eq!(list(0).offset, 3);
    assert_eq!(
        (list(9999).offset, list(9999).timestamp.0, list(9999).batch),
        (-1, -1, None)
    );
}

#[test]
fn delete_records_moves_the_start_once_and_only_forward() {
    let mut shard = filled();
    assert_eq!(
        shard.delete_records(tp(1, 0), 21),
        DeleteRecordsResult {
            error_code: OFFSET_OUT_OF_RANGE,
            low_watermark: -1
        }
    );
    assert_eq!(shard.delete_records(tp(1, 0), -2).error_code, OFFSET_OUT_OF_RANGE);
    assert_eq!(
        shard.delete_records(tp(9, 0), 1).error_code,
        UNKNOWN_TOPIC_OR_PARTITION
    );
    assert_eq!(shard.delete_records(tp(1, 0), 8).low_watermark, 8);
    let slots = shard.log.iter().flatten().count();
    assert_eq!(
        shard.delete_records(tp(1, 0), 4),
        DeleteRecordsResult {
            error_code: NONE,
            low_watermark: 8
        }
    );
    assert_eq!(shard.log.iter().flatten().count(), slots, "nothing was logged");
    assert_eq!(shard.delete_records(tp(1, 0), -1).low_watermark, 20);
    shard.purge();
    assert_eq!(shard.count("SELECT count(*) FROM batches"), 10);
    assert_eq!(shard.commit(99, vec![plain(tp(1, 0), 1)])[0].base_offset, 20);
}

#[test]
fn retention_by_time_and_size() {
    let mut shard = filled();
    let bound = |shard: &Shard, keep_from: Option<i64>, bytes, max| {
        shard.read(|db| Ok(queries::retention(db, &tp(1, 0), keep_from.map(Timestamp), bytes, max)?.0))
    };
    assert_eq!(bound(&shard, None, -1, 100), None);
    assert_eq!(
        bound(&shard, Some(1030), -1, 100),
        Some(Boundary {
            offset: 6,
            batches: 3
        })
    );
    assert_eq!(
        bound(&shard, Some(99_999), -1, 4),
        Some(Boundary {
            offset: 8,
            batches: 4
        })
    );
    assert_eq!(
        bound(&shard, Some(99_999), -1, 100),
        Some(Boundary {
            offset: 20,
            batches: 10
        })
    );
    // As Kafka: a batch goes only if the bound is still met without it.
    assert_eq!(
        bound(&shard, None, 350, 100),
        Some(Boundary {
            offset: 12,
            batches: 6
        })
    );
    assert_eq!(bound(&shard, None, 1000, 100), None);
    assert_eq!(
        bound(&shard, None, 0, 100),
        Some(Boundary {
            offset: 20,
            batches: 10
        })
    );
    // What waits for its purge is not counted a second time.
    shard.delete_records(tp(1, 0), 12);
    assert_eq!(bound(&shard, None, 350, 100), None);
    shard.purge();
    assert_eq!(bound(&shard, None, 350, 100), None);
}

#[test]
fn the_tail_tells_what_find_batches_finds() {
    let mut shard = filled();
    shard.delete_records(tp(1, 0), 4);
    let all = shard.shared.tail.read(LogOffset(0));
    assert!(!all.reset);
    assert_eq!(all.next, LogOffset(shard.log.len() as u64));
    for update in &all.updates {
        let found = batches(
            &shard,
            &[find(update.partition, update.log_start_offset)],
            1 << 20,
        )
        .remove(0);
        let told: Vec<_> = update
            .batches
            .iter()
            .filter(|batch| batch.last_offset >= update.log_start_offset)
            .cloned()
            .collect();
        assert_eq!(found.batches, told);
        assert_eq!(
            (found.log_start_offset, found.high_watermark),
            (update.log_start_offset, update.high_watermark)
        );
    }
    // From the middle on only what is new.
    let half = shard.shared.tail.read(LogOffset(6));
    assert_eq!(half.updates[0].batches[0].base_offset, 10);
    shard.run(delete_topic(1));
    let news = shard.shared.tail.read(all.next);
    assert_eq!(news.updates.len(), 2);
    assert!(news.updates.iter().all(|update| update.deleted));
}

#[test]
fn the_tail_resets_who_asks_for_what_is_not_remembered() {
    let tail = crate::shard::tail::Tail::default();
    let batch = |n| Coordinate {
        base_offset: n,
        last_offset: n,
        object: object(1),
        object_size: 1,
        position: 1,
        size: 1,
        max_timestamp: Timestamp(0),
        log_append_time: Timestamp(-1),
    };
    for slot in 0..30 {
        let batches = (0..9_999).map(batch).collect();
        let (partition, deleted) = (tp(1, 0), false);
        tail.push(
            LogOffset(slot),
            vec![TailUpdate {
                partition,
                log_start_offset: 0,
                high_watermark: 1,
                deleted,
                batches,
            }],
        );
    }
    let old = tail.read(LogOffset(0));
    assert_eq!((old.reset, old.next, old.updates.len()), (true, LogOffset(30), 0));
    assert!(tail.read(LogOffset(31)).reset, "from a future that did not come");
    assert_eq!(
        tail.read(LogOffset(30)),
        super::super::tail::News {
            reset: false,
            next: LogOffset(30),
            updates: vec![]
        }
    );
    // Answers are bounded, and go on where they ended.
    let part = tail.read(LogOffset(20));
    assert_eq!(
        (part.reset, part.next, part.updates[0].batches.len()),
        (false, LogOffset(22), 19_998)
    );
}
