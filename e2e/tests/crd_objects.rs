//! What the real API server makes of objects of the project's kinds: what it refuses, fills in, keeps and shows.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

mod crd_support;

use crd_support::{api, cluster, object, topic, try_create, with, zones};
use crds::{DisklessCluster, DisklessTopic};
use e2e::apiserver::ApiServer;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, CustomResourceExt, ResourceExt};
use serde_json::{Value, json};

#[tokio::test]
async fn objects_are_bounded_filled_in_kept_and_shown() {
    let server = ApiServer::with_crds().await.expect("an API server");
    let client = server.client();
    bad_values_are_refused(&client).await;
    defaults_are_filled_in(&client).await;
    every_field_is_kept(&client).await;
    new_objects_are_not_ready(&client).await;
    the_scale_subresource_works(&client).await;
    kubectl_shows_the_columns(&server);
    definitions_are_stored_as_written(&server).await;
}

async fn bad_values_are_refused(client: &Client) {
    let cases = [
        ("spec/image", json!("")),
        ("spec/featureLevel", json!(0)),
        ("spec/featureLevel", json!(32768)),
        ("spec/featureLevel", json!("auto")),
        ("spec/config", json!({"num.partitions": 0})),
        ("spec/config", json!({"num.partitions": 10001})),
        ("spec/brokers", Value::Null),
        ("spec/brokers/replicas", json!(0)),
        ("spec/brokers/replicas", json!(1001)),
        ("spec/brokers/replicas", json!("three")),
        ("spec/brokers/zones", json!([])),
        ("spec/brokers/zones", Value::Null),
        ("spec/brokers/zones", zones(&["a", "a"])),
        ("spec/brokers/zones", zones(&["A"])),
        ("spec/brokers/zones", zones(&["a-"])),
        ("spec/brokers/zones", zones(&[""])),
        (
            "spec/brokers/zones",
            zones(&["a", "b", "c", "d", "e", "f", "g", "h", "i"]),
        ),
        ("spec/brokers/resources", json!({"requests": {"memory": "2 GiB"}})),
        ("spec/brokers/resources", json!({"requests": {"memory": "-1"}})),
        ("spec/brokers/resources", json!({"requests": {"memory": true}})),
        ("spec/coordinators/replicas", json!(0)),
        ("spec/coordinators/metadataPartitions", json!(0)),
        ("spec/coordinators/placement/type", json!("Anywhere")),
        ("spec/objectStore", Value::Null),
        ("spec/objectStore/s3", Value::Null),
        ("spec/objectStore/s3/bucket", json!("Records")),
        ("spec/objectStore/s3/bucket", json!("ab")),
        ("spec/objectStore/s3/prefix", json!("/a")),
        ("spec/objectStore/s3/prefix", json!("a/")),
        ("spec/objectStore/s3/prefix", json!("a//b")),
        ("spec/objectStore/s3/prefix", json!("a/../b")),
        ("spec/objectStore/s3/prefix", json!("a?b")),
        ("spec/objectStore/s3/region", Value::Null),
        ("spec/objectStore/s3/region", json!("")),
        ("spec/objectStore/credentials", json!({})),
        ("spec/objectStore/credentials/secretRef", json!({"name": ""})),
        ("spec/metadataLog", json!({})),
        ("spec/metadataLog/postgres", json!({})),
        (
            "spec/metadataLog/postgres",
            json!({"url": "postgres://user:password@host/database"}),
        ),
        ("spec/metadataLog/postgres/secretRef", json!({"name": ""})),
    ];
    let topic_cases = [
        ("spec/clusterRef", Value::Null),
        ("spec/clusterRef", json!({"name": ""})),
        ("spec/topicName", json!("")),
        ("spec/topicName", json!("with space")),
        ("spec/topicName", json!("a".repeat(250))),
        ("spec/partitions", json!(0)),
        ("spec/partitions", json!(10001)),
        ("spec/config", json!({"cleanup.policy": "compact"})),
        ("spec/config", json!({"compression.type": "zstd"})),
        ("spec/config", json!({"message.timestamp.type": "NoTime"})),
        ("spec/config", json!({"max.message.bytes": -1})),
        ("spec/config", json!({"retention.ms": -2})),
        ("spec/config", json!({"retention.bytes": "1Gi"})),
        ("spec/deletionPolicy", json!("Orphan")),
    ];
    let cases = cases.iter().map(|(path, value)| (cluster(), path, value));
    let topic_cases = topic_cases.iter().map(|(path, value)| (topic(), path, value));
    for (base, path, value) in cases.chain(topic_cases) {
        let result = try_create(client, &with(base, path, value.clone())).await;
        match result {
            Err(kube::Error::Api(status)) if status.reason == "Invalid" => {
                let field = path
                    .replace('/', ".")
                    .replace(".zones", "")
                    .replace("spec.brokers.resources", "spec.brokers");
                assert!(
                    status.message.contains(&field),
                    "{path} = {value}: {} names another field",
                    status.message
                );
            }
            other => panic!("{path} = {value}: {other:?}"),
        }
    }
}

