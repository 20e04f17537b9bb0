//! `cargo xtask lint`: what a reviewer should not have to look for.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};
use clap::Parser;

use crate::generate;
use crate::run::run as run_command;

/// Formatting, clippy with warnings as errors, dependency directions, banned crates, file sizes, generated files, tests that documents name.
#[derive(Parser)]
pub struct Args {
    /// Only what takes seconds: leaves out clippy.
    #[arg(long)]
    pub quick: bool,
}

/// Libraries that other crates must not be reached from: who may depend on whom inside the workspace
/// (design: `types <- env <- {kafka-wire, blob} <- {wal, metalog, cache} <- coordinator <- {cluster, groups} <- broker`).
const ALLOWED: &[(&str, &[&str])] = &[
    ("types", &[]),
    ("env", &["types"]),
    ("kafka-wire", &["types", "env"]),
    ("blob", &["types", "env"]),
    ("wal", &["types", "env", "kafka-wire", "blob"]),
    ("metalog", &["types", "env", "kafka-wire", "blob"]),
    ("cache", &["types", "env", "kafka-wire", "blob"]),
    (
        "coordinator",
        &["types", "env", "kafka-wire", "blob", "wal", "metalog", "cache"],
    ),
    (
        "cluster",
        &["types", "env", "kafka-wire", "blob", "metalog", "coordinator"],
    ),
    (
        "groups",
        &["types", "env", "kafka-wire", "blob", "metalog", "coordinator"],
    ),
    (
        "broker",
        &[
            "types",
            "env",
            "kafka-wire",
            "blob",
            "wal",
            "metalog",
            "cache",
            "coordinator",
            "cluster",
            "groups",
        ],
    ),
    ("crds", &[]),
    ("operator", &["crds", "kafka-wire", "types", "env"]),
    (
        "e2e",
        &[
            "types",
            "env",
            "kafka-wire",
            "blob",
            "metalog",
            "coordinator",
            "cluster",
            "groups",
            "broker",
            "crds",
            "operator",
            "history",
        ],
    ),
    ("history", &[]),
    (
        "sim",
        &[
            "types",
            "env",
            "kafka-wire",
            "blob",
            "wal",
            "metalog",
            "coordinator",
            "broker",
            "history",
        ],
    ),
    ("xtask", &["crds"]),
];

const BANNED: &[&str] = &["ring", "openssl", "openssl-sys", "native-tls"];

/// Lines of a source file beyond which it is several rooms, not one.
const LONGEST_FILE: usize = 600;

