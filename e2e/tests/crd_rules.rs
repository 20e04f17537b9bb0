//! What the real API server makes of the project's kinds: what it refuses, fills in, keeps and shows.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs, reason = "tests")]

use std::collections::BTreeSet;

use crds::{DisklessCluster, DisklessTopic};
use e2e::apiserver::ApiServer;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use kube::{Client, CustomResourceExt, ResourceExt};
use serde_json::{Value, json};

/// A cluster of which every field is set.
fn cluster() -> Value {
    json!({
        "apiVersion": "diskless.dev/v1alpha1",
        "kind": "DisklessCluster",
        "metadata": {"name": "demo", "namespace": "default"},
        "spec": {
            "image": "registry.example.org/diskless-broker:1",
            "brokers": {
                "replicas": 6,
                "zones": [{"name": "a"}, {"name": "b"}],
                "resources": {
                    "requests": {"cpu": "500m", "memory": "1Gi", "ephemeral-storage": "1Gi"},
                    "limits": {"cpu": 2, "memory": "2Gi", "ephemeral-storage": "2Gi"}
                }
            },
            "coordinators": {
                "replicas": 3,
                "metadataPartitions": 4,
                "placement": {
                    "type": "Dedicated",
                    "nodeSelector": {"diskless.dev/role": "coordinator"},
                    "tolerations": [{
                        "key": "diskless.dev/role", "operator": "Equal", "value": "coordinator",
                        "effect": "NoExecute", "tolerationSeconds": 60
                    }]
                },
                "resources": {
                    "requests": {"cpu": "250m", "memory": "512Mi", "ephemeral-storage": "1Gi"},
                    "limits": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "2Gi"}
                }
            },
            "objectStore": {
                "s3": {
                    "bucket": "records", "prefix": "prod/demo", "region": "eu-central-1",
                    "endpoint": "http://s3.default.svc:7070", "pathStyle": true
                },
                "credentials": {"secretRef": {"name": "s3-credentials"}}
            }
        }
    })
}

/// A topic of which every field is set.
fn topic() -> Value {
    json!({
        "apiVersion": "diskless.dev/v1alpha1",
        "kind": "DisklessTopic",
        "metadata": {"name": "orders", "namespace": "default"},
        "spec": {
            "clusterRef": {"name": "demo"},
            "topicName": "Orders_v1",
            "partitions": 6,
            "config": {
                "cleanup.policy": "delete", "compression.type": "producer", "max.message.bytes": 2097152,
                "message.timestamp.type": "LogAppendTime", "retention.bytes": -1, "retention.ms": 86400000
            },
            "deletionPolicy": "Delete"
        }
    })
}

/// `object` with the value at `path` (names with dots between them) replaced; null removes it.
fn with(mut object: Value, path: &str, value: Value) -> Value {
    let (parents, last) = path.rsplit_once('/').unwrap_or(("", path));
    let mut at = &mut object;
    for name in parents.split('/').filter(|name| !name.is_empty()) {
        at = &mut at[name];
    }
    match value {
        Value::Null => {
            at.as_object_mut().expect("an object").remove(last);
        }
        value => at[last] = value,
    }
    object
}

/// A rule of the CRDs, by the words it refuses with.
struct Rule {
    message: &'static str,
    passes: Vec<Step>,
    fails: Vec<Step>,
}

enum Step {
    Create(Value),
    /// From the first to the second.
    Update(Value, Value),
}

fn create(path: &str, value: Value) -> Step {
    Step::Create(with(cluster(), path, value))
}

fn update(path: &str, before: Value, after: Value) -> Step {
    Step::Update(with(cluster(), path, before), with(cluster(), path, after))
}

fn create_topic(path: &str, value: Value) -> Step {
    Step::Create(with(topic(), path, value))
}

fn update_topic(path: &str, before: Value, after: Value) -> Step {
    Step::Update(with(topic(), path, before), with(topic(), path, after))
}

fn zones(names: &[&str]) -> Value {
    names.iter().map(|name| json!({"name": name})).collect()
}

