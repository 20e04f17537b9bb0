//! Finds what a topic speaks of, its cluster, and who else claims its name.

use std::sync::Arc;

use crds::{DisklessCluster, DisklessTopic};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::jiff::Timestamp;
use kube::core::DeserializeGuard;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Resource, ResourceExt};

use super::validate::topic_name;
use crate::context::Context;

/// State of the cluster that a topic names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cluster {
    /// There is none of that name in the namespace.
    Missing,
    /// It is being deleted.
    Ending,
    /// Where its brokers are.
    At(String),
}

/// The cluster of that name.
pub fn cluster(
    context: &Context,
    clusters: &Store<DeserializeGuard<DisklessCluster>>,
    namespace: &str,
    name: &str,
) -> Cluster {
    let Some(cluster) = clusters.get(&ObjectRef::new(name).within(namespace)) else {
        return Cluster::Missing;
    };
    if cluster.meta().deletion_timestamp.is_some() {
        return Cluster::Ending;
    }
    let service = || {
        let port = crate::controllers::cluster::build::KAFKA_PORT;
        format!(
            "{name}-bootstrap.{namespace}.svc.{}:{port}",
            context.settings.cluster_domain
        )
    };
    Cluster::At(context.settings.admin_address.clone().unwrap_or_else(service))
}

/// The object that has the topic's name, if it is another: of all that claim one name in one cluster, the oldest has it,
/// of equally old ones that with the smallest uid. So the answer is the same whoever asks, and after any restart.
pub fn rival(topics: &[Arc<DeserializeGuard<DisklessTopic>>], topic: &DisklessTopic) -> Option<String> {
    fn age(topic: &DisklessTopic) -> (Option<Timestamp>, Option<&str>) {
        let meta = &topic.metadata;
        (
            meta.creation_timestamp.as_ref().map(|time| time.0),
            meta.uid.as_deref(),
        )
    }
    let name = topic_name(topic);
    // Every topic looks at all: nothing is copied.
    let claims = |other: &&DisklessTopic| {
        topic_name(other) == name
            && other.spec.cluster_ref == topic.spec.cluster_ref
            && other.metadata.namespace == topic.metadata.namespace
    };
    let others = topics.iter().filter_map(|other| other.0.as_ref().ok());
    let winner = others.filter(claims).min_by_key(|other| age(other))?;
    (age(winner) < age(topic)).then(|| winner.name_any())
}

/// Whether the namespace is being deleted. If that cannot be seen, it is not.
pub async fn namespace_is_ending(context: &Context, namespace: &str) -> bool {
    let api: Api<Namespace> = Api::all(context.client.clone());
    match api.get_metadata_opt(namespace).await {
        Ok(namespace) => namespace.is_none_or(|namespace| namespace.metadata.deletion_timestamp.is_some()),
        Err(error) => {
            tracing::debug!(namespace, %error, "cannot look at the namespace");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn topic(name: &str, created: &str, uid: &str) -> DisklessTopic {
        serde_json::from_value(json!({
            "apiVersion": "diskless.dev/v1alpha1",
            "kind": "DisklessTopic",
            "metadata": {"name": name, "namespace": "ns", "uid": uid, "creationTimestamp": created},
            "spec": {"clusterRef": {"name": "demo"}, "topicName": "orders", "partitions": 1},
        }))
        .unwrap()
    }

    #[test]
    fn the_oldest_then_the_smallest_uid_has_the_name() {
        let a = topic("a", "2026-01-01T00:00:00Z", "2");
        let b = topic("b", "2026-01-01T00:00:00Z", "1");
        let c = topic("c", "2026-01-02T00:00:00Z", "0");
        let mut other_cluster = topic("d", "2025-01-01T00:00:00Z", "3");
        other_cluster.spec.cluster_ref.name = "prod".into();
        let all = [&a, &b, &c, &other_cluster].map(|topic| Arc::new(DeserializeGuard(Ok(topic.clone()))));
        assert_eq!(rival(&all, &a).as_deref(), Some("b"));
        assert_eq!(rival(&all, &b), None);
        assert_eq!(rival(&all, &c).as_deref(), Some("b"));
        assert_eq!(rival(&all, &other_cluster), None);
    }
}
