//! The scan in a simulated node, and what it must leave alone.

use blob::MemoryStore;
use bytes::Bytes;

use super::*;
use crate::config::Config;
use crate::server::Node;

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn orphans_are_deleted_by_the_shards_and_nothing_else_is_touched() {
    let env = Env::simulated(5);
    let store: SharedStore = Arc::new(MemoryStore::new(env.clone()));
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::dev(dir.path(), 9092, Some("memory://"));
    config.internal.advertised_host = Some("test".to_owned());
    config.orphan_scan = OrphanScan {
        interval_ms: 60_000,
        min_age_ms: 120_000,
    };
    config.tuning.jobs.file_grace = MINUTE;
    let node = Node::start(env.clone(), config, store.clone()).await.unwrap();
    env.timeout(MINUTE, node.ready()).await.unwrap();

    let orphan = wal::object_key(env.uuid());
    let foreign = "wal/notes/readme.txt".to_owned();
    let elsewhere = "backup/1".to_owned();
    for key in [&orphan, &foreign, &elsewhere] {
        store.put(key, vec![Bytes::from_static(b"12345")]).await.unwrap();
    }
    // The first look comes after a minute, the next ones find it old enough; then comes the grace.
    env.sleep(MINUTE + MINUTE / 2).await;
    assert!(store.head(&orphan).await.unwrap().is_some(), "it is too young");
    let metric = |name: &str| {
        let text = node.metrics().text();
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse::<f64>().ok());
        value.unwrap_or_else(|| panic!("{name} is not in {text}"))
    };
    let found = || {
        [
            "diskless_orphan_objects",
            "diskless_orphan_size_bytes",
            "diskless_foreign_objects",
        ]
        .map(metric)
    };
    assert_eq!(found(), [0.0, 0.0, 1.0]);
    while found()[0] == 0.0 {
        env.sleep(MINUTE / 6).await;
    }
    assert_eq!(found(), [1.0, 5.0, 1.0], "what the scan has found");
    let age = metric("diskless_orphan_scan_age_seconds");
    assert!((0.0..=10.0).contains(&age), "{age}");
    env.sleep(MINUTE / 3).await;
    assert!(metric("diskless_orphan_scan_age_seconds") > age);
    env.sleep(6 * MINUTE).await;
    assert_eq!(found(), [0.0, 0.0, 1.0], "it has been handed over");
    assert!(store.head(&orphan).await.unwrap().is_none());
    for key in [&foreign, &elsewhere] {
        assert!(store.head(key).await.unwrap().is_some(), "{key}");
    }
    node.stop().await;
}

#[test]
fn every_scan_gives_an_object_the_same_chain_and_every_shard_is_the_last_of_some() {
    let env = Env::simulated(7);
    let shards: Vec<ShardId> = (0..4).map(ShardId).collect();
    let mut last = BTreeSet::new();
    for _ in 0..200 {
        let object = wal::name_object(env.uuid(), types::NodeId(1001));
        let owners = chain(object, &shards);
        assert_eq!(owners, chain(object, &shards));
        assert_eq!(
            owners.iter().copied().collect::<BTreeSet<_>>().len(),
            shards.len()
        );
        last.extend(owners.last().copied());
    }
    assert_eq!(last.len(), shards.len());
    assert!(chain(env.uuid(), &[]).is_empty());
}
