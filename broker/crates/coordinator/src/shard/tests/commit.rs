//! The checks of a commit, in Kafka's terms.

use super::*;
use crate::codes::*;

const P: fn() -> TopicPartition = || tp(1, 0);

fn shard() -> Shard {
    let mut shard = Shard::new();
    shard.create(1, 2);
    shard
}

#[test]
fn offsets_are_dense_per_partition() {
    let mut shard = shard();
    let results = shard.commit(1, vec![plain(P(), 3), plain(P(), 2), plain(tp(1, 1), 4)]);
    assert_eq!(results, [ok(0), ok(3), ok(0)]);
    assert_eq!(shard.commit(2, vec![plain(P(), 1)]), [ok(5)]);
}

#[test]
fn batches_of_a_partition_that_do_not_lie_together_keep_their_order() {
    let mut shard = shard();
    let results = shard.commit(1, vec![plain(P(), 1), plain(tp(1, 1), 1), plain(P(), 1)]);
    assert_eq!(results, [ok(0), ok(0), ok(1)]);
}

#[test]
fn an_unknown_partition_fails_alone() {
    let mut shard = shard();
    let results = shard.commit(1, vec![plain(tp(9, 0), 1), plain(P(), 1)]);
    assert_eq!(results[0].error_code, UNKNOWN_TOPIC_OR_PARTITION);
    assert_eq!(results[1], ok(0));
}

#[test]
fn a_second_commit_of_a_file_gets_the_first_answer_and_changes_nothing() {
    let mut shard = shard();
    let batches = vec![
        idem(P(), 5, 7, 0, 0),
        idem(P(), 5, 7, 0, 9),
        idem(P(), 5, 7, 0, 0),
        BatchRequest {
            must_follow: false,
            log_append_time: true,
            ..plain(tp(1, 1), 1)
        },
        plain(tp(9, 9), 1),
    ];
    let first = shard.commit(1, batches.clone());
    let before = shard.dump();
    shard.now += 1000;
    assert_eq!(shard.commit(1, batches.clone()), first);
    let (_, entry) = shard.judge(&Command::CommitFile(file(1, batches)));
    assert_eq!(entry, None);
    let after = shard.dump();
    assert_eq!(before[1..], after[1..], "only the applied slot moved");
}

#[test]
fn a_second_commit_is_answered_from_what_is_pending() {
    let mut shard = shard();
    let request = Command::CommitFile(file(1, vec![idem(P(), 5, 7, 0, 0)]));
    let (first, entry) = shard.judge(&request);
    let (second, none) = shard.judge(&request);
    assert_eq!(first, second);
    assert!(entry.is_some() && none.is_none());
}

#[test]
fn a_different_file_under_the_same_name_is_refused() {
    let mut shard = shard();
    shard.commit(1, vec![plain(P(), 1)]);
    assert_eq!(
        shard.refusal(file(1, vec![plain(P(), 1), plain(P(), 1)])),
        KAFKA_STORAGE_ERROR
    );
}

#[test]
fn malformed_requests_are_refused_as_a_whole() {
    let mut shard = shard();
    let mut beyond = file(1, vec![plain(P(), 1)]);
    beyond.size = 50;
    assert_eq!(shard.refusal(beyond), INVALID_REQUEST);
    assert_eq!(shard.refusal(file(1, vec![plain(P(), 0)])), INVALID_REQUEST);
    assert_eq!(
        shard.refusal(file(1, vec![idem(P(), 1, 7, 0, -1)])),
        INVALID_REQUEST
    );
    let foreign = CommitFileRequest {
        owners: vec![ShardId(5)],
        ..file(1, vec![plain(P(), 1)])
    };
    assert_eq!(shard.refusal(foreign), INVALID_REQUEST);
    assert_eq!(shard.commit(1, vec![plain(P(), 1)]), [ok(0)]);
}

#[test]
fn a_repeated_batch_gets_its_first_offset() {
    let mut shard = shard();
    for n in 0..6 {
        assert_eq!(
            shard.commit(n, vec![idem(P(), 10, 7, 0, 10 * n as i32)]),
            [ok(10 * n as i64)]
        );
    }
    for n in 1..6 {
        let again = shard.commit(100 + n, vec![idem(P(), 10, 7, 0, 10 * n as i32)]);
        assert_eq!(again, [duplicate(10 * n as i64)]);
    }
    // Only five are remembered, and an overlap is no duplicate.
    let oldest = shard.commit(200, vec![idem(P(), 10, 7, 0, 0)]);
    assert_eq!(oldest, [error(OUT_OF_ORDER_SEQUENCE_NUMBER)]);
    let overlap = shard.commit(201, vec![idem(P(), 5, 7, 0, 50)]);
    assert_eq!(overlap, [error(OUT_OF_ORDER_SEQUENCE_NUMBER)]);
}

