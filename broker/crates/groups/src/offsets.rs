//! OffsetCommit, OffsetFetch and OffsetDelete.

use std::collections::BTreeMap;
use std::sync::Arc;

use coordinator::shard::{OffsetCommit, StoredOffset};
use kafka_wire::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use kafka_wire::messages::offset_delete_response::{
    OffsetDeleteResponsePartition, OffsetDeleteResponseTopic,
};
use kafka_wire::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic, OffsetFetchResponseTopics,
};
use kafka_wire::messages::{
    OffsetCommitRequest, OffsetCommitResponse, OffsetDeleteRequest, OffsetDeleteResponse, OffsetFetchRequest,
    OffsetFetchResponse, TopicName,
};
use kafka_wire::{ResponseError, ResponseKind, StrBytes};
use types::TopicId;

use crate::expiry::DELETED_AT_ONCE;
use crate::group::Group;
use crate::service::{GroupService, code};

/// First version of OffsetFetch that asks for several groups.
const FETCH_MANY: i16 = 8;

/// First version of OffsetCommit that tells a member that there is no such group (KIP-848).
const NO_GROUP: i16 = 9;

type Answer = Result<ResponseKind, ResponseError>;
/// Topics with partitions; `None`: all there are.
type Wanted = Option<Vec<(TopicName, Vec<i32>)>>;

impl GroupService {
    pub(crate) async fn offset_commit(
        self: &Arc<Self>,
        version: i16,
        request: OffsetCommitRequest,
        ids: BTreeMap<String, TopicId>,
    ) -> Answer {
        let group_id = request.group_id.0.to_string();
        let (now, time) = (self.env.instant(), self.env.now());
        let generation = request.generation_id_or_member_epoch;
        let instance = request.group_instance_id.as_deref();
        let allowed = self.with(&group_id, |state| {
            if let Some(group) = state.groups.get_mut(&group_id) {
                group.check_commit(now, &request.member_id, instance, generation)?;
                group.note_commit();
                return Ok(());
            }
            if generation >= 0 {
                return Err(match version {
                    NO_GROUP.. => ResponseError::GroupIdNotFound,
                    _ => ResponseError::IllegalGeneration,
                });
            }
            // A consumer that assigns its partitions itself: the group is nothing but offsets.
            let mut group = Group::new(self.rules, time);
            group.note_commit();
            state.groups.insert(group_id.clone(), group);
            Ok(())
        })?;
        let mut commits = Vec::new();
        let topics = request.topics.iter().map(|topic| {
            let topic_id = ids.get(topic.name.as_str()).copied();
            let partitions = topic.partitions.iter().map(|partition| {
                let metadata = partition.committed_metadata.as_ref();
                let error = match allowed {
                    Err(error) => Some(error),
                    Ok(()) if metadata.is_some_and(|text| text.len() > self.settings.max_offset_metadata) => {
                        Some(ResponseError::OffsetMetadataTooLarge)
                    }
                    Ok(()) => {
                        commits.push(OffsetCommit {
                            topic: topic.name.0.to_string(),
                            topic_id,
                            partition: partition.partition_index,
                            offset: partition.committed_offset,
                            leader_epoch: partition.committed_leader_epoch,
                            metadata: metadata.map(|text| text.to_string()),
                        });
                        None
                    }
                };
                OffsetCommitResponsePartition::default()
                    .with_partition_index(partition.partition_index)
                    .with_error_code(kafka_wire::code(error))
            });
            OffsetCommitResponseTopic::default()
                .with_name(topic.name.clone())
                .with_partitions(partitions.collect())
        });
        let mut response = OffsetCommitResponse::default().with_topics(topics.collect());
        // In pieces that fit in the log whatever clients send; all of a request of usual size is one piece.
        while !commits.is_empty() {
            let rest = commits.split_off(piece(&commits, self.shard.max_entry_bytes() / 2));
            let stored = self
                .shard
                .commit_offsets(group_id.clone(), std::mem::replace(&mut commits, rest));
            if !stored.await.map_err(|error| code(&error))? {
                // It came late: the client asks again, for what still exists.
                let unknown = ResponseError::UnknownTopicOrPartition.code();
                let partitions = response.topics.iter_mut().flat_map(|topic| &mut topic.partitions);
                partitions.for_each(|partition| partition.error_code = unknown);
                break;
            }
        }
        Ok(ResponseKind::OffsetCommit(response))
    }

