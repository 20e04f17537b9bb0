//! What can be asked of the committed state.

use rusqlite::{Connection, OptionalExtension, Row};
use types::{LogOffset, ShardId, Timestamp, TopicId, TopicPartition};
use uuid::Uuid;

use super::apply::unpack_owners;
use super::schema::{file_state, uuid};
use super::time_index;
use crate::codes;
use crate::protocol::{
    Coordinate, FindBatchesPartition, FindBatchesResult, ListOffsetsPartition, ListOffsetsResult,
};

type Result<T> = rusqlite::Result<T>;

/// Most coordinates in an answer, whatever bytes it may span: tiny batches must not make a huge one.
const MAX_COORDINATES: usize = 5_000;

/// Bounds of a partition.
struct Bounds {
    num: u32,
    log_start: i64,
    high_watermark: i64,
}

fn bounds(db: &Connection, id: &TopicPartition) -> Result<Option<Bounds>> {
    db.prepare_cached(
        "SELECT num, log_start, high_watermark FROM partitions WHERE topic = ? AND partition = ?",
    )?
    .query_row((id.topic.0.as_bytes(), id.partition), |row| {
        Ok(Bounds {
            num: row.get(0)?,
            log_start: row.get(1)?,
            high_watermark: row.get(2)?,
        })
    })
    .optional()
}

/// The last slot that is applied.
pub fn applied(db: &Connection) -> Result<LogOffset> {
    let applied: i64 = db
        .prepare_cached("SELECT applied FROM meta")?
        .query_row((), |row| row.get(0))?;
    Ok(LogOffset(u64::try_from(applied).unwrap_or(0)))
}

/// Size of the database in bytes, free pages left out.
pub fn size(db: &Connection) -> Result<u64> {
    let pragma = |sql: &str| db.prepare_cached(sql)?.query_row((), |row| row.get::<_, i64>(0));
    let pages = pragma("PRAGMA page_count")? - pragma("PRAGMA freelist_count")?;
    Ok((pages * pragma("PRAGMA page_size")?).cast_unsigned())
}

/// Whether there are rows to purge.
pub fn has_garbage(db: &Connection) -> Result<bool> {
    let sql = "SELECT 1 WHERE EXISTS (SELECT 1 FROM garbage) OR EXISTS (SELECT 1 FROM deleted_producers)
        OR EXISTS (SELECT 1 FROM deleted_offsets)";
    db.prepare_cached(sql)?.exists(())
}

/// A batch with its file, in the columns of [`coordinate`].
const BATCH: &str = "SELECT b.last_offset, b.delta, f.object, f.size, b.position, b.size, b.timestamp,
    b.log_append_time FROM batches b JOIN files f ON f.id = b.file";

fn coordinate(row: &Row<'_>) -> Result<Coordinate> {
    let last_offset: i64 = row.get(0)?;
    let delta: i64 = row.get(1)?;
    let object_size: i64 = row.get(3)?;
    let timestamp = Timestamp(row.get(6)?);
    Ok(Coordinate {
        base_offset: last_offset - delta,
        last_offset,
        object: uuid(row, 2)?,
        object_size: object_size.cast_unsigned(),
        position: row.get(4)?,
        size: row.get(5)?,
        max_timestamp: timestamp,
        log_append_time: if row.get(7)? { timestamp } else { Timestamp(-1) },
    })
}

/// Batches from offsets on. The budget is spent in the order of the request; the batch that crosses it is still
/// named, and the first batch of the answer is named whatever the budget.
pub fn find_batches(
    db: &Connection,
    partitions: &[FindBatchesPartition],
    max_bytes: u32,
) -> Result<Vec<FindBatchesResult>> {
    let mut select = db.prepare_cached(&format!(
        "{BATCH} WHERE b.num = ? AND b.last_offset >= ? ORDER BY b.last_offset"
    ))?;
    let mut left = i64::from(max_bytes);
    let mut named = 0;
    let mut results = Vec::with_capacity(partitions.len());
    for wanted in partitions {
        let Some(bounds) = bounds(db, &wanted.partition)? else {
            results.push(FindBatchesResult {
                error_code: codes::UNKNOWN_TOPIC_OR_PARTITION,
                log_start_offset: -1,
                high_watermark: -1,
                batches: Vec::new(),
            });
            continue;
        };
        let mut result = FindBatchesResult {
            error_code: codes::NONE,
            log_start_offset: bounds.log_start,
            high_watermark: bounds.high_watermark,
            batches: Vec::new(),
        };
        if wanted.offset < bounds.log_start || wanted.offset > bounds.high_watermark {
            result.error_code = codes::OFFSET_OUT_OF_RANGE;
        } else if wanted.offset < bounds.high_watermark {
            let mut here = i64::from(wanted.max_bytes);
            let mut rows = select.query((bounds.num, wanted.offset))?;
            while named == 0 || (left > 0 && here > 0 && named < MAX_COORDINATES) {
                let Some(row) = rows.next()? else { break };
                let batch = coordinate(row)?;
                left -= i64::from(batch.size);
                here -= i64::from(batch.size);
                named += 1;
                result.batches.push(batch);
            }
        }
        results.push(result);
    }
    Ok(results)
}

