use kafka_wire::messages::incremental_alter_configs_response::AlterConfigsResourceResponse;
use kafka_wire::messages::{IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse};

use super::Api;
use super::call::Call;
use crate::net::Answer;

/// These requests carry no time of their own.
pub(super) const TIMEOUT_MS: i32 = 20_000;

impl Api {
    pub(super) async fn incremental_alter_configs(
        &self,
        call: Call,
        request: IncrementalAlterConfigsRequest,
    ) -> Answer {
        self.controller_answers(call, TIMEOUT_MS, |error| {
            let responses = request.resources.into_iter().map(|resource| {
                AlterConfigsResourceResponse::default()
                    .with_error_code(error.code())
                    .with_resource_type(resource.resource_type)
                    .with_resource_name(resource.resource_name)
            });
            IncrementalAlterConfigsResponse::default()
                .with_responses(responses.collect())
                .into()
        })
        .await
    }
}
