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

/// Upper bounds of the histogram's buckets that are shown, seconds.
const BUCKETS: [&str; 7] = ["0.004", "0.008", "0.016", "0.032", "0.064", "0.128", "+Inf"];

/// Reconciles of clusters so far, within each of the buckets.
fn reconciles(operator: &Operator) -> [f64; BUCKETS.len()] {
    BUCKETS.map(|bucket| {
        let labels = format!(r#"le="{bucket}",controller="cluster""#);
        operator.metric("reconcile_duration_seconds_bucket", &labels)
    })
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

    // An annotation of the user's makes the operator look at each cluster, and find it as it should be.
    let before = reconciles(&operator);
    let writes = operator.metric("writes_total", "");
    for round in 0..5 {
        for namespace in &names {
            let clusters: Api<DisklessCluster> = plane.api(namespace);
            let patch: Value = json!({"metadata": {"annotations": {"example.org/round": round.to_string()}}});
            for number in 0..CLUSTERS {
                let name = format!("c{number}");
                let merge = Patch::Merge(&patch);
                clusters
                    .patch(&name, &PatchParams::default(), &merge)
                    .await
                    .unwrap();
            }
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    let after = reconciles(&operator);
    println!("converged reconciles:");
    for ((bucket, before), after) in BUCKETS.iter().zip(before).zip(after) {
        println!("  {:4} within {bucket} s", after - before);
    }
    println!("settled: {:.1} MiB", resident_mib(&operator));
    assert_eq!(
        operator.metric("writes_total", ""),
        writes,
        "a converged cluster causes no writes"
    );
}
