//! Answers the requests of other nodes on the internal listener.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Buf, Bytes};
use cluster::protocol::{
    AllocateProducerIdsRequest, AllocateProducerIdsResponse, DescribeClusterRequest, DescribeClusterResponse,
    ForwardRequest, ForwardResponse, HeartbeatRequest, HeartbeatResponse,
};
use coordinator::protocol::{
    CommitFileRequest, CommitFileResponse, CreatePartitionsRequest, DeleteRecordsRequest,
    DeleteRecordsResponse, DeleteTopicsRequest, DescribeFilesRequest, DescribeFilesResponse,
    DescribePartitionsRequest, DescribePartitionsResponse, ErrorResponse, FindBatchesRequest,
    FindBatchesResponse, HandOverFileRequest, ListOffsetsRequest, ListOffsetsResponse, TailRequest,
    TailResponse, api_key,
};
use coordinator::shard::ShardService;
use kafka_wire::flex::Encode;
use kafka_wire::frame::RequestHeader;
use kafka_wire::rope::Rope;
use kafka_wire::{RequestKind, ResponseError, ResponseKind, request, response};
use tokio_util::sync::CancellationToken;
use types::{LogOffset, ShardId, Timestamp};

use crate::fetch::ObjectServer;
use crate::membership::Coordination;
use crate::metadata::Metadata;
use crate::rpc::{Caller, Handler, read_request};

/// The services of a coordinator process, as RPCs.
pub struct Internal {
    coordination: Coordination,
    metadata: Metadata,
    /// If it is a broker, too.
    objects: Option<Arc<ObjectServer>>,
}

impl Internal {
    /// Answers from what `coordination` leads, what `metadata` knows, and what a broker in the same process reads.
    pub fn new(
        coordination: Coordination,
        metadata: Metadata,
        objects: Option<Arc<ObjectServer>>,
    ) -> Arc<Internal> {
        Arc::new(Internal {
            coordination,
            metadata,
            objects,
        })
    }

    fn describe_cluster(&self, request: &DescribeClusterRequest) -> DescribeClusterResponse {
        tracing::debug!(node = %request.node, "asked for the cluster");
        let image = self
            .metadata
            .is_known()
            .then(|| self.metadata.image().record().clone());
        DescribeClusterResponse { error_code: 0, image }
    }

    fn shard(&self, id: ShardId) -> Result<ShardService, i16> {
        self.coordination
            .shards
            .led(id)
            .map(|led| led.shard)
            .map_err(|error| error.code())
    }

    async fn tail(&self, request: TailRequest) -> TailResponse {
        match self.shard(request.shard) {
            Ok(shard) => TailResponse {
                file_grace_ms: Some(self.coordination.shards.file_grace_ms()),
                ..shard.tail(request).await
            },
            Err(error_code) => TailResponse {
                error_code,
                reset: false,
                next: LogOffset(0),
                partitions: Vec::new(),
                file_grace_ms: None,
            },
        }
    }

    /// Followers find batches, too.
    async fn find_batches(&self, request: FindBatchesRequest) -> FindBatchesResponse {
        match self.coordination.shards.replica(request.shard) {
            Ok(shard) => shard.find_batches(request).await,
            Err(error) => FindBatchesResponse {
                error_code: error.code(),
                applied: LogOffset(0),
                partitions: Vec::new(),
            },
        }
    }

    async fn heartbeat(&self, request: HeartbeatRequest, gone: &CancellationToken) -> HeartbeatResponse {
        match self.coordination.controller.current() {
            Some(controller) => controller.heartbeat(&request, gone.cancelled()).await,
            None => {
                let error = match self.coordination.controller.is_opening() {
                    true => ResponseError::CoordinatorLoadInProgress,
                    false => ResponseError::NotController,
                };
                HeartbeatResponse {
                    error_code: error.code(),
                    controller_epoch: 0,
                    image: None,
                    lead: Vec::new(),
                    follow: Vec::new(),
                    feature_level: None,
                    changes: None,
                }
            }
        }
    }

