//! What the status of a cluster says. Pure.

use crds::{Condition, DisklessClusterStatus, FeatureLevels, ZoneStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::brokers::Told;
use super::dereference::Credentials;
use super::feature_level::{self, Means};
use super::observe::{SetState, Trouble, TroubleKind};
use super::rollout::Step;
use super::validate::ValidatedCluster;
use crate::controllers::conditions::{Conditions, Is, READY, RECONCILING, STALLED, Verdict};

/// The object store can be reached and opened.
pub const OBJECT_STORE_READY: &str = "ObjectStoreReady";
/// All coordinators serve.
pub const COORDINATORS_READY: &str = "CoordinatorsReady";
/// All brokers serve.
pub const BROKERS_READY: &str = "BrokersReady";
/// The level of `diskless.version` is the one asked for, or the highest there is.
pub const FEATURE_LEVEL_FINALIZED: &str = "FeatureLevelFinalized";

/// What a pass over a cluster has found.
#[derive(Debug)]
pub struct Findings<'a> {
    /// The cluster.
    pub cluster: &'a ValidatedCluster,
    /// Its StatefulSets.
    pub sets: &'a [SetState],
    /// Its credentials.
    pub credentials: &'a Credentials,
    /// The step of the rollout.
    pub step: &'a Step,
    /// What could not be applied, in words.
    pub failures: &'a [String],
    /// What the brokers have told.
    pub told: &'a Told,
}

/// The status after a pass.
pub fn status(
    findings: &Findings<'_>,
    previous: &[Condition],
    generation: Option<i64>,
    now: Time,
) -> DisklessClusterStatus {
    let cluster = findings.cluster;
    let store = object_store(findings);
    let coordinators = role(findings.sets, "coordinator");
    let brokers = role(findings.sets, "broker");
    let progress = progress(findings, [&store, &coordinators, &brokers]);
    let level = feature_level::standing(
        cluster.feature_level,
        findings.told.levels,
        findings.sets.iter().all(SetState::is_converged),
        findings.told.refusal.as_deref(),
    );
    let (mut reconciling, mut stalled) = (progress, None);
    if let (None, Some(level)) = (&reconciling, &level) {
        match level.means {
            Means::Met => {}
            Means::Waiting => reconciling = Some(level.verdict.clone()),
            Means::Stalled => stalled = Some(level.verdict.clone()),
        }
    }
    let mut conditions = Conditions::new(previous, generation, now);
    match reconciling.as_ref().or(stalled.as_ref()) {
        None => {
            let message = "every broker and coordinator runs as specified";
            conditions.set(READY, &Verdict::new(Is::True, "AsSpecified", message));
        }
        Some(verdict) => conditions.set(
            READY,
            &Verdict {
                is: Is::False,
                ..verdict.clone()
            },
        ),
    }
    conditions.set(OBJECT_STORE_READY, &store);
    conditions.set(COORDINATORS_READY, &coordinators);
    conditions.set(BROKERS_READY, &brokers);
    if let Some(level) = level {
        conditions.set(FEATURE_LEVEL_FINALIZED, &level.verdict);
    }
    for (type_, verdict) in [(RECONCILING, reconciling), (STALLED, stalled)] {
        if let Some(verdict) = verdict {
            conditions.set(
                type_,
                &Verdict {
                    is: Is::True,
                    ..verdict
                },
            );
        }
    }
    let brokers = || findings.sets.iter().filter(|set| set.role == "broker");
    let zones = cluster.zones.iter().zip(brokers()).map(|(zone, set)| ZoneStatus {
        name: zone.name.clone(),
        bootstrap: cluster.zone_bootstrap_address(zone),
        replicas: pods(set),
        ready_replicas: set.ready(),
    });
    let levels = findings.told.levels;
    let selector = cluster.selector("broker", None);
    let selector: Vec<String> = selector
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    DisklessClusterStatus {
        observed_generation: generation,
        conditions: conditions.into_list(),
        cluster_id: findings.told.cluster_id.clone(),
        image: Some(cluster.image.clone()),
        feature_level: levels.map(|levels| levels.finalized.into()),
        supported_feature_levels: levels.map(|levels| FeatureLevels {
            min: levels.min.into(),
            max: levels.max.into(),
        }),
        bootstrap: Some(cluster.bootstrap_address()),
        replicas: Some(brokers().map(pods).sum()),
        ready_replicas: Some(brokers().map(SetState::ready).sum()),
        selector: Some(selector.join(",")),
        zones: zones.collect(),
    }
}

