//! The controller of `DisklessTopic`. The object says what the topic is; what others do to the topic is undone.

pub mod apply;
pub mod dereference;
pub mod plan;
pub mod status;
pub mod validate;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crds::{DisklessCluster, DisklessTopic};
use futures::StreamExt;
use kube::core::DeserializeGuard;
use kube::runtime::controller::{self, Action};
use kube::runtime::events::EventType;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::{Predicate, WatchStreamExt, predicates, watcher};
use kube::{Resource, ResourceExt};
use uuid::Uuid;

use self::dereference::Cluster;
use self::status::Outcome;
use self::validate::ValidatedTopic;
use super::conditions::{READY, find, turned};
use super::{RECHECK, RESYNC, ReconcileError, logged, readable, slim};
use crate::admin::{Admin, AdminError, Topic};
use crate::context::Context;
use crate::metrics::Controller;

type Guarded = DeserializeGuard<DisklessTopic>;
type Clusters = Store<DeserializeGuard<DisklessCluster>>;

struct TopicContext {
    context: Context,
    topics: Store<Guarded>,
    clusters: Clusters,
}

/// Runs the controller until `shutdown`.
pub async fn run(context: Context, shutdown: impl Future<Output = ()> + Send + Sync + 'static) {
    let (topics, writer) = reflector::store();
    let trigger = watcher(context.watched::<Guarded>(), watcher::Config::default())
        .default_backoff()
        .modify(slim)
        .reflect(writer)
        .applied_objects()
        // Our own writes to the status change none of these.
        .predicate_filter(
            predicates::generation.combine(predicates::annotations),
            Default::default(),
        );

    let (clusters, writer) = reflector::store();
    let cluster_events = watcher(
        context.watched::<DeserializeGuard<DisklessCluster>>(),
        watcher::Config::default(),
    )
    .default_backoff()
    .modify(slim)
    .reflect(writer)
    .touched_objects()
    .predicate_filter(cluster_matters, Default::default());
    let named = topics.clone();

    kube::runtime::Controller::for_stream(logged(trigger), topics.clone())
        .with_config(
            controller::Config::default()
                .debounce(Duration::from_millis(100))
                .concurrency(16),
        )
        .watches_stream(logged(cluster_events), move |cluster| topics_of(&named, &cluster))
        .graceful_shutdown_on(shutdown)
        .run(
            |topic, state| async move {
                let work = Box::pin(reconcile(&topic, &state));
                super::run(&state.context, Controller::topic, topic.as_ref(), work).await
            },
            |topic, error, state| super::retry(&state.context, Controller::topic, topic.as_ref(), error),
            Arc::new(TopicContext {
                context,
                topics,
                clusters,
            }),
        )
        .for_each(|_| std::future::ready(()))
        .await;
}

/// What about a cluster its topics depend on: that it is there, and whether it serves.
fn cluster_matters(cluster: &DeserializeGuard<DisklessCluster>) -> Option<u64> {
    let status = cluster
        .0
        .as_ref()
        .ok()
        .and_then(|cluster| cluster.status.as_ref());
    let serves = status.is_some_and(|status| status.ready_replicas.unwrap_or(0) > 0);
    let ready = status
        .and_then(|status| find(&status.conditions, READY))
        .is_some_and(|condition| condition.status == "True");
    let ending = cluster.meta().deletion_timestamp.is_some();
    Some(u64::from(serves) | u64::from(ready) << 1 | u64::from(ending) << 2)
}

fn topics_of(
    topics: &Store<Guarded>,
    cluster: &DeserializeGuard<DisklessCluster>,
) -> Vec<ObjectRef<Guarded>> {
    let (namespace, name) = (cluster.namespace(), cluster.name_any());
    let topics = topics
        .state()
        .into_iter()
        .filter(|topic| topic.namespace() == namespace);
    topics
        .filter(|topic| {
            topic
                .0
                .as_ref()
                .is_ok_and(|topic| topic.spec.cluster_ref.name == name)
        })
        .map(|topic| ObjectRef::from_obj(topic.as_ref()))
        .collect()
}

async fn reconcile(guarded: &Guarded, state: &TopicContext) -> Result<Action, ReconcileError> {
    let context = &state.context;
    let object = readable(context, guarded).await?;
    // An error means that the watch has ended for good, as at shutdown.
    let _ = state.clusters.wait_until_ready().await;
    if object.metadata.deletion_timestamp.is_some() {
        return delete(object, state).await;
    }
    let outcome = bring_about(object, state).await?;
    write_status(context, object, &outcome).await?;
    match outcome {
        Outcome::Done(_) => Ok(Action::requeue(context.env.jittered(RESYNC))),
        // A rival may go, a foreign topic may change: nobody tells us.
        Outcome::Waiting(_) | Outcome::Stalled(_) => Ok(Action::requeue(context.env.jittered(RECHECK))),
    }
}

