//! Many seeds, one process each.

use std::fs::File;
use std::io::{Read, Seek};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::bail;
use sim::Engine;
use sim::mutations::MUTATIONS;

use crate::Args;

/// A run that takes longer than this, in real time, goes in circles.
const LIMIT: Duration = Duration::from_secs(180);
/// After so many failures there is enough to look at.
const ENOUGH: usize = 5;
/// A deliberate bug that shows so often and never in data will not.
const PATIENCE: usize = 20;

struct Running {
    seed: u64,
    child: Child,
    /// What it says. A file, since nobody reads before it has ended, and a pipe would be full one day.
    out: File,
    since: Instant,
}

struct Failure {
    seed: u64,
    text: String,
    /// It was ended from outside.
    no_end: bool,
}

impl Failure {
    /// The kind of its first finding, and of its first one that is about data: not only about how long something took.
    fn kinds(&self) -> (&str, Option<&str>) {
        let seed = format!("seed {}: ", self.seed);
        let mut kinds = self.text.lines().map(|line| {
            let finding = line.strip_prefix(&seed).unwrap_or(line);
            finding.split([' ', '{']).next().unwrap_or_default()
        });
        let first = kinds.clone().next().unwrap_or_default();
        (first, kinds.find(|kind| *kind != "Unavailable" && !self.no_end))
    }
}

/// The seeds that are wanted.
fn wanted_seeds(args: &Args) -> impl Iterator<Item = u64> {
    let wanted = move |seed: &u64| args.engine.is_none_or(|engine| Engine::of(*seed) == engine);
    (args.first_seed..).filter(wanted).take(args.seeds as usize)
}

/// Runs seeds until all have passed or those that failed are `enough`. Gives the failures in the order of their seeds, and
/// how many seeds were run.
fn run(
    args: &Args,
    mutation: Option<&str>,
    enough: impl Fn(&[Failure]) -> bool,
) -> anyhow::Result<(Vec<Failure>, u64)> {
    let program = std::env::current_exe()?;
    let mut running: Vec<Running> = Vec::new();
    let mut failures = Vec::new();
    let mut seeds = wanted_seeds(args);
    let mut done = 0;
    loop {
        while running.len() < args.jobs.max(1)
            && !enough(&failures)
            && let Some(seed) = seeds.next()
        {
            let mut command = Command::new(&program);
            command.args(["--quiet", "--replay", &seed.to_string()]);
            if let Some(mutation) = mutation {
                command.args(["--mutation", mutation]);
            }
            let out = tempfile::tempfile()?;
            command
                .stdin(Stdio::null())
                .stdout(out.try_clone()?)
                .stderr(Stdio::inherit());
            let child = command.spawn()?;
            running.push(Running {
                seed,
                child,
                out,
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
                if late {
                    text = format!("seed {}: no end after {LIMIT:?} of real time", run.seed);
                } else {
                    run.out.rewind()?;
                    run.out.read_to_string(&mut text)?;
                }
                failures.push(Failure {
                    seed: run.seed,
                    text,
                    no_end: late,
                });
            }
        }
        running = still;
    }
}

/// `--seeds`
pub(crate) fn seeds(args: &Args) -> anyhow::Result<()> {
    let start = Instant::now();
    let (failures, done) = run(args, None, |failures| failures.len() >= ENOUGH)?;
    for Failure { seed, text, .. } in &failures {
        let (text, engine) = (text.trim_end(), Engine::of(*seed));
        println!("{text}\nreplay (engine {engine}): cargo xtask sim --replay {seed}\n");
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
        "| mutation | what it breaks | seeds to find | first finding | seeds until it shows in data | as |\n\
         | --- | --- | --- | --- | --- | --- |"
    );
    let mut missed = Vec::new();
    for (name, what) in chosen {
        let shows = |failure: &Failure| failure.kinds().1.is_some();
        let enough = |failures: &[Failure]| failures.iter().any(shows) || failures.len() >= PATIENCE;
        let (failures, done) = run(args, Some(name), enough)?;
        let tried = |failure: &Failure| {
            wanted_seeds(args)
                .take_while(|seed| *seed <= failure.seed)
                .count()
        };
        let Some(first) = failures.first() else {
            println!("| `{name}` | {what} | not in {done} | | | |");
            missed.push(*name);
            continue;
        };
        let (seeds, kind) = (tried(first), first.kinds().0);
        let data = failures
            .iter()
            .find_map(|failure| Some((tried(failure), failure.kinds().1?)));
        match data {
            Some((later, data)) => println!("| `{name}` | {what} | {seeds} | {kind} | {later} | {data} |"),
            None => println!("| `{name}` | {what} | {seeds} | {kind} | not in {done} | |"),
        }
    }
    if missed.is_empty() {
        println!("all found");
        return Ok(());
    }
    bail!("not found: {}", missed.join(", "))
}
