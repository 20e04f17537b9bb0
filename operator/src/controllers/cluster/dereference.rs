//! Fetches what the spec of a cluster speaks of: the Secret.

use k8s_openapi::api::core::v1::Secret;
use kube::Api;

use super::validate::{ACCESS_KEY_ID, SECRET_ACCESS_KEY, ValidatedCluster};
use crate::context::Context;
use crate::controllers::words;

/// State of the credentials of the object store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credentials {
    /// The environment of the pods has them, or the Secret is complete.
    Present,
    /// The Secret, or a key of it, is missing; in words.
    Missing(String),
    /// The Secret cannot be read; in words.
    Unreadable(String),
}

/// Looks at the Secret that the cluster names. Its content is not kept: pods mount it themselves, so they notice when
/// it changes.
pub async fn credentials(context: &Context, cluster: &ValidatedCluster) -> Credentials {
    let Some(name) = &cluster.object_store.credentials_secret else {
        return Credentials::Present;
    };
    let api: Api<Secret> = Api::namespaced(context.client.clone(), &cluster.namespace);
    match api.get_opt(name).await {
        Ok(secret) => complete(name, secret.as_ref()),
        Err(error) => Credentials::Unreadable(format!("secret {name} cannot be read: {}", words(&error))),
    }
}

fn complete(name: &str, secret: Option<&Secret>) -> Credentials {
    let Some(secret) = secret else {
        return Credentials::Missing(format!(
            "secret {name} (spec.objectStore.credentials.secretRef) does not exist; create it with the keys \
             {ACCESS_KEY_ID} and {SECRET_ACCESS_KEY}"
        ));
    };
    let has = |key: &str| {
        secret
            .data
            .iter()
            .flatten()
            .any(|(name, value)| name == key && !value.0.is_empty())
    };
    match [ACCESS_KEY_ID, SECRET_ACCESS_KEY]
        .into_iter()
        .find(|key| !has(key))
    {
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
        let Credentials::Missing(text) = complete("s3", None) else {
            panic!("not missing")
        };
        assert!(
            text.contains("secret s3 ") && text.contains("does not exist"),
            "{text}"
        );
        let mut secret = Secret::default();
        let data = secret.data.get_or_insert_default();
        data.insert(ACCESS_KEY_ID.into(), ByteString(b"id".to_vec()));
        data.insert(SECRET_ACCESS_KEY.into(), ByteString(vec![]));
        let Credentials::Missing(text) = complete("s3", Some(&secret)) else {
            panic!("not missing")
        };
        assert!(text.contains("secret_access_key"), "{text}");
        secret
            .data
            .as_mut()
            .unwrap()
            .insert(SECRET_ACCESS_KEY.into(), ByteString(b"key".to_vec()));
        assert_eq!(complete("s3", Some(&secret)), Credentials::Present);
    }
}
