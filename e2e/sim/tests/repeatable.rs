//! Runs can be repeated, and the list of deliberate bugs is that of the code.
#![allow(clippy::expect_used, clippy::disallowed_methods, reason = "tests")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use sim::Engine;
use sim::mutations::MUTATIONS;

/// What a run of a seed, in a process of its own, prints; fails with it when the run failed.
fn replay(seed: u64) -> String {
    replay_with(seed, &[])
}

fn replay_with(seed: u64, environment: &[(&str, &str)]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_sim"))
        .args(["--replay", &seed.to_string()])
        .envs(environment.iter().copied())
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
fn the_same_seed_gives_the_same_run_and_another_seed_another() {
    let one = replay(42);
    assert!(
        one.contains(" got ") && one.contains("ack "),
        "nothing was produced or read"
    );
    assert_eq!(one, replay(42));
    assert_ne!(one, replay(43));
}

#[test]
fn what_nodes_log_changes_nothing() {
    let logged = replay_with(42, &[("RUST_LOG", "coordinator=debug,broker=debug")]);
    let plain = replay(42);
    assert!(logged.len() > plain.len());
    assert!(logged.ends_with(&plain));
}

#[test]
fn so_does_a_seed_with_a_database() {
    let seed = (44..).find(|seed| Engine::of(*seed) == Engine::Postgres);
    let seed = seed.expect("one in five");
    let one = replay(seed);
    assert!(one.contains("engine postgres") && one.contains("ack "));
    assert_eq!(one, replay(seed));
}

/// Calm, upgraded and scaled, deleted in the end.
#[test]
fn so_do_other_kinds_of_runs() {
    for (seed, shows) in [
        (22, "stop "),
        (35, "one more metadata partition"),
        (35, "is finalised"),
        (38, "got "),
    ] {
        let one = replay(seed);
        assert!(one.contains(shows), "seed {seed} shows no {shows}");
        assert_eq!(one, replay(seed), "seed {seed}");
    }
}

#[test]
fn deliberate_bugs_are_refused_in_a_build_without_them() {
    if env::HAS_MUTATIONS {
        return;
    }
    let output = Command::new(env!("CARGO_BIN_EXE_sim"))
        .args(["--replay", "1", "--quiet", "--mutation", "skip-fence"])
        .output()
        .expect("runs");
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).contains("no deliberate bugs"));
}

#[test]
fn every_mutation_is_a_place_in_the_code_and_every_place_is_a_mutation() {
    let mut used = BTreeSet::new();
    let broker =
        PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("run by cargo")).join("../../broker");
    look(&broker.join("src"), &mut used);
    for folder in std::fs::read_dir(broker.join("crates")).expect("crates") {
        look(&folder.expect("an entry").path().join("src"), &mut used);
    }
    let listed: BTreeSet<String> = MUTATIONS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(used, listed);
    assert!(listed.len() >= 12);
}

fn look(folder: &Path, used: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            look(&path, used);
        } else if path.extension().is_some_and(|extension| extension == "rs")
            && !path.ends_with("mutation.rs")
        {
            let text = std::fs::read_to_string(&path).expect("text");
            let names = text
                .split("env::mutation(\"")
                .skip(1)
                .filter_map(|rest| rest.split('"').next());
            used.extend(names.map(str::to_owned));
        }
    }
}
