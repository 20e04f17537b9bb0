//! Which pod may be taken down next, if any. Pure, and the only place where replicas get fewer.
//!
//! ```text
//! every pod of every set serves ──┬── a set has too many ─────▶ lower that set by one
//!                                 └── a pod is outdated ──────▶ replace it: coordinators first, then zone by zone
//! a pod does not serve ───────────┬── and is outdated ────────▶ replace that one: it may be the cure
//!                                 └── otherwise ──────────────▶ wait
//! ```
//!
//! A broker that came back counts after its set's `minReadySeconds`. So at most one pod is missing on purpose at any moment over all sets, a bad image stops at the first pod it breaks,
//! and the way back starts with that pod. Growth is not a disruption and needs no permission.

use super::observe::{PodState, SetState};

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Nothing to take down.
    Idle,
    /// Something would have to be taken down, but not now; why, in words.
    Wait(String),
    /// Lower a StatefulSet by one.
    ScaleDown {
        /// Name of the StatefulSet.
        set: String,
        /// Its new replicas.
        to: i32,
    },
    /// Take down a pod so that it comes back in its newest form.
    Replace {
        /// Name of the pod.
        pod: String,
        /// Its uid.
        uid: String,
    },
}

/// Decides the next step.
pub fn next(sets: &[SetState]) -> Step {
    if let Some(pod) = broken_and_outdated(sets) {
        return replace(pod);
    }
    let surplus = sets.iter().rev().find_map(|set| {
        let current = set.current.as_ref()?;
        (current.replicas > set.desired).then_some((set, current.replicas - 1))
    });
    if let Some((set, to)) = surplus {
        // The pod that is to go need not serve; all others must.
        let leaving = set
            .pods
            .iter()
            .find(|pod| pod.ordinal == to)
            .map(|pod| pod.name.as_str());
        return match obstacle(sets, leaving) {
            Some(why) => Step::Wait(why),
            None => Step::ScaleDown {
                set: set.name.clone(),
                to,
            },
        };
    }
    let Some(pod) = sets
        .iter()
        .find_map(|set| set.pods.iter().rev().find(|pod| is_outdated(set, pod)))
    else {
        return Step::Idle;
    };
    match obstacle(sets, None) {
        Some(why) => Step::Wait(why),
        None => replace(pod),
    }
}

/// Replicas to write into the StatefulSet: as desired, but fewer than now only by a [`Step::ScaleDown`].
pub fn replicas(set: &SetState, step: &Step) -> i32 {
    match (&set.current, step) {
        (None, _) => set.desired,
        (Some(_), Step::ScaleDown { set: name, to }) if *name == set.name => *to,
        (Some(current), _) => current.replicas.max(set.desired),
    }
}

fn replace(pod: &PodState) -> Step {
    Step::Replace {
        pod: pod.name.clone(),
        uid: pod.uid.clone(),
    }
}

/// A pod that neither serves nor has the newest form, provided that no other pod is on its way out.
fn broken_and_outdated(sets: &[SetState]) -> Option<&PodState> {
    if sets.iter().flat_map(|set| &set.pods).any(|pod| pod.terminating) {
        return None;
    }
    sets.iter().find_map(|set| {
        set.pods
            .iter()
            .rev()
            .find(|pod| !pod.ready && is_outdated(set, pod))
    })
}

fn is_outdated(set: &SetState, pod: &PodState) -> bool {
    let Some(current) = &set.current else { return false };
    // Before its controller has seen the newest spec, the revision is that of the one before.
    current.settled && !current.update_revision.is_empty() && pod.revision != current.update_revision
}

