//! The controller of `DisklessCluster`.

pub mod apply;
mod brokers;
pub mod build;
pub mod dereference;
pub mod feature_level;
pub mod observe;
pub mod rollout;
pub mod status;
pub mod validate;

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crds::{DisklessCluster, DisklessClusterStatus};
use futures::{Stream, StreamExt, TryStreamExt};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference, Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::core::{DeserializeGuard, PartialObjectMeta};
use kube::runtime::controller::{self, Action};
use kube::runtime::events::EventType;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::{Predicate, WatchStreamExt, predicates, watcher};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;

use self::apply::{Applied, Applier, Stores};
use self::brokers::Asked;
use self::build::{CLUSTER_LABEL, MANAGED_BY, internal_secret};
use self::dereference::{Credentials, Secrets};
use self::observe::SetState;
use self::rollout::Step;
use super::conditions::turned;
use super::{RECHECK, RESYNC, ReconcileError, logged, readable, slim};
use crate::context::Context;
use crate::metrics::Controller;

type Guarded = DeserializeGuard<DisklessCluster>;

struct ClusterContext {
    context: Context,
    stores: Stores,
    applied: Arc<Applied>,
    secrets: Arc<Secrets>,
    asked: Arc<Asked>,
}

/// Runs the controller until `shutdown`.
pub async fn run(context: Context, shutdown: impl Future<Output = ()> + Send + Sync + 'static) {
    let (applied, asked) = (Arc::new(Applied::default()), Arc::new(Asked::default()));
    let (clusters, writer) = reflector::store();
    let (applied_before, asked_before) = (applied.clone(), asked.clone());
    let trigger = watcher(context.watched::<Guarded>(), watcher::Config::default())
        .default_backoff()
        .inspect_ok(move |event| {
            if let watcher::Event::Delete(cluster) = event {
                let uid = cluster.uid().unwrap_or_default();
                applied_before.forget(&uid);
                asked_before.forget(&uid);
            }
        })
        .modify(slim)
        .reflect(writer)
        .applied_objects()
        // Our own writes to the status change none of these.
        .predicate_filter(
            predicates::generation.combine(predicates::annotations),
            Default::default(),
        );

    let (service_accounts, service_account_events) =
        owned::<PartialObjectMeta<ServiceAccount>>(&context, bare);
    let (services, service_events) = owned::<PartialObjectMeta<Service>>(&context, bare);
    let (config_maps, config_map_events) = owned::<PartialObjectMeta<ConfigMap>>(&context, bare);
    let (disruption_budgets, budget_events) = owned::<PartialObjectMeta<PodDisruptionBudget>>(&context, bare);
    let (stateful_sets, stateful_set_events) = owned(&context, observe::slim_stateful_set);
    let (pods, pod_events) = owned(&context, observe::slim_pod);
    let stores = Stores {
        service_accounts,
        services,
        config_maps,
        disruption_budgets,
        stateful_sets,
        pods,
    };

    let secrets = Arc::new(Secrets::default());
    let telling = secrets.clone();
    let secret_events = watcher(
        context.watched::<PartialObjectMeta<Secret>>(),
        watcher::Config::default(),
    )
    .default_backoff()
    .inspect_ok(move |event| telling.told(event))
    .touched_objects();
    let named = clusters.clone();

    kube::runtime::Controller::for_stream(logged(trigger), clusters)
        .with_config(
            controller::Config::default()
                .debounce(Duration::from_millis(200))
                .concurrency(8),
        )
        .owns_stream(logged(service_account_events))
        .owns_stream(logged(service_events))
        .owns_stream(logged(config_map_events))
        .owns_stream(logged(budget_events))
        .owns_stream(logged(stateful_set_events))
        .watches_stream(logged(pod_events), |pod: Pod| cluster_of(&pod))
        .watches_stream(logged(secret_events), move |secret| {
            clusters_with_secret(&named, &secret)
        })
        .graceful_shutdown_on(shutdown)
        .run(
            |cluster, state| async move {
                let work = Box::pin(reconcile(&cluster, &state));
                super::run(&state.context, Controller::cluster, cluster.as_ref(), work).await
            },
            |cluster, error, state| {
                super::retry(&state.context, Controller::cluster, cluster.as_ref(), error)
            },
            Arc::new(ClusterContext {
                context,
                stores,
                applied,
                secrets,
                asked,
            }),
        )
        .for_each(|_| std::future::ready(()))
        .await;
}

/// A store of what the operator has made of a kind, each without what `slim` takes off, and the stream that fills it.
fn owned<K>(
    context: &Context,
    slim: fn(&mut K),
) -> (
    Store<K>,
    impl Stream<Item = Result<K, watcher::Error>> + Send + use<K>,
)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let (store, writer) = reflector::store();
    let ours = watcher::Config::default().labels(&format!("{}={}", MANAGED_BY.0, MANAGED_BY.1));
    let stream = watcher(context.watched::<K>(), ours)
        .default_backoff()
        .modify(slim)
        .reflect(writer)
        .touched_objects();
    (store, stream)
}

/// Leaves who an object is, whose it is and its version.
fn bare<K: Resource>(object: &mut K) {
    slim(object);
    let meta = object.meta_mut();
    (meta.labels, meta.annotations) = (None, None);
}

fn cluster_of(pod: &Pod) -> Option<ObjectRef<Guarded>> {
    let name = pod.labels().get(CLUSTER_LABEL)?;
    Some(ObjectRef::new(name).within(&pod.namespace()?))
}

