//! The feature `diskless.version` (KIP-584): reading it, and having it raised.

use kafka_protocol::error::ParseResponseErrorCode;
use kafka_wire::flex_struct;

use super::messages::{NullableString, Request};
use super::{Admin, AdminError, CLIENT_ID, OPERATION_TIMEOUT_MS, check, refused};

/// What the brokers say of `diskless.version`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Levels {
    /// What is finalised.
    pub finalized: i16,
    /// The lowest level that the broker which was asked supports.
    pub min: i16,
    /// The highest one.
    pub max: i16,
}

/// A request to raise the level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Update {
    /// To this one.
    pub level: i16,
    /// Only to learn whether it could be done.
    pub dry_run: bool,
}

const FEATURE: &str = "diskless.version";
/// What a release without the feature writes and reads.
const FIRST_RELEASE: Levels = Levels {
    finalized: 1,
    min: 1,
    max: 1,
};
/// `upgrade_type`: never lower.
const UPGRADE: i8 = 1;

impl Admin {
    /// The finalised level, and those that this broker supports.
    ///
    /// # Errors
    /// The broker cannot be talked to, or does not know the cluster yet.
    pub async fn feature_levels(&mut self) -> Result<Levels, AdminError> {
        const API: &str = ApiVersionsRequest::NAME;
        let response = self
            .request(&ApiVersionsRequest {
                client_software_name: CLIENT_ID.to_owned(),
                client_software_version: env!("CARGO_PKG_VERSION").to_owned(),
            })
            .await?;
        if let Some(error) = response.error_code.err() {
            return Err(refused(API, error, None));
        }
        let supported = response.supported.unwrap_or_default();
        let Some(supported) = supported.into_iter().find(|feature| feature.name == FEATURE) else {
            return Ok(FIRST_RELEASE);
        };
        let finalized = response.finalized.unwrap_or_default();
        let Some(finalized) = finalized.into_iter().find(|feature| feature.name == FEATURE) else {
            return Err(AdminError::Broken {
                api: API,
                reason: format!("the broker does not know yet which {FEATURE} is finalised"),
            });
        };
        Ok(Levels {
            finalized: finalized.max_version_level,
            min: supported.min_version,
            max: supported.max_version,
        })
    }

    /// Has the level raised, or only asks whether it could be.
    ///
    /// # Errors
    /// The broker cannot be talked to, or the controller refuses.
    pub async fn update_feature_level(&mut self, update: Update) -> Result<(), AdminError> {
        let response = self
            .request(&UpdateFeaturesRequest {
                timeout_ms: OPERATION_TIMEOUT_MS,
                feature_updates: vec![FeatureUpdate {
                    feature: FEATURE.to_owned(),
                    max_version_level: update.level,
                    upgrade_type: UPGRADE,
                }],
                validate_only: update.dry_run,
            })
            .await?;
        check(
            UpdateFeaturesRequest::NAME,
            response.error_code,
            response.error_message,
        )
    }
}

impl Request for ApiVersionsRequest {
    const API_KEY: i16 = 18;
    const VERSION: i16 = 3;
    const NAME: &'static str = "ApiVersions";
    // So that a client can read it whose version the broker does not know (KIP-511).
    const TAGGED_RESPONSE_HEADER: bool = false;
    type Response = ApiVersionsResponse;
}

impl Request for UpdateFeaturesRequest {
    const API_KEY: i16 = 57;
    const VERSION: i16 = 2;
    const NAME: &'static str = "UpdateFeatures";
    type Response = UpdateFeaturesResponse;
}

flex_struct! {
    /// ApiVersions.
    pub struct ApiVersionsRequest {
        /// Who asks.
        pub client_software_name: String,
        /// Its version.
        pub client_software_version: String,
    }
}

flex_struct! {
    /// Answer to ApiVersions.
    pub struct ApiVersionsResponse {
        /// Error.
        pub error_code: i16,
        /// Requests the broker takes.
        pub api_keys: Vec<ApiVersion>,
        /// Throttle time, ms.
        pub throttle_time_ms: i32,
        tagged {
            /// Features the broker supports.
            0 => pub supported: Option<Vec<SupportedFeature>>,
            /// Finalised features.
            2 => pub finalized: Option<Vec<FinalizedFeature>>,
        }
    }
}

flex_struct! {
    /// A request the broker takes.
    pub struct ApiVersion {
        /// API key.
        pub api_key: i16,
        /// Lowest version.
        pub min_version: i16,
        /// Highest version.
        pub max_version: i16,
    }
}

flex_struct! {
    /// A feature the broker supports.
    pub struct SupportedFeature {
        /// Name.
        pub name: String,
        /// Lowest level.
        pub min_version: i16,
        /// Highest level.
        pub max_version: i16,
    }
}

flex_struct! {
    /// A finalised feature.
    pub struct FinalizedFeature {
        /// Name.
        pub name: String,
        /// Its level.
        pub max_version_level: i16,
        /// The same.
        pub min_version_level: i16,
    }
}

flex_struct! {
    /// UpdateFeatures.
    pub struct UpdateFeaturesRequest {
        /// Time to wait, ms.
        pub timeout_ms: i32,
        /// New levels.
        pub feature_updates: Vec<FeatureUpdate>,
        /// Dry run.
        pub validate_only: bool,
    }
}

flex_struct! {
    /// A new level.
    pub struct FeatureUpdate {
        /// Name of the feature.
        pub feature: String,
        /// The level.
        pub max_version_level: i16,
        /// 1 = it may only rise.
        pub upgrade_type: i8,
    }
}

flex_struct! {
    /// Answer to UpdateFeatures.
    pub struct UpdateFeaturesResponse {
        /// Throttle time, ms.
        pub throttle_time_ms: i32,
        /// Error.
        pub error_code: i16,
        /// In words.
        pub error_message: NullableString,
    }
}
