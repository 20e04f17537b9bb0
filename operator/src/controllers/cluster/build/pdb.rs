//! PodDisruptionBudgets.

use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::super::validate::ValidatedCluster;
use super::Set;

/// One budget over all brokers and one over all coordinators. A role with a single pod has none: a budget could
/// only stop node drains there.
pub fn build(cluster: &ValidatedCluster) -> Vec<PodDisruptionBudget> {
    let brokers: i32 = cluster.zones.iter().map(|zone| zone.replicas).sum();
    let roles = [
        ("broker", "brokers", brokers),
        (
            Set::Coordinators.role(),
            "coordinators",
            cluster.coordinators.replicas,
        ),
    ];
    roles
        .into_iter()
        .filter(|(_, _, replicas)| *replicas > 1)
        .map(|(role, name, _)| budget(cluster, role, name))
        .collect()
}

fn budget(cluster: &ValidatedCluster, role: &str, name: &str) -> PodDisruptionBudget {
    let selector = cluster.selector(role, None);
    PodDisruptionBudget {
        metadata: cluster.metadata(format!("{}-{name}", cluster.name), selector.clone()),
        spec: Some(PodDisruptionBudgetSpec {
            max_unavailable: Some(IntOrString::Int(1)),
            selector: Some(LabelSelector {
                match_labels: Some(selector),
                ..Default::default()
            }),
            // A pod that does not work protects nothing and must not block the drain of its node.
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".to_owned()),
            ..Default::default()
        }),
        status: None,
    }
}
