use kafka_wire::messages::list_config_resources_response::ConfigResource;
use kafka_wire::messages::{ListConfigResourcesRequest, ListConfigResourcesResponse};
use kafka_wire::{ResponseError, StrBytes};

use super::Api;
use super::call::{Call, text};
use crate::net::Answer;

/// Kinds of resources (`ConfigResource.Type`).
const TOPIC: i8 = 2;
const BROKER: i8 = 4;
/// Kinds that exist in Kafka and that nothing is configured of here: loggers, client metrics, groups.
const NONE: [i8; 3] = [8, 16, 32];
/// First version that lists more than client metrics (KIP-1142).
const ALL_KINDS: i16 = 1;

impl Api {
    pub(super) fn list_config_resources(&self, call: Call, request: ListConfigResourcesRequest) -> Answer {
        let response = ListConfigResourcesResponse::default();
        if call.version() < ALL_KINDS {
            return call.reply(response);
        }
        let kinds = &request.resource_types;
        if kinds
            .iter()
            .any(|kind| ![TOPIC, BROKER].contains(kind) && !NONE.contains(kind))
        {
            return call.reply(response.with_error_code(ResponseError::UnsupportedVersion.code()));
        }
        let wanted = |kind: i8| kinds.is_empty() || kinds.contains(&kind);
        let resource = |kind: i8, name: StrBytes| {
            ConfigResource::default()
                .with_resource_type(kind)
                .with_resource_name(name)
        };
        let image = self.metadata.image();
        let mut resources = Vec::new();
        if wanted(TOPIC) {
            let topics = image.record().topics.iter();
            resources.extend(topics.map(|topic| resource(TOPIC, text(&topic.name))));
        }
        if wanted(BROKER) {
            let brokers = image.record().brokers.iter();
            resources.extend(brokers.map(|broker| resource(BROKER, text(broker.id.to_string()))));
        }
        call.reply(response.with_config_resources(resources))
    }
}
