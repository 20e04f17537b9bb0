//! One node: builds the services of its roles, hands each what it needs, and takes them down in order.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use blob::SharedStore;
use cache::ObjectCache;
use cluster::Settings;
use cluster::image::ZonePort;
use cluster::protocol::HeartbeatRequest;
use env::{Env, JoinHandle};
use groups::GroupSettings;
use metalog::{Database, LogError, Logs, Owner};
use prometheus_client::registry::Unit;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use types::FeatureLevel;

use crate::admin::{self, Health};
use crate::api::{Api, Services};
use crate::auth::ClusterSecret;
use crate::config::{Config, Role};
use crate::controller_host::{ControllerHost, Unsupported};
use crate::coordinator_host::{CoordinatorHost, LoadCollector, Parts};
use crate::fetch::{AnswerMemory, Fetcher, Neighbours, ObjectServer, Objects, Windows, follow};
use crate::internal::Internal;
use crate::membership::{Coordination, Membership, Stage};
use crate::metadata::{Metadata, metadata};
use crate::metrics::{CacheCollector, GaugeCollector, Metrics};
use crate::net::{self, Net, memory::MemoryBudget};
use crate::orphans::{self, Scanner};
use crate::produce::Producer;
use crate::rpc::{self, Coordinators, Handler, Pool};
use crate::stores::Stores;

/// How long a leaving node waits for the others to have noticed.
const NOTICED: Duration = Duration::from_secs(3);
/// A shard that has not moved for so long stays. The controller lets its next leader catch up for five seconds: until then it
/// is served here, afterwards it would be away for as long as that takes.
const MOVING: Duration = Duration::from_secs(6);
/// What is led here ends in good order within this time, or as after a kill: the object store may not answer.
const GOODBYE: Duration = Duration::from_secs(5);
/// How long it waits for what it has taken in.
const FLUSH: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(20);
/// A database that does not answer when the node starts is waited for so long,
const DATABASE: Duration = Duration::from_secs(20);
/// with this pause between two tries.
const DATABASE_PAUSE: Duration = Duration::from_millis(500);

/// A running node.
pub struct Node {
    env: Env,
    metadata: Metadata,
    stage: watch::Sender<Stage>,
    membership: JoinHandle<()>,
    refused: watch::Receiver<Option<Unsupported>>,
    broker: Option<BrokerRole>,
    coordination: Option<Coordination>,
    metrics: Arc<Metrics>,
    admin_port: u16,
    /// There is nobody else to lead shards.
    alone: bool,
}

struct BrokerRole {
    id: types::NodeId,
    net: Net,
    producer: Producer,
    draining: CancellationToken,
}