    async fn allocate_producer_ids(
        &self,
        request: AllocateProducerIdsRequest,
    ) -> AllocateProducerIdsResponse {
        match self.coordination.controller.current() {
            Some(controller) => controller.allocate_producer_ids(&request).await,
            None => {
                let error_code = ResponseError::NotController.code();
                AllocateProducerIdsResponse {
                    error_code,
                    first: -1,
                    count: 0,
                }
            }
        }
    }

    async fn forward(&self, forwarded: ForwardRequest, caller: &Caller) -> ForwardResponse {
        let answer = match u32::try_from(forwarded.shard) {
            Ok(shard) => self.to_groups(ShardId(shard), &forwarded, caller).await,
            Err(_) => self.to_controller(&forwarded).await,
        };
        match answer {
            Ok(response) => ForwardResponse {
                error_code: 0,
                response,
            },
            Err(error) => ForwardResponse {
                error_code: error.code(),
                response: Bytes::new(),
            },
        }
    }

    async fn to_groups(
        &self,
        shard: ShardId,
        forwarded: &ForwardRequest,
        caller: &Caller,
    ) -> Result<Bytes, ResponseError> {
        let groups = self.coordination.shards.led(shard)?.groups;
        let (header, request) = parse(&forwarded.request)?;
        let client_id = header.client_id.as_deref().unwrap_or_default();
        let topics = forwarded.topics.iter().flatten();
        let topics = topics.map(|topic| (topic.name.clone(), topic.id)).collect();
        let waits = matches!(request, RequestKind::JoinGroup(_) | RequestKind::SyncGroup(_));
        let answer = groups.handle(
            client_id,
            &forwarded.client_host,
            header.api_version,
            request,
            topics,
        );
        if !waits {
            return reply(&header, &answer.await?);
        }
        caller.wait_aside()?;
        tokio::select! {
            biased;
            answer = answer => reply(&header, &answer?),
            // The group has the member; only nobody hears the answer.
            () = caller.gone.cancelled() => Err(ResponseError::RequestTimedOut),
        }
    }

    async fn to_controller(&self, forwarded: &ForwardRequest) -> Result<Bytes, ResponseError> {
        let controller = self
            .coordination
            .controller
            .current()
            .ok_or(ResponseError::NotController)?;
        let (header, request) = parse(&forwarded.request)?;
        let answer = match &request {
            RequestKind::CreateTopics(request) => controller
                .create_topics(request)
                .await
                .map(ResponseKind::CreateTopics),
            RequestKind::DeleteTopics(request) => controller
                .delete_topics(request)
                .await
                .map(ResponseKind::DeleteTopics),
            RequestKind::CreatePartitions(request) => controller
                .create_partitions(request)
                .await
                .map(ResponseKind::CreatePartitions),
            RequestKind::IncrementalAlterConfigs(request) => controller
                .incremental_alter_configs(request)
                .await
                .map(ResponseKind::IncrementalAlterConfigs),
            RequestKind::AlterConfigs(request) => controller
                .alter_configs(request)
                .await
                .map(ResponseKind::AlterConfigs),
            RequestKind::UpdateFeatures(request) => controller
                .update_features(request, header.api_version)
                .await
                .map(ResponseKind::UpdateFeatures),
            _ => return Err(ResponseError::InvalidRequest),
        };
        reply(&header, &answer.map_err(|_| ResponseError::NotController)?)
    }
}

fn parse(frame: &Bytes) -> Result<(RequestHeader, RequestKind), ResponseError> {
    let header = RequestHeader::parse(frame).map_err(|_| ResponseError::InvalidRequest)?;
    let request = request::decode(&header, frame).map_err(|_| ResponseError::InvalidRequest)?;
    Ok((header, request))
}

