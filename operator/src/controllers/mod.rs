//! The controllers, and what they share: how a reconcile is counted, how failures are retried, how conditions are
//! written.
//!
//! Each is a pipeline: *dereference* (I/O: fetch what the object speaks of) → *validate* (pure) → *build* or *plan*
//! (pure) → *apply* (I/O) → *status* (pure, written only when it differs).

pub mod cluster;
pub mod conditions;
pub mod topic;

use std::future::Future;
use std::time::Duration;

use futures::{Stream, StreamExt};
use kube::core::DeserializeGuard;
use kube::core::error_boundary::InvalidObject;
use kube::runtime::controller::Action;
use kube::runtime::events::EventType;
use kube::runtime::watcher;
use kube::{Resource, ResourceExt};

use crate::context::Context;
use crate::metrics::Controller;

/// Everything is looked at again after this time, for what no watch tells.
const RESYNC: Duration = Duration::from_secs(600);
/// While something is under way: the watches should tell, this is for when they do not.
const RECHECK: Duration = Duration::from_secs(20);
/// Bound of one reconcile, above every timeout inside it.
const RECONCILE_TIMEOUT: Duration = Duration::from_secs(120);

/// Why a reconcile did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// The stored object does not fit the types of this version.
    #[error("the object cannot be read: {0}")]
    Undecodable(Box<InvalidObject>),
    /// The API server cannot be reached or refuses.
    #[error("{action} failed: {}", words(.source))]
    Api {
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        source: kube::Error,
    },
    /// Some objects could not be applied; each in words.
    #[error("{}", .0.join("; "))]
    Apply(Vec<String>),
    /// A broker cannot be reached or refuses.
    #[error(transparent)]
    Admin(#[from] crate::admin::AdminError),
    /// It took longer than any of its parts may.
    #[error("the reconcile did not end in {} s", RECONCILE_TIMEOUT.as_secs())]
    Timeout,
}

impl ReconcileError {
    fn api(action: &'static str) -> impl FnOnce(kube::Error) -> Self {
        move |source| Self::Api { action, source }
    }
}

/// An error of the API server in its own words; the client's text repeats the whole Status object.
fn words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => other.to_string(),
    }
}

/// Takes off a stored object what nobody here reads and what is often the larger part of it.
fn slim<K: Resource>(object: &mut K) {
    let meta = object.meta_mut();
    meta.managed_fields = None;
    if let Some(annotations) = &mut meta.annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
}

/// A watch whose errors are logged and go no further: each watch has its own backoff, and one that is forbidden must
/// not slow down the others.
fn logged<K>(
    watch: impl Stream<Item = Result<K, watcher::Error>> + Send,
) -> impl Stream<Item = Result<K, watcher::Error>> + Send
where
    K: Resource<DynamicType = ()> + Send,
{
    watch.filter_map(|result| {
        std::future::ready(match result {
            Ok(object) => Some(Ok(object)),
            Err(error) => {
                tracing::warn!(kind = %K::kind(&()), %error, "watch interrupted");
                None
            }
        })
    })
}

/// The object, or, with an Event that says so, the error that it cannot be read.
async fn readable<'a, K>(context: &Context, guarded: &'a DeserializeGuard<K>) -> Result<&'a K, ReconcileError>
where
    K: Resource<DynamicType = ()>,
{
    match &guarded.0 {
        Ok(object) => Ok(object),
        Err(error) => {
            let note = format!("the object does not fit this version of the operator: {error}");
            context
                .event(guarded, EventType::Warning, "Unreadable", &note)
                .await;
            Err(ReconcileError::Undecodable(Box::new(error.clone())))
        }
    }
}

/// Runs one reconcile of `object`, and counts and bounds it.
async fn run(
    context: &Context,
    controller: Controller,
    object: &impl Resource,
    reconcile: impl Future<Output = Result<Action, ReconcileError>>,
) -> Result<Action, ReconcileError> {
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    let (namespace, name) = (namespace.as_str(), name.as_str());
    context
        .metrics
        .reconcile_started(controller, namespace, name, context.seconds());
    let start = context.env.instant();
    let result = match context.env.timeout(RECONCILE_TIMEOUT, reconcile).await {
        Ok(result) => result,
        Err(_) => Err(ReconcileError::Timeout),
    };
    let word = match &result {
        Ok(_) => "success",
        Err(ReconcileError::Undecodable(_)) => "invalid",
        Err(_) => "error",
    };
    if result.is_ok() {
        context.succeeded(controller, namespace, name);
    }
    context.metrics.reconcile_ended(
        controller,
        (namespace, name),
        word,
        start.elapsed(),
        context.seconds(),
    );
    result
}

/// When to try `object` again after `error`.
fn retry(
    context: &Context,
    controller: Controller,
    object: &impl Resource,
    error: &ReconcileError,
) -> Action {
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    tracing::warn!(?controller, namespace, name, %error, "reconcile failed");
    match error {
        // Only a write to the object can help, and that is watched.
        ReconcileError::Undecodable(_) => Action::await_change(),
        _ => Action::requeue(context.failed(controller, &namespace, &name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_api_server_are_told_in_its_words() {
        let status = kube::core::Status {
            message: "services is forbidden".to_owned(),
            code: 403,
            ..Default::default()
        };
        let error = ReconcileError::api("reading")(kube::Error::Api(Box::new(status)));
        assert_eq!(error.to_string(), "reading failed: services is forbidden");
    }
}
