//! Programs from elsewhere, and the cache folder that they are built into.
//!
//! What takes more than seconds to make lives outside the repository, as `<cache>/<name>/<key>`: the key is a hash of
//! everything that went in, so an entry is never stale and never changes. Processes that want the same entry at
//! the same time wait for the first. The folder may be deleted at any moment when nothing runs.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use clap::{Parser, ValueEnum};
use sha2::{Digest, Sha256};

use crate::run;

/// Entries that are kept of each tool.
const KEPT: usize = 2;

/// Flags of every Go program: static, small, and independent of where it was built.
const GO_FLAGS: [&str; 2] = ["-trimpath", "-buildvcs=false"];
const GO_LINK: &str = "-s -w";

#[derive(Parser)]
pub struct Args {
    /// Only these; all when none is named.
    tools: Vec<Tool>,
}

/// Builds what is missing and prints one line `name=path` for each tool.
pub fn run(args: Args) -> anyhow::Result<()> {
    let tools = if args.tools.is_empty() {
        Tool::value_variants()
    } else {
        &args.tools
    };
    for tool in tools {
        println!("{}={}", tool.name(), path(*tool)?.display());
    }
    Ok(())
}

/// A program that is built from source.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Tool {
    /// Kubernetes in containers.
    Kind,
    /// Every part of Kubernetes in one binary, for a node image made here.
    Hyperkube,
    Kubectl,
    /// Talks to a node's container runtime: part of the node image.
    Crictl,
    /// Volumes on a node's own disk: part of the node image.
    LocalPathProvisioner,
    Helm,
    /// S3 server over a folder, with exact conditional writes.
    Versitygw,
    /// Load generator of the benchmark.
    Kload,
    /// Folder of Apache Kafka's jars.
    KafkaJars,
    /// The franz-go client of the end-to-end tests.
    ClientGo,
    /// Virtual environment of the Python clients of the end-to-end tests.
    ClientPython,
    /// Folder of the jars of the Java client of the end-to-end tests.
    ClientJava,
}

impl Tool {
    fn name(self) -> &'static str {
        match self {
            Self::Kind => "kind",
            Self::Hyperkube => "hyperkube",
            Self::Kubectl => "kubectl",
            Self::Crictl => "crictl",
            Self::LocalPathProvisioner => "local-path-provisioner",
            Self::Helm => "helm",
            Self::Versitygw => "versitygw",
            Self::Kload => "kload",
            Self::KafkaJars => "kafka-jars",
            Self::ClientGo => "client-go",
            Self::ClientPython => "client-python",
            Self::ClientJava => "client-java",
        }
    }

    /// Where the program's source is.
    fn source(self) -> Source {
        match self {
            Self::Kind => Source::Module("sigs.k8s.io/kind@v0.33.0"),
            Self::Hyperkube => Source::Ours(HYPERKUBE, "."),
            Self::Kubectl => Source::Ours(HYPERKUBE, "./kubectl"),
            Self::Crictl => Source::Module("sigs.k8s.io/cri-tools/cmd/crictl@v1.34.0"),
            Self::LocalPathProvisioner => Source::Module("github.com/rancher/local-path-provisioner@v0.0.30"),
            Self::Helm => Source::Module("helm.sh/helm/v3/cmd/helm@v3.22.0"),
            Self::Versitygw => Source::Module("github.com/versity/versitygw/cmd/versitygw@v1.8.0"),
            Self::Kload => Source::Ours("e2e/bench/kload", "."),
            Self::KafkaJars => Source::Jars("e2e/bench/kafka"),
            Self::ClientGo => Source::Ours("e2e/clients/go", "."),
            Self::ClientPython => Source::Python("e2e/clients/python/requirements.txt"),
            Self::ClientJava => Source::Jars("e2e/clients/java"),
        }
    }
}

/// A Go module that embeds all of Kubernetes.
const HYPERKUBE: &str = "e2e/kind/hyperkube";

