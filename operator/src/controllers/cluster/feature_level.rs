//! The feature `diskless.version` (KIP-584): what to tell the brokers, and what to say of it. Pure.
//!
//! Raising the level takes the way back to the image before, so it is done only when the spec asks for it, and only after
//! every pod runs as specified. The controller of the cluster has the last word: it refuses what a live node does not
//! support.

use crds::DisklessClusterStatus;

use crate::admin::{Levels, Update};
use crate::controllers::conditions::{Is, Verdict};

/// The levels as the status has them.
pub fn known(status: &DisklessClusterStatus) -> Option<Levels> {
    let supported = status.supported_feature_levels?;
    Some(Levels {
        finalized: i16::try_from(status.feature_level?).ok()?,
        min: i16::try_from(supported.min).ok()?,
        max: i16::try_from(supported.max).ok()?,
    })
}

/// What to ask of a cluster whose pods all run as specified.
pub fn next(wanted: Option<i16>, levels: Levels) -> Option<Update> {
    let (level, dry_run) = match wanted {
        Some(level) => (level, false),
        None => (levels.max, true),
    };
    (level > levels.finalized && level <= levels.max).then_some(Update { level, dry_run })
}

/// What the condition says, and what follows for the cluster as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The condition.
    pub verdict: Verdict,
    /// Whether the spec is met.
    pub means: Means,
}

/// What a [`Standing`] means for the cluster as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Means {
    /// All that the spec asks for is done.
    Met,
    /// It will be done.
    Waiting,
    /// Only another spec can help.
    Stalled,
}

