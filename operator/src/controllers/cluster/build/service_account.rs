//! The pods' identity.

use k8s_openapi::api::core::v1::ServiceAccount;

use super::super::validate::ValidatedCluster;

/// A ServiceAccount without rights and without a token in the pods.
pub fn build(cluster: &ValidatedCluster) -> ServiceAccount {
    ServiceAccount {
        metadata: cluster.metadata(cluster.name.clone(), Default::default()),
        automount_service_account_token: Some(false),
        ..Default::default()
    }
}
