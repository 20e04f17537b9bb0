//! The state machine of the log `cluster`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use coordinator::replica::{SnapshotJob, Speculated, StateError, StateMachine};
use kafka_wire::ResponseError;
use tokio::sync::watch;
use types::feature::FEATURE;
use types::{FeatureLevel, FeatureLevels, LogOffset, ShardId, Timestamp, TopicId};

pub use crate::command::{Alteration, Command, Growth, NewTopic, Output, TopicRef};
pub use crate::entry::TopicRecord;

use crate::configs;
use crate::entry::{self, Change, Formatted, Snapshot};
use crate::image::Config;
use crate::{ApiError, names};

/// Most partitions that one request may create: bounds what a small request can make of memory (Kafka's bound).
pub const MAX_NEW_PARTITIONS: u32 = 10_000;
/// Most partitions of a topic: bounds its record, which is logged whole with every change.
const MAX_PARTITIONS: i32 = 20_000;

/// What is known of the cluster and must not be forgotten. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    /// Empty until the cluster is formed.
    pub cluster_id: String,
    /// Number of shards.
    pub shards: u32,
    /// Groups live on the first so many shards.
    pub group_shards: u32,
    /// All topics, those being created or deleted too.
    pub topics: BTreeMap<TopicId, Arc<TopicRecord>>,
    /// Names that are taken: of all topics but those being deleted.
    pub names: BTreeMap<String, TopicId>,
    /// The first producer id that was never given out.
    pub next_producer_id: i64,
    /// What the nodes may write.
    pub feature_level: FeatureLevel,
}

impl Metadata {
    /// The topic that has `name` now.
    pub fn topic(&self, name: &str) -> Option<&Arc<TopicRecord>> {
        self.topics.get(self.names.get(name)?)
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Formatted(Formatted {
                cluster_id,
                shards,
                group_shards,
            }) => {
                (self.cluster_id, self.shards, self.group_shards) = (cluster_id, shards, group_shards);
            }
            Change::ShardsGrown(shards) => self.shards = shards,
            Change::TopicPut(topic) => {
                if !topic.deleting {
                    self.names.insert(topic.name.clone(), topic.id);
                } else if self.names.get(&topic.name) == Some(&topic.id) {
                    self.names.remove(&topic.name);
                }
                self.topics.insert(topic.id, Arc::new(topic));
            }
            Change::TopicRemoved(id) => {
                let removed = self.topics.remove(&id);
                if let Some(topic) = removed
                    && self.names.get(&topic.name) == Some(&id)
                {
                    self.names.remove(&topic.name);
                }
            }
            Change::ProducerIds(next) => self.next_producer_id = next,
            Change::FeatureLevel(level) => self.feature_level = level,
        }
    }

    /// Shards for `count` new partitions: those with the fewest partitions, from `start` on among equals.
    fn assign(&self, count: u32, start: u64) -> Vec<ShardId> {
        let shards = u64::from(self.shards.max(1));
        let mut load: BTreeMap<ShardId, u64> =
            (0..self.shards.max(1)).map(|shard| (ShardId(shard), 0)).collect();
        for shard in self
            .topics
            .values()
            .filter(|t| !t.deleting)
            .flat_map(|t| &t.partitions)
        {
            *load.entry(*shard).or_default() += 1;
        }
        let turn = |shard: ShardId| (u64::from(shard.0) + shards - start % shards) % shards;
        let mut order: BTreeSet<_> = load
            .into_iter()
            .map(|(shard, load)| (load, turn(shard), shard))
            .collect();
        let mut assigned = Vec::new();
        for _ in 0..count {
            if let Some((load, turn, shard)) = order.pop_first() {
                assigned.push(shard);
                order.insert((load + 1, turn, shard));
            }
        }
        assigned
    }
}

/// State of the log `cluster`, in memory.
pub struct ClusterState {
    committed: Metadata,
    /// Committed state plus everything judged since; `None`: nothing was.
    pending: Option<Metadata>,
    applied: Option<LogOffset>,
    supported: FeatureLevels,
    published: watch::Sender<Arc<Metadata>>,
}

