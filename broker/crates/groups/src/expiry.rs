//! Forgetting offsets that nobody has committed for long, and groups that are left with nothing.

use std::time::Duration;

use coordinator::replica::ReplicaError;
use coordinator::shard::StoredOffset;
use kafka_wire::ResponseError;

use crate::group::{Group, State};
use crate::service::{GroupService, code};

/// Kafka's `offsets.retention.check.interval.ms`.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(600);
/// Offsets that go with one entry of the log: a few milliseconds of the leader.
pub(crate) const DELETED_AT_ONCE: usize = 1_000;

impl GroupService {
    /// Forgets what groups without members have committed, after the retention time (KIP-211), and groups without
    /// members that have committed nothing.
    pub(crate) async fn expire(&self) {
        loop {
            self.env.sleep(EXPIRY_INTERVAL).await;
            let retention = i64::try_from(self.settings.offsets_retention.as_millis()).unwrap_or(i64::MAX);
            let before = self.env.now().plus(-retention);
            let empty = |group: &Group| group.is_empty() && group.state == State::Empty;
            let candidates: Vec<(String, bool, u64)> = {
                let state = self.state.lock();
                state
                    .groups
                    .iter()
                    .filter(|(_, group)| empty(group))
                    .map(|(id, group)| (id.clone(), group.since < before, group.commits()))
                    .collect()
            };
            for (id, old, commits) in candidates {
                let before = if old { before } else { types::Timestamp(i64::MIN) };
                // Not if somebody commits while it is looked at.
                let fits = |group: &Group| empty(group) && group.commits() == commits;
                if let Err(error) = self.expire_group(&id, before, fits).await {
                    tracing::debug!(group = id, ?error, "offsets were not expired");
                }
            }
        }
    }

    async fn expire_group(
        &self,
        id: &str,
        before: types::Timestamp,
        fits: impl Fn(&Group) -> bool,
    ) -> Result<(), ResponseError> {
        let offsets = self
            .shard
            .fetch_offsets(id.to_owned(), None)
            .await
            .map_err(|error| code(&error))?;
        let (expired, kept): (Vec<_>, Vec<_>) = offsets
            .into_iter()
            .partition(|offset| offset.committed_at < before);
        if kept.is_empty() {
            self.delete_group(id, fits).await?;
        } else if !expired.is_empty() {
            // What is committed meanwhile would go with what has expired.
            let deletion = self.delete_offsets(id, expired.iter());
            self.while_deleting(id, fits, deletion, |_| ()).await?;
        }
        Ok(())
    }

    /// Deletes what is stored of a group, in steps: no commit waits for all of a large one.
    pub(crate) async fn delete_stored(&self, id: &str) -> Result<(), ReplicaError> {
        let offsets = self.shard.fetch_offsets(id.to_owned(), None).await?;
        // The last ones go with the group.
        let before = offsets.len().saturating_sub(DELETED_AT_ONCE);
        self.delete_offsets(id, offsets.iter().take(before)).await?;
        self.shard.put_group(id.to_owned(), None, Vec::new()).await
    }

    async fn delete_offsets(
        &self,
        id: &str,
        offsets: impl Iterator<Item = &StoredOffset>,
    ) -> Result<(), ReplicaError> {
        let name = |offset: &StoredOffset| (offset.commit.topic.clone(), offset.commit.partition);
        let names: Vec<_> = offsets.map(name).collect();
        for some in names.chunks(DELETED_AT_ONCE) {
            self.shard.delete_offsets(id.to_owned(), some.to_vec()).await?;
        }
        Ok(())
    }
}
