//! `sim --seeds N --first-seed S`: runs seeds; the last line and the exit status tell.
//!
//! Every seed runs in a process of its own, so that it runs the same alone (`--replay`) and among others: tokio draws
//! the order in which it wakes the waiters of a `watch` channel from a generator that it seeds once per process.
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a test program")]

mod entropy;
mod hunt;

use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Parser;
use sim::{Engine, Scenario, run};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

#[derive(Parser)]
pub(crate) struct Args {
    /// How many seeds.
    #[arg(long, default_value_t = 20)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 1)]
    first_seed: u64,
    /// Only seeds whose metadata logs are kept by this engine.
    #[arg(long)]
    engine: Option<Engine>,
    /// How many at the same time.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Run this seed alone, in this process, and print everything that happens.
    #[arg(long)]
    replay: Option<u64>,
    /// Turn a deliberate bug on and look for a seed that finds it, or do so for `all`.
    #[arg(long)]
    mutation: Option<String>,
    /// With --replay: print the findings only.
    #[arg(long)]
    quiet: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let result = match (args.replay, &args.mutation) {
        (Some(seed), mutation) => replay(seed, mutation.as_deref(), args.quiet),
        (None, Some(mutation)) => hunt::mutations(&args, mutation),
        (None, None) => hunt::seeds(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn replay(seed: u64, mutation: Option<&str>, quiet: bool) -> anyhow::Result<()> {
    // The first hash map of a thread asks for randomness: before the seed's run, whether or not something is logged.
    let _ = std::hash::RandomState::new();
    if let Ok(levels) = std::env::var("RUST_LOG") {
        // Not an `EnvFilter`: that makes hash maps, each of which changes the order of those that the run makes later.
        let filter: Targets = levels.parse().context("RUST_LOG")?;
        let lines = tracing_subscriber::fmt::layer().without_time().with_ansi(false);
        tracing_subscriber::registry()
            .with(lines.with_filter(filter))
            .init();
    }
    if let Some(mutation) = mutation
        && !env::choose_mutation(mutation)
    {
        bail!("this build has no deliberate bugs: build with the feature `mutations`");
    }
    let outcome = run(Scenario::new(seed)).with_context(|| format!("seed {seed}"))?;
    if !quiet {
        outcome.trace.iter().for_each(|line| println!("{line}"));
    }
    if outcome.anomalies.is_empty() {
        return Ok(());
    }
    let found: Vec<String> = outcome.anomalies.iter().map(ToString::to_string).collect();
    bail!("seed {seed}: {}", found.join("\n"));
}
