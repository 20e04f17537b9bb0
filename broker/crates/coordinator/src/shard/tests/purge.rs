//! What a deleted topic leaves behind.

use super::*;
use crate::shard::groups::{fetch_offsets, load_groups};
use crate::shard::{OffsetCommit, StoredGroup};

const PRODUCERS: i64 = 50;
const GROUPS: i32 = 20;
const PARTITIONS: i32 = 5;

fn offset(id: Option<u128>, partition: i32, offset: i64) -> OffsetCommit {
    OffsetCommit {
        topic: "t1".to_owned(),
        topic_id: id.map(topic),
        partition,
        offset,
        leader_epoch: -1,
        metadata: None,
    }
}

fn commit(group: &str, offsets: Vec<OffsetCommit>) -> Command {
    Command::CommitOffsets {
        group: group.to_owned(),
        offsets,
    }
}

/// Topic 1 with a batch of each of many producers, and many groups that have read it; then it is deleted.
fn deleted() -> Shard {
    let mut shard = Shard::new();
    shard.create(1, 1);
    shard.create(2, 1);
    let batches = (0..PRODUCERS).map(|producer| idem(tp(1, 0), 1, producer, 0, 0));
    shard.commit(1, batches.collect());
    shard.commit(2, vec![idem(tp(2, 0), 1, 0, 0, 0)]);
    for group in 0..GROUPS {
        let offsets = (0..PARTITIONS).map(|partition| offset(Some(1), partition, 7));
        shard.run(commit(&format!("g{group}"), offsets.collect()));
    }
    let other = OffsetCommit {
        topic: "t2".to_owned(),
        ..offset(Some(2), 0, 9)
    };
    shard.run(commit("g0", vec![other, offset(None, 17, 1)]));
    shard.run(delete_topic(1));
    shard
}

fn rows(shard: &Shard) -> i64 {
    let tables = ["batches", "producers", "offsets"].map(|table| format!("(SELECT count(*) FROM {table})"));
    shard.count(&format!("SELECT {}", tables.join(" + ")))
}

fn offsets(shard: &Shard, group: &str) -> Vec<(String, i32, i64)> {
    let stored = shard.read(|db| fetch_offsets(db, group, None));
    let all: Vec<_> = stored
        .into_iter()
        .map(|stored| (stored.commit.topic, stored.commit.partition, stored.commit.offset))
        .collect();
    let named: Vec<_> = all
        .iter()
        .map(|(topic, partition, _)| (topic.clone(), *partition))
        .collect();
    assert_eq!(
        shard.read(|db| fetch_offsets(db, group, Some(&named))).len(),
        all.len()
    );
    all
}

#[test]
fn producers_and_offsets_go_in_steps_and_are_not_seen_meanwhile() {
    let mut shard = deleted();
    let all = i64::from(GROUPS * PARTITIONS) + 2 * PRODUCERS + 3;
    assert_eq!(
        rows(&shard),
        all,
        "the entry that deletes the topic deletes no row of it"
    );
    let seen = |shard: &Shard| {
        assert_eq!(offsets(shard, "g0"), [("t2".to_owned(), 0, 9)]);
        assert_eq!(offsets(shard, "g1"), []);
        let gone = Some(vec![("t1".to_owned(), 0)]);
        assert_eq!(shard.read(|db| fetch_offsets(db, "g1", gone.as_deref())), []);
        let groups = shard.read(load_groups);
        let kept = StoredGroup {
            group: "g0".to_owned(),
            metadata: None,
        };
        assert_eq!(groups, [kept], "groups that have nothing else are gone");
    };
    let mut steps = 0;
    loop {
        seen(&shard);
        let before = rows(&shard);
        if shard.run(Command::Purge { max_batches: 7 }) != Output::Purged(true) {
            break;
        }
        let gone = before - rows(&shard);
        assert!((0..=7).contains(&gone), "a purge of 7 has deleted {gone} rows");
        steps += 1;
    }
    assert!(steps <= all / 7 + 5, "{steps} steps");
    assert_eq!(rows(&shard), 3, "what belongs to the other topic");
}

#[test]
fn a_name_that_is_used_again_has_offsets_of_its_own() {
    let mut shard = deleted();
    let mine = |partition, offset| [("t1".to_owned(), partition, offset)];
    shard.create(3, 1);
    shard.run(commit("g1", vec![offset(Some(3), 0, 100)]));
    shard.run(commit("g2", vec![offset(None, 1, 200)]));
    // Leaders refuse this from anybody who commits, for as long as a request can be on its way.
    let late = commit("g3", vec![offset(Some(1), 2, 300)]);
    assert!(matches!(shard.run(late), Output::Refused(_)));
    for _ in 0..2 {
        assert_eq!(offsets(&shard, "g1"), mine(0, 100));
        assert_eq!(offsets(&shard, "g2"), mine(1, 200));
        assert_eq!(offsets(&shard, "g3"), []);
        shard.purge();
    }
    // It is in the log all the same: then it counts, as it does in views that had nothing left to purge.
    let mut shard = deleted();
    shard.run(Command::PutGroup {
        group: "g3".to_owned(),
        metadata: None,
        offsets: vec![offset(Some(1), 2, 300)],
    });
    for _ in 0..2 {
        assert_eq!(offsets(&shard, "g3"), mine(2, 300));
        assert_eq!(offsets(&shard, "g4"), []);
        shard.purge();
    }
}

#[test]
fn what_waits_for_its_purge_is_not_in_snapshots() {
    let mut shard = deleted();
    while shard.count("SELECT count(*) FROM batches") > 1 {
        shard.run(Command::Purge { max_batches: 7 });
    }
    let (last, snapshot) = shard.snapshot();
    let mut other = Shard::new();
    other.restore(last, &snapshot, 1000).unwrap();
    assert_eq!(other.dump(), shard.dump());
    assert_eq!(rows(&other), 3, "other releases would show it");
    assert!(rows(&shard) > 3);
    // The log goes on, whatever each of them still has.
    other.log.clone_from(&shard.log);
    let (_, entry) = shard.judge(&Command::Purge { max_batches: 7 });
    let entries = vec![entry.unwrap()];
    shard.apply(entries.clone());
    other.apply(entries);
    assert_eq!(other.dump(), shard.dump());
}
