//! What the StatefulSets and pods of a cluster look like right now, reduced to what decisions need. Pure.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec};
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod, PodStatus};
use kube::ResourceExt;

use super::build::{CLUSTER_LABEL, Set};
use super::validate::ValidatedCluster;

/// Label with the revision of a StatefulSet that a pod was made from.
const REVISION_LABEL: &str = "controller-revision-hash";

/// One StatefulSet of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetState {
    /// Name of the StatefulSet.
    pub name: String,
    /// `coordinator` or `broker`.
    pub role: &'static str,
    /// Zone, for brokers.
    pub zone: Option<String>,
    /// Replicas it should have.
    pub desired: i32,
    /// `None`: it is not created yet.
    pub current: Option<Current>,
    /// Its pods, by ordinal.
    pub pods: Vec<PodState>,
}

/// A StatefulSet as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Current {
    /// `spec.replicas`.
    pub replicas: i32,
    /// Its controller has seen the newest spec, so what follows speaks of that.
    pub settled: bool,
    /// Revision that new pods get.
    pub update_revision: String,
    /// Pods that exist.
    pub pods: i32,
    /// Ready pods.
    pub ready: i32,
    /// Pods that have been ready for `spec.minReadySeconds`.
    pub available: i32,
    /// Pods of [`Current::update_revision`].
    pub updated: i32,
}

/// A pod as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodState {
    /// Name.
    pub name: String,
    /// Uid, the precondition of an eviction.
    pub uid: String,
    /// Number at the end of the name.
    pub ordinal: i32,
    /// Serves.
    pub ready: bool,
    /// Is being deleted.
    pub terminating: bool,
    /// Revision it was made from.
    pub revision: String,
    /// Why it does not serve, if that can be told.
    pub trouble: Option<Trouble>,
}

/// Why a pod does not serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// What kind of trouble.
    pub kind: TroubleKind,
    /// In words, with the name of the pod.
    pub message: String,
}

/// Kinds of trouble; the name is the reason of the condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TroubleKind {
    /// No node takes the pod.
    Unschedulable,
    /// The image cannot be had.
    ImageUnavailable,
    /// The container cannot be made.
    ContainerNotCreated,
    /// The process ended because of the object store.
    ObjectStore,
    /// The process ended by itself.
    Crashing,
}

impl TroubleKind {
    /// Reason of a condition.
    pub fn reason(self) -> &'static str {
        match self {
            TroubleKind::Unschedulable => "Unschedulable",
            TroubleKind::ImageUnavailable => "ImageUnavailable",
            TroubleKind::ContainerNotCreated => "ContainerNotCreated",
            TroubleKind::ObjectStore => "ObjectStoreUnavailable",
            TroubleKind::Crashing => "Crashing",
        }
    }
}

impl SetState {
    /// True when it is there in full, in its newest form, and serves.
    pub fn is_converged(&self) -> bool {
        match &self.current {
            None => false,
            Some(current) => {
                current.settled
                    && current.replicas == self.desired
                    && current.ready == self.desired
                    && current.updated == self.desired
            }
        }
    }

    /// Ready pods.
    pub fn ready(&self) -> i32 {
        self.current.as_ref().map_or(0, |current| current.ready)
    }

    /// The first trouble among its pods.
    pub fn trouble(&self) -> Option<&Trouble> {
        self.pods.iter().find_map(|pod| pod.trouble.as_ref())
    }
}

/// Takes off a StatefulSet what [`observe`] does not look at.
pub fn slim_stateful_set(set: &mut StatefulSet) {
    let meta = &mut set.metadata;
    (meta.managed_fields, meta.labels, meta.annotations) = (None, None, None);
    set.spec = StatefulSetSpec {
        replicas: set.spec.replicas,
        ..Default::default()
    };
}

/// Takes off a pod what [`observe`] does not look at: most of it.
pub fn slim_pod(pod: &mut Pod) {
    let meta = &mut pod.metadata;
    (meta.managed_fields, meta.annotations) = (None, None);
    if let Some(labels) = &mut meta.labels {
        labels.retain(|key, _| key == CLUSTER_LABEL || key == REVISION_LABEL);
    }
    pod.spec = None;
    let Some(status) = pod.status.take() else { return };
    let mut conditions = status.conditions;
    if let Some(conditions) = &mut conditions {
        conditions.retain(|condition| ["Ready", "PodScheduled"].contains(&condition.type_.as_str()));
    }
    let container = |container: ContainerStatus| ContainerStatus {
        name: container.name,
        image: container.image,
        state: container.state,
        last_state: container.last_state,
        ..Default::default()
    };
    let containers = status.container_statuses.into_iter().flatten().map(container);
    pod.status = Some(PodStatus {
        conditions,
        container_statuses: Some(containers.collect()),
        ..Default::default()
    });
}

