//! Follows the shards.

use std::collections::BTreeSet;
use std::time::Duration;

use coordinator::protocol::TailRequest;
use env::Env;
use types::{LogOffset, ShardId};

use super::window::Windows;
use crate::config;
use crate::metadata::Metadata;
use crate::rpc::Coordinators;

/// How long a leader may hold the request without news.
const WAIT: Duration = Duration::from_secs(10);
/// How long the answer may take beyond that, a change of leaders included.
const ANSWER: Duration = Duration::from_secs(20);
/// After a failure.
const PAUSE: Duration = Duration::from_millis(100);

/// Follows every shard in the metadata image until the node ends. What is known of a shard that has said nothing for
/// `coordinates_max_age_ms` is forgotten: objects may have been deleted since.
pub async fn follow(
    env: Env,
    mut metadata: Metadata,
    coordinators: Coordinators,
    windows: Windows,
    settings: config::Fetch,
) {
    let mut followed: BTreeSet<ShardId> = BTreeSet::new();
    loop {
        for shard in &metadata.image().record().shards {
            if followed.insert(shard.id) {
                env.spawn(follow_shard(
                    env.clone(),
                    shard.id,
                    coordinators.clone(),
                    windows.clone(),
                    settings.clone(),
                ));
            }
        }
        metadata.changed().await;
    }
}

async fn follow_shard(
    env: Env,
    shard: ShardId,
    coordinators: Coordinators,
    windows: Windows,
    settings: config::Fetch,
) {
    let max_age = Duration::from_millis(settings.coordinates_max_age_ms);
    let mut grace = None;
    let max_wait_ms = u32::try_from(WAIT.min(max_age / 2).as_millis()).unwrap_or(u32::MAX);
    // When the shard was asked for what it then answered; `None`: nothing is known of it.
    let mut heard = None;
    // Newer than any log: the first answer says where it ends.
    let mut from = LogOffset(u64::MAX);
    loop {
        let request = TailRequest {
            shard,
            from,
            max_wait_ms,
        };
        let asked = env.instant();
        let patience = asked + WAIT + ANSWER;
        let deadline = heard.map_or(patience, |heard| patience.min(heard + max_age));
        let failed = match coordinators.tail(&request, deadline).await {
            Ok(news) if news.error_code == 0 => {
                heard = Some(asked);
                if std::mem::replace(&mut grace, news.file_grace_ms) != news.file_grace_ms {
                    check(shard, news.file_grace_ms, &settings);
                }
                from = news.next;
                windows.update(shard, news);
                false
            }
            Ok(news) => {
                tracing::warn!(%shard, code = news.error_code, "the leader of a shard does not tell what is new");
                true
            }
            Err(error) => {
                tracing::debug!(%shard, %error, "nothing new from a shard");
                true
            }
        };
        if heard.is_some_and(|heard| env.instant() >= heard + max_age) {
            windows.forget(shard);
            (heard, from) = (None, LogOffset(u64::MAX));
        }
        if failed {
            env.sleep(env.jittered(PAUSE)).await;
        }
    }
}

/// The settings of the coordinators may be others than this broker's.
fn check(shard: ShardId, file_grace_ms: Option<u64>, settings: &config::Fetch) {
    let fits = file_grace_ms.map_or(Ok(()), |grace| settings.fits(grace));
    if let Err(problem) = fits {
        tracing::error!(
            %shard,
            "coordinator.file_grace_ms of the coordinators: {problem}; consumers may fail to read what is being deleted"
        );
    }
}
