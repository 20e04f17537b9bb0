//! Brings the API server's objects in line with the built ones.
//!
//! Objects are applied server-side and whole, so what others add to them stays and what we no longer want goes. What
//! has been applied is remembered with the version that came back: as long as neither the object nor our wish changes,
//! nothing is sent. The memory is only that; losing it costs one request per object that changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::policy::v1::{Eviction, PodDisruptionBudget};
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use kube::api::{
    Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions,
    PropagationPolicy,
};
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Resource, ResourceExt};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::build::{CLUSTER_LABEL, Objects, internal_secret};
use super::dereference::Secrets;
use super::observe::{SetState, observe};
use super::rollout::{self, Step};
use super::validate::ValidatedCluster;
use crate::context::Context;
use crate::controllers::words;
use crate::metrics::Controller;

/// What the watches have seen, by kind; only objects that carry the operator's label, and of most only the metadata:
/// what is in them is compared by the server.
#[derive(Clone)]
pub struct Stores {
    /// ServiceAccounts.
    pub service_accounts: Store<PartialObjectMeta<ServiceAccount>>,
    /// Services.
    pub services: Store<PartialObjectMeta<Service>>,
    /// ConfigMaps.
    pub config_maps: Store<PartialObjectMeta<ConfigMap>>,
    /// PodDisruptionBudgets.
    pub disruption_budgets: Store<PartialObjectMeta<PodDisruptionBudget>>,
    /// StatefulSets.
    pub stateful_sets: Store<StatefulSet>,
    /// Pods.
    pub pods: Store<Pod>,
}

/// Memory of what has been applied, by uid of the cluster.
#[derive(Debug, Default)]
pub struct Applied(Mutex<BTreeMap<String, Records>>);

/// By kind and name.
type Records = BTreeMap<(String, String), Record>;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Record {
    desired: u64,
    resource_version: Option<String>,
}

impl Applied {
    /// The cluster is gone.
    pub fn forget(&self, uid: &str) {
        self.0.lock().remove(uid);
    }
}

/// Applies the objects of one cluster.
pub struct Applier<'a> {
    /// Client and counters.
    pub context: &'a Context,
    /// The cluster.
    pub cluster: &'a ValidatedCluster,
    /// What the watches have seen.
    pub stores: &'a Stores,
    /// What has been applied before.
    pub applied: &'a Applied,
    /// The Secrets that have been read.
    pub secrets: &'a Secrets,
}

