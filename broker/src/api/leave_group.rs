use kafka_wire::messages::{LeaveGroupRequest, LeaveGroupResponse};

use super::Api;
use super::call::Call;
use super::forward::GROUP;
use crate::net::Answer;

impl Api {
    pub(super) async fn leave_group(&self, call: Call, request: LeaveGroupRequest) -> Answer {
        let failed = |error: kafka_wire::ResponseError| {
            LeaveGroupResponse::default().with_error_code(error.code()).into()
        };
        self.to_group(call, &request.group_id, GROUP, failed).await
    }
}
