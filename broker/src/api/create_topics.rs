//! CreateTopics, and what it has in common with the other requests to the controller.

use std::time::Duration;

use bytes::Bytes;
use env::Instant;
use kafka_protocol::protocol::Request;
use kafka_wire::messages::create_topics_response::CreatableTopicResult;
use kafka_wire::messages::{CreateTopicsRequest, CreateTopicsResponse};
use kafka_wire::{ResponseError, ResponseKind, client};

use super::Api;
use super::call::Call;
use super::forward::ForwardError;
use crate::net::Answer;
use crate::rpc::Destination;

/// What a client may ask the controller to take for an answer.
const TIMEOUT: std::ops::RangeInclusive<i32> = 5_000..=60_000;
/// The image of this broker follows the controller's within milliseconds; a client that asks here next should see what it
/// has just done.
const SEEN: Duration = Duration::from_secs(2);
/// Version of CreateTopics in which this broker asks for itself.
const OWN_VERSION: i16 = 5;

impl Api {
    pub(super) async fn create_topics(&self, call: Call, request: CreateTopicsRequest) -> Answer {
        let answer = match self.to_controller(&call, request.timeout_ms).await {
            Ok(answer) => answer,
            Err(error) => {
                let topics = request.topics.into_iter().map(|topic| {
                    CreatableTopicResult::default()
                        .with_name(topic.name)
                        .with_error_code(error.code())
                });
                return call.reply(CreateTopicsResponse::default().with_topics(topics.collect()));
            }
        };
        if !request.validate_only
            && let Some(response) = decoded::<CreateTopicsRequest>(&call, &answer)
        {
            let created: Vec<&str> = response
                .topics
                .iter()
                .filter(|topic| topic.error_code == 0)
                .map(|topic| topic.name.as_str())
                .collect();
            self.see(|image| created.iter().all(|name| image.topic(name).is_some()))
                .await;
        }
        call.pass_back(answer)
    }

    /// Creates topics for the client behind `call`.
    pub(super) async fn ask_controller(
        &self,
        call: &Call,
        request: &CreateTopicsRequest,
        deadline: Instant,
    ) -> Result<CreateTopicsResponse, ForwardError> {
        self.ask(call, Destination::Controller, request, OWN_VERSION, deadline)
            .await
    }

    /// Passes the request on to the controller. Without an answer in time whether it was done is unknown, which is what
    /// REQUEST_TIMED_OUT says.
    pub(super) async fn to_controller(&self, call: &Call, timeout_ms: i32) -> Result<Bytes, ResponseError> {
        let deadline = self.deadline(timeout_ms.clamp(*TIMEOUT.start(), *TIMEOUT.end()).into());
        self.pass(call, Destination::Controller, deadline)
            .await
            .map_err(|error| {
                tracing::debug!(%error, "the controller cannot be reached");
                ResponseError::RequestTimedOut
            })
    }

    /// [`Api::to_controller`] for requests that need nothing else.
    pub(super) async fn controller_answers(
        &self,
        call: Call,
        timeout_ms: i32,
        failed: impl FnOnce(ResponseError) -> ResponseKind + Send,
    ) -> Answer {
        match self.to_controller(&call, timeout_ms).await {
            Ok(answer) => call.pass_back(answer),
            Err(error) => call.reply(failed(error)),
        }
    }

    /// Waits a moment until the image of this broker is as `seen` wants it.
    pub(super) async fn see(&self, seen: impl Fn(&cluster::image::MetadataImage) -> bool) {
        self.image_when(self.env.instant() + SEEN, seen).await;
    }
}

/// The controller's answer, to look into.
pub(super) fn decoded<R: Request>(call: &Call, answer: &Bytes) -> Option<R::Response> {
    client::decode::<R>(answer.clone(), call.version())
        .ok()
        .map(|(_, response)| response)
}
