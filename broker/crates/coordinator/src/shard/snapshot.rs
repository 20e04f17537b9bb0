//! Snapshots of a shard: the SQLite file itself, vacuumed and compressed.
//!
//! Layout: `DSNP`, schema version (`u32`, big-endian), a zstd frame. The slot that it is true at is in the file. They go from
//! file to file: a view of ten million batches comes to hundreds of MB, which nobody has room for in memory.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use metalog::{SnapshotBody, SnapshotFile};
use types::LogOffset;
use zstd::stream::{raw, zio};

use super::schema;
use super::state::{file_error, remove, view};
use crate::replica::{self, StateError};

const MAGIC: &[u8] = b"DSNP";
const HEADER: usize = MAGIC.len() + 4;
const COMPRESSION_LEVEL: i32 = 3;
const BUFFER: usize = 1 << 20;

/// Copies the committed state as of now, beside a running writer, and compresses it.
pub fn make(dir: &Path) -> Result<(LogOffset, SnapshotBody), StateError> {
    let copy = dir.join("snapshot.db");
    remove(&copy)?;
    // One read transaction: the copy is consistent, and says itself which slot it ends with.
    schema::connect(&view(dir))?.execute("VACUUM INTO ?", (copy.to_string_lossy(),))?;
    schema::detach(&copy)?;
    let applied = applied(&copy)?;
    let packed = SnapshotFile::new(dir.join("snapshot.packed"));
    let pack = || -> io::Result<()> {
        let mut out = BufWriter::with_capacity(BUFFER, File::create(packed.path())?);
        out.write_all(MAGIC)?;
        out.write_all(&schema::VERSION.to_be_bytes())?;
        let file = BufReader::with_capacity(BUFFER, File::open(&copy)?);
        zstd::stream::copy_encode(file, &mut out, COMPRESSION_LEVEL)?;
        out.flush()
    };
    pack().map_err(|e| file_error(&copy, &e))?;
    remove(&copy)?;
    Ok((applied, SnapshotBody::File(packed)))
}

/// A snapshot that is unpacked beside the view as it comes.
pub struct Staged {
    path: PathBuf,
    /// The first bytes, until all of the header is there.
    header: Vec<u8>,
    database: zio::Writer<BufWriter<File>, raw::Decoder<'static>>,
}

impl replica::Staged for Staged {
    fn push(&mut self, piece: &[u8]) -> Result<(), StateError> {
        let (head, frame) = piece.split_at(piece.len().min(HEADER - self.header.len()));
        if !head.is_empty() {
            self.header.extend_from_slice(head);
            self.check_header()?;
        }
        self.database
            .write_all(frame)
            .map_err(|error| self.failed(&error))
    }
}

impl Staged {
    /// A new file in `dir`, in the place of one that was not finished.
    pub fn create(dir: &Path) -> Result<Staged, StateError> {
        let path = dir.join("staged.db");
        remove(&path)?;
        let create = || {
            let file = BufWriter::with_capacity(BUFFER, File::create(&path)?);
            Ok(zio::Writer::new(file, raw::Decoder::new()?))
        };
        let database = create().map_err(|error| file_error(&path, &error))?;
        Ok(Staged {
            path,
            header: Vec::with_capacity(HEADER),
            database,
        })
    }

    /// Of what there is of it.
    fn check_header(&self) -> Result<(), StateError> {
        let (magic, version) = self.header.split_at(self.header.len().min(MAGIC.len()));
        if !MAGIC.starts_with(magic) {
            return Err(corrupt("not a shard snapshot"));
        }
        let Ok(version) = version.try_into().map(i32::from_be_bytes) else {
            return Ok(());
        };
        if version > schema::VERSION {
            return Err(StateError::Unsupported(format!(
                "the snapshot has schema {version}, this node reads {}",
                schema::VERSION
            )));
        }
        match version == schema::VERSION {
            true => Ok(()),
            false => Err(corrupt(&format!("has schema {version}"))),
        }
    }

    fn failed(&self, error: &io::Error) -> StateError {
        match error.raw_os_error() {
            Some(_) => file_error(&self.path, error),
            None => corrupt(&error.to_string()),
        }
    }

    /// The file, once it is known to be the state at `offset`.
    pub fn finish(mut self, offset: LogOffset) -> Result<PathBuf, StateError> {
        if self.header.len() < HEADER {
            return Err(corrupt("ends early"));
        }
        let finished = self.database.finish();
        finished.map_err(|error| self.failed(&error))?;
        let flushed = self.database.writer_mut().flush();
        flushed.map_err(|error| self.failed(&error))?;
        let applied = applied(&self.path)?;
        if applied != offset {
            return Err(corrupt(&format!("holds the state at {applied}, not at {offset}")));
        }
        Ok(self.path)
    }
}

fn corrupt(what: &str) -> StateError {
    StateError::Corrupt(format!("snapshot: {what}"))
}

fn applied(path: &Path) -> Result<LogOffset, StateError> {
    let db = rusqlite::Connection::open(path)?;
    let applied: i64 = db.query_row("SELECT applied FROM meta", (), |row| row.get(0))?;
    let applied =
        u64::try_from(applied).map_err(|_| StateError::View("nothing is applied yet".to_owned()))?;
    Ok(LogOffset(applied))
}
