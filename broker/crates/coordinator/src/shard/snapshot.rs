//! Snapshots of a shard: the SQLite file itself, vacuumed and compressed.
//!
//! Layout: `DSNP`, schema version (`u32`, big-endian), a zstd frame. The slot that it is true at is in the file.

use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use types::LogOffset;

use super::schema;
use super::state::{file_error, remove, view};
use crate::replica::StateError;

const MAGIC: &[u8] = b"DSNP";
const COMPRESSION_LEVEL: i32 = 3;

/// Copies the committed state as of now, beside a running writer, and compresses it.
pub fn make(dir: &Path) -> Result<(LogOffset, Bytes), StateError> {
    let copy = dir.join("snapshot.db");
    remove(&copy)?;
    // One read transaction: the copy is consistent, and says itself which slot it ends with.
    schema::open(&view(dir))?.execute("VACUUM INTO ?", (copy.to_string_lossy(),))?;
    let applied = applied(&copy)?;
    let read = || -> std::io::Result<Vec<u8>> {
        let mut out = MAGIC.to_vec();
        out.write_all(&schema::VERSION.to_be_bytes())?;
        let file = BufReader::with_capacity(1 << 20, std::fs::File::open(&copy)?);
        zstd::stream::copy_encode(file, &mut out, COMPRESSION_LEVEL)?;
        Ok(out)
    };
    let bytes = read().map_err(|e| file_error(&copy, &e))?;
    remove(&copy)?;
    Ok((applied, bytes.into()))
}

/// Unpacks a snapshot beside the view and checks that it is what it should be.
pub fn stage(dir: &Path, offset: LogOffset, snapshot: &[u8]) -> Result<PathBuf, StateError> {
    let corrupt = |what: String| StateError::Corrupt(format!("snapshot at {offset}: {what}"));
    let staged = dir.join("staged.db");
    remove(&staged)?;
    let rest = snapshot
        .strip_prefix(MAGIC)
        .ok_or_else(|| corrupt("not a shard snapshot".to_owned()))?;
    let (version, frame) = rest
        .split_first_chunk()
        .ok_or_else(|| corrupt("ends early".to_owned()))?;
    let version = i32::from_be_bytes(*version);
    if version > schema::VERSION {
        return Err(StateError::Unsupported(format!(
            "the snapshot at {offset} has schema {version}, this node reads {}",
            schema::VERSION
        )));
    }
    if version != schema::VERSION {
        return Err(corrupt(format!("has schema {version}")));
    }
    let mut file = BufWriter::with_capacity(
        1 << 20,
        std::fs::File::create(&staged).map_err(|e| file_error(&staged, &e))?,
    );
    let mut frame = zstd::stream::read::Decoder::new(frame).map_err(|e| corrupt(e.to_string()))?;
    let mut buffer = vec![0; 1 << 18];
    loop {
        let n = frame.read(&mut buffer).map_err(|e| corrupt(e.to_string()))?;
        match buffer.get(..n) {
            None | Some([]) => break,
            Some(bytes) => file.write_all(bytes).map_err(|e| file_error(&staged, &e))?,
        }
    }
    file.flush().map_err(|e| file_error(&staged, &e))?;
    let applied = applied(&staged)?;
    if applied != offset {
        return Err(corrupt(format!("holds the state at {applied}")));
    }
    Ok(staged)
}

fn applied(path: &Path) -> Result<LogOffset, StateError> {
    let db = rusqlite::Connection::open(path)?;
    let applied: i64 = db.query_row("SELECT applied FROM meta", (), |row| row.get(0))?;
    let applied =
        u64::try_from(applied).map_err(|_| StateError::View("nothing is applied yet".to_owned()))?;
    Ok(LogOffset(applied))
}