fn cluster_rules() -> Vec<Rule> {
    const ZONES: &str = "spec/brokers/zones";
    const RESOURCES: &str = "spec/brokers/resources";
    const PLACEMENT: &str = "spec/coordinators/placement";
    const ENDPOINT: &str = "spec/objectStore/s3/endpoint";
    vec![
        Rule {
            message: "metadata.name must have at most 40 characters",
            passes: vec![create("metadata/name", json!("a")), create("metadata/name", json!("a".repeat(40)))],
            fails: vec![
                create("metadata/name", json!("a".repeat(41))),
                create("metadata/name", json!("1st")),
                create("metadata/name", json!("with.dot")),
            ],
        },
        Rule {
            message: "together must have at most 51 characters",
            passes: vec![Step::Create(with(
                with(cluster(), "metadata/name", json!("a".repeat(31))),
                ZONES,
                zones(&["a", &"z".repeat(20)]),
            ))],
            fails: vec![Step::Create(with(
                with(cluster(), "metadata/name", json!("a".repeat(31))),
                ZONES,
                zones(&["a", &"z".repeat(21)]),
            ))],
        },
        Rule {
            message: "name of a zone must not be bootstrap",
            passes: vec![create(ZONES, zones(&["eu-central-1a", "1"]))],
            fails: vec![
                create(ZONES, zones(&["coordinator"])),
                create(ZONES, zones(&["a", "brokers"])),
            ],
        },
        Rule {
            message: "spec.brokers.zones must keep its zones in their order",
            passes: vec![
                update(ZONES, zones(&["a", "b"]), zones(&["a", "b", "c"])),
                update(ZONES, zones(&["a", "b"]), zones(&["a", "b"])),
            ],
            fails: vec![
                update(ZONES, zones(&["a", "b"]), zones(&["b", "a"])),
                update(ZONES, zones(&["a", "b"]), zones(&["a"])),
                update(ZONES, zones(&["a", "b"]), zones(&["c", "a", "b"])),
                update(ZONES, zones(&["a", "b"]), zones(&["a", "c"])),
            ],
        },
        Rule {
            message: "requests.cpu must not be above limits.cpu",
            passes: vec![
                create(RESOURCES, json!({"requests": {"cpu": "1000m"}, "limits": {"cpu": 1}})),
                create(RESOURCES, json!({"requests": {"cpu": "3"}, "limits": {"memory": "1Gi"}})),
            ],
            fails: vec![
                create(RESOURCES, json!({"requests": {"cpu": "1001m"}, "limits": {"cpu": 1}})),
                create("spec/coordinators/resources", json!({"requests": {"cpu": 2}, "limits": {"cpu": "1.5"}})),
            ],
        },
        Rule {
            message: "requests.memory must not be above limits.memory",
            passes: vec![create(RESOURCES, json!({"requests": {"memory": "1024Mi"}, "limits": {"memory": "1Gi"}}))],
            fails: vec![create(RESOURCES, json!({"requests": {"memory": "1Gi"}, "limits": {"memory": "1G"}}))],
        },
        Rule {
            message: "spec.coordinators.metadataPartitions can grow but not shrink",
            passes: vec![update("spec/coordinators/metadataPartitions", json!(3), json!(4))],
            fails: vec![
                update("spec/coordinators/metadataPartitions", json!(4), json!(3)),
                // Without the field the default, 3, comes back.
                update("spec/coordinators/metadataPartitions", json!(4), Value::Null),
            ],
        },
        Rule {
            message: "placement.nodeSelector must name the nodes of the pool",
            passes: vec![create(PLACEMENT, json!({"type": "Dedicated", "nodeSelector": {"pool": "x"}}))],
            fails: vec![
                create(PLACEMENT, json!({"type": "Dedicated"})),
                create(PLACEMENT, json!({"type": "Dedicated", "nodeSelector": {}})),
            ],
        },
        Rule {
            message: "placement.nodeSelector can only be set when placement.type is Dedicated",
            passes: vec![create(PLACEMENT, json!({"type": "Colocated"})), create(PLACEMENT, Value::Null)],
            fails: vec![create(PLACEMENT, json!({"nodeSelector": {"pool": "x"}}))],
        },
        Rule {
            message: "placement.tolerations can only be set when placement.type is Dedicated",
            passes: vec![create(
                PLACEMENT,
                json!({"type": "Dedicated", "nodeSelector": {"pool": "x"}, "tolerations": [{"operator": "Exists"}]}),
            )],
            fails: vec![create(PLACEMENT, json!({"type": "Colocated", "tolerations": [{"operator": "Exists"}]}))],
        },
        Rule {
            message: "spec.objectStore.s3.bucket cannot be changed",
            passes: vec![update("spec/objectStore/s3/bucket", json!("one"), json!("one"))],
            fails: vec![update("spec/objectStore/s3/bucket", json!("one"), json!("two"))],
        },
        Rule {
            message: "spec.objectStore.s3.prefix cannot be changed",
            passes: vec![update("spec/objectStore/s3/prefix", json!(""), Value::Null)],
            fails: vec![
                update("spec/objectStore/s3/prefix", json!("one"), json!("two")),
                update("spec/objectStore/s3/prefix", json!("one"), Value::Null),
                update("spec/objectStore/s3/prefix", Value::Null, json!("two")),
            ],
        },
        Rule {
            message: "spec.objectStore.s3.endpoint must be an http or https URL",
            passes: vec![
                create(ENDPOINT, json!("https://s3.example.org")),
                create(ENDPOINT, json!("http://10.0.0.1:9000/")),
                create(ENDPOINT, json!("http://[::1]:9000")),
                update(ENDPOINT, json!("http://a:1"), json!("https://b:2")),
            ],
            fails: vec![
                create(ENDPOINT, json!("s3.example.org")),
                create(ENDPOINT, json!("ftp://s3.example.org")),
                create(ENDPOINT, json!("http://")),
                create(ENDPOINT, json!("http://s3.example.org/path")),
                create(ENDPOINT, json!("http://s3.example.org?a=b")),
                create(ENDPOINT, json!("http://s3.example.org?")),
                create(ENDPOINT, json!("http://s3.example.org#a")),
                create(ENDPOINT, json!("http://key:secret@s3.example.org")),
            ],
        },
    ]
}

