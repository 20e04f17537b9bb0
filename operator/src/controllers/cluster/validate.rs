//! From the object as the user wrote it to a [`ValidatedCluster`]: every default, name and limit is settled here,
//! once, so that nothing after this step can fail on what a user wrote. Pure.
//!
//! The API server's schema and rules refuse these mistakes already. What is checked here again is what would do harm
//! if an object got past an older definition.

use std::collections::{BTreeMap, BTreeSet};

use crds::{DisklessCluster, DisklessClusterSpec, PlacementType};
use k8s_openapi::api::core::v1::{ResourceRequirements, Toleration};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};

use crate::context::Settings;

/// Key of the Secret with the access key id.
pub const ACCESS_KEY_ID: &str = "access_key_id";
/// Key of the Secret with the secret access key.
pub const SECRET_ACCESS_KEY: &str = "secret_access_key";
/// Key of the Secret with the URL of the database.
pub const POSTGRES_URL: &str = "url";
/// Key of the Secret with the password of the database.
pub const POSTGRES_PASSWORD: &str = "password";
/// Key of the Secret with the authorities of the database.
pub const CA_CERTIFICATE: &str = "ca.crt";

/// Names that other objects of a cluster have where a zone's objects have the zone.
const RESERVED_ZONES: [&str; 4] = ["bootstrap", "brokers", "coordinator", "coordinators"];
/// A StatefulSet with a longer name could not label its pods with their revision.
const MAX_SET_NAME: usize = 52;
/// Nodes refuse a larger default.
const MAX_NUM_PARTITIONS: i32 = 10_000;

/// A cluster whose spec has been checked and completed.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidatedCluster {
    /// Name of the `DisklessCluster`.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Reference that makes an object a child of the cluster.
    pub owner: OwnerReference,
    /// Domain of the Kubernetes cluster.
    pub cluster_domain: String,
    /// Image of brokers and coordinators.
    pub image: String,
    /// Level of `diskless.version` to finalise.
    pub feature_level: Option<i16>,
    /// Partitions of topics created without a number, if not as many as by default.
    pub num_partitions: Option<i32>,
    /// Zones in the order of the spec.
    pub zones: Vec<Zone>,
    /// Resources of each broker.
    pub broker_resources: ResourceRequirements,
    /// Memory limit of each broker in bytes.
    pub broker_memory_limit: Option<i64>,
    /// The coordinators.
    pub coordinators: Coordinators,
    /// Where the data is.
    pub object_store: ObjectStore,
    /// The database with the metadata log; without it that is in the object store as well.
    pub postgres: Option<Postgres>,
}

/// The brokers of one zone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Zone {
    /// Value of the node label `topology.kubernetes.io/zone`.
    pub name: String,
    /// Brokers in this zone.
    pub replicas: i32,
}

/// The coordinators.
#[derive(Debug, Clone, PartialEq)]
pub struct Coordinators {
    /// Pods.
    pub replicas: i32,
    /// Partitions of the metadata.
    pub metadata_partitions: i32,
    /// Labels of the nodes they may run on; empty is any node.
    pub node_selector: BTreeMap<String, String>,
    /// Taints they bear.
    pub tolerations: Vec<Toleration>,
    /// Resources of each.
    pub resources: ResourceRequirements,
}

/// Where the data is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectStore {
    /// URL as brokers take it.
    pub url: String,
    /// Secret with the credentials; without it the environment of the pods has them.
    pub credentials_secret: Option<String>,
}

/// A database with a metadata log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Postgres {
    /// Secret with the way in.
    pub secret: String,
    /// Secret with its authorities; without it those of the image count.
    pub ca_secret: Option<String>,
    /// Name of the cluster in the database, which may hold several: that of the prefix in the bucket, which no two share.
    pub cluster: String,
}

/// A Secret of the user's that pods mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SecretOf<'a> {
    /// The field that names it.
    pub field: &'static str,
    /// Its name.
    pub name: &'a str,
    /// Its keys.
    pub keys: &'static [&'static str],
}

/// The Secrets that the spec of a cluster names.
pub fn secrets(spec: &DisklessClusterSpec) -> impl Iterator<Item = SecretOf<'_>> {
    let credentials = spec
        .object_store
        .credentials
        .as_ref()
        .map(|credentials| SecretOf {
            field: "spec.objectStore.credentials.secretRef",
            name: &credentials.secret_ref.name,
            keys: &[ACCESS_KEY_ID, SECRET_ACCESS_KEY],
        });
    let postgres = spec.metadata_log.as_ref().map(|log| &log.postgres);
    let database = postgres.map(|postgres| SecretOf {
        field: "spec.metadataLog.postgres.secretRef",
        name: &postgres.secret_ref.name,
        keys: &[POSTGRES_URL, POSTGRES_PASSWORD],
    });
    let authorities = postgres
        .and_then(|postgres| postgres.ca_secret_ref.as_ref())
        .map(|secret| SecretOf {
            field: "spec.metadataLog.postgres.caSecretRef",
            name: &secret.name,
            keys: &[CA_CERTIFICATE],
        });
    credentials.into_iter().chain(database).chain(authorities)
}

