//! Topics as requests name them.

use std::sync::Arc;

use cluster::configs::TopicConfig;
use cluster::image::{MetadataImage, Topic};
use kafka_wire::messages::TopicName;
use kafka_wire::{ResponseError, StrBytes};
use parking_lot::Mutex;
use types::{FastMap, ShardId, TopicId, TopicPartition};
use uuid::Uuid;

/// Finds the topic that a request names: by id where the version carries one, otherwise by name.
pub(super) fn find<'a>(
    image: &'a MetadataImage,
    by_id: bool,
    name: &TopicName,
    id: Uuid,
) -> Result<&'a Topic, ResponseError> {
    if by_id {
        image
            .topic_by_id(TopicId(id))
            .ok_or(ResponseError::UnknownTopicId)
    } else {
        image
            .topic(name.as_str())
            .ok_or(ResponseError::UnknownTopicOrPartition)
    }
}

/// A partition of `topic` and the shard that orders it.
pub(super) fn partition(topic: &Topic, index: i32) -> Result<(TopicPartition, ShardId), ResponseError> {
    let shard = usize::try_from(index)
        .ok()
        .and_then(|at| topic.partitions.get(at));
    let shard = shard.ok_or(ResponseError::UnknownTopicOrPartition)?;
    Ok((
        TopicPartition {
            topic: topic.id,
            partition: index,
        },
        *shard,
    ))
}

/// What a partition that does not exist gets in words.
pub(super) const UNKNOWN: StrBytes =
    StrBytes::from_static_str("This server does not host this topic-partition.");

/// Whether there is such a partition.
pub(super) fn exists(image: &MetadataImage, topic: &str, index: i32) -> bool {
    image
        .topic(topic)
        .is_some_and(|topic| partition(topic, index).is_ok())
}

/// The configurations of topics, read from the image once for each image.
#[derive(Default)]
pub(super) struct TopicConfigs(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// The image they were read from.
    image: Option<Arc<MetadataImage>>,
    configs: FastMap<TopicId, TopicConfig>,
}

impl TopicConfigs {
    /// The configuration of `topic` in `image`.
    pub(super) fn of(&self, image: &Arc<MetadataImage>, topic: &Topic) -> TopicConfig {
        let mut known = self.0.lock();
        if !known.image.as_ref().is_some_and(|from| Arc::ptr_eq(from, image)) {
            *known = Known {
                image: Some(image.clone()),
                configs: FastMap::default(),
            };
        }
        *known
            .configs
            .entry(topic.id)
            .or_insert_with(|| TopicConfig::of(topic))
    }
}
