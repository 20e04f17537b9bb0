use std::path::{Path, PathBuf};

use blob::MemoryStore;
use coordinator::protocol::{BatchRequest, CommitFileRequest, CreatePartitionsRequest};
use metalog::Options;
use types::NodeId;
use uuid::Uuid;

use super::*;
use crate::auth::ClusterSecret;
use crate::metadata::metadata;
use crate::metrics::Metrics;
use crate::rpc::Pool;

const ZERO: ShardId = ShardId(0);
const ONE: ShardId = ShardId(1);

fn host(env: &Env, data_dir: &Path, limits: Limits) -> Arc<CoordinatorHost> {
    let store: SharedStore = Arc::new(MemoryStore::new(env.clone()));
    let (_, metadata) = metadata();
    let pool = Pool::new(env.clone(), Arc::new(ClusterSecret::random(env)));
    let parts = Parts {
        env: env.clone(),
        logs: Logs::new(env.clone(), store.clone(), Options::default(), None),
        store,
        data_dir: data_dir.to_owned(),
        owner: Owner {
            node_id: 1,
            incarnation: env.uuid(),
            address: "test:9190".to_owned(),
        },
        coordinators: Coordinators::new(env.clone(), metadata.clone(), pool),
        metadata,
        groups: GroupSettings::default(),
        tuning: Tuning::default(),
    };
    CoordinatorHost::with_limits(parts, limits)
}

async fn until(env: &Env, done: impl Fn() -> bool) {
    for _ in 0..1_000 {
        if done() {
            return;
        }
        env.sleep(Duration::from_millis(10)).await;
    }
    panic!("it does not come true");
}

fn views_of(data_dir: &Path, shard: ShardId) -> Vec<PathBuf> {
    let mut views = coordinator::shard::views(data_dir);
    views.retain(|view| view.starts_with(data_dir.join("shards").join(shard.to_string())));
    views
}

#[tokio::test(start_paused = true)]
async fn the_view_of_a_shard_goes_with_it() {
    let env = Env::simulated(1);
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path();
    // An earlier process led two shards, of which one will not come back.
    for shard in [ZERO, ShardId(7)] {
        let view = data.join(format!("shards/{shard}/0123456789abcdef"));
        std::fs::create_dir_all(&view).unwrap();
        std::fs::write(view.join("view.db"), "old").unwrap();
    }
    let host = host(&env, data, Limits::MEASURED);
    host.assign(&[ZERO], &[ONE]);
    until(&env, || host.leading() == [ZERO] && host.following() == [ONE]).await;
    assert_eq!(views_of(data, ShardId(7)), [] as [PathBuf; 0]);
    let [first] = &views_of(data, ZERO)[..] else {
        panic!("one view for each shard: {:?}", views_of(data, ZERO))
    };
    assert_eq!(views_of(data, ONE).len(), 1);

    // A leader that is to follow gives up first, and begins anew in another place.
    host.assign(&[], &[ZERO]);
    until(&env, || host.leading().is_empty() && host.replica(ZERO).is_err()).await;
    host.assign(&[], &[ZERO]);
    until(&env, || host.following() == [ZERO]).await;
    assert_eq!(views_of(data, ONE), [] as [PathBuf; 0]);
    let now = views_of(data, ZERO);
    assert!(now.len() == 1 && now[0] != *first, "{now:?}");
    host.assign(&[], &[]);
    until(&env, || coordinator::shard::views(data).is_empty()).await;
}

/// Collects what is logged.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, some: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(some);
        Ok(some.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_nears_its_limit_is_told_of() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone());
    let _logging = tracing::subscriber::set_default(subscriber.finish());
    let env = Env::simulated(1);
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits {
        rate: 10.0,
        ..Limits::MEASURED
    };
    let host = host(&env, dir.path(), limits);
    let metrics = Metrics::default();
    metrics.add(LoadCollector(host.clone()));
    host.assign(&[ZERO], &[]);
    until(&env, || host.leading() == [ZERO]).await;
    let shard = host.led(ZERO).unwrap().shard;
    let topic = TopicId(Uuid::from_u128(1));
    let created = shard.create_partitions(CreatePartitionsRequest {
        shard: ZERO,
        topic,
        name: "t".to_owned(),
        partitions: vec![0],
    });
    assert_eq!(created.await.error_code, 0);
    let warned = || {
        let lines = String::from_utf8(lines.0.lock().clone()).unwrap();
        lines.matches("shard nears its limit").count()
    };
    let gauge = || {
        let text = metrics.text();
        let line = text
            .lines()
            .find(|line| line.contains("shard_load_ratio{shard=\"0\"}"));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
    };
    // Half of what it can do for a while, then nine tenths of it.
    for (round, (batches, expected)) in [(50, 0), (50, 0), (90, 1), (90, 1)].into_iter().enumerate() {
        let commit = CommitFileRequest {
            shard: ZERO,
            object: Uuid::from_u128(round as u128),
            uploader: NodeId(1),
            size: batches + 1,
            owners: vec![ZERO],
            batches: (0..batches)
                .map(|position| BatchRequest {
                    must_follow: false,
                    topic,
                    partition: 0,
                    position: position as u32,
                    size: 1,
                    last_offset_delta: 0,
                    max_timestamp: Timestamp(1),
                    log_append_time: false,
                    producer_id: -1,
                    producer_epoch: -1,
                    base_sequence: -1,
                })
                .collect(),
        };
        assert_eq!(shard.commit_file(commit).await.error_code, 0);
        env.sleep(Duration::from_secs(10)).await;
        assert_eq!(warned(), expected, "round {round}");
        if round > 0 {
            assert_eq!(gauge(), Some(batches as f64 / 100.0), "round {round}");
        }
    }
}