/// Where the cluster stands; `None` while nothing is known and nothing asked for. `refusal`: what the brokers answered to
/// [`next`], or why they did not.
pub fn standing(
    wanted: Option<i16>,
    levels: Option<Levels>,
    converged: bool,
    refusal: Option<&str>,
) -> Option<Standing> {
    let say = |means, is, reason, message: String| {
        let verdict = Verdict::new(is, reason, message);
        Some(Standing { verdict, means })
    };
    let Some(Levels { finalized, min, max }) = levels else {
        let wanted = wanted?;
        let why = refusal.unwrap_or("no broker serves yet");
        let message = format!("spec.featureLevel is {wanted}; which level is finalised is not known: {why}");
        return say(Means::Waiting, Is::Unknown, "FinalizingFeatureLevel", message);
    };
    let Some(wanted) = wanted else {
        if max <= finalized {
            let message = format!("level {finalized} is finalised, the highest that the image supports");
            return say(Means::Met, Is::True, "Newest", message);
        }
        if !converged {
            let message = format!(
                "level {finalized} is finalised; whether all nodes support {max} is asked when every pod runs as specified"
            );
            return say(Means::Met, Is::Unknown, "RollingUpdate", message);
        }
        return match refusal {
            None => {
                let message = format!(
                    "level {max} is supported by all nodes, {finalized} is finalised; set spec.featureLevel to {max} to finalise \
                     it, which cannot be undone: until then spec.image can be set back"
                );
                say(Means::Met, Is::False, "UpgradePending", message)
            }
            Some(why) => {
                let message = format!("level {finalized} is finalised; {max} cannot be yet: {why}");
                say(Means::Met, Is::Unknown, "NotSupportedByAll", message)
            }
        };
    };
    if wanted == finalized {
        let message = format!("level {finalized} is finalised; the image supports {min} to {max}");
        return say(Means::Met, Is::True, "AsSpecified", message);
    }
    if wanted < finalized {
        let message = format!(
            "spec.featureLevel is {wanted}, but {finalized} is finalised and is never lowered: only nodes of that level can \
             read what is written by now; set spec.featureLevel to {finalized}, or remove it"
        );
        return say(Means::Stalled, Is::False, "FeatureLevelCannotBeLowered", message);
    }
    if !converged {
        let message = format!("level {wanted} is finalised when every pod runs as specified");
        return say(Means::Waiting, Is::False, "FinalizingFeatureLevel", message);
    }
    // Without an answer this is what the image before supports.
    if wanted > max && refusal.is_none() {
        let message = format!(
            "spec.featureLevel is {wanted}, but the image supports {min} to {max}; set spec.image to one that supports it, or \
             spec.featureLevel to {max} at most"
        );
        return say(Means::Stalled, Is::False, "FeatureLevelUnsupported", message);
    }
    let why = refusal.unwrap_or("the brokers are asked next");
    let message = format!("level {wanted} is not finalised yet, {finalized} is: {why}");
    say(Means::Waiting, Is::False, "FinalizingFeatureLevel", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(finalized: i16, max: i16) -> Levels {
        Levels {
            finalized,
            min: 1,
            max,
        }
    }

    #[test]
    fn only_what_is_asked_for_is_raised_and_never_beyond_what_is_supported() {
        let raise = |level| {
            Some(Update {
                level,
                dry_run: false,
            })
        };
        let asked = |level| Some(Update { level, dry_run: true });
        assert_eq!(next(Some(2), levels(1, 3)), raise(2));
        assert_eq!(next(Some(3), levels(1, 3)), raise(3));
        assert_eq!(next(Some(4), levels(1, 3)), None);
        assert_eq!(next(Some(2), levels(2, 3)), None);
        assert_eq!(next(Some(1), levels(2, 3)), None);
        assert_eq!(next(None, levels(1, 3)), asked(3));
        assert_eq!(next(None, levels(3, 3)), None);
        // An image of an earlier release is on its way back.
        assert_eq!(next(None, levels(2, 1)), None);
    }

    #[track_caller]
    fn says(
        (wanted, known): (Option<i16>, Option<Levels>),
        (converged, refusal): (bool, Option<&str>),
        (is, reason, means): (Is, &str, Means),
        words: &str,
    ) {
        let Standing {
            verdict,
            means: meant,
        } = standing(wanted, known, converged, refusal).unwrap();
        assert_eq!(
            (verdict.is, verdict.reason, meant),
            (is, reason, means),
            "{verdict:?}"
        );
        assert!(verdict.message.contains(words), "{verdict:?}");
    }

    #[test]
    fn without_a_wish_a_higher_level_is_offered_and_the_cluster_is_ready() {
        use Means::Met;
        assert_eq!(standing(None, None, true, Some("nobody answers")), None);
        let still = (true, None);
        let newer = (None, Some(levels(1, 2)));
        says(
            (None, Some(levels(2, 2))),
            still,
            (Is::True, "Newest", Met),
            "level 2",
        );
        says(
            newer,
            still,
            (Is::False, "UpgradePending", Met),
            "set spec.featureLevel to 2",
        );
        says(
            newer,
            (false, None),
            (Is::Unknown, "RollingUpdate", Met),
            "level 1 is finalised",
        );
        let refused = (true, Some("node 7 only supports versions 1-1"));
        says(newer, refused, (Is::Unknown, "NotSupportedByAll", Met), "node 7");
    }

    #[test]
    fn a_wish_is_done_waits_or_cannot_be() {
        use Means::{Met, Stalled, Waiting};
        let (still, rolling) = ((true, None), (false, None));
        let wish = |wanted| (Some(wanted), Some(levels(2, 3)));
        says(wish(2), still, (Is::True, "AsSpecified", Met), "supports 1 to 3");
        let waiting = (Is::False, "FinalizingFeatureLevel", Waiting);
        says(wish(3), rolling, waiting, "when every pod runs as specified");
        // The new image may support it.
        says(wish(4), rolling, waiting, "level 4");
        says(wish(3), (true, Some("node 7")), waiting, "node 7");
        says(
            wish(4),
            still,
            (Is::False, "FeatureLevelUnsupported", Stalled),
            "supports 1 to 3",
        );
        says(wish(4), (true, Some("nobody answers")), waiting, "nobody answers");
        let lower = (Is::False, "FeatureLevelCannotBeLowered", Stalled);
        says(wish(1), still, lower, "set spec.featureLevel to 2, or remove it");
        says(wish(1), rolling, lower, "spec.featureLevel is 1");
        let unknown = (Is::Unknown, "FinalizingFeatureLevel", Waiting);
        says((Some(2), None), still, unknown, "spec.featureLevel is 2");
    }
}
