//! Carries out the changes of a topic, and keeps the finalizer in line with the deletion policy.

use std::fmt::Write;

use crds::DisklessTopic;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::events::EventType;
use kube::{Resource, ResourceExt};
use serde_json::json;
use uuid::Uuid;

use super::plan::Change;
use super::validate::ValidatedTopic;
use crate::admin::{Admin, AdminError, Topic};
use crate::context::Context;
use crate::metrics::Controller;

/// Keeps an object until its topic is deleted; only objects with deletion policy `Delete` have it.
pub const FINALIZER: &str = "diskless.dev/topic";

/// Makes the changes, with an Event for each, and returns the topic as it is then.
///
/// # Errors
/// The broker cannot be talked to, or refuses.
pub async fn apply(
    context: &Context,
    admin: &mut Admin,
    object: &DisklessTopic,
    topic: &ValidatedTopic,
    actual: Option<Topic>,
    changes: Vec<Change>,
) -> Result<Topic, AdminError> {
    let known = object.status.as_ref().and_then(|status| status.topic_id.clone());
    announce_identity(context, object, topic, known.as_deref(), actual.as_ref()).await;
    let mut now = actual.unwrap_or_else(|| Topic {
        id: Uuid::nil(),
        partitions: topic.partitions,
        configs: topic.configs.clone(),
    });
    for change in changes {
        match change {
            Change::Create => {
                now.id = admin
                    .create(&topic.name, topic.partitions, &topic.configs)
                    .await?;
                let note = format!(
                    "topic {} is created with {} partitions",
                    topic.name, topic.partitions
                );
                context
                    .event(object, EventType::Normal, "TopicCreated", &note)
                    .await;
            }
            Change::Grow(total) => {
                admin.grow(&topic.name, total).await?;
                let note = format!(
                    "topic {} has {total} partitions now, {} before",
                    topic.name, now.partitions
                );
                context
                    .event(object, EventType::Normal, "PartitionsAdded", &note)
                    .await;
                now.partitions = total;
            }
            Change::Alter(configs) => {
                admin.alter_configs(&topic.name, &configs).await?;
                let mut note = format!("topic {} is altered:", topic.name);
                for (key, value) in &configs {
                    // Writing to a String cannot fail.
                    let _ = match value {
                        Some(value) => write!(note, " {key}={value}"),
                        None => write!(note, " {key} back to its default"),
                    };
                }
                context
                    .event(object, EventType::Normal, "ConfigChanged", &note)
                    .await;
            }
        }
    }
    Ok(now)
}

/// Says so when the topic is not the one that was known.
async fn announce_identity(
    context: &Context,
    object: &DisklessTopic,
    topic: &ValidatedTopic,
    known: Option<&str>,
    actual: Option<&Topic>,
) {
    let (type_, reason, note) = match (known, actual) {
        (None, Some(actual)) => {
            let note = format!(
                "topic {} was there already, with {} partitions",
                topic.name, actual.partitions
            );
            (EventType::Normal, "TopicAdopted", note)
        }
        (Some(known), None) => {
            let note = format!(
                "topic {} (id {known}) was deleted by someone else and is made anew",
                topic.name
            );
            (EventType::Warning, "TopicRecreated", note)
        }
        (Some(known), Some(actual)) if known != actual.id.to_string() => {
            let note = format!(
                "topic {} (id {known}) was replaced by someone else (id {})",
                topic.name, actual.id
            );
            (EventType::Warning, "TopicReplaced", note)
        }
        _ => return,
    };
    context.event(object, type_, reason, &note).await;
}

/// Adds or removes the finalizer; nothing is sent if it is as wanted.
///
/// # Errors
/// The API server cannot be reached, or the object has changed meanwhile.
pub async fn set_finalizer(context: &Context, object: &DisklessTopic, wanted: bool) -> kube::Result<()> {
    if object.finalizers().iter().any(|finalizer| finalizer == FINALIZER) == wanted {
        return Ok(());
    }
    let others = object
        .finalizers()
        .iter()
        .filter(|finalizer| *finalizer != FINALIZER)
        .cloned();
    let finalizers: Vec<String> = others.chain(wanted.then(|| FINALIZER.to_owned())).collect();
    let api: Api<DisklessTopic> =
        Api::namespaced(context.client.clone(), &object.namespace().unwrap_or_default());
    // The list is replaced as a whole: the version keeps us from undoing what another has added meanwhile.
    let patch = json!({
        "metadata": { "resourceVersion": object.resource_version(), "finalizers": finalizers },
    });
    context
        .metrics
        .write(Controller::topic, &DisklessTopic::kind(&()));
    let params = PatchParams {
        field_manager: Some(Controller::topic.field_manager().to_owned()),
        ..Default::default()
    };
    match api
        .patch_metadata(&object.name_any(), &params, &Patch::Merge(patch))
        .await
    {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 && !wanted => Ok(()),
        Err(error) => Err(error),
    }
}
