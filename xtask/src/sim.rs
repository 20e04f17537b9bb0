//! `cargo xtask sim`: builds the simulation and runs seeds.

use std::process::Command;

use clap::Parser;

use crate::run::run as run_command;

/// Runs whole clusters from seeds; the last line and the exit status tell.
#[derive(Parser)]
pub struct Args {
    /// How many seeds.
    #[arg(long, default_value_t = 20)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 1)]
    first_seed: u64,
    /// Run this seed alone and print everything that happens.
    #[arg(long)]
    replay: Option<u64>,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let mut command = Command::new("cargo");
    command.args(["run", "--release", "--quiet", "-p", "sim", "--"]);
    command.args([
        "--seeds",
        &args.seeds.to_string(),
        "--first-seed",
        &args.first_seed.to_string(),
    ]);
    if let Some(seed) = args.replay {
        command.args(["--replay", &seed.to_string()]);
    }
    run_command(&mut command)
}
