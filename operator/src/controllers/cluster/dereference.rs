//! Looks at what the spec of a cluster speaks of: Secrets.
//!
//! A watch tells which Secrets change, not what is in them. So each is read once, and again only after the watch has
//! told of a change: a cluster that has arrived costs no request. Kept are the names of their keys, never a value.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crds::DisklessCluster;
use k8s_openapi::api::core::v1::Secret;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::Event;
use kube::{Api, ResourceExt};
use parking_lot::Mutex;

use super::validate::{SecretOf, secrets};
use crate::context::Context;
use crate::controllers::words;

/// More Secrets than this are not remembered: specs may name one after the other.
const MAX_REMEMBERED: usize = 10_000;

/// Namespace and name.
type Key = (String, String);
/// Names of the keys of a Secret that have a value; `None`: there is no such Secret.
type Found = Option<Arc<BTreeSet<String>>>;

/// The Secrets that clusters need, as far as they have been read.
#[derive(Debug, Default)]
pub struct Secrets(Mutex<Memory>);

#[derive(Debug, Default)]
struct Memory {
    /// The watch is complete: from now on it tells of every change.
    watched: bool,
    read: BTreeMap<Key, Read>,
    tickets: u64,
}

#[derive(Debug)]
enum Read {
    /// Under way, by the holder of the ticket.
    Running(u64),
    Done(Found),
}

impl Secrets {
    /// Takes note of what the watch tells, before any reconcile hears of it.
    pub fn told(&self, event: &Event<PartialObjectMeta<Secret>>) {
        let mut memory = self.0.lock();
        match event {
            Event::Init => {
                *memory = Memory {
                    tickets: memory.tickets,
                    ..Memory::default()
                }
            }
            Event::InitDone => memory.watched = true,
            Event::InitApply(secret) | Event::Apply(secret) | Event::Delete(secret) => {
                let key = (secret.namespace().unwrap_or_default(), secret.name_any());
                memory.read.remove(&key);
            }
        }
    }

    /// What a Secret looks like is not known any more.
    pub fn forget(&self, namespace: &str, name: &str) {
        self.0
            .lock()
            .read
            .remove(&(namespace.to_owned(), name.to_owned()));
    }

    /// The keys of a Secret.
    ///
    /// # Errors
    /// The API server cannot be reached or refuses.
    pub async fn keys(&self, context: &Context, namespace: &str, name: &str) -> kube::Result<Found> {
        let key = (namespace.to_owned(), name.to_owned());
        let ticket = match self.known_or_ticket(&key) {
            Ok(found) => return Ok(found),
            Err(ticket) => ticket,
        };
        let api: Api<Secret> = Api::namespaced(context.client.clone(), namespace);
        let found = api.get_opt(name).await?.map(|secret| Arc::new(keys(&secret)));
        self.remember(&key, ticket, found.clone());
        Ok(found)
    }

    fn known_or_ticket(&self, key: &Key) -> Result<Found, u64> {
        let mut memory = self.0.lock();
        if let Some(Read::Done(found)) = memory.read.get(key) {
            return Ok(found.clone());
        }
        memory.tickets += 1;
        let ticket = memory.tickets;
        if memory.read.len() >= MAX_REMEMBERED {
            memory.read.clear();
        }
        // Nobody would tell when it is no longer true.
        if memory.watched {
            memory.read.insert(key.clone(), Read::Running(ticket));
        }
        Err(ticket)
    }

    /// Unless the Secret has changed, or might have, since the ticket was given.
    fn remember(&self, key: &Key, ticket: u64, found: Found) {
        if let Some(read) = self.0.lock().read.get_mut(key)
            && matches!(read, Read::Running(running) if *running == ticket)
        {
            *read = Read::Done(found);
        }
    }
}

fn keys(secret: &Secret) -> BTreeSet<String> {
    let entries = secret.data.iter().flatten();
    let full = entries.filter(|(_, value)| !value.0.is_empty());
    full.map(|(key, _)| key.clone()).collect()
}

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

/// Whether the Secrets that the cluster names are complete. What is in them is not its business: pods mount them
/// themselves, so they notice when they change.
pub async fn credentials(context: &Context, known: &Secrets, cluster: &DisklessCluster) -> Credentials {
    let namespace = cluster.namespace().unwrap_or_default();
    for wanted in secrets(&cluster.spec) {
        let name = wanted.name;
        let state = match known.keys(context, &namespace, name).await {
            Ok(found) => complete(wanted, found.as_deref()),
            Err(error) => Credentials::Unreadable(format!("secret {name} cannot be read: {}", words(&error))),
        };
        if state != Credentials::Present {
            return state;
        }
    }
    Credentials::Present
}

