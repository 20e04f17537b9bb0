//! Storing groups in the shard, and deleting them there.

use std::sync::Arc;

use coordinator::replica::ReplicaError;
use kafka_wire::ResponseError;
use kafka_wire::flex::Encode;

use crate::group::{Group, Reply};
use crate::record::GroupRecord;
use crate::service::{GroupService, Groups, code};

/// A group has one save under way at most; what changes meanwhile is saved after it.
#[derive(Default)]
pub(crate) struct Saving {
    next: Option<GroupRecord>,
    /// Answers that the next save makes true; the present one, if there is no next.
    replies: Vec<Reply>,
}

impl GroupService {
    /// Deletes a group without members and all its offsets. False: there is none, or it does not fit.
    pub(crate) async fn delete_group(
        &self,
        group: &str,
        fits: impl Fn(&Group) -> bool,
    ) -> Result<bool, ResponseError> {
        let deletion = self.delete_stored(group);
        self.while_deleting(group, fits, deletion, |state| drop(state.groups.remove(group)))
            .await
    }

    /// Has `deletion` done while nobody joins a group without members, commits or fetches, and then `done`. False: there is none, or it
    /// does not fit.
    pub(crate) async fn while_deleting(
        &self,
        group: &str,
        fits: impl Fn(&Group) -> bool,
        deletion: impl Future<Output = Result<(), ReplicaError>>,
        done: impl FnOnce(&mut Groups),
    ) -> Result<bool, ResponseError> {
        let begun = loop {
            // A save that ended after the deletion would bring the group back: the last member may just have left.
            let saved = self.saved.notified();
            let begun = self.with(group, |state| {
                let idle = !state.saving.contains_key(group);
                let fits = state
                    .groups
                    .get(group)
                    .is_some_and(|found| found.is_empty() && fits(found));
                idle.then(|| fits && state.deleting.insert(group.to_owned()))
            })?;
            match begun {
                Some(begun) => break begun,
                None => saved.await,
            }
        };
        if !begun {
            return Ok(false);
        }
        let deleted = deletion.await;
        let mut state = self.state.lock();
        state.deleting.remove(group);
        deleted.map_err(|error| code(&error))?;
        done(&mut state);
        Ok(true)
    }

    /// Answers who can be answered now; if the group has changed, after that is stored.
    pub(crate) fn settle(self: &Arc<Self>, state: &mut Groups, group_id: &str, replies: Vec<Reply>) {
        let group = state.groups.get_mut(group_id);
        let deadline = group.as_ref().and_then(|group| group.next_deadline());
        if deadline.is_some_and(|deadline| state.next_look.is_none_or(|look| deadline < look)) {
            self.sooner.notify_one();
        }
        let record = group.and_then(Group::take_record);
        if state.groups.get(group_id).is_some_and(Group::is_nothing) {
            // Whoever asks with names that are never used costs nothing.
            state.groups.remove(group_id);
        }
        if let Some(saving) = state.saving.get_mut(group_id) {
            // Even if nothing has changed: it may tell of what is being saved.
            saving.next = record.or(saving.next.take());
            saving.replies.extend(replies);
            return;
        }
        let Some(record) = record else {
            replies
                .into_iter()
                .for_each(|reply| state.answer(reply.ticket, Ok(reply.response)));
            return;
        };
        state.saving.insert(group_id.to_owned(), Saving::default());
        let (service, group_id) = (self.clone(), group_id.to_owned());
        self.env.spawn(service.save(group_id, record, replies));
    }

    async fn save(self: Arc<Self>, group_id: String, mut record: GroupRecord, mut replies: Vec<Reply>) {
        loop {
            let generation = record.generation;
            let saved = self
                .shard
                .put_group(group_id.clone(), Some(record.to_bytes()), Vec::new())
                .await;
            let mut state = self.state.lock();
            let saving = state.saving.remove(&group_id).unwrap_or_default();
            let (next, later) = match saving.next {
                Some(next) => (Some(next), saving.replies),
                None => {
                    replies.extend(saving.replies);
                    (None, Vec::new())
                }
            };
            for reply in replies {
                let ticket = reply.ticket;
                let answer = match &saved {
                    Ok(()) => Ok(reply.response),
                    // It is this group, whoever is asked.
                    Err(ReplicaError::TooLarge { .. }) => {
                        Ok(reply.refused(ResponseError::UnknownServerError))
                    }
                    Err(error) => Err(code(error)),
                };
                state.answer(ticket, answer);
            }
            let Some(next) = next else {
                if let Err(error) = saved {
                    tracing::warn!(group = group_id, generation, %error, "a group could not be stored");
                    let (now, time) = (self.env.instant(), self.env.now());
                    let group = state.groups.get_mut(&group_id);
                    let replies = group.map(|group| group.not_stored(now, time, generation));
                    self.settle(&mut state, &group_id, replies.unwrap_or_default());
                }
                self.saved.notify_waiters();
                return;
            };
            state.saving.insert(group_id.clone(), Saving::default());
            (record, replies) = (next, later);
        }
    }
}
