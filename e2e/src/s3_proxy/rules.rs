//! What goes wrong, when: decided by a seed and by how many requests there were, by nothing else.

use std::collections::BTreeMap;

use hyper::{Method, Request};
use serde::{Deserialize, Serialize};

use super::Profile;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    /// Stores an object.
    Put,
    /// Reads one.
    Get,
    /// Asks about one.
    Head,
    /// Deletes one or many.
    Delete,
    /// Lists a page of them.
    List,
}

impl Verb {
    pub(super) fn of<B>(request: &Request<B>) -> Verb {
        let query = request.uri().query().unwrap_or_default();
        match *request.method() {
            Method::GET if query.contains("list-type=") => Verb::List,
            Method::GET => Verb::Get,
            Method::HEAD => Verb::Head,
            Method::DELETE => Verb::Delete,
            Method::POST if query.split('&').any(|part| part.starts_with("delete")) => Verb::Delete,
            _ => Verb::Put,
        }
    }
}

/// What goes wrong with a request. `after`: its effect happens first, and only the answer is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// An error of S3: 503 `SlowDown`, 500 `InternalError`, 409 `ConditionalRequestConflict`.
    Status { code: u16, after: bool },
    /// The connection is reset.
    Reset { after: bool },
    /// The connection stays open and nothing comes.
    Silence { after: bool },
    /// The store gets half of the body, then both connections end.
    TruncateRequest,
    /// The client gets half of the body, then its connection ends.
    TruncateResponse,
    /// A deletion of many says of every second key that it is still there.
    RefuseSome,
    /// The answer comes so much later.
    Delay { ms: u64 },
}

impl Fault {
    fn name(self) -> &'static str {
        match self {
            Fault::Status { .. } => "status",
            Fault::Reset { .. } => "reset",
            Fault::Silence { .. } => "silence",
            Fault::TruncateRequest => "truncate_request",
            Fault::TruncateResponse => "truncate_response",
            Fault::RefuseSome => "refuse_some",
            Fault::Delay { .. } => "delay",
        }
    }
}

/// Which requests a fault meets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Only this verb; absent: any.
    #[serde(default)]
    pub verb: Option<Verb>,
    /// Only where path and query hold this text, `/wal/` say.
    #[serde(default)]
    pub key: String,
    /// Share of these requests, 0 to 1.
    #[serde(default = "all")]
    pub share: f64,
    /// At most so many; absent: no end.
    #[serde(default)]
    pub times: Option<u64>,
    pub fault: Fault,
}

fn all() -> f64 {
    1.0
}

impl Rule {
    /// Meets every request.
    pub fn new(fault: Fault) -> Rule {
        Rule {
            verb: None,
            key: String::new(),
            share: 1.0,
            times: None,
            fault,
        }
    }

    /// Only requests of `verb` for keys that hold `key`.
    pub fn on(self, verb: Verb, key: &str) -> Rule {
        Rule {
            verb: Some(verb),
            key: key.to_owned(),
            ..self
        }
    }

    /// Only a share of them, drawn from the seed.
    pub fn share(self, share: f64) -> Rule {
        Rule { share, ..self }
    }

    /// Only so often.
    pub fn times(self, times: u64) -> Rule {
        Rule {
            times: Some(times),
            ..self
        }
    }

    fn covers(&self, verb: Verb, path: &str) -> bool {
        self.verb.is_none_or(|wanted| wanted == verb) && path.contains(&self.key)
    }
}

/// What the proxy has seen and done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Requests by verb, those that met a fault included.
    pub requests: BTreeMap<Verb, u64>,
    /// Faults by kind.
    pub faults: BTreeMap<&'static str, u64>,
}

impl Counts {
    /// Requests of one verb.
    pub fn of(&self, verb: Verb) -> u64 {
        self.requests.get(&verb).copied().unwrap_or(0)
    }

    /// All faults.
    pub fn faults(&self) -> u64 {
        self.faults.values().sum()
    }
}

/// What happens to one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Decision {
    pub(super) fault: Option<Fault>,
    /// Quantile of its latency.
    pub(super) q: f64,
}

/// Decides about each request.
pub(super) struct Decider {
    seed: u64,
    pub(super) profile: Option<Profile>,
    /// With how many requests each rule has covered, and how many of them it has met.
    rules: Vec<(Rule, u64, u64)>,
    /// How often there were new rules: each time they meet other requests.
    sets: u64,
    pub(super) counts: Counts,
}