/// Checks and completes the spec of a cluster.
///
/// # Errors
/// All that is wrong with it, in words that name the fields.
pub fn validate(cluster: &DisklessCluster, settings: &Settings) -> Result<ValidatedCluster, String> {
    let spec = &cluster.spec;
    let name = cluster.name_any();
    let mut problems = Vec::new();
    let mut check = |ok: bool, problem: &str| {
        if !ok {
            problems.push(problem.to_owned());
        }
    };
    let zones = &spec.brokers.zones;
    let names: BTreeSet<_> = zones.iter().map(|zone| zone.name.as_str()).collect();
    let longest = names
        .iter()
        .map(|zone| zone.len())
        .max()
        .unwrap_or(0)
        .max("coordinator".len());
    check(
        spec.brokers.replicas >= 1,
        "spec.brokers.replicas must be 1 or more",
    );
    check(
        !zones.is_empty(),
        "spec.brokers.zones must name at least one zone",
    );
    check(
        names.len() == zones.len(),
        "spec.brokers.zones must not name a zone twice",
    );
    check(
        !RESERVED_ZONES.iter().any(|reserved| names.contains(reserved)),
        "spec.brokers.zones must not name bootstrap, brokers, coordinator or coordinators",
    );
    check(
        name.len() + 1 + longest <= MAX_SET_NAME,
        "metadata.name is too long together with its zones",
    );
    check(!name.contains('.'), "metadata.name must not contain a dot");
    check(
        spec.coordinators.replicas >= 1,
        "spec.coordinators.replicas must be 1 or more",
    );
    check(
        spec.coordinators.metadata_partitions >= 1,
        "spec.coordinators.metadataPartitions must be 1 or more",
    );
    // A level that does not fit is no level.
    let feature_level = spec.feature_level.map(|level| i16::try_from(level).unwrap_or(0));
    check(
        feature_level.is_none_or(|level| level >= 1),
        "spec.featureLevel must be 1 to 32767",
    );
    let num_partitions = spec.config.num_partitions;
    check(
        num_partitions.is_none_or(|count| (1..=MAX_NUM_PARTITIONS).contains(&count)),
        "spec.config[num.partitions] must be 1 to 10000",
    );
    let placement = &spec.coordinators.placement;
    check(
        match placement.type_ {
            PlacementType::Colocated => {
                placement.node_selector.is_empty() && placement.tolerations.is_empty()
            }
            PlacementType::Dedicated => !placement.node_selector.is_empty(),
        },
        "spec.coordinators.placement must have a nodeSelector if its type is Dedicated, and only then",
    );
    let Some(owner) = cluster.controller_owner_ref(&()) else {
        return Err("metadata.uid is missing".to_owned());
    };
    if !problems.is_empty() {
        return Err(problems.join("; "));
    }

    let broker_resources: ResourceRequirements = spec
        .brokers
        .resources
        .as_ref()
        .map(Into::into)
        .unwrap_or_default();
    let memory = broker_resources
        .limits
        .as_ref()
        .and_then(|limits| limits.get("memory"));
    Ok(ValidatedCluster {
        namespace: cluster.namespace().unwrap_or_default(),
        owner,
        cluster_domain: settings.cluster_domain.clone(),
        image: spec
            .image
            .clone()
            .unwrap_or_else(|| settings.broker_image.clone()),
        feature_level,
        num_partitions,
        zones: spread(spec.brokers.replicas, names_in_order(cluster)),
        broker_memory_limit: memory.and_then(bytes),
        broker_resources,
        coordinators: Coordinators {
            replicas: spec.coordinators.replicas,
            metadata_partitions: spec.coordinators.metadata_partitions,
            node_selector: placement.node_selector.clone(),
            tolerations: placement.tolerations.clone(),
            resources: spec
                .coordinators
                .resources
                .as_ref()
                .map(Into::into)
                .unwrap_or_default(),
        },
        object_store: ObjectStore {
            url: object_store_url(&spec.object_store.s3),
            credentials_secret: spec
                .object_store
                .credentials
                .as_ref()
                .map(|c| c.secret_ref.name.clone()),
        },
        postgres: spec.metadata_log.as_ref().map(|log| Postgres {
            secret: log.postgres.secret_ref.name.clone(),
            ca_secret: log.postgres.ca_secret_ref.as_ref().map(|ca| ca.name.clone()),
            cluster: format!("{}/{}", spec.object_store.s3.bucket, spec.object_store.s3.prefix),
        }),
        name,
    })
}

