use kafka_wire::messages::create_partitions_response::CreatePartitionsTopicResult;
use kafka_wire::messages::{CreatePartitionsRequest, CreatePartitionsResponse};

use super::Api;
use super::call::Call;
use super::create_topics::decoded;
use crate::net::Answer;

impl Api {
    pub(super) async fn create_partitions(&self, call: Call, request: CreatePartitionsRequest) -> Answer {
        let answer = match self.to_controller(&call, request.timeout_ms).await {
            Ok(answer) => answer,
            Err(error) => {
                let results = request.topics.into_iter().map(|topic| {
                    CreatePartitionsTopicResult::default()
                        .with_name(topic.name)
                        .with_error_code(error.code())
                });
                return call.reply(CreatePartitionsResponse::default().with_results(results.collect()));
            }
        };
        if !request.validate_only
            && let Some(response) = decoded::<CreatePartitionsRequest>(&call, &answer)
        {
            let done = |name: &str| {
                response
                    .results
                    .iter()
                    .any(|result| result.error_code == 0 && result.name.as_str() == name)
            };
            let grown: Vec<_> = request
                .topics
                .iter()
                .filter(|topic| done(topic.name.as_str()))
                .collect();
            self.see(|image| {
                grown.iter().all(|grown| {
                    let wanted = usize::try_from(grown.count).unwrap_or(0);
                    image
                        .topic(grown.name.as_str())
                        .is_none_or(|topic| topic.partitions.len() >= wanted)
                })
            })
            .await;
        }
        call.pass_back(answer)
    }
}