enum Source {
    /// Argument of `go install`.
    Module(&'static str),
    /// Folder of a Go module of this repository, and the package in it.
    Ours(&'static str, &'static str),
    /// Folder with a `pom.xml` whose runtime dependencies are wanted.
    Jars(&'static str),
    /// File of requirements for `pip`.
    Python(&'static str),
}

/// The program (or folder), built first when the cache lacks it.
pub fn path(tool: Tool) -> anyhow::Result<PathBuf> {
    let name = tool.name();
    let inputs = Inputs::new().text(&GO_FLAGS.join(" ")).text(GO_LINK);
    let inputs = match tool.source() {
        Source::Module(module) => inputs.text(module),
        Source::Ours(folder, package) => inputs.text(package).folder(&run::root().join(folder))?,
        Source::Jars(folder) => inputs.folder(&run::root().join(folder))?,
        // An environment belongs to the interpreter that made it.
        Source::Python(file) => inputs
            .text(&run::output(Command::new("python3").arg("--version"))?)
            .text(&fs::read_to_string(run::root().join(file))?),
    };
    let entry = cached(name, &inputs.key(), |entry| {
        let target = entry.join(name);
        let log = cache()?.join(name).join("build.log");
        let mut command = match tool.source() {
            Source::Module(module) => {
                run::step(format!("building {module} (once)"));
                let mut go = go()?;
                go.env("GOBIN", entry)
                    .arg("install")
                    .args(GO_FLAGS)
                    .arg(format!("-ldflags={GO_LINK}"))
                    .arg(module);
                go
            }
            Source::Ours(folder, package) => {
                let folder = run::root().join(folder);
                let mut link = GO_LINK.to_owned();
                if folder.ends_with(HYPERKUBE) {
                    run::step(format!(
                        "building {name} (once; all of Kubernetes takes 12 CPU minutes)"
                    ));
                    link.push_str(&kubernetes_flags(&folder)?);
                } else {
                    run::step(format!("building {name} (once)"));
                }
                let mut go = go()?;
                go.current_dir(folder).arg("build").args(GO_FLAGS);
                go.arg(format!("-ldflags={link}"))
                    .arg("-o")
                    .arg(target)
                    .arg(package);
                go
            }
            Source::Jars(folder) => {
                if !installed("mvn") {
                    bail!("{name} come from Maven, which is not installed (Debian's package: maven)");
                }
                run::step(format!("fetching {name} (once)"));
                let mut mvn = Command::new("mvn");
                mvn.args(["-B", "-q", "-f"])
                    .arg(run::root().join(folder).join("pom.xml"));
                mvn.args(["dependency:copy-dependencies", "-DincludeScope=runtime"]);
                mvn.arg(format!("-DoutputDirectory={}", target.display()));
                mvn
            }
            Source::Python(file) => {
                run::step(format!("making {name} (once)"));
                let mut venv = Command::new("python3");
                run::logged(venv.args(["-m", "venv"]).arg(&target), &log)
                    .context("python3 cannot make a virtual environment (Debian's package: python3-venv)")?;
                let mut pip = Command::new(target.join("bin/python"));
                pip.args([
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "--disable-pip-version-check",
                    "-r",
                ]);
                pip.arg(run::root().join(file));
                pip
            }
        };
        run::logged(&mut command, &log)
    })?;
    Ok(entry.join(name))
}

fn go() -> anyhow::Result<Command> {
    if !installed("go") {
        bail!("several tools are built from Go modules: install Go 1.26 or later (https://go.dev/dl)");
    }
    let mut go = Command::new("go");
    go.env("CGO_ENABLED", "0").env_remove("GOFLAGS");
    Ok(go)
}

/// Linker flags that tell Kubernetes its own version, which a Go module does not know.
fn kubernetes_flags(folder: &Path) -> anyhow::Result<String> {
    let mut list = Command::new("go");
    list.current_dir(folder)
        .args(["list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes"]);
    let version = run::output(&mut list)?;
    let minor = version
        .split('.')
        .nth(1)
        .with_context(|| format!("strange version of k8s.io/kubernetes: {version}"))?;
    let mut flags = String::new();
    for package in ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"] {
        for (name, value) in [
            ("gitVersion", version.as_str()),
            ("gitMajor", "1"),
            ("gitMinor", minor),
            ("gitTreeState", "clean"),
            ("gitCommit", "go-module"),
            ("buildDate", "1970-01-01T00:00:00Z"),
        ] {
            flags.push_str(&format!(" -X {package}.{name}={value}"));
        }
    }
    Ok(flags)
}

/// What a cache entry is made from; order matters.
pub struct Inputs(Sha256);

impl Inputs {
    pub fn new() -> Self {
        Self(Sha256::new())
    }

    pub fn text(mut self, text: &str) -> Self {
        // With its length, so that no two lists of inputs run together to the same bytes.
        self.0.update((text.len() as u64).to_le_bytes());
        self.0.update(text);
        self
    }

    /// All files below a folder, by name and content.
    pub fn folder(mut self, folder: &Path) -> anyhow::Result<Self> {
        let mut entries: Vec<_> = fs::read_dir(folder)
            .with_context(|| format!("cannot read {}", folder.display()))?
            .collect::<Result<_, _>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            self = self.text(&entry.file_name().to_string_lossy());
            self = if entry.file_type()?.is_dir() {
                self.folder(&entry.path())?
            } else {
                self.text(&String::from_utf8_lossy(&fs::read(entry.path())?))
            };
        }
        Ok(self)
    }

    pub fn key(self) -> String {
        self.0
            .finalize()
            .iter()
            .take(8)
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }
}

/// The cache folder: `DISKLESS_CACHE`, or `diskless` below `XDG_CACHE_HOME` or `~/.cache`.
pub fn cache() -> anyhow::Result<PathBuf> {
    let set = |name: &str| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    let folder = set("DISKLESS_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|d| d.join("diskless")))
        .or_else(|| set("HOME").map(|d| d.join(".cache/diskless")))
        .context("none of DISKLESS_CACHE, XDG_CACHE_HOME and HOME is set: where may built tools be kept?")?;
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    folder
        .canonicalize()
        .with_context(|| format!("cannot find {}", folder.display()))
}

/// The folder of a cache entry, filled first by `build` when there is none. A failed build leaves nothing.
pub fn cached(
    name: &str,
    key: &str,
    build: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<PathBuf> {
    let shelf = cache()?.join(name);
    let entry = shelf.join(key);
    if entry.exists() {
        return Ok(entry);
    }
    fs::create_dir_all(&shelf)?;
    let _lock = lock(&shelf.join("lock"))?;
    if entry.exists() {
        return Ok(entry);
    }
    let partial = shelf.join(format!("{key}.partial"));
    if partial.exists() {
        fs::remove_dir_all(&partial)?;
    }
    fs::create_dir(&partial)?;
    build(&partial)?;
    fs::rename(&partial, &entry)?;
    forget_old(&shelf)?;
    Ok(entry)
}

/// Deletes all entries of a shelf but the newest ones: a node image takes 250 MB. More than one, so that going back and
/// forth between two versions of the source builds nothing. Only while something is added, under the shelf's lock.
fn forget_old(shelf: &Path) -> anyhow::Result<()> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(shelf)? {
        let entry = entry?;
        let is_entry = entry.file_type()?.is_dir() && entry.path().extension().is_none();
        if is_entry {
            entries.push((entry.metadata()?.modified()?, entry.path()));
        }
    }
    entries.sort();
    let old = entries.len().saturating_sub(KEPT);
    for (_, folder) in entries.into_iter().take(old) {
        // Go's module cache is read-only, and a program that still runs keeps its file: what cannot be deleted stays.
        if let Err(error) = fs::remove_dir_all(&folder) {
            run::step(format!("cannot delete {}: {error}", folder.display()));
        }
    }
    Ok(())
}

/// Holds an exclusive lock on a file until the handle is dropped.
pub fn lock(path: &Path) -> anyhow::Result<File> {
    let file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
    if file.try_lock().is_err() {
        run::step(format!(
            "waiting for another process that holds {}",
            path.display()
        ));
        file.lock()?;
    }
    Ok(file)
}

/// Debian packages and the program that shows one is there, whoever brought it (Docker's own packages, another
/// distribution). A package without a line here is asked for by name.
const SHOWN_BY: &[(&str, &str)] = &[
    ("busybox-static", "/bin/busybox"),
    ("ca-certificates", "/etc/ssl/certs/ca-certificates.crt"),
    ("containerd", "containerd"),
    ("default-jdk-headless", "javac"),
    ("docker.io", "dockerd"),
    ("gcc", "gcc"),
    ("iproute2", "ip"),
    ("iptables", "iptables"),
    ("jq", "jq"),
    ("kcat", "kcat"),
    ("maven", "mvn"),
    ("mmdebstrap", "mmdebstrap"),
    ("runc", "runc"),
];

/// Makes sure that packages of the operating system (by Debian's names) are there: installs them when root on Debian,
/// otherwise fails with the names of those that are missing.
pub fn need_packages(packages: &[&str]) -> anyhow::Result<()> {
    let there = |package: &str| match SHOWN_BY.iter().find(|(name, _)| *name == package) {
        Some((_, program)) => installed(program),
        None => run::output(Command::new("dpkg-query").args(["-W", "-f", "${Status}", package]))
            .is_ok_and(|status| status.ends_with(" installed")),
    };
    let missing: Vec<&str> = packages
        .iter()
        .copied()
        .filter(|package| !there(package))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !is_root()? || !Path::new("/etc/debian_version").exists() {
        bail!(
            "these packages of the operating system are missing (Debian's names): {}",
            missing.join(" ")
        );
    }
    let _lock = lock(&cache()?.join("apt.lock"))?;
    run::step(format!("installing Debian packages: {}", missing.join(" ")));
    let log = cache()?.join("apt.log");
    let apt = || {
        let mut apt = Command::new("apt-get");
        apt.env("DEBIAN_FRONTEND", "noninteractive").arg("-q");
        apt
    };
    run::logged(apt().arg("update"), &log)?;
    run::logged(
        apt()
            .args(["install", "-y", "--no-install-recommends"])
            .args(&missing),
        &log,
    )
}

/// Whether a program is in `PATH` (or where only root's `PATH` leads), or an absolute path exists.
pub fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|folder| folder.join(program).is_file())
}

