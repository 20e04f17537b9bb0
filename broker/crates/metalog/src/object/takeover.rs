//! Taking a log over: a manifest with a higher epoch, the end of the log, a fencing slot there.

use std::time::Duration;

use futures::future::{join, try_join_all};
use uuid::Uuid;

use super::{Created, Moment, Patience, Shared};
use crate::bucket::{self, failed};
use crate::format::{Hash, MAX_MANIFEST, MAX_SLOT, Manifest, StoredSlot, corrupt, genesis, hash};
use crate::{LogError, LogOffset, Owner};

/// How many slots are looked for at a time.
const PROBES: u64 = 16;

impl Shared {
    /// Creates manifests until one of ours is the newest.
    pub(super) async fn claim(&self, owner: &Owner, nonce: Uuid) -> Result<(Manifest, Moment), LogError> {
        loop {
            let moment = Moment::now(&self.env);
            let newest = self.refresh().await?;
            if newest.is_none() && self.is_in_postgres().await? {
                return Err(LogError::Invalid(format!(
                    "metadata_log.url: missing; log {} of this cluster is kept in PostgreSQL",
                    self.name
                )));
            }
            let manifest = Manifest::next_term(newest, owner, nonce);
            let key = self.manifest_key(manifest.sequence);
            let created = self
                .create(&key, &manifest.encode(), MAX_MANIFEST, Patience::Bounded)
                .await?;
            // *Epochs only grow, one owner per epoch*: a manifest created long after we looked may be one that was there and has been swept.
            if matches!(created, Created::Ours) && moment.elapsed(&self.env) <= self.options.confirm_after {
                self.learn_manifest(&manifest, moment);
                return Ok((manifest, moment));
            }
            self.env.sleep(self.env.jittered(Duration::from_millis(20))).await;
        }
    }

    /// The first slot that is not there, at or after `start`, where all slots below `start` are or were. Looks at many
    /// places at a time: a request takes long, and a cold log has thousands of slots.
    async fn find_tail(&self, start: LogOffset) -> Result<LogOffset, LogError> {
        // `present`: everything below it exists. Doubling steps, then even ones.
        let mut present = start.0;
        let mut absent = loop {
            let probes = (0..PROBES).map(|power| present + (1 << power) - 1).collect();
            if let Some(absent) = self.split(&mut present, probes).await? {
                break absent;
            }
        };
        while present < absent {
            let step = (absent - present).div_ceil(PROBES + 1);
            let probes = (1..=PROBES).map(|n| present + n * step - 1);
            let probes = probes.take_while(|probe| *probe < absent).collect();
            if let Some(nearer) = self.split(&mut present, probes).await? {
                absent = nearer;
            }
        }
        Ok(LogOffset(present))
    }

    /// Looks for slots, in order. Moves `present` behind those that are there and gives the first that is not.
    async fn split(&self, present: &mut u64, probes: Vec<u64>) -> Result<Option<u64>, LogError> {
        let looks = probes.iter().map(|probe| self.slot_exists(LogOffset(*probe)));
        for (probe, exists) in probes.iter().zip(try_join_all(looks).await?) {
            if !exists {
                return Ok(Some(*probe));
            }
            *present = probe + 1;
        }
        Ok(None)
    }

    async fn is_in_postgres(&self) -> Result<bool, LogError> {
        let marker = self.store.head(&bucket::postgres_key(&self.name)).await;
        marker.map(|found| found.is_some()).map_err(failed)
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

    /// Writes the fencing slot of the manifest that was claimed at `claimed`. Returns its hash and the offset after it.
    pub(super) async fn fence(
        &self,
        manifest: &Manifest,
        claimed: Moment,
    ) -> Result<(Hash, LogOffset), LogError> {
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
        let (behind, last) = join(self.check_nothing_behind(tail), self.last_hash(tail, manifest)).await;
        behind?;
        let mut previous = last?;
        if env::mutation("skip-fence") {
            return Ok((previous, tail));
        }
        loop {
            let body = manifest.slot(previous, tail, Vec::new()).encode()?;
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
                    // *What is sound is not taken for damage*: it may be one that was deleted and created again. Then the place behind it is not the end of the
                    // log, and a fence there would be in the way of whoever leads by now.
                    if claimed.elapsed(&self.env) > self.options.confirm_after {
                        let newest = self.refresh().await?;
                        if newest.is_none_or(|newest| newest.epoch != manifest.epoch) {
                            return Err(self.fenced(manifest.epoch).await);
                        }
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
