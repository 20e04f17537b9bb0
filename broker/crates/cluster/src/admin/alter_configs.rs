use std::time::Duration;

use coordinator::replica::ReplicaError;
use kafka_wire::StrBytes;
use kafka_wire::messages::alter_configs_response::AlterConfigsResourceResponse as ReplacedResource;
use kafka_wire::messages::incremental_alter_configs_request::AlterableConfig;
use kafka_wire::messages::incremental_alter_configs_response::AlterConfigsResourceResponse as AlteredResource;
use kafka_wire::messages::{
    AlterConfigsRequest, AlterConfigsResponse, IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
};

use super::{duplicates, outcome};
use crate::ApiError;
use crate::configs::Op;
use crate::service::ControllerService;
use crate::state::{Alteration, Command};

const TOPIC: i8 = 2;
/// Longest wait for the brokers to learn a change; these requests carry no time limit of their own.
const SPREAD: Duration = Duration::from_secs(1);

/// Type and name of a resource.
type Resource = (i8, StrBytes);

impl ControllerService {
    /// IncrementalAlterConfigs 0-1, of topics.
    pub async fn incremental_alter_configs(
        &self,
        request: &IncrementalAlterConfigsRequest,
    ) -> Result<IncrementalAlterConfigsResponse, ReplicaError> {
        let alterations = request.resources.iter().map(|resource| {
            let of = (resource.resource_type, resource.resource_name.clone());
            (of, operations(&resource.configs).map(Alteration::Ops))
        });
        let results = self.alter(alterations.collect(), request.validate_only).await?;
        let responses = results.into_iter().map(|((kind, name), result)| {
            let (code, message) = outcome(&result);
            AlteredResource::default()
                .with_resource_type(kind)
                .with_resource_name(name)
                .with_error_code(code)
                .with_error_message(message)
        });
        Ok(IncrementalAlterConfigsResponse::default().with_responses(responses.collect()))
    }

    /// AlterConfigs 0-2, of topics: what is not named goes back to its default.
    pub async fn alter_configs(
        &self,
        request: &AlterConfigsRequest,
    ) -> Result<AlterConfigsResponse, ReplicaError> {
        let alterations = request.resources.iter().map(|resource| {
            let configs = resource.configs.iter().map(|config| match &config.value {
                Some(value) => Ok((config.name.as_str().to_owned(), Some(value.as_str().to_owned()))),
                None => {
                    let text = format!("Null value not supported for : {}", config.name.as_str());
                    Err(ApiError::invalid_request(text))
                }
            });
            let of = (resource.resource_type, resource.resource_name.clone());
            (of, configs.collect::<Result<_, _>>().map(Alteration::Replace))
        });
        let results = self.alter(alterations.collect(), request.validate_only).await?;
        let responses = results.into_iter().map(|((kind, name), result)| {
            let (code, message) = outcome(&result);
            ReplacedResource::default()
                .with_resource_type(kind)
                .with_resource_name(name)
                .with_error_code(code)
                .with_error_message(message)
        });
        Ok(AlterConfigsResponse::default().with_responses(responses.collect()))
    }

    async fn alter(
        &self,
        alterations: Vec<(Resource, Result<Alteration, ApiError>)>,
        validate_only: bool,
    ) -> Result<Vec<(Resource, Result<(), ApiError>)>, ReplicaError> {
        let twice = duplicates(alterations.iter().map(|(resource, _)| resource.clone()));
        let refused = alterations
            .iter()
            .filter(|(resource, _)| twice.contains(resource));
        let mut results: Vec<(Resource, Result<(), ApiError>)> = refused
            .map(|(of, _)| {
                let text = "Each resource must appear at most once.";
                (of.clone(), Err(ApiError::invalid_request(text)))
            })
            .collect();
        let (mut resources, mut topics) = (Vec::new(), Vec::new());
        for (resource, alteration) in alterations
            .into_iter()
            .filter(|(resource, _)| !twice.contains(resource))
        {
            match alteration.and_then(|alteration| topic_only(&resource).map(|()| alteration)) {
                Ok(alteration) => {
                    topics.push((resource.1.as_str().to_owned(), alteration));
                    resources.push(resource);
                }
                Err(error) => results.push((resource, Err(error))),
            }
        }
        let altered = self.submit_each(&topics, |topics| Command::AlterConfigs {
            topics,
            validate_only,
        });
        let altered = altered.await?.into_iter().map(|result| result.map(|_| ()));
        results.extend(resources.into_iter().zip(altered));
        self.spread(self.env().instant() + SPREAD).await;
        Ok(results)
    }
}

fn topic_only((kind, name): &Resource) -> Result<(), ApiError> {
    match *kind {
        TOPIC if name.is_empty() => Err(ApiError::invalid_request("the name of the topic is empty")),
        TOPIC => Ok(()),
        4 | 8 => Err(ApiError::invalid_request(format!(
            "configurations of broker '{name}' cannot be changed at run time; set them in the broker's configuration file"
        ))),
        other => Err(ApiError::invalid_request(format!(
            "resource type {other} has no configurations here"
        ))),
    }
}

fn operations(configs: &[AlterableConfig]) -> Result<Vec<(String, Op)>, ApiError> {
    if !duplicates(configs.iter().map(|config| &config.name)).is_empty() {
        return Err(ApiError::invalid_request("Error due to duplicate config keys"));
    }
    let operation = |config: &AlterableConfig| {
        let name = config.name.as_str().to_owned();
        let value = config.value.as_ref().map(|value| value.as_str().to_owned());
        let op = match (config.config_operation, value) {
            (1, _) => Op::Delete,
            (0, Some(value)) => Op::Set(value),
            (2, Some(value)) => Op::Append(value),
            (3, Some(value)) => Op::Subtract(value),
            (0 | 2 | 3, None) => {
                return Err(ApiError::invalid_request(format!(
                    "Null value not supported for : {name}"
                )));
            }
            (other, _) => {
                return Err(ApiError::invalid_request(format!(
                    "Unknown operation type {other} for {name}"
                )));
            }
        };
        Ok((name, op))
    };
    configs.iter().map(operation).collect()
}
