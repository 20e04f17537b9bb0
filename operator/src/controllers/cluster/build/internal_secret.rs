//! The Secret by which the nodes of a cluster know each other.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;

use super::super::validate::ValidatedCluster;

/// Key of the one value in the Secret, and its file name in the pods.
pub const KEY: &str = "secret";
/// Where it is mounted.
pub const DIR: &str = "/etc/diskless/internal";

/// Name of the Secret of a cluster.
pub fn name(cluster: &str) -> String {
    format!("{cluster}-internal")
}

/// The Secret with a new value. It is made once: with another value the nodes would not know each other until all have
/// read it.
pub fn build(cluster: &ValidatedCluster, value: String) -> Secret {
    Secret {
        metadata: cluster.metadata(name(&cluster.name), BTreeMap::new()),
        type_: Some("Opaque".to_owned()),
        data: Some(BTreeMap::from([(KEY.to_owned(), ByteString(value.into_bytes()))])),
        ..Default::default()
    }
}