pub fn run(args: Args) -> anyhow::Result<()> {
    let metadata = MetadataCommand::new().exec().context("cargo metadata")?;
    directions(&metadata)?;
    banned(&metadata)?;
    file_sizes()?;
    named_tests("docs/faults.md")?;
    generate::run(generate::Args { check: true })?;
    run_command(Command::new("cargo").args(["fmt", "--all", "--check"]))?;
    if !args.quick {
        run_command(Command::new("cargo").args([
            "clippy",
            "--workspace",
            "--all-targets",
            "--quiet",
            "--",
            "-D",
            "warnings",
        ]))?;
    }
    let deny = Command::new("cargo")
        .args(["deny", "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if deny.is_ok_and(|status| status.success()) {
        run_command(Command::new("cargo").args(["deny", "check", "bans", "licenses", "sources"]))?;
    } else {
        println!("lint: cargo-deny is not installed; licences were not checked");
    }
    println!("lint: clean");
    Ok(())
}

/// Fails on a dependency inside the workspace that points the wrong way.
pub fn directions(metadata: &Metadata) -> anyhow::Result<()> {
    let allowed: BTreeMap<&str, &[&str]> = ALLOWED.iter().copied().collect();
    let members: BTreeSet<&str> = metadata
        .workspace_packages()
        .iter()
        .map(|p| p.name.as_str())
        .collect();
    let mut wrong = Vec::new();
    for package in metadata.workspace_packages() {
        let Some(may) = allowed.get(package.name.as_str()) else {
            wrong.push(format!(
                "{} is not in the table of xtask/src/lint.rs",
                package.name
            ));
            continue;
        };
        for dependency in &package.dependencies {
            // Tests may look further, as long as nothing depends on e2e or the binaries in a circle.
            let is_test = dependency.kind == DependencyKind::Development;
            if !is_test
                && members.contains(dependency.name.as_str())
                && !may.contains(&dependency.name.as_str())
            {
                wrong.push(format!("{} must not depend on {}", package.name, dependency.name));
            }
        }
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        bail!("dependency directions:\n  {}", wrong.join("\n  "))
    }
}

/// Fails when a banned crate is part of a build for Linux.
fn banned(metadata: &Metadata) -> anyhow::Result<()> {
    let names: BTreeSet<&str> = metadata.packages.iter().map(|p| p.name.as_str()).collect();
    for name in BANNED.iter().filter(|name| names.contains(**name)) {
        // In the lock file for another platform or feature is fine; in the graph that is built is not.
        let out = Command::new("cargo")
            .args(["tree", "--workspace", "--edges", "all", "--invert", name])
            .stderr(Stdio::null())
            .output()?;
        if out.status.success() && !out.stdout.is_empty() {
            bail!(
                "{name} is banned (deny.toml) but built:\n{}",
                String::from_utf8_lossy(&out.stdout)
            );
        }
    }
    Ok(())
}

fn file_sizes() -> anyhow::Result<()> {
    let files = crate::run::output(Command::new("git").args(["ls-files", "*.rs"]))?;
    let mut long = Vec::new();
    for file in files.lines() {
        let Ok(text) = std::fs::read_to_string(file) else {
            continue;
        };
        let lines = text.lines().count();
        if lines > LONGEST_FILE {
            long.push(format!("{file}: {lines} lines"));
        }
    }
    if long.is_empty() {
        Ok(())
    } else {
        bail!("files over {LONGEST_FILE} lines:\n  {}", long.join("\n  "))
    }
}

/// Fails when a row of a table is held by nothing, or by a test that does not exist.
fn named_tests(document: &str) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(document).with_context(|| document.to_owned())?;
    let mut wrong = Vec::new();
    let named: Vec<_> = text
        .split('`')
        .filter_map(|code| code.split_once(".rs::"))
        .collect();
    if named.len() <= 30 {
        wrong.push(format!("only {} tests are named", named.len()));
    }
    for (file, test) in named {
        let source = std::fs::read_to_string(format!("{file}.rs"));
        if !source.is_ok_and(|source| source.contains(&format!("fn {test}("))) {
            wrong.push(format!("there is no {file}.rs::{test}"));
        }
    }
    for line in text.lines().filter(|line| line.starts_with("| ")) {
        let held = line.trim_end_matches(" |").rsplit(" | ").next();
        let header = held.is_some_and(|held| held == "held by" || held.starts_with("---"));
        let holds = held.is_some_and(|held| held == "cannot happen" || held.contains(".rs::"));
        if !header && !holds {
            wrong.push(format!("nothing holds: {line}"));
        }
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        bail!("{document}:\n  {}", wrong.join("\n  "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_point_the_right_way() {
        let metadata = MetadataCommand::new().exec().unwrap();
        directions(&metadata).unwrap();
    }

    #[test]
    fn a_wrong_direction_is_found() {
        let mut metadata = MetadataCommand::new().exec().unwrap();
        let types = metadata
            .packages
            .iter_mut()
            .find(|p| p.name.as_str() == "types")
            .unwrap();
        let serde = types.dependencies.iter_mut().find(|d| d.name == "serde").unwrap();
        serde.name = "broker".to_owned();
        let error = directions(&metadata).unwrap_err().to_string();
        assert!(error.contains("types must not depend on broker"), "{error}");
    }
}
