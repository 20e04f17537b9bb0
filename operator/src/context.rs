//! What every reconcile has at hand.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use env::Env;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::events::{Event, EventType, Recorder};
use kube::{Api, Client, Resource, ResourceExt};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use kube::api::{Patch, PatchParams};

use crate::metrics::{Controller, Metrics};

/// Settings that reconciles need.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The one namespace to watch; `None` is all.
    pub namespace: Option<String>,
    /// Image for clusters that name none.
    pub broker_image: String,
    /// Domain of the Kubernetes cluster.
    pub cluster_domain: String,
    /// `host:port` of a broker, where the bootstrap Service cannot be reached by its name.
    pub admin_address: Option<String>,
}

/// Shared by all reconciles; cheap to clone.
#[derive(Clone)]
pub struct Context {
    /// Client of the API server.
    pub client: Client,
    /// Clock, randomness and sockets.
    pub env: Env,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Settings.
    pub settings: Arc<Settings>,
    recorder: Recorder,
    failures: Arc<Mutex<BTreeMap<Key, u32>>>,
}

/// Controller, namespace and name of an object.
type Key = (Controller, String, String);

/// First pause after a failure; it doubles with each in a row.
const BACKOFF_MIN: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(300);
/// Events hold no more than this (Kubernetes API: 1 kB).
const NOTE_MAX: usize = 1000;

impl Context {
    /// A context over `client`.
    pub fn new(
        client: Client,
        env: Env,
        metrics: Arc<Metrics>,
        settings: Settings,
        identity: String,
    ) -> Self {
        let reporter = kube::runtime::events::Reporter {
            controller: "diskless-operator".to_owned(),
            instance: Some(identity),
        };
        let recorder = Recorder::new(client.clone(), reporter);
        Self {
            client,
            env,
            metrics,
            settings: Arc::new(settings),
            recorder,
            failures: Arc::default(),
        }
    }

    /// All objects of a kind that this operator may see.
    pub fn watched<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        match &self.settings.namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        }
    }

    /// Now, in whole seconds as Kubernetes writes times.
    pub fn now(&self) -> Time {
        Time(Timestamp::from_second(self.env.now().0.div_euclid(1000)).unwrap_or_default())
    }

    /// Seconds since the epoch.
    pub fn seconds(&self) -> f64 {
        self.env.now().0 as f64 / 1000.0
    }

    /// Records an Event. That it cannot be recorded, as in a namespace that is being deleted, changes nothing.
    pub async fn event<K>(&self, object: &K, type_: EventType, reason: &str, note: &str)
    where
        K: Resource<DynamicType = ()>,
    {
        self.event_about(object, None, type_, reason, note).await;
    }

    /// Records an Event in which a second object plays a part. Events of equal object, reason and second object become
    /// one that counts.
    pub async fn event_about<K>(
        &self,
        object: &K,
        secondary: Option<ObjectReference>,
        type_: EventType,
        reason: &str,
        note: &str,
    ) where
        K: Resource<DynamicType = ()>,
    {
        let end = note
            .char_indices()
            .map(|(i, c)| i + c.len_utf8())
            .take_while(|end| *end <= NOTE_MAX)
            .last();
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(note.get(..end.unwrap_or(0)).unwrap_or_default().to_owned()),
            action: "Reconcile".to_owned(),
            secondary,
        };
        tracing::info!(object = %object.name_any(), reason, note, "event");
        if let Err(error) = self.recorder.publish(&event, &object.object_ref(&())).await {
            tracing::debug!(%error, reason, "cannot record event");
        }
    }

    /// Writes the status of an object, all of it.
    ///
    /// # Errors
    /// The API server cannot be reached or refuses.
    pub async fn write_status<K, S>(&self, controller: Controller, object: &K, status: &S) -> kube::Result<()>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
        S: Serialize,
    {
        let name = object.name_any();
        let api: Api<K> = Api::namespaced(self.client.clone(), &object.namespace().unwrap_or_default());
        let patch = json!({
            "apiVersion": K::api_version(&()),
            "kind": K::kind(&()),
            // Never brings a deleted object back, nor lands on its successor.
            "metadata": { "name": name, "uid": object.uid() },
            "status": status,
        });
        self.metrics
            .write(controller, &format!("{}/status", K::kind(&())));
        let params = PatchParams::apply(controller.status_manager()).force();
        api.patch_status(&name, &params, &Patch::Apply(patch))
            .await
            .map(drop)
    }

    /// The pause before the next attempt on an object that has failed once more.
    pub fn failed(&self, controller: Controller, namespace: &str, name: &str) -> Duration {
        let mut failures = self.failures.lock();
        let count = failures
            .entry((controller, namespace.to_owned(), name.to_owned()))
            .or_default();
        *count = count.saturating_add(1);
        let pause = BACKOFF_MIN
            .saturating_mul(1 << (*count - 1).min(16))
            .min(BACKOFF_MAX);
        self.env.jittered(pause)
    }

    /// The object has been reconciled, or is gone.
    pub fn succeeded(&self, controller: Controller, namespace: &str, name: &str) {
        self.failures
            .lock()
            .remove(&(controller, namespace.to_owned(), name.to_owned()));
    }
}
