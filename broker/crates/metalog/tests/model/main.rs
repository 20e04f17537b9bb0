//! The protocol of the engine `object`, as a model whose every run is explored: three writers take the log over, append,
//! trim and crash; requests arrive late, twice or never, and their replies get lost.
//!
//! The invariants have the names that the code of the engine uses. To see that they can fail, each rule of the protocol is
//! left out once, and the checker has to find a run that breaks an invariant.
//!
//! Time is one bit for each writer. A sweep deletes what was declared dead `min_age` ago, far longer than `confirm_after`: so a
//! sweep makes every writer *stale* that has not seen the manifest that decided, and a stale writer looks before
//! it believes in what it has created or read. A writer here is one process: one that is started again is another writer. A
//! crash is a writer that takes no further step; whatever it has sent may still arrive.
#![allow(clippy::indexing_slicing, clippy::print_stdout, reason = "tests")]

mod state;

use state::{Body, Doing, MANIFESTS, Request, SLOTS, Slot, State, WRITERS, Without, Writer, idle};
use stateright::{Checker, Model, Property};

struct Protocol {
    without: Without,
    appends: u8,
    trims: u8,
    losses: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Start(usize),
    /// Request number n arrives, and its reply, if the sender still waits.
    Deliver(usize),
    /// The sender does not wait any longer; its request may still arrive.
    Timeout(usize),
    Look(usize),
    Replay(usize),
    Append(usize),
    Trim(usize),
    Sweep(usize),
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            slots: vec![None; usize::from(SLOTS)],
            manifests: vec![None; usize::from(MANIFESTS)],
            writers: vec![idle(); WRITERS],
            flying: Vec::new(),
            losses: self.losses,
            decided: 0,
            acknowledged: Vec::new(),
            terms: Vec::new(),
            believed: vec![None; usize::from(SLOTS)],
            two_in_a_slot: false,
            leader_misses: false,
            trimmed_uncovered: false,
            damage: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for request in 0..state.flying.len() {
            // Of two that are the same, one stands for both.
            if request == 0 || state.flying[request] != state.flying[request - 1] {
                actions.push(Action::Deliver(request));
            }
        }
        for (number, writer) in state.writers.iter().enumerate() {
            match writer.doing {
                // All are alike: they start in the order of their numbers.
                Doing::NotStarted => {
                    let first = number == 0 || state.writers[number - 1].doing != Doing::NotStarted;
                    actions.extend(first.then_some(Action::Start(number)));
                    continue;
                }
                Doing::Gone => continue,
                Doing::Replay => actions.push(Action::Replay(number)),
                Doing::Lead => {
                    if writer.appends < self.appends && writer.next < SLOTS {
                        actions.push(Action::Append(number));
                    }
                    let grown = writer
                        .manifest
                        .as_ref()
                        .is_some_and(|manifest| manifest.log_start < writer.next);
                    if writer.trims < self.trims && grown {
                        actions.push(Action::Trim(number));
                    }
                }
                _ if writer.unknown => actions.push(Action::Look(number)),
                _ => actions.extend((state.losses > 0).then_some(Action::Timeout(number))),
            }
        }
        for deciding in 0..state.manifests.len() {
            if state.has_dead(deciding) {
                actions.push(Action::Sweep(deciding));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Start(writer) => state.claim(writer),
            Action::Deliver(request) => {
                let request = state.flying.remove(request);
                let waits = waiting(&state, &request);
                let created = state.create(&request.body);
                if waits && created {
                    state.ours(request.from, self.without);
                } else if waits {
                    // "Exists" says as little as no reply: it may be from an earlier try of its own.
                    self.look(&mut state, request.from);
                }
            }
            Action::Timeout(writer) => {
                state.losses -= 1;
                state.writers[writer].unknown = true;
            }
            Action::Look(writer) => self.look(&mut state, writer),
            Action::Replay(writer) => state.replay(writer, self.without),
            Action::Append(writer) => {
                let me = &mut state.writers[writer];
                me.appends += 1;
                let epoch = me.manifest.as_ref()?.epoch;
                let slot = Slot {
                    epoch,
                    nonce: writer as u8,
                    entry: me.appends,
                };
                let at = me.next;
                state.want(writer, Doing::Append, Body::Slot(at, slot));
            }
            Action::Trim(writer) => {
                let me = &mut state.writers[writer];
                me.trims += 1;
                let manifest = state::Manifest {
                    log_start: me.next,
                    snapshot: me.state.clone(),
                    ..me.manifest.clone()?
                };
                let sequence = me.seen + 1;
                if self.without == Without::Boundary {
                    let bound = me.next;
                    state.delete_below(bound);
                }
                state.want(writer, Doing::Trim, Body::Manifest(sequence, manifest));
            }
            Action::Sweep(deciding) => state.sweep(deciding),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one entry per slot", |_, state: &State| !state.two_in_a_slot),
            Property::always("no acknowledged entry is lost", |_, state: &State| {
                let Some((_, newest)) = state.newest() else {
                    return state.acknowledged.is_empty();
                };
                state.acknowledged.iter().all(|(at, slot)| {
                    if *at < newest.log_start {
                        newest.snapshot.contains(slot)
                    } else {
                        state.slots[usize::from(*at)] == Some(*slot)
                    }
                })
            }),
            Property::always(
                "nothing of an older epoch is acknowledged behind a fence",
                |_, state: &State| {
                    let behind = |(at, slot): &(u8, Slot)| {
                        state
                            .terms
                            .iter()
                            .any(|(epoch, _, next)| *epoch > slot.epoch && at >= next)
                    };
                    !state.acknowledged.iter().any(behind)
                },
            ),
            Property::always(
                "a new leader has all that was acknowledged",
                |_, state: &State| !state.leader_misses,
            ),
            Property::always(
                "the trimmed prefix is covered by a snapshot",
                |_, state: &State| !state.trimmed_uncovered,
            ),
            Property::always("epochs only grow, one owner per epoch", |_, state: &State| {
                state
                    .terms
                    .windows(2)
                    .all(|pair| pair[0].0 < pair[1].0 && pair[0].2 < pair[1].2)
            }),
            Property::always("what is sound is not taken for damage", |_, state: &State| {
                !state.damage
            }),
            // The model must be able to come to what the rules are for.
            Property::sometimes(
                "an append is sent again and acknowledged once",
                |_, state: &State| {
                    let again = |request: &Request| match &request.body {
                        Body::Slot(at, slot) => state.acknowledged.contains(&(*at, *slot)),
                        Body::Manifest(..) => false,
                    };
                    state.flying.iter().any(again)
                },
            ),
            Property::sometimes("a deleted slot is created again", |_, state: &State| {
                let decided = state.manifests[state.decided].as_ref();
                let bound = decided.map_or(0, |manifest| usize::from(manifest.log_start));
                state.slots[..bound].iter().any(Option::is_some)
                    && state.manifests[..state.decided].iter().all(Option::is_none)
            }),
            Property::sometimes("a leader has entries of the one before", |_, state: &State| {
                let inherited = |writer: &Writer| {
                    writer
                        .state
                        .iter()
                        .any(|slot| usize::from(slot.nonce) + 1 < WRITERS)
                };
                state
                    .writers
                    .last()
                    .is_some_and(|last| last.doing == Doing::Lead && inherited(last))
            }),
        ]
    }
}

