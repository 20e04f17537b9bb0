//! The controller's seat on this node: empty, or taken by a [`ControllerService`].

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cluster::image::Shard;
use cluster::{ControllerService, RpcError, Settings, ShardRpc};
use coordinator::protocol::{CreatePartitionsRequest, DeleteTopicsRequest, ErrorResponse, api_key};
use coordinator::replica::End;
use env::Env;
use kafka_wire::flex::Encode;
use metalog::{MetadataLog, Owner};
use parking_lot::Mutex;

use crate::metadata::Metadata;
use crate::rpc::Pool;

const ANSWER: Duration = Duration::from_secs(5);
/// Nodes that see the same silence do not all act in the same moment.
const STAGGER: Duration = Duration::from_millis(200);

/// This node cannot be part of the cluster: it does not read what the others write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unsupported(pub String);

/// Becomes the controller when there is none.
pub struct ControllerHost {
    env: Env,
    log: Arc<dyn MetadataLog>,
    owner: Owner,
    pool: Pool,
    settings: Settings,
    metadata: Metadata,
    seat: Mutex<Seat>,
}

#[derive(Default)]
struct Seat {
    current: Option<Arc<ControllerService>>,
    /// The log is being opened: the bucket may name this node already.
    opening: bool,
}

impl ControllerHost {
    /// An empty seat.
    pub fn new(
        env: Env,
        log: Arc<dyn MetadataLog>,
        owner: Owner,
        pool: Pool,
        settings: Settings,
        metadata: Metadata,
    ) -> Arc<ControllerHost> {
        Arc::new(ControllerHost {
            env,
            log,
            owner,
            pool,
            settings,
            metadata,
            seat: Mutex::default(),
        })
    }

    /// The controller, if this node is it.
    pub fn current(&self) -> Option<Arc<ControllerService>> {
        self.seat.lock().current.clone()
    }

    /// Whether this node is about to be the controller.
    pub fn is_opening(&self) -> bool {
        self.seat.lock().opening
    }

    /// Takes the cluster log over, unless this node leads it already or another one has in the meantime. The error is final:
    /// the log is of a later release.
    pub async fn take_over(self: &Arc<Self>) -> Result<(), Unsupported> {
        if self.current().is_some() {
            return Ok(());
        }
        // Whose place it takes must be known: a log that cannot be read now may be led all the same.
        let Ok(before) = self.log.owner().await else {
            return Ok(());
        };
        if before.is_some() {
            self.env.sleep(self.env.jittered(STAGGER)).await;
            if self.log.owner().await != Ok(before) {
                return Ok(());
            }
        }
        let rpc = Arc::new(DirectRpc {
            env: self.env.clone(),
            pool: self.pool.clone(),
        });
        let image = self.metadata.image();
        let before = self.metadata.is_known().then(|| image.record());
        self.seat.lock().opening = true;
        let opened = ControllerService::open(
            &self.env,
            self.log.clone(),
            self.owner.clone(),
            rpc,
            self.settings.clone(),
            before,
        );
        let opened = opened.await;
        let mut seat = self.seat.lock();
        seat.opening = false;
        match opened {
            Ok(service) => {
                seat.current = Some(service.clone());
                let host = self.clone();
                self.env.spawn(async move {
                    service.ended().await;
                    host.seat.lock().current = None;
                });
            }
            Err(End::Unsupported(reason)) => return Err(Unsupported(reason)),
            Err(end) => tracing::info!(?end, "did not become controller"),
        }
        Ok(())
    }

    /// Gives the seat up; another node takes it.
    pub async fn stop(&self) {
        if let Some(service) = self.current() {
            service.stop().await;
        }
    }
}

/// Calls a shard's leader at the address that the controller has chosen.
struct DirectRpc {
    env: Env,
    pool: Pool,
}

impl DirectRpc {
    async fn call(&self, leader: &Shard, api_key: i16, request: &impl Encode) -> Result<(), RpcError> {
        if leader.address.is_empty() {
            return Err(RpcError(format!("shard {} has no leader", leader.id)));
        }
        let deadline = self.env.instant() + ANSWER;
        let answer: ErrorResponse = self
            .pool
            .call(&leader.address, api_key, request, deadline)
            .await
            .map_err(|error| RpcError(error.to_string()))?;
        match answer.error_code {
            0 => Ok(()),
            code => Err(RpcError(format!(
                "shard {} answered with error {code}",
                leader.id
            ))),
        }
    }
}

#[async_trait]
impl ShardRpc for DirectRpc {
    async fn create_partitions(
        &self,
        leader: &Shard,
        request: CreatePartitionsRequest,
    ) -> Result<(), RpcError> {
        self.call(leader, api_key::CREATE_PARTITIONS, &request).await
    }

    async fn delete_topics(&self, leader: &Shard, request: DeleteTopicsRequest) -> Result<(), RpcError> {
        self.call(leader, api_key::DELETE_TOPICS, &request).await
    }
}