pub fn is_root() -> anyhow::Result<bool> {
    Ok(fs::metadata("/proc/self").context("this needs Linux")?.uid() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_do_not_run_together() {
        assert_ne!(
            Inputs::new().text("ab").text("c").key(),
            Inputs::new().text("a").text("bc").key()
        );
        assert_eq!(Inputs::new().text("ab").key(), Inputs::new().text("ab").key());
    }

    #[test]
    fn the_newest_entries_are_kept() {
        let shelf = std::env::temp_dir().join(format!("diskless-shelf-{}", std::process::id()));
        for (age, name) in ["c", "a", "b"].iter().enumerate() {
            fs::create_dir_all(shelf.join(name).join("inner")).unwrap();
            let made = std::time::SystemTime::now() - std::time::Duration::from_secs(100 - age as u64);
            File::open(shelf.join(name)).unwrap().set_modified(made).unwrap();
        }
        fs::create_dir(shelf.join("d.partial")).unwrap();
        fs::write(shelf.join("lock"), "").unwrap();
        forget_old(&shelf).unwrap();
        let mut left: Vec<_> = fs::read_dir(&shelf)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        fs::remove_dir_all(&shelf).unwrap();
        assert_eq!(left, ["a", "b", "d.partial", "lock"]);
    }

    #[test]
    fn a_missing_program_is_seen() {
        assert!(installed("sh"));
        assert!(installed("/bin/sh"));
        assert!(!installed("no-such-program-anywhere"));
    }
}