impl Protocol {
    /// The writer reads what is in the place that it wants.
    fn look(&self, state: &mut State, writer: usize) {
        let Some(wants) = state.writers[writer].wants.clone() else {
            return;
        };
        match state.stored(&wants) {
            None => state.send(writer),
            Some(there) if self.same(&wants, &there) => state.ours(writer, self.without),
            Some(there) => state.theirs(writer, there, self.without),
        }
    }

    fn same(&self, ours: &Body, there: &Body) -> bool {
        if self.without != Without::Nonce {
            return ours == there;
        }
        match (ours, there) {
            (Body::Slot(_, ours), Body::Slot(_, there)) => ours.epoch == there.epoch,
            (Body::Manifest(_, ours), Body::Manifest(_, there)) => ours.epoch == there.epoch,
            _ => false,
        }
    }
}

/// Whether the sender waits for this request's reply.
fn waiting(state: &State, request: &Request) -> bool {
    let writer = &state.writers[request.from];
    !writer.unknown && writer.wants.as_ref() == Some(&request.body)
}

fn explore(without: Without) -> impl Checker<Protocol> {
    let protocol = Protocol {
        without,
        appends: 1,
        trims: 1,
        losses: 1,
    };
    let checker = protocol.checker().threads(2);
    // All runs, unless one breaks an invariant.
    let checker = checker
        .finish_when(stateright::HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    println!(
        "without {without:?}: {} states, {} steps deep",
        checker.unique_state_count(),
        checker.max_depth()
    );
    checker
}

#[test]
fn every_run_keeps_the_invariants() {
    let checker = explore(Without::Nothing);
    assert!(checker.is_done());
    checker.assert_properties();
}

#[test]
fn each_rule_is_needed() {
    for (without, broken) in [
        (
            Without::Nonce,
            &["one entry per slot", "epochs only grow, one owner per epoch"][..],
        ),
        (
            Without::Fence,
            &["nothing of an older epoch is acknowledged behind a fence"],
        ),
        (
            Without::Confirmation,
            &[
                "one entry per slot",
                "no acknowledged entry is lost",
                "nothing of an older epoch is acknowledged behind a fence",
            ],
        ),
        (
            Without::Boundary,
            &[
                "the trimmed prefix is covered by a snapshot",
                "no acknowledged entry is lost",
            ],
        ),
    ] {
        let checker = explore(without);
        let found: Vec<&str> = checker.discoveries().into_keys().collect();
        assert!(
            found.iter().any(|name| broken.contains(name)),
            "without {without:?} the checker finds {found:?}"
        );
    }
}
