use kafka_wire::messages::delete_topics_response::DeletableTopicResult;
use kafka_wire::messages::{DeleteTopicsRequest, DeleteTopicsResponse};
use types::TopicId;

use super::Api;
use super::call::Call;
use super::create_topics::decoded;
use crate::net::Answer;

/// First version that names topics one by one, by name or id.
const STATES: i16 = 6;

impl Api {
    pub(super) async fn delete_topics(&self, call: Call, request: DeleteTopicsRequest) -> Answer {
        let before = self.metadata.image();
        let answer = match self.to_controller(&call, request.timeout_ms).await {
            Ok(answer) => answer,
            Err(error) => {
                let failed = DeletableTopicResult::default().with_error_code(error.code());
                let results = if call.version() >= STATES {
                    let named = request.topics.into_iter();
                    named
                        .map(|topic| failed.clone().with_name(topic.name).with_topic_id(topic.topic_id))
                        .collect()
                } else {
                    request
                        .topic_names
                        .into_iter()
                        .map(|name| failed.clone().with_name(Some(name)))
                        .collect()
                };
                return call.reply(DeleteTopicsResponse::default().with_responses(results));
            }
        };
        if let Some(response) = decoded::<DeleteTopicsRequest>(&call, &answer) {
            // By id: one of the same name may have been created meanwhile.
            let gone: Vec<TopicId> = response
                .responses
                .iter()
                .filter(|result| result.error_code == 0)
                .filter_map(|result| before.topic(result.name.as_ref()?.as_str()))
                .map(|topic| topic.id)
                .collect();
            self.see(|image| gone.iter().all(|id| image.topic_by_id(*id).is_none()))
                .await;
        }
        call.pass_back(answer)
    }
}
