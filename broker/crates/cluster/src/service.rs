//! The controller as it runs: the leader of the log `cluster`, heartbeats, and waiting for what was asked.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use coordinator::replica::{self, End, Options, ReplicaError, ReplicaHandle, Status};
use env::{Env, Instant};
use kafka_wire::ResponseError;
use metalog::{MetadataLog, Owner};
use parking_lot::Mutex;
use tokio::sync::watch;
use types::{FeatureLevel, FeatureLevels, NodeId, ShardId};
use uuid::Uuid;

use crate::controller::{Controller, Grace};
use crate::image::{DEFAULT_PARTITIONS, ImageRecord, Shard};
use crate::protocol::{
    AllocateProducerIdsRequest, AllocateProducerIdsResponse, HeartbeatRequest, HeartbeatResponse,
};
use crate::sagas::{self, ShardRpc};
use crate::state::{ClusterState, Command, Metadata, Output};

/// Producer ids given out at a time (Kafka's block size).
const PRODUCER_IDS: i32 = 1000;
/// How long an admin request waits for the brokers to learn its result, after it is done.
const SPREAD: Duration = Duration::from_secs(1);

/// Settings of a controller.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Number of shards the cluster is formed with; a larger number than it has adds shards, a smaller one does
    /// nothing.
    pub metadata_partitions: u32,
    /// Partitions of a topic whose creator leaves it open.
    pub default_partitions: u32,
    /// A node is dead after this long without a heartbeat.
    pub session_timeout: Duration,
    /// How long a new controller of an existing cluster listens before it places shards and publishes.
    pub grace: Duration,
    /// Levels of `diskless.version` that this node supports; a new cluster has the highest.
    pub supported: FeatureLevels,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            metadata_partitions: 3,
            default_partitions: DEFAULT_PARTITIONS,
            session_timeout: Duration::from_secs(2),
            grace: Duration::from_secs(2),
            supported: FeatureLevels::SUPPORTED,
        }
    }
}

/// The controller of the cluster, on the node that leads the log `cluster`.
///
/// Requests of clients are answered in Kafka's own types. [`ReplicaError`] means that this node cannot answer: it is
/// (or may be) no longer the controller, and the request should go to who is.
pub struct ControllerService {
    env: Env,
    settings: Settings,
    replica: ReplicaHandle<ClusterState>,
    metadata: watch::Receiver<Arc<Metadata>>,
    controller: Mutex<Controller>,
    /// Grows when there may be news for somebody who waits.
    changes: watch::Sender<u64>,
    rpc: Arc<dyn ShardRpc>,
}

impl ControllerService {
    /// Takes the log `cluster` over, forms the cluster if there is none, and starts to serve. Errors: another node was
    /// quicker ([`End::Fenced`]), the log is broken ([`End::Failed`]), or of a later release ([`End::Unsupported`]).
    ///
    /// `before`: the picture of the controller before, if this node has one. It tells whom to wait for.
    pub async fn open(
        env: &Env,
        log: Arc<dyn MetadataLog>,
        owner: Owner,
        rpc: Arc<dyn ShardRpc>,
        settings: Settings,
        before: Option<&ImageRecord>,
    ) -> Result<Arc<ControllerService>, End> {
        let grace = Grace {
            longest: settings.grace,
            awaited: before.map(awaited).unwrap_or_default(),
        };
        let (state, metadata) = ClusterState::new(settings.supported);
        let options = Options {
            queue: 256,
            check_interval: Duration::from_secs(2),
            ..Options::default()
        };
        let replica = replica::start(env, "cluster", log, state, owner.clone(), options)
            .map_err(|error| End::Failed(format!("cannot start a thread for the cluster log: {error}")))?;
        let Ok(epoch) = replica.leading().await else {
            return Err(replica.ended().await);
        };
        let formed = !metadata.borrow().cluster_id.is_empty();
        let shards = settings.metadata_partitions.max(1);
        let before_format = if formed { metadata.borrow().shards } else { shards };
        let format = Command::Format {
            cluster_id: cluster_id(env),
            shards,
            feature_level: settings.supported.max,
        };
        if replica.submit(format).await.is_err() {
            return Err(replica.ended().await);
        }
        let known = metadata.borrow().clone();
        if shards < known.shards {
            tracing::warn!(
                has = known.shards,
                asked = shards,
                "metadata partitions cannot be taken away"
            );
        }
        if known.shards > before_format {
            tracing::warn!(
                had = before_format,
                has = known.shards,
                groups = known.group_shards,
                "metadata partitions were added: they take new partitions of topics only, nothing that exists moves, and \
                 groups stay on the first ones"
            );
        }
        tracing::info!(cluster = known.cluster_id, %epoch, formed = !formed, "controller");
        // Nobody can lead the shards of a cluster that did not exist.
        let grace = if formed { grace } else { Grace::default() };
        let now = env.instant();
        let mut controller = Controller::new(
            &owner,
            epoch,
            settings.session_timeout,
            grace,
            settings.default_partitions,
            now,
        );
        controller.set_metadata(known, now);
        let service = Arc::new(ControllerService {
            env: env.clone(),
            settings,
            replica,
            metadata,
            controller: Mutex::new(controller),
            changes: watch::channel(0).0,
            rpc,
        });
        env.spawn(run(service.clone()));
        Ok(service)
    }

