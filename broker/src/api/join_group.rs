use std::time::Duration;

use kafka_wire::messages::{JoinGroupRequest, JoinGroupResponse};

use super::Api;
use super::call::Call;
use super::forward::GROUP;
use crate::net::Answer;

/// The longest that a join may wait for the other members.
const LONGEST: Duration = Duration::from_secs(1800);

impl Api {
    pub(super) async fn join_group(&self, call: Call, request: JoinGroupRequest) -> Answer {
        // Version 0 has no rebalance timeout; the session timeout stands for it.
        let rebalance = request.rebalance_timeout_ms.max(request.session_timeout_ms);
        let wait = Duration::from_millis(u64::try_from(rebalance).unwrap_or(0)).min(LONGEST) + GROUP;
        let group = request.group_id.0.clone();
        self.to_group(call, &group, wait, |error| {
            JoinGroupResponse::default()
                .with_error_code(error.code())
                .with_member_id(request.member_id)
                .into()
        })
        .await
    }
}
