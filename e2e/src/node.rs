//! Real broker and coordinator processes on loopback.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tempfile::TempDir;

use crate::netns::{Network, Place};

/// How long a node may take to become ready; machines under test load are slow.
const READY: Duration = Duration::from_secs(60);

/// Where the binaries under test are: `$DISKLESS_BIN_DIR`, else the release build, else the debug build.
pub fn binary(name: &str) -> anyhow::Result<PathBuf> {
    let target = target_dir();
    let places = match std::env::var_os("DISKLESS_BIN_DIR") {
        Some(dir) => vec![PathBuf::from(dir)],
        None => vec![target.join("release"), target.join("debug")],
    };
    let found = places.iter().map(|dir| dir.join(name)).find(|path| path.exists());
    found.with_context(|| format!("{name} is not built: run cargo build --release -p broker -p operator"))
}

fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => PathBuf::from(dir),
        None => crate::root().join("target"),
    }
}

/// A port that nobody listens on. Below those that the system gives to outgoing connections, so that none of these
/// takes it before its server starts. Each process of tests has a stretch of its own, and listens on its first port as long as it lives.
pub fn free_port() -> u16 {
    static HELD: OnceLock<TcpListener> = OnceLock::new();
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const STRETCHES: u32 = 50;
    const STRETCH: u16 = 400;
    let listen = |port| TcpListener::bind(("127.0.0.1", port));
    let held = HELD.get_or_init(|| {
        let mut stretches = (0..STRETCHES).map(|n| (std::process::id() + n) % STRETCHES);
        let held = stretches.find_map(|n| listen(10_000 + u16::try_from(n).ok()? * STRETCH).ok());
        held.expect("a stretch of ports that no other process has")
    });
    let first = held.local_addr().expect("a listener has an address").port();
    let mut ports = (1..STRETCH).map(|_| first + 1 + NEXT.fetch_add(1, Ordering::Relaxed) % (STRETCH - 1));
    let free = ports.find(|port| listen(*port).is_ok());
    free.unwrap_or_else(|| panic!("no free port between {first} and {}", first + STRETCH))
}

/// One process of the cluster.
pub struct Node {
    /// Its id in the cluster.
    pub id: i32,
    /// Zone it runs in.
    pub zone: String,
    /// Address that it listens on.
    pub host: String,
    /// Where it runs, if not in the network of this process.
    pub place: Option<Place>,
    /// Port for clients of unknown zone (brokers).
    pub port: u16,
    /// Port for clients of each zone (brokers).
    pub zone_ports: BTreeMap<String, u16>,
    /// Port of `/healthz`, `/readyz`, `/metrics`.
    pub admin_port: u16,
    internal_port: u16,
    /// Holds the SQLite views and caches.
    pub data_dir: PathBuf,
    config: PathBuf,
    log: PathBuf,
    environment: Vec<(String, String)>,
    /// File with how far its wall clock is off.
    clock: Option<PathBuf>,
    child: Option<Child>,
}

