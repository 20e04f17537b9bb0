//! The built objects as a whole, and that nothing in the spec is without effect.

use std::collections::BTreeSet;

use crds::DisklessCluster;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::super::feature_level;
use super::super::validate::{ValidatedCluster, validate};
use super::*;
use crate::admin::Levels;
use crate::context::Settings;

fn settings() -> Settings {
    Settings {
        namespace: None,
        broker_image: "registry.example.org/diskless-broker:1.0".into(),
        cluster_domain: "cluster.local".into(),
        admin_address: None,
    }
}

fn cluster(spec: &Value) -> Result<ValidatedCluster, String> {
    let object = json!({
        "apiVersion": "diskless.dev/v1alpha1",
        "kind": "DisklessCluster",
        "metadata": {"name": "demo", "namespace": "kafka", "uid": "11111111-2222-3333-4444-555555555555"},
        "spec": spec,
    });
    let object: DisklessCluster = serde_json::from_value(object).map_err(|error| error.to_string())?;
    validate(&object, &settings())
}

/// A spec with every field.
fn full() -> Value {
    json!({
        "image": "registry.example.org/diskless-broker:2.0",
        "featureLevel": 2,
        "config": {"num.partitions": 6},
        "brokers": {
            "replicas": 4,
            "zones": [{"name": "a"}, {"name": "b"}, {"name": "c"}],
            "resources": {
                "requests": {"cpu": "500m", "memory": "1Gi", "ephemeral-storage": "2Gi"},
                "limits": {"cpu": "2", "memory": "2Gi", "ephemeral-storage": "4Gi"},
            },
        },
        "coordinators": {
            "replicas": 2,
            "metadataPartitions": 3,
            "placement": {
                "type": "Dedicated",
                "nodeSelector": {"pool": "coordinators"},
                "tolerations": [{
                    "key": "pool", "operator": "Equal", "value": "coordinators", "effect": "NoExecute",
                    "tolerationSeconds": 30,
                }],
            },
            "resources": {
                "requests": {"cpu": "100m", "memory": "256Mi", "ephemeral-storage": "1Gi"},
                "limits": {"cpu": "1", "memory": "512Mi", "ephemeral-storage": "3Gi"},
            },
        },
        "objectStore": {
            "s3": {
                "bucket": "records", "prefix": "clusters/demo", "region": "eu-central-1",
                "endpoint": "http://s3.storage.svc:7070", "pathStyle": true,
            },
            "credentials": {"secretRef": {"name": "s3-credentials"}},
        },
        "metadataLog": {"postgres": {"secretRef": {"name": "database"}, "caSecretRef": {"name": "database-ca"}}},
    })
}

fn yaml(objects: &[impl serde::Serialize]) -> String {
    objects
        .iter()
        .map(|object| format!("---\n{}", serde_saphyr::to_string(object).unwrap()))
        .collect()
}

fn everything(objects: &Objects) -> String {
    [
        yaml(std::slice::from_ref(&objects.service_account)),
        yaml(&objects.services),
        yaml(&objects.config_maps),
        yaml(&objects.disruption_budgets),
        yaml(&objects.stateful_sets),
    ]
    .concat()
}

#[test]
fn a_full_cluster() {
    let objects = build(&cluster(&full()).unwrap());
    insta::assert_snapshot!("service_account", yaml(&[objects.service_account]));
    insta::assert_snapshot!("services", yaml(&objects.services));
    insta::assert_snapshot!("config_maps", yaml(&objects.config_maps));
    insta::assert_snapshot!("disruption_budgets", yaml(&objects.disruption_budgets));
    // The zones differ in their names only, which the smallest cluster shows.
    insta::assert_snapshot!("stateful_sets", yaml(&objects.stateful_sets[..2]));
}

#[test]
fn the_smallest_cluster() {
    let spec = json!({
        "brokers": {"replicas": 1, "zones": [{"name": "a"}]},
        "coordinators": {"replicas": 1},
        "objectStore": {"s3": {"bucket": "records", "region": "eu-central-1"}},
    });
    let objects = build(&cluster(&spec).unwrap());
    insta::assert_snapshot!("smallest", everything(&objects));
}

#[test]
fn the_same_cluster_gives_the_same_bytes() {
    let objects = || everything(&build(&cluster(&full()).unwrap()));
    assert_eq!(objects(), objects());
}

#[test]
fn one_pod_has_no_disruption_budget() {
    let mut spec = full();
    spec["brokers"]["replicas"] = 1.into();
    let names: Vec<_> = build(&cluster(&spec).unwrap())
        .disruption_budgets
        .iter()
        .map(ResourceExt::name_any)
        .collect();
    assert_eq!(names, ["demo-coordinators"]);
}

