//! `sim --seeds N --first-seed S`: runs seeds and stops at the first that fails.
//!
//! Every seed runs in a process of its own, so that it runs the same alone (`--replay`) and among others: tokio draws
//! the order in which it wakes the waiters of a `watch` channel from a generator that it seeds once per process.
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a test program")]

mod entropy;

use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};
use clap::Parser;
use sim::{Scenario, run};

#[derive(Parser)]
struct Args {
    /// How many seeds.
    #[arg(long, default_value_t = 10)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 1)]
    first_seed: u64,
    /// How many at the same time.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Run this seed alone, in this process, and print everything that happens.
    #[arg(long)]
    replay: Option<u64>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let result = match args.replay {
        Some(seed) => replay(seed),
        None => many(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn replay(seed: u64) -> anyhow::Result<()> {
    if std::env::var_os("RUST_LOG").is_some() {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        tracing_subscriber::fmt()
            .without_time()
            .with_ansi(false)
            .with_env_filter(filter)
            .init();
    }
    let outcome = run(Scenario::new(seed)).with_context(|| format!("seed {seed}"))?;
    outcome.trace.iter().for_each(|line| println!("{line}"));
    if !outcome.anomalies.is_empty() {
        let found: Vec<String> = outcome.anomalies.iter().map(ToString::to_string).collect();
        bail!("seed {seed}: {}", found.join("\n"));
    }
    let (sent, acked) = (outcome.history.sent.len(), outcome.history.acked.len());
    if sent != acked {
        bail!("seed {seed}: {sent} records sent, {acked} acknowledged");
    }
    Ok(())
}

fn many(args: &Args) -> anyhow::Result<()> {
    let start = Instant::now();
    let program = std::env::current_exe()?;
    let mut running: Vec<(u64, Child)> = Vec::new();
    let mut seeds = args.first_seed..args.first_seed + args.seeds;
    loop {
        while running.len() < args.jobs.max(1)
            && let Some(seed) = seeds.next()
        {
            let mut command = Command::new(&program);
            command
                .args(["--replay", &seed.to_string()])
                .stdin(Stdio::null())
                .stdout(Stdio::null());
            running.push((seed, command.spawn()?));
        }
        if running.is_empty() {
            break;
        }
        let (seed, child) = running.remove(0);
        let ended = child.wait_with_output()?;
        if !ended.status.success() {
            running.into_iter().for_each(|(_, mut child)| {
                let _ = child.kill();
                let _ = child.wait();
            });
            bail!("seed {seed} failed; replay: cargo xtask sim --replay {seed}");
        }
    }
    println!(
        "{} seeds passed in {:.1} s",
        args.seeds,
        start.elapsed().as_secs_f64()
    );
    Ok(())
}