impl Decider {
    pub(super) fn new(seed: u64, profile: Option<Profile>) -> Decider {
        Decider {
            seed,
            profile,
            rules: Vec::new(),
            sets: 0,
            counts: Counts::default(),
        }
    }

    pub(super) fn set_rules(&mut self, rules: Vec<Rule>) {
        self.sets += 1;
        self.rules = rules.into_iter().map(|rule| (rule, 0, 0)).collect();
    }

    pub(super) fn decide(&mut self, verb: Verb, path: &str) -> Decision {
        let number = self.counts.requests.entry(verb).or_default();
        *number += 1;
        let q = draw(self.seed, verb as u64, *number);
        let mut fault = None;
        for (i, (rule, covered, met)) in self.rules.iter_mut().enumerate() {
            if !rule.covers(verb, path) || rule.times.is_some_and(|times| *met >= times) {
                continue;
            }
            *covered += 1;
            // The streams of rules start behind those of the verbs.
            let stream = self.sets * 100 + i as u64;
            if fault.is_none() && draw(self.seed, stream, *covered) < rule.share {
                *met += 1;
                fault = Some(rule.fault);
            }
        }
        if let Some(fault) = fault {
            *self.counts.faults.entry(fault.name()).or_default() += 1;
        }
        Decision { fault, q }
    }
}

/// The `number`th value of a stream, 0 to 1 (SplitMix64).
fn draw(seed: u64, stream: u64, number: u64) -> f64 {
    let mix = |mut z: u64| {
        z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    (mix(mix(mix(seed) ^ stream) ^ number) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAULT: Fault = Fault::Status {
        code: 503,
        after: false,
    };

    fn run(seed: u64) -> Vec<Decision> {
        let mut decider = Decider::new(seed, None);
        decider.set_rules(vec![Rule::new(FAULT).on(Verb::Put, "/wal/").share(0.3)]);
        (0..1_000)
            .map(|i| {
                // What else goes on changes nothing.
                if i % 3 == seed % 3 {
                    decider.decide(Verb::Get, "/b/wal/1");
                }
                decider.decide(Verb::Put, "/b/wal/1")
            })
            .collect()
    }

    #[test]
    fn the_same_seed_decides_the_same() {
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
        let met = run(3).iter().filter(|decision| decision.fault.is_some()).count();
        assert!((200..400).contains(&met), "{met}");
    }

    #[test]
    fn the_same_rules_meet_other_requests_when_they_come_again() {
        let mut decider = Decider::new(3, None);
        let mut storm = || {
            decider.set_rules(vec![Rule::new(FAULT).on(Verb::Put, "/wal/").share(0.5)]);
            let met = (0..64).map(|_| decider.decide(Verb::Put, "/b/wal/1").fault.is_some());
            met.collect::<Vec<bool>>()
        };
        assert_ne!(storm(), storm());
    }

    #[test]
    fn a_rule_meets_what_it_names_and_no_more_often_than_it_may() {
        let mut decider = Decider::new(7, None);
        decider.set_rules(vec![Rule::new(FAULT).on(Verb::Put, "/wal/").times(2)]);
        assert_eq!(decider.decide(Verb::Get, "/b/wal/1").fault, None);
        assert_eq!(decider.decide(Verb::Put, "/b/meta/1").fault, None);
        let met: Vec<bool> = (0..4)
            .map(|_| decider.decide(Verb::Put, "/b/wal/1").fault.is_some())
            .collect();
        assert_eq!(met, [true, true, false, false]);
        assert_eq!((decider.counts.of(Verb::Put), decider.counts.faults()), (5, 2));
    }

    #[test]
    fn rules_are_written_as_json() {
        let text = r#"[{"verb": "put", "key": "/wal/", "share": 0.5, "fault": {"status": {"code": 503, "after": true}}},
                       {"fault": "truncate_response", "times": 1}]"#;
        let rules: Vec<Rule> = serde_json::from_str(text).expect("rules");
        let first = Fault::Status {
            code: 503,
            after: true,
        };
        assert_eq!(rules[0], Rule::new(first).on(Verb::Put, "/wal/").share(0.5));
        assert_eq!(rules[1], Rule::new(Fault::TruncateResponse).times(1));
    }
}
