//! What both engines keep in the object store: snapshots, `meta/<log>/snapshot/<offset:020>-<nonce>`.

use blob::{BlobError, ObjectMeta, SharedStore};
use env::Env;

use crate::format::{Hash, corrupt};
use crate::{LogError, LogOffset, SnapshotBody, SnapshotRef, snapshot};

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
    body: SnapshotBody,
) -> Result<SnapshotRef, LogError> {
    let folder = directory(log, "snapshot");
    let key = format!("{folder}{:020}-{}", offset.0, env.uuid().simple());
    let (size, sha256) = snapshot::put(env, store, &key, body).await?;
    Ok(SnapshotRef {
        offset,
        key,
        size,
        sha256,
        chain,
    })
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