async fn defaults_are_filled_in(client: &Client) {
    let least = with(
        with(cluster(), "spec", json!({"brokers": {"zones": [{"name": "a"}]}})),
        "spec/objectStore",
        json!({"s3": {"bucket": "records", "region": "us-east-1"}}),
    );
    let stored = try_create(client, &least)
        .await
        .expect("a cluster of the required fields");
    assert_eq!(
        stored.data["spec"],
        json!({
            "brokers": {"replicas": 3, "zones": [{"name": "a"}]},
            "coordinators": {"replicas": 2, "metadataPartitions": 3, "placement": {"type": "Colocated"}},
            "objectStore": {"s3": {"bucket": "records", "prefix": "", "region": "us-east-1", "pathStyle": false}}
        })
    );
    let typed: crds::DisklessClusterSpec =
        serde_json::from_value(stored.data["spec"].clone()).expect("the type");
    assert_eq!(
        typed.coordinators,
        crds::Coordinators::default(),
        "the type and the schema agree"
    );

    let least = with(topic(), "spec", json!({"clusterRef": {"name": "demo"}}));
    let stored = try_create(client, &least)
        .await
        .expect("a topic of the required fields");
    assert_eq!(
        stored.data["spec"],
        json!({"clusterRef": {"name": "demo"}, "partitions": 1, "deletionPolicy": "Retain"})
    );
}

