//! Client libraries as separate programs that print what they saw; see `e2e/clients/README.md`.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use parking_lot::Mutex;

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
const LOOK: Duration = Duration::from_millis(50);

impl Library {
    fn command(self) -> anyhow::Result<Command> {
        let source = crate::root().join("e2e/clients");
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

/// What the Java administrator sees of features, and gets for finalising `level`.
pub fn features(bootstrap: &str, level: i16) -> anyhow::Result<String> {
    let mut command = Library::Java.command()?;
    command.args(["features", bootstrap, &level.to_string()]);
    Running::start(Library::Java, command)?.finish()
}

/// A client at work. Killed when dropped.
pub struct Running {
    library: Library,
    child: Child,
    output: Gathered,
    errors: Gathered,
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
        let output = Gathered::from(child.stdout.take().context("no stdout")?);
        let errors = Gathered::from(child.stderr.take().context("no stderr")?);
        Ok(Running {
            library,
            child,
            output,
            errors,
        })
    }

    /// Waits for its end and gives what it printed.
    pub fn finish(mut self) -> anyhow::Result<String> {
        let start = Instant::now();
        while start.elapsed() < LIMIT {
            let Some(status) = self.child.try_wait()? else {
                std::thread::sleep(LOOK);
                continue;
            };
            let errors = self.errors.wait();
            if !status.success() {
                bail!("{:?} ended with {status}:\n{errors}", self.library);
            }
            return Ok(self.output.wait());
        }
        self.too_slow(&format!("did not end within {LIMIT:?}"))
    }

    /// Waits until it has printed so many lines.
    pub fn wait_for_lines(&mut self, count: usize) -> anyhow::Result<()> {
        let start = Instant::now();
        while self.output.lines() < count {
            let ended = self.child.try_wait()?;
            if ended.is_some() || start.elapsed() > LIMIT {
                return self.too_slow(&format!(
                    "printed less than {count} lines (exit status {ended:?})"
                ));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// SIGKILL; gives what it had printed.
    pub fn kill(mut self) -> anyhow::Result<String> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(self.output.wait())
    }

    fn too_slow<T>(&mut self, what: &str) -> anyhow::Result<T> {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let (lines, errors) = (self.output.lines(), self.errors.wait());
        bail!("{:?} {what}; it printed {lines} lines:\n{errors}", self.library)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a process has written to a pipe.
struct Gathered {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Gathered {
    fn from(mut pipe: impl Read + Send + 'static) -> Gathered {
        let bytes: Arc<Mutex<Vec<u8>>> = Arc::default();
        let shared = bytes.clone();
        let reader = std::thread::spawn(move || {
            let mut chunk = [0; 1 << 16];
            while let Ok(count @ 1..) = pipe.read(&mut chunk) {
                shared.lock().extend(&chunk[..count]);
            }
        });
        Gathered {
            bytes,
            reader: Some(reader),
        }
    }

    fn lines(&self) -> usize {
        self.bytes.lock().iter().filter(|byte| **byte == b'\n').count()
    }

    /// All of it, once the process has ended.
    fn wait(&mut self) -> String {
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        String::from_utf8_lossy(&self.bytes.lock()).into_owned()
    }
}

fn python(script: &Path) -> anyhow::Result<Command> {
    let mut command = Command::new(tool("client-python")?.join("bin/python"));
    // What it has printed must be seen at once: it may be killed.
    command.arg("-u").arg(script);
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
    static TOOLS: OnceLock<Mutex<BTreeMap<String, PathBuf>>> = OnceLock::new();
    let known = TOOLS.get_or_init(Default::default);
    let mut known = known.lock();
    if let Some(path) = known.get(name) {
        return Ok(path.clone());
    }
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["run", "--quiet", "--package", "xtask", "--", "tools", name])
        .current_dir(crate::root())
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
