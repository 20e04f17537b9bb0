//! Running other programs, and saying how far along we are.

use std::fmt::Display;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Instant;

use anyhow::{Context, bail};

/// The repository's root folder: that of the checkout which cargo runs this in. Where checkouts share a target folder, the
/// binary may have been compiled from another.
pub fn root() -> &'static Path {
    static PACKAGE: OnceLock<PathBuf> = OnceLock::new();
    let package = PACKAGE.get_or_init(|| {
        let run_by_cargo = std::env::var_os("CARGO_MANIFEST_DIR");
        run_by_cargo.map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from)
    });
    package.parent().unwrap_or(Path::new("."))
}

/// Where cargo builds to (`CARGO_TARGET_DIR` is honoured).
pub fn target_dir() -> anyhow::Result<PathBuf> {
    let metadata = cargo_metadata::MetadataCommand::new()
        .no_deps()
        .current_dir(root())
        .exec()?;
    Ok(metadata.target_directory.into_std_path_buf())
}

/// Tells the person at the terminal what begins now, with the seconds since the first such line.
pub fn step(text: impl Display) {
    static START: OnceLock<Instant> = OnceLock::new();
    let seconds = START.get_or_init(Instant::now).elapsed().as_secs();
    eprintln!("{seconds:>5}s  {text}");
}

/// Runs a command to its end and fails with its command line when it does.
pub fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot start {command:?}"))?;
    if !status.success() {
        bail!("{command:?} ended with {status}");
    }
    Ok(())
}

/// Runs a command and gives what it printed, without the last newline.
pub fn output(command: &mut Command) -> anyhow::Result<String> {
    Ok(String::from_utf8_lossy(&succeeded(command)?.stdout)
        .trim_end()
        .to_owned())
}

/// Runs a command whose output is of no interest unless it fails.
pub fn quiet(command: &mut Command) -> anyhow::Result<()> {
    succeeded(command).map(drop)
}

/// Whether a command ends well; what it prints is dropped.
pub fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

fn succeeded(command: &mut Command) -> anyhow::Result<Output> {
    let out = command
        .output()
        .with_context(|| format!("cannot start {command:?}"))?;
    if !out.status.success() {
        bail!(
            "{command:?} ended with {}: {}",
            out.status,
            String::from_utf8_lossy(&out.stderr).trim()
        );
    }
    Ok(out)
}

/// Runs a chatty command with its output in a file, whose last lines become part of the error when it fails.
pub fn logged(command: &mut Command, log: &Path) -> anyhow::Result<()> {
    let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let status = command
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .status()
        .with_context(|| format!("cannot start {command:?}"))?;
    if !status.success() {
        let text = String::from_utf8_lossy(&std::fs::read(log)?).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines
            .get(lines.len().saturating_sub(15)..)
            .unwrap_or_default()
            .join("\n");
        bail!(
            "{command:?} ended with {status}; the end of {}:\n{tail}",
            log.display()
        );
    }
    Ok(())
}

/// Runs a command with `input` as its standard input.
pub fn feed(command: &mut Command, input: &[u8]) -> anyhow::Result<Output> {
    use std::io::Write;

    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {command:?}"))?;
    let mut stdin = child.stdin.take().context("no standard input")?;
    // On a thread of its own, or a child that answers before it has read all would stop both.
    let out = std::thread::scope(|scope| {
        // A child that ends early closes the pipe: its exit status tells more than that error.
        scope.spawn(move || stdin.write_all(input));
        child.wait_with_output()
    })?;
    if !out.status.success() {
        bail!(
            "{command:?} ended with {}: {}",
            out.status,
            String::from_utf8_lossy(&out.stderr).trim()
        );
    }
    Ok(out)
}