#[test]
fn a_batch_is_judged_against_the_earlier_ones_of_its_file() {
    let mut shard = shard();
    let results = shard.commit(
        1,
        vec![
            idem(P(), 2, 7, 0, 0),
            idem(P(), 2, 7, 0, 2),
            idem(P(), 2, 7, 0, 0),
            idem(P(), 2, 7, 0, 4),
            idem(tp(1, 1), 2, 7, 0, 0),
        ],
    );
    assert_eq!(results, [ok(0), ok(2), duplicate(0), ok(4), ok(0)]);
}

#[test]
fn a_gap_is_refused_and_so_is_what_follows_it() {
    let mut shard = shard();
    shard.commit(1, vec![idem(P(), 1, 7, 0, 0)]);
    let results = shard.commit(
        2,
        vec![
            idem(P(), 1, 7, 0, 2),
            idem(P(), 1, 7, 0, 3),
            idem(P(), 1, 8, 0, 0),
        ],
    );
    let gap = error(OUT_OF_ORDER_SEQUENCE_NUMBER);
    assert_eq!(results, [gap.clone(), gap.clone(), ok(1)]);
}

/// The first batch was lost in an earlier file, the second is refused for that, and then both come again: all in one file.
#[test]
fn batches_that_come_again_behind_a_refused_one_are_taken() {
    let mut shard = shard();
    let gap = error(OUT_OF_ORDER_SEQUENCE_NUMBER);
    shard.commit(1, vec![idem(P(), 1, 7, 0, 0)]);
    let again = |producer, first: BatchRequest| {
        let batch = |sequence| idem(P(), 1, producer, 0, sequence);
        vec![first, batch(1), batch(2)]
    };
    let results = shard.commit(2, again(7, idem(P(), 1, 7, 0, 2)));
    assert_eq!(results, [gap.clone(), ok(1), ok(2)]);
    // The same of a producer that nothing is known of.
    let follower = |sequence| BatchRequest {
        must_follow: true,
        ..idem(P(), 1, 8, 0, sequence)
    };
    let results = shard.commit(3, again(8, follower(2)));
    assert_eq!(results, [gap.clone(), ok(3), ok(4)]);
    // What is behind a refused one and no repetition stays behind it.
    let follower = |sequence| BatchRequest {
        producer_id: 9,
        ..follower(sequence)
    };
    let results = shard.commit(4, vec![follower(2), idem(P(), 1, 9, 0, 3)]);
    assert_eq!(results, [gap.clone(), gap]);
}

#[test]
fn an_unknown_producer_may_start_anywhere() {
    let mut shard = shard();
    assert_eq!(
        shard.commit(1, vec![idem(P(), 3, 7, 4, 100), idem(P(), 3, 7, 4, 103)]),
        [ok(0), ok(3)]
    );
}

#[test]
fn a_new_epoch_starts_at_zero_and_fences_the_old_one() {
    let mut shard = shard();
    shard.commit(1, vec![idem(P(), 1, 7, 0, 0), idem(P(), 1, 7, 0, 1)]);
    let results = shard.commit(2, vec![idem(P(), 1, 7, 1, 2)]);
    assert_eq!(results, [error(OUT_OF_ORDER_SEQUENCE_NUMBER)]);
    assert_eq!(shard.commit(3, vec![idem(P(), 1, 7, 1, 0)]), [ok(2)]);
    assert_eq!(
        shard.commit(4, vec![idem(P(), 1, 7, 0, 2)]),
        [error(INVALID_PRODUCER_EPOCH)]
    );
    // What the old epoch wrote is no duplicate for the new one.
    assert_eq!(shard.commit(5, vec![idem(P(), 1, 7, 1, 1)]), [ok(3)]);
}

#[test]
fn an_old_epoch_does_not_take_a_newer_one_of_the_same_file_with_it() {
    let mut shard = shard();
    shard.commit(1, vec![idem(P(), 1, 7, 1, 0)]);
    let results = shard.commit(2, vec![idem(P(), 1, 7, 0, 1), idem(P(), 1, 7, 2, 0)]);
    assert_eq!(results, [error(INVALID_PRODUCER_EPOCH), ok(1)]);
}

