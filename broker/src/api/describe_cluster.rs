use kafka_wire::ResponseError;
use kafka_wire::messages::describe_cluster_response::DescribeClusterBroker;
use kafka_wire::messages::{BrokerId, DescribeClusterRequest, DescribeClusterResponse};

use super::Api;
use super::call::{Call, text};
use super::metadata::CLUSTER_OPERATIONS;
use crate::net::Answer;

/// Asks for brokers.
const BROKERS: i8 = 1;
/// Asks for controllers, which clients do not reach.
const CONTROLLERS: i8 = 2;

impl Api {
    pub(super) fn describe_cluster(&self, call: Call, request: DescribeClusterRequest) -> Answer {
        if call.version() >= 1 && request.endpoint_type != BROKERS {
            let (error, message) = match request.endpoint_type {
                CONTROLLERS => (ResponseError::MismatchedEndpointType, "this is a broker"),
                _ => (ResponseError::UnsupportedEndpointType, "unknown endpoint type"),
            };
            let response = DescribeClusterResponse::default()
                .with_error_code(error.code())
                .with_error_message(Some(text(message)));
            return call.reply(response);
        }
        let image = self.metadata.image();
        let steering = self.steering(&call, &image);
        let brokers = steering.brokers().map(|broker| {
            DescribeClusterBroker::default()
                .with_broker_id(BrokerId(broker.id.0))
                .with_host(text(&broker.host))
                .with_port(steering.port(broker))
                .with_rack(Some(text(&broker.zone)))
        });
        let mut response = DescribeClusterResponse::default()
            .with_cluster_id(text(&image.record().cluster_id))
            .with_controller_id(BrokerId(steering.controller().map_or(-1, |broker| broker.id.0)))
            .with_brokers(brokers.collect());
        if request.include_cluster_authorized_operations {
            response.cluster_authorized_operations = CLUSTER_OPERATIONS;
        }
        call.reply(response)
    }
}