impl ClusterState {
    /// The state before the first entry, on a node that supports `supported`, and where committed state is published.
    pub fn new(supported: FeatureLevels) -> (ClusterState, watch::Receiver<Arc<Metadata>>) {
        let (published, metadata) = watch::channel(Arc::default());
        let state = ClusterState {
            committed: Metadata::default(),
            pending: None,
            applied: None,
            supported,
            published,
        };
        (state, metadata)
    }

    /// Logs may hold what only this level has.
    fn check_level(&self, level: FeatureLevel) -> Result<(), StateError> {
        if self.supported.contains(level) {
            return Ok(());
        }
        Err(StateError::Unsupported(format!(
            "the cluster has finalised {FEATURE} {level}, this node supports {}",
            self.supported
        )))
    }

    /// The committed state, and the slot it is true at.
    pub(crate) fn snapshot(&self) -> Result<(LogOffset, Bytes), StateError> {
        let Some(applied) = self.applied else {
            return Err(StateError::View(
                "a snapshot of the cluster log before its first entry".to_owned(),
            ));
        };
        let Metadata {
            cluster_id,
            shards,
            group_shards,
            topics,
            next_producer_id,
            feature_level,
            names: _,
        } = &self.committed;
        let snapshot = Snapshot {
            cluster: Formatted {
                cluster_id: cluster_id.clone(),
                shards: *shards,
                group_shards: *group_shards,
            },
            topics: topics.values().map(|topic| topic.as_ref().clone()).collect(),
            next_producer_id: *next_producer_id,
            feature_level: (*feature_level > FeatureLevel::FIRST).then_some(*feature_level),
        };
        Ok((applied, entry::encode(&snapshot)))
    }

    fn publish(&self) {
        self.published.send_replace(Arc::new(self.committed.clone()));
    }
}

impl StateMachine for ClusterState {
    type Command = Command;
    type Output = Output;
    type Staged = BytesMut;

    fn speculate(&mut self, _now: Timestamp, command: &Command) -> Result<Speculated<Output>, StateError> {
        let pending = self.pending.get_or_insert_with(|| self.committed.clone());
        let mut judge = Judge {
            metadata: pending,
            changes: Vec::new(),
        };
        let output = judge.command(command);
        let changes = judge.changes;
        let entry = if changes.is_empty() {
            None
        } else {
            Some(entry::encode(&changes))
        };
        Ok(Speculated { output, entry })
    }

    fn rollback(&mut self) -> Result<(), StateError> {
        self.pending = None;
        Ok(())
    }

    fn apply(&mut self, offset: LogOffset, entries: &[Bytes]) -> Result<(), StateError> {
        if self.applied.is_some_and(|applied| offset <= applied) {
            return Ok(());
        }
        let decode = |entry: &Bytes| entry::decode(entry.clone(), self.supported);
        let changes: Result<Vec<Vec<Change>>, _> = entries.iter().map(decode).collect();
        for change in changes?.into_iter().flatten() {
            if let Change::FeatureLevel(level) = change {
                self.check_level(level)?;
            }
            self.committed.apply(change);
        }
        self.applied = Some(offset);
        if !entries.is_empty() {
            self.publish();
        }
        Ok(())
    }

    fn applied(&self) -> Option<LogOffset> {
        self.applied
    }

    fn begin_snapshot(&mut self) -> Result<SnapshotJob, StateError> {
        let (applied, snapshot) = self.snapshot()?;
        Ok(Box::new(move || Ok((applied, vec![snapshot].into()))))
    }

    fn stage(&mut self) -> Result<BytesMut, StateError> {
        Ok(BytesMut::new())
    }

    fn restore(&mut self, offset: LogOffset, snapshot: BytesMut) -> Result<(), StateError> {
        let snapshot: Snapshot = entry::decode(snapshot.freeze(), self.supported)?;
        let feature_level = snapshot.feature_level.unwrap_or_default();
        self.check_level(feature_level)?;
        let mut metadata = Metadata::default();
        metadata.apply(Change::Formatted(snapshot.cluster));
        for topic in snapshot.topics {
            metadata.apply(Change::TopicPut(topic));
        }
        metadata.apply(Change::ProducerIds(snapshot.next_producer_id));
        metadata.apply(Change::FeatureLevel(feature_level));
        self.committed = metadata;
        self.pending = None;
        self.applied = Some(offset);
        self.publish();
        Ok(())
    }
}