/// The status of a cluster whose spec cannot be carried out. What runs goes on running, and what was known of it stays.
pub fn invalid(
    previous: &DisklessClusterStatus,
    problem: &str,
    generation: Option<i64>,
    now: Time,
) -> DisklessClusterStatus {
    let mut conditions = Conditions::new(&previous.conditions, generation, now);
    let verdict = Verdict::new(Is::False, "InvalidSpec", problem);
    conditions.set(READY, &verdict);
    for type_ in [OBJECT_STORE_READY, COORDINATORS_READY, BROKERS_READY] {
        conditions.set(
            type_,
            &Verdict {
                is: Is::Unknown,
                ..verdict.clone()
            },
        );
    }
    conditions.set(
        STALLED,
        &Verdict {
            is: Is::True,
            ..verdict
        },
    );
    DisklessClusterStatus {
        observed_generation: generation,
        conditions: conditions.into_list(),
        ..previous.clone()
    }
}

/// Why the cluster is not ready yet; `None` when it is.
fn progress(findings: &Findings<'_>, parts: [&Verdict; 3]) -> Option<Verdict> {
    if !findings.failures.is_empty() {
        return Some(Verdict::new(
            Is::False,
            "ApplyFailed",
            findings.failures.join("; "),
        ));
    }
    let [store, ..] = parts;
    if store.is == Is::False {
        return Some(store.clone());
    }
    let outdated = findings.sets.iter().any(|set| {
        set.current
            .as_ref()
            .is_some_and(|current| current.settled && current.updated < current.pods)
    });
    let trouble = findings.sets.iter().find_map(SetState::trouble);
    if let (true, Some(trouble)) = (outdated, trouble) {
        let message = format!(
            "no further pod is replaced until this one works: {}",
            trouble.message
        );
        return Some(Verdict::new(Is::False, "RolloutBlocked", message));
    }
    if outdated || matches!(findings.step, Step::Replace { .. }) {
        let message = match findings.step {
            Step::Wait(why) => format!("pods are replaced one by one; now {why}"),
            Step::Replace { pod, .. } => format!("pods are replaced one by one; now pod {pod}"),
            Step::Idle | Step::ScaleDown { .. } => "pods are replaced one by one".to_owned(),
        };
        return Some(Verdict::new(Is::False, "RollingUpdate", message));
    }
    let surplus = findings
        .sets
        .iter()
        .any(|set| set.current.as_ref().is_some_and(|c| c.replicas > set.desired));
    if surplus {
        return Some(Verdict::new(
            Is::False,
            "ScalingDown",
            "pods are taken away one by one",
        ));
    }
    // Coordinators before brokers: these cannot serve without those.
    if let Some(part) = parts.into_iter().find(|part| part.is == Is::False) {
        return Some(part.clone());
    }
    if findings.sets.iter().all(SetState::is_converged) && store.is == Is::True {
        return None;
    }
    Some(Verdict::new(
        Is::False,
        "Starting",
        "the newest state is not reached yet",
    ))
}

fn object_store(findings: &Findings<'_>) -> Verdict {
    match findings.credentials {
        Credentials::Missing(what) => return Verdict::new(Is::False, "CredentialsMissing", what.clone()),
        Credentials::Unreadable(why) => {
            return Verdict::new(Is::Unknown, "CredentialsUnreadable", why.clone());
        }
        Credentials::Present => {}
    }
    let troubles = findings
        .sets
        .iter()
        .flat_map(|set| &set.pods)
        .filter_map(|pod| pod.trouble.as_ref());
    let mut troubles = troubles.filter(|trouble| trouble.kind == TroubleKind::ObjectStore);
    if let Some(trouble) = troubles.next() {
        return Verdict::new(Is::False, trouble.kind.reason(), trouble.message.clone());
    }
    if findings.sets.iter().any(|set| set.ready() > 0) {
        return Verdict::new(
            Is::True,
            "Reachable",
            format!("pods work with {}", findings.cluster.object_store.url),
        );
    }
    Verdict::new(Is::Unknown, "Starting", "no pod has reached the object store yet")
}

fn role(sets: &[SetState], role: &str) -> Verdict {
    let sets: Vec<_> = sets.iter().filter(|set| set.role == role).collect();
    let desired: i32 = sets.iter().map(|set| set.desired).sum();
    let ready: i32 = sets.iter().map(|set| set.ready().min(set.desired)).sum();
    let count = format!("{ready} of {desired} {role}s are ready");
    if ready >= desired && sets.iter().all(|set| set.current.is_some()) {
        return Verdict::new(Is::True, "AllReady", count);
    }
    match sets.iter().find_map(|set| set.trouble()) {
        Some(Trouble { kind, message }) => {
            Verdict::new(Is::False, kind.reason(), format!("{count}; {message}"))
        }
        None => Verdict::new(Is::False, "NotReady", count),
    }
}

