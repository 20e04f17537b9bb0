//! Fetches what the spec of a cluster speaks of: Secrets.

use crds::DisklessCluster;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, ResourceExt};

use super::validate::{SecretOf, secrets};
use crate::context::Context;
use crate::controllers::words;

/// State of what opens the object store and the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credentials {
    /// The environment of the pods has them, or the Secrets are complete.
    Present,
    /// A Secret, or a key of it, is missing; in words.
    Missing(String),
    /// A Secret cannot be read; in words.
    Unreadable(String),
}

/// Looks at the Secrets that the cluster names. Their content is not kept: pods mount them themselves, so they notice when
/// they change.
pub async fn credentials(context: &Context, cluster: &DisklessCluster) -> Credentials {
    let namespace = cluster.namespace().unwrap_or_default();
    let api: Api<Secret> = Api::namespaced(context.client.clone(), &namespace);
    for wanted in secrets(&cluster.spec) {
        let name = wanted.name;
        let state = match api.get_opt(name).await {
            Ok(secret) => complete(wanted, secret.as_ref()),
            Err(error) => Credentials::Unreadable(format!("secret {name} cannot be read: {}", words(&error))),
        };
        if state != Credentials::Present {
            return state;
        }
    }
    Credentials::Present
}

fn complete(wanted: SecretOf<'_>, secret: Option<&Secret>) -> Credentials {
    let SecretOf { field, name, keys } = wanted;
    let Some(secret) = secret else {
        let keys = keys.join(" and ");
        return Credentials::Missing(format!(
            "secret {name} ({field}) does not exist; create it with {keys}"
        ));
    };
    let has = |key: &str| {
        secret
            .data
            .iter()
            .flatten()
            .any(|(name, value)| name == key && !value.0.is_empty())
    };
    match keys.iter().find(|key| !has(key)) {
        Some(key) => Credentials::Missing(format!("secret {name} has no key {key}, or it is empty")),
        None => Credentials::Present,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let wanted = SecretOf {
            field: "spec.x",
            name: "s3",
            keys: &["access_key_id", "secret_access_key"],
        };
        let Credentials::Missing(text) = complete(wanted, None) else {
            panic!("not missing")
        };
        assert!(
            text.contains("secret s3 (spec.x) does not exist") && text.contains("secret_access_key"),
            "{text}"
        );
        let mut secret = Secret::default();
        let data = secret.data.get_or_insert_default();
        data.insert("access_key_id".into(), ByteString(b"id".to_vec()));
        data.insert("secret_access_key".into(), ByteString(vec![]));
        let Credentials::Missing(text) = complete(wanted, Some(&secret)) else {
            panic!("not missing")
        };
        assert!(text.contains("secret_access_key"), "{text}");
        secret
            .data
            .as_mut()
            .unwrap()
            .insert("secret_access_key".into(), ByteString(b"key".to_vec()));
        assert_eq!(complete(wanted, Some(&secret)), Credentials::Present);
    }
}
