use kafka_wire::messages::ListPartitionReassignmentsResponse;

use super::Api;
use super::call::Call;
use crate::net::Answer;

impl Api {
    /// There are no replicas to move: nothing is ever in progress.
    pub(super) fn list_partition_reassignments(&self, call: Call) -> Answer {
        call.reply(ListPartitionReassignmentsResponse::default().with_error_message(None))
    }
}
