//! The broker configuration of each StatefulSet.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use sha2::{Digest, Sha256};
use toml::{Table, Value};

use super::super::validate::{CA_CERTIFICATE, POSTGRES_PASSWORD, ValidatedCluster};
use super::{ADMIN_PORT, INTERNAL_PORT, KAFKA_PORT, Set, internal_secret, zone_port};

/// Key of the one file in the ConfigMap.
pub const FILE: &str = "diskless.toml";
/// Where the data directory is mounted.
pub const DATA_DIR: &str = "/var/lib/diskless";
/// Where the credentials are mounted.
pub const CREDENTIALS_DIR: &str = "/etc/diskless/credentials";
/// Where the password of the database is mounted.
pub const POSTGRES_DIR: &str = "/etc/diskless/postgres";
/// Where the authorities of the database are mounted.
pub const POSTGRES_CA_DIR: &str = "/etc/diskless/postgres-ca";

/// The ConfigMap of a set. Its name carries the hash of its content and it never changes: a pod that restarts in the
/// middle of a rollout finds the configuration it was made for, not the one of its successor.
pub fn build(cluster: &ValidatedCluster, set: Set<'_>) -> ConfigMap {
    let text = toml(cluster, set);
    let hash = Sha256::digest(text.as_bytes());
    let hash: String = hash.iter().take(5).map(|byte| format!("{byte:02x}")).collect();
    ConfigMap {
        metadata: cluster.metadata(
            format!("{}-{hash}", cluster.set_name(set)),
            cluster.set_selector(set),
        ),
        immutable: Some(true),
        data: Some(BTreeMap::from([(FILE.to_owned(), text)])),
        ..Default::default()
    }
}

/// The file; what differs from pod to pod comes by environment.
fn toml(cluster: &ValidatedCluster, set: Set<'_>) -> String {
    let mut node = table([
        ("id_base", Value::from(set.id_base())),
        ("roles", Value::from(vec![set.role()])),
        ("data_dir", Value::from(DATA_DIR)),
    ]);
    let mut store = table([("url", Value::from(cluster.object_store.url.clone()))]);
    if cluster.object_store.credentials_secret.is_some() {
        store.insert("credentials_dir".to_owned(), CREDENTIALS_DIR.into());
    }
    let mut file = Table::new();
    match set {
        Set::Coordinators => {
            // Which zone the scheduler picks is not known here: the pod learns it. This is for a pod that does not; no
            // zone of brokers can have this name.
            node.insert("zone".to_owned(), "coordinators".into());
            let partitions = cluster.coordinators.metadata_partitions;
            let mut coordinator = table([("metadata_partitions", partitions.into())]);
            // Only where it is set: images that do not know it would refuse the file.
            if let Some(count) = cluster.num_partitions {
                coordinator.insert("num_partitions".to_owned(), count.into());
            }
            file.insert("coordinator".to_owned(), coordinator.into());
        }
        Set::Brokers(_, zone) => {
            node.insert("zone".to_owned(), zone.name.clone().into());
            let ports = cluster.zones.iter().enumerate();
            let ports: Table = ports
                .map(|(index, zone)| (zone.name.clone(), zone_port(index).into()))
                .collect();
            let listeners = [
                ("host", "0.0.0.0".into()),
                ("port", KAFKA_PORT.into()),
                ("zones", ports.into()),
            ];
            file.insert("listeners".to_owned(), table(listeners).into());
            if let Some(limit) = cluster.broker_memory_limit {
                // A broker gives half as much as the cache has to answers to consumers, a quarter to those to other brokers, and a
                // quarter to what comes in: three quarters of the limit are spoken for.
                let quarter = (limit / 4).max(MEMORY_MIN);
                let produce = quarter.min(PRODUCE_MEMORY_MAX);
                file.insert(
                    "produce".to_owned(),
                    table([("memory_bytes", produce.into())]).into(),
                );
                file.insert(
                    "cache".to_owned(),
                    table([("memory_bytes", quarter.into())]).into(),
                );
            }
        }
    }
    file.insert("node".to_owned(), node.into());
    file.insert("object_store".to_owned(), store.into());
    if let Some(postgres) = &cluster.postgres {
        let mut log = table([
            // Comes by environment. Without that this is an error, and not a log in the object store.
            ("url", "".into()),
            (
                "password_file",
                format!("{POSTGRES_DIR}/{POSTGRES_PASSWORD}").into(),
            ),
            ("cluster", postgres.cluster.clone().into()),
        ]);
        if postgres.ca_secret.is_some() {
            log.insert(
                "ca_file".to_owned(),
                format!("{POSTGRES_CA_DIR}/{CA_CERTIFICATE}").into(),
            );
        }
        file.insert("metadata_log".to_owned(), log.into());
    }
    let internal = [
        ("host", "0.0.0.0".into()),
        ("port", INTERNAL_PORT.into()),
        (
            "secret_file",
            format!("{}/{}", internal_secret::DIR, internal_secret::KEY).into(),
        ),
    ];
    file.insert("internal".to_owned(), table(internal).into());
    let admin = [("host", "0.0.0.0".into()), ("port", ADMIN_PORT.into())];
    file.insert("admin".to_owned(), table(admin).into());
    file.insert("log".to_owned(), table([("format", "json".into())]).into());
    file.to_string()
}

/// Brokers refuse less.
const MEMORY_MIN: i64 = 1024 * 1024;
/// More unacknowledged data than this does not make a broker faster.
const PRODUCE_MEMORY_MAX: i64 = 256 * 1024 * 1024;

fn table<const N: usize>(entries: [(&str, Value); N]) -> Table {
    entries
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}