impl Applier<'_> {
    /// Applies every object but the StatefulSets. They come first, so that no pod starts before what it mounts.
    /// A failure does not keep the others from being applied; all are returned, in words.
    pub async fn apply_all(&self, objects: &Objects) -> Vec<String> {
        let mut failures = Vec::new();
        failures.extend(
            self.apply(&objects.service_account, &self.stores.service_accounts)
                .await
                .err(),
        );
        for service in &objects.services {
            failures.extend(self.apply(service, &self.stores.services).await.err());
        }
        for config_map in &objects.config_maps {
            failures.extend(self.apply(config_map, &self.stores.config_maps).await.err());
        }
        for budget in &objects.disruption_budgets {
            failures.extend(self.apply(budget, &self.stores.disruption_budgets).await.err());
        }
        failures
    }

    /// Makes the Secret by which the nodes know each other, unless there is one, whoever made it. One that is there is
    /// never written to.
    ///
    /// # Errors
    /// The API server cannot be reached or refuses, in words.
    pub async fn ensure_internal_secret(&self) -> Result<(), String> {
        let name = internal_secret::name(&self.cluster.name);
        let failed = |error: kube::Error| format!("secret {name}: {}", words(&error));
        let namespace = &self.cluster.namespace;
        let found = self.secrets.keys(self.context, namespace, &name).await;
        if found.map_err(failed)?.is_some() {
            return Ok(());
        }
        let api: Api<Secret> = Api::namespaced(self.context.client.clone(), namespace);
        let env = &self.context.env;
        let value: String = (0..4).map(|_| format!("{:016x}", env.random_u64())).collect();
        self.context.metrics.write(Controller::cluster, "Secret");
        let secret = internal_secret::build(self.cluster, value);
        // The watch may tell of it later than the next look is.
        self.secrets.forget(namespace, &name);
        match api.create(&PostParams::default(), &secret).await {
            Ok(_) => Ok(()),
            // Somebody was faster.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }

    /// Applies the StatefulSets and returns them as they are then: what the watches show is older. With `hold`, those
    /// that exist are left as they are.
    pub async fn apply_sets(
        &self,
        objects: &Objects,
        sets: &[SetState],
        step: &Step,
        hold: bool,
    ) -> (Vec<Arc<StatefulSet>>, Vec<String>) {
        let (mut applied, mut failures) = (Vec::new(), Vec::new());
        for (desired, state) in objects.stateful_sets.iter().zip(sets) {
            let result = if hold && state.current.is_some() {
                Ok(None)
            } else {
                let mut desired = desired.clone();
                desired.spec.replicas = Some(rollout::replicas(state, step));
                self.apply(&desired, &self.stores.stateful_sets).await
            };
            match result {
                Ok(Some(object)) => applied.push(Arc::new(object)),
                Ok(None) => applied.extend(self.seen(&desired.name_any(), &self.stores.stateful_sets)),
                Err(failure) => failures.push(failure),
            }
        }
        (applied, failures)
    }

    fn seen<K>(&self, name: &str, store: &Store<K>) -> Option<Arc<K>>
    where
        K: Resource<DynamicType = ()> + Clone + 'static,
    {
        store.get(&ObjectRef::new(name).within(&self.cluster.namespace))
    }

    /// Returns the object as it is then, if a request was needed.
    async fn apply<K, Seen>(&self, desired: &K, store: &Store<Seen>) -> Result<Option<K>, String>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + Debug + Serialize + DeserializeOwned,
        Seen: Resource<DynamicType = ()> + Clone + 'static,
    {
        let (kind, name) = (K::kind(&()).into_owned(), desired.name_any());
        let failed = |error: String| format!("{} {name}: {error}", kind.to_lowercase());
        let wish = digest(desired).map_err(|error| failed(error.to_string()))?;
        let api: Api<K> = Api::namespaced(self.context.client.clone(), &self.cluster.namespace);
        let observed = self.seen(&name, store);
        let owned = match &observed {
            Some(object) => self.owns(object.meta()),
            // Not seen, or it does not carry our label: look before laying hands on it.
            None => match api.get_metadata_opt(&name).await.map_err(|e| failed(words(&e)))? {
                Some(object) => self.owns(&object.metadata),
                None => true,
            },
        };
        if !owned {
            return Err(failed(
                "exists already and belongs to something else; rename it or the cluster".to_owned(),
            ));
        }
        let key = (kind.clone(), name.clone());
        let uid = &self.cluster.owner.uid;
        let seen = observed.and_then(|object| object.resource_version());
        if seen.is_some() {
            let record = Record {
                desired: wish,
                resource_version: seen,
            };
            if self
                .applied
                .0
                .lock()
                .get(uid)
                .and_then(|records| records.get(&key))
                == Some(&record)
            {
                return Ok(None);
            }
        }
        self.context.metrics.write(Controller::cluster, &kind);
        let params = PatchParams::apply(Controller::cluster.field_manager()).force();
        let result = api
            .patch(&name, &params, &Patch::Apply(desired))
            .await
            .map_err(|e| failed(words(&e)))?;
        let record = Record {
            desired: wish,
            resource_version: result.resource_version(),
        };
        self.applied
            .0
            .lock()
            .entry(uid.clone())
            .or_default()
            .insert(key, record);
        Ok(Some(result))
    }

    fn owns(&self, meta: &ObjectMeta) -> bool {
        let mut owners = meta.owner_references.iter().flatten();
        owners.any(|owner| owner.controller == Some(true) && owner.uid == self.cluster.owner.uid)
    }

    /// Decides the next step from a fresh look, since what the watches have seen may be old, and carries it out unless
    /// it is [`Step::ScaleDown`], which the StatefulSets' `replicas` carry.
    ///
    /// # Errors
    /// The API server cannot be reached or refuses, in words.
    pub async fn disrupt(&self, planned: Step) -> Result<Step, String> {
        if !matches!(planned, Step::ScaleDown { .. } | Step::Replace { .. }) {
            return Ok(planned);
        }
        let list = ListParams::default().labels(&format!("{CLUSTER_LABEL}={}", self.cluster.name));
        let namespace = &self.cluster.namespace;
        let sets: Api<StatefulSet> = Api::namespaced(self.context.client.clone(), namespace);
        let pods: Api<Pod> = Api::namespaced(self.context.client.clone(), namespace);
        let failed = |error: kube::Error| format!("cannot look at the pods: {}", words(&error));
        let live_sets: Vec<_> = sets
            .list(&list)
            .await
            .map_err(failed)?
            .into_iter()
            .map(Arc::new)
            .collect();
        let live_pods: Vec<_> = pods
            .list(&list)
            .await
            .map_err(failed)?
            .into_iter()
            .map(Arc::new)
            .collect();
        let step = rollout::next(&observe(self.cluster, &live_sets, &live_pods));
        if step != planned {
            return Ok(Step::Wait("the state of the pods is changing".to_owned()));
        }
        match &step {
            Step::ScaleDown { .. } => self.context.metrics.disruption(),
            Step::Replace { pod, uid } => {
                return self.evict(&pods, pod, uid).await.map(|done| done.unwrap_or(step));
            }
            Step::Idle | Step::Wait(_) => {}
        }
        Ok(step)
    }

    /// Takes a pod down through the eviction API, so that a node drain at the same moment and we cannot both do it.
    async fn evict(&self, pods: &Api<Pod>, name: &str, uid: &str) -> Result<Option<Step>, String> {
        let eviction = Eviction {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                ..Default::default()
            },
            delete_options: Some(meta::DeleteOptions {
                preconditions: Some(meta::Preconditions {
                    uid: Some(uid.to_owned()),
                    resource_version: None,
                }),
                ..Default::default()
            }),
        };
        self.context.metrics.write(Controller::cluster, "Eviction");
        let result: kube::Result<serde_json::Value> = pods
            .create_subresource("eviction", name, &PostParams::default(), &eviction)
            .await;
        match result {
            Ok(_) => {
                self.context.metrics.disruption();
                Ok(None)
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 429) => Ok(Some(Step::Wait(
                format!("pod {name} cannot be evicted yet: {}", status.message),
            ))),
            Err(error) => Err(format!("cannot evict pod {name}: {}", words(&error))),
        }
    }

    /// Deletes what belongs to the cluster and is no longer wanted. Only for a cluster that has arrived: until then an
    /// outdated pod may still need its ConfigMap.
    pub async fn prune(&self, objects: &Objects) -> Vec<String> {
        let mut failures = Vec::new();
        failures.extend(self.prune_kind(&self.stores.services, &objects.services).await);
        failures.extend(
            self.prune_kind(&self.stores.config_maps, &objects.config_maps)
                .await,
        );
        failures.extend(
            self.prune_kind(&self.stores.disruption_budgets, &objects.disruption_budgets)
                .await,
        );
        failures
    }

    async fn prune_kind<K>(&self, store: &Store<PartialObjectMeta<K>>, wanted: &[K]) -> Vec<String>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + Debug + DeserializeOwned + 'static,
    {
        let wanted: BTreeSet<String> = wanted.iter().map(ResourceExt::name_any).collect();
        let api: Api<K> = Api::namespaced(self.context.client.clone(), &self.cluster.namespace);
        let mut failures = Vec::new();
        for object in store.state() {
            let ours =
                object.namespace().as_ref() == Some(&self.cluster.namespace) && self.owns(object.meta());
            let name = object.name_any();
            if !ours || wanted.contains(&name) {
                continue;
            }
            let kind = K::kind(&());
            self.context.metrics.write(Controller::cluster, &kind);
            let preconditions = Preconditions {
                uid: object.uid(),
                resource_version: None,
            };
            let params = DeleteParams {
                preconditions: Some(preconditions),
                propagation_policy: Some(PropagationPolicy::Background),
                ..Default::default()
            };
            match api.delete(&name, &params).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                Err(error) => failures.push(format!("{} {name}: {}", kind.to_lowercase(), words(&error))),
            }
        }
        failures
    }
}

fn digest(object: &impl Serialize) -> serde_json::Result<u64> {
    let mut hasher = DefaultHasher::new();
    serde_json::to_vec(object)?.hash(&mut hasher);
    Ok(hasher.finish())
}
