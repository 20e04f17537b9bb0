//! Deleting what nobody needs any more.

use blob::ObjectMeta;
use std::time::Duration;

use super::{Shared, failed};
use crate::{LogError, LogOffset};

const PAGE: usize = 1000;

impl Shared {
    /// The newest manifest that is `min_age` old decides: what it had already declared dead has been so for long
    /// enough. Whoever runs this, even a deposed leader, comes to no other result than the leader would.
    pub(super) async fn sweep(&self) -> Result<usize, LogError> {
        let manifests = self.pages(&self.directory("manifest"), |_| true).await?;
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

        let is_dead = |object: &ObjectMeta| {
            self.number("log", &object.key)
                .is_none_or(|offset| LogOffset(offset) < manifest.log_start)
        };
        let slots = self.pages(&self.directory("log"), is_dead).await?;
        dead.extend(
            slots
                .into_iter()
                .filter(|o| self.number("log", &o.key).is_some())
                .map(|object| object.key),
        );

        if let Some(kept) = manifest.snapshot.as_ref().map(|snapshot| snapshot.offset) {
            // One that was never installed goes too, once a later one has been.
            let is_dead = |object: &ObjectMeta| {
                self.snapshot_offset(&object.key)
                    .is_none_or(|offset| offset < kept)
            };
            let snapshots = self.pages(&self.directory("snapshot"), is_dead).await?;
            let ours =
                |object: &ObjectMeta| self.snapshot_offset(&object.key).is_some() && self.is_old(object);
            dead.extend(snapshots.into_iter().filter(ours).map(|object| object.key));
        }
        let failures = self.store.delete_many(&dead).await.map_err(failed)?;
        if let Some((key, error)) = failures.first() {
            tracing::warn!(key, %error, count = failures.len(), "old objects of a metadata log cannot be deleted");
        }
        Ok(dead.len() - failures.len())
    }

    /// The offset in the key of a snapshot; `None` for a foreign object.
    fn snapshot_offset(&self, key: &str) -> Option<LogOffset> {
        let (offset, _) = key.strip_prefix(&self.directory("snapshot"))?.split_once('-')?;
        offset.parse().ok().map(LogOffset)
    }

    fn is_old(&self, object: &ObjectMeta) -> bool {
        Duration::from_millis(self.env.now().since(object.last_modified)) >= self.options.min_age
    }

    /// The objects at the start of `directory`, in order, as long as `wanted` says so.
    async fn pages(
        &self,
        directory: &str,
        wanted: impl Fn(&ObjectMeta) -> bool + Send,
    ) -> Result<Vec<ObjectMeta>, LogError> {
        let mut found: Vec<ObjectMeta> = Vec::new();
        loop {
            let after = found.last().map(|object| object.key.as_str());
            let page = self.store.list(directory, after, PAGE).await.map_err(failed)?;
            let count = page.len();
            let before = found.len();
            found.extend(page.into_iter().take_while(&wanted));
            if count < PAGE || found.len() < before + count {
                return Ok(found);
            }
        }
    }
}
