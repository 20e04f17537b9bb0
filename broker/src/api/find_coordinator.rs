use kafka_wire::messages::find_coordinator_response::Coordinator;
use kafka_wire::messages::{BrokerId, FindCoordinatorRequest, FindCoordinatorResponse};
use kafka_wire::{ResponseError, StrBytes};

use super::Api;
use super::call::{Call, text};
use crate::net::Answer;

/// First version that asks for several keys.
const KEYS: i16 = 4;
/// What a key is the name of.
const GROUP: i8 = 0;
const TRANSACTION: i8 = 1;

impl Api {
    /// Any broker passes group requests on, so a client is sent to one of its own zone: to this one, unless it leaves.
    pub(super) fn find_coordinator(&self, call: Call, request: FindCoordinatorRequest) -> Answer {
        let single = request.key.clone();
        let keys = if call.version() < KEYS {
            vec![single]
        } else {
            request.coordinator_keys
        };
        let coordinators: Vec<Coordinator> = keys
            .into_iter()
            .map(|key| self.coordinator_of(&call, key, request.key_type))
            .collect();
        let mut response = FindCoordinatorResponse::default();
        if call.version() >= KEYS {
            return call.reply(response.with_coordinators(coordinators));
        }
        if let Some(Coordinator {
            node_id,
            host,
            port,
            error_code,
            error_message,
            ..
        }) = coordinators.into_iter().next()
        {
            response = response
                .with_node_id(node_id)
                .with_host(host)
                .with_port(port)
                .with_error_code(error_code)
                .with_error_message(error_message);
        }
        call.reply(response)
    }

    fn coordinator_of(&self, call: &Call, key: StrBytes, key_type: i8) -> Coordinator {
        let failed = |error: ResponseError, message: Option<&str>| {
            let message = message.map_or_else(|| error.to_string(), str::to_owned);
            Coordinator::default()
                .with_node_id(BrokerId(-1))
                .with_port(-1)
                .with_error_code(error.code())
                .with_error_message(Some(text(message)))
        };
        let answer = match key_type {
            GROUP => {
                let image = self.metadata.image();
                let steering = self.steering(call, &image);
                match steering.coordinator(&key, self.node) {
                    // Nobody else is left to send the client to.
                    Some(broker) if broker.draining => failed(ResponseError::CoordinatorNotAvailable, None),
                    // The image does not know yet that this broker leaves: the client asks again, or another one.
                    Some(broker) if broker.id == self.node && self.draining.is_cancelled() => {
                        failed(ResponseError::NotCoordinator, None)
                    }
                    Some(broker) => Coordinator::default()
                        .with_node_id(BrokerId(broker.id.0))
                        .with_host(text(&broker.host))
                        .with_port(steering.port(broker)),
                    None => failed(ResponseError::CoordinatorNotAvailable, None),
                }
            }
            TRANSACTION => failed(
                ResponseError::InvalidRequest,
                Some("transactions are not supported by this version"),
            ),
            _ => failed(ResponseError::InvalidRequest, Some("unknown key type")),
        };
        answer.with_key(key)
    }
}
