//! Random histories: what is judged is what is applied, and the log alone gives the same state.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::shard::{Expired, OffsetCommit};

#[derive(Clone, Debug)]
enum Op {
    Create(u128, i32),
    DeleteTopic(u128),
    Commit(u128, Vec<ShardId>, Vec<BatchRequest>),
    DeleteRecords(TopicPartition, i64),
    TakeOver(u128),
    HandedOver(u128),
    Deleted(u128),
    PutGroup(u8, Option<u8>, Vec<(u128, i32, i64)>),
    CommitOffsets(u8, Vec<(u128, i32, i64)>),
    DeleteOffsets(u8, u128, i32),
    Purge,
    Expire(u8),
}

fn any_tp() -> impl Strategy<Value = TopicPartition> {
    (1..4u128, 0..3i32).prop_map(|(topic, partition)| tp(topic, partition))
}

fn any_batch() -> impl Strategy<Value = BatchRequest> {
    let producer = (
        -1..3i64,
        0..2i16,
        prop_oneof![0..12i32, (i32::MAX - 3)..=i32::MAX],
    );
    (any_tp(), 1..4i32, producer, any::<bool>(), 1..300u32, 0..9000i64).prop_map(
        |(id, records, (producer, epoch, sequence), log_append_time, size, time)| BatchRequest {
            must_follow: false,
            log_append_time,
            size,
            max_timestamp: Timestamp(time),
            ..idem(id, records, producer, epoch, sequence)
        },
    )
}

fn any_op() -> impl Strategy<Value = Op> {
    let owners = prop_oneof![
        Just(vec![SHARD]),
        Just(vec![SHARD, ShardId(1)]),
        Just(vec![ShardId(1), SHARD])
    ];
    let commit = || {
        (
            0..40u128,
            owners.clone(),
            proptest::collection::vec(any_batch(), 0..8),
        )
    };
    let offsets = || proptest::collection::vec((1..4u128, 0..2i32, 0..100i64), 0..3);
    prop_oneof![
        3 => (1..4u128, 1..4i32).prop_map(|(topic, partitions)| Op::Create(topic, partitions)),
        1 => (1..4u128).prop_map(Op::DeleteTopic),
        12 => commit().prop_map(|(n, owners, batches)| Op::Commit(n, owners, batches)),
        3 => (any_tp(), -1..20i64).prop_map(|(id, offset)| Op::DeleteRecords(id, offset)),
        2 => (0..40u128).prop_map(Op::TakeOver),
        2 => (0..40u128).prop_map(Op::HandedOver),
        2 => (0..40u128).prop_map(Op::Deleted),
        1 => (0..3u8, any::<Option<u8>>(), offsets()).prop_map(|(g, m, o)| Op::PutGroup(g, m, o)),
        1 => (0..3u8, offsets()).prop_map(|(g, o)| Op::CommitOffsets(g, o)),
        1 => (0..3u8, 1..4u128, 0..2i32).prop_map(|(g, t, p)| Op::DeleteOffsets(g, t, p)),
        2 => Just(Op::Purge),
        1 => any::<u8>().prop_map(Op::Expire),
    ]
}

fn commits(offsets: &[(u128, i32, i64)]) -> Vec<OffsetCommit> {
    let commit = |&(n, partition, offset): &(u128, i32, i64)| OffsetCommit {
        topic: format!("t{n}"),
        topic_id: (offset % 2 == 0).then(|| topic(n)),
        partition,
        offset,
        leader_epoch: 0,
        metadata: (offset % 3 == 0).then(|| "said".to_owned()),
    };
    offsets.iter().map(commit).collect()
}

