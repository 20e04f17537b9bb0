//! Faults of nodes and of the network between zones.
//!
//! The firewall of each node counts and drops what the node sends to other nodes: in the mangle table's POSTROUTING
//! every packet passes once, with the address of the pod that it goes to, whoever sent it. So this needs nothing of
//! the machine below, and works with any container engine.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::Value;

use super::{Cluster, ZONE, state};
use crate::run;

/// Chains in the nodes' mangle table.
const CUT: &str = "DISKLESS-CUT";
const COUNT: &str = "DISKLESS-COUNT";

/// A node that belongs to a zone.
struct Node {
    name: String,
    zone: String,
    /// Its own address and those of its pods.
    addresses: Vec<String>,
}

impl Cluster {
    pub(super) fn kill(&self, node: &str) -> anyhow::Result<()> {
        let node = self.node(node)?;
        run::quiet(self.kind()?.docker.command().args(["kill", &node]))?;
        println!("{node} is dead");
        Ok(())
    }

    pub(super) fn start(&self, node: &str) -> anyhow::Result<()> {
        let node = self.node(node)?;
        let before = self.ready(&node)?.1;
        run::quiet(self.kind()?.docker.command().args(["start", &node]))?;
        // The API server may not have noticed yet that the node was away: only a new heartbeat says that it is back.
        let mut tries = 0..600;
        while !matches!(self.ready(&node)?, (true, heartbeat) if heartbeat != before) {
            if tries.next().is_none() {
                bail!("{node} was started, but its kubelet did not report within two minutes");
            }
            sleep(Duration::from_millis(200));
        }
        self.watch_zones()?;
        println!("{node} is ready");
        Ok(())
    }

    /// Whether a node was ready when its kubelet last reported, and when that was.
    fn ready(&self, node: &str) -> anyhow::Result<(bool, String)> {
        let node = self.get(&["node", node])?;
        let conditions = node["status"]["conditions"]
            .as_array()
            .context("a node without conditions")?;
        let ready = conditions
            .iter()
            .find(|c| c["type"] == "Ready")
            .context("a node without condition Ready")?;
        Ok((
            ready["status"] == "True",
            ready["lastHeartbeatTime"].as_str().unwrap_or_default().to_owned(),
        ))
    }

    /// `verb` is `pause` or `unpause`.
    pub(super) fn pause(&self, node: &str, verb: &str) -> anyhow::Result<()> {
        let node = self.node(node)?;
        run::quiet(self.kind()?.docker.command().args([verb, &node]))?;
        println!("{node}: {verb} done");
        Ok(())
    }

    pub(super) fn cut(&self, zone: &str, other: &str) -> anyhow::Result<()> {
        let nodes = self.nodes()?;
        for wanted in [zone, other] {
            if !nodes.iter().any(|node| node.zone == wanted) {
                bail!("no node is in zone {wanted:?}");
            }
        }
        let mut cuts = self.cuts()?;
        if !is_cut(&cuts, zone, other) {
            cuts.push((zone.to_owned(), other.to_owned()));
        }
        self.set_cuts(&cuts)?;
        println!("nothing passes between {zone} and {other}");
        Ok(())
    }

    pub(super) fn heal(&self) -> anyhow::Result<()> {
        self.set_cuts(&[])?;
        println!("all zones reach each other");
        Ok(())
    }

    fn set_cuts(&self, cuts: &[(String, String)]) -> anyhow::Result<()> {
        let file = state(&self.kind()?.name)?.join("cuts.json");
        fs::write(file, serde_json::to_vec(cuts)?)?;
        self.watch_zones()
    }

    /// Pairs of zones that are cut now; kept in a file, since a node that starts again has lost its firewall.
    pub(super) fn cuts(&self) -> anyhow::Result<Vec<(String, String)>> {
        let Some(kind) = &self.kind else {
            return Ok(Vec::new());
        };
        match fs::read(state(&kind.name)?.join("cuts.json")) {
            Ok(json) => Ok(serde_json::from_slice(&json)?),
            Err(_) => Ok(Vec::new()),
        }
    }

