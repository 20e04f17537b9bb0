//! Objects to try on the API server, and the trying.

use crds::{DisklessCluster, DisklessTopic};
use kube::Client;
use kube::api::{Api, DynamicObject, PostParams};
use kube::core::ApiResource;
use serde_json::{Value, json};

/// A cluster of which every field is set.
pub fn cluster() -> Value {
    json!({
        "apiVersion": "diskless.dev/v1alpha1",
        "kind": "DisklessCluster",
        "metadata": {"name": "demo", "namespace": "default"},
        "spec": {
            "image": "registry.example.org/diskless-broker:1",
            "featureLevel": 2,
            "config": {"num.partitions": 6},
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
            },
            "metadataLog": {
                "postgres": {"secretRef": {"name": "database"}, "caSecretRef": {"name": "database-ca"}}
            }
        }
    })
}

/// A topic of which every field is set.
pub fn topic() -> Value {
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
pub fn with(mut object: Value, path: &str, value: Value) -> Value {
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

pub fn zones(names: &[&str]) -> Value {
    names.iter().map(|name| json!({"name": name})).collect()
}

pub fn api(client: &Client, object: &Value) -> Api<DynamicObject> {
    let resource = match object["kind"].as_str() {
        Some("DisklessCluster") => ApiResource::erase::<DisklessCluster>(&()),
        _ => ApiResource::erase::<DisklessTopic>(&()),
    };
    Api::namespaced_with(client.clone(), "default", &resource)
}

pub fn object(value: &Value) -> DynamicObject {
    serde_json::from_value(value.clone()).expect("an object")
}

/// What the API server would store for a new object.
pub async fn try_create(client: &Client, new: &Value) -> Result<DynamicObject, kube::Error> {
    let try_only = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    api(client, new).create(&try_only, &object(new)).await
}
