//! `cargo xtask cluster`: a Kubernetes of several nodes on this machine (kind), laid out as three zones and a
//! dedicated node for coordinators, with faults to inject.
//!
//! A cluster that `KUBECONFIG` names is used instead, for everything but faults of its nodes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use clap::{Parser, Subcommand};
use serde_json::Value;

use crate::image;
use crate::run;
use crate::tools::{self, Tool};

mod docker;
mod faults;
mod layout;
mod node_image;

use docker::Docker;
pub use layout::Layout;

/// Name of the cluster when none is given.
pub const DEFAULT_NAME: &str = "diskless";
/// Label and taint key of nodes that are for coordinators alone.
const ROLE: &str = "diskless.dev/role";
const ZONE: &str = "topology.kubernetes.io/zone";

#[derive(Parser)]
pub struct Args {
    #[command(subcommand)]
    command: Action,
    /// Name of the cluster.
    #[arg(long, global = true, default_value = DEFAULT_NAME)]
    name: String,
}

#[derive(Subcommand)]
enum Action {
    /// Start a cluster, or bring back the one that is there.
    Up(Layout),
    /// Remove the cluster, and the container engine if it was started for it.
    Down,
    /// Nodes, zones, and how to reach the cluster.
    Status,
    /// Load an image into every node: a name that `cargo xtask image` or the container engine knows, or an archive.
    Load { image: String },
    /// Cut the power of a node.
    Kill { node: String },
    /// Start a node that was killed.
    Start { node: String },
    /// Stop every process of a node where it is.
    Pause { node: String },
    /// Let a paused node go on.
    Unpause { node: String },
    /// Drop everything between two zones.
    Cut { zone: String, other: String },
    /// End all cuts.
    Heal,
    /// Bytes that each zone sent to each zone, counted at the sending node.
    ZoneBytes {
        /// Print JSON: `{"from": {"to": bytes}}`.
        #[arg(long)]
        json: bool,
        /// Count from zero again afterwards.
        #[arg(long)]
        reset: bool,
    },
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let name = &args.name;
    match args.command {
        Action::Up(layout) => {
            let cluster = Cluster::up(name, &layout)?;
            println!("export KUBECONFIG={}", cluster.kubeconfig.display());
            Ok(())
        }
        Action::Down => down(name),
        Action::Status => Cluster::find(name)?.status(),
        Action::Load { image } => Cluster::find(name)?.load(&archive_of(&image)?),
        Action::Kill { node } => Cluster::find(name)?.kill(&node),
        Action::Start { node } => Cluster::find(name)?.start(&node),
        Action::Pause { node } => Cluster::find(name)?.pause(&node, "pause"),
        Action::Unpause { node } => Cluster::find(name)?.pause(&node, "unpause"),
        Action::Cut { zone, other } => Cluster::find(name)?.cut(&zone, &other),
        Action::Heal => Cluster::find(name)?.heal(),
        Action::ZoneBytes { json, reset } => Cluster::find(name)?.zone_bytes(json, reset),
    }
}

/// A cluster that answers, or should.
pub struct Cluster {
    pub kubeconfig: PathBuf,
    /// Its nodes as containers; absent for a cluster of the user's.
    kind: Option<Kind>,
}

/// What we know of a cluster that we made.
struct Kind {
    name: String,
    docker: Docker,
}

impl Cluster {
    /// The user's cluster, or the one of that name that is up.
    pub fn find(name: &str) -> anyhow::Result<Self> {
        if let Some(kubeconfig) = users_kubeconfig(name)? {
            return Ok(Self {
                kubeconfig,
                kind: None,
            });
        }
        let docker = Docker::running()?;
        let Some(docker) = docker.filter(|docker| exists(docker, name)) else {
            bail!("there is no cluster {name:?}: start one with `cargo xtask cluster up`, or set KUBECONFIG");
        };
        Ok(Self {
            kubeconfig: state(name)?.join("kubeconfig"),
            kind: Some(Kind {
                name: name.to_owned(),
                docker,
            }),
        })
    }

