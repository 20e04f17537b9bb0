use std::time::Duration;

use kafka_wire::ResponseError;
use kafka_wire::messages::{InitProducerIdRequest, InitProducerIdResponse, ProducerId};

use super::Api;
use super::call::Call;
use crate::net::Answer;

/// How long the controller may take to give a block of ids; a change of controllers fits in.
const ALLOCATION: Duration = Duration::from_secs(10);

/// A producer that had no id before says so in both fields (KIP-360).
const NONE: i64 = -1;

/// What is left of this broker's block of producer ids. The lock is held while a new block is asked for, so that all
/// who wait share it.
#[derive(Debug, Default)]
pub struct ProducerIds(tokio::sync::Mutex<std::ops::Range<i64>>);

impl Api {
    pub(super) async fn init_producer_id(&self, call: Call, request: InitProducerIdRequest) -> Answer {
        let failed = |error: ResponseError| {
            InitProducerIdResponse::default()
                .with_error_code(error.code())
                .with_producer_id(ProducerId(-1))
                .with_producer_epoch(-1)
        };
        if request.transactional_id.is_some() {
            // Transactions come with a later version. FindCoordinator has said so in words before.
            return call.reply(failed(ResponseError::InvalidRequest));
        }
        if (request.producer_id.0 == NONE) != (i64::from(request.producer_epoch) == NONE) {
            return call.reply(failed(ResponseError::InvalidRequest));
        }
        call.reply(match self.next_producer_id().await {
            Some(id) => InitProducerIdResponse::default()
                .with_producer_id(ProducerId(id))
                .with_producer_epoch(0),
            None => failed(ResponseError::CoordinatorNotAvailable),
        })
    }

    async fn next_producer_id(&self) -> Option<i64> {
        let mut left = self.producer_ids.0.lock().await;
        if left.is_empty() {
            let deadline = self.env.instant() + ALLOCATION;
            match self.coordinators.allocate_producer_ids(self.node, deadline).await {
                Ok(block) if block.error_code == 0 => {
                    *left = block.first..block.first.saturating_add(block.count.into());
                }
                Ok(block) => tracing::warn!(code = block.error_code, "the controller gives no producer ids"),
                Err(error) => tracing::warn!(%error, "no producer ids: the controller cannot be reached"),
            }
        }
        left.next()
    }
}
