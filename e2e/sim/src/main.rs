//! `sim --seeds N --first-seed S`: runs seeds one after the other and stops at the first that fails.
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a test program")]

use std::time::Instant;

use anyhow::bail;
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
    /// Print everything that happens.
    #[arg(long)]
    trace: bool,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if std::env::var_os("RUST_LOG").is_some() {
        tracing_subscriber::fmt().with_env_filter(tracing_subscriber::EnvFilter::from_default_env()).init();
    }
    let start = Instant::now();
    for seed in args.first_seed..args.first_seed + args.seeds {
        let replay = || println!("replay: cargo xtask sim --seeds 1 --first-seed {seed} --trace");
        match run(Scenario::new(seed)) {
            Ok(outcome) => {
                if args.trace {
                    outcome.trace.iter().for_each(|line| println!("{line}"));
                }
                if !outcome.anomalies.is_empty() {
                    outcome.anomalies.iter().for_each(|anomaly| println!("seed {seed}: {anomaly}"));
                    replay();
                    bail!("seed {seed} failed");
                }
            }
            Err(error) => {
                println!("seed {seed}: {error:#}");
                replay();
                bail!("seed {seed} failed");
            }
        }
    }
    println!("{} seeds passed in {:.1} s", args.seeds, start.elapsed().as_secs_f64());
    Ok(())
}