    /// The user's cluster, or the one of that name, which is started when it is not there.
    pub fn up(name: &str, layout: &Layout) -> anyhow::Result<Self> {
        if let Some(kubeconfig) = users_kubeconfig(name)? {
            run::step(format!(
                "using the cluster of KUBECONFIG ({})",
                kubeconfig.display()
            ));
            let cluster = Self {
                kubeconfig,
                kind: None,
            };
            run::quiet(cluster.kubectl()?.args(["get", "--raw", "/readyz"]))?;
            return Ok(cluster);
        }
        let config = layout.kind_config()?;
        let state = state(name)?;
        let _lock = tools::lock(&state.join("lock"))?;
        let docker = Docker::start()?;
        let kind = Kind {
            name: name.to_owned(),
            docker,
        };
        let kubeconfig = state.join("kubeconfig");
        if exists(&kind.docker, name) {
            run::step(format!("cluster {name} is there"));
            kind.start_stopped()?;
            run::quiet(
                kind.command()?
                    .args(["export", "kubeconfig", "--name", name, "--kubeconfig"])
                    .arg(&kubeconfig),
            )?;
        } else {
            let image = node_image::ready(&kind.docker)?;
            run::step(format!(
                "starting cluster {name}: one control plane, {} workers",
                layout.workers
            ));
            let file = state.join("kind.json");
            fs::write(&file, serde_json::to_vec_pretty(&config)?)?;
            let _ = fs::remove_file(state.join("cuts.json"));
            let mut create = kind.command()?;
            create.args([
                "create", "cluster", "--name", name, "--image", &image, "--wait", "180s", "--config",
            ]);
            create.arg(&file).arg("--kubeconfig").arg(&kubeconfig);
            run::logged(&mut create, &state.join("create.log"))?;
        }
        let cluster = Self {
            kubeconfig,
            kind: Some(kind),
        };
        run::step("waiting for its nodes, DNS and volumes");
        cluster.wait()?;
        cluster.watch_zones()?;
        run::step("the cluster is ready");
        Ok(cluster)
    }

    /// `kubectl` for this cluster.
    pub fn kubectl(&self) -> anyhow::Result<Command> {
        let mut kubectl = Command::new(tools::path(Tool::Kubectl)?);
        kubectl.env("KUBECONFIG", &self.kubeconfig);
        Ok(kubectl)
    }

    /// The answer of `kubectl … -o json`.
    pub fn get(&self, args: &[&str]) -> anyhow::Result<Value> {
        Ok(serde_json::from_str(&run::output(
            self.kubectl()?.arg("get").args(args).args(["-o", "json"]),
        )?)?)
    }

    fn wait(&self) -> anyhow::Result<()> {
        run::quiet(self.kubectl()?.args([
            "wait",
            "nodes",
            "--all",
            "--for=condition=Ready",
            "--timeout=180s",
        ]))?;
        for (namespace, deployment) in [
            ("kube-system", "coredns"),
            ("local-path-storage", "local-path-provisioner"),
        ] {
            let deployment = format!("deployment/{deployment}");
            run::quiet(self.kubectl()?.args([
                "-n",
                namespace,
                "rollout",
                "status",
                &deployment,
                "--timeout=180s",
            ]))?;
        }
        Ok(())
    }

    /// Loads the images of an archive into every node. For a cluster of the user's they are pushed to the registry
    /// that `DISKLESS_REGISTRY` names (`host/path`), which the cluster pulls from.
    pub fn load(&self, archive: &Path) -> anyhow::Result<()> {
        let names = image::layer::names(archive)?;
        if let Some(kind) = &self.kind {
            run::step(format!("loading {} into every node", names.join(", ")));
            let mut load = kind.command()?;
            return run::quiet(
                load.args(["load", "image-archive", "--name", &kind.name])
                    .arg(archive),
            );
        }
        let Some(registry) = registry() else {
            bail!(
                "the cluster of KUBECONFIG pulls its images itself: set DISKLESS_REGISTRY to a registry (host/path) that \
                 it pulls from and `docker push` may write to"
            );
        };
        let docker = Docker::start()?;
        run::quiet(docker.command().args(["load", "-q", "-i"]).arg(archive))?;
        for name in names {
            let remote = format!("{registry}/{name}");
            run::step(format!("pushing {remote}"));
            run::quiet(docker.command().args(["tag", &name, &remote]))?;
            run::quiet(docker.command().args(["push", "-q", &remote]))?;
        }
        Ok(())
    }

    /// How pods of this cluster name an image that was loaded.
    pub fn image(&self, name: &str) -> String {
        match registry().filter(|_| self.kind.is_none()) {
            Some(registry) => format!("{registry}/{name}"),
            None => name.to_owned(),
        }
    }