fn topic_rules() -> Vec<Rule> {
    let unnamed = |length: usize| {
        with(with(topic(), "spec/topicName", Value::Null), "metadata/name", json!("a".repeat(length)))
    };
    vec![
        Rule {
            message: "metadata.name must have at most 249 characters",
            passes: vec![Step::Create(unnamed(249)), create_topic("metadata/name", json!("a".repeat(250)))],
            fails: vec![Step::Create(unnamed(250))],
        },
        Rule {
            message: "spec.clusterRef cannot be changed",
            passes: vec![update_topic("spec/clusterRef", json!({"name": "a"}), json!({"name": "a"}))],
            fails: vec![update_topic("spec/clusterRef", json!({"name": "a"}), json!({"name": "b"}))],
        },
        Rule {
            message: "spec.topicName cannot be changed, set or removed later",
            passes: vec![
                update_topic("spec/topicName", json!("One"), json!("One")),
                update_topic("spec/topicName", Value::Null, Value::Null),
            ],
            fails: vec![
                update_topic("spec/topicName", json!("One"), json!("Two")),
                update_topic("spec/topicName", json!("One"), Value::Null),
                update_topic("spec/topicName", Value::Null, json!("Two")),
            ],
        },
        Rule {
            message: "spec.topicName must not be '.' or '..'",
            passes: vec![create_topic("spec/topicName", json!("_a.B-9")), create_topic("spec/topicName", json!("..."))],
            fails: vec![
                create_topic("spec/topicName", json!(".")),
                create_topic("spec/topicName", json!("..")),
                create_topic("spec/topicName", json!("__consumer_offsets")),
            ],
        },
        Rule {
            message: "spec.partitions can grow but not shrink",
            passes: vec![update_topic("spec/partitions", json!(6), json!(7))],
            fails: vec![
                update_topic("spec/partitions", json!(6), json!(5)),
                update_topic("spec/partitions", json!(6), Value::Null),
            ],
        },
    ]
}

fn api(client: &Client, object: &Value) -> Api<DynamicObject> {
    let resource = match object["kind"].as_str() {
        Some("DisklessCluster") => ApiResource::erase::<DisklessCluster>(&()),
        _ => ApiResource::erase::<DisklessTopic>(&()),
    };
    Api::namespaced_with(client.clone(), "default", &resource)
}

fn object(value: &Value) -> DynamicObject {
    serde_json::from_value(value.clone()).expect("an object")
}

async fn take(client: &Client, step: &Step, number: usize) -> Result<DynamicObject, kube::Error> {
    let try_only = PostParams { dry_run: true, ..PostParams::default() };
    match step {
        Step::Create(new) => api(client, new).create(&try_only, &object(new)).await,
        Step::Update(before, after) => {
            let name = format!("case-{number}");
            let before = with(before.clone(), "metadata/name", json!(name));
            let stored = api(client, &before).create(&PostParams::default(), &object(&before)).await?;
            let mut after = object(&with(after.clone(), "metadata/name", json!(name)));
            after.metadata.resource_version = stored.resource_version();
            api(client, &before).replace(&name, &try_only, &after).await
        }
    }
}