/// The command, and whether it is housekeeping: that may come to something else when it is judged again.
fn command(op: &Op, now: i64) -> (Command, bool) {
    let group = |g: &u8| format!("g{g}");
    let command = match op {
        Op::Create(topic, partitions) => create(*topic, *partitions),
        Op::DeleteTopic(topic) => delete_topic(*topic),
        Op::Commit(n, owners, batches) => Command::CommitFile(CommitFileRequest {
            owners: owners.clone(),
            ..file(*n, batches.clone())
        }),
        Op::DeleteRecords(id, offset) => Command::DeleteRecords(vec![DeleteRecordsPartition {
            partition: *id,
            offset: *offset,
        }]),
        Op::TakeOver(n) => Command::TakeOverFile {
            object: object(*n),
            size: 9,
            owners: vec![SHARD],
        },
        Op::HandedOver(n) => Command::FilesHandedOver(vec![object(*n)]),
        Op::Deleted(n) => Command::FilesDeleted(vec![object(*n)]),
        Op::PutGroup(g, metadata, offsets) => Command::PutGroup {
            group: group(g),
            metadata: metadata.map(|byte| Bytes::from(vec![byte])),
            offsets: commits(offsets),
        },
        Op::CommitOffsets(g, offsets) => Command::CommitOffsets {
            group: group(g),
            offsets: commits(offsets),
        },
        Op::DeleteOffsets(g, topic, partition) => Command::DeleteOffsets {
            group: group(g),
            partitions: vec![(format!("t{topic}"), *partition)],
        },
        Op::Purge => return (Command::Purge { max_batches: 3 }, true),
        Op::Expire(n) => {
            let expired = Expired {
                producers: (1..6)
                    .flat_map(|num| (0..3).map(move |producer| (num, producer)))
                    .collect(),
                producers_before: Timestamp(now - 100),
                results: vec![u64::from(*n % 20)],
                tombstones: vec![u64::from(*n % 7)],
            };
            return (Command::Expire(expired), true);
        }
    };
    (command, false)
}

/// What must hold in every committed state.
fn check(shard: &Shard) {
    let wrong = [
        // Files count their batches, live ones have some, dead ones have none.
        "SELECT count(*) FROM files f WHERE ifnull((SELECT count FROM live_batches WHERE file = f.id), 0)
            != (SELECT count(*) FROM batches b WHERE b.file = f.id)",
        "SELECT count(*) FROM live_batches WHERE file NOT IN (SELECT id FROM files)",
        "SELECT count(*) FROM files WHERE (state = 0) != (id IN (SELECT file FROM live_batches WHERE count > 0))",
        // Entries of the time index claim no less than is true, and outlive no partition.
        "SELECT count(*) FROM time_index t WHERE timestamp <
            (SELECT max(timestamp) FROM batches b WHERE b.num = t.num AND b.last_offset <= t.last_offset AND b.last_offset > ifnull(
                (SELECT max(last_offset) FROM time_index p
                 WHERE p.num = t.num AND p.level = t.level AND p.last_offset < t.last_offset), -1))",
        "SELECT count(*) FROM time_index WHERE num NOT IN (SELECT num FROM partitions UNION SELECT num FROM garbage)",
        // No batch without its file.
        "SELECT count(*) FROM batches WHERE file NOT IN (SELECT id FROM files)",
        // Sizes add up.
        "SELECT count(*) FROM partitions p
         WHERE bytes != (SELECT ifnull(sum(size), 0) FROM batches b WHERE b.num = p.num)",
        // Batches follow each other without a gap, up to the high watermark.
        "SELECT count(*) FROM (SELECT last_offset - delta AS base,
            lag(last_offset) OVER (PARTITION BY num ORDER BY last_offset) AS prev FROM batches)
         WHERE prev IS NOT NULL AND base != prev + 1",
        "SELECT count(*) FROM partitions p
         WHERE high_watermark != ifnull((SELECT max(last_offset) + 1 FROM batches b WHERE b.num = p.num), high_watermark)",
        "SELECT count(*) FROM partitions WHERE log_start > high_watermark OR log_start < 0",
        // Nothing of a partition outlives it but garbage.
        "SELECT count(*) FROM batches WHERE num NOT IN (SELECT num FROM partitions UNION SELECT num FROM garbage)",
        "SELECT count(*) FROM producers WHERE num NOT IN
         (SELECT num FROM partitions UNION SELECT num FROM garbage UNION SELECT num FROM deleted_producers)",
    ];
    for sql in wrong {
        assert_eq!(shard.count(sql), 0, "{sql}");
    }
    let mut table = BTreeMap::new();
    shard.read(|db| {
        let mut select =
            db.prepare("SELECT topic, partition, num, log_start, high_watermark, bytes FROM partitions")?;
        let mut rows = select.query(())?;
        while let Some(row) = rows.next()? {
            let id = TopicPartition {
                topic: TopicId(Uuid::from_bytes(row.get(0)?)),
                partition: row.get(1)?,
            };
            let columns: (u32, i64, i64, i64) = (row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?);
            table.insert(id, columns);
        }
        Ok(())
    });
    let memory = shard.state.partitions.iter();
    let memory: BTreeMap<_, _> = memory
        .map(|(id, p)| (*id, (p.num, p.log_start, p.high_watermark, p.bytes as i64)))
        .collect();
    assert_eq!(table, memory);
}