    pub(super) fn zone_bytes(&self, json: bool, reset: bool) -> anyhow::Result<()> {
        let docker = &self.kind()?.docker;
        let mut bytes: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
        let nodes = self.nodes()?;
        for from in &nodes {
            for to in &nodes {
                bytes
                    .entry(from.zone.clone())
                    .or_default()
                    .entry(to.zone.clone())
                    .or_default();
            }
        }
        for node in self.running(&nodes)? {
            // `--zero` reads and clears in one step: nothing is lost in between.
            let mut list = docker.command();
            list.args([
                "exec", &node.name, "iptables", "-w", "-t", "mangle", "-nvxL", COUNT,
            ]);
            if reset {
                list.arg("-Z");
            }
            for (to, count) in run::output(&mut list)?.lines().filter_map(counted) {
                if let Some(sum) = bytes.get_mut(&node.zone).and_then(|row| row.get_mut(to)) {
                    *sum += count;
                }
            }
        }
        if json {
            println!("{}", serde_json::to_string(&bytes)?);
        } else {
            for (from, row) in bytes {
                for (to, count) in row {
                    println!("{from} > {to} {count:>15}");
                }
            }
        }
        Ok(())
    }

    /// Brings the firewall of every running node into the state that counts and cuts; counters that are right stay.
    pub(super) fn watch_zones(&self) -> anyhow::Result<()> {
        let kind = self.kind()?;
        let (nodes, cuts) = (self.nodes()?, self.cuts()?);
        for node in self.running(&nodes)? {
            let exec = |args: &[&str]| {
                let mut exec = kind.docker.command();
                exec.args(["exec", "-i", &node.name]).args(args);
                exec
            };
            let saved = run::output(&mut exec(&["iptables-save", "-t", "mangle"]))?;
            let text = rules(node, &nodes, &cuts, &saved);
            let restore = ["iptables-restore", "-w", "--noflush"];
            run::feed(&mut exec(&restore), text.as_bytes())
                .with_context(|| format!("firewall of {}", node.name))?;
        }
        Ok(())
    }

    fn nodes(&self) -> anyhow::Result<Vec<Node>> {
        let list = self.get(&["nodes"])?;
        let items = list["items"]
            .as_array()
            .context("kubectl gave no list of nodes")?;
        Ok(items.iter().filter_map(node).collect())
    }

    fn running<'n>(&self, nodes: &'n [Node]) -> anyhow::Result<Vec<&'n Node>> {
        let mut list = self.kind()?.docker.command();
        list.args(["ps", "--filter", "status=running", "--format", "{{.Names}}"]);
        let names = run::output(&mut list)?;
        Ok(nodes
            .iter()
            .filter(|node| names.lines().any(|name| name == node.name))
            .collect())
    }

    /// Full name of a node, which may be given without the cluster's name (`worker2`).
    fn node(&self, given: &str) -> anyhow::Result<String> {
        let kind = self.kind()?;
        let names = run::output(kind.command()?.args(["get", "nodes", "--name", &kind.name]))?;
        let full = format!("{}-{given}", kind.name);
        match names.lines().find(|name| *name == given || *name == full) {
            Some(name) => Ok(name.to_owned()),
            None => bail!(
                "no node {given:?}; there are: {}",
                names.lines().collect::<Vec<_>>().join(", ")
            ),
        }
    }
}

fn node(item: &Value) -> Option<Node> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let zone = text(&item["metadata"]["labels"][ZONE])?;
    let own = item["status"]["addresses"]
        .as_array()?
        .iter()
        .filter(|a| a["type"] == "InternalIP");
    let addresses = own
        .filter_map(|a| text(&a["address"]))
        .chain(text(&item["spec"]["podCIDR"]));
    let addresses = addresses.filter(|address| !address.contains(':')).collect();
    Some(Node {
        name: text(&item["metadata"]["name"])?,
        zone,
        addresses,
    })
}

