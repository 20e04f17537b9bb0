use std::sync::Arc;

use coordinator::replica::ReplicaError;
use kafka_wire::ResponseError;
use kafka_wire::messages::TopicName;
use kafka_wire::messages::create_partitions_request::{CreatePartitionsRequest, CreatePartitionsTopic};
use kafka_wire::messages::create_partitions_response::{
    CreatePartitionsResponse, CreatePartitionsTopicResult,
};

use super::{duplicates, outcome, timed_out};
use crate::ApiError;
use crate::service::ControllerService;
use crate::state::{Command, Growth, TopicRecord};

impl ControllerService {
    /// CreatePartitions 0-3. Answers when the partitions can be used, or with REQUEST_TIMED_OUT, after which they are
    /// created all the same.
    pub async fn create_partitions(
        &self,
        request: &CreatePartitionsRequest,
    ) -> Result<CreatePartitionsResponse, ReplicaError> {
        let deadline = self.deadline(request.timeout_ms);
        let twice = duplicates(request.topics.iter().map(|topic| topic.name.clone()));
        let mut results: Vec<(TopicName, Result<Arc<TopicRecord>, ApiError>)> = twice
            .iter()
            .map(|name| {
                (
                    name.clone(),
                    Err(ApiError::invalid_request("Duplicate topic name.")),
                )
            })
            .collect();
        let (mut names, mut growths) = (Vec::new(), Vec::new());
        for topic in request.topics.iter().filter(|topic| !twice.contains(&topic.name)) {
            match self.check_new_replicas(topic) {
                Ok(()) => {
                    names.push(topic.name.clone());
                    growths.push(Growth {
                        name: topic.name.as_str().to_owned(),
                        count: topic.count,
                        assignments: topic.assignments.as_ref().map(Vec::len),
                        start: self.env().random_u64(),
                    });
                }
                Err(error) => results.push((topic.name.clone(), Err(error))),
            }
        }
        let grown = self.submit_each(&growths, |topics| Command::GrowTopics {
            topics,
            validate_only: request.validate_only,
        });
        results.extend(names.into_iter().zip(grown.await?));
        if !request.validate_only {
            let grown: Vec<_> = results
                .iter()
                .filter_map(|(_, result)| result.as_ref().ok().cloned())
                .collect();
            let done = self.wait_for(deadline, |metadata| {
                grown.iter().all(|topic| {
                    let now = metadata.topics.get(&topic.id);
                    now.is_none_or(|now| now.deleting || now.ready as usize >= topic.partitions.len())
                })
            });
            if done.await? {
                self.spread(deadline).await;
            } else {
                results
                    .iter_mut()
                    .filter(|(_, result)| result.is_ok())
                    .for_each(|(_, r)| *r = Err(timed_out()));
            }
        }
        let results = results.into_iter().map(|(name, result)| {
            let (code, message) = outcome(&result);
            CreatePartitionsTopicResult::default()
                .with_name(name)
                .with_error_code(code)
                .with_error_message(message)
        });
        Ok(CreatePartitionsResponse::default().with_results(results.collect()))
    }

    fn check_new_replicas(&self, topic: &CreatePartitionsTopic) -> Result<(), ApiError> {
        let invalid = |text: String| Err(ApiError::new(ResponseError::InvalidReplicaAssignment, text));
        for assignment in topic.assignments.iter().flatten() {
            let brokers = assignment.broker_ids.iter().map(|broker| broker.0);
            if assignment.broker_ids.is_empty() {
                return invalid("The manual partition assignment includes an empty replica list.".to_owned());
            }
            if !duplicates(brokers.clone()).is_empty() {
                return invalid("The manual partition assignment names a broker twice.".to_owned());
            }
            if let Some(missing) = brokers.clone().find(|broker| !self.has_broker(*broker)) {
                return invalid(format!(
                    "The manual partition assignment includes broker {missing}, but no such broker is registered."
                ));
            }
        }
        Ok(())
    }
}
