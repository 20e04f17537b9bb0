use kafka_wire::messages::api_versions_response::{ApiVersion, FinalizedFeatureKey, SupportedFeatureKey};
use kafka_wire::messages::{ApiVersionsRequest, ApiVersionsResponse};
use kafka_wire::{ResponseError, StrBytes, versions};
use types::feature::FEATURE;

use super::Api;
use super::call::Call;
use crate::net::Answer;

/// First version in which a client must name itself (KIP-511).
const NAMED: i16 = 3;

impl Api {
    pub(super) fn api_versions(&self, call: Call, request: ApiVersionsRequest) -> Answer {
        let legal = |text: &str| {
            let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
            let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
            ends(text.chars().next()) && ends(text.chars().next_back()) && text.chars().all(inner)
        };
        let (name, version) = (&request.client_software_name, &request.client_software_version);
        if call.version() >= NAMED && !(legal(name) && legal(version)) {
            let error_code = ResponseError::InvalidRequest.code();
            return call.reply(ApiVersionsResponse::default().with_error_code(error_code));
        }
        let keys = versions::advertised().map(|row| {
            ApiVersion::default()
                .with_api_key(row.key as i16)
                .with_min_version(row.min)
                .with_max_version(row.max)
        });
        let feature = StrBytes::from_static_str(FEATURE);
        let supported = SupportedFeatureKey::default()
            .with_name(feature.clone())
            .with_min_version(self.supported.min.0)
            .with_max_version(self.supported.max.0);
        let mut response = ApiVersionsResponse::default()
            .with_api_keys(keys.collect())
            .with_supported_features(vec![supported]);
        if self.metadata.is_known() {
            let level = self.metadata.image().record().feature_level().0;
            let finalized = FinalizedFeatureKey::default()
                .with_name(feature)
                .with_min_version_level(level)
                .with_max_version_level(level);
            // Of a number that only rises clients need no other epoch.
            response.finalized_features_epoch = level.into();
            response.finalized_features = vec![finalized];
        }
        call.reply(response)
    }
}