impl Node {
    /// Starts all services of the node; it is ready when [`Health::ready`] says so. An error names the setting.
    pub async fn start(env: Env, config: Config, stores: impl Into<Stores>) -> anyhow::Result<Node> {
        let stores = stores.into();
        let store = stores.data.clone();
        let id = config.node.node_id();
        let metrics = Arc::new(Metrics::default());
        let secret = Arc::new(match &config.internal.secret_file {
            Some(file) => ClusterSecret::read(file)?,
            None => ClusterSecret::random(&env),
        });
        let pool = Pool::new(env.clone(), secret.clone());
        let (metadata_writer, metadata) = metadata();
        let coordinators = Coordinators::new(env.clone(), metadata.clone(), pool.clone());

        let bind = format!("{}:{}", config.internal.host, config.internal.port);
        let listener = env
            .listen(&bind)
            .await
            .with_context(|| format!("internal.port: cannot listen on {bind}"))?;
        let internal = format!("{}:{}", config.internal_host(), listener.port());
        let owner = Owner {
            node_id: id.0,
            incarnation: env.uuid(),
            address: internal.clone(),
        };
        let logs = open_logs(&env, &config, stores.logs.clone()).await?;
        let cluster_log = logs.log("cluster");

        let coordination = config.has(Role::Coordinator).then(|| {
            let mut groups = GroupSettings::default();
            if config.alone {
                groups.initial_rebalance_delay = Duration::ZERO;
            }
            let parts = Parts {
                env: env.clone(),
                store: store.clone(),
                logs,
                data_dir: config.node.data_dir.clone(),
                owner: owner.clone(),
                metadata: metadata.clone(),
                coordinators: coordinators.clone(),
                groups,
                tuning: config.tuning.clone(),
            };
            let mut settings = Settings {
                metadata_partitions: config.coordinator.metadata_partitions,
                default_partitions: config.coordinator.num_partitions,
                supported: config.tuning.supported,
                ..Settings::default()
            };
            if config.alone {
                settings.grace = Duration::ZERO;
            }
            let controller = ControllerHost::new(
                env.clone(),
                cluster_log.clone(),
                owner.clone(),
                pool.clone(),
                settings,
                metadata.clone(),
            );
            let shards = CoordinatorHost::new(parts);
            metrics.add(LoadCollector(shards.clone()));
            Coordination { shards, controller }
        });
        let objects = broker_objects(&env, &config, &stores, &metadata, secret.clone(), &metrics);
        let served = objects.as_ref().and_then(|objects| objects.1.clone());
        let handler: Option<Arc<dyn Handler>> = match (&coordination, served) {
            (Some(coordination), served) => {
                Some(Internal::new(coordination.clone(), metadata.clone(), served))
            }
            (None, Some(served)) => Some(served),
            (None, None) => None,
        };
        if let Some(handler) = handler {
            env.spawn(rpc::serve(
                env.clone(),
                listener,
                handler,
                secret,
                metrics.clone(),
            ));
        }
        if let Some(coordination) = &coordination {
            let scanner = Scanner {
                env: env.clone(),
                store: store.clone(),
                metadata: metadata.clone(),
                coordinators: coordinators.clone(),
            };
            let settings = config.orphan_scan.clone();
            env.spawn(orphans::run(
                scanner,
                coordination.clone(),
                settings,
                metrics.clone(),
            ));
        }

        let broker = match objects {
            Some((objects, _)) => {
                let role = broker_role(&env, &config, store, objects, &metadata, &coordinators, &metrics);
                role.await?
            }
            None => None,
        };

        let (stage, stages) = watch::channel(Stage::Active);
        let about = introduction(&config, &owner, internal, broker.as_ref());
        let membership = Membership::new(
            env.clone(),
            pool,
            cluster_log,
            about,
            metadata_writer,
            coordination.clone(),
            stages,
        );
        let (refusal, refused) = watch::channel(None);
        let membership = env.spawn(async move {
            if let Err(error) = membership.run().await {
                tracing::error!(%error, "this node cannot be part of the cluster");
                refusal.send_replace(Some(error));
            }
        });

        let bind = format!("{}:{}", config.admin.host, config.admin.port);
        let listener = env
            .listen(&bind)
            .await
            .with_context(|| format!("admin.port: cannot listen on {bind}"))?;
        let admin_port = listener.port();
        let health = Arc::new(Ready {
            metadata: metadata.clone(),
            broker: broker.as_ref().map(|broker| broker.id),
        });
        env.spawn(admin::serve(env.clone(), listener, health, metrics.clone()));

        Ok(Node {
            env,
            metadata,
            stage,
            membership,
            refused,
            broker,
            coordination,
            metrics,
            admin_port,
            alone: config.alone,
        })
    }

    /// The node's metrics, to add what is counted elsewhere.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Port of the admin listener, as bound.
    pub fn admin_port(&self) -> u16 {
        self.admin_port
    }

    /// Port for clients of unknown zone, as bound; `None` without the role `broker`.
    pub fn kafka_port(&self) -> Option<u16> {
        self.broker.as_ref().map(|broker| broker.net.port())
    }

    /// Whether the node takes part in the cluster.
    pub fn is_ready(&self) -> bool {
        let health = Ready {
            metadata: self.metadata.clone(),
            broker: self.broker.as_ref().map(|broker| broker.id),
        };
        health.ready().is_ok()
    }

    /// Waits for that.
    pub async fn ready(&self) {
        while !self.is_ready() {
            self.env.sleep(LOOK).await;
        }
    }