/// Judges one command against `metadata`, which takes its effect.
struct Judge<'a> {
    metadata: &'a mut Metadata,
    changes: Vec<Change>,
}

type Judged = Result<Arc<TopicRecord>, ApiError>;

impl Judge<'_> {
    fn command(&mut self, command: &Command) -> Output {
        match command {
            Command::Format {
                cluster_id,
                shards,
                feature_level,
            } => self.format(cluster_id, *shards, *feature_level),
            Command::RaiseFeatureLevel(level) => self.raise(*level),
            Command::CreateTopics {
                topics,
                validate_only,
            } => {
                let mut room = MAX_NEW_PARTITIONS;
                return self.each(topics, *validate_only, |judge, topic| {
                    judge.create(topic, &mut room)
                });
            }
            Command::GrowTopics {
                topics,
                validate_only,
            } => {
                let mut room = MAX_NEW_PARTITIONS;
                return self.each(topics, *validate_only, |judge, growth| {
                    judge.grow(growth, &mut room)
                });
            }
            Command::DeleteTopics(topics) => {
                return self.each(topics, false, |judge, topic| judge.delete(topic));
            }
            Command::AlterConfigs {
                topics,
                validate_only,
            } => {
                return self.each(topics, *validate_only, |judge, (name, change)| {
                    judge.alter(name, change)
                });
            }
            Command::TopicReady { id, ready } => self.ready(*id, *ready),
            Command::TopicDeleted(id) => {
                if self.metadata.topics.get(id).is_some_and(|topic| topic.deleting) {
                    self.change(Change::TopicRemoved(*id));
                }
            }
            Command::AllocateProducerIds { count } => {
                let first = self.metadata.next_producer_id;
                if !env::mutation("same-producer-ids") {
                    self.change(Change::ProducerIds(first.saturating_add(i64::from(*count))));
                }
                return Output::ProducerIds(first);
            }
        }
        Output::Done
    }

    fn change(&mut self, change: Change) {
        self.metadata.apply(change.clone());
        self.changes.push(change);
    }

    /// What is judged only must not show to what is judged after it.
    fn each<T>(
        &mut self,
        items: &[T],
        dry: bool,
        mut judge: impl FnMut(&mut Judge<'_>, &T) -> Judged,
    ) -> Output {
        if !dry {
            return Output::Topics(items.iter().map(|item| judge(self, item)).collect());
        }
        let mut copy = self.metadata.clone();
        let mut on_copy = Judge {
            metadata: &mut copy,
            changes: Vec::new(),
        };
        Output::Topics(items.iter().map(|item| judge(&mut on_copy, item)).collect())
    }

    fn put(&mut self, topic: TopicRecord) -> Arc<TopicRecord> {
        self.change(Change::TopicPut(topic.clone()));
        Arc::new(topic)
    }

    fn raise(&mut self, level: FeatureLevel) {
        if level > self.metadata.feature_level {
            self.change(Change::FeatureLevel(level));
        }
    }

    fn format(&mut self, cluster_id: &str, shards: u32, feature_level: FeatureLevel) {
        if self.metadata.cluster_id.is_empty() {
            let cluster_id = cluster_id.to_owned();
            self.change(Change::Formatted(Formatted {
                cluster_id,
                shards,
                group_shards: shards,
            }));
            self.raise(feature_level);
        } else if shards > self.metadata.shards {
            self.change(Change::ShardsGrown(shards));
        }
    }

    fn existing(&self, name: &str) -> Result<Arc<TopicRecord>, ApiError> {
        self.metadata.topic(name).cloned().ok_or_else(|| {
            ApiError::new(
                ResponseError::UnknownTopicOrPartition,
                format!("The topic '{name}' does not exist."),
            )
        })
    }

    fn create(&mut self, new: &NewTopic, room: &mut u32) -> Judged {
        let exists = |text| Err(ApiError::new(ResponseError::TopicAlreadyExists, text));
        names::validate(&new.name)?;
        if self.metadata.names.contains_key(&new.name) {
            return exists(format!("Topic '{}' already exists.", new.name));
        }
        if let Some(other) = names::collision(&new.name, self.metadata.names.keys()) {
            let text = format!("Topic '{}' collides with existing topic: {other}", new.name);
            return Err(ApiError::new(ResponseError::InvalidTopicException, text));
        }
        if self.metadata.topics.contains_key(&new.id) {
            return exists(format!("Topic id {} is taken.", new.id));
        }
        let configs = configs::validate_new(new.configs.clone())?;
        take(room, new.partitions)?;
        let topic = TopicRecord {
            id: new.id,
            name: new.name.clone(),
            partitions: self.metadata.assign(new.partitions, new.start),
            ready: 0,
            configs,
            deleting: false,
        };
        Ok(self.put(topic))
    }

    fn grow(&mut self, growth: &Growth, room: &mut u32) -> Judged {
        let mut topic = self.existing(&growth.name)?.as_ref().clone();
        let invalid = |text| Err(ApiError::new(ResponseError::InvalidPartitions, text));
        let current = topic.partitions.len();
        let wanted = usize::try_from(growth.count).unwrap_or(0);
        if wanted == current {
            return invalid(format!("Topic already has {current} partition(s)."));
        }
        let Some(more) = wanted.checked_sub(current) else {
            let (name, count) = (&growth.name, growth.count);
            return invalid(format!(
                "The topic {name} currently has {current} partition(s); {count} would not be an increase."
            ));
        };
        if let Some(given) = growth.assignments.filter(|given| *given != more) {
            return Err(ApiError::new(
                ResponseError::InvalidReplicaAssignment,
                format!(
                    "Attempted to add {more} additional partition(s), but only {given} assignment(s) were specified."
                ),
            ));
        }
        if growth.count > MAX_PARTITIONS {
            let text = format!("A topic cannot have more than {MAX_PARTITIONS} partitions.");
            return Err(ApiError::new(ResponseError::PolicyViolation, text));
        }
        let more = u32::try_from(more).unwrap_or(u32::MAX);
        take(room, more)?;
        topic.partitions.extend(self.metadata.assign(more, growth.start));
        Ok(self.put(topic))
    }

    fn ready(&mut self, id: TopicId, ready: u32) {
        let Some(topic) = self.metadata.topics.get(&id) else {
            return;
        };
        let partitions = u32::try_from(topic.partitions.len()).unwrap_or(u32::MAX);
        let ready = ready.min(partitions);
        if !topic.deleting && topic.ready < ready {
            let mut topic = topic.as_ref().clone();
            topic.ready = ready;
            self.put(topic);
        }
    }

    fn delete(&mut self, topic: &TopicRef) -> Judged {
        let topic = match topic {
            TopicRef::Name(name) => self.existing(name)?,
            TopicRef::Id(id) => match self.metadata.topics.get(id) {
                Some(topic) if !topic.deleting => topic.clone(),
                _ => {
                    let text = "This server does not host this topic ID.";
                    return Err(ApiError::new(ResponseError::UnknownTopicId, text));
                }
            },
        };
        let mut topic = topic.as_ref().clone();
        topic.deleting = true;
        Ok(self.put(topic))
    }

    fn alter(&mut self, name: &str, change: &Alteration) -> Judged {
        let topic = self.existing(name)?;
        let configs: Vec<Config> = match change {
            Alteration::Ops(ops) => configs::alter(&topic.configs, ops)?,
            Alteration::Replace(all) => configs::validate_new(all.clone())?,
        };
        if configs == topic.configs {
            return Ok(topic);
        }
        let mut topic = topic.as_ref().clone();
        topic.configs = configs;
        Ok(self.put(topic))
    }
}

/// Takes `partitions` out of what a request may still create.
pub(crate) fn take(room: &mut u32, partitions: u32) -> Result<(), ApiError> {
    match room.checked_sub(partitions) {
        Some(left) => {
            *room = left;
            Ok(())
        }
        None => Err(ApiError::new(
            ResponseError::PolicyViolation,
            format!("A request cannot create more than {MAX_NEW_PARTITIONS} partitions."),
        )),
    }
}