/// All rules in a schema, by message.
fn messages(schema: &Value, found: &mut BTreeSet<String>) {
    match schema {
        Value::Object(fields) => {
            for rule in fields.get("x-kubernetes-validations").and_then(Value::as_array).into_iter().flatten() {
                found.insert(rule["message"].as_str().expect("every rule has a message").to_owned());
            }
            fields.values().for_each(|field| messages(field, found));
        }
        Value::Array(values) => values.iter().for_each(|value| messages(value, found)),
        _ => {}
    }
}

#[tokio::test]
async fn every_rule_lets_pass_and_refuses() {
    let server = ApiServer::with_crds().await.expect("an API server");
    let client = server.client();
    let mut untested = BTreeSet::new();
    for definition in crds::all().expect("definitions") {
        messages(&serde_json::to_value(definition).expect("json"), &mut untested);
    }
    let mut wrong = Vec::new();
    let mut number = 0;
    for rule in cluster_rules().into_iter().chain(topic_rules()) {
        assert!(!rule.passes.is_empty() && !rule.fails.is_empty(), "{}", rule.message);
        untested.retain(|message| !message.contains(rule.message));
        for step in &rule.passes {
            number += 1;
            if let Err(error) = take(&client, step, number).await {
                wrong.push(format!("{}: case {number} is refused: {error}", rule.message));
            }
        }
        for step in &rule.fails {
            number += 1;
            match take(&client, step, number).await {
                Err(kube::Error::Api(status)) if status.message.contains(rule.message) => {}
                Err(error) => wrong.push(format!("{}: case {number} is refused otherwise: {error}", rule.message)),
                Ok(_) => wrong.push(format!("{}: case {number} passes", rule.message)),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(untested.is_empty(), "rules without a case: {untested:?}");
}

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
        ("spec/brokers/zones", zones(&["a", "b", "c", "d", "e", "f", "g", "h", "i"])),
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
        let result = take(client, &Step::Create(with(base, path, value.clone())), 0).await;
        match result {
            Err(kube::Error::Api(status)) if status.reason == "Invalid" => {
                let field = path.replace('/', ".").replace(".zones", "").replace("spec.brokers.resources", "spec.brokers");
                assert!(status.message.contains(&field), "{path} = {value}: {} names another field", status.message);
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
    let stored = take(client, &Step::Create(least), 0).await.expect("a cluster of the required fields");
    assert_eq!(
        stored.data["spec"],
        json!({
            "brokers": {"replicas": 3, "zones": [{"name": "a"}]},
            "coordinators": {"replicas": 2, "metadataPartitions": 3, "placement": {"type": "Colocated"}},
            "objectStore": {"s3": {"bucket": "records", "prefix": "", "region": "us-east-1", "pathStyle": false}}
        })
    );
    let typed: crds::DisklessClusterSpec = serde_json::from_value(stored.data["spec"].clone()).expect("the type");
    assert_eq!(typed.coordinators, crds::Coordinators::default(), "the type and the schema agree");

    let least = with(topic(), "spec", json!({"clusterRef": {"name": "demo"}}));
    let stored = take(client, &Step::Create(least), 0).await.expect("a topic of the required fields");
    assert_eq!(
        stored.data["spec"],
        json!({"clusterRef": {"name": "demo"}, "partitions": 1, "deletionPolicy": "Retain"})
    );
}

async fn every_field_is_kept(client: &Client) {
    for full in [cluster(), topic()] {
        let stored = api(client, &full).create(&PostParams::default(), &object(&full)).await.expect("created");
        assert_eq!(stored.data["spec"], full["spec"], "the API server drops a field");
        // Through the Rust type and back: what the operator reads is all there is.
        let typed = match full["kind"].as_str() {
            Some("DisklessCluster") => {
                let spec: crds::DisklessClusterSpec = serde_json::from_value(full["spec"].clone()).expect("the type");
                serde_json::to_value(spec)
            }
            _ => {
                let spec: crds::DisklessTopicSpec = serde_json::from_value(full["spec"].clone()).expect("the type");
                serde_json::to_value(spec)
            }
        };
        // Quantities are strings in the type.
        let text = typed.expect("json").to_string().replace(r#""cpu":"2""#, r#""cpu":2"#);
        assert_eq!(serde_json::from_str::<Value>(&text).expect("json"), full["spec"], "the type drops a field");
    }
    let status = json!({"status": {
        "observedGeneration": 1, "clusterId": "abc", "image": "i", "bootstrap": "b:9092",
        "replicas": 6, "readyReplicas": 5, "selector": "app=x",
        "zones": [{"name": "a", "bootstrap": "a:9092", "replicas": 3, "readyReplicas": 2}],
        "conditions": [{"type": "Ready", "status": "True", "reason": "AllGood", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1}]
    }});
    let stored = api(client, &cluster()).patch_status("demo", &PatchParams::default(), &Patch::Merge(&status)).await;
    assert_eq!(stored.expect("a status").data["status"], status["status"]);
    let status = json!({"status": {
        "observedGeneration": 1, "topicName": "Orders_v1", "topicId": "id", "partitions": 6,
        "conditions": status["status"]["conditions"]
    }});
    let stored = api(client, &topic()).patch_status("orders", &PatchParams::default(), &Patch::Merge(&status)).await;
    assert_eq!(stored.expect("a status").data["status"], status["status"]);
}

async fn new_objects_are_not_ready(client: &Client) {
    for new in [cluster(), topic()] {
        let new = with(new, "metadata/name", json!("new"));
        api(client, &new).create(&PostParams::default(), &object(&new)).await.expect("created");
        let stored = api(client, &new).get("new").await.expect("stored");
        assert_eq!(stored.data["status"]["conditions"][0]["type"], "Ready");
        assert_eq!(stored.data["status"]["conditions"][0]["status"], "Unknown");
    }
}

async fn the_scale_subresource_works(client: &Client) {
    let clusters: Api<DisklessCluster> = Api::namespaced(client.clone(), "default");
    let to_nine = json!({"spec": {"replicas": 9}});
    let scale = clusters.patch_scale("demo", &PatchParams::default(), &Patch::Merge(&to_nine)).await.expect("scaled");
    let status = scale.status.expect("a status");
    assert_eq!((status.replicas, status.selector.as_deref()), (6, Some("app=x")), "of the cluster's status");
    assert_eq!(clusters.get("demo").await.expect("stored").spec.brokers.replicas, 9);
}

fn kubectl_shows_the_columns(server: &ApiServer) {
    let show = |args: &[&str]| {
        let output = server.kubectl().arg("get").args(args).output().expect("kubectl");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).expect("text");
        text.lines().map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    let shown = show(&["dkc", "demo"]);
    assert_eq!(shown[0], ["NAME", "READY", "REASON", "BROKERS", "DESIRED", "AGE"]);
    assert_eq!(shown[1][..5], ["demo", "True", "AllGood", "5", "9"]);
    let wide = show(&["dkc", "demo", "-o", "wide"]);
    assert_eq!(wide[0][6..], ["BOOTSTRAP", "ZONES", "IMAGE", "MESSAGE"]);
    assert_eq!(wide[1][6..9], ["b:9092", r#"[{"name":"a"},{"name":"b"}]"#, "i"]);
    let shown = show(&["dkt", "orders"]);
    assert_eq!(shown[0], ["NAME", "CLUSTER", "PARTITIONS", "READY", "REASON", "AGE"]);
    assert_eq!(shown[1][..5], ["orders", "demo", "6", "True", "AllGood"]);
    let all = show(&["diskless", "-o", "name"]).concat();
    assert!(all.contains(&"disklesscluster.diskless.dev/demo".to_owned()), "{all:?}");
    assert!(all.contains(&"disklesstopic.diskless.dev/orders".to_owned()), "{all:?}");
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
        assert!(matches!(output.status.code(), Some(0 | 1)), "{}", String::from_utf8_lossy(&output.stderr));
        let diff = String::from_utf8_lossy(&output.stdout);
        let differs = |line: &&str| {
            (line.starts_with('+') || line.starts_with('-'))
                && !line.starts_with("+++")
                && !line.starts_with("---")
                && !line.contains("generation")
        };
        assert_eq!(diff.lines().find(differs), None, "{name}: {diff}{}", String::from_utf8_lossy(&output.stderr));

        let crd: Api<k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition> =
            Api::all(server.client());
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
                let stored = stored.get(name).unwrap_or_else(|| panic!("{path}.{name} is lost"));
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