    /// Waits until this node is no longer the controller, and says why.
    pub async fn ended(&self) -> End {
        self.replica.ended().await
    }

    /// Finishes what was accepted and gives the log up.
    pub async fn stop(&self) {
        self.replica.stop().await;
    }

    /// The picture that is published; `None` in the first moments of a controller.
    pub fn image(&self) -> Option<Arc<ImageRecord>> {
        self.controller.lock().image()
    }

    /// Answers a heartbeat: at once when there is news for the node, otherwise after `max_wait_ms`, but always well
    /// within the session timeout. `gone` resolves when the connection ends that it came on.
    pub async fn heartbeat(
        &self,
        request: &HeartbeatRequest,
        gone: impl Future<Output = ()>,
    ) -> HeartbeatResponse {
        if self.replica.check_leading().is_err() {
            return refused(ResponseError::NotController);
        }
        let wait =
            Duration::from_millis(u64::from(request.max_wait_ms)).min(self.settings.session_timeout / 4);
        let deadline = self.env.instant() + wait;
        let mut changes = self.changes.subscribe();
        if let Err(error) = self.update(|controller, now| controller.heartbeat(request, now)) {
            let level = self.controller.lock().feature_level();
            return HeartbeatResponse {
                feature_level: (error == ResponseError::UnsupportedVersion).then_some(level),
                ..refused(error)
            };
        }
        if request.leaving {
            return HeartbeatResponse {
                error_code: 0,
                ..refused(ResponseError::UnknownServerError)
            };
        }
        let mut status = self.replica.status();
        let mut gone = std::pin::pin!(gone);
        loop {
            if let Some(response) = self.controller.lock().answer(request, false) {
                return response;
            }
            tokio::select! {
                biased;
                () = &mut gone => {
                    self.update(|controller, now| controller.lost_connection(request, now));
                    // Nobody takes the answer.
                    return refused(ResponseError::NetworkException);
                }
                _ = changes.changed() => {}
                _ = status.wait_for(|status| matches!(status, Status::Ended(_))) => {
                    return refused(ResponseError::NotController);
                }
                () = self.env.sleep_until(deadline) => break,
            }
        }
        let answer = self.controller.lock().answer(request, true);
        // Silent for so long that another process has the id now.
        answer.unwrap_or_else(|| refused(ResponseError::DuplicateBrokerRegistration))
    }

    /// Gives a block of producer ids to a broker, for good.
    pub async fn allocate_producer_ids(
        &self,
        request: &AllocateProducerIdsRequest,
    ) -> AllocateProducerIdsResponse {
        let none = |error: ResponseError| AllocateProducerIdsResponse {
            error_code: error.code(),
            first: -1,
            count: 0,
        };
        match self
            .submit(Command::AllocateProducerIds { count: PRODUCER_IDS })
            .await
        {
            Ok(Output::ProducerIds(first)) => {
                tracing::debug!(node = %request.node, first, "producer ids given out");
                AllocateProducerIdsResponse {
                    error_code: 0,
                    first,
                    count: PRODUCER_IDS,
                }
            }
            Ok(_) => none(ResponseError::UnknownServerError),
            Err(_) => none(ResponseError::NotController),
        }
    }

