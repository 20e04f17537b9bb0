//! The operator and `DisklessTopic` objects on a real control plane, with the admin side of a broker in memory.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    missing_docs,
    reason = "tests"
)]

#[path = "operator_support/kafka.rs"]
mod kafka;
mod operator_support;

use std::time::Duration;

use crds::{DisklessCluster, DisklessTopic};
use k8s_openapi::api::core::v1::Namespace;
use kafka::Kafka;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use operator_support::*;
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn topics() {
    let plane = ControlPlane::start().await;
    let kafka = Kafka::start().await;
    let operator = Operator::start_counted(&plane, &kafka.address).await;
    a_topic_is_created_grown_and_altered(&plane, &kafka, &operator).await;
    what_others_do_to_a_topic_is_undone(&plane, &kafka).await;
    a_topic_that_is_there_is_adopted_if_it_fits(&plane, &kafka).await;
    the_older_of_two_objects_has_the_name(&plane, &kafka).await;
    the_deletion_policy_is_kept(&plane, &kafka).await;
    a_refused_config_is_said_in_the_brokers_words(&plane, &kafka).await;
    a_topic_waits_for_its_cluster(&plane, &kafka).await;
    namespaces_end(&plane, &kafka).await;
}

async fn namespace(plane: &ControlPlane, name: &str) -> Api<DisklessTopic> {
    plane.namespace(name).await;
    create_secret(plane, name).await;
    let clusters: Api<DisklessCluster> = plane.api(name);
    apply(&clusters, &cluster("demo", 2)).await.unwrap();
    plane.api(name)
}

fn topic(name: &str, partitions: i32, more: Value) -> Value {
    let mut object = json!({
        "apiVersion": "diskless.dev/v1alpha1", "kind": "DisklessTopic", "metadata": {"name": name},
        "spec": {"clusterRef": {"name": "demo"}, "partitions": partitions},
    });
    for (key, value) in more.as_object().unwrap() {
        object["spec"][key] = value.clone();
    }
    object
}

async fn wait_ready(topics: &Api<DisklessTopic>, name: &str) -> DisklessTopic {
    wait_condition(topics, name, "Ready", "True/AsSpecified").await;
    topics.get(name).await.unwrap()
}