#[test]
fn a_changed_configuration_is_another_config_map_and_another_template() {
    let before = build(&cluster(&full()).unwrap());
    let mut spec = full();
    spec["coordinators"]["metadataPartitions"] = 5.into();
    let after = build(&cluster(&spec).unwrap());
    let names = |objects: &Objects| -> Vec<String> {
        objects.config_maps.iter().map(ResourceExt::name_any).collect()
    };
    let (before_names, after_names) = (names(&before), names(&after));
    // Of the coordinators alone: brokers are not restarted for what does not concern them.
    assert_ne!(before_names[0], after_names[0]);
    assert_eq!(before_names[1..], after_names[1..]);
    assert_ne!(before.stateful_sets[0], after.stateful_sets[0]);
    assert_eq!(before.stateful_sets[1..], after.stateful_sets[1..]);
}

#[test]
fn labels_and_annotations_of_the_user_stay_where_they_are() {
    let text = everything(&build(&cluster(&full()).unwrap()));
    assert!(!text.contains("app.kubernetes.io/instance"), "{text}");
}

/// Every leaf of the schema, as a path of property names; items of an array are the segment `0`.
fn leaves(schema: &Value, path: &str, found: &mut BTreeSet<String>) {
    if let Some(properties) = schema["properties"].as_object() {
        for (name, schema) in properties {
            leaves(schema, &format!("{path}/{name}"), found);
        }
    } else if schema["items"].is_object() {
        leaves(&schema["items"], &format!("{path}/0"), found);
    } else if schema["additionalProperties"].is_object() {
        found.insert(format!("{path}/*"));
    } else {
        found.insert(path.to_owned());
    }
}

/// Another value than `value` that the schema would take.
fn mutated(path: &str, value: &Value) -> Value {
    match (path, value) {
        ("/coordinators/placement/type", _) => "Colocated".into(),
        ("/coordinators/placement/tolerations/0/operator", _) => "Exists".into(),
        ("/coordinators/placement/tolerations/0/effect", _) => "NoSchedule".into(),
        (_, Value::Bool(value)) => (!value).into(),
        (_, Value::Number(number)) => (number.as_i64().unwrap() + 1).into(),
        (path, Value::String(text)) if path.contains("/resources/") => format!("1{text}").into(),
        (_, Value::String(text)) => format!("{text}x").into(),
        (_, Value::Object(map)) => map
            .iter()
            .map(|(key, value)| (key.clone(), mutated(path, value)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        _ => panic!("{path} is no leaf: {value}"),
    }
}

#[test]
fn every_leaf_of_the_spec_has_an_effect() {
    let definitions = crds::all().unwrap();
    let definition = definitions
        .iter()
        .find(|d| d.spec.names.kind == "DisklessCluster")
        .unwrap();
    let schema = serde_json::to_value(&definition.spec.versions[0].schema).unwrap();
    let mut paths = BTreeSet::new();
    leaves(&schema["openAPIV3Schema"]["properties"]["spec"], "", &mut paths);
    assert!(paths.len() > 20, "{paths:?}");

    // What is built, and what the brokers are told.
    let effect = |cluster: &ValidatedCluster| {
        let levels = Levels {
            finalized: 1,
            min: 1,
            max: 9,
        };
        let told = feature_level::next(cluster.feature_level, levels);
        (everything(&build(cluster)), told)
    };
    let before = effect(&cluster(&full()).unwrap());
    for path in paths {
        let mut spec = full();
        let pointer = path.trim_end_matches("/*");
        let place = spec
            .pointer_mut(pointer)
            .unwrap_or_else(|| panic!("the sample has no {path}"));
        *place = mutated(&path, place);
        match cluster(&spec) {
            Ok(cluster) => assert_ne!(effect(&cluster), before, "{path} has no effect"),
            Err(refusal) => assert!(refusal.contains("spec."), "{path}: {refusal}"),
        }
    }
}

#[test]
fn what_got_past_an_older_definition_is_refused_by_name() {
    let refusal = |change: &dyn Fn(&mut Value)| {
        let mut spec = full();
        change(&mut spec);
        cluster(&spec).unwrap_err()
    };
    assert!(refusal(&|s| s["brokers"]["zones"] = json!([])).contains("spec.brokers.zones"));
    assert!(refusal(&|s| s["brokers"]["zones"][1]["name"] = "a".into()).contains("twice"));
    assert!(refusal(&|s| s["brokers"]["zones"][1]["name"] = "bootstrap".into()).contains("bootstrap"));
    assert!(refusal(&|s| s["brokers"]["zones"][1]["name"] = "z".repeat(60).into()).contains("too long"));
    assert!(refusal(&|s| s["brokers"]["replicas"] = 0.into()).contains("spec.brokers.replicas"));
    assert!(refusal(&|s| s["featureLevel"] = 40_000.into()).contains("spec.featureLevel"));
    assert!(refusal(&|s| s["config"]["num.partitions"] = 0.into()).contains("num.partitions"));
    let both = refusal(&|s| {
        s["brokers"]["replicas"] = 0.into();
        s["coordinators"]["replicas"] = 0.into();
    });
    assert!(
        both.contains("spec.brokers.replicas") && both.contains("spec.coordinators.replicas"),
        "{both}"
    );
}