    pub(crate) fn env(&self) -> &Env {
        &self.env
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn rpc(&self) -> &dyn ShardRpc {
        self.rpc.as_ref()
    }

    pub(crate) fn shard(&self, shard: ShardId) -> Shard {
        self.controller.lock().shard(shard)
    }

    pub(crate) fn metadata(&self) -> Arc<Metadata> {
        self.metadata.borrow().clone()
    }

    pub(crate) fn metadata_changes(&self) -> watch::Receiver<Arc<Metadata>> {
        self.metadata.clone()
    }

    /// Has a command logged and takes its result into the picture.
    pub(crate) async fn submit(&self, command: Command) -> Result<Output, ReplicaError> {
        let output = self.replica.submit(command).await?;
        self.take_metadata();
        Ok(output)
    }

    /// Waits until `done` holds of what is committed. False: `deadline` has come.
    pub(crate) async fn wait_for(
        &self,
        deadline: Instant,
        mut done: impl FnMut(&Metadata) -> bool,
    ) -> Result<bool, ReplicaError> {
        let mut metadata = self.metadata.clone();
        let mut status = self.replica.status();
        let waited = tokio::select! {
            biased;
            waited = self.env.timeout_at(deadline, metadata.wait_for(|metadata| done(metadata))) => waited.is_ok(),
            _ = status.wait_for(|status| matches!(status, Status::Ended(_))) => false,
        };
        self.replica.check_leading()?;
        self.take_metadata();
        Ok(waited)
    }

    /// Waits (not for long) until every live broker knows what is published, so that a client finds what it has just
    /// changed wherever it asks.
    pub(crate) async fn spread(&self, deadline: Instant) {
        let mut changes = self.changes.subscribe();
        let everybody = async {
            while !self.controller.lock().everybody_knows() {
                let _ = changes.changed().await;
            }
        };
        let deadline = deadline.min(self.env.instant() + SPREAD);
        let _ = self.env.timeout_at(deadline, everybody).await;
    }

    /// Waits until the controller has heard who lives. False: `deadline` has come.
    pub(crate) async fn wait_for_nodes(&self, deadline: Instant) -> bool {
        let mut changes = self.changes.subscribe();
        let heard = async {
            while self.image().is_none() {
                let _ = changes.changed().await;
            }
        };
        self.env.timeout_at(deadline, heard).await.is_ok()
    }

    /// Has only nodes that support `level` in the cluster from now on, unless one that does not is (or `dry`): that one and
    /// what it supports.
    pub(crate) fn require(&self, level: FeatureLevel, dry: bool) -> Option<(NodeId, FeatureLevels)> {
        self.update(|controller, _| {
            let lacking = controller.lacks(level);
            if lacking.is_none() && !dry {
                controller.require(level);
            }
            lacking
        })
    }

    fn take_metadata(&self) {
        let metadata = self.metadata();
        self.update(|controller, now| controller.set_metadata(metadata, now));
    }

    fn update<T>(&self, change: impl FnOnce(&mut Controller, Instant) -> T) -> T {
        let now = self.env.instant();
        let mut controller = self.controller.lock();
        let result = change(&mut controller, now);
        let present = controller.changes();
        self.changes
            .send_if_modified(|changes| std::mem::replace(changes, present) != present);
        result
    }

    /// Lets the controller's time pass.
    async fn tick(&self) {
        let mut changes = self.changes.subscribe();
        let mut metadata = self.metadata.clone();
        loop {
            let deadline = self.controller.lock().next_deadline();
            let wait = async {
                match deadline {
                    Some(deadline) => self.env.sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = wait => self.update(Controller::tick),
                _ = changes.changed() => {}
                changed = metadata.changed() => match changed {
                    Ok(()) => self.take_metadata(),
                    Err(_) => return,
                },
            }
        }
    }
}

/// Runs until the controller is deposed.
async fn run(service: Arc<ControllerService>) {
    tokio::select! {
        biased;
        () = service.tick() => {}
        () = sagas::run(service.clone()) => {}
        end = service.replica.ended() => tracing::info!(?end, "no longer controller"),
    }
}

/// Internal addresses of everybody who lived, but for the controller itself: its silence is why there is a new one. Those
/// who follow shards are among them: without them, what the controller led would be opened cold elsewhere.
pub(crate) fn awaited(before: &ImageRecord) -> BTreeSet<String> {
    let brokers = before.brokers.iter().map(|broker| &broker.internal);
    let shards = before
        .shards
        .iter()
        .flat_map(|shard| [&shard.address, &shard.follower]);
    brokers
        .chain(shards)
        .filter(|address| !address.is_empty() && **address != before.controller_address)
        .cloned()
        .collect()
}

fn refused(error: ResponseError) -> HeartbeatResponse {
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

/// A random UUID that does not begin with a dash in Kafka's notation, because tools take that for an option.
pub(crate) fn uuid(env: &Env) -> Uuid {
    loop {
        let uuid = env.uuid();
        if uuid.as_bytes().first().is_some_and(|byte| byte >> 2 != 62) {
            return uuid;
        }
    }
}

/// As Kafka writes it: 22 characters of URL-safe base64.
fn cluster_id(env: &Env) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let bits = uuid(env).as_u128();
    // 128 bits are 21 digits of six and one of two.
    let digits = (0..21).map(|digit| bits >> (122 - 6 * digit)).chain([bits << 4]);
    digits
        .filter_map(|digit| ALPHABET.get(digit as usize & 63))
        .map(|byte| char::from(*byte))
        .collect()
}