fn pods(set: &SetState) -> i32 {
    set.current.as_ref().map_or(0, |current| current.pods)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::super::observe::{Current, PodState};
    use super::super::validate::tests::valid;
    use super::*;
    use crate::admin::Levels;
    use crate::controllers::conditions::find;

    fn set(name: &str, role: &'static str, ready: i32, updated: i32) -> SetState {
        SetState {
            name: name.to_owned(),
            role,
            zone: None,
            desired: 2,
            current: Some(Current {
                replicas: 2,
                settled: true,
                update_revision: "2".to_owned(),
                pods: 2,
                ready,
                available: ready,
                updated,
            }),
            pods: vec![],
        }
    }

    fn pod_in_trouble(kind: TroubleKind, message: &str) -> PodState {
        PodState {
            name: "demo-a-1".to_owned(),
            uid: "u".to_owned(),
            ordinal: 1,
            ready: false,
            terminating: false,
            revision: "2".to_owned(),
            trouble: Some(Trouble {
                kind,
                message: message.to_owned(),
            }),
        }
    }

    fn conditions(
        sets: &[SetState],
        credentials: &Credentials,
        step: &Step,
        failures: &[String],
    ) -> Vec<Condition> {
        let told = Told {
            cluster_id: Some("id".to_owned()),
            levels: None,
            refusal: None,
        };
        let cluster = valid();
        let findings = Findings {
            cluster: &cluster,
            sets,
            credentials,
            step,
            failures,
            told: &told,
        };
        status(&findings, &[], Some(1), Time(Timestamp::UNIX_EPOCH)).conditions
    }

    fn converged() -> [SetState; 2] {
        [
            set("demo-coordinator", "coordinator", 2, 2),
            set("demo-a", "broker", 2, 2),
        ]
    }

    #[track_caller]
    fn says(conditions: &[Condition], type_: &str, status: &str, reason: &str, words: &str) {
        let condition = find(conditions, type_).unwrap_or_else(|| panic!("no {type_} in {conditions:?}"));
        assert_eq!(
            (condition.status.as_str(), condition.reason.as_str()),
            (status, reason),
            "{condition:?}"
        );
        assert!(condition.message.contains(words), "{condition:?}");
    }

    #[test]
    fn a_converged_cluster_is_ready_and_nothing_else() {
        let conditions = conditions(&converged(), &Credentials::Present, &Step::Idle, &[]);
        let types: Vec<_> = conditions
            .iter()
            .map(|c| (c.type_.as_str(), c.status.as_str()))
            .collect();
        let all = [READY, OBJECT_STORE_READY, COORDINATORS_READY, BROKERS_READY].map(|type_| (type_, "True"));
        assert_eq!(types, all);
    }

    #[test]
    fn missing_credentials_are_named_while_the_pods_go_on() {
        let missing = Credentials::Missing("secret s3 does not exist".to_owned());
        let conditions = conditions(&converged(), &missing, &Step::Idle, &[]);
        says(
            &conditions,
            OBJECT_STORE_READY,
            "False",
            "CredentialsMissing",
            "secret s3",
        );
        says(&conditions, READY, "False", "CredentialsMissing", "secret s3");
        says(
            &conditions,
            RECONCILING,
            "True",
            "CredentialsMissing",
            "secret s3",
        );
        says(&conditions, BROKERS_READY, "True", "AllReady", "2 of 2");
    }

    #[test]
    fn an_unreachable_bucket_is_told_from_what_the_pods_said() {
        let mut sets = [
            set("demo-coordinator", "coordinator", 0, 2),
            set("demo-a", "broker", 0, 2),
        ];
        let words = "pod demo-a-1 ends with code 1: object store s3://records: connection refused";
        sets[1].pods.push(pod_in_trouble(TroubleKind::ObjectStore, words));
        let conditions = conditions(&sets, &Credentials::Present, &Step::Idle, &[]);
        says(
            &conditions,
            OBJECT_STORE_READY,
            "False",
            "ObjectStoreUnavailable",
            "connection refused",
        );
        says(
            &conditions,
            READY,
            "False",
            "ObjectStoreUnavailable",
            "connection refused",
        );
    }

    #[test]
    fn no_node_for_a_coordinator_is_told_in_the_schedulers_words() {
        let mut sets = converged();
        sets[0] = set("demo-coordinator", "coordinator", 1, 2);
        sets[0].pods.push(pod_in_trouble(
            TroubleKind::Unschedulable,
            "no node for pod demo-coordinator-1: 0/4 nodes",
        ));
        let conditions = conditions(&sets, &Credentials::Present, &Step::Idle, &[]);
        says(
            &conditions,
            COORDINATORS_READY,
            "False",
            "Unschedulable",
            "0/4 nodes",
        );
        says(
            &conditions,
            READY,
            "False",
            "Unschedulable",
            "1 of 2 coordinators are ready",
        );
        says(&conditions, BROKERS_READY, "True", "AllReady", "");
    }

    #[test]
    fn a_roll_is_progress_and_a_broken_pod_blocks_it() {
        let mut sets = converged();
        sets[1] = set("demo-a", "broker", 1, 1);
        let step = Step::Wait("pod demo-a-1 is not ready".to_owned());
        let rolling = conditions(&sets, &Credentials::Present, &step, &[]);
        says(&rolling, RECONCILING, "True", "RollingUpdate", "demo-a-1");
        assert!(find(&rolling, STALLED).is_none());
        sets[1].pods.push(pod_in_trouble(
            TroubleKind::ImageUnavailable,
            "pod demo-a-1: cannot pull image: nope:1",
        ));
        let blocked = conditions(&sets, &Credentials::Present, &step, &[]);
        says(&blocked, READY, "False", "RolloutBlocked", "nope:1");
    }

    #[test]
    fn what_cannot_be_applied_is_said() {
        let failures = ["service demo-brokers: exists already".to_owned()];
        let conditions = conditions(&converged(), &Credentials::Present, &Step::Idle, &failures);
        says(&conditions, READY, "False", "ApplyFailed", "service demo-brokers");
    }

    #[test]
    fn the_level_counts_when_everything_else_is_as_specified() {
        let levels = Levels {
            finalized: 1,
            min: 1,
            max: 2,
        };
        let after = |wanted, sets: &[SetState]| {
            let cluster = ValidatedCluster {
                feature_level: wanted,
                ..valid()
            };
            let told = Told {
                cluster_id: None,
                levels: Some(levels),
                refusal: None,
            };
            let findings = Findings {
                cluster: &cluster,
                sets,
                credentials: &Credentials::Present,
                step: &Step::Idle,
                failures: &[],
                told: &told,
            };
            let status = status(&findings, &[], Some(1), Time(Timestamp::UNIX_EPOCH));
            let supported = status.supported_feature_levels.unwrap();
            assert_eq!((status.feature_level, supported.max), (Some(1), 2));
            status.conditions
        };
        let level = FEATURE_LEVEL_FINALIZED;
        let offered = after(None, &converged());
        says(
            &offered,
            level,
            "False",
            "UpgradePending",
            "spec.featureLevel to 2",
        );
        says(&offered, READY, "True", "AsSpecified", "");
        assert!(find(&offered, STALLED).is_none() && find(&offered, RECONCILING).is_none());
        let waits = after(Some(2), &converged());
        says(&waits, READY, "False", "FinalizingFeatureLevel", "level 2");
        says(&waits, RECONCILING, "True", "FinalizingFeatureLevel", "");
        let beyond = after(Some(3), &converged());
        says(
            &beyond,
            READY,
            "False",
            "FeatureLevelUnsupported",
            "spec.featureLevel is 3",
        );
        says(
            &beyond,
            STALLED,
            "True",
            "FeatureLevelUnsupported",
            "supports 1 to 2",
        );
        assert!(find(&beyond, RECONCILING).is_none());
        // A roll that is under way may bring what supports it.
        let mut rolling = converged();
        rolling[1] = set("demo-a", "broker", 1, 1);
        let beyond = after(Some(3), &rolling);
        says(&beyond, READY, "False", "RollingUpdate", "");
        says(&beyond, level, "False", "FinalizingFeatureLevel", "level 3");
        assert!(find(&beyond, STALLED).is_none());
    }

    #[test]
    fn a_spec_that_cannot_be_carried_out_is_stalled() {
        let previous = DisklessClusterStatus {
            ready_replicas: Some(3),
            ..Default::default()
        };
        let status = invalid(
            &previous,
            "spec.brokers.zones is empty",
            Some(4),
            Time(Timestamp::UNIX_EPOCH),
        );
        says(
            &status.conditions,
            STALLED,
            "True",
            "InvalidSpec",
            "spec.brokers.zones",
        );
        assert!(find(&status.conditions, RECONCILING).is_none());
        assert_eq!(
            (status.observed_generation, status.ready_replicas),
            (Some(4), Some(3))
        );
    }
}
