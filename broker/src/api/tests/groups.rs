//! Requests of groups that come while the broker has just started.

use blob::Operation;
use blob::faults::{Decision, Fault, Faulty};
use kafka_wire::messages::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use kafka_wire::messages::offset_fetch_request::OffsetFetchRequestTopic;
use kafka_wire::messages::{
    GroupId, ListGroupsRequest, OffsetCommitRequest, OffsetFetchRequest, OffsetFetchResponse,
};

use super::*;

/// So many that every shard keeps some.
const GROUPS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

fn group_id(group: &str) -> GroupId {
    GroupId(StrBytes::from_string(group.to_owned()))
}

async fn commit(client: &mut Client, group: &str) {
    let partition = OffsetCommitRequestPartition::default().with_committed_offset(7);
    let topic = OffsetCommitRequestTopic::default()
        .with_name(topic_name("t"))
        .with_partitions(vec![partition]);
    let request = OffsetCommitRequest::default()
        .with_group_id(group_id(group))
        .with_generation_id_or_member_epoch(-1)
        .with_topics(vec![topic]);
    let response = client.call(&request, 7).await;
    assert_eq!(response.topics[0].partitions[0].error_code, 0);
}

fn wanted(group: &str) -> OffsetFetchRequest {
    let topic = OffsetFetchRequestTopic::default()
        .with_name(topic_name("t"))
        .with_partition_indexes(vec![0]);
    OffsetFetchRequest::default()
        .with_group_id(group_id(group))
        .with_topics(Some(vec![topic]))
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_has_just_started_does_not_take_another_shard_for_that_of_a_group() {
    let shards = |config: &mut Config| config.coordinator.metadata_partitions = 3;
    let first = cluster_with(|store, _| store, shards).await;
    let (mut client, _) = first.with_topic("t").await;
    for group in GROUPS {
        commit(&mut client, group).await;
    }
    first.env.kill();
    // It takes connections long before it has read its log.
    let env = Env::simulated(18);
    let plan = |_: Operation, _: &str| Decision {
        delay: SECOND / 5,
        fault: Fault::None,
    };
    let store: SharedStore = Arc::new(Faulty::new(first.store, env.clone(), Arc::new(plan)));
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::dev(dir.path(), 9092, Some("memory://"));
    config.internal.advertised_host = Some("test".to_owned());
    shards(&mut config);
    let starting = env.spawn({
        let env = env.clone();
        async move { Node::start(env, config, store).await.unwrap() }
    });
    let connect = async || loop {
        match env.connect("test:9092").await {
            Ok(stream) => return Client { stream, next: 0 },
            Err(_) => env.sleep(SECOND / 100).await,
        }
    };
    let mut asked = Vec::new();
    for group in GROUPS {
        let mut client = connect().await;
        client.send(&wanted(group), 7).await;
        asked.push(client);
    }
    let mut lister = connect().await;
    let listed = lister.call(&ListGroupsRequest::default(), 4).await;
    assert!(
        listed.error_code != 0 || listed.groups.len() == GROUPS.len(),
        "{listed:?}"
    );
    for (group, mut client) in GROUPS.into_iter().zip(asked) {
        let (_, early) = client.receive::<OffsetFetchRequest>(7).await;
        let late = client.call(&wanted(group), 7).await;
        let found = |response: &OffsetFetchResponse| {
            let found = &response.topics[0].partitions[0];
            (found.error_code, found.committed_offset)
        };
        assert!(
            early.error_code != 0 || found(&early) == (0, 7),
            "{group}: {early:?}"
        );
        assert_eq!(found(&late), (0, 7), "{group}");
    }
    let _node = starting.await;
}
