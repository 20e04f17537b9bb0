use std::collections::BTreeSet;
use std::sync::Arc;

use coordinator::replica::ReplicaError;
use kafka_wire::messages::TopicName;
use kafka_wire::messages::create_topics_request::{
    CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest,
};
use kafka_wire::messages::create_topics_response::{
    CreatableTopicConfigs, CreatableTopicResult, CreateTopicsResponse,
};
use kafka_wire::{ResponseError, StrBytes};
use types::TopicId;

use super::{duplicates, outcome, timed_out};
use crate::ApiError;
use crate::describe::topic_configs;
use crate::service::{ControllerService, uuid};
use crate::state::{Command, MAX_NEW_PARTITIONS, NewTopic, TopicRecord, take};

/// What a client asked for, and what came of it so far.
struct Asked {
    name: TopicName,
    replication_factor: i16,
    result: Result<Arc<TopicRecord>, ApiError>,
}

impl ControllerService {
    /// CreateTopics 2-7. Answers when the topics can be used, or with REQUEST_TIMED_OUT, after which they are created
    /// all the same.
    ///
    /// The replication factor is the object store's business: any positive one (and -1) is taken and reported as asked.
    pub async fn create_topics(
        &self,
        request: &CreateTopicsRequest,
    ) -> Result<CreateTopicsResponse, ReplicaError> {
        let deadline = self.deadline(request.timeout_ms);
        let twice = duplicates(request.topics.iter().map(|topic| topic.name.clone()));
        let mut told = BTreeSet::new();
        let mut asked: Vec<Asked> = Vec::new();
        // The topics that are worth judging, and where their results belong.
        let (mut new, mut indexes) = (Vec::new(), Vec::new());
        let mut room = MAX_NEW_PARTITIONS;
        for topic in &request.topics {
            if twice.contains(&topic.name) {
                if !told.insert(topic.name.clone()) {
                    continue;
                }
                let result = Err(ApiError::invalid_request("Duplicate topic name."));
                asked.push(Asked {
                    name: topic.name.clone(),
                    replication_factor: -1,
                    result,
                });
                continue;
            }
            let checked = self.check(topic).and_then(|(topic, factor)| {
                take(&mut room, topic.partitions)?;
                Ok((topic, factor))
            });
            // What there is already comes before what else is wrong, as in Kafka.
            let exists = self.metadata().topic(topic.name.as_str()).is_some();
            let checked = checked.map_err(|error| match exists {
                true => ApiError::new(
                    ResponseError::TopicAlreadyExists,
                    format!("Topic '{}' already exists.", topic.name.as_str()),
                ),
                false => error,
            });
            let replication_factor = checked.as_ref().map_or(-1, |(_, factor)| *factor);
            let result = match checked {
                Ok((topic, _)) => {
                    new.push(topic);
                    indexes.push(asked.len());
                    Err(timed_out())
                }
                Err(error) => Err(error),
            };
            asked.push(Asked {
                name: topic.name.clone(),
                replication_factor,
                result,
            });
        }
        let judged = self.submit_each(&new, |topics| Command::CreateTopics {
            topics,
            validate_only: request.validate_only,
        });
        for (index, result) in indexes.into_iter().zip(judged.await?) {
            if let Some(asked) = asked.get_mut(index) {
                asked.result = result;
            }
        }
        if !request.validate_only {
            let created: Vec<TopicId> = asked
                .iter()
                .filter_map(|a| a.result.as_ref().ok())
                .map(|t| t.id)
                .collect();
            // A topic that is gone again was created, too.
            let done = self.wait_for(deadline, |metadata| {
                created.iter().all(|id| {
                    metadata
                        .topics
                        .get(id)
                        .is_none_or(|topic| topic.ready > 0 || topic.deleting)
                })
            });
            if done.await? {
                self.spread(deadline).await;
            } else {
                let metadata = self.metadata();
                for asked in &mut asked {
                    let waits =
                        |topic: &TopicRecord| metadata.topics.get(&topic.id).is_some_and(|t| t.ready == 0);
                    if asked.result.as_ref().is_ok_and(|topic| waits(topic)) {
                        asked.result = Err(timed_out());
                    }
                }
            }
        }
        let topics = asked.into_iter().map(answer).collect();
        Ok(CreateTopicsResponse::default().with_topics(topics))
    }

