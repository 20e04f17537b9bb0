use kafka_wire::messages::{UpdateFeaturesRequest, UpdateFeaturesResponse};

use super::Api;
use super::call::Call;
use super::create_topics::decoded;
use crate::net::Answer;

impl Api {
    pub(super) async fn update_features(&self, call: Call, request: UpdateFeaturesRequest) -> Answer {
        let answer = match self.to_controller(&call, request.timeout_ms).await {
            Ok(answer) => answer,
            Err(error) => return call.reply(UpdateFeaturesResponse::default().with_error_code(error.code())),
        };
        if !request.validate_only
            && decoded::<UpdateFeaturesRequest>(&call, &answer)
                .is_some_and(|response| response.error_code == 0)
        {
            // There is but one feature.
            let levels = request
                .feature_updates
                .iter()
                .map(|update| update.max_version_level);
            let level = levels.max().unwrap_or(0);
            self.see(|image| image.record().feature_level().0 >= level).await;
        }
        call.pass_back(answer)
    }
}
