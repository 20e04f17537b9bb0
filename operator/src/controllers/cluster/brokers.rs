//! What only the brokers know, the id of the cluster and its feature level, and the one thing they are told about it: to
//! raise the level.

use std::collections::BTreeMap;

use crds::DisklessCluster;
use env::Instant;
use kube::runtime::events::EventType;
use parking_lot::Mutex;

use super::feature_level;
use super::observe::SetState;
use super::validate::ValidatedCluster;
use crate::admin::{Admin, AdminError, Levels};
use crate::context::Context;
use crate::controllers::RECHECK;

/// What the brokers have told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// Id of the cluster, once known.
    pub cluster_id: Option<String>,
    /// Levels of `diskless.version`, once known.
    pub levels: Option<Levels>,
    /// Why the level is not raised, or why nothing is known, in words.
    pub refusal: Option<String>,
}

impl Told {
    /// Whether there is no need to ask again soon.
    pub fn is_settled(&self) -> bool {
        self.cluster_id.is_some() && self.levels.is_some() && self.refusal.is_none()
    }
}

/// Memory of the last answers, by uid of the cluster: brokers are not asked at every look. Losing it costs a connection
/// for each cluster.
#[derive(Debug, Default)]
pub struct Asked(Mutex<BTreeMap<String, Answer>>);

#[derive(Debug, Clone)]
struct Answer {
    at: Instant,
    question: Question,
    told: Told,
}

/// What an answer depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Question {
    wanted: Option<i16>,
    converged: bool,
    /// What pods are made from.
    revisions: Vec<Option<String>>,
}

impl Asked {
    /// The cluster is gone.
    pub fn forget(&self, uid: &str) {
        self.0.lock().remove(uid);
    }

    /// What the brokers say of the cluster, now or a moment ago. A level that the spec asks for is raised if `converged`.
    /// Not getting an answer fails nothing.
    pub async fn ask(
        &self,
        context: &Context,
        object: &DisklessCluster,
        cluster: &ValidatedCluster,
        sets: &[SetState],
        converged: bool,
    ) -> Told {
        let status = object.status.as_ref();
        let before = Told {
            cluster_id: status.and_then(|status| status.cluster_id.clone()),
            levels: status.and_then(feature_level::known),
            refusal: None,
        };
        let serves = sets.iter().any(|set| set.role == "broker" && set.ready() > 0);
        // Half-way through a roll the answer depends on who is asked.
        if !serves || (!converged && before.is_settled()) {
            return before;
        }
        let revision = |set: &SetState| set.current.as_ref().map(|set| set.update_revision.clone());
        let question = Question {
            wanted: cluster.feature_level,
            converged,
            revisions: sets.iter().map(revision).collect(),
        };
        let (uid, now) = (&cluster.owner.uid, context.env.instant());
        if let Some(answer) = self.0.lock().get(uid)
            && answer.question == question
            && now.saturating_duration_since(answer.at) < RECHECK
        {
            return answer.told.clone();
        }
        let told = match exchange(context, object, cluster, converged).await {
            Ok(told) => told,
            Err(error) => {
                tracing::info!(cluster = cluster.name, %error, "the brokers cannot be asked");
                // What is known goes on holding; an answer is needed only where something is unknown or to be done.
                let behind = |levels: Levels| cluster.feature_level > Some(levels.finalized);
                let needed = before.cluster_id.is_none() || before.levels.is_none_or(behind);
                Told {
                    refusal: needed.then(|| error.to_string()),
                    ..before
                }
            }
        };
        let answer = Answer {
            at: now,
            question,
            told: told.clone(),
        };
        self.0.lock().insert(uid.clone(), answer);
        told
    }
}

async fn exchange(
    context: &Context,
    object: &DisklessCluster,
    cluster: &ValidatedCluster,
    converged: bool,
) -> Result<Told, AdminError> {
    let address = context.settings.admin_address.clone();
    let address = address.unwrap_or_else(|| cluster.bootstrap_address());
    let mut admin = Admin::connect(&context.env, context.metrics.clone(), &address).await?;
    let cluster_id = admin.cluster_id().await?;
    let mut levels = admin.feature_levels().await?;
    let mut refusal = None;
    if converged && let Some(update) = feature_level::next(cluster.feature_level, levels) {
        match admin.update_feature_level(update).await {
            Ok(()) if update.dry_run => {}
            Ok(()) => {
                let (from, to) = (levels.finalized, update.level);
                let note = format!(
                    "diskless.version is raised from {from} to {to}: images that do not support it have no place in the cluster \
                     any more"
                );
                context
                    .event(object, EventType::Normal, "FeatureLevelRaised", &note)
                    .await;
                levels.finalized = to;
            }
            Err(error) => refusal = Some(error.to_string()),
        }
    }
    Ok(Told {
        cluster_id,
        levels: Some(levels),
        refusal,
    })
}