fn names_in_order(cluster: &DisklessCluster) -> Vec<String> {
    cluster
        .spec
        .brokers
        .zones
        .iter()
        .map(|zone| zone.name.clone())
        .collect()
}

/// Brokers over zones, evenly; what is left over goes to the first zones.
fn spread(replicas: i32, names: Vec<String>) -> Vec<Zone> {
    let count = i32::try_from(names.len()).unwrap_or(i32::MAX).max(1);
    let zones = names.into_iter().zip(0..);
    zones
        .map(|(name, i)| Zone {
            name,
            replicas: replicas / count + i32::from(i < replicas % count),
        })
        .collect()
}

fn object_store_url(s3: &crds::S3) -> String {
    // The API server lets nothing into these fields that has a meaning in a URL.
    let mut url = format!("s3://{}", s3.bucket);
    if !s3.prefix.is_empty() {
        url = format!("{url}/{}", s3.prefix);
    }
    url = format!("{url}?region={}", s3.region);
    if let Some(endpoint) = &s3.endpoint {
        url = format!("{url}&endpoint={}", endpoint.trim_end_matches('/'));
    }
    if s3.path_style {
        url.push_str("&path_style=true");
    }
    url
}

/// A quantity of memory in bytes, if it is a whole number of them.
fn bytes(quantity: &Quantity) -> Option<i64> {
    let text = quantity.0.as_str();
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let power = |base: f64, exponent: i32| base.powi(exponent);
    let factor = match suffix {
        "" => 1.0,
        "m" => 0.001,
        "k" => power(1000.0, 1),
        "M" => power(1000.0, 2),
        "G" => power(1000.0, 3),
        "T" => power(1000.0, 4),
        "Ki" => power(1024.0, 1),
        "Mi" => power(1024.0, 2),
        "Gi" => power(1024.0, 3),
        "Ti" => power(1024.0, 4),
        _ => 10.0_f64.powi(suffix.strip_prefix(['e', 'E'])?.parse().ok()?),
    };
    let value = number.parse::<f64>().ok()? * factor;
    (value >= 1.0 && value < i64::MAX as f64).then_some(value as i64)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A cluster of one zone.
    pub fn valid() -> ValidatedCluster {
        let zones = vec![Zone {
            name: "a".to_owned(),
            replicas: 2,
        }];
        ValidatedCluster {
            name: "demo".to_owned(),
            namespace: "kafka".to_owned(),
            owner: OwnerReference::default(),
            cluster_domain: "cluster.local".to_owned(),
            image: "broker:1".to_owned(),
            feature_level: None,
            num_partitions: None,
            zones,
            broker_resources: ResourceRequirements::default(),
            broker_memory_limit: None,
            coordinators: Coordinators {
                replicas: 2,
                metadata_partitions: 3,
                node_selector: BTreeMap::new(),
                tolerations: vec![],
                resources: ResourceRequirements::default(),
            },
            object_store: ObjectStore {
                url: "s3://records".to_owned(),
                credentials_secret: None,
            },
            postgres: None,
        }
    }

    #[test]
    fn brokers_are_spread_evenly_with_the_rest_in_the_first_zones() {
        let replicas = |total, zones: &[&str]| -> Vec<i32> {
            spread(total, zones.iter().map(|zone| (*zone).to_owned()).collect())
                .iter()
                .map(|z| z.replicas)
                .collect()
        };
        assert_eq!(replicas(3, &["a", "b", "c"]), [1, 1, 1]);
        assert_eq!(replicas(8, &["a", "b", "c"]), [3, 3, 2]);
        assert_eq!(replicas(2, &["a", "b", "c"]), [1, 1, 0]);
        assert_eq!(replicas(5, &["a"]), [5]);
    }

    #[test]
    fn memory_is_read_in_every_notation() {
        let read = |text: &str| bytes(&Quantity(text.to_owned()));
        assert_eq!(read("1Gi"), Some(1 << 30));
        assert_eq!(read("1.5Gi"), Some(3 << 29));
        assert_eq!(read("500M"), Some(500_000_000));
        assert_eq!(read("1e9"), Some(1_000_000_000));
        assert_eq!(read("1024"), Some(1024));
        assert_eq!(read("1Zi"), None);
        assert_eq!(read("0"), None);
    }
}
