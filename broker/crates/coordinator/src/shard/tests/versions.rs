//! Versions of the log: who writes which, and who reads which.

use kafka_wire::flex::{Decode, Encode};
use proptest::collection::vec;
use proptest::prelude::*;
use types::feature::FEATURE;
use types::{FeatureLevel, FeatureLevels};

use super::earlier_releases::history;
use super::*;
use crate::replica::StateError;
use crate::shard::entry::{Batch, BatchProducer, Change, FileCommitted, PartitionBatches, decode, encode};
use crate::shard::packed::Packed;
use crate::shard::results;
use crate::shard::schema::{self, file_state};

fn at(supported: FeatureLevels, level: FeatureLevel) -> Shard {
    Shard::with(
        SHARD,
        Features {
            supported,
            finalized: Arc::new(move || level),
        },
    )
}

fn run(shard: &mut Shard) {
    for command in history(10).into_iter().chain(history(20)).flatten() {
        shard.run(command);
    }
}

#[test]
fn every_level_comes_to_the_same_view() {
    let mut first = at(FeatureLevels::SUPPORTED, FeatureLevel::FIRST);
    let mut packed = at(FeatureLevels::SUPPORTED, FeatureLevel::PACKED_FILES);
    run(&mut first);
    run(&mut packed);
    assert_eq!(first.dump(), packed.dump());
    let versions = |shard: &Shard| -> Vec<u8> { shard.log.iter().flatten().map(|entry| entry[0]).collect() };
    assert!(versions(&first).iter().all(|version| *version == 0));
    assert!(versions(&packed).contains(&1));
    // What has been written before the level was raised stays readable, and so does what comes after it.
    let mut late = at(FeatureLevels::SUPPORTED, FeatureLevel::PACKED_FILES);
    late.log = vec![Vec::new(); first.log.len()];
    for (offset, entries) in (0..).zip(&first.log) {
        late.state.apply(LogOffset(offset), entries).unwrap();
    }
    for command in history(30).into_iter().flatten() {
        first.run(command.clone());
        late.run(command);
    }
    assert_eq!(first.dump(), late.dump());
}

#[test]
fn a_node_of_the_first_release_reads_the_first_level_and_refuses_the_next_by_name() {
    let mut first = at(FeatureLevels::SUPPORTED, FeatureLevel::FIRST);
    let mut packed = at(FeatureLevels::SUPPORTED, FeatureLevel::PACKED_FILES);
    run(&mut first);
    run(&mut packed);
    let apply = |log: &[Vec<Bytes>]| {
        let mut old = at(FeatureLevels::FIRST_RELEASE, FeatureLevel::FIRST);
        let mut slots = (0..).zip(log);
        slots.try_for_each(|(offset, entries)| old.state.apply(LogOffset(offset), entries))
    };
    apply(&first.log).unwrap();
    let error = apply(&packed.log).unwrap_err();
    assert!(matches!(error, StateError::Unsupported(_)), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("version 1") && text.contains(FEATURE) && text.contains("1-1"),
        "{text}"
    );
}

#[test]
fn what_comes_after_this_release_is_refused_as_such() {
    let entry = Bytes::from_static(&[2, 0, 0, 0, 0, 0, 0, 0, 0, 99]);
    let error = decode(entry, FeatureLevels::SUPPORTED).unwrap_err();
    assert!(
        matches!(&error, StateError::Unsupported(text) if text.contains("version 2")),
        "{error}"
    );

    let mut shard = Shard::new();
    run(&mut shard);
    let (offset, snapshot) = shard.snapshot();
    let mut later = snapshot.clone();
    later[7] += 1;
    let error = shard.restore(offset, &later, 1000).unwrap_err();
    assert!(
        matches!(&error, StateError::Unsupported(text) if text.contains("schema 2")),
        "{error}"
    );
    shard.restore(offset, &snapshot, 1000).unwrap();
}

