//! The first scenario, and that it can be repeated.

use sim::{Scenario, run};

#[test]
fn nothing_is_lost_or_stored_twice_for_any_of_some_seeds() {
    for seed in 1..=8 {
        let outcome = run(Scenario::new(seed)).unwrap_or_else(|error| panic!("seed {seed}: {error:#}"));
        assert!(outcome.anomalies.is_empty(), "seed {seed}: {:?}", outcome.anomalies);
        let total = outcome.history.sent.len();
        assert_eq!(outcome.history.acked.len(), total, "seed {seed}: not everything was acknowledged");
        let kills = outcome.trace.iter().filter(|line| line.contains(" kill ")).count();
        assert!(kills > 2, "seed {seed}: {kills} kills are no test");
    }
}

#[test]
fn the_same_seed_gives_the_same_history() {
    let one = run(Scenario::new(42)).expect("runs");
    let two = run(Scenario::new(42)).expect("runs");
    let differ = one.trace.iter().zip(&two.trace).position(|(a, b)| a != b);
    assert_eq!(differ.map(|at| (&one.trace[at], &two.trace[at])), None);
    assert_eq!(one.trace.len(), two.trace.len());
    let other = run(Scenario::new(43)).expect("runs");
    assert_ne!(one.trace, other.trace);
}