fn config(entries: &[(&str, &str)]) -> std::collections::BTreeMap<String, String> {
    entries
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

/// Makes the operator look at an object, and waits until it has.
async fn nudge(topics: &Api<DisklessTopic>, operator: Option<&Operator>, name: &str) {
    let count = |operator: &Operator| operator.metric("reconciles_total", r#"controller="topic""#);
    let before = operator.map(count);
    let touch = json!({"metadata": {"annotations": {"test/nudge": uuid::Uuid::new_v4().to_string()}}});
    topics
        .patch(name, &PatchParams::default(), &Patch::Merge(touch))
        .await
        .unwrap();
    if let (Some(operator), Some(before)) = (operator, before) {
        eventually("one more reconcile", || async { count(operator) > before }).await;
    }
}

async fn a_topic_is_created_grown_and_altered(plane: &ControlPlane, kafka: &Kafka, operator: &Operator) {
    let topics = namespace(plane, "life").await;
    let first = topic(
        "orders",
        3,
        json!({"config": {"retention.ms": 60000, "max.message.bytes": 1000}}),
    );
    apply(&topics, &first).await.unwrap();
    let object = wait_ready(&topics, "orders").await;
    let made = kafka.topic("orders").unwrap();
    assert_eq!(made.partitions, 3);
    assert_eq!(
        made.configs,
        config(&[("retention.ms", "60000"), ("max.message.bytes", "1000")])
    );
    let status = object.status.unwrap();
    assert_eq!(status.topic_id, Some(made.id.to_string()));
    assert_eq!(
        (status.topic_name.as_deref(), status.partitions),
        (Some("orders"), Some(3))
    );
    // Nothing holds an object whose topic stays.
    assert!(object.metadata.finalizers.is_none());

    // One key is changed, one goes back to its default, one is new, and partitions are added.
    let second = topic(
        "orders",
        6,
        json!({"config": {"retention.ms": 5000, "retention.bytes": 9}}),
    );
    apply(&topics, &second).await.unwrap();
    let object = wait_ready(&topics, "orders").await;
    let grown = kafka.topic("orders").unwrap();
    assert_eq!((grown.id, grown.partitions), (made.id, 6));
    assert_eq!(
        grown.configs,
        config(&[("retention.ms", "5000"), ("retention.bytes", "9")])
    );
    assert_eq!(object.status.as_ref().unwrap().partitions, Some(6));
    let events = plane.events("life", "orders").await;
    for reason in ["TopicCreated", "PartitionsAdded", "ConfigChanged"] {
        assert!(
            events.iter().any(|event| event.starts_with(reason)),
            "{reason} in {events:?}"
        );
    }

    // The cluster learns its id from the brokers, and no one writes anything any more.
    let clusters: Api<DisklessCluster> = plane.api("life");
    eventually("the id of the cluster", || async {
        clusters
            .get("demo")
            .await
            .unwrap()
            .status
            .unwrap()
            .cluster_id
            .as_deref()
            == Some("kafka-id")
    })
    .await;
    wait_condition(&clusters, "demo", "Ready", "True").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let writes = || {
        (
            kafka.state.lock().writes,
            operator.metric("writes_total", r#"controller="topic""#),
        )
    };
    let (before, asked) = (writes(), plane.asked());
    assert!(
        asked
            .iter()
            .any(|request| request.resource == "disklesstopics/status")
    );
    for _ in 0..50 {
        nudge(&topics, Some(operator), "orders").await;
    }
    assert_eq!(writes(), before);
    assert_eq!(plane.asked()[asked.len()..], [], "of the API server");
    assert_eq!(topics.get("orders").await.unwrap().status, object.status);
}

async fn what_others_do_to_a_topic_is_undone(plane: &ControlPlane, kafka: &Kafka) {
    let topics: Api<DisklessTopic> = plane.api("life");
    let before = kafka.topic("orders").unwrap();
    kafka
        .state
        .lock()
        .topics
        .get_mut("orders")
        .unwrap()
        .configs
        .insert("retention.ms".into(), "1".into());
    nudge(&topics, None, "orders").await;
    eventually("the config is put right", || async {
        kafka.topic("orders").unwrap() == before
    })
    .await;

    kafka.state.lock().topics.remove("orders");
    nudge(&topics, None, "orders").await;
    eventually("the topic is made anew", || async {
        kafka.topic("orders").is_some()
    })
    .await;
    let again = kafka.topic("orders").unwrap();
    assert_eq!(
        (again.partitions, &again.configs),
        (before.partitions, &before.configs)
    );
    eventually("its new id is known", || async {
        topics.get("orders").await.unwrap().status.unwrap().topic_id == Some(again.id.to_string())
    })
    .await;
    let events = plane.events("life", "orders").await;
    assert!(
        events.iter().any(|event| event.starts_with("TopicRecreated")),
        "{events:?}"
    );
}

async fn a_topic_that_is_there_is_adopted_if_it_fits(plane: &ControlPlane, kafka: &Kafka) {
    let topics: Api<DisklessTopic> = plane.api("life");
    let id = kafka.put("Legacy_Topic", 2, &[("retention.ms", "7")]);
    let name = json!({"topicName": "Legacy_Topic", "config": {"retention.ms": 7}});
    apply(&topics, &topic("legacy", 4, name)).await.unwrap();
    let object = wait_ready(&topics, "legacy").await;
    assert_eq!(object.status.unwrap().topic_id, Some(id.to_string()));
    assert_eq!(kafka.topic("Legacy_Topic").unwrap().partitions, 4);
    let events = plane.events("life", "legacy").await;
    assert!(
        events.iter().any(|event| event.starts_with("TopicAdopted")),
        "{events:?}"
    );

    kafka.put("big", 8, &[]);
    let big = topic("big", 4, json!({"deletionPolicy": "Delete"}));
    apply(&topics, &big).await.unwrap();
    let text = wait_condition(&topics, "big", "Ready", "False/PartitionsIncompatible").await;
    assert!(text.contains("has 8 partitions"), "{text}");
    wait_condition(&topics, "big", "Stalled", "True").await;
    // It was never this object's topic, so it does not go with it.
    topics.delete("big", &DeleteParams::default()).await.unwrap();
    eventually("the object is gone", || async {
        topics.get_opt("big").await.unwrap().is_none()
    })
    .await;
    assert_eq!(kafka.topic("big").unwrap().partitions, 8);
}

async fn the_older_of_two_objects_has_the_name(plane: &ControlPlane, kafka: &Kafka) {
    let topics: Api<DisklessTopic> = plane.api("life");
    apply(&topics, &topic("first", 1, json!({"topicName": "Shared"})))
        .await
        .unwrap();
    wait_ready(&topics, "first").await;
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let second = json!({"topicName": "Shared", "deletionPolicy": "Delete"});
    apply(&topics, &topic("second", 5, second)).await.unwrap();
    let text = wait_condition(&topics, "second", "Ready", "False/TopicNameConflict").await;
    assert!(text.contains("DisklessTopic first"), "{text}");
    assert_eq!(kafka.topic("Shared").unwrap().partitions, 1);
    // When the name is free, the other gets it, with the topic and its records.
    let id = kafka.topic("Shared").unwrap().id;
    topics.delete("first", &DeleteParams::default()).await.unwrap();
    let object = wait_ready(&topics, "second").await;
    assert_eq!(object.status.unwrap().topic_id, Some(id.to_string()));
    assert_eq!(kafka.topic("Shared").unwrap().partitions, 5);
}

async fn the_deletion_policy_is_kept(plane: &ControlPlane, kafka: &Kafka) {
    let topics: Api<DisklessTopic> = plane.api("life");
    apply(&topics, &topic("doomed", 1, json!({"deletionPolicy": "Delete"})))
        .await
        .unwrap();
    apply(&topics, &topic("spared", 1, json!({"deletionPolicy": "Delete"})))
        .await
        .unwrap();
    assert_eq!(
        wait_ready(&topics, "doomed").await.finalizers(),
        ["diskless.dev/topic"]
    );
    wait_ready(&topics, "spared").await;
    apply(&topics, &topic("spared", 1, json!({"deletionPolicy": "Retain"})))
        .await
        .unwrap();
    assert!(wait_ready(&topics, "spared").await.finalizers().is_empty());
    for name in ["doomed", "spared"] {
        topics.delete(name, &DeleteParams::default()).await.unwrap();
        eventually("the object is gone", || async {
            topics.get_opt(name).await.unwrap().is_none()
        })
        .await;
    }
    assert_eq!(kafka.topic("doomed"), None);
    assert!(kafka.topic("spared").is_some());
}

async fn a_refused_config_is_said_in_the_brokers_words(plane: &ControlPlane, kafka: &Kafka) {
    let topics: Api<DisklessTopic> = plane.api("life");
    apply(
        &topics,
        &topic("unlucky", 1, json!({"config": {"retention.ms": 13}})),
    )
    .await
    .unwrap();
    let text = wait_condition(&topics, "unlucky", "Ready", "False/Rejected").await;
    assert!(text.contains("retention.ms cannot be 13"), "{text}");
    wait_condition(&topics, "unlucky", "Stalled", "True").await;
    assert_eq!(kafka.topic("unlucky"), None);
    apply(
        &topics,
        &topic("unlucky", 1, json!({"config": {"retention.ms": 14}})),
    )
    .await
    .unwrap();
    wait_ready(&topics, "unlucky").await;
}

async fn a_topic_waits_for_its_cluster(plane: &ControlPlane, kafka: &Kafka) {
    plane.namespace("waiting").await;
    create_secret(plane, "waiting").await;
    let topics: Api<DisklessTopic> = plane.api("waiting");
    apply(&topics, &topic("early", 1, json!({}))).await.unwrap();
    let text = wait_condition(&topics, "early", "Ready", "False/ClusterNotFound").await;
    assert!(
        text.contains("DisklessCluster demo in namespace waiting"),
        "{text}"
    );
    assert_eq!(kafka.topic("early"), None);
    let clusters: Api<DisklessCluster> = plane.api("waiting");
    apply(&clusters, &cluster("demo", 1)).await.unwrap();
    wait_ready(&topics, "early").await;
}

/// Namespaces end in every order: topics first, cluster first, and with brokers that do not answer any more.
async fn namespaces_end(plane: &ControlPlane, kafka: &Kafka) {
    let ending = ["ending-a", "ending-b"];
    for name in ending {
        let topics = namespace(plane, name).await;
        for topic_name in ["one", "two", "three"] {
            let spec = json!({"topicName": format!("{name}-{topic_name}"), "deletionPolicy": "Delete"});
            apply(&topics, &topic(topic_name, 1, spec)).await.unwrap();
            wait_ready(&topics, topic_name).await;
        }
    }
    let clusters: Api<DisklessCluster> = plane.api("ending-b");
    clusters.delete("demo", &DeleteParams::default()).await.unwrap();
    let orphans: Api<DisklessTopic> = plane.api("ending-b");
    orphans.delete("one", &DeleteParams::default()).await.unwrap();
    eventually("the object does not wait for a cluster that is gone", || async {
        orphans.get_opt("one").await.unwrap().is_none()
    })
    .await;
    assert!(kafka.topic("ending-b-one").is_some());
    let events = plane.events("ending-b", "one").await;
    assert!(
        events.iter().any(|event| event.starts_with("FinalizerDropped")),
        "{events:?}"
    );

    kafka.stop();
    let namespaces: Api<Namespace> = Api::all(plane.server.client());
    for name in ending {
        namespaces.delete(name, &DeleteParams::default()).await.unwrap();
    }
    for name in ending {
        eventually("the namespace is gone", || async {
            namespaces.get_opt(name).await.unwrap().is_none()
        })
        .await;
    }
}
