//! Follows the shards.

use std::collections::BTreeSet;
use std::time::Duration;

use coordinator::protocol::TailRequest;
use env::Env;
use types::{LogOffset, ShardId};

use super::window::Windows;
use crate::metadata::Metadata;
use crate::rpc::Coordinators;

/// How long a leader may hold the request without news.
const WAIT: Duration = Duration::from_secs(10);
/// How long the answer may take beyond that, a change of leaders included.
const ANSWER: Duration = Duration::from_secs(20);
/// After a failure.
const PAUSE: Duration = Duration::from_millis(100);

/// Follows every shard in the metadata image until the node ends. What is known of a shard that has said nothing for
/// `max_age` is forgotten: objects may have been deleted since.
pub async fn follow(
    env: Env,
    mut metadata: Metadata,
    coordinators: Coordinators,
    windows: Windows,
    max_age: Duration,
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
                    max_age,
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
    max_age: Duration,
) {
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