/// All StatefulSets of the cluster in the order of a rollout.
pub fn observe(cluster: &ValidatedCluster, sets: &[Arc<StatefulSet>], pods: &[Arc<Pod>]) -> Vec<SetState> {
    let state = |set: Set<'_>| {
        let name = cluster.set_name(set);
        let object = sets.iter().find(|object| object.name_any() == name);
        SetState {
            role: set.role(),
            zone: set.zone().map(|zone| zone.name.clone()),
            desired: cluster.replicas(set),
            current: object.map(|object| current(object)),
            pods: pods_of(&name, pods),
            name,
        }
    };
    cluster.sets().into_iter().map(state).collect()
}

fn current(object: &StatefulSet) -> Current {
    let status = object.status.clone().unwrap_or_default();
    Current {
        replicas: object.spec.replicas.unwrap_or(1),
        settled: status.observed_generation.is_some()
            && status.observed_generation == object.metadata.generation,
        update_revision: status.update_revision.unwrap_or_default(),
        pods: status.replicas,
        ready: status.ready_replicas.unwrap_or(0),
        available: status.available_replicas.unwrap_or(0),
        updated: status.updated_replicas.unwrap_or(0),
    }
}

fn pods_of(set: &str, pods: &[Arc<Pod>]) -> Vec<PodState> {
    let mut states: Vec<PodState> = pods
        .iter()
        .filter(|pod| {
            pod.owner_references()
                .iter()
                .any(|o| o.kind == "StatefulSet" && o.name == set)
        })
        .filter_map(|pod| pod_state(pod))
        .collect();
    states.sort_by_key(|pod| pod.ordinal);
    states
}

fn pod_state(pod: &Pod) -> Option<PodState> {
    let name = pod.name_any();
    let ordinal = name.rsplit('-').next()?.parse().ok()?;
    let status = pod.status.as_ref();
    let is_true = |condition: &str| {
        let conditions = status
            .and_then(|status| status.conditions.as_deref())
            .unwrap_or_default();
        conditions
            .iter()
            .any(|c| c.type_ == condition && c.status == "True")
    };
    let ready = is_true("Ready");
    Some(PodState {
        ordinal,
        uid: pod.uid().unwrap_or_default(),
        ready,
        terminating: pod.metadata.deletion_timestamp.is_some(),
        revision: pod.labels().get(REVISION_LABEL).cloned().unwrap_or_default(),
        trouble: if ready { None } else { trouble(&name, pod) },
        name,
    })
}

fn trouble(name: &str, pod: &Pod) -> Option<Trouble> {
    let status = pod.status.as_ref()?;
    let unscheduled = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
    if let Some(condition) = unscheduled {
        let why = condition.message.as_deref().unwrap_or("no reason given");
        let message = format!("no node for pod {name}: {why}");
        return Some(Trouble {
            kind: TroubleKind::Unschedulable,
            message,
        });
    }
    status
        .container_statuses
        .iter()
        .flatten()
        .find_map(|container| container_trouble(name, container))
}

fn container_trouble(name: &str, container: &ContainerStatus) -> Option<Trouble> {
    let waiting = container.state.as_ref().and_then(|state| state.waiting.as_ref());
    if let Some(waiting) = waiting {
        let reason = waiting.reason.as_deref().unwrap_or_default();
        let kind = match reason {
            "ErrImagePull" | "ImagePullBackOff" | "InvalidImageName" | "ErrImageNeverPull" => {
                Some(TroubleKind::ImageUnavailable)
            }
            "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" => {
                Some(TroubleKind::ContainerNotCreated)
            }
            _ => None,
        };
        if let Some(kind) = kind {
            let why = waiting.message.as_deref().unwrap_or(reason);
            // The kubelet alternates between two texts for one and the same missing image.
            let why = if kind == TroubleKind::ImageUnavailable {
                &container.image
            } else {
                why
            };
            return Some(Trouble {
                kind,
                message: format!("pod {name}: {}: {why}", text(kind)),
            });
        }
    }
    let ended = |state: &Option<ContainerState>| state.as_ref().and_then(|state| state.terminated.clone());
    let end = ended(&container.state).or_else(|| ended(&container.last_state))?;
    if end.exit_code == 0 {
        return None;
    }
    let said = last_line(end.message.as_deref().unwrap_or_default());
    let said = if said.is_empty() {
        end.reason.as_deref().unwrap_or("no message")
    } else {
        said
    };
    let lower = said.to_lowercase();
    let kind = if ["object store", "object_store", "bucket"]
        .iter()
        .any(|word| lower.contains(word))
    {
        TroubleKind::ObjectStore
    } else {
        TroubleKind::Crashing
    };
    Some(Trouble {
        kind,
        message: format!("pod {name} ends with code {}: {said}", end.exit_code),
    })
}