/// Kafka's ListOffsets, down to the batch.
pub fn list_offsets(db: &Connection, partitions: &[ListOffsetsPartition]) -> Result<Vec<ListOffsetsResult>> {
    partitions.iter().map(|wanted| list_offset(db, wanted)).collect()
}

fn list_offset(db: &Connection, wanted: &ListOffsetsPartition) -> Result<ListOffsetsResult> {
    let plain = |error_code, offset| ListOffsetsResult {
        error_code,
        offset,
        timestamp: Timestamp(-1),
        batch: None,
    };
    let Some(bounds) = bounds(db, &wanted.partition)? else {
        return Ok(plain(codes::UNKNOWN_TOPIC_OR_PARTITION, -1));
    };
    let (num, from) = (bounds.num, bounds.log_start);
    let last_offset = match wanted.timestamp {
        -1 => return Ok(plain(codes::NONE, bounds.high_watermark)),
        // Nothing is tiered: what is earliest is also earliest here.
        -2 | -4 => return Ok(plain(codes::NONE, bounds.log_start)),
        -5 | -6 => return Ok(plain(codes::NONE, -1)),
        -3 => time_index::latest(db, num, from)?,
        time if time >= 0 => time_index::first_since(db, num, from, time)?,
        _ => return Ok(plain(codes::INVALID_REQUEST, -1)),
    };
    let Some(last_offset) = last_offset else {
        return Ok(plain(codes::NONE, -1));
    };
    let batch = db
        .prepare_cached(&format!("{BATCH} WHERE b.num = ? AND b.last_offset = ?"))?
        .query_row((num, last_offset), coordinate)?;
    let offset = if wanted.timestamp == -3 {
        batch.last_offset
    } else {
        batch.base_offset.max(bounds.log_start)
    };
    Ok(ListOffsetsResult {
        error_code: codes::NONE,
        offset,
        timestamp: batch.max_timestamp,
        batch: Some(batch),
    })
}

/// The time of the oldest live file (-1: none), and which of `objects` this shard still has to do with.
pub fn describe_files(db: &Connection, objects: &[Uuid]) -> Result<(Timestamp, Vec<Uuid>)> {
    // Not by the table: the files that died within a day stand before the first live one.
    let oldest = db
        .prepare_cached(
            "SELECT committed_at FROM files INDEXED BY live_files WHERE state = 0 ORDER BY id LIMIT 1",
        )?
        .query_row((), |row| row.get(0))
        .optional()?;
    let mut exists = db.prepare_cached("SELECT 1 FROM files WHERE object = ? AND state != ?")?;
    let mut known = Vec::new();
    for object in objects {
        if exists.exists((object.as_bytes(), file_state::TOMBSTONE))? {
            known.push(*object);
        }
    }
    Ok((Timestamp(oldest.unwrap_or(-1)), known))
}

/// A file without live batches here, which this shard answers for.
#[derive(Clone, Debug, PartialEq)]
pub struct DeadFile {
    pub object: Uuid,
    pub size: u64,
    /// This shard first.
    pub owners: Vec<ShardId>,
}

/// Where a file stands among those of its state: since when it is in it, and its id.
pub type Place = (Timestamp, i64);

/// Files that are in a state since `older_than` or before and stand behind `after`, the oldest first, with their places.
pub fn files_after(
    db: &Connection,
    state: i64,
    after: Place,
    older_than: Timestamp,
    limit: usize,
) -> Result<Vec<(Place, DeadFile)>> {
    let mut select = db.prepare_cached(
        "SELECT object, size, owners, state_since, id FROM files
         WHERE state > 0 AND state = ? AND (state_since, id) > (?, ?) AND state_since <= ?
         ORDER BY state_since, id LIMIT ?",
    )?;
    let bounds = (
        state,
        after.0.0,
        after.1,
        older_than.0,
        limit.cast_signed() as i64,
    );
    let files = select.query_map(bounds, |row| {
        let owners: Vec<u8> = row.get(2)?;
        let size: i64 = row.get(1)?;
        let file = DeadFile {
            object: uuid(row, 0)?,
            size: size.cast_unsigned(),
            owners: unpack_owners(&owners),
        };
        Ok(((Timestamp(row.get(3)?), row.get(4)?), file))
    })?;
    files.collect()
}

/// All partitions.
pub fn partitions(db: &Connection) -> Result<Vec<TopicPartition>> {
    let mut select =
        db.prepare_cached("SELECT topic, partition FROM partitions ORDER BY topic, partition")?;
    let rows = select.query_map((), |row| {
        Ok(TopicPartition {
            topic: TopicId(uuid(row, 0)?),
            partition: row.get(1)?,
        })
    })?;
    rows.collect()
}

