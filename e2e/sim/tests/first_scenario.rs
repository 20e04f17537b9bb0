//! The first scenario, and that it can be repeated.
#![allow(clippy::expect_used, clippy::disallowed_methods, reason = "tests")]

use std::process::Command;

/// What a run of a seed, in a process of its own, prints; fails with it when the run failed.
fn replay(seed: u64) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_sim"))
        .args(["--replay", &seed.to_string()])
        .output()
        .expect("runs");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(
        output.status.success(),
        "seed {seed} failed:\n{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

#[test]
fn nothing_is_lost_or_stored_twice_for_any_of_some_seeds() {
    for seed in 1..=20 {
        let trace = replay(seed);
        let kills = trace.lines().filter(|line| line.contains(" kill ")).count();
        assert!(kills > 2, "seed {seed}: {kills} kills are no test");
        assert!(trace.contains(" got "), "seed {seed}: nothing was read");
    }
}

#[test]
fn the_same_seed_gives_the_same_history() {
    let one = replay(42);
    assert_eq!(one, replay(42));
    assert_ne!(one, replay(43));
}
