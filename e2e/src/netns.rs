//! A network that can be cut: each node in a network namespace of its own, all of them and this process at one switch.
//!
//! ```text
//!   this process ── 10.x.y.1 ─┐              namespaces of nodes
//!                             ├─ switch ─┬── 10.x.y.2
//!   (clients, store)          │          └── 10.x.y.3 …
//! ```
//!
//! A cut is a rule that drops what comes in, so that nothing tells either side: connections just fall silent. It needs
//! root, `ip` and `iptables`; without them [`Network::new`] says so.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, bail};
use parking_lot::Mutex;

/// What all names of namespaces here start with; the process id follows.
const NAMES: &str = "diskless-";

/// A switch, and the namespaces plugged into it. All of it goes when dropped.
pub struct Network {
    /// Of the namespaces; the switch's own has no suffix.
    name: String,
    /// `10.x.y`.
    subnet: String,
    /// Last number of the address of each member.
    members: Mutex<BTreeSet<u8>>,
}

/// A node's place in a network.
#[derive(Clone, Debug)]
pub struct Place {
    /// Its address.
    pub host: String,
    /// Its namespace.
    pub namespace: String,
}

impl Network {
    /// A network with nobody in it but this process.
    pub fn new() -> anyhow::Result<Network> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        remove_leftovers()?;
        let (pid, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let number = pid.wrapping_mul(7).wrapping_add(count);
        let network = Network {
            name: format!("{NAMES}{pid}-{count}"),
            subnet: format!("10.{}.{}", 100 + number / 256 % 100, number % 256),
            members: Mutex::default(),
        };
        let (hub, uplink) = (&network.name, format!("dl{pid}x{count}"));
        ip(&format!("netns add {hub}")).context(
            "network namespaces do not work here (root, iproute2 and a kernel with them are needed)",
        )?;
        ip(&format!("-n {hub} link add switch type bridge"))?;
        ip(&format!("-n {hub} link set switch up"))?;
        ip(&format!(
            "link add {uplink} type veth peer name uplink netns {hub}"
        ))?;
        ip(&format!("-n {hub} link set uplink master switch up"))?;
        ip(&format!("addr add {}/24 dev {uplink}", network.host()))?;
        ip(&format!("link set {uplink} up"))?;
        Ok(network)
    }

    /// Address of this process in it.
    pub fn host(&self) -> String {
        format!("{}.1", self.subnet)
    }

    /// A new member.
    pub fn join(&self) -> anyhow::Result<Place> {
        let number = {
            let mut members = self.members.lock();
            let number = members.last().map_or(2, |last| last + 1);
            members.insert(number);
            number
        };
        let (hub, namespace) = (&self.name, format!("{}-{number}", self.name));
        let host = format!("{}.{number}", self.subnet);
        ip(&format!("netns add {namespace}"))?;
        ip(&format!("-n {namespace} link set lo up"))?;
        ip(&format!(
            "-n {hub} link add p{number} type veth peer name eth0 netns {namespace}"
        ))?;
        ip(&format!("-n {hub} link set p{number} master switch up"))?;
        ip(&format!("-n {namespace} addr add {host}/24 dev eth0"))?;
        ip(&format!("-n {namespace} link set eth0 up"))?;
        Ok(Place { host, namespace })
    }

    /// What `from` sends no longer reaches `to`. The other way stays open.
    pub fn drop_packets(&self, from: &str, to: &Place) -> anyhow::Result<()> {
        self.rule(to, &["-s", from])
    }

    /// Neither hears the other.
    pub fn cut(&self, one: &Place, other: &Place) -> anyhow::Result<()> {
        self.drop_packets(&one.host, other)?;
        self.drop_packets(&other.host, one)
    }

    /// Hears nobody at all.
    pub fn isolate(&self, place: &Place) -> anyhow::Result<()> {
        self.rule(place, &["-i", "eth0"])
    }

    /// Hears nothing from one port of this process.
    pub fn cut_port(&self, place: &Place, port: u16) -> anyhow::Result<()> {
        let (host, port) = (self.host(), port.to_string());
        self.rule(place, &["-s", &host, "-p", "tcp", "--sport", &port])
    }

    fn rule(&self, at: &Place, what: &[&str]) -> anyhow::Result<()> {
        let mut command = iptables(&at.namespace);
        command.args(["-A", "INPUT"]).args(what).args(["-j", "DROP"]);
        run(&mut command)
    }

    /// Undoes all cuts.
    pub fn heal(&self) -> anyhow::Result<()> {
        for number in self.members.lock().iter() {
            run(iptables(&format!("{}-{number}", self.name)).args(["-F", "INPUT"]))?;
        }
        Ok(())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for number in self.members.lock().iter() {
            let _ = ip(&format!("netns del {}-{number}", self.name));
        }
        // The link to this process goes with its other end.
        let _ = ip(&format!("netns del {}", self.name));
    }
}

/// Removes the namespaces of test processes that were killed.
fn remove_leftovers() -> anyhow::Result<()> {
    let names = match std::fs::read_dir("/run/netns") {
        Ok(names) => names,
        Err(_) => return Ok(()),
    };
    for name in names {
        let name = name?.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix(NAMES).and_then(|rest| rest.split('-').next());
        if let Some(pid) = pid
            && !Path::new("/proc").join(pid).exists()
        {
            // Another test process may do the same at this moment.
            let _ = ip(&format!("netns del {name}"));
        }
    }
    Ok(())
}

fn iptables(namespace: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace, "iptables", "-w", "5"]);
    command
}

fn ip(args: &str) -> anyhow::Result<()> {
    run(Command::new("ip").args(args.split(' ')))
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command
        .output()
        .with_context(|| format!("cannot start {command:?}"))?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?} failed: {}", error.trim());
    }
    Ok(())
}
