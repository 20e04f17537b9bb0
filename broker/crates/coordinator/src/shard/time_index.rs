//! The time index: where a partition first reaches a timestamp, without a look at every batch.
//!
//! ```text
//!  level 2   ─────────────────────────────────────▶ 31
//!  level 1   ───────────▶ 9 ─────────▶ 17 ────────▶ 31      (num, level, last offset) ─▶ largest timestamp on the way
//!  batches   0 1 2 … 7 8 9 10 …     … 17 …      … 30 31 32 33
//! ```
//!
//! A skip list over the batches of each partition, because timestamps are what producers say and need not grow. The height of a
//! batch is a hash of its place, so that nothing has to be counted or remembered: one in 64 has an entry of level 1, one in 64 of these one of
//! level 2, and so on. An entry has the largest timestamp of the batches behind the entry before it, of its level, and up to its own.
//!
//! A search walks along the batches until one of them is also an entry, goes on along the entries, and comes down where one of them, or the end,
//! says that it is near: some 64 rows a level, up and down. What was purged still counts in the first entry that is left, but a
//! search, which begins with single batches, never looks into that one's past.

use rusqlite::{Connection, Result};

/// The topmost level has an entry for 262,144 batches.
const LEVELS: i64 = 3;
/// Of the hash, for each level: one row in 64 goes up.
const BITS: u32 = 6;

/// The levels in which a batch has an entry: from the first to this one.
fn height(num: u32, last_offset: i64) -> i64 {
    // SplitMix64. With the partition in it, partitions that grow side by side do not all have their entries in one slot.
    let mut hash = u64::from(num)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(last_offset.cast_unsigned());
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^= hash >> 31;
    i64::from(hash.trailing_zeros() / BITS).min(LEVELS)
}

/// Enters a batch that has been stored, if it is one of those with entries.
pub fn add(db: &Connection, num: u32, last_offset: i64) -> Result<()> {
    for level in 1..=height(num, last_offset) {
        let below = match level {
            1 => "batches WHERE",
            _ => "time_index WHERE level = ?3 - 1 AND",
        };
        db.prepare_cached(&format!(
            "INSERT INTO time_index SELECT ?1, ?3, ?2, max(timestamp) FROM {below} num = ?1 AND last_offset <= ?2
             AND last_offset > ifnull((SELECT last_offset FROM time_index WHERE num = ?1 AND level = ?3
                                       ORDER BY last_offset DESC LIMIT 1), -1)"
        ))?
        .execute((num, last_offset, level))?;
    }
    Ok(())
}

/// Makes the index of a view that has none.
pub fn build(db: &Connection) -> Result<()> {
    let mut select = db.prepare("SELECT num, last_offset FROM batches ORDER BY num, last_offset")?;
    let mut rows = select.query(())?;
    while let Some(row) = rows.next()? {
        add(db, row.get(0)?, row.get(1)?)?;
    }
    Ok(())
}

/// Forgets what is before `end`.
pub fn delete(db: &Connection, num: u32, end: i64) -> Result<()> {
    let mut delete =
        db.prepare_cached("DELETE FROM time_index WHERE num = ? AND level = ? AND last_offset < ?")?;
    for level in 1..=LEVELS {
        // Who has no entry has none further up.
        if delete.execute((num, level, end))? == 0 {
            break;
        }
    }
    Ok(())
}

/// The last offset of the first batch that ends at `from` or later and has a timestamp of `time` or later.
pub fn first_since(db: &Connection, num: u32, from: i64, time: i64) -> Result<Option<i64>> {
    Ok(walk(db, num, from, time)?.0)
}

/// The last offset of the first batch with the largest timestamp, of those that end at `from` or later.
pub fn latest(db: &Connection, num: u32, from: i64) -> Result<Option<i64>> {
    match walk(db, num, from, i64::MAX)? {
        (None, Some(largest)) => first_since(db, num, from, largest),
        (found, _) => Ok(found),
    }
}

/// What [`first_since`] finds, and the largest timestamp before it.
fn walk(db: &Connection, num: u32, from: i64, time: i64) -> Result<(Option<i64>, Option<i64>)> {
    let mut batches = db.prepare_cached(
        "SELECT last_offset, timestamp FROM batches WHERE num = ?1 AND last_offset >= ?2 ORDER BY last_offset",
    )?;
    let mut entries = db.prepare_cached(
        "SELECT last_offset, timestamp FROM time_index WHERE num = ?1 AND level = ?3 AND last_offset >= ?2
         ORDER BY last_offset",
    )?;
    let (mut at, mut level, mut largest) = (from, 0, None);
    loop {
        let mut rows = match level {
            0 => batches.query((num, at))?,
            _ => entries.query((num, at, level))?,
        };
        level = loop {
            let Some(row) = rows.next()? else { break level - 1 };
            let (last_offset, timestamp): (i64, i64) = (row.get(0)?, row.get(1)?);
            if timestamp >= time {
                if level == 0 {
                    return Ok((Some(last_offset), largest));
                }
                break level - 1;
            }
            largest = largest.max(Some(timestamp));
            at = last_offset + 1;
            let height = height(num, last_offset);
            if height > level {
                break height;
            }
        };
        if level < 0 {
            return Ok((None, largest));
        }
    }
}
