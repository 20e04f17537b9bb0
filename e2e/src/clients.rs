//! Client libraries as separate programs that print what they saw; see `e2e/clients/README.md`.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// A client library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// franz-go 1.22 (Go).
    FranzGo,
    /// confluent-kafka 2.16 (librdkafka).
    Confluent,
    /// kafka-python 3.0 (pure Python).
    KafkaPython,
    /// kafka-clients 4.4 (Java).
    Java,
}

/// All of them.
pub const LIBRARIES: [Library; 4] = [
    Library::FranzGo,
    Library::Confluent,
    Library::KafkaPython,
    Library::Java,
];

/// Runs of a client end after this time at the latest.
const LIMIT: Duration = Duration::from_secs(240);

impl Library {
    fn command(self) -> anyhow::Result<Command> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients");
        match self {
            Library::FranzGo => Ok(Command::new(tool("client-go")?)),
            Library::Confluent => python(&source.join("python/confluent.py")),
            Library::KafkaPython => python(&source.join("python/pure.py")),
            Library::Java => {
                let mut command = Command::new("java");
                command
                    .arg("-cp")
                    .arg(format!("{}/*", tool("client-java")?.display()));
                command
                    .args(["-Xmx256m", "-XX:+UseSerialGC"])
                    .arg(source.join("java/Client.java"));
                Ok(command)
            }
        }
    }

    /// Starts `produce`: values `first .. first + count`, `rate` a second (0: as fast as it goes).
    pub fn produce(
        self,
        bootstrap: &str,
        topic: &str,
        first: u64,
        count: u64,
        rate: u64,
    ) -> anyhow::Result<Running> {
        let mut command = self.command()?;
        command.args(["produce", bootstrap, topic]);
        command.args([first.to_string(), count.to_string(), rate.to_string()]);
        Running::start(self, command)
    }

    /// Starts `consume` as a member of `group`, until `count` distinct values or `idle_seconds` without one.
    pub fn consume(
        self,
        bootstrap: &str,
        topic: &str,
        group: &str,
        count: u64,
        idle_seconds: u64,
    ) -> anyhow::Result<Running> {
        let mut command = self.command()?;
        command.args(["consume", bootstrap, topic, group]);
        command.args([count.to_string(), idle_seconds.to_string()]);
        Running::start(self, command)
    }
}

/// A client at work. Killed when dropped.
pub struct Running {
    library: Library,
    child: Option<Child>,
    output: std::thread::JoinHandle<std::io::Result<Vec<u8>>>,
    errors: std::thread::JoinHandle<std::io::Result<Vec<u8>>>,
}

impl Running {
    fn start(library: Library, mut command: Command) -> anyhow::Result<Running> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        let output = drain(child.stdout.take().context("no stdout")?);
        let errors = drain(child.stderr.take().context("no stderr")?);
        Ok(Running {
            library,
            child: Some(child),
            output,
            errors,
        })
    }

    /// Waits for its end and gives what it printed.
    pub fn finish(mut self) -> anyhow::Result<String> {
        let mut child = self.child.take().context("already ended")?;
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break Some(status);
            }
            if start.elapsed() > LIMIT {
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        let text = |handle: std::thread::JoinHandle<std::io::Result<Vec<u8>>>| {
            let bytes = handle.join().ok().and_then(Result::ok).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let library = self.library;
        let placeholder = || std::thread::spawn(|| Ok(Vec::new()));
        let output = text(std::mem::replace(&mut self.output, placeholder()));
        let errors = text(std::mem::replace(&mut self.errors, placeholder()));
        match status {
            Some(status) if status.success() => Ok(output),
            Some(status) => bail!("{library:?} ended with {status}:\n{errors}"),
            None => bail!(
                "{library:?} did not end within {LIMIT:?}; it printed {} lines:\n{errors}",
                output.lines().count()
            ),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn drain(mut from: impl std::io::Read + Send + 'static) -> std::thread::JoinHandle<std::io::Result<Vec<u8>>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes)?;
        Ok(bytes)
    })
}

fn python(script: &Path) -> anyhow::Result<Command> {
    let mut command = Command::new(tool("client-python")?.join("bin/python"));
    command.arg(script);
    Ok(command)
}

/// Runs kcat with arguments and standard input; gives its output whatever its exit status.
pub fn kcat(args: &[&str], input: &[u8]) -> anyhow::Result<Output> {
    use std::io::Write as _;
    let mut child = Command::new("timeout")
        .args(["120", "kcat"])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start kcat (Debian package kcat)")?;
    let mut stdin = child.stdin.take().context("no stdin")?;
    let input = input.to_vec();
    let feeder = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output()?;
    let _ = feeder.join();
    Ok(output)
}

/// Path of an external tool, built by `cargo xtask tools` when it is not in the cache.
pub fn tool(name: &str) -> anyhow::Result<PathBuf> {
    static TOOLS: OnceLock<parking_lot::Mutex<std::collections::BTreeMap<String, PathBuf>>> = OnceLock::new();
    let known = TOOLS.get_or_init(Default::default);
    let mut known = known.lock();
    if let Some(path) = known.get(name) {
        return Ok(path.clone());
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["run", "--quiet", "--package", "xtask", "--", "tools", name])
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        bail!("cargo xtask tools {name} failed");
    }
    let text = String::from_utf8(output.stdout)?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{name}=")));
    let path = PathBuf::from(line.with_context(|| format!("cargo xtask tools printed no path of {name}"))?);
    known.insert(name.to_owned(), path.clone());
    Ok(path)
}
