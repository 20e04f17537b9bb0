//! Passing requests on to who owns them: groups to their shard, topic administration to the controller.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use env::Instant;
use kafka_protocol::protocol::Request;
use kafka_wire::{DecodeError, EncodeError, ResponseError, ResponseKind, client};
use types::ShardId;

use super::Api;
use super::call::Call;
use crate::net::Answer;
use crate::rpc::{Destination, RpcError};

/// How long the owner of a group may take for what it answers at once; a change of leaders fits in.
pub(super) const GROUP: Duration = Duration::from_secs(10);

/// An owner gave no usable answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum ForwardError {
    #[error(transparent)]
    Rpc(#[from] RpcError),
    #[error("cannot encode the request: {0}")]
    Encode(#[from] EncodeError),
    #[error("cannot decode the answer: {0}")]
    Decode(#[from] DecodeError),
}

impl Api {
    /// Passes the request on as it is and gives the owner's answer.
    pub(super) async fn pass(
        &self,
        call: &Call,
        to: Destination,
        deadline: Instant,
    ) -> Result<Bytes, RpcError> {
        self.coordinators
            .forward(to, &call.peer.host, call.frame.clone(), None, deadline)
            .await
    }

    /// Passes the request on to the owner of `group`. If it cannot be reached, `failed` makes the answer.
    pub(super) async fn to_group(
        &self,
        call: Call,
        group: &str,
        wait: Duration,
        failed: impl FnOnce(ResponseError) -> ResponseKind + Send,
    ) -> Answer {
        let deadline = self.env.instant() + wait;
        let passed = async {
            let shard = self.group_shard(group, deadline).await?;
            self.pass(&call, Destination::Shard(shard), deadline).await
        };
        match passed.await {
            Ok(answer) => call.pass_back(answer),
            Err(error) => {
                tracing::debug!(group, %error, "the owner of a group cannot be reached");
                call.reply(failed(ResponseError::CoordinatorNotAvailable))
            }
        }
    }

    /// The shard that keeps `group`. A broker that has just started waits until it has heard how many share the groups: any
    /// other shard would say that the group has no members and no offsets.
    pub(super) async fn group_shard(&self, group: &str, deadline: Instant) -> Result<ShardId, RpcError> {
        let mut metadata = self.metadata.clone();
        let known = async {
            loop {
                if let Some(shard) = metadata.image().group_shard(group) {
                    return shard;
                }
                metadata.changed().await;
            }
        };
        let known = self.env.timeout_at(deadline, known).await;
        known.map_err(|_| RpcError::TimedOut)
    }

    /// Has `to` answer a request of our own, in the client's name and version.
    pub(super) async fn ask<R: Request>(
        &self,
        call: &Call,
        to: Destination,
        request: &R,
        version: i16,
        deadline: Instant,
    ) -> Result<R::Response, ForwardError> {
        let frame = frame(call, request, version)?;
        let answer = self
            .coordinators
            .forward(to, &call.peer.host, frame, None, deadline)
            .await?;
        Ok(client::decode::<R>(answer, version)?.1)
    }

    /// Has every owner answer for its own of several groups, in parallel. `part` makes the request for some of them,
    /// `results` takes the answer apart, `failed` stands in for a group whose owner cannot be reached.
    pub(super) async fn ask_owners<G: Clone, R: Request, T>(
        &self,
        call: &Call,
        groups: &[G],
        id: impl Fn(&G) -> &str,
        part: impl Fn(Vec<G>) -> R,
        results: impl Fn(R::Response) -> Vec<T>,
        failed: impl Fn(G) -> T,
    ) -> Vec<T> {
        let deadline = self.env.instant() + GROUP;
        let mut by_shard: BTreeMap<ShardId, Vec<G>> = BTreeMap::new();
        for group in groups {
            match self.group_shard(id(group), deadline).await {
                Ok(shard) => by_shard.entry(shard).or_default().push(group.clone()),
                Err(_) => return groups.iter().cloned().map(failed).collect(),
            }
        }
        let asked = by_shard.into_iter().map(|(shard, groups)| {
            let request = part(groups.clone());
            let (results, failed) = (&results, &failed);
            async move {
                match self
                    .ask(
                        call,
                        Destination::Shard(shard),
                        &request,
                        call.version(),
                        deadline,
                    )
                    .await
                {
                    Ok(answer) => results(answer),
                    Err(error) => {
                        tracing::debug!(%shard, %error, "the owner of groups cannot be reached");
                        groups.into_iter().map(failed).collect()
                    }
                }
            }
        });
        futures::future::join_all(asked)
            .await
            .into_iter()
            .flatten()
            .collect()
    }
}

/// A request of our own in the client's name, as it travels to its owner: without the length.
pub(super) fn frame<R: Request>(call: &Call, request: &R, version: i16) -> Result<Bytes, EncodeError> {
    let client_id = call.header.client_id.as_deref().unwrap_or_default();
    let mut frame = client::encode(request, version, call.header.correlation_id, client_id)?;
    Ok(frame.split_off(4.min(frame.len())))
}
