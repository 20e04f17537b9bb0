//! How near a shard is to what it can do. A shard is a single thread and a single SQLite file; when it nears its limit,
//! metadata partitions have to be added in time, because they take new partitions of topics only.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use types::ShardId;

use super::CoordinatorHost;

/// What a shard can do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Batches a second.
    pub(super) rate: f64,
    /// Of the view.
    pub(super) bytes: f64,
}

impl Limits {
    /// What a shard commits on one core (measured: the example `shard` of crate `coordinator`), and the view of ten million batches, to
    /// which the latency of reads was measured.
    pub(super) const MEASURED: Limits = Limits {
        rate: 40_000.0,
        bytes: 1_000_000_000.0,
    };
}

/// Above this part of a limit the node warns,
const NEAR: f64 = 0.7;
/// below this one it will do so again.
const FAR: f64 = 0.6;
const INTERVAL: Duration = Duration::from_secs(10);

/// What a led shard does.
#[derive(Clone, Copy, Debug, Default)]
pub struct Load {
    batches: u64,
    /// Batches a second.
    rate: f64,
    /// Of the view.
    bytes: u64,
    warned: bool,
}

impl Load {
    /// 1: at one of its limits.
    fn ratio(&self, limits: Limits) -> f64 {
        (self.rate / limits.rate).max(self.bytes as f64 / limits.bytes)
    }

    /// After `seconds` the shard has committed `batches` in all. True if that is a reason to warn.
    fn observe(&mut self, batches: u64, bytes: u64, seconds: f64, limits: Limits) -> bool {
        self.rate = batches.saturating_sub(self.batches) as f64 / seconds;
        (self.batches, self.bytes) = (batches, bytes);
        let ratio = self.ratio(limits);
        let warn = ratio >= NEAR && !self.warned;
        self.warned = ratio >= NEAR || (self.warned && ratio >= FAR);
        warn
    }
}

/// Measures every led shard until the node ends.
pub(super) async fn watch(host: Arc<CoordinatorHost>) {
    let env = &host.parts.env;
    loop {
        let began = env.instant();
        env.sleep(INTERVAL).await;
        let seconds = env.instant().saturating_duration_since(began).as_secs_f64();
        for id in host.leading() {
            let Ok(shard) = host.replica(id) else { continue };
            let Ok(bytes) = shard.view_bytes().await else {
                continue;
            };
            let batches = shard.batches();
            let mut state = host.state.lock();
            // What was replayed to open the shard is not load.
            let first = Load {
                batches,
                ..Load::default()
            };
            let load = state.load.entry(id).or_insert(first);
            if load.observe(batches, bytes, seconds, host.limits) {
                tracing::warn!(
                    shard = %id,
                    batches_per_second = load.rate,
                    view_bytes = bytes,
                    "shard nears its limit: raise coordinator.metadata_partitions (new partitions go to new shards)"
                );
            }
        }
    }
}

/// The load of the led shards, for `/metrics`.
pub struct LoadCollector(pub Arc<CoordinatorHost>);

impl std::fmt::Debug for LoadCollector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LoadCollector")
    }
}

impl Collector for LoadCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        type Row = (&'static str, &'static str, fn(&Load, Limits) -> f64);
        let gauges: [Row; 3] = [
            (
                "shard_load_ratio",
                "Part of what a shard can do that is used; 1 is the limit",
                Load::ratio,
            ),
            ("shard_commit_rate", "Batches committed a second", |load, _| {
                load.rate
            }),
            ("shard_view_bytes", "Size of the shard's view", |load, _| {
                load.bytes as f64
            }),
        ];
        let load: Vec<(ShardId, Load)> = {
            let state = self.0.state.lock();
            state.load.iter().map(|(id, load)| (*id, *load)).collect()
        };
        for (name, help, value) in gauges {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (id, load) in &load {
                ConstGauge::new(value(load, self.0.limits))
                    .encode(family.encode_family(&[("shard", id.to_string())])?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_near_its_limit_is_told_once_until_it_has_recovered() {
        let mut load = Load::default();
        let mut batches = 0;
        let mut after = |rate: u64, bytes: u64| {
            batches += rate * 10;
            load.observe(batches, bytes, 10.0, Limits::MEASURED)
        };
        assert!(!after(20_000, 0));
        assert!(after(30_000, 0));
        assert!(!after(39_000, 0), "it was told already");
        assert!(!after(25_000, 0), "not far enough below");
        assert!(!after(30_000, 0));
        assert!(!after(10_000, 0));
        assert!(after(10, 800_000_000), "size counts, too");
    }
}