    /// Resolves if the cluster has no place for this node, and says why.
    pub async fn refused(&self) -> Unsupported {
        let mut refused = self.refused.clone();
        let reason = match refused.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone(),
            Err(_) => None,
        };
        match reason {
            Some(reason) => reason,
            None => std::future::pending().await,
        }
    }

    /// Leaves in good order: clients and shards move elsewhere, what was taken in is flushed and answered.
    pub async fn stop(self) {
        let Node {
            env,
            metadata,
            stage,
            membership,
            broker,
            coordination,
            alone,
            ..
        } = self;
        if let Some(broker) = broker {
            broker.draining.cancel();
            if coordination.is_none() {
                stage.send_replace(Stage::Draining);
                let gone = || {
                    metadata
                        .image()
                        .broker(broker.id)
                        .is_none_or(|broker| broker.draining)
                };
                wait_until(&env, NOTICED, gone).await;
            }
            // A node that coordinates, too, keeps its shards until here: perhaps nobody else can take its commits.
            broker.producer.drain();
            let deadline = env.instant() + FLUSH;
            broker.net.stop(deadline).await;
            if !broker.producer.finish(deadline).await {
                tracing::warn!(
                    "leaving with produced data that the object store or the coordinators did not take"
                );
            }
        }
        if let Some(coordination) = &coordination {
            stage.send_replace(Stage::Draining);
            if !alone {
                hand_over(&env, coordination).await;
            }
            let _ = env.timeout(GOODBYE, coordination.shards.stop()).await;
        }
        stage.send_replace(Stage::Leaving);
        let _ = env.timeout(Duration::from_secs(1), membership).await;
        if let Some(coordination) = coordination {
            let _ = env.timeout(GOODBYE, coordination.controller.stop()).await;
        }
        let _ = env.timeout(Duration::from_secs(2), env.shut_down()).await;
    }
}

