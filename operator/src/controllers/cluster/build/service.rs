//! Services.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::super::validate::ValidatedCluster;
use super::{ADMIN_PORT, INTERNAL_PORT, KAFKA_PORT, Set, zone_port};

/// Headless Services of both roles, the bootstrap Service and that of each zone.
pub fn build(cluster: &ValidatedCluster) -> Vec<Service> {
    let brokers = cluster.selector("broker", None);
    let mut services = vec![
        headless(
            cluster,
            format!("{}-coordinators", cluster.name),
            cluster.selector(Set::Coordinators.role(), None),
            None,
        ),
        headless(
            cluster,
            format!("{}-brokers", cluster.name),
            brokers.clone(),
            Some(KAFKA_PORT),
        ),
        bootstrap(
            cluster,
            format!("{}-bootstrap", cluster.name),
            &brokers,
            KAFKA_PORT,
        ),
    ];
    services.extend(cluster.zones.iter().enumerate().map(|(index, zone)| {
        bootstrap(
            cluster,
            format!("{}-{}-bootstrap", cluster.name, zone.name),
            &brokers,
            zone_port(index),
        )
    }));
    services
}

/// Gives every pod a name of its own, ready or not: peers must find a coordinator that is still catching up.
fn headless(
    cluster: &ValidatedCluster,
    name: String,
    selector: BTreeMap<String, String>,
    kafka: Option<i32>,
) -> Service {
    let mut ports = vec![
        port("internal", INTERNAL_PORT, INTERNAL_PORT),
        port("admin", ADMIN_PORT, ADMIN_PORT),
    ];
    ports.extend(kafka.map(|number| port("kafka", number, number)));
    Service {
        metadata: cluster.metadata(name, selector.clone()),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            publish_not_ready_addresses: Some(true),
            selector: Some(selector),
            ports: Some(ports),
            ..Default::default()
        }),
        status: None,
    }
}

/// First contact of clients. It selects the brokers of all zones, so it works while any broker does, and prefers
/// those near the client; which zone the client is in follows from the target port.
fn bootstrap(
    cluster: &ValidatedCluster,
    name: String,
    selector: &BTreeMap<String, String>,
    target: i32,
) -> Service {
    Service {
        metadata: cluster.metadata(name, BTreeMap::new()),
        spec: Some(ServiceSpec {
            type_: Some("ClusterIP".to_owned()),
            traffic_distribution: Some("PreferClose".to_owned()),
            selector: Some(selector.clone()),
            ports: Some(vec![port("kafka", KAFKA_PORT, target)]),
            ..Default::default()
        }),
        status: None,
    }
}

fn port(name: &str, number: i32, target: i32) -> ServicePort {
    ServicePort {
        name: Some(name.to_owned()),
        port: number,
        target_port: Some(IntOrString::Int(target)),
        protocol: Some("TCP".to_owned()),
        ..Default::default()
    }
}
