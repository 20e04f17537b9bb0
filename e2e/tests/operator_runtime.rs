//! The operator as a process: before its kinds are installed, among objects it cannot read, with few rights.
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

mod chart_support;
#[path = "operator_support/kafka.rs"]
mod kafka;
mod operator_support;

use std::time::{Duration, Instant};

use crds::{DisklessCluster, DisklessTopic};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps,
};
use kube::ResourceExt;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ObjectMeta, PostParams};
use operator_support::*;
use serde_json::json;

/// Nobody listens there.
const NO_BROKER: &str = "127.0.0.1:1";

/// Definitions that take anything: what an older or a broken installation may have stored.
fn permissive() -> Vec<CustomResourceDefinition> {
    let mut definitions = crds::all().unwrap();
    for definition in &mut definitions {
        for version in &mut definition.spec.versions {
            let anything = JSONSchemaProps {
                type_: Some("object".to_owned()),
                x_kubernetes_preserve_unknown_fields: Some(true),
                ..Default::default()
            };
            // A scale would want numbers where it points to.
            version.subresources.as_mut().unwrap().scale = None;
            version.schema.as_mut().unwrap().open_api_v3_schema = Some(anything);
        }
    }
    definitions
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operator_waits_for_its_kinds_and_bears_objects_it_cannot_read() {
    let plane = ControlPlane::bare().await;
    let start = Instant::now();
    let operator = Operator::spawn(&plane, NO_BROKER, &[]);
    eventually("the operator answers", || async { operator.answers() }).await;
    println!("the operator answers after {:?}", start.elapsed());
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!operator.is_ready(), "ready without its kinds");
    plane.server.install(&permissive()).await.unwrap();
    eventually("the operator is ready", || async { operator.is_ready() }).await;

    plane.namespace("mixed").await;
    create_secret(&plane, "mixed").await;
    for kind in [
        ApiResource::erase::<DisklessCluster>(&()),
        ApiResource::erase::<DisklessTopic>(&()),
    ] {
        let api: Api<DynamicObject> = Api::namespaced_with(plane.server.client(), "mixed", &kind);
        let mut object = DynamicObject::new("unreadable", &kind);
        object.data = json!({"spec": {"brokers": "many", "partitions": "many"}});
        object.metadata = ObjectMeta {
            name: Some("unreadable".to_owned()),
            ..Default::default()
        };
        api.create(&PostParams::default(), &object).await.unwrap();
    }
    let clusters: Api<DisklessCluster> = plane.api("mixed");
    apply(&clusters, &cluster("demo", 2)).await.unwrap();
    wait_condition(&clusters, "demo", "Ready", "True/AsSpecified").await;
    eventually("both are counted", || async {
        operator.metric("reconciles_total", r#"result="invalid""#) >= 2.0
    })
    .await;
    let events = plane.events("mixed", "unreadable").await;
    assert_eq!(
        events
            .iter()
            .filter(|event| event.starts_with("Unreadable"))
            .count(),
        2,
        "{events:?}"
    );

    // What the schema would have refused is refused here, by name, and does not touch what runs.
    let bad = json!({
        "apiVersion": "diskless.dev/v1alpha1", "kind": "DisklessCluster", "metadata": {"name": "bad"},
        "spec": {
            "brokers": {"replicas": 0, "zones": [{"name": "a"}]},
            "objectStore": {"s3": {"bucket": "records", "region": "eu-central-1"}},
        },
    });
    apply(&clusters, &bad).await.unwrap();
    let text = wait_condition(&clusters, "bad", "Ready", "False/InvalidSpec").await;
    assert!(text.contains("spec.brokers.replicas"), "{text}");
    wait_condition(&clusters, "bad", "Stalled", "True").await;
    assert!(clusters.get("bad").await.unwrap().finalizers().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_in_one_namespace_is_enough() {
    let plane = ControlPlane::start().await;
    plane.namespace("narrow").await;
    // The chart's own Role, for a service account of the chart's name.
    let values = json!({"rbac": {"scope": "namespace"}, "crds": {"install": false}});
    let chart = chart_support::render("operator", "narrow", &values).unwrap();
    let rights = chart
        .split("\n---")
        .filter(|object| object.contains("\nkind: Role\n") || object.contains("\nkind: RoleBinding\n"));
    chart_support::kubectl_apply(&plane.server, &rights.collect::<Vec<_>>().join("\n---\n"));

    let text = std::fs::read_to_string(plane.server.kubeconfig()).unwrap();
    let mut kubeconfig: serde_json::Value = serde_json::from_str(&text).unwrap();
    kubeconfig["users"][0]["user"]["as"] = "system:serviceaccount:narrow:operator".into();
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("kubeconfig");
    std::fs::write(&path, kubeconfig.to_string()).unwrap();
    let kafka = kafka::Kafka::start().await;
    let operator = Operator::spawn_with(
        &path,
        &kafka.address,
        &["--namespace=narrow", "--lease-namespace=narrow"],
    );
    eventually("the operator is ready", || async { operator.is_ready() }).await;

    let clusters: Api<DisklessCluster> = plane.api("narrow");
    apply(&clusters, &cluster("demo", 4)).await.unwrap();
    wait_condition(&clusters, "demo", "Ready", "False/CredentialsMissing").await;
    create_secret(&plane, "narrow").await;
    wait_condition(&clusters, "demo", "Ready", "True/AsSpecified").await;
    let mut changed = cluster("demo", 1);
    changed["spec"]["image"] = "v2".into();
    apply(&clusters, &changed).await.unwrap();
    wait_condition(&clusters, "demo", "Ready", "True/AsSpecified").await;
    let topics: Api<DisklessTopic> = plane.api("narrow");
    let topic = json!({
        "apiVersion": "diskless.dev/v1alpha1", "kind": "DisklessTopic", "metadata": {"name": "orders"},
        "spec": {"clusterRef": {"name": "demo"}, "deletionPolicy": "Delete"},
    });
    apply(&topics, &topic).await.unwrap();
    wait_condition(&topics, "orders", "Ready", "True/AsSpecified").await;
    let events = plane.events("narrow", "demo").await;
    assert!(
        events.iter().any(|event| event.starts_with("ScalingDown")),
        "{events:?}"
    );

    assert!(kafka.topic("orders").is_some());
    topics.delete("orders", &DeleteParams::default()).await.unwrap();
    eventually("the topic's object is gone", || async {
        topics.get_opt("orders").await.unwrap().is_none()
    })
    .await;
    assert_eq!(kafka.topic("orders"), None);
}
