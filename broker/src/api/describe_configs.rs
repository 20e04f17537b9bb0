use cluster::{broker_configs, describe_broker, describe_topic};
use kafka_wire::ResponseError;
use kafka_wire::messages::describe_configs_request::DescribeConfigsResource;
use kafka_wire::messages::describe_configs_response::{DescribeConfigsResourceResult, DescribeConfigsResult};
use kafka_wire::messages::{DescribeConfigsRequest, DescribeConfigsResponse};

use super::Api;
use super::call::{Call, text};
use super::metadata::is_legal;
use crate::net::Answer;

/// Kinds of resources.
const TOPIC: i8 = 2;
const BROKER: i8 = 4;

impl Api {
    pub(super) fn describe_configs(&self, call: Call, request: DescribeConfigsRequest) -> Answer {
        let (synonyms, documentation) = (request.include_synonyms, request.include_documentation);
        let results = request.resources.into_iter().map(|resource| {
            let described = self.describe(&resource, synonyms, documentation);
            let result = DescribeConfigsResult::default()
                .with_resource_type(resource.resource_type)
                .with_resource_name(resource.resource_name);
            match described {
                Ok(configs) => result.with_configs(configs),
                Err((error, message)) => result
                    .with_error_code(error.code())
                    .with_error_message(Some(text(message))),
            }
        });
        let results = results.collect();
        call.reply(DescribeConfigsResponse::default().with_results(results))
    }

    fn describe(
        &self,
        resource: &DescribeConfigsResource,
        synonyms: bool,
        documentation: bool,
    ) -> Result<Vec<DescribeConfigsResourceResult>, (ResponseError, String)> {
        let keys = resource.configuration_keys.as_deref();
        let name = resource.resource_name.as_str();
        let image = self.metadata.image();
        match resource.resource_type {
            TOPIC => match image.topic(name) {
                Some(topic) => Ok(describe_topic(topic, keys, synonyms, documentation)),
                None if !is_legal(name) => Err((
                    ResponseError::InvalidTopicException,
                    format!("topic {name:?} cannot exist"),
                )),
                None => Err((
                    ResponseError::UnknownTopicOrPartition,
                    format!("topic {name} does not exist"),
                )),
            },
            // Defaults of all brokers that can be changed while they run: there are none.
            BROKER if name.is_empty() => Ok(Vec::new()),
            BROKER => {
                let broker = name.parse().ok().and_then(|id| image.broker(types::NodeId(id)));
                let Some(broker) = broker else {
                    return Err((
                        ResponseError::InvalidRequest,
                        format!("there is no broker {name}"),
                    ));
                };
                let configs = broker_configs(broker, image.record().default_partitions());
                Ok(describe_broker(&configs, keys, synonyms, documentation))
            }
            other => Err((
                ResponseError::InvalidRequest,
                format!("resource type {other} has no configuration"),
            )),
        }
    }
}
