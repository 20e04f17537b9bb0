//! The life of files.

use super::*;
use crate::codes::*;
use crate::shard::Expired;
use crate::shard::queries::{self, DeadFile, Place};
use crate::shard::schema::file_state::*;

const A: ShardId = ShardId(0);
const B: ShardId = ShardId(1);

fn dead(shard: &Shard, state: i64) -> Vec<DeadFile> {
    dead_since(shard, state, Timestamp(i64::MAX))
}

fn dead_since(shard: &Shard, state: i64, older_than: Timestamp) -> Vec<DeadFile> {
    let files = shard.read(|db| queries::files_after(db, state, Place::default(), older_than, 100));
    files.into_iter().map(|(_, file)| file).collect()
}

fn state(shard: &Shard, n: u128) -> Option<i64> {
    let sql = "SELECT max(state) FROM files WHERE object = ?";
    shard.read(|db| db.query_row(sql, (object(n).as_bytes(),), |row| row.get(0)))
}

fn of(owners: &[ShardId], n: u128, batches: Vec<BatchRequest>) -> Command {
    Command::CommitFile(CommitFileRequest {
        owners: owners.to_vec(),
        ..file(n, batches)
    })
}

fn take_over(n: u128, owners: &[ShardId]) -> Command {
    Command::TakeOverFile {
        object: object(n),
        size: 7,
        owners: owners.to_vec(),
    }
}

#[test]
fn a_file_dies_with_its_last_batch_and_leaves_a_tombstone() {
    let mut shard = Shard::new();
    shard.create(1, 2);
    shard.commit(
        1,
        vec![plain(tp(1, 0), 1), plain(tp(1, 1), 1), plain(tp(1, 1), 1)],
    );
    shard.delete_records(tp(1, 1), -1);
    shard.purge();
    assert_eq!((state(&shard, 1), dead(&shard, DELETE).len()), (Some(LIVE), 0));
    shard.delete_records(tp(1, 0), -1);
    shard.purge();
    assert_eq!(
        dead(&shard, DELETE),
        [DeadFile {
            object: object(1),
            size: 301,
            owners: vec![SHARD]
        }]
    );
    let before = Timestamp(shard.now - 1);
    assert_eq!(
        dead_since(&shard, DELETE, before),
        [],
        "grace starts at its death"
    );
    shard.run(Command::FilesDeleted(vec![object(1)]));
    assert_eq!(
        (state(&shard, 1), dead(&shard, DELETE).len()),
        (Some(TOMBSTONE), 0)
    );
    // A late retry is answered as before, until the answer is forgotten; then it is refused.
    let batches = vec![plain(tp(1, 0), 1), plain(tp(1, 1), 1), plain(tp(1, 1), 1)];
    assert_eq!(shard.commit(1, batches.clone())[2].base_offset, 1);
    let results = shard.read(|db| queries::old_results(db, Timestamp(i64::MAX), 0, 10));
    shard.run(Command::Expire(Expired {
        results,
        ..Expired::default()
    }));
    assert_eq!(shard.refusal(file(1, batches)), KAFKA_STORAGE_ERROR);
    let tombstones = shard.read(|db| queries::old_tombstones(db, Timestamp(i64::MAX), 10));
    shard.run(Command::Expire(Expired {
        tombstones,
        ..Expired::default()
    }));
    assert_eq!(state(&shard, 1), None);
}

#[test]
fn a_file_without_an_accepted_batch_is_dead_at_once() {
    let mut shard = Shard::new();
    shard.create(1, 1);
    shard.commit(1, vec![idem(tp(1, 0), 1, 7, 0, 0)]);
    shard.commit(2, vec![idem(tp(1, 0), 1, 7, 0, 0), plain(tp(9, 9), 1)]);
    assert_eq!(
        dead(&shard, DELETE)
            .iter()
            .map(|file| file.object)
            .collect::<Vec<_>>(),
        [object(2)]
    );
}

#[test]
fn deleting_a_topic_hides_it_at_once_and_lets_go_of_its_files_in_steps() {
    let mut shard = Shard::new();
    shard.create(1, 3);
    shard.create(2, 1);
    for n in 0..5 {
        let one = |partition| idem(tp(1, partition), 1, 7, 0, n as i32);
        shard.commit(n, vec![one(0), one(1), one(2)]);
    }
    shard.commit(9, vec![plain(tp(1, 0), 1), plain(tp(2, 0), 1)]);
    shard.run(delete_topic(1));
    assert_eq!(shard.count("SELECT count(*) FROM partitions"), 1);
    assert_eq!(
        shard.commit(10, vec![plain(tp(1, 0), 1)])[0].error_code,
        UNKNOWN_TOPIC_OR_PARTITION
    );
    assert_eq!(shard.count("SELECT count(*) FROM batches"), 17);
    assert_eq!(shard.run(Command::Purge { max_batches: 4 }), Output::Purged(true));
    assert_eq!(
        shard.count("SELECT count(*) FROM batches"),
        13,
        "a purge deletes no more than it was told"
    );
    shard.purge();
    assert_eq!(shard.count("SELECT count(*) FROM batches"), 1);
    assert_eq!(shard.count("SELECT count(*) FROM producers"), 0);
    assert_eq!(shard.count("SELECT count(*) FROM garbage"), 0);
    assert_eq!(dead(&shard, DELETE).len(), 6);
    assert_eq!(state(&shard, 9), Some(LIVE));
    // Topics have identities: the same name is another topic.
    shard.create(3, 1);
    assert_eq!(shard.commit(11, vec![plain(tp(3, 0), 1)]), [ok(0)]);
}