fn complete(wanted: SecretOf<'_>, found: Option<&BTreeSet<String>>) -> Credentials {
    let SecretOf { field, name, keys } = wanted;
    let Some(found) = found else {
        let keys = keys.join(" and ");
        return Credentials::Missing(format!(
            "secret {name} ({field}) does not exist; create it with {keys}"
        ));
    };
    match keys.iter().find(|key| !found.contains(**key)) {
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
        let Credentials::Missing(text) = complete(wanted, Some(&keys(&secret))) else {
            panic!("not missing")
        };
        assert!(text.contains("secret_access_key"), "{text}");
        secret
            .data
            .as_mut()
            .unwrap()
            .insert("secret_access_key".into(), ByteString(b"key".to_vec()));
        assert_eq!(complete(wanted, Some(&keys(&secret))), Credentials::Present);
    }

    fn secret(name: &str) -> PartialObjectMeta<Secret> {
        serde_json::from_value(serde_json::json!({"metadata": {"name": name, "namespace": "ns"}})).unwrap()
    }

    fn key(name: &str) -> Key {
        ("ns".to_owned(), name.to_owned())
    }

    /// A memory whose watch is complete, with one Secret in it.
    fn remembering() -> Secrets {
        let secrets = Secrets::default();
        secrets.told(&Event::Init);
        secrets.told(&Event::InitDone);
        let ticket = secrets.known_or_ticket(&key("s3")).unwrap_err();
        secrets.remember(&key("s3"), ticket, None);
        assert_eq!(secrets.known_or_ticket(&key("s3")), Ok(None), "read once");
        secrets
    }

    /// After each of these nobody knows what is in the Secret.
    fn news() -> [Event<PartialObjectMeta<Secret>>; 3] {
        [
            Event::Apply(secret("s3")),
            Event::Delete(secret("s3")),
            Event::Init,
        ]
    }

    #[test]
    fn what_the_watch_tells_of_is_read_again() {
        for event in news() {
            let secrets = remembering();
            secrets.told(&Event::Apply(secret("other")));
            assert_eq!(secrets.known_or_ticket(&key("s3")), Ok(None));
            secrets.told(&event);
            assert!(secrets.known_or_ticket(&key("s3")).is_err(), "{event:?}");
        }
        let secrets = remembering();
        secrets.forget("ns", "s3");
        assert!(secrets.known_or_ticket(&key("s3")).is_err());
    }

    #[test]
    fn an_answer_that_may_be_older_than_a_change_is_not_remembered() {
        for event in news() {
            let secrets = remembering();
            secrets.forget("ns", "s3");
            let ticket = secrets.known_or_ticket(&key("s3")).unwrap_err();
            secrets.told(&event);
            secrets.told(&Event::InitDone);
            // Somebody else reads it meanwhile, and is slower.
            let other = secrets.known_or_ticket(&key("s3")).unwrap_err();
            secrets.remember(&key("s3"), ticket, None);
            assert!(secrets.known_or_ticket(&key("s3")).is_err(), "{event:?}");
            secrets.remember(&key("s3"), other, None);
            assert!(
                secrets.known_or_ticket(&key("s3")).is_err(),
                "a third asked since"
            );
        }
    }

    #[test]
    fn without_a_complete_watch_nothing_is_remembered() {
        let secrets = Secrets::default();
        for started in [false, true] {
            if started {
                secrets.told(&Event::Init);
                secrets.told(&Event::InitApply(secret("s3")));
            }
            let ticket = secrets.known_or_ticket(&key("s3")).unwrap_err();
            secrets.remember(&key("s3"), ticket, None);
            assert!(secrets.known_or_ticket(&key("s3")).is_err());
        }
    }

    #[test]
    fn what_is_remembered_is_bounded_and_holds_no_value() {
        let secrets = remembering();
        for number in 0..MAX_REMEMBERED + 5 {
            let name = key(&number.to_string());
            let ticket = secrets.known_or_ticket(&name).unwrap_err();
            let mut object = Secret::default();
            object
                .data
                .get_or_insert_default()
                .insert("password".into(), ByteString(b"hidden".to_vec()));
            secrets.remember(&name, ticket, Some(Arc::new(keys(&object))));
        }
        assert!(secrets.0.lock().read.len() <= MAX_REMEMBERED);
        let shown = format!("{secrets:?}");
        assert!(shown.contains("password") && !shown.contains("hidden"));
    }
}