impl Node {
    /// Starts the process (again).
    pub fn start(&mut self) -> anyhow::Result<()> {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&self.log)?;
        let program = binary("diskless-broker")?;
        let mut command = match &self.place {
            None => Command::new(program),
            Some(place) => {
                // It becomes the program: signals reach it.
                let mut command = Command::new("ip");
                command.args(["netns", "exec", &place.namespace]).arg(program);
                command
            }
        };
        command
            .arg("serve")
            .arg("--config")
            .arg(&self.config)
            .stdin(Stdio::null());
        command
            .env("RUST_LOG", "info")
            .envs(self.environment.iter().cloned());
        let child = command
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start diskless-broker")?;
        self.child = Some(child);
        Ok(())
    }

    /// Waits until `/readyz` says yes.
    pub fn wait_ready(&mut self) -> anyhow::Result<()> {
        let start = Instant::now();
        while start.elapsed() < READY {
            if self.is_ready() {
                return Ok(());
            }
            if let Some(status) = self.ended()? {
                bail!("node {} ended with {status}:\n{}", self.id, self.last_log());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!(
            "node {} is not ready after {READY:?}:\n{}",
            self.id,
            self.last_log()
        );
    }

    /// What `/readyz` says.
    pub fn is_ready(&self) -> bool {
        http_get_from(&self.host, self.admin_port, "/readyz").is_ok_and(|(status, _)| status == 200)
    }

    /// Its exit status if it has ended by itself.
    pub fn ended(&mut self) -> anyhow::Result<Option<std::process::ExitStatus>> {
        match &mut self.child {
            Some(child) => Ok(child.try_wait()?),
            None => Ok(None),
        }
    }

    /// `host:port` for clients of unknown zone.
    pub fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// `host:port` of its internal listener.
    pub fn internal_address(&self) -> String {
        format!("{}:{}", self.host, self.internal_port)
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Removes its views and caches; a broker may have none.
    pub fn delete_data(&self) -> anyhow::Result<()> {
        match std::fs::remove_dir_all(&self.data_dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// SIGTERM; gives the exit status.
    pub fn stop(&mut self) -> anyhow::Result<std::process::ExitStatus> {
        self.signal("TERM")?;
        let mut child = self.child.take().context("not running")?;
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(60) {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = child.kill();
        let _ = child.wait();
        bail!(
            "node {} did not end within 60 s of SIGTERM:\n{}",
            self.id,
            self.last_log()
        );
    }

    /// Sends a signal by name (`STOP`, `CONT`, `TERM`).
    pub fn signal(&self, name: &str) -> anyhow::Result<()> {
        let child = self.child.as_ref().context("not running")?;
        let status = Command::new("kill")
            .arg(format!("-{name}"))
            .arg(child.id().to_string())
            .status()?;
        if !status.success() {
            bail!("kill -{name} failed");
        }
        Ok(())
    }

    /// Sets its wall clock to true time plus `seconds`, within a second; its monotonic clock does not mind. Needs
    /// [`Plan::clocks`].
    pub fn set_clock(&self, seconds: i64) -> anyhow::Result<()> {
        let clock = self.clock.as_ref().context("its clock cannot be set")?;
        Ok(std::fs::write(clock, format!("{seconds:+}"))?)
    }

    /// Process id while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// The value of a metric without labels, or the sum over its labels.
    pub fn metric(&self, name: &str) -> anyhow::Result<f64> {
        let (_, body) = http_get_from(&self.host, self.admin_port, "/metrics")?;
        let mut sum = None;
        for line in body.lines().filter(|line| line.starts_with(name)) {
            let rest = line.get(name.len()..).unwrap_or_default();
            if rest.starts_with('{') || rest.starts_with(' ') {
                let value: f64 = line.rsplit(' ').next().unwrap_or_default().parse()?;
                sum = Some(sum.unwrap_or(0.0) + value);
            }
        }
        sum.with_context(|| format!("no metric {name}"))
    }

    /// Resident memory, bytes.
    pub fn resident_bytes(&self) -> anyhow::Result<u64> {
        let pid = self.pid().context("not running")?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS:"))
            .context("no VmRSS")?;
        let kib: u64 = line.split_whitespace().nth(1).context("no number")?.parse()?;
        Ok(kib * 1024)
    }

    /// All it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn last_log(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().rev().take(30).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A cluster of processes over one object store.
pub struct Cluster {
    /// Brokers first, in the order of their ids.
    pub brokers: Vec<Node>,
    /// The coordinators.
    pub coordinators: Vec<Node>,
    dir: TempDir,
}

/// What to start.
pub struct Plan {
    /// Object store URL; `None`: a folder of the cluster's own.
    pub store: Option<String>,
    /// One broker per entry.
    pub broker_zones: Vec<&'static str>,
    /// Number of coordinator processes.
    pub coordinators: usize,
    /// Extra settings for every node, TOML with full section headers.
    pub settings: String,
    /// Extra environment for every node.
    pub environment: Vec<(String, String)>,
    /// Every node becomes a member; `None`: all of them on loopback.
    pub network: Option<Arc<Network>>,
    /// Whether the nodes' clocks can be set (Debian package libfaketime).
    pub clocks: bool,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            store: None,
            broker_zones: vec!["a", "b", "c"],
            coordinators: 2,
            settings: String::new(),
            environment: Vec::new(),
            network: None,
            clocks: false,
        }
    }
}

impl Cluster {
    /// Starts all nodes and waits until they are ready.
    pub fn start(plan: Plan) -> anyhow::Result<Cluster> {
        let dir = tempfile::tempdir()?;
        let store = plan
            .store
            .clone()
            .unwrap_or_else(|| format!("file://{}", dir.path().join("store").display()));
        std::fs::create_dir_all(dir.path().join("store"))?;
        // By it the nodes know each other.
        std::fs::write(
            dir.path().join("secret"),
            format!("{:032x}", rand::random::<u128>()),
        )?;
        let mut zones: Vec<&str> = plan.broker_zones.clone();
        zones.sort_unstable();
        zones.dedup();
        let mut coordinators = Vec::new();
        for i in 0..plan.coordinators {
            let zone = zones.get(i % zones.len()).copied().unwrap_or("a");
            coordinators.push(make_node(
                dir.path(),
                &store,
                &plan,
                i32::try_from(i)?,
                zone,
                "coordinator",
                &[],
            )?);
        }
        let mut brokers = Vec::new();
        for (i, zone) in plan.broker_zones.iter().enumerate() {
            brokers.push(make_node(
                dir.path(),
                &store,
                &plan,
                1000 + i32::try_from(i)?,
                zone,
                "broker",
                &zones,
            )?);
        }
        let mut cluster = Cluster {
            brokers,
            coordinators,
            dir,
        };
        for node in cluster.nodes() {
            node.start()?;
        }
        for node in cluster.nodes() {
            node.wait_ready()?;
        }
        Ok(cluster)
    }

    /// All of them.
    pub fn nodes(&mut self) -> impl Iterator<Item = &mut Node> {
        self.coordinators.iter_mut().chain(&mut self.brokers)
    }

    /// Addresses of all brokers for clients of unknown zone.
    pub fn bootstrap(&self) -> String {
        let addresses: Vec<String> = self.brokers.iter().map(Node::address).collect();
        addresses.join(",")
    }

    /// The folder that holds everything of the cluster; the object store is `store` in it.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }
}

fn make_node(
    dir: &Path,
    store: &str,
    plan: &Plan,
    id: i32,
    zone: &str,
    role: &str,
    zones: &[&str],
) -> anyhow::Result<Node> {
    let place = plan.network.as_ref().map(|network| network.join()).transpose()?;
    let host = place.as_ref().map_or("127.0.0.1", |place| &place.host).to_owned();
    let data_dir = dir.join(format!("data-{id}"));
    let zone_ports: BTreeMap<String, u16> = zones
        .iter()
        .map(|zone| ((*zone).to_owned(), free_port()))
        .collect();
    let (port, admin_port, internal_port) = (free_port(), free_port(), free_port());
    let mut text = format!(
        "[node]\nid = {id}\nroles = [\"{role}\"]\nzone = \"{zone}\"\ndata_dir = \"{}\"\n\n[object_store]\nurl = \"{store}\"\n\n\
         [internal]\nhost = \"{host}\"\nport = {internal_port}\nadvertised_host = \"{host}\"\nsecret_file = \"{}\"\n\n\
         [admin]\nhost = \"{host}\"\nport = {admin_port}\n\n",
        data_dir.display(),
        dir.join("secret").display(),
    );
    if role == "broker" {
        let zones: Vec<String> = zone_ports
            .iter()
            .map(|(zone, port)| format!("{zone} = {port}"))
            .collect();
        write!(
            text,
            "[listeners]\nhost = \"{host}\"\nadvertised_host = \"{host}\"\nport = {port}\nzones = {{ {} }}\n\n",
            zones.join(", ")
        )?;
    }
    text.push_str(&plan.settings);
    let config = dir.join(format!("node-{id}.toml"));
    std::fs::write(&config, text)?;
    let mut environment = plan.environment.clone();
    let mut clock = None;
    if plan.clocks {
        let file = dir.join(format!("clock-{id}"));
        std::fs::write(&file, "+0")?;
        environment.extend(clock_environment(&file)?);
        clock = Some(file);
    }
    Ok(Node {
        id,
        zone: zone.to_owned(),
        host,
        place,
        port,
        zone_ports,
        admin_port,
        internal_port,
        data_dir,
        config,
        log: dir.join(format!("node-{id}.log")),
        environment,
        clock,
        child: None,
    })
}

/// What makes a process take its wall clock from `file`.
fn clock_environment(file: &Path) -> anyhow::Result<[(String, String); 4]> {
    let libraries = std::fs::read_dir("/usr/lib")?;
    let found = libraries
        .filter_map(|entry| Some(entry.ok()?.path().join("faketime/libfaketimeMT.so.1")))
        .find(|path| path.exists());
    let library = found.context("the package libfaketime is missing")?;
    Ok([
        ("LD_PRELOAD", library.display().to_string()),
        ("FAKETIME_TIMESTAMP_FILE", file.display().to_string()),
        // It reads the file again after so many seconds.
        ("FAKETIME_CACHE_DURATION", "1".to_owned()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
    ]
    .map(|(key, value)| (key.to_owned(), value)))
}

/// A plain HTTP GET on loopback: status and body.
pub fn http_get(port: u16, path: &str) -> anyhow::Result<(u16, String)> {
    http_get_from("127.0.0.1", port, path)
}

/// A plain HTTP GET from a node: status and body.
pub fn http_get_from(host: &str, port: u16, path: &str) -> anyhow::Result<(u16, String)> {
    let address = SocketAddr::new(host.parse()?, port);
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let status = text.split_whitespace().nth(1).context("no status")?.parse()?;
    let body = text
        .split_once("\r\n\r\n")
        .map_or("", |(_, body)| body)
        .to_owned();
    Ok((status, body))
}
