//! Reading slots and snapshots.

use blob::BlobError;
use bytes::Bytes;
use futures::future::join_all;
use sha2::{Digest, Sha256};

use super::{Moment, Shared, failed};
use crate::format::{Hash, MAX_SLOT, Manifest, StoredSlot, corrupt, genesis, hash};
use crate::{LogError, LogOffset, Slot, SnapshotRef};

/// The most slots that are fetched at once, while catching up.
const MAX_WAVE: u64 = 32;
/// How snapshots are fetched.
const PIECE: u64 = 8 * 1024 * 1024;
const PIECES_AT_ONCE: usize = 4;

impl Shared {
    /// A slot and its hash; `None` if it is not there.
    pub(super) async fn fetch(&self, offset: LogOffset) -> Result<Option<(StoredSlot, Hash)>, LogError> {
        let key = self.slot_key(offset);
        match self.store.get_range(&key, 0..MAX_SLOT as u64 + 1).await {
            Ok(body) => {
                let stored = StoredSlot::decode(&key, offset, &body)?;
                Ok(Some((stored, hash(&[body]))))
            }
            Err(BlobError::NotFound(_)) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    pub(super) async fn read(&self, from: LogOffset, max_bytes: usize) -> Result<Vec<Slot>, LogError> {
        let known = self
            .known
            .lock()
            .manifest
            .as_ref()
            .map(|(manifest, _)| manifest.clone());
        let manifest = match known {
            Some(known) => known,
            None => match self.refresh().await? {
                Some(manifest) => manifest,
                None => return Ok(Vec::new()),
            },
        };
        not_trimmed(from, &manifest)?;
        let slots = self.read_chained(from, max_bytes, &manifest).await?;
        let seen_at = self.known.lock().manifest.as_ref().map(|(_, moment)| *moment);
        let stale =
            seen_at.is_none_or(|moment: Moment| moment.elapsed(&self.env) > self.options.confirm_after);
        let missing = slots.is_empty() && from < self.known.lock().tail;
        if stale || missing {
            // What was just read, or just not found, may have been deleted and created again.
            if let Some(manifest) = self.refresh().await? {
                not_trimmed(from, &manifest)?;
            }
        }
        if missing && self.fetch(from).await?.is_none() {
            return Err(corrupt(&self.slot_key(from), "this slot is missing"));
        }
        if let Some(last) = slots.last() {
            self.learn_tail(last.offset.next());
        }
        Ok(slots)
    }

    async fn read_chained(
        &self,
        from: LogOffset,
        max_bytes: usize,
        manifest: &Manifest,
    ) -> Result<Vec<Slot>, LogError> {
        let mut chain = self.chain_at(from, manifest).await?;
        let mut slots: Vec<Slot> = Vec::new();
        let mut bytes = 0;
        // One slot for a follower that is up to date; more at a time for one that is behind.
        let mut wave = self.known.lock().tail.0.saturating_sub(from.0).clamp(1, MAX_WAVE);
        let mut next = from;
        'reading: while bytes < max_bytes || slots.is_empty() {
            let wanted = (next.0..next.0.saturating_add(wave)).map(|offset| self.fetch(LogOffset(offset)));
            for fetched in join_all(wanted).await {
                let (stored, own_hash) = match fetched {
                    Ok(Some(found)) => found,
                    Ok(None) => break 'reading,
                    // First hand over what is good: the next call meets the error again.
                    Err(_) if !slots.is_empty() => break 'reading,
                    Err(error) => return Err(error),
                };
                if chain.is_some_and(|expected| expected != stored.previous) {
                    let error = corrupt(&self.slot_key(next), "it does not follow the slot before it");
                    return if slots.is_empty() { Err(error) } else { Ok(slots) };
                }
                chain = Some(own_hash);
                bytes += stored.slot.entries.iter().map(Bytes::len).sum::<usize>();
                slots.push(stored.slot);
                next = next.next();
                self.known.lock().chain = Some((next, own_hash));
                if bytes >= max_bytes {
                    break 'reading;
                }
            }
            wave = (wave * 2).min(MAX_WAVE);
        }
        Ok(slots)
    }

    /// The hash that slot `offset` must name as its previous one; `None` if that slot is gone.
    async fn chain_at(&self, offset: LogOffset, manifest: &Manifest) -> Result<Option<Hash>, LogError> {
        if let Some((at, hash)) = self.known.lock().chain
            && at == offset
        {
            return Ok(Some(hash));
        }
        if offset.0 == 0 {
            return Ok(Some(genesis(&self.name)));
        }
        if let Some(snapshot) = manifest
            .snapshot
            .as_ref()
            .filter(|snapshot| snapshot.offset == offset)
        {
            return Ok(Some(snapshot.chain));
        }
        if offset <= manifest.log_start {
            return Ok(None);
        }
        Ok(self.fetch(LogOffset(offset.0 - 1)).await?.map(|(_, hash)| hash))
    }

    pub(super) async fn put_snapshot(
        &self,
        offset: LogOffset,
        body: Vec<Bytes>,
    ) -> Result<SnapshotRef, LogError> {
        let missing = || {
            LogError::Invalid(format!(
                "no snapshot at offset {offset}: the slot before it is not there"
            ))
        };
        let before = LogOffset(offset.0.checked_sub(1).ok_or_else(missing)?);
        let Some((_, chain)) = self.fetch(before).await? else {
            // Perhaps a later leader has trimmed the log that far.
            if let Some(newest) = self.refresh().await? {
                not_trimmed(before, &newest)?;
            }
            return Err(missing());
        };
        let (body, size, sha256) = self.env.blocking(move || digest(body)).await;
        let key = format!(
            "{}{:020}-{}",
            self.directory("snapshot"),
            offset.0,
            self.env.uuid().simple()
        );
        self.store.put(&key, body).await.map_err(failed)?;
        Ok(SnapshotRef {
            offset,
            key,
            size,
            sha256,
            chain,
        })
    }

    /// Swept, because a later one has taken its place, or lost.
    async fn missing_snapshot(&self, snapshot: &SnapshotRef) -> LogError {
        match self.refresh().await {
            Ok(Some(Manifest {
                log_start,
                snapshot: Some(newest),
                ..
            })) if newest.offset > snapshot.offset => LogError::Trimmed { log_start },
            Ok(_) => corrupt(&snapshot.key, "this snapshot is missing"),
            Err(error) => error,
        }
    }

    pub(super) async fn get_snapshot(&self, snapshot: &SnapshotRef) -> Result<Vec<Bytes>, LogError> {
        let key = &snapshot.key;
        let starts: Vec<u64> = (0..snapshot.size.div_ceil(PIECE))
            .map(|piece| piece * PIECE)
            .collect();
        let mut body = Vec::with_capacity(starts.len());
        for some in starts.chunks(PIECES_AT_ONCE) {
            let pieces = some.iter().map(|start| {
                let end = snapshot.size.min(start + PIECE);
                self.store.get_range(key, *start..end)
            });
            for piece in join_all(pieces).await {
                match piece {
                    Ok(piece) => body.push(piece),
                    Err(BlobError::NotFound(_)) => return Err(self.missing_snapshot(snapshot).await),
                    Err(error) => return Err(failed(error)),
                }
            }
        }
        let (body, size, sha256) = self.env.blocking(move || digest(body)).await;
        if size != snapshot.size || sha256 != snapshot.sha256 {
            return Err(corrupt(key, "this snapshot is not what was written"));
        }
        Ok(body)
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

fn not_trimmed(from: LogOffset, manifest: &Manifest) -> Result<(), LogError> {
    let log_start = manifest.log_start;
    if from < log_start {
        Err(LogError::Trimmed { log_start })
    } else {
        Ok(())
    }
}
