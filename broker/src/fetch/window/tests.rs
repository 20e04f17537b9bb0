use futures::FutureExt;
use types::{Timestamp, TopicId};
use uuid::Uuid;

use super::*;

const SHARD: ShardId = ShardId(2);

fn partition(index: i32) -> TopicPartition {
    TopicPartition {
        topic: TopicId(Uuid::from_u128(1)),
        partition: index,
    }
}

fn batch(base: i64, last: i64) -> Coordinate {
    Coordinate {
        base_offset: base,
        last_offset: last,
        object: Uuid::from_u128(base as u128),
        object_size: 1000,
        position: 1,
        size: 100,
        max_timestamp: Timestamp(5),
        log_append_time: Timestamp(-1),
    }
}

fn update(index: i32, start: i64, end: i64, batches: &[(i64, i64)]) -> TailUpdate {
    TailUpdate {
        partition: partition(index),
        log_start_offset: start,
        high_watermark: end,
        deleted: false,
        batches: batches.iter().map(|(base, last)| batch(*base, *last)).collect(),
    }
}

fn news(reset: bool, next: u64, partitions: Vec<TailUpdate>) -> TailResponse {
    TailResponse {
        error_code: 0,
        reset,
        next: LogOffset(next),
        partitions,
        file_grace_ms: None,
    }
}

fn found(start: i64, end: i64) -> FindBatchesResult {
    FindBatchesResult {
        error_code: 0,
        log_start_offset: start,
        high_watermark: end,
        batches: Vec::new(),
    }
}

fn following() -> Windows {
    let windows = Windows::default();
    windows.update(SHARD, news(true, 10, vec![]));
    windows
}

