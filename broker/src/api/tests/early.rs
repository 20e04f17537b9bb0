//! A broker that has just started knows nothing of the cluster. Clients that know its address from before come at once.

use std::sync::atomic::{AtomicBool, Ordering};

use blob::faults::{Decision, Faulty};

use super::*;

/// A node over what another one has left, as soon as it listens.
async fn start(store: SharedStore) -> (Cluster, Client) {
    let env = Env::simulated(19);
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::dev(dir.path(), 9092, Some("memory://"));
    config.internal.advertised_host = Some("test".to_owned());
    let node = Node::start(env.clone(), config, store.clone()).await.unwrap();
    let cluster = Cluster {
        env,
        store,
        _node: node,
        _dir: dir,
    };
    let client = cluster.client().await;
    assert!(!cluster._node.is_ready(), "it is not early any more");
    (cluster, client)
}

#[tokio::test(start_paused = true)]
async fn no_topic_is_denied_by_a_broker_that_has_not_heard_of_any() {
    let cluster = cluster().await;
    let (mut client, id) = cluster.with_topic("t").await;
    let three = plain(3, cluster.now(), |_| {});
    assert_eq!(client.produce("t", 0, three, -1).await, (0, 0));
    cluster.env.kill();

    let (cluster, mut client) = start(cluster.store).await;
    assert_eq!(client.offset("t", -1).await.0, 0);
    cluster.env.kill();

    let (cluster, mut client) = start(cluster.store).await;
    let one = plain(1, cluster.now(), |_| {});
    assert_eq!(client.produce("t", 0, one, -1).await, (0, 3));
    cluster.env.kill();

    let (_cluster, mut client) = start(cluster.store).await;
    let wanted = MetadataRequestTopic::default().with_name(Some(topic_name("t")));
    let request = MetadataRequest::default().with_topics(Some(vec![wanted]));
    let answer = client.call(&request, 12).await;
    assert_eq!(answer.topics.first().map(|topic| topic.topic_id), Some(id));
}

#[tokio::test(start_paused = true)]
async fn who_has_waited_for_long_is_sent_away_and_what_it_wanted_is_not_done() {
    let cluster = cluster().await;
    let (_, _) = cluster.with_topic("t").await;
    cluster.env.kill();

    let silent = Arc::new(AtomicBool::new(true));
    let is_silent = silent.clone();
    let plan = move |_: blob::Operation, _: &str| {
        let mut decision = Decision::FINE;
        if is_silent.load(Ordering::Relaxed) {
            decision.delay = 40 * SECOND;
        }
        decision
    };
    let store = Arc::new(Faulty::new(cluster.store, Env::simulated(19), Arc::new(plan)));
    let (cluster, mut client) = start(store).await;
    let one = plain(1, cluster.now(), |_| {});
    client.send(&produce("t", 0, one, -1), 9).await;
    let begun = cluster.env.instant();
    assert!(client.stream.read_i32().await.is_err(), "no answer");
    let waited = cluster.env.instant().saturating_duration_since(begun);
    assert_eq!(waited.as_secs(), 30);
    silent.store(false, Ordering::Relaxed);
    cluster
        .env
        .timeout(300 * SECOND, cluster._node.ready())
        .await
        .unwrap();
    cluster.env.sleep(10 * SECOND).await;
    let mut client = cluster.client().await;
    assert_eq!(client.offset("t", -1).await.1, 0);
}
