//! Where views lie: `shards/<shard>/<life>` in the node's data directory. Each life of a shard has a directory of its own, in which its
//! last jobs may be at work when the next one has begun. Deleting one can take long, so nobody waits for it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use env::Env;
use types::ShardId;

use super::state::remove_all;

const VIEWS: &str = "shards";
/// Jobs that had begun before a life ended may still make files,
const AGAIN: Duration = Duration::from_secs(10);
/// but not for long.
const ATTEMPTS: u32 = 10;

/// A directory for a new life.
pub(super) fn new_view(env: &Env, data_dir: &Path, shard: ShardId) -> PathBuf {
    let lives = data_dir.join(VIEWS).join(shard.to_string());
    lives.join(format!("{:016x}", env.random_u64()))
}

/// The directories of all views. Views do not survive their process: one that has just started finds only what is to be deleted.
pub fn views(data_dir: &Path) -> Vec<PathBuf> {
    let below = |dir: PathBuf| {
        let entries = std::fs::read_dir(dir).into_iter().flatten();
        entries.filter_map(|entry| entry.ok().map(|entry| entry.path()))
    };
    below(data_dir.join(VIEWS)).flat_map(below).collect()
}

/// Deletes the directory of a life that has ended.
pub async fn delete_view(env: &Env, dir: PathBuf) {
    for _ in 0..ATTEMPTS {
        let this = dir.clone();
        match env.blocking(move || remove_all(&this)).await {
            Ok(()) => return,
            Err(error) => tracing::debug!(%error, "a view could not be deleted; it is tried again"),
        }
        env.sleep(AGAIN).await;
    }
    tracing::warn!(view = %dir.display(), "a view that nobody needs could not be deleted; the next start will try");
}