/// Makes the topic what the object says.
async fn bring_about(object: &DisklessTopic, state: &TopicContext) -> Result<Outcome, ReconcileError> {
    let context = &state.context;
    let topic = match validate::validate(object) {
        Ok(topic) => topic,
        Err(problem) => return Ok(Outcome::stalled("InvalidSpec", problem)),
    };
    if let Some(rival) = dereference::rival(&state.topics.state(), object) {
        let message = format!(
            "topic {} of cluster {} belongs to DisklessTopic {rival}, which is older; delete one of the two",
            topic.name, topic.cluster
        );
        return Ok(Outcome::stalled("TopicNameConflict", message));
    }
    let address = match dereference::cluster(context, &state.clusters, &topic.namespace, &topic.cluster) {
        Cluster::Missing => {
            let message = format!(
                "there is no DisklessCluster {} in namespace {}",
                topic.cluster, topic.namespace
            );
            return Ok(Outcome::waiting("ClusterNotFound", message));
        }
        Cluster::Ending => {
            let message = format!("DisklessCluster {} is being deleted", topic.cluster);
            return Ok(Outcome::waiting("ClusterEnding", message));
        }
        Cluster::At(address) => address,
    };
    // Before the topic is there, so that it cannot be left behind.
    apply::set_finalizer(context, object, topic.delete)
        .await
        .map_err(ReconcileError::api("changing the finalizer"))?;
    match converge(context, object, &topic, &address).await {
        Ok(outcome) => Ok(outcome),
        Err(error) if error.is_terminal() => Ok(Outcome::stalled("Rejected", error.to_string())),
        Err(error @ AdminError::Unreachable { .. }) => Ok(Outcome::waiting(
            "ClusterNotReady",
            format!("cluster {}: {error}", topic.cluster),
        )),
        Err(error) => Ok(Outcome::waiting(
            "RequestFailed",
            format!("cluster {}: {error}", topic.cluster),
        )),
    }
}

async fn converge(
    context: &Context,
    object: &DisklessTopic,
    topic: &ValidatedTopic,
    address: &str,
) -> Result<Outcome, AdminError> {
    let mut admin = Admin::connect(&context.env, context.metrics.clone(), address).await?;
    let actual: Option<Topic> = admin.describe(&topic.name).await?;
    let changes = match plan::plan(topic, actual.as_ref()) {
        Ok(changes) => changes,
        Err(problem) => return Ok(Outcome::stalled("PartitionsIncompatible", problem)),
    };
    apply::apply(context, &mut admin, object, topic, actual, changes)
        .await
        .map(Outcome::Done)
}

/// Deletes the topic if the policy says so, then lets the object go. Data is deleted only by id, and only the data of a
/// topic that this object is known to have held.
async fn delete(object: &DisklessTopic, state: &TopicContext) -> Result<Action, ReconcileError> {
    let context = &state.context;
    let id = object
        .status
        .as_ref()
        .and_then(|status| status.topic_id.as_deref()?.parse::<Uuid>().ok());
    let wanted = object.spec.deletion_policy == crds::DeletionPolicy::Delete;
    if let (true, true, Some(id)) = (
        wanted,
        object.finalizers().iter().any(|f| f == apply::FINALIZER),
        id,
    ) && let Some(problem) = delete_topic(object, state, id).await
    {
        let message = format!("the topic is not deleted yet: {problem}");
        write_status(context, object, &Outcome::waiting("DeletionPending", message)).await?;
        return Ok(Action::requeue(context.failed(
            Controller::topic,
            &object.namespace().unwrap_or_default(),
            &object.name_any(),
        )));
    }
    apply::set_finalizer(context, object, false)
        .await
        .map_err(ReconcileError::api("removing the finalizer"))?;
    Ok(Action::await_change())
}

/// What keeps the topic from being deleted, in words; `None` when it is deleted, or when there is nothing left that
/// could hold it.
async fn delete_topic(object: &DisklessTopic, state: &TopicContext, id: Uuid) -> Option<String> {
    let context = &state.context;
    let namespace = object.namespace().unwrap_or_default();
    let name = &object.spec.cluster_ref.name;
    let address = match dereference::cluster(context, &state.clusters, &namespace, name) {
        Cluster::At(address) => address,
        Cluster::Missing | Cluster::Ending => {
            let note = format!("cluster {name} is gone, so topic {id} is not deleted one by one");
            context
                .event(object, EventType::Warning, "FinalizerDropped", &note)
                .await;
            return None;
        }
    };
    let deleted = async {
        let mut admin = Admin::connect(&context.env, context.metrics.clone(), &address).await?;
        admin.delete(id).await
    };
    match deleted.await {
        Ok(()) => {
            let note = format!("topic {} (id {id}) is deleted", validate::topic_name(object));
            context
                .event(object, EventType::Normal, "TopicDeleted", &note)
                .await;
            None
        }
        // The cluster's pods go with the namespace in no particular order; waiting for one to answer would keep the
        // namespace for ever.
        Err(error) if dereference::namespace_is_ending(context, &namespace).await => {
            tracing::warn!(topic = object.name_any(), namespace, %error, "finalizer dropped: the namespace is ending");
            None
        }
        Err(error) => Some(error.to_string()),
    }
}

async fn write_status(
    context: &Context,
    object: &DisklessTopic,
    outcome: &Outcome,
) -> Result<(), ReconcileError> {
    let previous = object.status.clone().unwrap_or_default();
    let status = status::status(object, outcome, context.now());
    if status == previous {
        return Ok(());
    }
    context
        .write_status(Controller::topic, object, &status)
        .await
        .map_err(ReconcileError::api("writing the status"))?;
    // How it became ready is told by the Events of the changes themselves.
    if let Some(ready) =
        turned(&previous.conditions, &status.conditions).filter(|ready| ready.status != "True")
    {
        context
            .event(object, EventType::Warning, &ready.reason, &ready.message)
            .await;
    }
    Ok(())
}
