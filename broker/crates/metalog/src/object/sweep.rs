//! Deleting what nobody needs any more.

use blob::ObjectMeta;
use std::time::Duration;

use super::Shared;
use crate::bucket;
use crate::{LogError, LogOffset};

impl Shared {
    /// *The trimmed prefix is covered by a snapshot*: the newest manifest that is `min_age` old decides; what it had
    /// already declared dead has been so for long enough. One that has decided stays old, so none before it ever
    /// does again. Whoever runs this, even a deposed leader, comes to no other result than the leader would.
    pub(super) async fn sweep(&self) -> Result<usize, LogError> {
        let manifests = bucket::pages(&self.store, &self.directory("manifest"), |_| true).await?;
        let manifests: Vec<(u64, String)> = manifests
            .into_iter()
            .filter(|object| self.is_old(object))
            .filter_map(|object| Some((self.number("manifest", &object.key)?, object.key)))
            .collect();
        let Some((deciding, _)) = manifests.last() else {
            return Ok(0);
        };
        let Some(manifest) = self.read_manifest(*deciding).await? else {
            return Ok(0);
        };
        let mut dead: Vec<String> = manifests
            .iter()
            .filter(|(sequence, _)| sequence < deciding)
            .map(|(_, key)| key.clone())
            .collect();

        let mut end = manifest.log_start;
        if env::mutation("trim-above-snapshot") {
            end = manifest
                .snapshot
                .as_ref()
                .map_or(end, |snapshot| LogOffset(snapshot.offset.0 + 5));
        }
        let is_dead = |object: &ObjectMeta| {
            self.number("log", &object.key)
                .is_none_or(|offset| LogOffset(offset) < end)
        };
        let slots = bucket::pages(&self.store, &self.directory("log"), is_dead).await?;
        dead.extend(
            slots
                .into_iter()
                .filter(|o| self.number("log", &o.key).is_some())
                .map(|object| object.key),
        );

        if let Some(kept) = manifest.snapshot.as_ref().map(|snapshot| snapshot.offset) {
            // One that was never installed goes too, once a later one has been.
            let snapshots = bucket::snapshots_below(&self.store, &self.name, kept).await?;
            let old = snapshots.into_iter().filter(|(_, object)| self.is_old(object));
            dead.extend(old.map(|(_, object)| object.key));
        }
        bucket::delete(&self.store, &dead).await
    }

    fn is_old(&self, object: &ObjectMeta) -> bool {
        Duration::from_millis(self.env.now().since(object.last_modified)) >= self.options.min_age
    }
}