/// Header and body without the length: the broker that passed the request on sends it as its own.
fn reply(header: &RequestHeader, answer: &ResponseKind) -> Result<Bytes, ResponseError> {
    let rope = response::encode(header.api_version, header.correlation_id, answer).map_err(|error| {
        tracing::error!(%error, api_key = header.api_key, "cannot encode a response");
        ResponseError::UnknownServerError
    })?;
    let mut frame = rope.into_bytes();
    frame.advance(4.min(frame.len()));
    Ok(frame)
}

/// Decodes a request for a shard, asks the shard, and encodes what it says (or `$refused` with an error code).
macro_rules! shard_call {
    ($self:ident, $body:ident, $request:ty, $method:ident, |$code:ident| $refused:expr) => {{
        let request: $request = read_request($body)?;
        match $self.shard(request.shard) {
            Ok(shard) => shard.$method(request).await.to_bytes(),
            Err($code) => $refused.to_bytes(),
        }
    }};
}

#[async_trait]
impl Handler for Internal {
    async fn handle(&self, api_key: i16, body: Bytes, caller: &Caller) -> Result<Rope, ResponseError> {
        let answer = match api_key {
            api_key::COMMIT_FILE => shard_call!(self, body, CommitFileRequest, commit_file, |error_code| {
                CommitFileResponse {
                    error_code,
                    batches: Vec::new(),
                }
            }),
            api_key::TAIL => self.tail(read_request(body)?).await.to_bytes(),
            api_key::FIND_BATCHES => self.find_batches(read_request(body)?).await.to_bytes(),
            api_key::LIST_OFFSETS => {
                shard_call!(self, body, ListOffsetsRequest, list_offsets, |error_code| {
                    ListOffsetsResponse {
                        error_code,
                        partitions: Vec::new(),
                    }
                })
            }
            api_key::DELETE_RECORDS => {
                shard_call!(self, body, DeleteRecordsRequest, delete_records, |error_code| {
                    DeleteRecordsResponse {
                        error_code,
                        partitions: Vec::new(),
                    }
                })
            }
            api_key::CREATE_PARTITIONS => {
                shard_call!(
                    self,
                    body,
                    CreatePartitionsRequest,
                    create_partitions,
                    |error_code| { ErrorResponse { error_code } }
                )
            }
            api_key::DELETE_TOPICS => {
                shard_call!(self, body, DeleteTopicsRequest, delete_topics, |error_code| {
                    ErrorResponse { error_code }
                })
            }
            api_key::DESCRIBE_FILES => {
                shard_call!(self, body, DescribeFilesRequest, describe_files, |error_code| {
                    DescribeFilesResponse {
                        error_code,
                        oldest_file: Timestamp(-1),
                        known: Vec::new(),
                    }
                })
            }
            api_key::DESCRIBE_PARTITIONS => {
                shard_call!(
                    self,
                    body,
                    DescribePartitionsRequest,
                    describe_partitions,
                    |error_code| {
                        DescribePartitionsResponse {
                            error_code,
                            partitions: Vec::new(),
                        }
                    }
                )
            }
            api_key::HAND_OVER_FILE => {
                shard_call!(self, body, HandOverFileRequest, hand_over_file, |error_code| {
                    ErrorResponse { error_code }
                })
            }
            api_key::HEARTBEAT => self.heartbeat(read_request(body)?, &caller.gone).await.to_bytes(),
            api_key::ALLOCATE_PRODUCER_IDS => {
                self.allocate_producer_ids(read_request(body)?).await.to_bytes()
            }
            api_key::DESCRIBE_CLUSTER => self.describe_cluster(&read_request(body)?).to_bytes(),
            api_key::FORWARD => self.forward(read_request(body)?, caller).await.to_bytes(),
            _ => {
                let objects = self.objects.as_ref().ok_or(ResponseError::UnsupportedVersion)?;
                return objects.handle(api_key, body, caller).await;
            }
        };
        Ok(answer.into())
    }
}

#[cfg(test)]
mod tests;
