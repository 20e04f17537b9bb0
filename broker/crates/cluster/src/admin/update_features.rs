use coordinator::replica::ReplicaError;
use kafka_wire::ResponseError;
use kafka_wire::messages::update_features_request::FeatureUpdateKey;
use kafka_wire::messages::update_features_response::UpdatableFeatureResult;
use kafka_wire::messages::{UpdateFeaturesRequest, UpdateFeaturesResponse};
use types::feature::FEATURE;
use types::{FeatureLevel, FeatureLevels};

use super::outcome;
use crate::ApiError;
use crate::service::ControllerService;
use crate::state::Command;

const UPGRADE: i8 = 1;
const SAFE_DOWNGRADE: i8 = 2;
const UNSAFE_DOWNGRADE: i8 = 3;
/// Last version whose answer has a result for each feature.
const NAMED_RESULTS: i16 = 1;

impl ControllerService {
    /// UpdateFeatures 0-2 (KIP-584, KIP-778), for `diskless.version`. It is raised when all live nodes support the level, and
    /// never lowered: what the logs hold by then only nodes of that level can read.
    pub async fn update_features(
        &self,
        request: &UpdateFeaturesRequest,
        version: i16,
    ) -> Result<UpdateFeaturesResponse, ReplicaError> {
        let result = self.finalize(request).await?;
        let mut response = UpdateFeaturesResponse::default();
        (response.error_code, response.error_message) = outcome(&result);
        if result.is_ok() && version <= NAMED_RESULTS {
            let named = request
                .feature_updates
                .iter()
                .map(|update| UpdatableFeatureResult::default().with_feature(update.feature.clone()));
            response.results = named.collect();
        }
        Ok(response)
    }

    /// All or nothing, as in Kafka.
    async fn finalize(&self, request: &UpdateFeaturesRequest) -> Result<Result<(), ApiError>, ReplicaError> {
        let deadline = self.deadline(request.timeout_ms);
        let mut wanted = None;
        for update in &request.feature_updates {
            if update.feature.as_str() != FEATURE {
                return Ok(Err(invalid(
                    update,
                    "This cluster does not support this feature.",
                )));
            }
            if wanted.replace(update).is_some() {
                let text = format!("Feature {FEATURE} is named twice.");
                return Ok(Err(ApiError::invalid_request(text)));
            }
        }
        let Some(update) = wanted else { return Ok(Ok(())) };
        let (present, supported) = (self.metadata().feature_level, self.settings().supported);
        let level = match judge(update, present, supported) {
            Ok(Some(level)) => level,
            Ok(None) => return Ok(Ok(())),
            Err(error) => return Ok(Err(error)),
        };
        if !self.wait_for_nodes(deadline).await {
            let text = "The controller does not know yet which nodes live.";
            return Ok(Err(ApiError::new(ResponseError::RequestTimedOut, text)));
        }
        if let Some((node, levels)) = self.require(level, request.validate_only) {
            let text = format!("Node {node} only supports versions {levels}.");
            return Ok(Err(invalid(update, &text)));
        }
        if !request.validate_only {
            self.submit(Command::RaiseFeatureLevel(level)).await?;
            tracing::info!(%level, "feature level finalised");
            self.spread(deadline).await;
        }
        Ok(Ok(()))
    }
}

/// The level to finalise, if that changes anything.
fn judge(
    update: &FeatureUpdateKey,
    present: FeatureLevel,
    supported: FeatureLevels,
) -> Result<Option<FeatureLevel>, ApiError> {
    let level = FeatureLevel(update.max_version_level);
    let upgrade = match update.upgrade_type {
        // Version 0 has a flag instead.
        UPGRADE => !update.allow_downgrade,
        SAFE_DOWNGRADE..=UNSAFE_DOWNGRADE => false,
        _ => {
            let text = "The controller does not support the given upgrade type.";
            return Err(invalid(update, text));
        }
    };
    if !supported.contains(level) {
        let text = format!("The controller only supports versions {supported}.");
        return Err(invalid(update, &text));
    }
    if level < present {
        let text = match upgrade {
            true => {
                "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe \
                 downgrade."
            }
            false => "It cannot be lowered: the logs hold what only nodes of the finalized version can read.",
        };
        return Err(invalid(update, text));
    }
    if level > present && !upgrade {
        return Err(invalid(update, "Can't downgrade to a newer version."));
    }
    Ok((level > present).then_some(level))
}

fn invalid(update: &FeatureUpdateKey, reason: &str) -> ApiError {
    let (level, feature) = (update.max_version_level, update.feature.as_str());
    ApiError::new(
        ResponseError::InvalidUpdateVersion,
        format!("Invalid update version {level} for feature {feature}. {reason}"),
    )
}
