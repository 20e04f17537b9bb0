use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cluster::image::{MetadataImage, Topic};
use kafka_wire::ResponseError;
use kafka_wire::messages::create_topics_request::CreatableTopic;
use kafka_wire::messages::metadata_request::MetadataRequestTopic;
use kafka_wire::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_wire::messages::{BrokerId, CreateTopicsRequest, MetadataRequest, MetadataResponse, TopicName};
use types::{TopicId, TopicPartition};
use uuid::Uuid;

use super::Api;
use super::call::{Call, text};
use super::steering::Steering;
use crate::net::Answer;

/// What everybody may do with a topic (bits of Kafka's `AclOperation`): read, write, create, delete, alter, describe,
/// describe and alter its configuration.
pub(super) const TOPIC_OPERATIONS: i32 =
    1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 11;
/// The same for the cluster: create, alter, describe, cluster action, configurations, idempotent write.
pub(super) const CLUSTER_OPERATIONS: i32 = 1 << 5 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12;
/// How long a request may wait for topics that it creates.
const CREATION: Duration = Duration::from_secs(5);
/// First version in which null (not an empty list) means all topics.
const NULL_IS_ALL: i16 = 1;
/// First version that finds topics by id, though the field has been there for longer.
const BY_ID: i16 = 12;

impl Api {
    pub(super) async fn metadata(&self, call: Call, request: MetadataRequest) -> Answer {
        let mut image = self.metadata.image();
        let asked = request.topics.as_deref().unwrap_or_default();
        let by_id = |topic: &MetadataRequestTopic| topic.name.is_none() || !topic.topic_id.is_nil();
        if call.version() < BY_ID && asked.iter().any(by_id) {
            let refused = asked.iter().map(|topic| {
                MetadataResponseTopic::default()
                    .with_error_code(ResponseError::InvalidRequest.code())
                    .with_name(Some(topic.name.clone().unwrap_or_default()))
                    .with_topic_id(topic.topic_id)
            });
            return call.reply(MetadataResponse::default().with_topics(refused.collect()));
        }
        let all = if call.version() < NULL_IS_ALL {
            asked.is_empty()
        } else {
            request.topics.is_none()
        };
        // Before version 4 creation cannot be refused.
        let may_create = self.auto_create_topics && (request.allow_auto_topic_creation || call.version() < 4);
        if may_create {
            let names = asked.iter().filter_map(|topic| topic.name.as_ref());
            let missing: BTreeSet<&str> = names
                .map(|name| name.as_str())
                .filter(|name| image.topic(name).is_none())
                .collect();
            if !missing.is_empty() {
                image = self.create_missing(&call, missing).await;
            }
        }
        let steering = self.steering(&call, &image);
        let describe = Describe {
            steering: &steering,
            operations: request.include_topic_authorized_operations,
        };
        let topics = if all {
            image
                .record()
                .topics
                .iter()
                .map(|topic| describe.topic(topic))
                .collect()
        } else {
            // By its id, too, a topic is told once.
            let mut seen = BTreeSet::new();
            asked
                .iter()
                .map(|asked| describe.asked(&image, asked.name.as_ref(), asked.topic_id, may_create))
                .filter(|topic| seen.insert((topic.name.clone(), topic.topic_id)))
                .collect()
        };
        let brokers = steering.brokers().map(|broker| {
            MetadataResponseBroker::default()
                .with_node_id(BrokerId(broker.id.0))
                .with_host(text(&broker.host))
                .with_port(steering.port(broker))
                .with_rack(Some(text(&broker.zone)))
        });
        let mut response = MetadataResponse::default()
            .with_brokers(brokers.collect())
            .with_cluster_id(Some(text(&image.record().cluster_id)))
            .with_controller_id(BrokerId(steering.controller().map_or(-1, |broker| broker.id.0)))
            .with_topics(topics);
        if request.include_cluster_authorized_operations {
            response.cluster_authorized_operations = CLUSTER_OPERATIONS;
        }
        call.reply(response)
    }

