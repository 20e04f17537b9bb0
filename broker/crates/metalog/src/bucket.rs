//! What both engines keep in the object store: snapshots, `meta/<log>/snapshot/<offset:020>-<nonce>`.

use blob::{BlobError, ObjectMeta, SharedStore};
use bytes::Bytes;
use env::Env;
use futures::future::join_all;
use sha2::{Digest, Sha256};

use crate::format::{Hash, Manifest, corrupt};
use crate::{LogError, LogOffset, SnapshotRef};

/// How snapshots are fetched.
const PIECE: u64 = 8 * 1024 * 1024;
const PIECES_AT_ONCE: usize = 4;
const PAGE: usize = 1000;

/// Errors of reads; writes that matter are repeated instead.
pub(crate) fn failed(error: BlobError) -> LogError {
    match error {
        BlobError::Corrupt(text) => LogError::Corrupt(text),
        BlobError::NotFound(_) | BlobError::Invalid(_) => LogError::Invalid(error.to_string()),
        _ => LogError::Unavailable(error.to_string()),
    }
}

/// The folder of a log: `kind` is `log`, `manifest` or `snapshot`.
pub(crate) fn directory(log: &str, kind: &str) -> String {
    format!("meta/{log}/{kind}/")
}

/// The object that says that the log is kept in PostgreSQL: it holds the log's id there.
pub(crate) fn postgres_key(log: &str) -> String {
    format!("meta/{log}/postgres")
}

/// Stores the state after all slots below `offset`; `chain` is the hash of the last of them.
pub(crate) async fn put_snapshot(
    env: &Env,
    store: &SharedStore,
    log: &str,
    offset: LogOffset,
    chain: Hash,
    body: Vec<Bytes>,
) -> Result<SnapshotRef, LogError> {
    let (body, size, sha256) = env.blocking(move || digest(body)).await;
    let folder = directory(log, "snapshot");
    let key = format!("{folder}{:020}-{}", offset.0, env.uuid().simple());
    store.put(&key, body).await.map_err(failed)?;
    Ok(SnapshotRef {
        offset,
        key,
        size,
        sha256,
        chain,
    })
}

/// The verified bytes of a snapshot; `None` if it is not there.
pub(crate) async fn get_snapshot(
    env: &Env,
    store: &SharedStore,
    snapshot: &SnapshotRef,
) -> Result<Option<Vec<Bytes>>, LogError> {
    let key = &snapshot.key;
    let starts: Vec<u64> = (0..snapshot.size.div_ceil(PIECE))
        .map(|piece| piece * PIECE)
        .collect();
    let mut body = Vec::with_capacity(starts.len());
    for some in starts.chunks(PIECES_AT_ONCE) {
        let pieces = some.iter().map(|start| {
            let end = snapshot.size.min(start + PIECE);
            store.get_range(key, *start..end)
        });
        for piece in join_all(pieces).await {
            match piece {
                Ok(piece) => body.push(piece),
                Err(BlobError::NotFound(_)) => return Ok(None),
                Err(error) => return Err(failed(error)),
            }
        }
    }
    let (body, size, sha256) = env.blocking(move || digest(body)).await;
    if size != snapshot.size || sha256 != snapshot.sha256 {
        return Err(corrupt(key, "this snapshot is not what was written"));
    }
    Ok(Some(body))
}

/// A snapshot that is not there: swept, because that of `newest` has taken its place, or lost.
pub(crate) fn missing(snapshot: &SnapshotRef, newest: Option<&Manifest>) -> LogError {
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

/// Whether all of a snapshot is there, before a manifest names it.
pub(crate) async fn check_present(store: &SharedStore, snapshot: &SnapshotRef) -> Result<(), LogError> {
    match store.head(&snapshot.key).await {
        Ok(Some(object)) if object.size == snapshot.size => Ok(()),
        Ok(_) => Err(corrupt(
            &snapshot.key,
            "this snapshot is missing or has another size",
        )),
        Err(error) => Err(failed(error)),
    }
}

/// The snapshots of a log whose offset is below `bound`, oldest first, with their offsets.
pub(crate) async fn snapshots_below(
    store: &SharedStore,
    log: &str,
    bound: LogOffset,
) -> Result<Vec<(LogOffset, ObjectMeta)>, LogError> {
    let folder = directory(log, "snapshot");
    // `None` for a foreign object.
    let offset = |key: &str| -> Option<LogOffset> {
        let (offset, _) = key.strip_prefix(&folder)?.split_once('-')?;
        offset.parse().ok().map(LogOffset)
    };
    let below = |object: &ObjectMeta| offset(&object.key).is_none_or(|offset| offset < bound);
    let found = pages(store, &folder, below).await?;
    Ok(found
        .into_iter()
        .filter_map(|object| Some((offset(&object.key)?, object)))
        .collect())
}

/// Deletes objects; returns how many went.
pub(crate) async fn delete(store: &SharedStore, keys: &[String]) -> Result<usize, LogError> {
    let failures = store.delete_many(keys).await.map_err(failed)?;
    if let Some((key, error)) = failures.first() {
        tracing::warn!(key, %error, count = failures.len(), "old objects of a metadata log cannot be deleted");
    }
    Ok(keys.len() - failures.len())
}

/// The objects at the start of `directory`, in order, as long as `wanted` says so.
pub(crate) async fn pages(
    store: &SharedStore,
    directory: &str,
    wanted: impl Fn(&ObjectMeta) -> bool + Send,
) -> Result<Vec<ObjectMeta>, LogError> {
    let mut found: Vec<ObjectMeta> = Vec::new();
    loop {
        let after = found.last().map(|object| object.key.as_str());
        let page = store.list(directory, after, PAGE).await.map_err(failed)?;
        let count = page.len();
        let before = found.len();
        found.extend(page.into_iter().take_while(&wanted));
        if count < PAGE || found.len() < before + count {
            return Ok(found);
        }
    }
}

fn digest(body: Vec<Bytes>) -> (Vec<Bytes>, u64, [u8; 32]) {
    let mut sha = Sha256::new();
    let mut size = 0;
    for piece in &body {
        sha.update(piece);
        size += piece.len() as u64;
    }
    (body, size, sha.finalize().into())
}
