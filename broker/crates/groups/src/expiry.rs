//! Forgetting offsets that nobody has committed for long, and groups that are left with nothing.

use std::time::Duration;

use coordinator::shard::StoredOffset;
use kafka_wire::ResponseError;

use crate::group::{Group, State};
use crate::service::{GroupService, code};

/// Kafka's `offsets.retention.check.interval.ms`.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(600);
/// Offsets that go with one entry of the log.
pub(crate) const DELETED_AT_ONCE: usize = 256;

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
            let name = |offset: &StoredOffset| (offset.commit.topic.clone(), offset.commit.partition);
            for some in expired.chunks(DELETED_AT_ONCE) {
                self.shard
                    .delete_offsets(id.to_owned(), some.iter().map(name).collect())
                    .await
                    .map_err(|error| code(&error))?;
            }
        }
        Ok(())
    }
}