    /// Has the controller create topics, and waits until they are in the image. What cannot be created shows in what
    /// the image still lacks.
    async fn create_missing(&self, call: &Call, names: BTreeSet<&str>) -> Arc<MetadataImage> {
        let topics = names.iter().map(|name| {
            CreatableTopic::default()
                .with_name(TopicName(text(*name)))
                .with_num_partitions(-1)
                .with_replication_factor(-1)
        });
        let timeout_ms = i32::try_from(CREATION.as_millis()).unwrap_or(i32::MAX);
        let request = CreateTopicsRequest::default()
            .with_topics(topics.collect())
            .with_timeout_ms(timeout_ms);
        let deadline = self.env.instant() + CREATION;
        match self.ask_controller(call, &request, deadline).await {
            Ok(response) => {
                let exists = ResponseError::TopicAlreadyExists.code();
                let created: Vec<String> = response
                    .topics
                    .iter()
                    .filter(|topic| topic.error_code == 0 || topic.error_code == exists)
                    .map(|topic| topic.name.to_string())
                    .collect();
                self.image_when(deadline, |image| {
                    created.iter().all(|name| image.topic(name).is_some())
                })
                .await
            }
            Err(error) => {
                tracing::warn!(%error, count = names.len(), "topics cannot be created automatically");
                self.metadata.image()
            }
        }
    }

    /// The image as soon as it is as wanted, or as it is at the deadline.
    pub(super) async fn image_when(
        &self,
        deadline: env::Instant,
        wanted: impl Fn(&MetadataImage) -> bool,
    ) -> Arc<MetadataImage> {
        let mut metadata = self.metadata.clone();
        let seen = async {
            while !wanted(&metadata.image()) {
                metadata.changed().await;
            }
        };
        // Late or not, the newest one is as good as it gets.
        let _ = self.env.timeout_at(deadline, seen).await;
        self.metadata.image()
    }
}

/// Topics as a client sees them.
struct Describe<'a> {
    steering: &'a Steering<'a>,
    operations: bool,
}

impl Describe<'_> {
    /// A topic that was asked for by name, or by id if there is no name.
    fn asked(
        &self,
        image: &MetadataImage,
        name: Option<&TopicName>,
        id: Uuid,
        may_create: bool,
    ) -> MetadataResponseTopic {
        let missing = |error: ResponseError| MetadataResponseTopic::default().with_error_code(error.code());
        let Some(name) = name else {
            return match image.topic_by_id(TopicId(id)) {
                Some(topic) => self.topic(topic),
                None => missing(ResponseError::UnknownTopicId)
                    .with_topic_id(id)
                    .with_name(None),
            };
        };
        match image.topic(name.as_str()) {
            Some(topic) => self.topic(topic),
            None => {
                let error = if !is_legal(name.as_str()) {
                    ResponseError::InvalidTopicException
                } else if may_create {
                    // It is being created: ask again.
                    ResponseError::LeaderNotAvailable
                } else {
                    ResponseError::UnknownTopicOrPartition
                };
                missing(error).with_name(Some(name.clone()))
            }
        }
    }

    fn topic(&self, topic: &Topic) -> MetadataResponseTopic {
        let partitions = (0i32..).zip(&topic.partitions).map(|(index, _)| {
            let partition = MetadataResponsePartition::default().with_partition_index(index);
            match self.steering.leader(TopicPartition {
                topic: topic.id,
                partition: index,
            }) {
                Some(leader) => {
                    let leader = BrokerId(leader.id.0);
                    partition
                        .with_leader_id(leader)
                        .with_leader_epoch(0)
                        .with_replica_nodes(vec![leader])
                        .with_isr_nodes(vec![leader])
                }
                None => partition
                    .with_error_code(ResponseError::LeaderNotAvailable.code())
                    .with_leader_id(BrokerId(-1)),
            }
        });
        let mut response = MetadataResponseTopic::default()
            .with_name(Some(TopicName(text(&topic.name))))
            .with_topic_id(topic.id.0)
            .with_partitions(partitions.collect());
        if self.operations {
            response.topic_authorized_operations = TOPIC_OPERATIONS;
        }
        response
    }
}

/// Kafka's rule for the names of topics.
pub(super) fn is_legal(name: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    !matches!(name, "" | "." | "..") && name.len() <= 249 && name.bytes().all(legal)
}