/// How far retention lets a partition go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boundary {
    /// The new log start.
    pub offset: i64,
    /// Batches below it.
    pub batches: usize,
}

/// The boundary that retention sets, looking at the `max_batches` oldest batches, and at as many that wait for their purge; and how many
/// these were. Limits below 0 do not apply.
/// A batch goes when it is older than `keep_from`, or when the partition has `retention_bytes` without it.
pub fn retention(
    db: &Connection,
    id: &TopicPartition,
    keep_from: Option<Timestamp>,
    retention_bytes: i64,
    max_batches: usize,
) -> Result<(Option<Boundary>, usize)> {
    let row = db
        .prepare_cached("SELECT num, log_start, bytes FROM partitions WHERE topic = ? AND partition = ?")?
        .query_row((id.topic.0.as_bytes(), id.partition), |row| {
            Ok((
                row.get::<_, u32>(0)?,
                row.get::<_, i64>(1)?,
                row.get::<_, i64>(2)?,
            ))
        })
        .optional()?;
    let Some((num, log_start, bytes)) = row else {
        return Ok((None, 0));
    };
    let most = max_batches.cast_signed() as i64;
    // What is below the log start is not purged yet, but counts no more. If that is too much to look at, size waits for the purge: no byte
    // is free any sooner.
    let (garbage, unpurged): (i64, i64) = match retention_bytes {
        ..0 => (0, 0),
        0.. => db
            .prepare_cached(
                "SELECT ifnull(sum(size), 0), count(*) FROM
                    (SELECT size FROM batches WHERE num = ? AND last_offset < ? LIMIT ?)",
            )?
            .query_row((num, log_start, most + 1), |row| Ok((row.get(0)?, row.get(1)?)))?,
    };
    let by_size = retention_bytes >= 0 && unpurged <= most;
    let mut bytes = bytes - garbage;
    // A batch without a timestamp is as old as its file.
    let mut select = db.prepare_cached(
        "SELECT last_offset, size, iif(timestamp < 0, (SELECT committed_at FROM files WHERE id = file), timestamp)
         FROM batches WHERE num = ? AND last_offset >= ? ORDER BY last_offset LIMIT ?",
    )?;
    let mut rows = select.query((num, log_start, most))?;
    let mut boundary = None;
    let mut batches = 0;
    while let Some(row) = rows.next()? {
        let (last_offset, size, timestamp): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let old = keep_from.is_some_and(|keep_from| timestamp < keep_from.0);
        let without = if env::mutation("retention-one-more") {
            bytes
        } else {
            bytes - size
        };
        let surplus = by_size && without >= retention_bytes;
        if !old && !surplus {
            break;
        }
        bytes -= size;
        batches += 1;
        boundary = Some(Boundary {
            offset: last_offset + 1,
            batches,
        });
    }
    Ok((boundary, batches + usize::try_from(unpurged).unwrap_or_default()))
}

/// Producers unused since before `before`, from the key `after` on.
pub fn idle_producers(
    db: &Connection,
    before: Timestamp,
    after: (u32, i64),
    limit: usize,
) -> Result<Vec<(u32, i64)>> {
    let mut select = db.prepare_cached(
        "SELECT num, producer FROM producers WHERE (num, producer) > (?, ?) AND used_at < ? ORDER BY num, producer LIMIT ?",
    )?;
    let rows = select.query_map((after.0, after.1, before.0, limit.cast_signed() as i64), |row| {
        Ok((row.get(0)?, row.get(1)?))
    })?;
    rows.collect()
}

/// Ids of files above `after` that were committed before `before` and still have results.
pub fn old_results(db: &Connection, before: Timestamp, after: u64, limit: usize) -> Result<Vec<u64>> {
    let mut select = db.prepare_cached(
        "SELECT id FROM files WHERE id > ? AND committed_at < ? AND results IS NOT NULL ORDER BY id LIMIT ?",
    )?;
    let rows = select.query_map(
        (after.cast_signed(), before.0, limit.cast_signed() as i64),
        file_id,
    )?;
    rows.collect()
}

/// Ids of tombstones from before `before`.
pub fn old_tombstones(db: &Connection, before: Timestamp, limit: usize) -> Result<Vec<u64>> {
    let mut select = db.prepare_cached(
        "SELECT id FROM files WHERE state > 0 AND state = ? AND state_since < ? ORDER BY state_since LIMIT ?",
    )?;
    let rows = select.query_map(
        (file_state::TOMBSTONE, before.0, limit.cast_signed() as i64),
        file_id,
    )?;
    rows.collect()
}

fn file_id(row: &Row<'_>) -> Result<u64> {
    row.get(0).map(i64::cast_unsigned)
}
