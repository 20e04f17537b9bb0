use std::collections::BTreeSet;
use std::time::Duration;

use kafka_wire::ResponseError;
use kafka_wire::messages::create_partitions_request::{CreatePartitionsRequest, CreatePartitionsTopic};
use kafka_wire::messages::create_topics_request::CreateTopicsRequest;
use kafka_wire::messages::delete_topics_request::DeleteTopicsRequest;
use types::{ShardId, TopicId};

use super::{Fate, Lab, creatable, create, name, visible};

fn growth(topic: &str, count: i32) -> CreatePartitionsRequest {
    let topic = CreatePartitionsTopic::default()
        .with_name(name(topic))
        .with_count(count)
        .with_assignments(None);
    CreatePartitionsRequest::default()
        .with_topics(vec![topic])
        .with_timeout_ms(30_000)
}

fn deletion(topics: &[impl AsRef<str>]) -> DeleteTopicsRequest {
    DeleteTopicsRequest::default()
        .with_topic_names(topics.iter().map(|topic| name(topic.as_ref())).collect())
        .with_timeout_ms(30_000)
}

/// Crashes of the controller at every call of a saga, before and after the shard has done its part.
fn crashes(calls: usize) -> impl Iterator<Item = (usize, Fate)> {
    (0..calls).flat_map(|call| [(call, Fate::LostRequest), (call, Fate::LostAnswer)])
}