#[test]
fn snapshots_count_live_batches_where_the_first_release_did() {
    let mut shard = Shard::new();
    shard.create(1, 2);
    shard.commit(
        1,
        vec![plain(tp(1, 0), 1), plain(tp(1, 1), 1), plain(tp(1, 1), 1)],
    );
    shard.commit(2, vec![plain(tp(1, 0), 1)]);
    shard.run(Command::DeleteRecords(vec![DeleteRecordsPartition {
        partition: tp(1, 0),
        offset: 2,
    }]));
    shard.purge();
    let copy = shard.dir.path().join("copy.db");
    let path = copy.to_string_lossy();
    shard.state.db.execute("VACUUM INTO ?", (path,)).unwrap();
    schema::detach(&copy).unwrap();
    let db = rusqlite::Connection::open(&copy).unwrap();
    let mut select = db.prepare("SELECT live, state FROM files ORDER BY id").unwrap();
    let files = select
        .query_map((), |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap();
    let files: Vec<(i64, i64)> = files.map(Result::unwrap).collect();
    assert_eq!(files, [(2, file_state::LIVE), (0, file_state::DELETE)]);
    assert!(!db.table_exists(None, "live_batches").unwrap());
}

/// A file as brokers write them: `partitions` partitions of one topic, `batches` batches of an idempotent producer in each.
fn typical(partitions: u32, batches: u32) -> FileCommitted {
    let mut position = 1;
    let mut all = Vec::new();
    for index in 0..partitions {
        let base_offset = 3_000_000 + i64::from(index);
        let batch = |n: u32| {
            let size = 15_000 + 7 * index + n;
            position += size;
            Batch {
                position: position - size,
                size,
                last_offset_delta: 14,
                timestamp: Timestamp(1_767_225_600_000 + i64::from((index * 31 + n * 17) % 250)),
                log_append_time: false,
                producer: Some(BatchProducer {
                    id: 40_000 + i64::from(index % 3),
                    epoch: 0,
                    base_sequence: (900_000 + 15 * (index + n)).cast_signed(),
                }),
            }
        };
        all.push(PartitionBatches {
            partition: tp(7, index.cast_signed()),
            num: 500 + index,
            base_offset,
            batches: (0..batches).map(batch).collect(),
        });
    }
    FileCommitted {
        id: 1_000_000,
        object: object(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef),
        uploader: NodeId(1_003),
        size: position.into(),
        owners: vec![ShardId(2), ShardId(0), ShardId(1)],
        results: results::pack_accepted(&all),
        partitions: all,
    }
}

/// The figures of ADR 0012 (`--nocapture` shows them).
#[test]
fn a_packed_file_takes_a_third_of_the_plain_one_at_most() {
    for (partitions, batches) in [(1, 1), (1, 16), (16, 16), (250, 1), (1_000, 4)] {
        let file = typical(partitions, batches);
        let count = (partitions * batches) as usize;
        let time = Timestamp(1_767_225_600_000);
        let plain = encode(time, &Change::FileCommitted(file.clone()));
        let packed = encode(time, &Change::FilePacked(Packed(file)));
        let zstd = |bytes: &Bytes| zstd::encode_all(&bytes[..], 1).unwrap().len() as f64 / count as f64;
        eprintln!("zstd: {:.1} plain, {:.1} packed", zstd(&plain), zstd(&packed));
        let (plain, packed) = (plain.len(), packed.len());
        let each = |bytes: usize| bytes as f64 / count as f64;
        let (plain_each, packed_each) = (each(plain), each(packed));
        eprintln!(
            "{partitions} partitions x {batches}: {plain_each:.1} bytes a batch plain, {packed_each:.1} packed"
        );
        assert!(count < 10 || packed * 3 <= plain, "{packed} of {plain}");
        assert!(packed < plain);
    }
}

/// What writing and reading a batch takes in either form, in ns of CPU.
#[test]
#[ignore = "a measurement: with --release, --nocapture"]
fn what_packing_costs() {
    let env = env::Env::production();
    let time = Timestamp(1_767_225_600_000);
    for (partitions, batches) in [(1, 16), (16, 16), (250, 1), (1_000, 4)] {
        let file = typical(partitions, batches);
        let count = u64::from(partitions * batches);
        let rounds = 400_000 / count;
        let each = |work: &mut dyn FnMut()| {
            let began = env.instant();
            (0..rounds).for_each(|_| work());
            (env.instant() - began).as_nanos() as f64 / (rounds * count) as f64
        };
        for (what, change) in [
            ("plain", Change::FileCommitted(file.clone())),
            ("packed", Change::FilePacked(Packed(file))),
        ] {
            let entry = encode(time, &change);
            let write = each(&mut || drop(std::hint::black_box(encode(time, &change))));
            let read = each(&mut || {
                let read = decode(entry.clone(), FeatureLevels::SUPPORTED);
                drop(std::hint::black_box(read).unwrap());
            });
            println!(
                "{partitions} partitions x {batches}, {what}: {write:.0} ns to write, {read:.0} ns to read"
            );
        }
    }
}

fn file_committed() -> impl Strategy<Value = FileCommitted> {
    let producer =
        (0i64..3, any::<i16>(), any::<i32>()).prop_map(|(id, epoch, base_sequence)| BatchProducer {
            id: if id == 2 { i64::MAX } else { id },
            epoch,
            base_sequence,
        });
    let position = prop_oneof![Just(u32::MAX), 0..300u32];
    let numbers = (position, 1..200u32, any::<i32>(), any::<i64>(), any::<bool>());
    let batch = (numbers, proptest::option::of(producer)).prop_map(|(numbers, producer)| {
        let (position, size, last_offset_delta, timestamp, log_append_time) = numbers;
        Batch {
            position,
            size,
            last_offset_delta,
            timestamp: Timestamp(timestamp),
            log_append_time,
            producer,
        }
    });
    let partition = (
        0u128..3,
        any::<i32>(),
        any::<u32>(),
        any::<i64>(),
        vec(batch, 0..5),
    )
        .prop_map(|(topic, index, num, base_offset, batches)| PartitionBatches {
            partition: tp(topic, index),
            num,
            base_offset,
            batches,
        });
    let head = (
        any::<u64>(),
        any::<u128>(),
        any::<i32>(),
        any::<u64>(),
        vec(any::<u32>(), 0..4),
    );
    let results = proptest::option::of(vec(any::<u8>(), 0..20));
    (head, results, vec(partition, 0..6)).prop_map(|(head, results, mut partitions)| {
        let (id, key, uploader, size, owners) = head;
        // Where the batches lie side by side, as they mostly do.
        let mut end = 1u32;
        for batch in partitions.iter_mut().flat_map(|partition| &mut partition.batches) {
            if batch.position != u32::MAX {
                batch.position = end;
            }
            end = batch.position.wrapping_add(batch.size);
        }
        FileCommitted {
            id,
            object: object(key),
            uploader: NodeId(uploader),
            size,
            owners: owners.into_iter().map(ShardId).collect(),
            results: results.map_or_else(|| results::pack_accepted(&partitions), Bytes::from),
            partitions,
        }
    })
}

proptest! {
    #[test]
    fn what_is_packed_is_unpacked(file in file_committed(), cut in 0.0..1.0f64) {
        let packed = Packed(file).to_bytes();
        prop_assert!(packed.len() >= Packed::MIN_SIZE);
        let unpacked = Packed::from_bytes(packed.clone()).unwrap();
        prop_assert_eq!(unpacked.to_bytes(), packed.clone());
        let len = (packed.len() as f64 * cut) as usize;
        prop_assert!(Packed::from_bytes(packed.slice(..len)).is_err());
    }

    #[test]
    fn whatever_lies_in_the_place_of_a_packed_file_is_read_or_refused(
        body in vec(prop_oneof![4 => 0u8..4, 1 => any::<u8>()], 0..200),
    ) {
        let entry = [&[1, 0, 0, 0, 0, 0, 0, 0, 0, 13], &body[..]].concat();
        if let Ok((time, change)) = decode(entry.into(), FeatureLevels::SUPPORTED) {
            let again = decode(encode(time, &change), FeatureLevels::SUPPORTED).unwrap();
            prop_assert_eq!(again, (time, change));
        }
    }

    #[test]
    fn nothing_is_lost_by_packing(file in file_committed()) {
        let unpacked = Packed::from_bytes(Packed(file.clone()).to_bytes()).unwrap();
        prop_assert_eq!(unpacked.0, file);
    }
}
