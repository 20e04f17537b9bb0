//! Snapshots on their way into and out of the object store: however large they are, a few pieces are in memory.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use blob::{BlobError, SharedStore};
use bytes::Bytes;
use env::Env;
use futures::stream::{self, BoxStream, StreamExt};
use sha2::{Digest, Sha256};

use crate::bucket::failed;
use crate::format::{Manifest, corrupt};
use crate::{LogError, SnapshotPieces, SnapshotRef};

/// How snapshots are fetched, in bytes.
const PIECE: u64 = 4 * 1024 * 1024;
const PIECES_AT_ONCE: usize = 4;

/// The bytes of a snapshot that is to be stored.
#[derive(Debug)]
pub enum SnapshotBody {
    /// A small one.
    Memory(Vec<Bytes>),
    /// One of any size up to what the store takes in one request (S3: 5 GiB).
    File(SnapshotFile),
}

impl From<Vec<Bytes>> for SnapshotBody {
    fn from(body: Vec<Bytes>) -> Self {
        SnapshotBody::Memory(body)
    }
}

/// Names a file, and deletes it when it is dropped.
#[derive(Debug)]
pub struct SnapshotFile(PathBuf);

impl SnapshotFile {
    /// The file at `path`, there already or about to be written.
    pub fn new(path: PathBuf) -> SnapshotFile {
        SnapshotFile(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for SnapshotFile {
    fn drop(&mut self) {
        // It may never have been written.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Stores `body` under `key`; gives its length and SHA-256.
pub(crate) async fn put(
    env: &Env,
    store: &SharedStore,
    key: &str,
    body: SnapshotBody,
) -> Result<(u64, [u8; 32]), LogError> {
    let (body, summed) = env
        .blocking(move || {
            let summed = digest(&body);
            (body, summed)
        })
        .await;
    let sum = summed.map_err(|error| LogError::Unavailable(format!("snapshot {key}: {error}")))?;
    match &body {
        SnapshotBody::Memory(slices) => store.put(key, slices.clone()).await,
        SnapshotBody::File(file) => store.put_file(key, file.path()).await,
    }
    .map_err(failed)?;
    Ok(sum)
}

fn digest(body: &SnapshotBody) -> io::Result<(u64, [u8; 32])> {
    let (mut sha, mut size) = (Sha256::new(), 0);
    match body {
        SnapshotBody::Memory(slices) => {
            for slice in slices {
                sha.update(slice);
                size += slice.len() as u64;
            }
        }
        SnapshotBody::File(file) => {
            let mut file = File::open(file.path())?;
            let mut buffer = vec![0; 1 << 18];
            loop {
                let read = file.read(&mut buffer)?;
                match buffer.get(..read) {
                    None | Some([]) => break,
                    Some(bytes) => sha.update(bytes),
                }
                size += read as u64;
            }
        }
    }
    Ok((size, sha.finalize().into()))
}

/// A snapshot that is being read.
struct Reading<F> {
    snapshot: SnapshotRef,
    fetched: BoxStream<'static, Option<Result<Bytes, BlobError>>>,
    sha: Sha256,
    size: u64,
    newest: F,
}

/// The bytes of `snapshot`; `newest` reads the manifest, which says whether one that is not there was replaced or lost.
/// Nothing is asked unless it is needed.
pub(crate) fn get(
    env: &Env,
    store: &SharedStore,
    snapshot: &SnapshotRef,
    newest: impl Future<Output = Result<Option<Manifest>, LogError>> + Send + 'static,
) -> SnapshotPieces {
    let (env, store, key, size) = (env.clone(), store.clone(), snapshot.key.clone(), snapshot.size);
    let ranges = (0..size.div_ceil(PIECE)).map(move |n| n * PIECE..size.min((n + 1) * PIECE));
    // Tasks of their own: who takes the pieces holds the processor while it works on them.
    let fetch = move |range| {
        let (store, key) = (store.clone(), key.clone());
        env.spawn(async move { store.get_range(&key, range).await })
    };
    let reading = Reading {
        snapshot: snapshot.clone(),
        fetched: stream::iter(ranges).map(fetch).buffered(PIECES_AT_ONCE).boxed(),
        sha: Sha256::new(),
        size: 0,
        newest,
    };
    stream::try_unfold(reading, |mut reading| async move {
        let snapshot = &reading.snapshot;
        match reading.fetched.next().await {
            Some(Some(Ok(piece))) => {
                reading.sha.update(&piece);
                reading.size += piece.len() as u64;
                Ok(Some((piece, reading)))
            }
            Some(Some(Err(BlobError::NotFound(_)))) => Err(missing(snapshot, reading.newest.await?.as_ref())),
            Some(Some(Err(error))) => Err(failed(error)),
            Some(None) => Err(LogError::Unavailable("the node is ending".to_owned())),
            None if reading.size == snapshot.size && reading.sha.clone().finalize() == snapshot.sha256 => {
                Ok(None)
            }
            None => Err(corrupt(&snapshot.key, "this snapshot is not what was written")),
        }
    })
    .boxed()
}

/// A snapshot that is not there: swept, because that of `newest` has taken its place, or lost.
fn missing(snapshot: &SnapshotRef, newest: Option<&Manifest>) -> LogError {
    match newest {
        Some(manifest)
            if manifest
                .snapshot
                .as_ref()
                .is_some_and(|newest| newest.offset > snapshot.offset) =>
        {
            LogError::Trimmed {
                log_start: manifest.log_start,
            }
        }
        _ => corrupt(&snapshot.key, "this snapshot is missing"),
    }
}
