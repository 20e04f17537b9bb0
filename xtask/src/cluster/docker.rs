//! The container engine below kind: the user's when it answers, otherwise a daemon of our own (a container without
//! an init system, as in CI, has Docker's packages but nobody who starts it).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::json;

use crate::run;
use crate::tools;

/// Bridge of the cluster's network in our own daemon.
const BRIDGE: &str = "br-kind";
/// Addresses that our own daemon gives out, all within 172.30.0.0/15.
const DEFAULT_BRIDGE: &str = "172.30.0.1/24";
const KIND_SUBNET: &str = "172.31.0.0/24";

#[derive(Clone)]
pub struct Docker {
    /// `DOCKER_HOST` of our own daemon; the user's settings hold when absent.
    own: Option<String>,
}

impl Docker {
    /// The daemon that answers now.
    pub fn running() -> anyhow::Result<Option<Self>> {
        let own = Self {
            own: Some(format!("unix://{}", state()?.join("docker.sock").display())),
        };
        let users = Self { own: None };
        Ok([own, users].into_iter().find(Self::answers))
    }

    /// The daemon that answers, started first when none does.
    pub fn start() -> anyhow::Result<Self> {
        match Self::running()? {
            Some(docker) => Ok(docker),
            None => start_own(),
        }
    }

    /// Sets which daemon a program talks to.
    pub fn reach<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        if let Some(host) = &self.own {
            command.env("DOCKER_HOST", host).env_remove("DOCKER_CONTEXT");
        }
        command
    }

    /// The `docker` client.
    pub fn command(&self) -> Command {
        let mut docker = Command::new("docker");
        self.reach(&mut docker);
        docker
    }

    pub fn is_own(&self) -> bool {
        self.own.is_some()
    }

    fn answers(&self) -> bool {
        run::succeeds(self.command().arg("info"))
    }

    /// Loads an archive unless the daemon has an image of that name.
    pub fn load(&self, name: &str, archive: &Path) -> anyhow::Result<()> {
        if self.has(name) {
            return Ok(());
        }
        run::quiet(self.command().args(["load", "-q", "-i"]).arg(archive))
    }

    /// Removes the other images of the same repository, except those in use.
    pub fn remove_older(&self, name: &str) -> anyhow::Result<()> {
        let repository = name.split(':').next().unwrap_or(name);
        let mut list = self.command();
        list.args(["image", "ls", "--format", "{{.Repository}}:{{.Tag}}", repository]);
        for older in run::output(&mut list)?.lines().filter(|image| *image != name) {
            run::succeeds(self.command().args(["image", "rm", older]));
        }
        Ok(())
    }

    pub fn has(&self, image: &str) -> bool {
        run::succeeds(self.command().args(["image", "inspect", image]))
    }
}

fn state() -> anyhow::Result<PathBuf> {
    Ok(tools::cache()?.join("docker"))
}

