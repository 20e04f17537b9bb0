//! Many seeds, one process each.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::bail;
use sim::mutations::MUTATIONS;

use crate::Args;

/// A run that takes longer than this, in real time, goes in circles.
const LIMIT: Duration = Duration::from_secs(180);
/// After so many failures there is enough to look at.
const ENOUGH: usize = 5;

struct Running {
    seed: u64,
    child: Child,
    since: Instant,
}

struct Failure {
    seed: u64,
    text: String,
}

/// Runs seeds until all have passed or `enough` have failed. Gives the failures in the order of their seeds, and how many
/// seeds were run.
fn run(args: &Args, mutation: Option<&str>, enough: usize) -> anyhow::Result<(Vec<Failure>, u64)> {
    let program = std::env::current_exe()?;
    let mut running: Vec<Running> = Vec::new();
    let mut failures = Vec::new();
    let mut seeds = args.first_seed..args.first_seed + args.seeds;
    let mut done = 0;
    loop {
        while running.len() < args.jobs.max(1)
            && failures.len() < enough
            && let Some(seed) = seeds.next()
        {
            let mut command = Command::new(&program);
            command.args(["--quiet", "--replay", &seed.to_string()]);
            if let Some(mutation) = mutation {
                command.args(["--mutation", mutation]);
            }
            command
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::inherit());
            let child = command.spawn()?;
            running.push(Running {
                seed,
                child,
                since: Instant::now(),
            });
        }
        if running.is_empty() {
            failures.sort_by_key(|failure: &Failure| failure.seed);
            return Ok((failures, done));
        }
        std::thread::sleep(Duration::from_millis(5));
        let mut still = Vec::new();
        for mut run in running {
            let ended = run.child.try_wait()?;
            let late = ended.is_none() && run.since.elapsed() > LIMIT;
            if late {
                run.child.kill()?;
                run.child.wait()?;
            } else if ended.is_none() {
                still.push(run);
                continue;
            }
            done += 1;
            if !ended.is_some_and(|status| status.success()) {
                let mut text = String::new();
                if let Some(mut out) = run.child.stdout.take() {
                    out.read_to_string(&mut text)?;
                }
                if late {
                    text = format!("seed {}: no end after {LIMIT:?} of real time", run.seed);
                }
                failures.push(Failure { seed: run.seed, text });
            }
        }
        running = still;
    }
}

/// `--seeds`
pub(crate) fn seeds(args: &Args) -> anyhow::Result<()> {
    let start = Instant::now();
    let (failures, done) = run(args, None, ENOUGH)?;
    for Failure { seed, text } in &failures {
        println!("{}\nreplay: cargo xtask sim --replay {seed}\n", text.trim_end());
    }
    let took = start.elapsed().as_secs_f64();
    if failures.is_empty() {
        println!("{done} seeds passed in {took:.1} s");
        return Ok(());
    }
    let failed: Vec<String> = failures.iter().map(|failure| failure.seed.to_string()).collect();
    bail!(
        "{} of {done} seeds failed in {took:.1} s: {}",
        failed.len(),
        failed.join(" ")
    )
}

/// `--mutation`
pub(crate) fn mutations(args: &Args, wanted: &str) -> anyhow::Result<()> {
    let chosen: Vec<_> = MUTATIONS
        .iter()
        .filter(|(name, _)| wanted == "all" || wanted == *name)
        .collect();
    if chosen.is_empty() {
        let names: Vec<&str> = MUTATIONS.iter().map(|(name, _)| *name).collect();
        bail!(
            "there is no mutation {wanted}; there are all, {}",
            names.join(", ")
        );
    }
    println!(
        "| mutation | what it breaks | seeds to find | seed | first finding |\n| --- | --- | --- | --- | --- |"
    );
    let mut missed = Vec::new();
    for (name, what) in chosen {
        let (failures, done) = run(args, Some(name), 1)?;
        match failures.first() {
            Some(Failure { seed, text }) => {
                let tried = seed - args.first_seed + 1;
                let first = text.lines().next().unwrap_or_default();
                let first = first.split_once(": ").map_or(first, |(_, finding)| finding);
                let kind = first.split([' ', '{']).next().unwrap_or_default();
                println!("| `{name}` | {what} | {tried} | {seed} | {kind} |");
            }
            None => {
                println!("| `{name}` | {what} | not in {done} | | |");
                missed.push(*name);
            }
        }
    }
    if missed.is_empty() {
        println!("all found");
        return Ok(());
    }
    bail!("not found: {}", missed.join(", "))
}
