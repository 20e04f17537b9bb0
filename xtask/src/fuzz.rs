//! `cargo xtask fuzz`: decoders, on input that libFuzzer makes up. `broker/fuzz/README.md` tells more.

use std::fs;
use std::process::Command;

use anyhow::{Context, bail};
use clap::Parser;

use crate::run;

/// Runs the fuzz targets one after the other; one that panics or takes too much memory ends it.
#[derive(Parser)]
pub struct Args {
    /// Names of targets; none: all there are.
    targets: Vec<String>,
    /// How long each of them runs.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

/// What libFuzzer needs to see where its input leads. The code has no `unsafe`, so no sanitizer, and no nightly compiler.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
     -Cllvm-args=-sanitizer-coverage-trace-compares";
/// Decoders must not take memory beyond their input, which has 4 KiB at most.
const MEMORY_MIB: u32 = 512;

pub fn run(args: Args) -> anyhow::Result<()> {
    let folder = run::root().join("broker/fuzz");
    let targets = if args.targets.is_empty() {
        all()?
    } else {
        args.targets
    };
    let version = run::output(Command::new("rustc").arg("-vV").current_dir(&folder))?;
    let host = version
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .context("rustc does not say what it runs on")?;
    run::step("building the fuzz targets");
    // With a named target the flags are not for build scripts and macros.
    let mut build = Command::new("cargo");
    build
        .args(["build", "--quiet", "--bins", "--target", host])
        .env("RUSTFLAGS", FLAGS)
        .env("CARGO_TARGET_DIR", folder.join("target"))
        .current_dir(&folder);
    run::run(&mut build)?;
    for target in targets {
        let (corpus, artifacts) = (
            folder.join("corpus").join(&target),
            folder.join("artifacts").join(&target),
        );
        fs::create_dir_all(&corpus)?;
        fs::create_dir_all(&artifacts)?;
        let log = artifacts.join("log");
        let mut fuzz = Command::new(folder.join("target").join(host).join("debug").join(&target));
        fuzz.arg(format!("-max_total_time={}", args.seconds))
            .arg(format!("-rss_limit_mb={MEMORY_MIB}"))
            .arg(format!("-artifact_prefix={}/", artifacts.display()))
            .args(["-timeout=10", "-print_final_stats=1"])
            .arg(&corpus);
        run::logged(&mut fuzz, &log).with_context(|| format!("fuzz target {target}"))?;
        let text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
        run::step(format!("{target}: {}", summary(&text)?));
    }
    Ok(())
}

/// All targets, by the names of their files.
fn all() -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for file in fs::read_dir(run::root().join("broker/fuzz/fuzz_targets"))? {
        let name = file?.file_name().to_string_lossy().into_owned();
        names.extend(name.strip_suffix(".rs").map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

/// What libFuzzer says at the end: how often it ran, and how much code it has reached.
fn summary(log: &str) -> anyhow::Result<String> {
    let runs = log
        .lines()
        .find_map(|line| line.strip_prefix("stat::number_of_executed_units:"))
        .map(|count| count.trim().parse::<u64>())
        .transpose()?
        .unwrap_or(0);
    let reached = log
        .lines()
        .rev()
        .find_map(|line| line.split_once(" cov: ")?.1.split(' ').next())
        .unwrap_or("no");
    if runs == 0 {
        bail!("libFuzzer has not run it once:\n{log}");
    }
    Ok(format!("{runs} runs, {reached} edges"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log_is_read() {
        let log = "#2\tINITED cov: 3 ft: 4 corp: 1/1b exec/s: 0 rss: 30Mb\n#99\tDONE   cov: 12 ft: 30 corp: 9/80b\n\
                   stat::number_of_executed_units: 99\n";
        assert_eq!(summary(log).unwrap(), "99 runs, 12 edges");
        assert!(summary("no output").is_err());
    }

    /// A file without an entry in the manifest would not be built, and nobody would notice.
    #[test]
    fn every_target_is_in_the_manifest() {
        let manifest = fs::read_to_string(run::root().join("broker/fuzz/Cargo.toml")).unwrap();
        let targets = all().unwrap();
        assert!(targets.len() > 10, "{targets:?}");
        for target in targets {
            assert!(manifest.contains(&format!("name = \"{target}\"")), "{target}");
        }
    }
}