fn replay(shard: &mut Shard, log: &[Vec<Bytes>]) {
    for entries in &log[shard.log.len()..] {
        shard.apply(entries.clone());
    }
}

/// The view of a node of the first releases, which delete at once what others purge in steps.
fn replay_at_once(log: &[Vec<Bytes>]) -> Shard {
    let mut shard = Shard::new();
    for entries in log {
        shard.apply(entries.clone());
        let sql = "DELETE FROM producers WHERE num IN (SELECT num FROM deleted_producers);
            DELETE FROM deleted_producers;
            DELETE FROM offsets WHERE (topic, topic_id) IN (SELECT name, topic FROM deleted_offsets);
            DELETE FROM deleted_offsets;";
        shard.state.db.execute_batch(sql).unwrap();
    }
    shard
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn histories(ops in proptest::collection::vec((any_op(), any::<bool>(), 0..50i64), 1..80), cut in 0..40usize) {
        let mut shard = Shard::new();
        let mut snapshot = None;
        // The group in flight, with what was judged, and the one behind it.
        let mut flying: Vec<Option<Bytes>> = Vec::new();
        let mut behind: Vec<(i64, Command, (Output, Option<Bytes>))> = Vec::new();
        let apply = |shard: &mut Shard, group: &mut Vec<Option<Bytes>>| {
            let entries: Vec<_> = group.drain(..).flatten().collect();
            shard.apply(entries);
            if shard.log.len().is_multiple_of(8) {
                check(shard);
            }
        };
        for (op, land, step) in ops {
            shard.now += step;
            let (command, housekeeping) = command(&op, shard.now);
            if land || housekeeping {
                // The slot is durable: apply it, judge again what is behind it, and let that fly.
                apply(&mut shard, &mut flying);
                for (now, command, before) in behind.drain(..) {
                    let judged = shard.state.speculate(Timestamp(now), &command).unwrap();
                    prop_assert_eq!(&(judged.output, judged.entry.clone()), &before);
                    flying.push(judged.entry);
                }
            }
            if housekeeping {
                apply(&mut shard, &mut flying);
                shard.run(command);
            } else {
                let judged = shard.judge(&command);
                behind.push((shard.now, command, judged));
            }
            if shard.log.len() > cut && snapshot.is_none() {
                snapshot = Some(shard.snapshot());
            }
        }
        shard.state.rollback().unwrap();
        check(&shard);
        let state = shard.dump();
        let mut again = Shard::new();
        replay(&mut again, &shard.log);
        prop_assert_eq!(again.dump(), state.clone());
        prop_assert_eq!(replay_at_once(&shard.log).dump(), state.clone());
        if let Some((offset, bytes)) = snapshot {
            let mut restored = Shard::new();
            restored.create(3, 1);
            restored.restore(offset, &bytes, 300).unwrap();
            restored.log = shard.log[..=offset.0 as usize].to_vec();
            replay(&mut restored, &shard.log);
            check(&restored);
            prop_assert_eq!(restored.dump(), state);
        }
    }
}