#[test]
fn a_clock_that_was_wrong_keeps_nothing_from_being_deleted() {
    for (ahead, since) in [(600_000, 1_600_000), (40_000_000_000, 1_000_000)] {
        let mut shard = Shard::new();
        shard.create(1, 1);
        shard.commit(1, vec![plain(tp(1, 0), 1)]);
        shard.now += ahead;
        shard.create(2, 1);
        shard.now -= ahead;
        shard.delete_records(tp(1, 0), -1);
        shard.purge();
        // Within the error of clocks a file is kept longer rather than shorter.
        assert_eq!(dead_since(&shard, DELETE, Timestamp(since - 1)), []);
        assert_eq!(dead_since(&shard, DELETE, Timestamp(since)).len(), 1);
    }
}

#[test]
fn a_file_of_two_shards_goes_down_the_chain() {
    let (mut a, mut b) = (Shard::with_id(A), Shard::with_id(B));
    a.create(1, 1);
    b.create(2, 1);
    a.run(of(&[A, B], 1, vec![plain(tp(1, 0), 1)]));
    b.run(of(&[A, B], 1, vec![plain(tp(2, 0), 1)]));
    // The second owner's batches die first: it has to wait for the first one.
    b.delete_records(tp(2, 0), -1);
    b.purge();
    assert_eq!(state(&b, 1), Some(WAITING));
    assert!(dead(&b, DELETE).is_empty() && dead(&b, HAND_OVER).is_empty());
    a.delete_records(tp(1, 0), -1);
    a.purge();
    assert!(
        dead(&a, DELETE).is_empty(),
        "the first owner must not delete what the second may need"
    );
    assert_eq!(dead(&a, HAND_OVER)[0].owners, [A, B]);
    b.now += 60_000;
    b.run(take_over(1, &[B]));
    b.run(take_over(1, &[B]));
    a.run(Command::FilesHandedOver(vec![object(1)]));
    assert_eq!((state(&a, 1), state(&b, 1)), (Some(TOMBSTONE), Some(DELETE)));
    let before = Timestamp(b.now - 1);
    assert_eq!(
        dead_since(&b, DELETE, before),
        [],
        "grace starts at the hand-over"
    );
    b.run(Command::FilesDeleted(vec![object(1)]));
    // A hand-over that is repeated even later does not wake the dead.
    b.run(take_over(1, &[B]));
    assert_eq!(state(&b, 1), Some(TOMBSTONE));
}

#[test]
fn a_live_file_that_is_taken_over_is_deleted_after_its_own_death() {
    let mut b = Shard::with_id(B);
    b.create(2, 1);
    b.run(of(&[A, B], 1, vec![plain(tp(2, 0), 1)]));
    b.run(take_over(1, &[B]));
    assert_eq!(state(&b, 1), Some(LIVE));
    b.delete_records(tp(2, 0), -1);
    b.purge();
    assert_eq!(dead(&b, DELETE).len(), 1);
}

#[test]
fn a_shard_that_never_saw_the_file_passes_it_on_and_refuses_it_later() {
    let mut b = Shard::with_id(B);
    b.create(2, 1);
    b.run(take_over(1, &[B, ShardId(2)]));
    assert_eq!(dead(&b, HAND_OVER)[0].owners, [B, ShardId(2)]);
    let late = CommitFileRequest {
        owners: vec![A, B, ShardId(2)],
        ..file(1, vec![plain(tp(2, 0), 1)])
    };
    assert_eq!(b.refusal(late.clone()), KAFKA_STORAGE_ERROR);
    b.run(Command::FilesHandedOver(vec![object(1)]));
    assert_eq!(b.refusal(late), KAFKA_STORAGE_ERROR);
    let other = CommitFileRequest {
        owners: vec![B],
        ..file(2, vec![plain(tp(2, 0), 1)])
    };
    let Output::Committed { error_code, batches } = b.run(Command::CommitFile(other)) else {
        panic!()
    };
    assert_eq!(
        (error_code, batches),
        (NONE, vec![ok(0)]),
        "other files are not concerned"
    );
}

#[test]
fn a_hand_over_that_is_pending_already_refuses_the_commit() {
    let mut b = Shard::with_id(B);
    b.create(2, 1);
    b.judge(&take_over(1, &[B]));
    let late = CommitFileRequest {
        owners: vec![A, B],
        ..file(1, vec![plain(tp(2, 0), 1)])
    };
    let refused = Output::Committed {
        error_code: KAFKA_STORAGE_ERROR,
        batches: vec![],
    };
    assert_eq!(b.judge(&Command::CommitFile(late)), (refused, None));
}

#[test]
fn describe_files_knows_the_oldest_live_file_and_what_is_still_needed() {
    let mut shard = Shard::new();
    shard.create(1, 1);
    let describe =
        |shard: &Shard| shard.read(|db| queries::describe_files(db, &[object(1), object(2), object(3)]));
    assert_eq!(describe(&shard), (Timestamp(-1), vec![]));
    shard.commit(1, vec![plain(tp(1, 0), 1)]);
    shard.now += 10;
    shard.commit(2, vec![plain(tp(1, 0), 1)]);
    assert_eq!(
        describe(&shard),
        (Timestamp(1_000_000), vec![object(1), object(2)])
    );
    shard.delete_records(tp(1, 0), 1);
    shard.purge();
    assert_eq!(
        describe(&shard),
        (Timestamp(1_000_010), vec![object(1), object(2)]),
        "dead, but not gone yet"
    );
    shard.run(Command::FilesDeleted(vec![object(1)]));
    assert_eq!(describe(&shard).1, [object(2)]);
}