    pub(crate) async fn offset_fetch(self: &Arc<Self>, version: i16, request: OffsetFetchRequest) -> Answer {
        if version < FETCH_MANY {
            let wanted = request.topics.map(|topics| {
                topics
                    .into_iter()
                    .map(|t| (t.name, t.partition_indexes))
                    .collect()
            });
            let found = self.offsets_of(&request.group_id, wanted).await?;
            let topics = found.into_iter().map(|(name, offsets)| {
                let partitions = offsets.into_iter().map(|offset| {
                    OffsetFetchResponsePartition::default()
                        .with_partition_index(offset.partition)
                        .with_committed_offset(offset.offset)
                        .with_committed_leader_epoch(offset.leader_epoch)
                        .with_metadata(Some(offset.metadata))
                });
                OffsetFetchResponseTopic::default()
                    .with_name(name)
                    .with_partitions(partitions.collect())
            });
            return Ok(ResponseKind::OffsetFetch(
                OffsetFetchResponse::default().with_topics(topics.collect()),
            ));
        }
        let mut groups = Vec::new();
        for group in request.groups {
            let wanted = group.topics.map(|topics| {
                topics
                    .into_iter()
                    .map(|t| (t.name, t.partition_indexes))
                    .collect()
            });
            let found = self.offsets_of(&group.group_id, wanted).await?;
            let topics = found.into_iter().map(|(name, offsets)| {
                let partitions = offsets.into_iter().map(|offset| {
                    OffsetFetchResponsePartitions::default()
                        .with_partition_index(offset.partition)
                        .with_committed_offset(offset.offset)
                        .with_committed_leader_epoch(offset.leader_epoch)
                        .with_metadata(Some(offset.metadata))
                });
                OffsetFetchResponseTopics::default()
                    .with_name(name)
                    .with_partitions(partitions.collect())
            });
            let topics = topics.collect();
            groups.push(
                OffsetFetchResponseGroup::default()
                    .with_group_id(group.group_id)
                    .with_topics(topics),
            );
        }
        Ok(ResponseKind::OffsetFetch(
            OffsetFetchResponse::default().with_groups(groups),
        ))
    }

    /// As in Kafka, the broker that was asked has seen to it that topics exist.
    pub(crate) async fn offset_delete(&self, request: OffsetDeleteRequest) -> Answer {
        let judged = self.with(&request.group_id, |state| {
            let group = state.groups.get(request.group_id.as_str());
            let group = group.ok_or(ResponseError::GroupIdNotFound)?;
            let judge = |topic: &str| match group.check_delete(topic) {
                Err(ResponseError::NonEmptyGroup) => Err(ResponseError::NonEmptyGroup),
                other => Ok(other.err()),
            };
            request.topics.iter().map(|topic| judge(&topic.name)).collect()
        })?;
        let judged: Vec<Option<ResponseError>> = match judged {
            Ok(judged) => judged,
            Err(error) => {
                let refused = OffsetDeleteResponse::default().with_error_code(error.code());
                return Ok(ResponseKind::OffsetDelete(refused));
            }
        };
        let mut gone = Vec::new();
        let topics = request.topics.into_iter().zip(judged).map(|(topic, error)| {
            let partitions = topic.partitions.iter().map(|partition| partition.partition_index);
            if error.is_none() {
                gone.extend(partitions.clone().map(|index| (topic.name.to_string(), index)));
            }
            let result = |index| {
                OffsetDeleteResponsePartition::default()
                    .with_partition_index(index)
                    .with_error_code(kafka_wire::code(error))
            };
            let partitions = partitions.map(result).collect();
            OffsetDeleteResponseTopic::default()
                .with_name(topic.name)
                .with_partitions(partitions)
        });
        let response = OffsetDeleteResponse::default().with_topics(topics.collect());
        for some in gone.chunks(DELETED_AT_ONCE) {
            self.shard
                .delete_offsets(request.group_id.to_string(), some.to_vec())
                .await
                .map_err(|error| code(&error))?;
        }
        Ok(ResponseKind::OffsetDelete(response))
    }

