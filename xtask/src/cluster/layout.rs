//! How many nodes a cluster has, and what for.

use anyhow::bail;
use clap::Parser;
use serde_json::{Value, json};

use super::{ROLE, ZONE};

/// The nodes of a new cluster.
#[derive(Parser, Clone)]
pub struct Layout {
    /// Worker nodes: the last is for coordinators alone, the others are spread over the zones.
    #[arg(long, default_value_t = 4)]
    pub workers: usize,
    #[arg(long, value_delimiter = ',', default_value = "a,b,c")]
    zones: Vec<String>,
}

impl Default for Layout {
    fn default() -> Self {
        Self {
            workers: 4,
            zones: ["a", "b", "c"].map(str::to_owned).to_vec(),
        }
    }
}

impl Layout {
    /// The configuration that kind takes (JSON is YAML).
    pub fn kind_config(&self) -> anyhow::Result<Value> {
        let zones = &self.zones;
        if zones.is_empty() || self.workers <= zones.len() {
            bail!("--workers must be more than the number of --zones: one node is for coordinators alone");
        }
        let mut nodes = vec![json!({"role": "control-plane"})];
        for zone in zones.iter().cycle().take(self.workers - 1) {
            nodes.push(json!({"role": "worker", "labels": {ZONE: zone}}));
        }
        let taint = json!({
            "kind": "JoinConfiguration",
            "nodeRegistration": {"taints": [{"key": ROLE, "value": "coordinator", "effect": "NoSchedule"}]},
        });
        nodes.push(json!({
            "role": "worker",
            "labels": {ZONE: zones.first(), ROLE: "coordinator"},
            "kubeadmConfigPatches": [taint.to_string()],
        }));
        // A dead node is noticed in 12 s instead of 40, and its pods are replaced 10 s later instead of 5 minutes.
        let control_plane = json!({
            "kind": "ClusterConfiguration",
            "controllerManager": {"extraArgs": {"node-monitor-grace-period": "12s", "node-monitor-period": "2s"}},
            "apiServer": {"extraArgs": {
                "default-not-ready-toleration-seconds": "10",
                "default-unreachable-toleration-seconds": "10",
            }},
        });
        let kubelet = json!({
            "kind": "KubeletConfiguration",
            "nodeStatusUpdateFrequency": "4s",
            "nodeLeaseDurationSeconds": 8,
            "syncFrequency": "2s",
        });
        Ok(json!({
            "kind": "Cluster",
            "apiVersion": "kind.x-k8s.io/v1alpha4",
            "kubeadmConfigPatches": [control_plane.to_string(), kubelet.to_string()],
            "nodes": nodes,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_worker_is_for_coordinators() {
        let config = Layout::default().kind_config().unwrap();
        let nodes = config["nodes"].as_array().unwrap();
        let zones: Vec<_> = nodes.iter().map(|n| n["labels"][ZONE].as_str()).collect();
        assert_eq!(zones, [None, Some("a"), Some("b"), Some("c"), Some("a")]);
        assert_eq!(nodes[4]["labels"][ROLE], "coordinator");
        assert!(
            nodes[4]["kubeadmConfigPatches"][0]
                .as_str()
                .unwrap()
                .contains("NoSchedule")
        );
        assert!(nodes[1..4].iter().all(|n| n["labels"].get(ROLE).is_none()));
    }

    #[test]
    fn a_layout_without_a_node_for_each_zone_is_refused() {
        assert!(
            Layout {
                workers: 3,
                ..Layout::default()
            }
            .kind_config()
            .is_err()
        );
        assert!(
            Layout {
                zones: vec![],
                ..Layout::default()
            }
            .kind_config()
            .is_err()
        );
    }
}
