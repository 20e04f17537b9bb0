//! From the object as the user wrote it to a [`ValidatedTopic`]. Pure.

use std::collections::BTreeMap;

use crds::{DeletionPolicy, DisklessTopic};
use kube::ResourceExt;

/// A topic whose spec has been checked and completed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValidatedTopic {
    /// Namespace of the object and its cluster.
    pub namespace: String,
    /// Name of the `DisklessCluster`.
    pub cluster: String,
    /// Name of the topic in Kafka.
    pub name: String,
    /// Partitions.
    pub partitions: i32,
    /// Configs that are set on the topic; all others have the default.
    pub configs: BTreeMap<String, String>,
    /// The topic goes with the object.
    pub delete: bool,
}

/// Name of the topic in Kafka.
pub fn topic_name(topic: &DisklessTopic) -> &str {
    let name = topic.spec.topic_name.as_ref().or(topic.metadata.name.as_ref());
    name.map_or("", String::as_str)
}

/// Checks and completes the spec of a topic.
///
/// # Errors
/// What is wrong with it, in words that name the field.
pub fn validate(topic: &DisklessTopic) -> Result<ValidatedTopic, String> {
    let spec = &topic.spec;
    let name = topic_name(topic).to_owned();
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty() || name.len() > 249 || matches!(name.as_str(), "." | "..") || !name.chars().all(legal)
    {
        return Err(format!("the topic name {name:?} is not one that Kafka allows"));
    }
    if name.starts_with("__") {
        return Err("spec.topicName must not begin with __, which is kept for internal topics".to_owned());
    }
    if spec.partitions < 1 {
        return Err("spec.partitions must be 1 or more".to_owned());
    }
    Ok(ValidatedTopic {
        namespace: topic.namespace().unwrap_or_default(),
        cluster: spec.cluster_ref.name.clone(),
        name,
        partitions: spec.partitions,
        configs: spec
            .config
            .entries()
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect(),
        delete: spec.deletion_policy == DeletionPolicy::Delete,
    })
}