/// Where the metadata logs are. A database that does not answer is waited for, for a while.
pub(crate) async fn open_logs(env: &Env, config: &Config, store: SharedStore) -> anyhow::Result<Logs> {
    let database = match config.metadata_log.postgres() {
        None => None,
        Some(settings) => {
            let deadline = env.instant() + DATABASE;
            loop {
                match Database::open(settings.clone(), env.clone()).await {
                    Ok(database) => break Some(database),
                    Err(LogError::Unavailable(reason)) if env.instant() < deadline => {
                        tracing::warn!(reason, "the database cannot be reached, trying again");
                        env.sleep(DATABASE_PAUSE).await;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
    };
    Ok(Logs::new(
        env.clone(),
        store,
        config.tuning.metadata_log,
        database,
    ))
}

/// Waits while shards move to other coordinators; when none moves any more, nobody is there to take the rest.
async fn hand_over(env: &Env, coordination: &Coordination) {
    loop {
        let left = coordination.shards.leading().len();
        if left == 0 {
            return;
        }
        wait_until(env, MOVING, || coordination.shards.leading().len() < left).await;
        if coordination.shards.leading().len() == left {
            return;
        }
    }
}

async fn wait_until(env: &Env, limit: Duration, mut done: impl FnMut() -> bool) {
    let deadline = env.instant() + limit;
    while !done() && env.instant() < deadline {
        env.sleep(LOOK).await;
    }
}

/// Whether brokers of a zone read for each other. Those of the first release do not.
fn shares_objects(config: &Config) -> bool {
    config.tuning.supported.max > FeatureLevel::FIRST
}

/// What a broker reads for its consumers and, if it does, for its neighbours. `None` without the role.
fn broker_objects(
    env: &Env,
    config: &Config,
    stores: &Stores,
    metadata: &Metadata,
    secret: Arc<ClusterSecret>,
    metrics: &Arc<Metrics>,
) -> Option<(Objects, Option<Arc<ObjectServer>>)> {
    if !config.has(Role::Broker) {
        return None;
    }
    let cache = ObjectCache::new(stores.data.clone(), config.cache.memory_bytes);
    let cache = Arc::new(cache.with_cold_store(stores.cold.clone()));
    metrics.add(CacheCollector {
        cache: cache.clone(),
        neighbour_reads: metrics.neighbour_reads.clone(),
    });
    let read_timeout = Duration::from_millis(config.fetch.read_timeout_ms);
    let neighbours = shares_objects(config).then(|| {
        let pool = Pool::new(env.clone(), secret);
        let (id, zone) = (config.node.node_id(), config.node.zone.clone());
        Neighbours::new(env.clone(), id, zone, metadata.clone(), pool, metrics.clone())
    });
    let served = neighbours.is_some().then(|| {
        let memory = usize::try_from(config.fetch.memory(&config.cache) / 2).unwrap_or(usize::MAX);
        ObjectServer::new(env.clone(), cache.clone(), read_timeout, memory, metrics.clone())
    });
    Some((Objects::new(env.clone(), cache, read_timeout, neighbours), served))
}

async fn broker_role(
    env: &Env,
    config: &Config,
    store: SharedStore,
    objects: Objects,
    metadata: &Metadata,
    coordinators: &Coordinators,
    metrics: &Arc<Metrics>,
) -> anyhow::Result<Option<BrokerRole>> {
    let Some(listeners) = &config.listeners else {
        return Ok(None);
    };
    let id = config.node.node_id();
    let producer = Producer::start(
        env.clone(),
        id,
        &config.produce,
        store,
        objects.cache().clone(),
        coordinators.clone(),
        metrics.clone(),
    );
    let windows = Windows::default();
    env.spawn(follow(
        env.clone(),
        metadata.clone(),
        coordinators.clone(),
        windows.clone(),
        config.fetch.clone(),
    ));
    let draining = CancellationToken::new();
    let memory = AnswerMemory::new(config.fetch.memory(&config.cache));
    metrics.add(GaugeCollector::new(
        "fetch_memory",
        "Kept by answers to consumers until they are written",
        Some(Unit::Bytes),
        {
            let memory = memory.clone();
            move || memory.used() as f64
        },
    ));
    let fetcher = Fetcher::new(
        env.clone(),
        windows,
        coordinators.clone(),
        objects,
        memory,
        draining.clone(),
    );
    let api = Api::new(Services {
        env: env.clone(),
        node: id,
        zone: config.node.zone.clone(),
        auto_create_topics: config.broker.auto_create_topics,
        supported: config.tuning.supported,
        metadata: metadata.clone(),
        coordinators: coordinators.clone(),
        producer: producer.clone(),
        fetcher,
        metrics: metrics.clone(),
        draining: draining.clone(),
    });
    let budget = MemoryBudget::new(config.produce.memory_bytes);
    let net = net::start(env.clone(), listeners, budget, Arc::new(api), metrics.clone()).await?;
    Ok(Some(BrokerRole {
        id,
        net,
        producer,
        draining,
    }))
}

/// What every heartbeat says of this node.
fn introduction(
    config: &Config,
    owner: &Owner,
    internal: String,
    broker: Option<&BrokerRole>,
) -> HeartbeatRequest {
    let zone_ports = broker.map(|broker| broker.net.zone_ports()).unwrap_or_default();
    let zone_port = |(zone, port): &(String, u16)| ZonePort {
        zone: zone.clone(),
        port: *port,
    };
    HeartbeatRequest {
        node: config.node.node_id(),
        incarnation: owner.incarnation,
        zone: config.node.zone.clone(),
        broker: broker.is_some(),
        coordinator: config.has(Role::Coordinator),
        internal,
        host: config
            .listeners
            .as_ref()
            .map(|listeners| listeners.advertised_host.clone())
            .unwrap_or_default(),
        port: broker.map_or(0, |broker| broker.net.port()),
        zone_ports: zone_ports.iter().map(zone_port).collect(),
        draining: false,
        leaving: false,
        leading: Vec::new(),
        following: Vec::new(),
        failing: Vec::new(),
        sequence: 0,
        controller_epoch: 0,
        version: 0,
        max_wait_ms: 0,
        supported: Some(config.tuning.supported),
        serves_objects: (broker.is_some() && shares_objects(config)).then_some(true),
        // Filled in each time.
        reads_changes: None,
    }
}

struct Ready {
    metadata: Metadata,
    broker: Option<types::NodeId>,
}

impl Health for Ready {
    fn ready(&self) -> Result<(), String> {
        if !self.metadata.is_known() {
            return Err("the controller has not been reached yet".to_owned());
        }
        match self.broker {
            Some(id) if self.metadata.image().broker(id).is_none() => {
                Err("the controller does not list this broker yet".to_owned())
            }
            _ => Ok(()),
        }
    }
}