    fn status(&self) -> anyhow::Result<()> {
        println!("export KUBECONFIG={}", self.kubeconfig.display());
        if let Some(docker) = self
            .kind
            .as_ref()
            .map(|kind| &kind.docker)
            .filter(|docker| docker.is_own())
        {
            let host = docker.command();
            for (name, value) in host.get_envs() {
                if let Some(value) = value {
                    println!("export {}={}", name.to_string_lossy(), value.to_string_lossy());
                }
            }
        }
        let cuts = self.cuts()?;
        if !cuts.is_empty() {
            println!(
                "cut: {}",
                cuts.iter()
                    .map(|(a, b)| format!("{a} from {b}"))
                    .collect::<Vec<_>>()
                    .join(", ")
            );
        }
        run::run(self.kubectl()?.args(["get", "nodes", "-L", ZONE, "-L", ROLE]))
    }

    /// Whether `cluster up` made it.
    pub fn is_ours(&self) -> bool {
        self.kind.is_some()
    }

    fn kind(&self) -> anyhow::Result<&Kind> {
        self.kind.as_ref().context(
            "faults of nodes need a cluster of `cargo xtask cluster up`, but KUBECONFIG names another: unset it",
        )
    }
}

impl Kind {
    fn command(&self) -> anyhow::Result<Command> {
        let mut kind = Command::new(tools::path(Tool::Kind)?);
        self.docker
            .reach(&mut kind)
            .env("KIND_EXPERIMENTAL_PROVIDER", "docker");
        Ok(kind)
    }

    /// Starts nodes that are not running, as after a restart of the machine.
    fn start_stopped(&self) -> anyhow::Result<()> {
        let mut list = self.docker.command();
        list.args([
            "ps",
            "-q",
            "--filter",
            "status=exited",
            "--filter",
            &label(&self.name),
        ]);
        for container in run::output(list.arg("-a"))?.lines() {
            run::quiet(self.docker.command().args(["start", container]))?;
        }
        Ok(())
    }
}

/// Removes the cluster of that name, if it is there, and our own container engine when no cluster is left in it.
pub fn down(name: &str) -> anyhow::Result<()> {
    if users_kubeconfig(name)?.is_some() {
        bail!(
            "KUBECONFIG names a cluster that `cargo xtask cluster` did not make: unset it to remove {name:?}"
        );
    }
    let Some(docker) = Docker::running()? else {
        return Ok(());
    };
    let kind = Kind {
        name: name.to_owned(),
        docker,
    };
    if exists(&kind.docker, name) {
        run::step(format!("removing cluster {name}"));
        let kubeconfig = state(name)?.join("kubeconfig");
        run::quiet(
            kind.command()?
                .args(["delete", "cluster", "--name", name, "--kubeconfig"])
                .arg(kubeconfig),
        )?;
        fs::remove_dir_all(state(name)?)?;
    }
    if kind.docker.is_own() && run::output(kind.docker.command().args(["ps", "-aq"]))?.is_empty() {
        docker::stop_own()?;
    }
    Ok(())
}

/// What we keep about a cluster of ours.
fn state(name: &str) -> anyhow::Result<PathBuf> {
    if name.is_empty()
        || !name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    {
        bail!("--name must consist of lower-case letters, digits and dashes: {name:?}");
    }
    let folder = tools::cache()?.join("clusters").join(name);
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// The file that `KUBECONFIG` names, unless it is the one of our own cluster.
fn users_kubeconfig(name: &str) -> anyhow::Result<Option<PathBuf>> {
    let Some(path) = std::env::var_os("KUBECONFIG").filter(|path| !path.is_empty()) else {
        return Ok(None);
    };
    let path = PathBuf::from(path);
    Ok((path != state(name)?.join("kubeconfig")).then_some(path))
}

fn registry() -> Option<String> {
    std::env::var("DISKLESS_REGISTRY")
        .ok()
        .filter(|registry| !registry.is_empty())
}

fn label(name: &str) -> String {
    format!("label=io.x-k8s.kind.cluster={name}")
}

fn exists(docker: &Docker, name: &str) -> bool {
    let mut list = docker.command();
    list.args(["ps", "-aq", "--filter", &label(name)]);
    run::output(&mut list).is_ok_and(|containers| !containers.is_empty())
}

/// The archive of an image that a person named, by file or by name.
fn archive_of(image: &str) -> anyhow::Result<PathBuf> {
    let built = image::archive(image)?;
    if Path::new(image).is_file() {
        return Ok(image.into());
    }
    if built.is_file() {
        return Ok(built);
    }
    match Docker::running()? {
        Some(docker) if docker.has(image) => {
            run::quiet(docker.command().args(["save", "-o"]).arg(&built).arg(image))?;
            Ok(built)
        }
        _ => bail!(
            "no image {image:?}: build ours with `cargo xtask image`, or name an archive or an image of Docker"
        ),
    }
}