fn clusters_with_secret(
    clusters: &Store<Guarded>,
    secret: &PartialObjectMeta<Secret>,
) -> Vec<ObjectRef<Guarded>> {
    let names = |cluster: &DisklessCluster| {
        if secret.name_any() == internal_secret::name(&cluster.name_any()) {
            return true;
        }
        validate::secrets(&cluster.spec).any(|named| named.name == secret.name_any())
    };
    let clusters = clusters
        .state()
        .into_iter()
        .filter(|cluster| cluster.namespace() == secret.namespace());
    clusters
        .filter(|cluster| cluster.0.as_ref().is_ok_and(names))
        .map(|cluster| ObjectRef::from_obj(cluster.as_ref()))
        .collect()
}

async fn reconcile(guarded: &Guarded, state: &ClusterContext) -> Result<Action, ReconcileError> {
    let context = &state.context;
    let cluster = readable(context, guarded).await?;
    if cluster.metadata.deletion_timestamp.is_some() {
        // All children go with their owner; the bucket is the user's.
        return Ok(Action::await_change());
    }
    let previous = cluster.status.clone().unwrap_or_default();
    let generation = cluster.metadata.generation;
    let valid = match validate::validate(cluster, &context.settings) {
        Ok(valid) => valid,
        Err(problem) => {
            let status = status::invalid(&previous, &problem, generation, context.now());
            write_status(context, cluster, &previous, &status).await?;
            return Ok(Action::await_change());
        }
    };
    wait_for_stores(&state.stores).await;
    let credentials = dereference::credentials(context, &state.secrets, cluster).await;
    let pods = state.stores.pods.state();
    let pods: Vec<_> = pods
        .into_iter()
        .filter(|pod| pod.namespace().as_ref() == Some(&valid.namespace))
        .collect();
    let sets = state.stores.stateful_sets.state();
    let sets: Vec<_> = sets
        .into_iter()
        .filter(|set| set.namespace().as_ref() == Some(&valid.namespace))
        .collect();
    let sets = observe::observe(&valid, &sets, &pods);

    let objects = build::build(&valid);
    let applier = Applier {
        context,
        cluster: &valid,
        stores: &state.stores,
        applied: &state.applied,
        secrets: &state.secrets,
    };
    let mut failures = applier.apply_all(&objects).await;
    failures.extend(applier.ensure_internal_secret().await.err());
    // Pods that run keep the credentials they have. One that is replaced now could not start.
    let hold = matches!(credentials, Credentials::Missing(_));
    let planned = match &credentials {
        Credentials::Missing(what) => Step::Wait(what.clone()),
        _ => rollout::next(&sets),
    };
    let step = applier.disrupt(planned).await.unwrap_or_else(|failure| {
        failures.push(failure.clone());
        Step::Wait(failure)
    });
    let (applied, failed) = applier.apply_sets(&objects, &sets, &step, hold).await;
    failures.extend(failed);
    // What was just applied is not reached yet, whatever the watches still show.
    let sets = observe::observe(&valid, &applied, &pods);
    announce(context, cluster, &step).await;
    let converged = sets.iter().all(SetState::is_converged);
    if converged && failures.is_empty() {
        failures.extend(applier.prune(&objects).await);
    }
    let told = state.asked.ask(context, cluster, &valid, &sets, converged).await;
    let findings = status::Findings {
        cluster: &valid,
        sets: &sets,
        credentials: &credentials,
        step: &step,
        failures: &failures,
        told: &told,
    };
    let status = status::status(&findings, &previous.conditions, generation, context.now());
    write_status(context, cluster, &previous, &status).await?;
    if !failures.is_empty() {
        return Err(ReconcileError::Apply(failures));
    }
    let arrived = converged && told.is_settled() && credentials == Credentials::Present;
    Ok(Action::requeue(context.env.jittered(if arrived {
        RESYNC
    } else {
        RECHECK
    })))
}

/// Nothing is decided from a list that is not complete yet.
async fn wait_for_stores(stores: &Stores) {
    // An error means that the watch has ended for good, as at shutdown; the reconcile is then cut off as well.
    let _ = stores.service_accounts.wait_until_ready().await;
    let _ = stores.services.wait_until_ready().await;
    let _ = stores.config_maps.wait_until_ready().await;
    let _ = stores.disruption_budgets.wait_until_ready().await;
    let _ = stores.stateful_sets.wait_until_ready().await;
    let _ = stores.pods.wait_until_ready().await;
}

async fn announce(context: &Context, cluster: &DisklessCluster, step: &Step) {
    let (kind, name, reason, note) = match step {
        Step::ScaleDown { set, to } => (
            "StatefulSet",
            set,
            "ScalingDown",
            format!("statefulset {set} is lowered to {to} replicas"),
        ),
        Step::Replace { pod, .. } => (
            "Pod",
            pod,
            "ReplacingPod",
            format!("pod {pod} is replaced: its form is not the newest"),
        ),
        Step::Idle | Step::Wait(_) => return,
    };
    let about = ObjectReference {
        kind: Some(kind.to_owned()),
        name: Some(name.clone()),
        namespace: cluster.namespace(),
        ..Default::default()
    };
    context
        .event_about(cluster, Some(about), EventType::Normal, reason, &note)
        .await;
}

async fn write_status(
    context: &Context,
    cluster: &DisklessCluster,
    previous: &DisklessClusterStatus,
    status: &DisklessClusterStatus,
) -> Result<(), ReconcileError> {
    if previous == status {
        return Ok(());
    }
    context
        .write_status(Controller::cluster, cluster, status)
        .await
        .map_err(ReconcileError::api("writing the status"))?;
    if let Some(ready) = turned(&previous.conditions, &status.conditions) {
        let type_ = if ready.status == "True" {
            EventType::Normal
        } else {
            EventType::Warning
        };
        context.event(cluster, type_, &ready.reason, &ready.message).await;
    }
    Ok(())
}