fn text(kind: TroubleKind) -> &'static str {
    match kind {
        TroubleKind::ImageUnavailable => "cannot pull image",
        _ => "cannot make the container",
    }
}

/// The last line with anything in it, which is where the broker says why it ends; of bounded length.
fn last_line(message: &str) -> &str {
    let line = message
        .lines()
        .rev()
        .map(str::trim)
        .find(|line| !line.is_empty())
        .unwrap_or_default();
    let line = line.strip_prefix("error: ").unwrap_or(line);
    let end = line
        .char_indices()
        .nth(400)
        .map_or(line.len(), |(index, _)| index);
    line.get(..end).unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(status: Value) -> PodState {
        let object = json!({
            "metadata": {
                "name": "demo-a-1",
                "uid": "u1",
                "labels": {"controller-revision-hash": "demo-a-7"},
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "demo-a", "uid": "s", "controller": true
                }],
            },
            "status": status,
        });
        let whole: Pod = serde_json::from_value(object).unwrap();
        let mut slim = whole.clone();
        slim_pod(&mut slim);
        let [seen, slim] = [whole, slim].map(|pod| pods_of("demo-a", &[Arc::new(pod)]).remove(0));
        assert_eq!(seen, slim, "what is taken off is not looked at");
        seen
    }

    fn container(state: Value, last_state: Value) -> Value {
        json!({"containerStatuses": [{
            "name": "broker", "image": "broker:1", "imageID": "", "ready": false, "restartCount": 3,
            "state": state, "lastState": last_state,
        }]})
    }

    #[test]
    fn a_serving_pod_has_no_trouble() {
        let pod = pod(json!({"conditions": [{"type": "Ready", "status": "True"}]}));
        assert_eq!(
            (pod.ordinal, pod.ready, pod.revision.as_str()),
            (1, true, "demo-a-7")
        );
        assert_eq!(pod.trouble, None);
    }

    #[test]
    fn an_unscheduled_pod_says_why() {
        let condition =
            json!({"type": "PodScheduled", "status": "False", "message": "0/4 nodes are available"});
        let trouble = pod(json!({"conditions": [condition]})).trouble.unwrap();
        assert_eq!(trouble.kind, TroubleKind::Unschedulable);
        assert_eq!(
            trouble.message,
            "no node for pod demo-a-1: 0/4 nodes are available"
        );
    }

    #[test]
    fn a_missing_image_has_one_message_through_all_attempts() {
        let waiting =
            |reason: &str| json!({"waiting": {"reason": reason, "message": format!("{reason} after 10s")}});
        let first = pod(container(waiting("ErrImagePull"), json!({})))
            .trouble
            .unwrap();
        let second = pod(container(waiting("ImagePullBackOff"), json!({})))
            .trouble
            .unwrap();
        assert_eq!(first, second);
        assert_eq!(first.message, "pod demo-a-1: cannot pull image: broker:1");
    }

    #[test]
    fn a_crash_says_its_last_words() {
        let waiting = json!({"waiting": {"reason": "CrashLoopBackOff"}});
        let ended =
            |message: &str| json!({"terminated": {"exitCode": 1, "reason": "Error", "message": message}});
        let store = ended("starting\nerror: object store s3://records: access denied\n\n");
        let trouble = pod(container(waiting.clone(), store)).trouble.unwrap();
        assert_eq!(trouble.kind, TroubleKind::ObjectStore);
        assert_eq!(
            trouble.message,
            "pod demo-a-1 ends with code 1: object store s3://records: access denied"
        );
        let trouble = pod(container(waiting, ended("port 9092 is in use")))
            .trouble
            .unwrap();
        assert_eq!(trouble.kind, TroubleKind::Crashing);
        let killed = json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}});
        let trouble = pod(container(json!({"running": {}}), killed)).trouble.unwrap();
        assert_eq!(trouble.message, "pod demo-a-1 ends with code 137: OOMKilled");
    }
}