    /// Checks what does not depend on other topics. Returns the topic and the replication factor to report.
    fn check(&self, topic: &CreatableTopic) -> Result<(NewTopic, i16), ApiError> {
        let (partitions, replication_factor) = if topic.assignments.is_empty() {
            let factor = match topic.replication_factor {
                -1 => 1,
                factor if factor > 0 => factor,
                _ => {
                    let text = "Replication factor was set to an invalid non-positive value.";
                    return Err(ApiError::new(ResponseError::InvalidReplicationFactor, text));
                }
            };
            let partitions = match topic.num_partitions {
                -1 => self.settings().default_partitions,
                count => u32::try_from(count).unwrap_or(0),
            };
            if partitions == 0 {
                let text = "Number of partitions was set to an invalid non-positive value.";
                return Err(ApiError::new(ResponseError::InvalidPartitions, text));
            }
            (partitions, factor)
        } else {
            self.check_assignments(topic)?
        };
        let configs = topic.configs.iter().map(|config| {
            let value = config.value.as_ref().map(|value| value.as_str().to_owned());
            (config.name.as_str().to_owned(), value)
        });
        let new = NewTopic {
            id: TopicId(uuid(self.env())),
            name: topic.name.as_str().to_owned(),
            partitions,
            start: self.env().random_u64(),
            configs: configs.collect(),
        };
        Ok((new, replication_factor))
    }

    /// Replicas do not mean anything here, but a request that contradicts itself or names brokers that are not there is
    /// refused as in Kafka.
    fn check_assignments(&self, topic: &CreatableTopic) -> Result<(u32, i16), ApiError> {
        for (field, value) in [
            ("replication factor", i32::from(topic.replication_factor)),
            ("numPartitions", topic.num_partitions),
        ] {
            if value != -1 {
                let text =
                    format!("A manual partition assignment was specified, but {field} was not set to -1.");
                return Err(ApiError::invalid_request(text));
            }
        }
        let invalid = |text: String| Err(ApiError::new(ResponseError::InvalidReplicaAssignment, text));
        let mut assignments: Vec<&CreatableReplicaAssignment> = topic.assignments.iter().collect();
        assignments.sort_by_key(|assignment| assignment.partition_index);
        if !assignments
            .iter()
            .zip(0i32..)
            .all(|(assignment, index)| assignment.partition_index == index)
        {
            return invalid("partitions should be a consecutive 0-based integer sequence".to_owned());
        }
        let factor = assignments
            .first()
            .map_or(0, |assignment| assignment.broker_ids.len());
        for assignment in &assignments {
            let index = assignment.partition_index;
            let brokers = assignment.broker_ids.iter().map(|broker| broker.0);
            if assignment.broker_ids.is_empty() {
                return invalid(format!(
                    "The manual partition assignment of partition {index} names no broker."
                ));
            }
            if assignment.broker_ids.len() != factor {
                return invalid(format!(
                    "Partition {index} has another number of replicas than the others."
                ));
            }
            if !duplicates(brokers.clone()).is_empty() {
                return invalid(format!(
                    "The manual partition assignment of partition {index} names a broker twice."
                ));
            }
            if let Some(missing) = brokers.clone().find(|broker| !self.has_broker(*broker)) {
                return invalid(format!(
                    "The manual partition assignment includes broker {missing}, but no such broker is registered."
                ));
            }
        }
        Ok((
            u32::try_from(assignments.len()).unwrap_or(u32::MAX),
            i16::try_from(factor).unwrap_or(i16::MAX),
        ))
    }

    pub(super) fn has_broker(&self, id: i32) -> bool {
        self.image()
            .is_none_or(|image| image.brokers.iter().any(|broker| broker.id.0 == id))
    }
}

fn answer(asked: Asked) -> CreatableTopicResult {
    let (code, message) = outcome(&asked.result);
    let result = CreatableTopicResult::default()
        .with_name(asked.name)
        .with_error_code(code)
        .with_error_message(message);
    let Ok(topic) = asked.result else {
        return result
            .with_num_partitions(-1)
            .with_replication_factor(-1)
            .with_configs(Some(Vec::new()));
    };
    let configs = topic_configs(&topic.configs).map(|config| {
        CreatableTopicConfigs::default()
            .with_name(StrBytes::from_static_str(config.definition.name))
            .with_value(Some(StrBytes::from_string(config.value.to_owned())))
            .with_config_source(config.source())
            .with_read_only(config.read_only())
    });
    result
        .with_topic_id(topic.id.0)
        .with_num_partitions(i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX))
        .with_replication_factor(asked.replication_factor)
        .with_configs(Some(configs.collect()))
}
