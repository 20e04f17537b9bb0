//! `cargo xtask sim`: builds the simulation and runs seeds. `docs/simulation.md` tells more.

use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Parser;

use crate::run::run as run_command;

/// Seeds of a night; each night has its own.
const NIGHT: u64 = 10_000;
/// Seeds in which a deliberate bug must be found.
const HUNT: u64 = 300;

/// Runs whole clusters from seeds; the last line and the exit status tell.
#[derive(Parser)]
pub struct Args {
    /// How many seeds; with --mutation, how many at most for each [default: 1000, with --mutation 300].
    #[arg(long)]
    seeds: Option<u64>,
    /// The first of them.
    #[arg(long, default_value_t = 1)]
    first_seed: u64,
    /// Only seeds whose metadata logs are kept by this engine: `object` or `postgres`.
    #[arg(long)]
    engine: Option<String>,
    /// How many at the same time.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Run this seed alone and print everything that happens.
    #[arg(long)]
    replay: Option<u64>,
    /// Turn a deliberate bug on and look for a seed that finds it; `all`: one after the other.
    #[arg(long)]
    mutation: Option<String>,
    /// Ten thousand seeds that no night had before, then all deliberate bugs. Takes hours.
    #[arg(long)]
    nightly: bool,
}

/// The seeds of `cargo xtask test`.
pub fn seeds(seeds: u64) -> anyhow::Result<()> {
    simulate(&["--seeds", &seeds.to_string()], false)
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let jobs = args.jobs.to_string();
    if args.nightly {
        let days = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() / 86_400;
        let first = (days * NIGHT).to_string();
        let seeds = NIGHT.to_string();
        simulate(
            &["--seeds", &seeds, "--first-seed", &first, "--jobs", &jobs],
            false,
        )?;
        let seeds = HUNT.to_string();
        return simulate(&["--mutation", "all", "--seeds", &seeds, "--jobs", &jobs], true);
    }
    let seeds = args.seeds.unwrap_or(match args.mutation {
        Some(_) => HUNT,
        None => 1_000,
    });
    let (seeds, first) = (seeds.to_string(), args.first_seed.to_string());
    let mut words = vec!["--seeds", &seeds, "--first-seed", &first, "--jobs", &jobs];
    if let Some(mutation) = &args.mutation {
        words.extend(["--mutation", mutation]);
    }
    if let Some(engine) = &args.engine {
        words.extend(["--engine", engine]);
    }
    let replay = args.replay.map(|seed| seed.to_string());
    if let Some(seed) = &replay {
        words.extend(["--replay", seed]);
    }
    simulate(&words, args.mutation.is_some())
}

/// With `mutations` the deliberate bugs are compiled in: into a program of its own, in a folder of its own.
fn simulate(words: &[&str], mutations: bool) -> anyhow::Result<()> {
    let mut command = Command::new("cargo");
    command.args(["run", "--release", "--quiet", "-p", "sim"]);
    if mutations {
        command.args(["--features", "mutations", "--target-dir", "target/mutations"]);
    }
    run_command(command.arg("--").args(words))
}
