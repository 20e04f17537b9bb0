use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use coordinator::replica::ReplicaError;
use kafka_wire::StrBytes;
use kafka_wire::messages::TopicName;
use kafka_wire::messages::delete_topics_request::{DeleteTopicState, DeleteTopicsRequest};
use kafka_wire::messages::delete_topics_response::{DeletableTopicResult, DeleteTopicsResponse};
use types::TopicId;

use super::{duplicates, outcome};
use crate::ApiError;
use crate::service::ControllerService;
use crate::state::{Command, TopicRecord, TopicRef};

/// How long the answer waits for the shards to forget the topics: so that offsets that groups committed under the name
/// are gone before a new topic has it. The topics are gone for clients in any case.
const CLEAN_UP: Duration = Duration::from_secs(5);

impl ControllerService {
    /// DeleteTopics 1-6, by name and (since 6) by id.
    pub async fn delete_topics(
        &self,
        request: &DeleteTopicsRequest,
    ) -> Result<DeleteTopicsResponse, ReplicaError> {
        let deadline = self.deadline(request.timeout_ms);
        let by_name = request
            .topic_names
            .iter()
            .map(|name| DeleteTopicState::default().with_name(Some(name.clone())));
        let states: Vec<DeleteTopicState> = request.topics.iter().cloned().chain(by_name).collect();
        let names_twice = duplicates(states.iter().filter_map(|state| state.name.clone()));
        let ids_twice = duplicates(
            states
                .iter()
                .map(|state| state.topic_id)
                .filter(|id| !id.is_nil()),
        );
        let mut topics = Vec::new();
        let mut results: Vec<(DeleteTopicState, Result<Arc<TopicRecord>, ApiError>)> = Vec::new();
        let mut refused = Vec::new();
        let mut told = BTreeSet::new();
        for state in states {
            if !told.insert((state.name.clone(), state.topic_id)) {
                continue;
            }
            let error = match &state.name {
                Some(_) if !state.topic_id.is_nil() => "You may not specify both topic name and topic id.",
                None if state.topic_id.is_nil() => "Neither topic name nor id were specified.",
                Some(name) if names_twice.contains(name) => "Duplicate topic name.",
                None if ids_twice.contains(&state.topic_id) => "Duplicate topic id.",
                Some(name) => {
                    topics.push((TopicRef::Name(name.as_str().to_owned()), state));
                    continue;
                }
                None => {
                    topics.push((TopicRef::Id(TopicId(state.topic_id)), state));
                    continue;
                }
            };
            refused.push((state, Err(ApiError::invalid_request(error))));
        }
        let (refs, asked): (Vec<_>, Vec<_>) = topics.into_iter().unzip();
        let deleted = self.submit_each(&refs, Command::DeleteTopics).await?;
        results.extend(asked.into_iter().zip(deleted));
        let ids: Vec<TopicId> = results
            .iter()
            .filter_map(|(_, result)| result.as_ref().ok())
            .map(|t| t.id)
            .collect();
        let clean = deadline.min(self.env().instant() + CLEAN_UP);
        self.wait_for(clean, |metadata| {
            !ids.iter().any(|id| metadata.topics.contains_key(id))
        })
        .await?;
        self.spread(deadline).await;
        let responses = results.into_iter().chain(refused).map(|(state, result)| {
            let (code, message) = outcome(&result);
            let (name, id) = match &result {
                Ok(topic) => (
                    Some(TopicName(StrBytes::from_string(topic.name.clone()))),
                    topic.id.0,
                ),
                Err(_) => (state.name, state.topic_id),
            };
            DeletableTopicResult::default()
                .with_name(name)
                .with_topic_id(id)
                .with_error_code(code)
                .with_error_message(message)
        });
        Ok(DeleteTopicsResponse::default().with_responses(responses.collect()))
    }
}