async fn every_field_is_kept(client: &Client) {
    for full in [cluster(), topic()] {
        let stored = api(client, &full)
            .create(&PostParams::default(), &object(&full))
            .await
            .expect("created");
        assert_eq!(stored.data["spec"], full["spec"], "the API server drops a field");
        // Through the Rust type and back: what the operator reads is all there is.
        let typed = match full["kind"].as_str() {
            Some("DisklessCluster") => {
                let spec: crds::DisklessClusterSpec =
                    serde_json::from_value(full["spec"].clone()).expect("the type");
                serde_json::to_value(spec)
            }
            _ => {
                let spec: crds::DisklessTopicSpec =
                    serde_json::from_value(full["spec"].clone()).expect("the type");
                serde_json::to_value(spec)
            }
        };
        // Quantities are strings in the type.
        let text = typed
            .expect("json")
            .to_string()
            .replace(r#""cpu":"2""#, r#""cpu":2"#);
        assert_eq!(
            serde_json::from_str::<Value>(&text).expect("json"),
            full["spec"],
            "the type drops a field"
        );
    }
    let status = json!({"status": {
        "observedGeneration": 1, "clusterId": "abc", "image": "i", "bootstrap": "b:9092",
        "featureLevel": 1, "supportedFeatureLevels": {"min": 1, "max": 2},
        "replicas": 6, "readyReplicas": 5, "selector": "app=x",
        "zones": [{"name": "a", "bootstrap": "a:9092", "replicas": 3, "readyReplicas": 2}],
        "conditions": [{"type": "Ready", "status": "True", "reason": "AllGood", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1}]
    }});
    let stored = api(client, &cluster())
        .patch_status("demo", &PatchParams::default(), &Patch::Merge(&status))
        .await;
    assert_eq!(stored.expect("a status").data["status"], status["status"]);
    let status = json!({"status": {
        "observedGeneration": 1, "topicName": "Orders_v1", "topicId": "id", "partitions": 6,
        "conditions": status["status"]["conditions"]
    }});
    let stored = api(client, &topic())
        .patch_status("orders", &PatchParams::default(), &Patch::Merge(&status))
        .await;
    assert_eq!(stored.expect("a status").data["status"], status["status"]);
}

async fn new_objects_are_not_ready(client: &Client) {
    for new in [cluster(), topic()] {
        let new = with(new, "metadata/name", json!("new"));
        api(client, &new)
            .create(&PostParams::default(), &object(&new))
            .await
            .expect("created");
        let stored = api(client, &new).get("new").await.expect("stored");
        assert_eq!(stored.data["status"]["conditions"][0]["type"], "Ready");
        assert_eq!(stored.data["status"]["conditions"][0]["status"], "Unknown");
    }
}

async fn the_scale_subresource_works(client: &Client) {
    let clusters: Api<DisklessCluster> = Api::namespaced(client.clone(), "default");
    let to_nine = json!({"spec": {"replicas": 9}});
    let scale = clusters
        .patch_scale("demo", &PatchParams::default(), &Patch::Merge(&to_nine))
        .await
        .expect("scaled");
    let status = scale.status.expect("a status");
    assert_eq!(
        (status.replicas, status.selector.as_deref()),
        (6, Some("app=x")),
        "of the cluster's status"
    );
    assert_eq!(
        clusters.get("demo").await.expect("stored").spec.brokers.replicas,
        9
    );
}

fn kubectl_shows_the_columns(server: &ApiServer) {
    let show = |args: &[&str]| {
        let output = server.kubectl().arg("get").args(args).output().expect("kubectl");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let text = String::from_utf8(output.stdout).expect("text");
        text.lines()
            .map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
            .collect::<Vec<_>>()
    };
    let shown = show(&["dkc", "demo"]);
    assert_eq!(shown[0], ["NAME", "READY", "REASON", "BROKERS", "DESIRED", "AGE"]);
    assert_eq!(shown[1][..5], ["demo", "True", "AllGood", "5", "9"]);
    let wide = show(&["dkc", "demo", "-o", "wide"]);
    assert_eq!(wide[0][6..], ["BOOTSTRAP", "ZONES", "IMAGE", "LEVEL", "MESSAGE"]);
    assert_eq!(
        wide[1][6..10],
        ["b:9092", r#"[{"name":"a"},{"name":"b"}]"#, "i", "1"]
    );
    let shown = show(&["dkt", "orders"]);
    assert_eq!(
        shown[0],
        ["NAME", "CLUSTER", "PARTITIONS", "READY", "REASON", "AGE"]
    );
    assert_eq!(shown[1][..5], ["orders", "demo", "6", "True", "AllGood"]);
    let all = show(&["diskless", "-o", "name"]).concat();
    assert!(
        all.contains(&"disklesscluster.diskless.dev/demo".to_owned()),
        "{all:?}"
    );
    assert!(
        all.contains(&"disklesstopic.diskless.dev/orders".to_owned()),
        "{all:?}"
    );
}

/// What we write is what is stored, to the last field: otherwise tools that compare find a difference for ever.
async fn definitions_are_stored_as_written(server: &ApiServer) {
    for written in crds::all().expect("definitions") {
        let name = written.name_any();
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), crds::definition_yaml(&written).expect("yaml")).expect("written");
        let output = server
            .kubectl()
            .args(["diff", "--server-side", "--force-conflicts", "-f"])
            .arg(file.path())
            .env("KUBECTL_EXTERNAL_DIFF", "diff -u")
            .output()
            .expect("kubectl");
        assert!(
            matches!(output.status.code(), Some(0 | 1)),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let diff = String::from_utf8_lossy(&output.stdout);
        let differs = |line: &&str| {
            (line.starts_with('+') || line.starts_with('-'))
                && !line.starts_with("+++")
                && !line.starts_with("---")
                && !line.contains("generation")
        };
        assert_eq!(
            diff.lines().find(differs),
            None,
            "{name}: {diff}{}",
            String::from_utf8_lossy(&output.stderr)
        );

        let crd: Api<
            k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
        > = Api::all(server.client());
        let stored = serde_json::to_value(crd.get(&name).await.expect("stored")).expect("json");
        let written = serde_json::to_value(&written).expect("json");
        lost(&written["spec"], &stored["spec"], "spec");
    }
}

/// Fails when a value of `written` is not in `stored`.
fn lost(written: &Value, stored: &Value, path: &str) {
    match (written, stored) {
        (Value::Object(written), Value::Object(stored)) => {
            for (name, value) in written {
                let stored = stored
                    .get(name)
                    .unwrap_or_else(|| panic!("{path}.{name} is lost"));
                lost(value, stored, &format!("{path}.{name}"));
            }
        }
        (Value::Array(written), Value::Array(stored)) if written.len() == stored.len() => {
            for (index, (written, stored)) in written.iter().zip(stored).enumerate() {
                lost(written, stored, &format!("{path}[{index}]"));
            }
        }
        _ => assert_eq!(written, stored, "{path}"),
    }
}

#[test]
fn the_plural_names_are_the_documented_ones() {
    assert_eq!(DisklessCluster::crd_name(), "disklessclusters.diskless.dev");
    assert_eq!(DisklessTopic::crd_name(), "disklesstopics.diskless.dev");
}
