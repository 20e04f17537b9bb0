use kafka_wire::messages::{HeartbeatRequest, HeartbeatResponse};

use super::Api;
use super::call::Call;
use super::forward::GROUP;
use crate::net::Answer;

impl Api {
    pub(super) async fn heartbeat(&self, call: Call, request: HeartbeatRequest) -> Answer {
        let failed = |error: kafka_wire::ResponseError| {
            HeartbeatResponse::default().with_error_code(error.code()).into()
        };
        self.to_group(call, &request.group_id, GROUP, failed).await
    }
}