fn start_own() -> anyhow::Result<Docker> {
    tools::need_packages(&["docker.io", "containerd", "runc", "iptables", "iproute2"])?;
    // Installing Docker starts it where there is an init system.
    if let Some(docker) = Docker::running()? {
        return Ok(docker);
    }
    if !tools::is_root()? {
        bail!("no container engine answers (`docker info`); start Docker, or run this as root to start one");
    }
    run::step("starting a container engine");
    let state = state()?;
    fs::create_dir_all(&state)?;
    let socket = format!("unix://{}", state.join("docker.sock").display());
    let config = state.join("daemon.json");
    let mut settings = json!({
        "hosts": [socket],
        "pidfile": state.join("docker.pid"),
        "data-root": state.join("data"),
        "exec-root": state.join("exec"),
        "storage-driver": "overlay2",
        "exec-opts": ["native.cgroupdriver=cgroupfs"],
        "bip": DEFAULT_BRIDGE,
        "default-address-pools": [{"base": "172.31.0.0/16", "size": 24}],
        "ip6tables": false,
        "ipv6": false,
        "log-driver": "json-file",
    });
    if let Some(settings) = settings.as_object_mut() {
        // Containers belong below our own memory cgroup (version 1), so that they stay accounted to it.
        if let Some(parent) = memory_cgroup()? {
            settings.insert(
                "cgroup-parent".into(),
                format!("{}/kind", parent.trim_end_matches('/')).into(),
            );
        }
        if lacks_sys_resource()? {
            let wrapper = run::root().join("e2e/kind/runc-caps");
            settings.insert("runtimes".into(), json!({"runc-caps": {"path": wrapper}}));
            settings.insert("default-runtime".into(), "runc-caps".into());
        }
    }
    fs::write(&config, serde_json::to_vec_pretty(&settings)?)?;
    if own_pid()?.is_none() {
        // A pid file that a killed daemon left may name another process by now, and dockerd would refuse to start.
        let _ = fs::remove_file(state.join("docker.pid"));
    }
    prepare_kernel(&state)?;
    let log = fs::File::create(state.join("dockerd.log"))?;
    run::run(
        Command::new("setsid")
            .args(["--fork", "dockerd", "--config-file"])
            .arg(&config)
            .stdin(std::process::Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log),
    )?;
    let docker = Docker { own: Some(socket) };
    for _ in 0..300 {
        if docker.answers() {
            network(&docker)?;
            return Ok(docker);
        }
        sleep(Duration::from_millis(100));
    }
    bail!(
        "the container engine did not start within 30 s: see {}",
        state.join("dockerd.log").display()
    )
}

/// Path of our cgroup in the hierarchy of the version 1 memory controller.
fn memory_cgroup() -> anyhow::Result<Option<String>> {
    let text = fs::read_to_string("/proc/self/cgroup")?;
    Ok(text
        .lines()
        .find_map(|line| line.split_once(":memory:").map(|(_, path)| path.to_owned())))
}

/// Docker asks for every capability for a privileged container, which fails for a root without this one.
fn lacks_sys_resource() -> anyhow::Result<bool> {
    const SYS_RESOURCE: u32 = 24;
    let status = fs::read_to_string("/proc/self/status")?;
    let bounding = status
        .lines()
        .find_map(|line| line.strip_prefix("CapBnd:"))
        .context("no CapBnd in /proc/self/status")?;
    Ok(u64::from_str_radix(bounding.trim(), 16)? >> SYS_RESOURCE & 1 == 0)
}

/// Settings of the whole machine that we or the nodes' kubelets change, below `/proc/sys`.
const KERNEL_SETTINGS: [&str; 9] = [
    "net/ipv4/ip_forward",
    "fs/inotify/max_user_instances",
    "fs/inotify/max_user_watches",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
];

/// Makes the kernel ready for several nodes, and notes what it was like before.
fn prepare_kernel(state: &Path) -> anyhow::Result<()> {
    let note = state.join("kernel.json");
    // A note that is there tells of the time before a daemon that was killed.
    if !note.exists() {
        let read = |name: &&str| Some((name.to_string(), fs::read_to_string(setting(name)).ok()?));
        let values: BTreeMap<String, String> = KERNEL_SETTINGS.iter().filter_map(read).collect();
        fs::write(&note, serde_json::to_vec(&values)?)?;
    }
    fs::create_dir_all("/lib/modules")?; // kind mounts it into its nodes
    // Docker would set the policy of FORWARD to DROP if it had to turn this on itself.
    fs::write(setting("net/ipv4/ip_forward"), "1")?;
    for (name, least) in [
        ("fs/inotify/max_user_instances", 8192_u64),
        ("fs/inotify/max_user_watches", 1_048_576),
    ] {
        if fs::read_to_string(setting(name))?.trim().parse::<u64>()? < least {
            fs::write(setting(name), least.to_string())?;
        }
    }
    Ok(())
}

