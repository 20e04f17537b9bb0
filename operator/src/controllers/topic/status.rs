//! What the status of a topic says. Pure.

use crds::{DisklessTopic, DisklessTopicStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::validate::topic_name;
use crate::admin::Topic;
use crate::controllers::conditions::{Conditions, Is, READY, RECONCILING, STALLED, Verdict};

/// How a pass over a topic ended.
#[derive(Debug)]
pub enum Outcome {
    /// The topic is as the object says.
    Done(Topic),
    /// It will be: something else has to happen first, or is tried again.
    Waiting(Verdict),
    /// It cannot be, unless the user changes something.
    Stalled(Verdict),
}

impl Outcome {
    /// Waiting, with a reason and a message.
    pub fn waiting(reason: &'static str, message: impl Into<String>) -> Self {
        Self::Waiting(Verdict::new(Is::False, reason, message))
    }

    /// Stalled, with a reason and a message.
    pub fn stalled(reason: &'static str, message: impl Into<String>) -> Self {
        Self::Stalled(Verdict::new(Is::False, reason, message))
    }
}

/// The status after a pass. What was known of the topic stays where nothing newer is.
pub fn status(object: &DisklessTopic, outcome: &Outcome, now: Time) -> DisklessTopicStatus {
    let previous = object.status.clone().unwrap_or_default();
    let generation = object.metadata.generation;
    let mut conditions = Conditions::new(&previous.conditions, generation, now);
    let mut status = DisklessTopicStatus {
        observed_generation: generation,
        topic_name: Some(topic_name(object).to_owned()),
        ..previous.clone()
    };
    match outcome {
        Outcome::Done(topic) => {
            conditions.set(
                READY,
                &Verdict::new(Is::True, "AsSpecified", "the topic is as specified"),
            );
            status.topic_id = Some(topic.id.to_string());
            status.partitions = Some(topic.partitions);
        }
        Outcome::Waiting(verdict) => {
            conditions.set(READY, verdict);
            conditions.set(
                RECONCILING,
                &Verdict {
                    is: Is::True,
                    ..verdict.clone()
                },
            );
        }
        Outcome::Stalled(verdict) => {
            conditions.set(READY, verdict);
            conditions.set(
                STALLED,
                &Verdict {
                    is: Is::True,
                    ..verdict.clone()
                },
            );
        }
    }
    status.conditions = conditions.into_list();
    status
}