#[tokio::test(start_paused = true)]
async fn a_creation_survives_the_controller_at_every_step() {
    for (call, fate) in crashes(3) {
        let mut lab = Lab::new();
        let first = lab.controller(0).await;
        lab.nodes(&first, &["a", "b", "c"]).await;
        lab.shards.fates.lock().insert(call, fate);
        let asked = first.clone();
        let creating = lab
            .env
            .spawn(async move { create(&asked, vec![creatable("t", 7)]).await });
        lab.env.sleep(Duration::from_secs(1)).await;
        assert!(visible(&first, "t").is_none(), "clients see only what is done");

        let second = lab.controller(1).await;
        creating.abort();
        lab.nodes(&second, &["a", "b", "c"]).await;
        lab.until(|| visible(&second, "t").is_some()).await;
        let topic = visible(&second, "t").unwrap();
        assert_eq!(topic.partitions.len(), 7);
        assert_eq!(
            lab.shards.of(topic.id),
            (0..7).collect::<BTreeSet<i32>>(),
            "{call} {fate:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_growth_survives_the_controller_at_every_step() {
    for (call, fate) in crashes(3) {
        let mut lab = Lab::new();
        let first = lab.controller(0).await;
        lab.nodes(&first, &["a", "b"]).await;
        create(&first, vec![creatable("t", 2)]).await;
        let done = *lab.shards.calls.lock();
        lab.shards.fates.lock().insert(done + call, fate);
        let asked = first.clone();
        let growing = lab
            .env
            .spawn(async move { asked.create_partitions(&growth("t", 6)).await });
        lab.env.sleep(Duration::from_secs(1)).await;
        let topic = visible(&first, "t").unwrap();
        assert_eq!(topic.partitions.len(), 2, "the old ones stay as they are");

        let second = lab.controller(1).await;
        growing.abort();
        lab.nodes(&second, &["a", "b"]).await;
        lab.until(|| visible(&second, "t").is_some_and(|topic| topic.partitions.len() == 6))
            .await;
        let grown = visible(&second, "t").unwrap();
        assert_eq!(grown.partitions[..2], topic.partitions[..]);
        assert_eq!(lab.shards.of(topic.id), (0..6).collect::<BTreeSet<i32>>());
    }
}

#[tokio::test(start_paused = true)]
async fn a_deletion_survives_the_controller_at_every_step() {
    for (call, fate) in crashes(3) {
        let mut lab = Lab::new();
        let first = lab.controller(0).await;
        lab.nodes(&first, &["a"]).await;
        create(&first, vec![creatable("t", 1)]).await;
        let id = visible(&first, "t").unwrap().id;
        let done = *lab.shards.calls.lock();
        lab.shards.fates.lock().insert(done + call, fate);
        let asked = first.clone();
        let deleting = lab
            .env
            .spawn(async move { asked.delete_topics(&deletion(&["t"])).await });
        lab.env.sleep(Duration::from_secs(1)).await;
        assert!(visible(&first, "t").is_none(), "gone for clients at once");

        let second = lab.controller(1).await;
        deleting.abort();
        lab.nodes(&second, &["a"]).await;
        assert!(visible(&second, "t").is_none());
        let log_has = |id: TopicId| second.metadata().topics.contains_key(&id);
        lab.until(|| !log_has(id)).await;
        assert!(lab.shards.of(id).is_empty());
        let told: BTreeSet<ShardId> = lab
            .shards
            .offsets_deleted
            .lock()
            .iter()
            .map(|(shard, _)| *shard)
            .collect();
        assert_eq!(told.len(), 3, "every shard that may keep offsets of groups");
    }
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_refuses_is_asked_again() {
    let mut lab = Lab::new();
    let controller = lab.controller(0).await;
    lab.nodes(&controller, &["a"]).await;
    lab.shards
        .fates
        .lock()
        .extend((0..5).map(|call| (call, Fate::Refused)));
    let answer = create(&controller, vec![creatable("t", 3)]).await;
    assert_eq!(answer.topics[0].error_code, 0);
    assert!(visible(&controller, "t").is_some());
}

#[tokio::test(start_paused = true)]
async fn without_shards_a_creation_times_out_and_goes_on() {
    let mut lab = Lab::new();
    let controller = lab.controller(0).await;
    let request = CreateTopicsRequest::default()
        .with_topics(vec![creatable("t", 1)])
        .with_timeout_ms(500);
    let answer = controller.create_topics(&request).await.unwrap();
    assert_eq!(answer.topics[0].error_code, ResponseError::RequestTimedOut.code());
    let again = controller.create_topics(&request).await.unwrap();
    assert_eq!(
        again.topics[0].error_code,
        ResponseError::TopicAlreadyExists.code()
    );
    lab.nodes(&controller, &["a"]).await;
    lab.until(|| visible(&controller, "t").is_some()).await;
}

#[tokio::test(start_paused = true)]
async fn a_topic_can_be_deleted_while_it_is_created() {
    let mut lab = Lab::new();
    let controller = lab.controller(0).await;
    let request = CreateTopicsRequest::default()
        .with_topics(vec![creatable("t", 1)])
        .with_timeout_ms(0);
    controller.create_topics(&request).await.unwrap();
    let answer = controller
        .delete_topics(&deletion(&["t"]).with_timeout_ms(0))
        .await
        .unwrap();
    assert_eq!(answer.responses[0].error_code, 0);
    lab.nodes(&controller, &["a"]).await;
    lab.until(|| controller.metadata().topics.is_empty()).await;
    assert!(lab.shards.bound.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_new_topic_waits_until_the_offsets_of_the_former_one_are_gone() {
    let mut lab = Lab::new();
    let controller = lab.controller(0).await;
    lab.nodes(&controller, &["a"]).await;
    create(&controller, vec![creatable("t", 1)]).await;
    let old = visible(&controller, "t").unwrap().id;
    // The deletion cannot reach the shards for a while.
    let done = *lab.shards.calls.lock();
    lab.shards
        .fates
        .lock()
        .extend((done..done + 8).map(|call| (call, Fate::Refused)));
    let answer = controller
        .delete_topics(&deletion(&["t"]).with_timeout_ms(0))
        .await
        .unwrap();
    assert_eq!(answer.responses[0].error_code, 0);
    let answer = create(&controller, vec![creatable("t", 1)]).await;
    assert_eq!(answer.topics[0].error_code, 0);
    assert_ne!(visible(&controller, "t").unwrap().id, old);
    assert!(!controller.metadata().topics.contains_key(&old));
    let told = lab.shards.offsets_deleted.lock().clone();
    assert!(told.len() == 3 && told.iter().all(|(_, name)| name == "t"));
}

#[tokio::test(start_paused = true)]
async fn many_topics_are_created_again_while_they_cannot_be_deleted() {
    const TOPICS: usize = 300;
    let mut lab = Lab::new();
    let first = lab.controller(0).await;
    lab.nodes(&first, &["a"]).await;
    let names: Vec<String> = (0..TOPICS).map(|number| format!("t{number}")).collect();
    let all = || names.iter().map(|name| creatable(name, 1)).collect::<Vec<_>>();
    create(&first, all()).await;
    *lab.shards.deletions.lock() = Some(Fate::Refused);
    first
        .delete_topics(&deletion(&names).with_timeout_ms(0))
        .await
        .unwrap();
    let request = CreateTopicsRequest::default()
        .with_topics(all())
        .with_timeout_ms(0);
    first.create_topics(&request).await.unwrap();
    lab.env.sleep(Duration::from_secs(40)).await;
    assert_eq!(first.metadata().topics.len(), 2 * TOPICS);
    let answer = create(&first, vec![creatable("other", 1)]).await;
    assert_eq!(
        answer.topics[0].error_code, 0,
        "it has nothing to do with the others"
    );
    // Whoever is controller when the shards are back finds all of it unfinished.
    let second = lab.controller(1).await;
    lab.nodes(&second, &["a"]).await;
    lab.env.sleep(Duration::from_secs(40)).await;
    *lab.shards.deletions.lock() = None;
    let finished = || {
        let metadata = second.metadata();
        metadata.topics.len() == TOPICS + 1 && metadata.topics.values().all(|topic| topic.ready == 1)
    };
    lab.until(finished).await;
    let told = lab.shards.offsets_deleted.lock().len();
    assert_eq!(told, 3 * TOPICS, "every shard, for every topic that was deleted");
}

#[tokio::test(start_paused = true)]
async fn topics_that_can_be_neither_created_nor_deleted_hold_no_creation_up() {
    let mut lab = Lab::new();
    let controller = lab.controller(0).await;
    lab.nodes(&controller, &["a"]).await;
    *lab.shards.creations.lock() = Some(Fate::Refused);
    *lab.shards.deletions.lock() = Some(Fate::Refused);
    let names: Vec<String> = (0..100).map(|number| format!("t{number}")).collect();
    let request = CreateTopicsRequest::default()
        .with_topics(names.iter().map(|name| creatable(name, 1)).collect())
        .with_timeout_ms(0);
    controller.create_topics(&request).await.unwrap();
    lab.env.sleep(Duration::from_secs(5)).await;
    controller
        .delete_topics(&deletion(&names).with_timeout_ms(0))
        .await
        .unwrap();
    *lab.shards.creations.lock() = None;
    let answer = create(&controller, vec![creatable("other", 1)]).await;
    assert_eq!(answer.topics[0].error_code, 0);
    *lab.shards.deletions.lock() = None;
    lab.until(|| controller.metadata().topics.len() == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_topic_that_waits_for_its_name_can_be_deleted() {
    let mut lab = Lab::new();
    let controller = lab.controller(0).await;
    lab.nodes(&controller, &["a"]).await;
    create(&controller, vec![creatable("t", 1)]).await;
    let done = *lab.shards.calls.lock();
    lab.shards
        .fates
        .lock()
        .extend((done..done + 8).map(|call| (call, Fate::Refused)));
    let at_once = deletion(&["t"]).with_timeout_ms(0);
    controller.delete_topics(&at_once).await.unwrap();
    let request = CreateTopicsRequest::default()
        .with_topics(vec![creatable("t", 1)])
        .with_timeout_ms(0);
    let answer = controller.create_topics(&request).await.unwrap();
    assert_eq!(answer.topics[0].error_code, ResponseError::RequestTimedOut.code());
    let answer = controller.delete_topics(&at_once).await.unwrap();
    assert_eq!(answer.responses[0].error_code, 0);
    lab.until(|| controller.metadata().topics.is_empty()).await;
    assert!(lab.shards.bound.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_deposed_controller_says_so() {
    let mut lab = Lab::new();
    let first = lab.controller(0).await;
    lab.nodes(&first, &["a"]).await;
    let second = lab.controller(1).await;
    let request = CreateTopicsRequest::default()
        .with_topics(vec![creatable("t", 1)])
        .with_timeout_ms(1_000);
    assert!(first.create_topics(&request).await.is_err());
    let answer = first
        .heartbeat(&super::node(5, "a"), std::future::pending())
        .await;
    assert_eq!(answer.error_code, ResponseError::NotController.code());
    assert!(second.metadata().cluster_id == first.metadata().cluster_id);
}
