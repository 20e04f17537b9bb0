//! `cargo xtask test`: every test there is, ending in one line `N passed, N failed`.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};
use clap::Parser;

use crate::{lint, sim, tools};

/// Runs all tests. Installs the Debian packages that they need when run as root on Debian, names them otherwise.
#[derive(Parser)]
pub struct Args {
    /// Leave out what needs a Kubernetes cluster or minutes.
    #[arg(long)]
    fast: bool,
}

/// Debian packages that the tests use: the old client of choice, and what builds and runs the cluster tools.
const PACKAGES: &[&str] = &[
    "kcat",
    "python3-venv",
    "maven",
    "default-jdk-headless",
    "iproute2",
    "iptables",
    "postgresql",
    "libfaketime",
];

#[derive(Default)]
struct Tally {
    passed: u32,
    failed: u32,
}

impl Tally {
    /// A check that is not a cargo test: one test of its own.
    fn check(&mut self, name: &str, result: anyhow::Result<()>) {
        match result {
            Ok(()) => self.passed += 1,
            Err(error) => {
                self.failed += 1;
                println!("FAILED {name}: {error:#}");
            }
        }
    }

    /// Runs `cargo test …` and adds up its result lines.
    fn cargo(&mut self, name: &str, args: &[&str]) -> anyhow::Result<()> {
        stage(name);
        let mut child = Command::new("cargo")
            .arg("test")
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start cargo test")?;
        let lines = BufReader::new(child.stdout.take().context("no output")?).lines();
        let mut ran = 0;
        for line in lines {
            let line = line?;
            println!("{line}");
            if let Some((passed, failed)) = result_line(&line) {
                self.passed += passed;
                self.failed += failed;
                ran += passed + failed;
            }
        }
        let status = child.wait()?;
        if !status.success() && self.failed == 0 {
            self.failed += 1;
            println!("FAILED {name}: cargo test ended with {status}");
        }
        if ran == 0 {
            self.failed += 1;
            println!("FAILED {name}: no test ran");
        }
        Ok(())
    }
}

/// `test result: ok. 12 passed; 0 failed; 0 ignored; …`
fn result_line(line: &str) -> Option<(u32, u32)> {
    let rest = line.trim_start().strip_prefix("test result: ")?;
    let number = |word: &str| -> Option<u32> {
        let before = rest.split(word).next()?;
        before.trim_end().rsplit(' ').next()?.parse().ok()
    };
    Some((number(" passed")?, number(" failed")?))
}

/// The tests start databases of their own: installing the package must not leave one running.
fn no_database_service() -> anyhow::Result<()> {
    let folder = Path::new("/etc/postgresql-common");
    if !tools::is_root()? || !Path::new("/etc/debian_version").exists() || folder.exists() {
        return Ok(());
    }
    std::fs::create_dir(folder)?;
    std::fs::write(folder.join("createcluster.conf"), "create_main_cluster = false\n")?;
    Ok(())
}

fn stage(name: &str) {
    println!("\n== {name}");
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let start = Instant::now();
    let mut tally = Tally::default();
    no_database_service()?;
    tools::need_packages(PACKAGES)?;

    stage("lint");
    tally.check("lint", lint::run(lint::Args { quick: false }));
    tally.cargo(
        "unit tests",
        &["--workspace", "--exclude", "e2e", "--no-fail-fast", "--quiet"],
    )?;

    stage("simulation");
    tally.check("sim", sim::seeds(if args.fast { 50 } else { 1_000 }));

    stage("release binaries");
    tally.check(
        "release build",
        crate::run::run(Command::new("cargo").args([
            "build",
            "--release",
            "--quiet",
            "-p",
            "broker",
            "-p",
            "operator",
        ])),
    );
    tally.cargo(
        "processes on loopback",
        &[
            "-p",
            "e2e",
            "--no-fail-fast",
            "--quiet",
            "--",
            "--test-threads",
            "2",
        ],
    )?;
    if !args.fast {
        tally.cargo(
            "Kubernetes cluster",
            &[
                "-p",
                "e2e",
                "--features",
                "cluster",
                "--quiet",
                "--test",
                "kind",
                "--",
                "--test-threads",
                "1",
                "--nocapture",
            ],
        )?;
    }
    println!("\nall in {} s", start.elapsed().as_secs());
    println!("{} passed, {} failed", tally.passed, tally.failed);
    if tally.failed > 0 {
        bail!("{} tests failed", tally.failed);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_are_read() {
        let line = "test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.02s";
        assert_eq!(result_line(line), Some((12, 3)));
        assert_eq!(result_line("test foo ... ok"), None);
    }
}