fn restore_kernel(state: &Path) -> anyhow::Result<()> {
    let note = state.join("kernel.json");
    let values: BTreeMap<String, String> = serde_json::from_slice(&fs::read(&note)?)?;
    for (name, value) in values {
        fs::write(setting(&name), value.trim()).with_context(|| format!("cannot set {name} back"))?;
    }
    fs::remove_file(note)?;
    Ok(())
}

fn setting(name: &str) -> PathBuf {
    Path::new("/proc/sys").join(name)
}

/// kind takes a network named "kind" as it is: this one has IPv4 only and a bridge of a known name.
fn network(docker: &Docker) -> anyhow::Result<()> {
    if !run::succeeds(docker.command().args(["network", "inspect", "kind"])) {
        let bridge = format!("com.docker.network.bridge.name={BRIDGE}");
        let mut create = docker.command();
        create.args([
            "network",
            "create",
            "-d",
            "bridge",
            "-o",
            &bridge,
            "--subnet",
            KIND_SUBNET,
            "kind",
        ]);
        run::quiet(&mut create)?;
    }
    // Nothing in the cluster needs the outside: what a test reaches must be in the cluster.
    let rule = [
        "DOCKER-USER",
        "-i",
        BRIDGE,
        "!",
        "-o",
        BRIDGE,
        "-m",
        "conntrack",
        "--ctstate",
        "NEW",
        "-j",
        "DROP",
    ];
    if !run::succeeds(Command::new("iptables").args(["-w", "-C"]).args(rule)) {
        run::quiet(Command::new("iptables").args(["-w", "-I"]).args(rule))?;
    }
    Ok(())
}

/// The process of our daemon, if it lives.
fn own_pid() -> anyhow::Result<Option<String>> {
    let state = state()?;
    let Ok(pid) = fs::read_to_string(state.join("docker.pid")) else {
        return Ok(None);
    };
    let pid = pid.trim().to_owned();
    let ours = fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| {
        String::from_utf8_lossy(&line).contains(&*state.join("daemon.json").to_string_lossy())
    });
    Ok(ours.then_some(pid))
}

/// Ends our daemon, if there is one, and takes away the bridges, firewall rules and kernel
/// settings that it leaves behind.
pub fn stop_own() -> anyhow::Result<()> {
    let Some(pid) = own_pid()? else { return Ok(()) };
    run::step("stopping the container engine");
    run::quiet(Command::new("kill").arg(&pid))?;
    while Path::new("/proc").join(&pid).exists() {
        sleep(Duration::from_millis(100));
    }
    for link in [BRIDGE, "docker0"] {
        run::succeeds(Command::new("ip").args(["link", "del", link]));
    }
    for table in ["filter", "nat"] {
        let rules = run::output(Command::new("iptables-save").args(["-t", table]))?;
        let iptables =
            |args: &[&str]| run::succeeds(Command::new("iptables").args(["-w", "-t", table]).args(args));
        for rule in rules.lines().filter(|line| is_dockers(line)) {
            let words: Vec<&str> = rule.split_whitespace().skip(1).collect();
            iptables(&[&["-D"], words.as_slice()].concat());
        }
        let chains: Vec<&str> = rules
            .lines()
            .filter_map(|line| line.strip_prefix(":DOCKER").map(|_| line))
            .filter_map(|line| line.split_whitespace().next()?.strip_prefix(':'))
            .collect();
        for operation in ["-F", "-X"] {
            for chain in &chains {
                iptables(&[operation, chain]);
            }
        }
    }
    restore_kernel(&state()?)
}

/// Whether a line of `iptables-save` is a rule that the daemon made for its bridges.
fn is_dockers(line: &str) -> bool {
    line.starts_with("-A ")
        && ["DOCKER", BRIDGE, "docker0", "172.30.", "172.31."]
            .iter()
            .any(|mark| line.contains(mark))
}