#[test]
fn sequences_wrap_from_the_largest_to_zero() {
    let mut shard = shard();
    let max = i32::MAX;
    // Up to MAX exactly, then 0; and one batch that wraps inside.
    assert_eq!(
        shard.commit(1, vec![idem(P(), 2, 7, 0, max - 1), idem(P(), 3, 7, 0, 0)]),
        [ok(0), ok(2)]
    );
    assert_eq!(
        shard.commit(2, vec![idem(P(), 4, 8, 0, max - 1), idem(P(), 1, 8, 0, 2)]),
        [ok(5), ok(9)]
    );
    assert_eq!(shard.commit(3, vec![idem(P(), 4, 8, 0, max - 1)]), [duplicate(5)]);
    assert_eq!(shard.commit(4, vec![idem(P(), 1, 8, 0, 3)]), [ok(10)]);
}

#[test]
fn log_append_time_never_goes_back_in_a_partition() {
    let mut shard = shard();
    let batch = || BatchRequest {
        must_follow: false,
        log_append_time: true,
        ..plain(P(), 1)
    };
    let first = shard.commit(1, vec![batch()]).remove(0).log_append_time;
    assert_eq!(first, Timestamp(1_000_000));
    // The next leader's clock is behind.
    shard.now = 400_000;
    assert_eq!(shard.commit(2, vec![batch()]).remove(0).log_append_time, first);
    assert_eq!(
        shard
            .commit(3, vec![plain(tp(1, 1), 1)])
            .remove(0)
            .log_append_time,
        Timestamp(-1)
    );
    let batches = shard
        .read(|db| super::super::queries::find_batches(db, &[find(P(), 0)], 1000))
        .remove(0)
        .batches;
    assert!(
        batches
            .iter()
            .all(|batch| batch.log_append_time == first && batch.max_timestamp == first)
    );
}

#[test]
fn a_repeat_gets_its_first_log_append_time() {
    let mut shard = shard();
    let batch = || BatchRequest {
        must_follow: false,
        log_append_time: true,
        ..idem(P(), 1, 7, 0, 0)
    };
    let first = shard.commit(1, vec![batch()]).remove(0);
    shard.now += 5_000;
    let again = shard.commit(2, vec![batch()]).remove(0);
    assert_eq!(
        again,
        BatchResult {
            duplicate: true,
            ..first
        }
    );
}

#[test]
fn judging_again_after_the_group_before_was_applied_comes_to_the_same() {
    let mut shard = shard();
    let first = Command::CommitFile(file(1, vec![idem(P(), 1, 7, 0, 0)]));
    let second = Command::CommitFile(file(2, vec![idem(P(), 1, 7, 0, 1), idem(P(), 1, 7, 0, 0)]));
    let (_, entry) = shard.judge(&first);
    let before = shard.judge(&second);
    shard.apply(entry.into_iter().collect());
    assert_eq!(shard.judge(&second), before);
}

#[test]
fn producers_expire_but_not_those_in_use() {
    let mut shard = shard();
    shard.commit(1, vec![idem(P(), 1, 7, 0, 0), idem(P(), 1, 8, 0, 0)]);
    shard.now += 10_000;
    shard.commit(2, vec![idem(P(), 1, 8, 0, 1)]);
    let before = Timestamp(shard.now - 5_000);
    let producers = shard.read(|db| super::super::queries::idle_producers(db, before, (0, i64::MIN), 10));
    assert_eq!(producers.iter().map(|(_, id)| *id).collect::<Vec<_>>(), [7]);
    // Used again between the look and the command: it stays.
    let mut candidates = producers;
    candidates.push((candidates[0].0, 8));
    let expired = super::super::Expired {
        producers: candidates,
        producers_before: before,
        ..Default::default()
    };
    shard.run(Command::Expire(expired));
    assert_eq!(shard.count("SELECT count(*) FROM producers"), 1);
    assert_eq!(shard.commit(3, vec![idem(P(), 1, 8, 0, 1)]), [duplicate(2)]);
    assert_eq!(shard.commit(4, vec![idem(P(), 1, 7, 0, 33)]), [ok(3)]);
}

pub fn find(id: TopicPartition, offset: i64) -> FindBatchesPartition {
    FindBatchesPartition {
        partition: id,
        offset,
        max_bytes: 1 << 20,
    }
}
