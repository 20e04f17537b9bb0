//! Taking a log over: a manifest with a higher epoch, the end of the log, a fencing slot there.

use std::time::Duration;

use uuid::Uuid;

use super::{Created, Moment, Patience, Shared, failed};
use crate::format::{Hash, MAX_MANIFEST, MAX_SLOT, Manifest, StoredSlot, corrupt, genesis, hash};
use crate::{Epoch, LogError, LogOffset, Owner, Slot};

impl Shared {
    /// Creates manifests until one of ours is the newest.
    pub(super) async fn claim(&self, owner: &Owner, nonce: Uuid) -> Result<(Manifest, Moment), LogError> {
        loop {
            let moment = Moment::now(&self.env);
            let newest = self.refresh().await?;
            let manifest = match newest {
                None => Manifest {
                    sequence: 0,
                    epoch: Epoch(1),
                    nonce,
                    log_start: LogOffset(0),
                    owner: owner.clone(),
                    snapshot: None,
                },
                Some(newest) => Manifest {
                    sequence: newest.sequence + 1,
                    epoch: Epoch(newest.epoch.0 + 1),
                    nonce,
                    owner: owner.clone(),
                    ..newest
                },
            };
            let key = self.manifest_key(manifest.sequence);
            let created = self
                .create(&key, &manifest.encode(), MAX_MANIFEST, Patience::Bounded)
                .await?;
            // A manifest created long after we looked may be one that was there and has been swept.
            if matches!(created, Created::Ours) && moment.elapsed(&self.env) <= self.options.confirm_after {
                self.learn_manifest(&manifest, moment);
                return Ok((manifest, moment));
            }
            self.env.sleep(self.env.jittered(Duration::from_millis(20))).await;
        }
    }

    /// The first slot that is not there, at or after `start`, where all slots below `start` are or were.
    async fn find_tail(&self, start: LogOffset) -> Result<LogOffset, LogError> {
        let (mut present, mut step) = (start, 1);
        // `present`: everything below it exists. Doubling steps, then halving ones.
        let mut absent = loop {
            let probe = LogOffset(present.0 + step - 1);
            if !self.slot_exists(probe).await? {
                break probe;
            }
            present = probe.next();
            step *= 2;
        };
        while present < absent {
            let middle = LogOffset(present.0 + (absent.0 - present.0) / 2);
            if self.slot_exists(middle).await? {
                present = middle.next();
            } else {
                absent = middle;
            }
        }
        Ok(present)
    }

    async fn slot_exists(&self, offset: LogOffset) -> Result<bool, LogError> {
        self.store
            .head(&self.slot_key(offset))
            .await
            .map(|found| found.is_some())
            .map_err(failed)
    }

    /// Refuses to write at `tail` if slots exist behind it: somebody has deleted one, and going on would bury the rest.
    async fn check_nothing_behind(&self, tail: LogOffset) -> Result<(), LogError> {
        let list = self
            .store
            .list(&self.directory("log"), Some(&self.slot_key(tail)), 1)
            .await
            .map_err(failed)?;
        let behind = list.first().and_then(|object| self.number("log", &object.key));
        match behind {
            // A writer that is not fenced yet may have filled the place since we looked.
            Some(behind) if !self.slot_exists(tail).await? => {
                let text = format!("this slot is missing although slot {behind} exists");
                Err(corrupt(&self.slot_key(tail), &text))
            }
            _ => Ok(()),
        }
    }

    /// Writes the fencing slot. Returns its hash and the offset after it.
    pub(super) async fn fence(&self, manifest: &Manifest) -> Result<(Hash, LogOffset), LogError> {
        let start = manifest.log_start.max(self.known.lock().tail);
        let mut tail = self.find_tail(start).await?;
        if let Some(snapshot) = manifest
            .snapshot
            .as_ref()
            .filter(|snapshot| snapshot.offset > tail)
        {
            let text = format!(
                "this slot is missing although snapshot {} contains it",
                snapshot.key
            );
            return Err(corrupt(&self.slot_key(tail), &text));
        }
        self.check_nothing_behind(tail).await?;
        let mut previous = self.last_hash(tail, manifest).await?;
        loop {
            let slot = Slot {
                offset: tail,
                epoch: manifest.epoch,
                entries: Vec::new(),
            };
            let stored = StoredSlot {
                nonce: manifest.nonce,
                previous,
                slot,
            };
            let body = stored.encode().unwrap_or_default();
            let key = self.slot_key(tail);
            match self.create(&key, &body, MAX_SLOT, Patience::Bounded).await? {
                Created::Ours => {
                    self.learn_tail(tail.next());
                    return Ok((hash(&body), tail.next()));
                }
                Created::Theirs(body) => {
                    let other = StoredSlot::decode(&key, tail, &body)?;
                    if other.slot.epoch >= manifest.epoch {
                        return Err(self.fenced(other.slot.epoch).await);
                    }
                    if other.previous != previous {
                        return Err(corrupt(&key, "it does not follow the slot before it"));
                    }
                    previous = hash(&[body]);
                    tail = tail.next();
                }
            }
        }
    }

    /// The hash of the last slot, before `tail`; an error if it shows that `manifest` came too late.
    async fn last_hash(&self, tail: LogOffset, manifest: &Manifest) -> Result<Hash, LogError> {
        if tail.0 == 0 {
            return Ok(genesis(&self.name));
        }
        // Slots that were trimmed before our manifest are older than it.
        if let Some(snapshot) = manifest
            .snapshot
            .as_ref()
            .filter(|snapshot| snapshot.offset == tail)
            && manifest.log_start == tail
        {
            return Ok(snapshot.chain);
        }
        let last = LogOffset(tail.0 - 1);
        match self.fetch(last).await? {
            Some((stored, _)) if stored.slot.epoch >= manifest.epoch => {
                Err(self.fenced(stored.slot.epoch).await)
            }
            Some((_, hash)) => Ok(hash),
            None => Err(corrupt(&self.slot_key(last), "this slot is missing")),
        }
    }
}