    async fn offsets_of(
        &self,
        group: &str,
        wanted: Wanted,
    ) -> Result<Vec<(TopicName, Vec<Offset>)>, ResponseError> {
        self.with(group, |_| ())?;
        let partitions = wanted.as_ref().map(|topics| {
            let each = |(name, partitions): &(TopicName, Vec<i32>)| {
                let name = name.0.to_string();
                partitions
                    .iter()
                    .map(move |partition| (name.clone(), *partition))
                    .collect::<Vec<_>>()
            };
            topics.iter().flat_map(each).collect()
        });
        let stored = self
            .shard
            .fetch_offsets(group.to_owned(), partitions)
            .await
            .map_err(|error| code(&error))?;
        let Some(wanted) = wanted else {
            let mut all: BTreeMap<String, Vec<Offset>> = BTreeMap::new();
            for offset in stored {
                all.entry(offset.commit.topic.clone())
                    .or_default()
                    .push(Offset::of(offset));
            }
            let name = |name| TopicName(StrBytes::from_string(name));
            return Ok(all
                .into_iter()
                .map(|(topic, offsets)| (name(topic), offsets))
                .collect());
        };
        let mut found: BTreeMap<(String, i32), Offset> = BTreeMap::new();
        for offset in stored {
            found.insert(
                (offset.commit.topic.clone(), offset.commit.partition),
                Offset::of(offset),
            );
        }
        let look = |(name, partitions): (TopicName, Vec<i32>)| {
            let offset = |partition: i32| {
                found
                    .remove(&(name.0.to_string(), partition))
                    .unwrap_or_else(|| Offset::unknown(partition))
            };
            let offsets = partitions.into_iter().map(offset).collect();
            (name, offsets)
        };
        Ok(wanted.into_iter().map(look).collect())
    }
}

/// How many of `commits` go into one entry of the log, of up to `max` bytes: at least one.
fn piece(commits: &[OffsetCommit], max: usize) -> usize {
    let size =
        |commit: &OffsetCommit| commit.topic.len() + commit.metadata.as_ref().map_or(0, String::len) + 48;
    let mut bytes = 0;
    let fits = commits.iter().take_while(|commit| {
        bytes += size(commit);
        bytes <= max
    });
    fits.count().max(1)
}

/// A committed offset as both forms of the answer show it.
struct Offset {
    partition: i32,
    offset: i64,
    leader_epoch: i32,
    metadata: StrBytes,
}

impl Offset {
    fn of(stored: StoredOffset) -> Offset {
        let OffsetCommit {
            partition,
            offset,
            leader_epoch,
            metadata,
            ..
        } = stored.commit;
        Offset {
            partition,
            offset,
            leader_epoch,
            metadata: StrBytes::from_string(metadata.unwrap_or_default()),
        }
    }

    /// Never committed: no error (Kafka), and offset -1.
    fn unknown(partition: i32) -> Offset {
        Offset {
            partition,
            offset: -1,
            leader_epoch: -1,
            metadata: StrBytes::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_commits_are_taken_apart() {
        let commit = |metadata: usize| OffsetCommit {
            topic: "t".repeat(249),
            topic_id: None,
            partition: 0,
            offset: 1,
            leader_epoch: 0,
            metadata: Some("m".repeat(metadata)),
        };
        let max = 4 << 20;
        assert_eq!(piece(&vec![commit(0); 10_000], max), 10_000);
        let large = piece(&vec![commit(4096); 10_000], max);
        assert!((900..1_000).contains(&large), "{large}");
        assert_eq!(piece(&[commit(2 * max)], max), 1);
    }
}