fn offsets(look: Look) -> Vec<i64> {
    match look {
        Look::Batches(_, batches) => batches.iter().map(|batch| batch.base_offset).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn pushed_batches_are_found_and_everything_else_is_asked_for() {
    let windows = following();
    windows.update(
        SHARD,
        news(false, 12, vec![update(0, 3, 30, &[(10, 19), (20, 29)])]),
    );
    let bounds = Bounds {
        log_start_offset: 3,
        high_watermark: 30,
    };
    let look = |offset| windows.look(&partition(0), offset, 1000);
    assert_eq!(look(2), Look::Below(bounds));
    assert_eq!(look(3), Look::Ask);
    assert_eq!(look(9), Look::Ask);
    assert_eq!(offsets(look(10)), [10, 20]);
    assert_eq!(offsets(look(19)), [10, 20]);
    assert_eq!(offsets(look(25)), [20]);
    assert_eq!(look(30), Look::End(bounds));
    assert_eq!(look(31), Look::Ask, "only the leader may call it out of range");
    assert_eq!(windows.look(&partition(1), 0, 1000), Look::Ask);
    assert_eq!(offsets(windows.look(&partition(0), 10, 150)), [10]);
    assert_eq!(offsets(windows.look(&partition(0), 10, 0)), [10], "at least one");
}

#[test]
fn waiters_are_woken_by_news_of_their_partition() {
    let windows = following();
    windows.learn(SHARD, partition(0), LogOffset(9), &found(0, 10));
    windows.learn(SHARD, partition(1), LogOffset(9), &found(0, 10));
    let waiter = Arc::new(Notify::new());
    assert!(windows.wait(&partition(0), 10, &waiter));
    assert!(
        !windows.wait(&partition(0), 9, &waiter),
        "there is something already"
    );
    assert!(!windows.wait(&partition(7), 0, &waiter), "nothing is known");
    windows.update(SHARD, news(false, 11, vec![update(1, 0, 12, &[(10, 11)])]));
    assert!(waiter.notified().now_or_never().is_none());
    windows.update(SHARD, news(false, 12, vec![update(0, 0, 12, &[(10, 11)])]));
    assert!(waiter.notified().now_or_never().is_some());
    assert!(windows.wait(&partition(0), 12, &waiter));
    windows.update(
        SHARD,
        news(
            false,
            13,
            vec![TailUpdate {
                deleted: true,
                ..update(0, 0, 12, &[])
            }],
        ),
    );
    assert!(waiter.notified().now_or_never().is_some());
    assert_eq!(windows.look(&partition(0), 12, 1000), Look::Ask);
}

#[test]
fn an_answer_that_was_faster_than_the_push_is_not_repeated() {
    let windows = following();
    windows.update(SHARD, news(false, 11, vec![update(0, 0, 10, &[(5, 9)])]));
    // The leader has 10..=19 already; the push comes later.
    windows.learn(SHARD, partition(0), LogOffset(15), &found(0, 20));
    assert_eq!(windows.look(&partition(0), 12, 1000), Look::Ask);
    assert!(matches!(windows.look(&partition(0), 20, 1000), Look::End(_)));
    windows.update(SHARD, news(false, 16, vec![update(0, 0, 20, &[(10, 19)])]));
    assert_eq!(offsets(windows.look(&partition(0), 5, 1000)), [5, 10]);
    // A partition that is known by an answer alone: what is pushed from before it is no news.
    windows.learn(SHARD, partition(1), LogOffset(20), &found(0, 50));
    windows.update(SHARD, news(false, 18, vec![update(1, 0, 45, &[(40, 44)])]));
    assert!(matches!(windows.look(&partition(1), 50, 1000), Look::End(_)));
    assert_eq!(windows.look(&partition(1), 42, 1000), Look::Ask);
}

#[test]
fn after_a_gap_nothing_old_is_believed() {
    let windows = following();
    windows.update(SHARD, news(false, 12, vec![update(0, 0, 10, &[(0, 9)])]));
    let waiter = Arc::new(Notify::new());
    assert!(windows.wait(&partition(0), 10, &waiter));
    windows.update(SHARD, news(true, 50, vec![]));
    assert!(waiter.notified().now_or_never().is_some());
    assert_eq!(windows.look(&partition(0), 10, 1000), Look::Ask);
    // An answer from before the gap would hide what happened in it.
    windows.learn(SHARD, partition(0), LogOffset(12), &found(0, 10));
    assert_eq!(windows.look(&partition(0), 10, 1000), Look::Ask);
    windows.learn(SHARD, partition(0), LogOffset(49), &found(0, 60));
    assert!(matches!(windows.look(&partition(0), 60, 1000), Look::End(_)));
}

#[test]
fn a_log_start_that_moves_takes_batches_along() {
    let windows = following();
    windows.update(
        SHARD,
        news(false, 12, vec![update(0, 0, 30, &[(0, 9), (10, 19), (20, 29)])]),
    );
    windows.update(SHARD, news(false, 13, vec![update(0, 15, 30, &[])]));
    assert!(matches!(windows.look(&partition(0), 14, 1000), Look::Below(_)));
    assert_eq!(offsets(windows.look(&partition(0), 15, 1000)), [10, 20]);
}

#[test]
fn the_number_of_coordinates_is_bounded() {
    let windows = following();
    for i in 0..(KEEP as i64 + 10) {
        windows.update(
            SHARD,
            news(false, 12, vec![update((i % 2) as i32, 0, i + 1, &[(i, i)])]),
        );
    }
    assert_eq!(windows.0.lock().kept.len(), KEEP);
    assert_eq!(windows.look(&partition(0), 2, 1000), Look::Ask);
    assert_eq!(offsets(windows.look(&partition(0), 100, 100)), [100]);
}

#[test]
fn what_the_leader_has_deleted_is_below_the_start_before_it_is_pushed() {
    let windows = following();
    windows.update(SHARD, news(false, 11, vec![update(0, 0, 10, &[(0, 4), (5, 9)])]));
    let look = |offset| windows.look(&partition(0), offset, 1000);
    windows.deleted(&partition(0), 5);
    windows.deleted(&partition(0), -1);
    windows.deleted(&partition(1), 5);
    let bounds = Bounds {
        log_start_offset: 5,
        high_watermark: 10,
    };
    assert_eq!(look(4), Look::Below(bounds));
    assert_eq!(look(5), Look::Batches(bounds, vec![batch(5, 9)]));
    assert_eq!(windows.look(&partition(1), 0, 1000), Look::Ask);
}
