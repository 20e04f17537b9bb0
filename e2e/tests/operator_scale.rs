//! The operator with 100 clusters and 5,000 topics: what it takes in memory, and how long a reconcile takes that finds
//! nothing to do. Minutes long, and figures rather than a verdict:
//! `DISKLESS_BIN_DIR=… cargo test -p e2e --test operator_scale -- --ignored --nocapture`.
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
use kube::ResourceExt;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use operator_support::*;
use serde_json::{Value, json};

const NAMESPACES: usize = 10;
const CLUSTERS: usize = 10;
const TOPICS: usize = 50;

fn resident_mib(operator: &Operator) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", operator.process.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    let kib: f64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib / 1024.0
}

/// Processor time it has taken, in milliseconds: unlike a duration it does not depend on what else the machine does.
fn cpu_ms(operator: &Operator) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", operator.process.id())).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let ticks = |field: usize| -> f64 { fields.split(' ').nth(field).unwrap().parse().unwrap() };
    // Fields 14 and 15 of proc(5), in hundredths of a second.
    (ticks(11) + ticks(12)) * 10.0
}

/// Upper bounds of the histogram's buckets that are shown, seconds.
const BUCKETS: [&str; 9] = [
    "0.001", "0.002", "0.004", "0.008", "0.016", "0.032", "0.064", "0.128", "+Inf",
];

/// Reconciles of a kind so far, within each of the buckets.
fn reconciles(operator: &Operator, controller: &str) -> [f64; BUCKETS.len()] {
    BUCKETS.map(|bucket| {
        let labels = format!(r#"le="{bucket}",controller="{controller}""#);
        operator.metric("reconcile_duration_seconds_bucket", &labels)
    })
}

/// An annotation of the user's makes the operator look at objects and find them as they should be: in all `namespaces`, five
/// times over. Prints how long it took.
async fn look_again<K>(plane: &ControlPlane, operator: &Operator, controller: &str, namespaces: &[String])
where
    K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let (before, cpu) = (reconciles(operator, controller), cpu_ms(operator));
    for round in 0..5 {
        let patch: Value = json!({"metadata": {"annotations": {"example.org/round": round.to_string()}}});
        for namespace in namespaces {
            let api: Api<K> = plane.api(namespace);
            for object in api.list_metadata(&ListParams::default()).await.unwrap() {
                let (name, merge) = (object.name_any(), Patch::Merge(&patch));
                api.patch(&name, &PatchParams::default(), &merge).await.unwrap();
            }
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    let (after, cpu) = (reconciles(operator, controller), cpu_ms(operator) - cpu);
    let count = after[BUCKETS.len() - 1] - before[BUCKETS.len() - 1];
    println!(
        "converged reconciles, {controller}: {:.2} ms of processor time each, watches included",
        cpu / count
    );
    for ((bucket, before), after) in BUCKETS.iter().zip(before).zip(after) {
        println!("  {:4} within {bucket} s", after - before);
    }
}

async fn ready<K>(api: &Api<K>) -> usize
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned + serde::Serialize,
{
    let objects = api.list(&ListParams::default()).await.unwrap();
    let is_ready = |object: &&K| condition(object, "Ready").starts_with("True/");
    objects.items.iter().filter(is_ready).count()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes long; prints what it measures"]
async fn a_hundred_clusters_and_five_thousand_topics() {
    let plane = ControlPlane::start().await;
    let kafka = kafka::Kafka::start().await;
    let operator = Operator::start(&plane, &kafka.address, &[]).await;
    println!("idle: {:.1} MiB", resident_mib(&operator));
    let names: Vec<String> = (0..NAMESPACES).map(|n| format!("n{n}")).collect();
    for namespace in &names {
        plane.namespace(namespace).await;
        create_secret(&plane, namespace).await;
        let clusters: Api<DisklessCluster> = plane.api(namespace);
        for number in 0..CLUSTERS {
            apply(&clusters, &cluster(&format!("c{number}"), 2))
                .await
                .unwrap();
        }
    }
    for namespace in &names {
        let clusters: Api<DisklessCluster> = plane.api(namespace);
        loop {
            let count = ready(&clusters).await;
            if count == CLUSTERS {
                break;
            }
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
    }
    println!(
        "{} clusters: {:.1} MiB",
        NAMESPACES * CLUSTERS,
        resident_mib(&operator)
    );
    // All clusters share one Kafka here.
    let topic = |namespace: &str, cluster: usize, number: usize| {
        json!({
            "apiVersion": "diskless.dev/v1alpha1",
            "kind": "DisklessTopic",
            "metadata": {"name": format!("c{cluster}-t{number}")},
            "spec": {
                "clusterRef": {"name": format!("c{cluster}")},
                "topicName": format!("{namespace}.c{cluster}.t{number}"),
            },
        })
    };
    let mut creating = tokio::task::JoinSet::new();
    for namespace in &names {
        let api: Api<DisklessTopic> = plane.api(namespace);
        let numbers = (0..CLUSTERS).flat_map(|cluster| (0..TOPICS).map(move |number| (cluster, number)));
        let objects: Vec<Value> = numbers
            .map(|(cluster, number)| topic(namespace, cluster, number))
            .collect();
        creating.spawn(async move {
            for object in objects {
                let object: DisklessTopic = serde_json::from_value(object).unwrap();
                api.create(&PostParams::default(), &object).await.unwrap();
            }
        });
    }
    while let Some(done) = creating.join_next().await {
        done.unwrap();
    }
    for namespace in &names {
        let topics: Api<DisklessTopic> = plane.api(namespace);
        while ready(&topics).await < CLUSTERS * TOPICS {
            tokio::time::sleep(Duration::from_secs(3)).await;
        }
    }
    let count = NAMESPACES * CLUSTERS * TOPICS;
    println!("{count} topics: {:.1} MiB", resident_mib(&operator));
    tokio::time::sleep(Duration::from_secs(30)).await;
    println!("settled: {:.1} MiB", resident_mib(&operator));

    let writes = operator.metric("writes_total", "");
    look_again::<DisklessCluster>(&plane, &operator, "cluster", &names).await;
    look_again::<DisklessTopic>(&plane, &operator, "topic", &names[..1]).await;
    println!("settled: {:.1} MiB", resident_mib(&operator));
    assert_eq!(
        operator.metric("writes_total", ""),
        writes,
        "converged clusters and topics cause no writes"
    );
}
