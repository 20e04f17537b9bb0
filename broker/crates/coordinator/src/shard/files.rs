//! The jobs that end the life of files (KIP-1164): down the owner chain, then out of the store.
//!
//! ```text
//!   first owner ── hand over ──▶ next owner ── … ──▶ last owner ── grace ──▶ object deleted ▸ tombstone
//!        ▲                          │ WAITING for longer than the grace:
//!        └── "do you know it?" ─────┘ an owner that never saw the file starts the chain, and refuses it from then on
//! ```
//!
//! Nothing is remembered outside the log but how far a pass has come, so a new leader starts anew where the old one was
//! cut off: handing over and deleting twice do nothing the second time.

use std::collections::{BTreeMap, BTreeSet};

use blob::BlobError;
use parking_lot::Mutex;
use types::ShardId;
use uuid::Uuid;

use super::jobs::{Jobs, Pass, millis};
use super::queries::{self, DeadFile, Place};
use super::schema::file_state;
use super::{Command, ShardService};
use crate::codes;
use crate::protocol::{DescribeFilesRequest, HandOverFileRequest};

/// Most files handled at a time: what one DeleteObjects takes.
const FILES: usize = 1_000;
const HAND_OVERS: usize = 32;

impl ShardService {
    /// Hands files that are dead here to their next owners.
    pub(super) async fn hand_files_over(&self, jobs: &Jobs) -> Pass {
        // A shard that cannot be reached must not hold up the files of the others, however many wait for it.
        let mut unreachable: BTreeSet<ShardId> = BTreeSet::new();
        let mut after = Place::default();
        loop {
            let now = self.env.now();
            let dead = self
                .scan(move |db| queries::files_after(db, file_state::HAND_OVER, after, now, FILES))
                .await?;
            let Some((last, _)) = dead.last().filter(|_| !env::mutation("forget-hand-over")) else {
                return Ok(());
            };
            after = *last;
            for files in dead.chunks(HAND_OVERS) {
                self.hand_over(jobs, files, &mut unreachable).await?;
            }
        }
    }

    async fn hand_over(
        &self,
        jobs: &Jobs,
        files: &[(Place, DeadFile)],
        unreachable: &mut BTreeSet<ShardId>,
    ) -> Pass {
        let mut calls = Vec::new();
        for (_, DeadFile { object, size, owners }) in files {
            let Some((_, owners)) = owners.split_first() else {
                continue;
            };
            let Some(&next) = owners.first() else { continue };
            if unreachable.contains(&next) {
                continue;
            }
            let call = (jobs.hand_over)(HandOverFileRequest {
                shard: next,
                object: *object,
                size: *size,
                owners: match env::mutation("lose-owner") {
                    true => vec![next],
                    false => owners.to_vec(),
                },
            });
            calls.push(async move { (next, *object, call.await) });
        }
        let mut taken = Vec::new();
        for (next, object, code) in futures::future::join_all(calls).await {
            if code == codes::NONE {
                taken.push(object);
            } else {
                tracing::debug!(shard = %self.shard(), %next, code, "hand-over of a file failed, it is repeated");
                unreachable.insert(next);
            }
        }
        if !taken.is_empty() {
            self.submit(Command::FilesHandedOver(taken)).await?;
        }
        Ok(())
    }

    /// Asks the first owners of files that have been waiting for them for long whether they know the file. One that does
    /// will hand it over. One that does not was never reached (the broker died in the middle of its commits): it takes
    /// the file as dead, so that it refuses a late commit, and begins the chain. `asked` is how far that has been done.
    pub(super) async fn ask_first_owners(&self, jobs: &Jobs, asked: &Mutex<Place>) -> Pass {
        loop {
            let after = *asked.lock();
            let older_than = self.env.now().plus(-millis(jobs.options.file_grace));
            let waiting = self
                .scan(move |db| queries::files_after(db, file_state::WAITING, after, older_than, FILES))
                .await?;
            let Some(last) = waiting.last().map(|(place, _)| *place) else {
                return Ok(());
            };
            let mut by_owner: BTreeMap<ShardId, Vec<DeadFile>> = BTreeMap::new();
            for (_, file) in waiting {
                if let Some(first) = file.owners.first() {
                    by_owner.entry(*first).or_default().push(file);
                }
            }
            for (first, files) in by_owner {
                let objects = files.iter().map(|file| file.object).collect();
                let request = DescribeFilesRequest {
                    shard: first,
                    objects,
                };
                let answer = (jobs.describe)(request).await;
                if answer.error_code != codes::NONE {
                    tracing::debug!(shard = %self.shard(), %first, code = answer.error_code, "cannot ask for files");
                    return Ok(());
                }
                let known: BTreeSet<Uuid> = answer.known.into_iter().collect();
                for DeadFile { object, size, owners } in files {
                    if known.contains(&object) {
                        continue;
                    }
                    let code = (jobs.hand_over)(HandOverFileRequest {
                        shard: first,
                        object,
                        size,
                        owners,
                    })
                    .await;
                    if code != codes::NONE {
                        return Ok(());
                    }
                    tracing::info!(shard = %self.shard(), %first, %object, "a file never reached its first owner");
                }
            }
            *asked.lock() = last;
        }
    }

    /// Deletes objects that nobody needs any more.
    pub(super) async fn delete_files(&self, jobs: &Jobs) -> Pass {
        let mut after = Place::default();
        loop {
            let grace = match env::mutation("delete-without-grace") {
                true => 0,
                false => millis(jobs.options.file_grace),
            };
            let older_than = self.env.now().plus(-grace);
            let dead = self
                .scan(move |db| queries::files_after(db, file_state::DELETE, after, older_than, FILES))
                .await?;
            let Some((last, _)) = dead.last() else {
                return Ok(());
            };
            // What fails is tried once a pass, and keeps nothing else from being deleted.
            after = *last;
            // Who was deposed meanwhile must not go on deleting by an old view.
            self.barrier().await?;
            let keys: Vec<_> = dead
                .iter()
                .map(|(_, file)| (jobs.object_key)(file.object))
                .collect();
            let failed: BTreeMap<String, BlobError> = match jobs.store.delete_many(&keys).await {
                Ok(failed) => failed.into_iter().collect(),
                Err(error) => {
                    tracing::warn!(shard = %self.shard(), objects = keys.len(), %error, "deletion of objects failed");
                    return Ok(());
                }
            };
            if let Some(error) = failed.values().next() {
                tracing::warn!(shard = %self.shard(), failed = failed.len(), %error, "objects not deleted");
            }
            let gone = dead
                .iter()
                .zip(&keys)
                .filter(|(_, key)| !failed.contains_key(*key));
            let gone: Vec<_> = gone.map(|((_, file), _)| file.object).collect();
            if !gone.is_empty() {
                self.submit(Command::FilesDeleted(gone)).await?;
            } else if failed.values().any(BlobError::is_transient) {
                // The store does not want to now.
                return Ok(());
            }
        }
    }
}
