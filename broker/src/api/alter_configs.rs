use kafka_wire::messages::alter_configs_response::AlterConfigsResourceResponse;
use kafka_wire::messages::{AlterConfigsRequest, AlterConfigsResponse};

use super::Api;
use super::call::Call;
use super::incremental_alter_configs::TIMEOUT_MS;
use crate::net::Answer;

impl Api {
    /// The older way to change configurations: what is not named goes back to its default.
    pub(super) async fn alter_configs(&self, call: Call, request: AlterConfigsRequest) -> Answer {
        self.controller_answers(call, TIMEOUT_MS, |error| {
            let responses = request.resources.into_iter().map(|resource| {
                AlterConfigsResourceResponse::default()
                    .with_error_code(error.code())
                    .with_resource_type(resource.resource_type)
                    .with_resource_name(resource.resource_name)
            });
            AlterConfigsResponse::default()
                .with_responses(responses.collect())
                .into()
        })
        .await
    }
}
