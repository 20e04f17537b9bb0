//! Reading slots and snapshots.

use std::sync::Arc;

use blob::BlobError;
use bytes::Bytes;

use super::ahead::Ahead;
use super::{Moment, Shared};
use crate::bucket::{self, failed};
use crate::format::{Hash, MAX_SLOT, Manifest, StoredSlot, corrupt, genesis, hash};
use crate::{LogError, LogOffset, Slot, SnapshotBody, SnapshotRef};

/// A slot and its hash; `None` if it is not there.
pub(super) type Fetched = Result<Option<(StoredSlot, Hash)>, LogError>;
impl Shared {
    pub(super) async fn fetch(&self, offset: LogOffset) -> Fetched {
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

    pub(super) async fn read(
        self: &Arc<Self>,
        from: LogOffset,
        max_bytes: usize,
    ) -> Result<Vec<Slot>, LogError> {
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
        self: &Arc<Self>,
        from: LogOffset,
        max_bytes: usize,
        manifest: &Manifest,
    ) -> Result<Vec<Slot>, LogError> {
        let mut chain = self.chain_at(from, manifest).await?;
        let mut slots: Vec<Slot> = Vec::new();
        let mut bytes = 0;
        let tail = self.known.lock().tail;
        let old = std::mem::take(&mut *self.ahead.lock());
        let mut ahead = Ahead::at(from, old);
        let mut next = from;
        while bytes < max_bytes || slots.is_empty() {
            let (stored, own_hash) = match ahead.next(self, tail).await {
                Ok(Some(found)) => found,
                Ok(None) => return Ok(slots),
                // First hand over what is good: the next call meets the error again.
                Err(_) if !slots.is_empty() => return Ok(slots),
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
        }
        ahead.keep_below(tail);
        if next < tail {
            // While the caller works through these.
            ahead.fetch(self, tail);
            ahead.keep_below(tail);
            *self.ahead.lock() = ahead;
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
        body: SnapshotBody,
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
        bucket::put_snapshot(&self.env, &self.store, &self.name, offset, chain, body).await
    }
}

fn not_trimmed(from: LogOffset, manifest: &Manifest) -> Result<(), LogError> {
    let log_start = manifest.log_start;
    if from < log_start {
        Err(LogError::Trimmed { log_start })
    } else {
        Ok(())
    }
}
