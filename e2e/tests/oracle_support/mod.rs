//! The same requests to two brokers, and what differs in the answers.

pub mod batch;
mod cluster;
mod committed;
mod configs;
mod fetch;
mod flatten;
mod groups;
mod idempotence;
pub mod intended;
mod offsets;
mod produce;
mod requests;
pub mod servers;
mod settings;
pub mod side;

use side::{Side, Step, Value};

/// A name, and what is asked.
pub type Case = (&'static str, fn(&mut Side) -> anyhow::Result<()>);

pub fn cases() -> impl Iterator<Item = &'static Case> {
    let areas = [
        cluster::CASES,
        configs::CASES,
        produce::CASES,
        settings::CASES,
        idempotence::CASES,
        fetch::CASES,
        offsets::CASES,
        groups::CASES,
        committed::CASES,
    ];
    areas.into_iter().flatten()
}

/// A field that the two answer differently.
#[derive(Clone, Debug)]
pub struct Difference {
    pub case: &'static str,
    pub step: String,
    pub path: String,
    pub kafka: Value,
    pub ours: Value,
}

pub fn differences(kafka: &[Step], ours: &[Step]) -> Vec<Difference> {
    let none = || {
        let text = || "nothing".to_owned();
        Value {
            compared: text(),
            raw: text(),
        }
    };
    let mut found = Vec::new();
    for theirs in kafka {
        let same = |step: &&Step| step.case == theirs.case && step.step == theirs.step;
        let mut put = |path: &str, kafka: Value, ours: Value| {
            let path = path.to_owned();
            let (case, step) = (theirs.case, theirs.step.clone());
            found.push(Difference {
                case,
                step,
                path,
                kafka,
                ours,
            });
        };
        let Some(answer) = ours.iter().find(same) else {
            let raw = format!("{:.200?}", theirs.fields);
            let compared = "an answer".to_owned();
            put("", Value { compared, raw }, none());
            continue;
        };
        for (path, value) in &theirs.fields {
            let ours = answer.fields.get(path).cloned().unwrap_or_else(none);
            if ours.compared != value.compared {
                put(path, value.clone(), ours);
            }
        }
        for (path, value) in &answer.fields {
            if !theirs.fields.contains_key(path) {
                put(path, none(), value.clone());
            }
        }
    }
    found
}
