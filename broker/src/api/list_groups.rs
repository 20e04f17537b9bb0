use kafka_wire::ResponseError;
use kafka_wire::messages::{ListGroupsRequest, ListGroupsResponse};
use types::ShardId;

use super::Api;
use super::call::Call;
use super::forward::GROUP;
use crate::net::Answer;
use crate::rpc::Destination;

impl Api {
    /// The groups of all shards. If one of them cannot be asked the list would be wrong, so the client asks again.
    pub(super) async fn list_groups(&self, call: Call, request: ListGroupsRequest) -> Answer {
        let deadline = self.env.instant() + GROUP;
        let mut response = ListGroupsResponse::default();
        // Before it has heard of any shard a broker would say that there are no groups.
        if self.group_shard("", deadline).await.is_err() {
            return call.reply(response.with_error_code(ResponseError::CoordinatorNotAvailable.code()));
        }
        let shards = (0..self.metadata.image().record().group_shards).map(ShardId);
        let asked = shards.map(|shard| {
            self.ask(
                &call,
                Destination::Shard(shard),
                &request,
                call.version(),
                deadline,
            )
        });
        for answer in futures::future::join_all(asked).await {
            match answer {
                Ok(answer) => {
                    response.groups.extend(answer.groups);
                    if answer.error_code != 0 {
                        response.error_code = answer.error_code;
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "groups of a shard cannot be listed");
                    response.error_code = ResponseError::CoordinatorNotAvailable.code();
                }
            }
        }
        call.reply(response)
    }
}
