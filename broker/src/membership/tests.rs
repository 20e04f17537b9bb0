use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use blob::faults::{Decision, Fault, Faulty};
use blob::{BlobError, MemoryStore, Operation, SharedStore};
use bytes::Bytes;
use cluster::image::{ImageChanges, ImageRecord};
use env::Simulation;
use kafka_wire::flex::Encode;
use kafka_wire::rope::Rope;
use metalog::{ObjectLog, Owner};
use parking_lot::Mutex;
use types::NodeId;
use uuid::Uuid;

use super::*;
use crate::auth::ClusterSecret;
use crate::config::{Config, Role};
use crate::metadata::metadata;
use crate::metrics::Metrics;
use crate::rpc::{Caller, Handler, read_request, serve};
use crate::server::Node;

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn a_bucket_that_cannot_be_read_costs_no_controller_its_seat() {
    let simulation = Simulation::new(1);
    let env = simulation.node("test");
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("secret");
    std::fs::write(&secret, "the secret of the cluster").unwrap();
    let whole: SharedStore = Arc::new(MemoryStore::new(env.clone()));
    let down = Arc::new(AtomicBool::new(false));
    let mut nodes = Vec::new();
    for (id, host) in [(0, "c0"), (1, "c1")] {
        let config = Config::coordinator(&dir.path().join(host), host, id, &secret);
        let down = down.clone();
        let plan = move |_: Operation, _: &str| Decision {
            delay: Duration::ZERO,
            fault: match down.load(Ordering::Relaxed) {
                true => Fault::Fail(BlobError::Unavailable("test".to_owned())),
                false => Fault::None,
            },
        };
        let node_env = simulation.node(host);
        let store: SharedStore = Arc::new(Faulty::new(whole.clone(), node_env.clone(), Arc::new(plan)));
        let node = Node::start(node_env, config, store).await.unwrap();
        env.timeout(MINUTE, node.ready()).await.unwrap();
        nodes.push(node);
    }
    let log = ObjectLog::new(whole, "cluster", metalog::Options::default(), env.clone());
    let before = log.owner().await.unwrap();
    assert!(before.is_some());

    // Some heartbeats get lost while nobody can read who leads.
    down.store(true, Ordering::Relaxed);
    for (from, to) in [("c0", "c1"), ("c1", "c0")] {
        simulation.net().cut(from, to);
    }
    env.sleep(Duration::from_secs(2)).await;
    simulation.net().heal();
    env.sleep(MINUTE / 2).await;
    down.store(false, Ordering::Relaxed);
    env.sleep(MINUTE / 2).await;
    assert_eq!(log.owner().await.unwrap(), before);
}

/// The name service of this node fails, or the pod of the controller has lost its name for a moment.
#[tokio::test(start_paused = true)]
async fn a_controller_that_cannot_be_found_may_live() {
    let simulation = Simulation::new(1);
    let env = simulation.node("test");
    let dir = tempfile::tempdir().unwrap();
    let store: SharedStore = Arc::new(MemoryStore::new(env.clone()));
    let log = ObjectLog::new(store.clone(), "cluster", metalog::Options::default(), env.clone());
    let owner = Owner {
        node_id: 7,
        incarnation: Uuid::from_u128(1),
        address: "nowhere:9190".to_owned(),
    };
    log.open(owner).await.unwrap();
    let before = log.owner().await.unwrap();
    let mut config = Config::dev(dir.path(), 9092, Some("memory://"));
    config.alone = false;
    config.node.roles = vec![Role::Coordinator];
    config.listeners = None;
    (config.internal.host, config.admin.host) = ("c0".to_owned(), "c0".to_owned());
    config.internal.advertised_host = Some("c0".to_owned());
    let node = Node::start(simulation.node("c0"), config, store).await.unwrap();
    env.sleep(SILENCE - PAUSE).await;
    assert_eq!(log.owner().await.unwrap(), before, "deposed at once");
    // Nobody hears anything of it for as long as of one that is silent.
    env.timeout(MINUTE, node.ready()).await.unwrap();
    assert_ne!(log.owner().await.unwrap(), before);
}

