//! What the log `cluster` can be asked to change.

use std::sync::Arc;

use types::{FeatureLevel, TopicId};

use crate::ApiError;
use crate::configs::Op;
use crate::entry::TopicRecord;

/// A topic to create. Everything random was drawn by who asks.
#[derive(Clone, Debug)]
pub struct NewTopic {
    /// Its identity.
    pub id: TopicId,
    /// Its name.
    pub name: String,
    /// Number of partitions.
    pub partitions: u32,
    /// Spreads topics over the shards.
    pub start: u64,
    /// As asked for, not yet checked.
    pub configs: Vec<(String, Option<String>)>,
}

/// A topic to enlarge.
#[derive(Clone, Debug)]
pub struct Growth {
    /// Its name.
    pub name: String,
    /// Number of partitions it is to have.
    pub count: i32,
    /// Number of assignments given for the new partitions, if any were.
    pub assignments: Option<usize>,
    /// Spreads partitions over the shards.
    pub start: u64,
}

/// Names a topic.
#[derive(Clone, Debug)]
pub enum TopicRef {
    /// By name.
    Name(String),
    /// By id.
    Id(TopicId),
}

/// How the configurations of a topic are to change.
#[derive(Clone, Debug)]
pub enum Alteration {
    /// Key by key (IncrementalAlterConfigs).
    Ops(Vec<(String, Op)>),
    /// All at once: what is not named goes back to its default (AlterConfigs).
    Replace(Vec<(String, Option<String>)>),
}

/// A change of the cluster's metadata.
#[derive(Clone, Debug)]
pub enum Command {
    /// Forms the cluster, or adds shards to it when it has fewer.
    Format {
        /// Taken only when the cluster is formed.
        cluster_id: String,
        /// Number of shards.
        shards: u32,
        /// Taken only when the cluster is formed.
        feature_level: FeatureLevel,
    },
    /// Finalises a feature level, unless it is no higher than what is.
    RaiseFeatureLevel(FeatureLevel),
    /// Intends to create topics.
    CreateTopics {
        /// Each is judged by itself.
        topics: Vec<NewTopic>,
        /// Judge only.
        validate_only: bool,
    },
    /// Intends to enlarge topics.
    GrowTopics {
        /// Each is judged by itself.
        topics: Vec<Growth>,
        /// Judge only.
        validate_only: bool,
    },
    /// The first `ready` partitions of a topic are bound to their shards.
    TopicReady {
        /// The topic; unknown or deleted ones are ignored.
        id: TopicId,
        /// Number of partitions.
        ready: u32,
    },
    /// Takes topics away from clients and intends to delete them.
    DeleteTopics(Vec<TopicRef>),
    /// Every shard has forgotten the topic.
    TopicDeleted(TopicId),
    /// Changes configurations of topics.
    AlterConfigs {
        /// Each is judged by itself.
        topics: Vec<(String, Alteration)>,
        /// Judge only.
        validate_only: bool,
    },
    /// Gives out a block of producer ids.
    AllocateProducerIds {
        /// Size of the block.
        count: i32,
    },
}

/// The answer to a [`Command`].
#[derive(Debug)]
pub enum Output {
    /// Done; nothing to say.
    Done,
    /// One for each topic of the command, in order: the topic after the change.
    Topics(Vec<Result<Arc<TopicRecord>, ApiError>>),
    /// First id of the block.
    ProducerIds(i64),
}