fn is_cut(cuts: &[(String, String)], zone: &str, other: &str) -> bool {
    cuts.iter()
        .any(|(a, b)| (a == zone && b == other) || (a == other && b == zone))
}

/// Input of `iptables-restore --noflush` for one node. `saved` is its mangle table now: a chain of counters that is
/// already right is left alone, and so keeps its counts.
fn rules(node: &Node, nodes: &[Node], cuts: &[(String, String)], saved: &str) -> String {
    let peers = || {
        nodes
            .iter()
            .filter(|peer| peer.name != node.name)
            .flat_map(|peer| {
                peer.addresses
                    .iter()
                    .map(|address| (peer.zone.as_str(), mask(address)))
            })
    };
    let mut text = format!("*mangle\n:{CUT} - [0:0]\n");
    for (_, address) in peers().filter(|(zone, _)| is_cut(cuts, &node.zone, zone)) {
        let _ = writeln!(text, "-A {CUT} -d {address} -j DROP");
    }
    let wanted: Vec<String> = peers()
        .map(|(zone, address)| format!("-A {COUNT} -d {address} -m comment --comment to-zone-{zone}"))
        .collect();
    let now: Vec<&str> = saved
        .lines()
        .filter(|line| line.starts_with(&format!("-A {COUNT} ")))
        .collect();
    if now != wanted {
        let _ = writeln!(text, ":{COUNT} - [0:0]\n{}", wanted.join("\n"));
    }
    for chain in [CUT, COUNT] {
        let jump = format!("-A POSTROUTING -o eth0 -j {chain}");
        if !saved.lines().any(|line| line == jump) {
            let _ = writeln!(text, "{jump}");
        }
    }
    text + "COMMIT\n"
}

/// An address as `iptables-save` prints it.
fn mask(address: &str) -> String {
    if address.contains('/') {
        address.to_owned()
    } else {
        format!("{address}/32")
    }
}

/// Zone and bytes of one line of `iptables -nvxL`.
fn counted(line: &str) -> Option<(&str, u64)> {
    let (_, zone) = line.split_once("to-zone-")?;
    Some((
        zone.split_whitespace().next()?,
        line.split_whitespace().nth(1)?.parse().ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes() -> Vec<Node> {
        ["a", "b", "c"]
            .iter()
            .enumerate()
            .map(|(i, zone)| Node {
                name: format!("n{i}"),
                zone: (*zone).to_owned(),
                addresses: vec![format!("10.0.0.{i}"), format!("10.1.{i}.0/24")],
            })
            .collect()
    }

    #[test]
    fn a_cut_drops_only_between_its_zones() {
        let nodes = nodes();
        let cuts = [("b".to_owned(), "a".to_owned())];
        let text = rules(&nodes[0], &nodes, &cuts, "");
        assert!(
            text.contains("-A DISKLESS-CUT -d 10.0.0.1/32 -j DROP\n-A DISKLESS-CUT -d 10.1.1.0/24 -j DROP\n")
        );
        assert!(!rules(&nodes[2], &nodes, &cuts, "").contains("DROP"));
        assert!(!text.contains("10.0.0.2/32 -j DROP"));
    }

    #[test]
    fn right_counters_are_left_alone() {
        let nodes = nodes();
        let first = rules(&nodes[0], &nodes, &[], "");
        assert!(first.contains(":DISKLESS-COUNT"));
        let second = rules(&nodes[0], &nodes, &[], &first);
        assert_eq!(second, "*mangle\n:DISKLESS-CUT - [0:0]\nCOMMIT\n");
    }

    #[test]
    fn counters_are_read() {
        let line =
            "      12     3456            all  --  *      *       0.0.0.0/0   10.1.1.0/24   /* to-zone-b */";
        assert_eq!(counted(line), Some(("b", 3456)));
        assert_eq!(counted("Chain DISKLESS-COUNT (1 references)"), None);
    }
}
