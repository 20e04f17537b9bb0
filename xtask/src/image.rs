//! `cargo xtask image`: the container images, written as archives without a container engine.
//!
//! An image is the program, the libraries it is linked to, CA certificates and the folders it writes to: no shell, no
//! package manager, user 65532. Users with a registry have the `Dockerfile` at the repository's root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use clap::{Parser, ValueEnum};
use sha2::{Digest, Sha256};

use crate::cluster;
use crate::run;
use crate::tools::{self, Tool};

pub mod layer;

use layer::{Image, Layer};

/// The user that every image runs as.
const USER: u64 = 65532;

#[derive(Parser)]
pub struct Args {
    /// Only these; without a name broker and operator, and with `--load` all.
    images: Vec<Kind>,
    /// Tag of the broker's and operator's images.
    #[arg(long, default_value = DEFAULT_TAG)]
    tag: String,
    /// Load them into the cluster of `cargo xtask cluster up`.
    #[arg(long)]
    load: bool,
    /// Name of that cluster.
    #[arg(long, default_value = cluster::DEFAULT_NAME)]
    name: String,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let kinds = match (args.images.as_slice(), args.load) {
        ([], true) => Kind::value_variants(),
        ([], false) => &[Kind::Broker, Kind::Operator],
        (kinds, _) => kinds,
    };
    let images = build(kinds, &args.tag)?;
    for built in &images {
        println!(
            "{:<32} {:>5.1} MB compressed  {}",
            built.name,
            built.megabytes()?,
            built.archive.display()
        );
    }
    if args.load {
        let cluster = cluster::Cluster::find(&args.name)?;
        for built in &images {
            cluster.load(&built.archive)?;
        }
    }
    Ok(())
}

/// Tag of images built from a work tree.
pub const DEFAULT_TAG: &str = "dev";

/// What there are images of.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    Broker,
    Operator,
    /// The S3 server of demo and tests.
    S3,
    /// kcat and a shell, for clients that run as pods.
    Client,
    /// PostgreSQL and a shell, for metadata logs in the cluster tests.
    Postgres,
}

impl Kind {
    /// Name and tag of its image; those of other people's programs carry their version.
    pub fn image(self, tag: &str) -> String {
        match self {
            Self::Broker => format!("diskless-broker:{tag}"),
            Self::Operator => format!("diskless-operator:{tag}"),
            Self::S3 => "diskless-s3:1.8.0".to_owned(),
            Self::Client => "diskless-client:1.7.1".to_owned(),
            // Whatever version this machine has.
            Self::Postgres => "diskless-postgres:debian".to_owned(),
        }
    }
}

/// An image and the archive that holds it.
pub struct Built {
    pub name: String,
    pub archive: PathBuf,
}

impl Built {
    /// Size of the archive in units of 10^6 bytes.
    fn megabytes(&self) -> anyhow::Result<f64> {
        Ok(fs::metadata(&self.archive)?.len() as f64 / 1e6)
    }
}

/// Where the archive of an image is written.
pub fn archive(name: &str) -> anyhow::Result<PathBuf> {
    let folder = run::target_dir()?.join("images");
    fs::create_dir_all(&folder)?;
    Ok(folder.join(format!("{}.tar", name.replace([':', '/'], "_"))))
}

/// Builds what the images hold (ours in the release profile) and writes their archives.
pub fn build(kinds: &[Kind], tag: &str) -> anyhow::Result<Vec<Built>> {
    compile(kinds)?;
    run::step("writing images");
    kinds
        .iter()
        .map(|kind| write(&kind.image(tag), layer(*kind)?, entrypoint(*kind)))
        .collect()
}

fn compile(kinds: &[Kind]) -> anyhow::Result<()> {
    if !kinds
        .iter()
        .any(|kind| matches!(kind, Kind::Broker | Kind::Operator))
    {
        return Ok(());
    }
    run::step("building broker and operator (release profile)");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    // Always both: cargo unifies features over what is built at once, so one alone is minutes of another build.
    cargo
        .current_dir(run::root())
        .args(["build", "--release", "--quiet", "-p", "broker", "-p", "operator"]);
    run::run(&mut cargo)
}

/// A tag that changes with broker and operator (built here), so that a cluster that runs an older build is upgraded.
pub fn content_tag() -> anyhow::Result<String> {
    compile(&[Kind::Broker, Kind::Operator])?;
    let mut hash = Sha256::new();
    for program in [Kind::Broker, Kind::Operator] {
        hash.update(fs::read(program_path(program)?)?);
    }
    let hex: String = hash
        .finalize()
        .iter()
        .take(4)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Ok(format!("{DEFAULT_TAG}-{hex}"))
}

/// Where cargo puts a program of ours.
fn program_path(kind: Kind) -> anyhow::Result<PathBuf> {
    let name = Path::new(entrypoint(kind))
        .file_name()
        .context("an entry point without a name")?;
    Ok(run::target_dir()?.join("release").join(name))
}

