//! Conditions as kstatus and `kubectl wait` read them: `Ready` sums up, `Reconciling` and `Stalled` are there only
//! while they hold.

use crds::Condition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Sums up.
pub const READY: &str = "Ready";
/// Work is under way.
pub const RECONCILING: &str = "Reconciling";
/// Only the user can get on.
pub const STALLED: &str = "Stalled";

/// Longest message that the schema takes.
const MESSAGE_MAX: usize = 4000;

/// Status of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Is {
    /// It holds.
    True,
    /// It does not.
    False,
    /// Nobody can tell yet.
    Unknown,
}

impl Is {
    /// As Kubernetes spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Is::True => "True",
            Is::False => "False",
            Is::Unknown => "Unknown",
        }
    }
}

/// What one condition says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Status.
    pub is: Is,
    /// Reason, for programs.
    pub reason: &'static str,
    /// Message, for people.
    pub message: String,
}

impl Verdict {
    /// A verdict.
    pub fn new(is: Is, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            is,
            reason,
            message: message.into(),
        }
    }
}

/// Conditions of one generation of an object.
#[derive(Debug)]
pub struct Conditions<'a> {
    previous: &'a [Condition],
    generation: Option<i64>,
    now: Time,
    list: Vec<Condition>,
}

impl<'a> Conditions<'a> {
    /// Starts from the `previous` ones, whose times are kept where their status stays.
    pub fn new(previous: &'a [Condition], generation: Option<i64>, now: Time) -> Self {
        Self {
            previous,
            generation,
            now,
            list: Vec::new(),
        }
    }

    /// Adds a condition.
    pub fn set(&mut self, type_: &str, verdict: &Verdict) {
        let status = verdict.is.as_str();
        let before = find(self.previous, type_).filter(|condition| condition.status == status);
        let since = before.map_or(&self.now, |condition| &condition.last_transition_time);
        self.list.push(Condition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: verdict.reason.to_owned(),
            message: verdict.message.chars().take(MESSAGE_MAX).collect(),
            last_transition_time: since.clone(),
            observed_generation: self.generation,
        });
    }

    /// The list.
    pub fn into_list(self) -> Vec<Condition> {
        self.list
    }
}

/// The condition of a type.
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// The new `Ready` condition, if its status or reason differs from before: worth an Event.
pub fn turned<'a>(before: &[Condition], after: &'a [Condition]) -> Option<&'a Condition> {
    let new = find(after, READY)?;
    let old = find(before, READY);
    old.is_none_or(|old| (&old.status, &old.reason) != (&new.status, &new.reason))
        .then_some(new)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    fn at(second: i64) -> Time {
        Time(Timestamp::from_second(second).unwrap())
    }

    #[test]
    fn the_time_moves_only_with_the_status() {
        let mut first = Conditions::new(&[], Some(1), at(10));
        first.set(READY, &Verdict::new(Is::False, "Starting", "0 of 3"));
        let first = first.into_list();
        let mut second = Conditions::new(&first, Some(2), at(20));
        second.set(READY, &Verdict::new(Is::False, "Starting", "1 of 3"));
        let second = second.into_list();
        assert_eq!(second[0].last_transition_time, at(10));
        assert_eq!(second[0].observed_generation, Some(2));
        assert!(turned(&first, &second).is_none());
        let mut third = Conditions::new(&second, Some(2), at(30));
        third.set(READY, &Verdict::new(Is::True, "Ready", ""));
        let third = third.into_list();
        assert_eq!(third[0].last_transition_time, at(30));
        assert!(turned(&second, &third).is_some());
    }
}
