//! Snapshots as they are received: in pieces, damaged, or in the middle of being replaced.

use std::path::PathBuf;

use super::*;

fn filled() -> Shard {
    let mut shard = Shard::new();
    shard.create(1, 3);
    for n in 0..40 {
        shard.now += 1000;
        let batches = (0..3).map(|partition| idem(tp(1, partition), 2, 7, 0, 2 * n));
        shard.commit(n.cast_unsigned().into(), batches.collect());
    }
    shard
}

fn files(shard: &Shard) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(shard.dir.path()).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn pieces_of_any_size_come_to_the_same() {
    let mut shard = filled();
    let (last, snapshot) = shard.snapshot();
    for piece in [1, 3, 8, 9, 1000, snapshot.len() - 1, snapshot.len()] {
        let mut other = Shard::new();
        other.create(9, 1);
        other.restore(last, &snapshot, piece).unwrap();
        assert_eq!(other.dump(), shard.dump(), "pieces of {piece} bytes");
    }
}

#[test]
fn what_is_not_a_whole_snapshot_leaves_the_state_as_it_was() {
    let mut shard = filled();
    let (last, snapshot) = shard.snapshot();
    let mut other = Shard::new();
    other.create(9, 1);
    let before = other.dump();
    for length in (0..20).chain([snapshot.len() / 2, snapshot.len() - 1]) {
        let error = other.restore(last, &snapshot[..length], 100).unwrap_err();
        assert!(matches!(error, StateError::Corrupt(_)), "{length} bytes: {error}");
        assert_eq!(other.dump(), before, "{length} bytes");
    }
    for at in [0, 5, 8, 12] {
        let mut damaged = snapshot.clone();
        damaged[at] ^= 0xff;
        assert!(other.restore(last, &damaged, 100).is_err(), "byte {at}");
        assert_eq!(other.dump(), before, "byte {at}");
    }
    let more = [&snapshot[..], b"more"].concat();
    assert!(other.restore(last, &more, 100).is_err());
    let error = other.restore(last.next(), &snapshot, 100).unwrap_err();
    assert!(error.to_string().contains("holds the state at"), "{error}");
    assert_eq!(other.dump(), before);
    // One that stopped half-way is in nobody's way.
    let mut half = other.state.stage().unwrap();
    half.push(&snapshot[..snapshot.len() / 2]).unwrap();
    other.restore(last, &snapshot, 100).unwrap();
    assert_eq!(other.dump(), shard.dump());
    drop(half);
}

/// An earlier release would leave counts and times as they are, and pass them on.
#[test]
fn a_snapshot_has_no_table_that_an_earlier_release_does_not_keep_up() {
    let (_, snapshot) = filled().snapshot();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("snapshot.db");
    std::fs::write(&path, zstd::decode_all(&snapshot[8..]).unwrap()).unwrap();
    let db = Connection::open(path).unwrap();
    let mut tables = db
        .prepare("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
        .unwrap();
    let tables = tables.query_map((), |row| row.get::<_, String>(0)).unwrap();
    let tables: Vec<String> = tables.map(Result::unwrap).collect();
    let known = [
        "batches",
        "deleted_topics",
        "files",
        "garbage",
        "groups",
        "meta",
        "offsets",
        "partitions",
        "producers",
    ];
    assert_eq!(tables, known);
}

#[test]
fn nothing_is_left_of_a_snapshot_that_was_sent() {
    let mut shard = filled();
    let before = files(&shard);
    let (last, snapshot) = shard.snapshot();
    let mut after = files(&shard);
    after.retain(|file| !before.contains(file));
    assert_eq!(after, [] as [PathBuf; 0]);
    let expected = shard.dump();
    shard.restore(last, &snapshot, 1000).unwrap();
    assert_eq!(shard.dump(), expected);
}