#[test]
fn a_seat_that_changes_hands_often_is_left_longer_to_who_has_it() {
    let begin = Env::production().instant();
    let after = |seconds: u64| begin + Duration::from_secs(seconds);
    let mut patience = Patience::new(begin);
    assert!(patience.is_over(&Absent::Gone, after(0)), "nobody is there");
    assert!(!patience.is_over(&Absent::Silent, after(1)));
    assert!(patience.is_over(&Absent::Silent, after(2)));
    assert!(!patience.is_over(&Absent::Opening, after(2)), "it is on its way");
    assert!(patience.is_over(&Absent::Opening, after(8)));
    patience.named("0", after(9));
    // The first change tells nothing; those after it do.
    for (changed, silence) in [(10, 4), (20, 8), (30, 16), (50, 16)] {
        patience.named(&changed.to_string(), after(changed));
        patience.named(&changed.to_string(), after(changed + 1));
        assert!(!patience.is_over(&Absent::Silent, after(changed + silence - 1)));
        assert!(patience.is_over(&Absent::Silent, after(changed + silence)));
    }
    patience.heard(after(109));
    assert!(!patience.is_over(&Absent::Silent, after(112)));
    patience.heard(after(110));
    assert!(patience.is_over(&Absent::Silent, after(112)), "it has rested");
}

/// A controller that answers as it is told, and remembers what it was asked.
#[derive(Default)]
struct Told {
    answers: Mutex<VecDeque<HeartbeatResponse>>,
    asked: Mutex<Vec<HeartbeatRequest>>,
}

#[async_trait]
impl Handler for Told {
    async fn handle(&self, _: i16, body: Bytes, caller: &Caller) -> Result<Rope, ResponseError> {
        self.asked.lock().push(read_request(body)?);
        let answer = self.answers.lock().pop_front();
        if answer.is_none() {
            caller.gone.cancelled().await;
        }
        let answer = answer.ok_or(ResponseError::RequestTimedOut)?;
        Ok(answer.to_bytes().into())
    }
}

fn answer(image: Option<ImageRecord>, changes: Option<ImageChanges>) -> HeartbeatResponse {
    HeartbeatResponse {
        error_code: 0,
        controller_epoch: 1,
        image,
        lead: Vec::new(),
        follow: Vec::new(),
        feature_level: None,
        changes,
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_cannot_follow_the_changes_asks_for_all_of_the_picture() {
    let env = Env::simulated(1);
    let store: SharedStore = Arc::new(MemoryStore::new(env.clone()));
    let log = ObjectLog::new(store, "cluster", metalog::Options::default(), env.clone());
    let owner = Owner {
        node_id: 0,
        incarnation: Uuid::from_u128(1),
        address: "test:9190".to_owned(),
    };
    log.open(owner).await.unwrap();
    let (writer, reader) = metadata();
    let image = |version| ImageRecord {
        version,
        controller_epoch: 1,
        ..reader.image().record().clone()
    };
    let changes = |base, version| ImageChanges {
        base,
        picture: image(version),
        removed: Vec::new(),
        topics: 0,
    };
    let controller = Arc::new(Told::default());
    controller.answers.lock().extend([
        answer(Some(image(5)), None),
        answer(None, Some(changes(4, 6))),
        answer(Some(image(6)), None),
        answer(None, Some(changes(6, 9))),
    ]);
    let secret = Arc::new(ClusterSecret::random(&env));
    let listener = env.listen("test:9190").await.unwrap();
    let metrics = Arc::new(Metrics::default());
    env.spawn(serve(
        env.clone(),
        listener,
        controller.clone(),
        secret.clone(),
        metrics,
    ));
    let node = HeartbeatRequest {
        node: NodeId(7),
        incarnation: Uuid::from_u128(7),
        zone: String::new(),
        broker: true,
        coordinator: false,
        internal: String::new(),
        host: String::new(),
        port: 0,
        zone_ports: Vec::new(),
        draining: false,
        leaving: false,
        leading: Vec::new(),
        following: Vec::new(),
        failing: Vec::new(),
        sequence: 0,
        controller_epoch: 0,
        version: 0,
        max_wait_ms: 0,
        supported: None,
        serves_objects: None,
        reads_changes: None,
    };
    let pool = Pool::new(env.clone(), secret);
    let (_stage, stages) = watch::channel(Stage::Active);
    let membership = Membership::new(env.clone(), pool, Arc::new(log), node, writer, None, stages);
    env.spawn(membership.run());
    env.sleep(Duration::from_secs(1)).await;
    let asked: Vec<_> = controller
        .asked
        .lock()
        .iter()
        .map(|request| (request.version, request.reads_changes))
        .collect();
    let expected = [
        (0, Some(true)),
        (5, Some(true)),
        (5, Some(false)),
        (6, Some(true)),
        (9, Some(true)),
    ];
    assert_eq!(asked, expected);
    assert_eq!(reader.image().record().version, 9);
}
