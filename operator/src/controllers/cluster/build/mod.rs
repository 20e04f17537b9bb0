//! From a [`ValidatedCluster`] to every object that makes it run. Pure: no client, no clock, no state; the same
//! cluster always gives the same bytes.
//!
//! ```text
//! demo (ServiceAccount)
//! ├─ demo-coordinator (StatefulSet) ── demo-coordinators (headless Service, PodDisruptionBudget)
//! ├─ demo-a, demo-b, … (StatefulSets) ─ demo-brokers (headless Service, PodDisruptionBudget)
//! ├─ demo-<set>-<hash> (ConfigMap of each StatefulSet)
//! ├─ demo-internal (Secret, made once)
//! └─ demo-bootstrap, demo-a-bootstrap, … (Services)
//! ```

pub mod config_map;
pub mod internal_secret;
pub mod pdb;
pub mod service;
pub mod service_account;
pub mod stateful_set;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Service, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::ObjectMeta;

use super::validate::{ValidatedCluster, Zone};

/// Label with the name of the cluster that an object belongs to.
///
/// Not `app.kubernetes.io/instance`: GitOps tools claim that one for themselves and would offer our objects for
/// pruning.
pub const CLUSTER_LABEL: &str = "diskless.dev/cluster";
/// Label with the zone of a broker.
pub const ZONE_LABEL: &str = "diskless.dev/zone";
/// Label and value on everything the operator makes; its watches select by it.
pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "diskless-operator");

/// Port of clients whose zone is unknown.
pub const KAFKA_PORT: i32 = 9092;
/// Port of the RPCs between brokers and coordinators.
pub const INTERNAL_PORT: i32 = 9190;
/// Port of /healthz, /readyz and /metrics.
pub const ADMIN_PORT: i32 = 9644;

/// What a StatefulSet runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Set<'a> {
    /// All coordinators.
    Coordinators,
    /// The brokers of a zone, which is the n-th of the spec.
    Brokers(usize, &'a Zone),
}

impl<'a> Set<'a> {
    /// Role in the broker's configuration and value of the component label.
    pub fn role(self) -> &'static str {
        match self {
            Set::Coordinators => "coordinator",
            Set::Brokers(..) => "broker",
        }
    }

    /// Zone of brokers.
    pub fn zone(self) -> Option<&'a Zone> {
        match self {
            Set::Coordinators => None,
            Set::Brokers(_, zone) => Some(zone),
        }
    }

    /// Node ids of a set are this plus the ordinal of the pod.
    pub fn id_base(self) -> i32 {
        match self {
            Set::Coordinators => 0,
            Set::Brokers(index, _) => 1000 * small(index + 1),
        }
    }
}

/// Every object of a cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct Objects {
    /// Identity of the pods; it has no rights in Kubernetes.
    pub service_account: ServiceAccount,
    /// Headless and bootstrap Services.
    pub services: Vec<Service>,
    /// Configuration of each set.
    pub config_maps: Vec<ConfigMap>,
    /// One for each role that has more than one pod.
    pub disruption_budgets: Vec<PodDisruptionBudget>,
    /// Coordinators first, then the zones in order: the order of a rollout.
    pub stateful_sets: Vec<StatefulSet>,
}

/// Builds every object of a cluster.
pub fn build(cluster: &ValidatedCluster) -> Objects {
    let sets = cluster.sets();
    let config_maps: Vec<_> = sets.iter().map(|set| config_map::build(cluster, *set)).collect();
    let stateful_sets = sets
        .iter()
        .zip(&config_maps)
        .map(|(set, config)| stateful_set::build(cluster, *set, config))
        .collect();
    Objects {
        service_account: service_account::build(cluster),
        services: service::build(cluster),
        disruption_budgets: pdb::build(cluster),
        config_maps,
        stateful_sets,
    }
}

impl ValidatedCluster {
    /// The StatefulSets in the order in which they are rolled.
    pub fn sets(&self) -> Vec<Set<'_>> {
        let zones = self
            .zones
            .iter()
            .enumerate()
            .map(|(index, zone)| Set::Brokers(index, zone));
        std::iter::once(Set::Coordinators).chain(zones).collect()
    }

    /// Name of a StatefulSet.
    pub fn set_name(&self, set: Set<'_>) -> String {
        match set {
            Set::Coordinators => format!("{}-coordinator", self.name),
            Set::Brokers(_, zone) => format!("{}-{}", self.name, zone.name),
        }
    }

    /// Headless Service that names the pods of a set.
    pub fn headless_service(&self, set: Set<'_>) -> String {
        match set {
            Set::Coordinators => format!("{}-coordinators", self.name),
            Set::Brokers(..) => format!("{}-brokers", self.name),
        }
    }

    /// Replicas a set should have.
    pub fn replicas(&self, set: Set<'_>) -> i32 {
        match set {
            Set::Coordinators => self.coordinators.replicas,
            Set::Brokers(_, zone) => zone.replicas,
        }
    }

    /// `host:port` for clients anywhere in the Kubernetes cluster.
    pub fn bootstrap_address(&self) -> String {
        self.address(&format!("{}-bootstrap", self.name))
    }

    /// `host:port` for clients of a zone.
    pub fn zone_bootstrap_address(&self, zone: &Zone) -> String {
        self.address(&format!("{}-{}-bootstrap", self.name, zone.name))
    }

    fn address(&self, service: &str) -> String {
        format!(
            "{service}.{}.svc.{}:{KAFKA_PORT}",
            self.namespace, self.cluster_domain
        )
    }

    /// Labels that select the pods of a role, or of one zone of it.
    pub fn selector(&self, role: &str, zone: Option<&Zone>) -> BTreeMap<String, String> {
        let mut labels = BTreeMap::from([
            ("app.kubernetes.io/component".to_owned(), role.to_owned()),
            (CLUSTER_LABEL.to_owned(), self.name.clone()),
        ]);
        labels.extend(zone.map(|zone| (ZONE_LABEL.to_owned(), zone.name.clone())));
        labels
    }

    fn set_selector(&self, set: Set<'_>) -> BTreeMap<String, String> {
        self.selector(set.role(), set.zone())
    }

    /// Metadata of a child. Nothing is taken over from the labels of the cluster itself: tracking labels of GitOps
    /// tools on our children would make them prunable.
    fn metadata(&self, name: String, more: BTreeMap<String, String>) -> ObjectMeta {
        let mut labels = BTreeMap::from([
            ("app.kubernetes.io/name".to_owned(), "diskless".to_owned()),
            (MANAGED_BY.0.to_owned(), MANAGED_BY.1.to_owned()),
            (CLUSTER_LABEL.to_owned(), self.name.clone()),
        ]);
        labels.extend(more);
        ObjectMeta {
            name: Some(name),
            namespace: Some(self.namespace.clone()),
            labels: Some(labels),
            owner_references: Some(vec![self.owner.clone()]),
            ..Default::default()
        }
    }
}

/// Port of the clients of the n-th zone, the same on every broker.
pub fn zone_port(index: usize) -> i32 {
    KAFKA_PORT + 1 + small(index)
}

/// Zones are few.
fn small(index: usize) -> i32 {
    i32::try_from(index).unwrap_or(i32::MAX / 2000)
}