/// Why no serving pod may be taken down now. The pod named `leaving` does not count.
fn obstacle(sets: &[SetState], leaving: Option<&str>) -> Option<String> {
    sets.iter().find_map(|set| {
        let Some(current) = &set.current else {
            return (set.desired > 0).then(|| format!("statefulset {} is not created yet", set.name));
        };
        if !current.settled {
            return Some(format!(
                "the newest form of statefulset {} is not taken up yet",
                set.name
            ));
        }
        if let Some(pod) = set.pods.iter().find(|pod| pod.terminating) {
            return Some(format!("pod {} is ending", pod.name));
        }
        if let Some(pod) = set
            .pods
            .iter()
            .find(|pod| !pod.ready && Some(pod.name.as_str()) != leaving)
        {
            return Some(match &pod.trouble {
                Some(trouble) => trouble.message.clone(),
                None => format!("pod {} is not ready", pod.name),
            });
        }
        let ready = set.pods.iter().filter(|pod| pod.ready).count();
        if usize::try_from(current.available).unwrap_or(0) < ready {
            return Some(format!(
                "a pod of statefulset {} came back only just now, clients still have to find it",
                set.name
            ));
        }
        let wanted = current.replicas.max(set.desired);
        let there = i32::try_from(set.pods.len()).unwrap_or(i32::MAX);
        (there != wanted).then(|| format!("statefulset {} has {there} of {wanted} pods", set.name))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::observe::Current;
    use super::*;

    fn pod(set: &str, ordinal: i32, revision: &str, ready: bool) -> PodState {
        PodState {
            name: format!("{set}-{ordinal}"),
            uid: format!("uid-{set}-{ordinal}"),
            ordinal,
            ready,
            terminating: false,
            revision: revision.to_owned(),
            trouble: None,
        }
    }

    /// A set of `replicas` ready pods of revision `old`, whose newest revision is `new`.
    fn set(name: &str, desired: i32, replicas: i32, old: &str, new: &str) -> SetState {
        let updated = if old == new { replicas } else { 0 };
        SetState {
            name: name.to_owned(),
            role: if name == "demo-coordinator" {
                "coordinator"
            } else {
                "broker"
            },
            zone: None,
            desired,
            current: Some(Current {
                replicas,
                settled: true,
                update_revision: new.to_owned(),
                ready: replicas,
                available: replicas,
                updated,
                pods: replicas,
            }),
            pods: (0..replicas)
                .map(|ordinal| pod(name, ordinal, old, true))
                .collect(),
        }
    }

    fn replaces(name: &str) -> Step {
        Step::Replace {
            pod: name.to_owned(),
            uid: format!("uid-{name}"),
        }
    }

    #[test]
    fn the_next_broker_leaves_only_when_clients_can_find_the_last_one_again() {
        let mut sets = vec![set("demo-a", 1, 1, "2", "2"), set("demo-b", 1, 1, "1", "2")];
        if let Some(current) = &mut sets[0].current {
            current.available = 0;
        }
        assert!(matches!(next(&sets), Step::Wait(why) if why.contains("statefulset demo-a")));
        if let Some(current) = &mut sets[0].current {
            current.available = 1;
        }
        assert_eq!(next(&sets), replaces("demo-b-0"));
    }

    #[test]
    fn coordinators_roll_before_brokers_and_high_ordinals_first() {
        let mut sets = vec![
            set("demo-coordinator", 2, 2, "1", "2"),
            set("demo-a", 2, 2, "1", "2"),
        ];
        assert_eq!(next(&sets), replaces("demo-coordinator-1"));
        sets[0] = set("demo-coordinator", 2, 2, "2", "2");
        assert_eq!(next(&sets), replaces("demo-a-1"));
        sets[1] = set("demo-a", 2, 2, "2", "2");
        assert_eq!(next(&sets), Step::Idle);
    }

    #[test]
    fn a_bad_image_stops_at_the_first_pod_and_the_fix_starts_there() {
        let mut sets = vec![
            set("demo-coordinator", 1, 1, "2", "2"),
            set("demo-a", 3, 3, "1", "2"),
        ];
        sets[1].pods[2] = pod("demo-a", 2, "2", false);
        assert!(matches!(next(&sets), Step::Wait(_)));
        // The image is fixed: revision 3.
        sets[1].current.as_mut().unwrap().update_revision = "3".into();
        assert_eq!(next(&sets), replaces("demo-a-2"));
    }

    #[test]
    fn an_unready_zone_stops_disruption_in_every_other() {
        let mut sets = vec![set("demo-a", 2, 3, "1", "1"), set("demo-b", 2, 2, "1", "1")];
        assert_eq!(
            next(&sets),
            Step::ScaleDown {
                set: "demo-a".into(),
                to: 2
            }
        );
        sets[1].pods[0].ready = false;
        assert_eq!(next(&sets), Step::Wait("pod demo-b-0 is not ready".into()));
    }

    #[test]
    fn growth_is_allowed_while_pods_are_down() {
        let mut sets = vec![set("demo-a", 5, 2, "1", "1")];
        sets[0].pods[0].ready = false;
        let step = next(&sets);
        assert_eq!((step.clone(), replicas(&sets[0], &step)), (Step::Idle, 5));
    }

    #[test]
    fn a_broken_surplus_pod_may_go() {
        let mut sets = vec![set("demo-a", 2, 3, "1", "1")];
        sets[0].pods[2].ready = false;
        assert_eq!(
            next(&sets),
            Step::ScaleDown {
                set: "demo-a".into(),
                to: 2
            }
        );
    }

    #[test]
    fn brokers_leave_one_at_a_time() {
        let sets = vec![set("demo-a", 0, 6, "1", "1")];
        let step = next(&sets);
        assert_eq!(replicas(&sets[0], &step), 5);
        let mut leaving = set("demo-a", 0, 5, "1", "1");
        leaving.pods.push(PodState {
            terminating: true,
            ..pod("demo-a", 5, "1", true)
        });
        assert_eq!(next(&[leaving]), Step::Wait("pod demo-a-5 is ending".into()));
    }

    fn any_set(name: &'static str) -> impl Strategy<Value = SetState> {
        let pods = proptest::collection::vec((any::<bool>(), any::<bool>(), 0..3u8), 0..5);
        (0..5i32, 0..5i32, any::<bool>(), 0..3u8, pods).prop_map(
            move |(desired, replicas, settled, revision, pods)| {
                let mut state = set(name, desired, replicas, "0", &revision.to_string());
                state.current.as_mut().unwrap().settled = settled;
                state.pods = pods
                    .into_iter()
                    .enumerate()
                    .map(|(ordinal, (ready, terminating, revision))| PodState {
                        terminating,
                        ..pod(name, ordinal as i32, &revision.to_string(), ready)
                    })
                    .collect();
                state
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        /// Whatever the state, a serving pod is taken down only when all others serve, and none while any is ending.
        #[test]
        fn at_most_one_serving_pod_is_missing_on_purpose(
            sets in (any_set("demo-coordinator"), any_set("demo-a"), any_set("demo-b")),
        ) {
            let sets = [sets.0, sets.1, sets.2];
            let step = next(&sets);
            let pods: Vec<_> = sets.iter().flat_map(|set| &set.pods).collect();
            let victim = match &step {
                Step::Replace { pod, .. } => pods.iter().find(|p| p.name == *pod).copied(),
                Step::ScaleDown { set, to } => {
                    let state = sets.iter().find(|state| state.name == *set).unwrap();
                    let current = state.current.as_ref().unwrap();
                    prop_assert_eq!(*to, current.replicas - 1);
                    prop_assert!(*to >= state.desired);
                    state.pods.iter().find(|pod| pod.ordinal == *to)
                }
                _ => None,
            };
            if victim.is_some() {
                prop_assert!(pods.iter().all(|pod| !pod.terminating));
            }
            if let Some(victim) = victim.filter(|pod| pod.ready) {
                prop_assert!(pods.iter().all(|pod| pod.ready || pod.name == victim.name));
            }
            // Never fewer replicas but by that one step.
            for state in &sets {
                let before = state.current.as_ref().unwrap().replicas;
                let after = replicas(state, &step);
                let lowered = matches!(&step, Step::ScaleDown { set, .. } if *set == state.name);
                prop_assert_eq!(after < before, lowered);
            }
        }
    }
}