fn entrypoint(kind: Kind) -> &'static str {
    match kind {
        Kind::Broker => "/usr/local/bin/diskless-broker",
        Kind::Operator => "/usr/local/bin/diskless-operator",
        Kind::S3 => "/usr/local/bin/versitygw",
        Kind::Client | Kind::Postgres => "/bin/sh",
    }
}

fn layer(kind: Kind) -> anyhow::Result<Layer> {
    let mut layer = base()?;
    match kind {
        Kind::Broker => {
            layer.program(&program_path(kind)?, entrypoint(kind))?;
            layer.folder("/var/lib/diskless", 0o750, (USER, USER));
        }
        Kind::Operator => layer.program(&program_path(kind)?, entrypoint(kind))?,
        Kind::S3 => layer.program(&tools::path(Tool::Versitygw)?, entrypoint(kind))?,
        Kind::Client => {
            tools::need_packages(&["kcat", "busybox-static"])?;
            layer.program(&find("kcat")?, "/usr/local/bin/kcat")?;
            shell(&mut layer)?;
        }
        Kind::Postgres => {
            tools::need_packages(&["postgresql", "busybox-static"])?;
            shell(&mut layer)?;
            postgres(&mut layer)?;
        }
    }
    Ok(layer)
}

/// A shell and the programs that scripts expect.
fn shell(layer: &mut Layer) -> anyhow::Result<()> {
    layer.program(Path::new("/bin/busybox"), "/bin/busybox")?;
    let applets = run::output(Command::new("/bin/busybox").arg("--list"))?;
    for applet in applets.lines().filter(|applet| *applet != "busybox") {
        layer.link(format!("/bin/{applet}"), "busybox");
    }
    Ok(())
}

/// The newest PostgreSQL of this machine: the server, what it loads, and psql.
fn postgres(layer: &mut Layer) -> anyhow::Result<()> {
    let installed = fs::read_dir("/usr/lib/postgresql")?;
    let version = installed
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok()?.parse::<u32>().ok())
        .max()
        .context("no version of PostgreSQL in /usr/lib/postgresql")?;
    let home = PathBuf::from(format!("/usr/lib/postgresql/{version}"));
    for program in ["postgres", "initdb", "psql"] {
        let path = home.join("bin").join(program);
        layer.program(&path, &path)?;
        layer.link(format!("/usr/local/bin/{program}"), path);
    }
    for library in ["plpgsql.so", "dict_snowball.so"] {
        let path = home.join("lib").join(library);
        layer.program(&path, &path)?;
    }
    let share = PathBuf::from(format!("/usr/share/postgresql/{version}"));
    for folder in ["", "extension", "timezonesets", "tsearch_data"] {
        for entry in fs::read_dir(share.join(folder))? {
            let path = entry?.path();
            if path.is_file() {
                layer.file(&path, &path)?;
            }
        }
    }
    Ok(())
}

/// What every image has: users, name resolution, CA certificates, a folder for temporary files.
fn base() -> anyhow::Result<Layer> {
    tools::need_packages(&["ca-certificates"])?;
    let mut layer = Layer::default();
    layer.text(
        "/etc/passwd",
        &format!("root:x:0:0:root:/:\nnonroot:x:{USER}:{USER}:nonroot:/tmp:\n"),
    );
    layer.text("/etc/group", &format!("root:x:0:\nnonroot:x:{USER}:\n"));
    layer.text("/etc/nsswitch.conf", "hosts: files dns\n");
    layer.folder("/tmp", 0o1777, (0, 0));
    let certificates = [
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/pki/tls/certs/ca-bundle.crt", // Fedora and its relatives
        "/etc/ssl/ca-bundle.pem",           // SUSE
    ];
    match certificates.iter().map(Path::new).find(|path| path.exists()) {
        Some(path) => layer.file(path, "/etc/ssl/certs/ca-certificates.crt")?,
        None => bail!("no CA certificates at {}", certificates.join(", ")),
    }
    Ok(layer)
}

fn write(name: &str, layer: Layer, entrypoint: &str) -> anyhow::Result<Built> {
    let layer = layer.seal(6)?;
    let archive = archive(name)?;
    // By way of a second name: another process may be reading the archive.
    let partial = archive.with_extension(format!("{}.partial", std::process::id()));
    let user = format!("{USER}:{USER}");
    let image = Image {
        name: name.to_owned(),
        layer: &layer,
        entrypoint: vec![entrypoint.to_owned()],
        user: &user,
        env: &["SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"],
        stop_signal: None,
    };
    layer::save(&partial, &[image])?;
    fs::rename(&partial, &archive)?;
    Ok(Built {
        name: name.to_owned(),
        archive,
    })
}

fn find(program: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|candidate| candidate.is_file())
        .with_context(|| format!("{program} is not in PATH"))
}
