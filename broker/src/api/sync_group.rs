use std::time::Duration;

use kafka_wire::messages::{SyncGroupRequest, SyncGroupResponse};

use super::Api;
use super::call::Call;
use crate::net::Answer;

/// It waits for the leader of the group, as long as that one's rebalance timeout: at most, since the owner gives up
/// itself.
const WAIT: Duration = Duration::from_secs(1800);

impl Api {
    pub(super) async fn sync_group(&self, call: Call, request: SyncGroupRequest) -> Answer {
        let failed = |error: kafka_wire::ResponseError| {
            SyncGroupResponse::default().with_error_code(error.code()).into()
        };
        self.to_group(call, &request.group_id, WAIT, failed).await
    }
}
