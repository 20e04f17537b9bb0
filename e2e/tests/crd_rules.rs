//! Every CEL rule of the project's kinds lets pass and refuses, on the real API server.
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

use std::collections::BTreeSet;

use crd_support::{api, cluster, object, topic, try_create, with, zones};
use e2e::apiserver::ApiServer;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

/// A rule of the CRDs, by the words it refuses with.
struct Rule {
    message: &'static str,
    passes: Vec<Step>,
    fails: Vec<Step>,
}

/// What is tried. A status is what the operator has written before.
enum Step {
    /// A new object.
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

fn cluster_rules() -> Vec<Rule> {
    const ZONES: &str = "spec/brokers/zones";
    const RESOURCES: &str = "spec/brokers/resources";
    const PLACEMENT: &str = "spec/coordinators/placement";
    const ENDPOINT: &str = "spec/objectStore/s3/endpoint";
    const LOG: &str = "spec/metadataLog";
    const LEVEL: &str = "spec/featureLevel";
    let level = |finalized: i32, before: Value, after: Value| {
        let cluster = with(cluster(), "status", json!({"featureLevel": finalized}));
        Step::Update(with(cluster.clone(), LEVEL, before), with(cluster, LEVEL, after))
    };
    vec![
        Rule {
            message: "metadata.name must have at most 40 characters",
            passes: vec![
                create("metadata/name", json!("a")),
                create("metadata/name", json!("a".repeat(40))),
            ],
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
                create(
                    RESOURCES,
                    json!({"requests": {"cpu": "1000m"}, "limits": {"cpu": 1}}),
                ),
                create(
                    RESOURCES,
                    json!({"requests": {"cpu": "3"}, "limits": {"memory": "1Gi"}}),
                ),
            ],
            fails: vec![
                create(
                    RESOURCES,
                    json!({"requests": {"cpu": "1001m"}, "limits": {"cpu": 1}}),
                ),
                create(
                    "spec/coordinators/resources",
                    json!({"requests": {"cpu": 2}, "limits": {"cpu": "1.5"}}),
                ),
            ],
        },
        Rule {
            message: "requests.memory must not be above limits.memory",
            passes: vec![create(
                RESOURCES,
                json!({"requests": {"memory": "1024Mi"}, "limits": {"memory": "1Gi"}}),
            )],
            fails: vec![create(
                RESOURCES,
                json!({"requests": {"memory": "1Gi"}, "limits": {"memory": "1G"}}),
            )],
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
            passes: vec![create(
                PLACEMENT,
                json!({"type": "Dedicated", "nodeSelector": {"pool": "x"}}),
            )],
            fails: vec![
                create(PLACEMENT, json!({"type": "Dedicated"})),
                create(PLACEMENT, json!({"type": "Dedicated", "nodeSelector": {}})),
            ],
        },
        Rule {
            message: "placement.nodeSelector can only be set when placement.type is Dedicated",
            passes: vec![
                create(PLACEMENT, json!({"type": "Colocated"})),
                create(PLACEMENT, Value::Null),
            ],
            fails: vec![create(PLACEMENT, json!({"nodeSelector": {"pool": "x"}}))],
        },
        Rule {
            message: "placement.tolerations can only be set when placement.type is Dedicated",
            passes: vec![create(
                PLACEMENT,
                json!({"type": "Dedicated", "nodeSelector": {"pool": "x"}, "tolerations": [{"operator": "Exists"}]}),
            )],
            fails: vec![create(
                PLACEMENT,
                json!({"type": "Colocated", "tolerations": [{"operator": "Exists"}]}),
            )],
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
            message: "spec.metadataLog cannot be set or removed later",
            passes: vec![
                update(LOG, Value::Null, Value::Null),
                // The same database by another name.
                update(
                    LOG,
                    json!({"postgres": {"secretRef": {"name": "a"}}}),
                    json!({"postgres": {"secretRef": {"name": "b"}}}),
                ),
            ],
            fails: vec![
                update(
                    LOG,
                    Value::Null,
                    json!({"postgres": {"secretRef": {"name": "a"}}}),
                ),
                update(
                    LOG,
                    json!({"postgres": {"secretRef": {"name": "a"}}}),
                    Value::Null,
                ),
            ],
        },
        Rule {
            message: "spec.featureLevel must not be below status.featureLevel",
            passes: vec![
                level(2, json!(2), json!(3)),
                level(2, Value::Null, json!(2)),
                level(2, json!(2), Value::Null),
                // One that is not supported is taken back.
                level(2, json!(9), json!(2)),
                // Somebody else has raised it: whatever else changes is not refused.
                level(2, json!(1), json!(1)),
                create(LEVEL, json!(1)),
                update(LEVEL, json!(2), json!(1)),
            ],
            fails: vec![
                level(2, json!(2), json!(1)),
                level(2, Value::Null, json!(1)),
                level(3, json!(1), json!(2)),
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
        with(
            with(topic(), "spec/topicName", Value::Null),
            "metadata/name",
            json!("a".repeat(length)),
        )
    };
    vec![
        Rule {
            message: "metadata.name must have at most 249 characters",
            passes: vec![
                Step::Create(unnamed(249)),
                create_topic("metadata/name", json!("a".repeat(250))),
            ],
            fails: vec![Step::Create(unnamed(250))],
        },
        Rule {
            message: "spec.clusterRef cannot be changed",
            passes: vec![update_topic(
                "spec/clusterRef",
                json!({"name": "a"}),
                json!({"name": "a"}),
            )],
            fails: vec![update_topic(
                "spec/clusterRef",
                json!({"name": "a"}),
                json!({"name": "b"}),
            )],
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
            passes: vec![
                create_topic("spec/topicName", json!("_a.B-9")),
                create_topic("spec/topicName", json!("...")),
            ],
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

async fn take(client: &Client, step: &Step, number: usize) -> Result<DynamicObject, kube::Error> {
    let try_only = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    match step {
        Step::Create(new) => try_create(client, new).await,
        Step::Update(before, after) => {
            let name = format!("case-{number}");
            let before = with(before.clone(), "metadata/name", json!(name));
            let mut stored = api(client, &before)
                .create(&PostParams::default(), &object(&before))
                .await?;
            if let Some(status) = before.get("status") {
                let status = Patch::Merge(json!({"status": status}));
                stored = api(client, &before)
                    .patch_status(&name, &PatchParams::default(), &status)
                    .await?;
            }
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
            for rule in fields
                .get("x-kubernetes-validations")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
            {
                found.insert(
                    rule["message"]
                        .as_str()
                        .expect("every rule has a message")
                        .to_owned(),
                );
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
        assert!(
            !rule.passes.is_empty() && !rule.fails.is_empty(),
            "{}",
            rule.message
        );
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
                Err(error) => wrong.push(format!(
                    "{}: case {number} is refused otherwise: {error}",
                    rule.message
                )),
                Ok(_) => wrong.push(format!("{}: case {number} passes", rule.message)),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(untested.is_empty(), "rules without a case: {untested:?}");
}
