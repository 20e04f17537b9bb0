//! What a node counts, as Prometheus reads it from `/metrics`. Names start with `diskless_` and end with their unit.

use std::sync::Arc;
use std::time::Duration;

use kafka_wire::{ApiKey, versions};
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use types::FastMap;

/// Upper bounds of all latency histograms, in seconds.
const LATENCY: [f64; 16] = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 30.0,
];

fn latency() -> Histogram {
    Histogram::new(LATENCY)
}

type Label = [(&'static str, &'static str); 1];

/// Counts of one API.
#[derive(Clone, Debug)]
pub struct ApiMetrics {
    /// Requests that were answered.
    pub requests: Counter,
    /// From the request's arrival to its answer, in seconds.
    pub latency: Histogram,
}

/// The counters of a broker. Registered when they are created.
#[derive(Debug)]
pub struct Metrics {
    registry: Mutex<Registry>,
    apis: FastMap<i16, ApiMetrics>,
    /// Open client connections.
    pub connections: Gauge,
    /// Connections closed at once because there were too many.
    pub connections_refused: Counter,
    /// Connections ended by what the peer sent.
    pub connections_broken: Counter,
    /// Open connections of other nodes.
    pub internal_connections: Gauge,
    /// Connections to the internal listener that were not taken.
    pub internal_connections_refused: Counter,
    /// Record bytes taken from producers.
    pub produce_bytes: Counter,
    /// Record batches taken from producers.
    pub produce_batches: Counter,
    /// Record batches refused or lost.
    pub produce_failed_batches: Counter,
    /// Record bytes sent to consumers.
    pub fetch_bytes: Counter,
    /// Bytes in the produce buffer.
    pub buffer_bytes: Gauge,
    /// Size of WAL objects, in bytes.
    pub segment_bytes: Histogram,
    /// Time to write a WAL object, in seconds.
    pub upload_latency: Histogram,
    /// Time from the written object to the coordinators' answer, waiting for earlier ones included, in seconds.
    pub commit_latency: Histogram,
    /// Objects that could not be written.
    pub upload_failures: Counter,
    /// Commits without an answer.
    pub commit_failures: Counter,
    /// Second uploads of what took long.
    pub upload_hedges: Counter,
    /// Those that ended first.
    pub upload_hedges_won: Counter,
    /// Reads of objects that another broker of the zone answered.
    pub neighbour_reads: Counter,
    /// Reads for which one was asked, and the store as well, because it did not answer (in time).
    pub neighbour_failures: Counter,
    /// Reads answered for other brokers of the zone.
    pub neighbours_served: Counter,
    /// Reads that others asked for and did not get.
    pub neighbours_refused: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("diskless");
        let requests = Family::<Label, Counter>::default();
        let latencies = Family::<Label, Histogram>::new_with_constructor(latency);
        registry.register("requests", "Requests answered", requests.clone());
        registry.register_with_unit(
            "request_latency",
            "Arrival to answer",
            Unit::Seconds,
            latencies.clone(),
        );
        let apis = versions::SUPPORTED.iter().map(|row| {
            let label = [("api", name(row.key))];
            let requests = requests.get_or_create_owned(&label);
            let latency = latencies.get_or_create_owned(&label);
            (row.key as i16, ApiMetrics { requests, latency })
        });
        let metrics = Metrics {
            apis: apis.collect(),
            connections: Gauge::default(),
            connections_refused: Counter::default(),
            connections_broken: Counter::default(),
            internal_connections: Gauge::default(),
            internal_connections_refused: Counter::default(),
            produce_bytes: Counter::default(),
            produce_batches: Counter::default(),
            produce_failed_batches: Counter::default(),
            fetch_bytes: Counter::default(),
            buffer_bytes: Gauge::default(),
            segment_bytes: Histogram::new([4e3, 16e3, 64e3, 256e3, 1e6, 2e6, 4.2e6, 8.4e6, 17e6, 64e6]),
            upload_latency: latency(),
            commit_latency: latency(),
            upload_failures: Counter::default(),
            commit_failures: Counter::default(),
            upload_hedges: Counter::default(),
            upload_hedges_won: Counter::default(),
            neighbour_reads: Counter::default(),
            neighbour_failures: Counter::default(),
            neighbours_served: Counter::default(),
            neighbours_refused: Counter::default(),
            registry: Mutex::new(Registry::default()),
        };
        metrics.register(&mut registry);
        *metrics.registry.lock() = registry;
        metrics
    }
}

/// The name of an API as Kafka writes it.
fn name(key: ApiKey) -> &'static str {
    match key {
        ApiKey::Produce => "Produce",
        ApiKey::Fetch => "Fetch",
        ApiKey::ListOffsets => "ListOffsets",
        ApiKey::Metadata => "Metadata",
        ApiKey::OffsetCommit => "OffsetCommit",
        ApiKey::OffsetFetch => "OffsetFetch",
        ApiKey::FindCoordinator => "FindCoordinator",
        ApiKey::JoinGroup => "JoinGroup",
        ApiKey::Heartbeat => "Heartbeat",
        ApiKey::LeaveGroup => "LeaveGroup",
        ApiKey::SyncGroup => "SyncGroup",
        ApiKey::DescribeGroups => "DescribeGroups",
        ApiKey::ListGroups => "ListGroups",
        ApiKey::ApiVersions => "ApiVersions",
        ApiKey::CreateTopics => "CreateTopics",
        ApiKey::DeleteTopics => "DeleteTopics",
        ApiKey::DeleteRecords => "DeleteRecords",
        ApiKey::InitProducerId => "InitProducerId",
        ApiKey::OffsetForLeaderEpoch => "OffsetForLeaderEpoch",
        ApiKey::DescribeConfigs => "DescribeConfigs",
        ApiKey::CreatePartitions => "CreatePartitions",
        ApiKey::DeleteGroups => "DeleteGroups",
        ApiKey::IncrementalAlterConfigs => "IncrementalAlterConfigs",
        ApiKey::UpdateFeatures => "UpdateFeatures",
        ApiKey::DescribeCluster => "DescribeCluster",
        ApiKey::AlterConfigs => "AlterConfigs",
        ApiKey::DescribeLogDirs => "DescribeLogDirs",
        ApiKey::ElectLeaders => "ElectLeaders",
        ApiKey::AlterPartitionReassignments => "AlterPartitionReassignments",
        ApiKey::ListPartitionReassignments => "ListPartitionReassignments",
        ApiKey::OffsetDelete => "OffsetDelete",
        ApiKey::DescribeProducers => "DescribeProducers",
        ApiKey::ListConfigResources => "ListConfigResources",
        ApiKey::DescribeTopicPartitions => "DescribeTopicPartitions",
        _ => "other",
    }
}

impl Metrics {
    fn register(&self, registry: &mut Registry) {
        registry.register("connections", "Open client connections", self.connections.clone());
        registry.register(
            "internal_connections",
            "Open connections of other nodes",
            self.internal_connections.clone(),
        );
        let counters = [
            (
                "connections_refused",
                "Connections over listeners.max_connections",
                &self.connections_refused,
            ),
            (
                "connections_broken",
                "Connections ended by what the peer sent",
                &self.connections_broken,
            ),
            (
                "internal_connections_refused",
                "Connections to the internal listener of peers that are no nodes, or too many",
                &self.internal_connections_refused,
            ),
            (
                "produce_batches",
                "Record batches accepted from producers",
                &self.produce_batches,
            ),
            (
                "produce_failed_batches",
                "Record batches answered with an error",
                &self.produce_failed_batches,
            ),
            (
                "upload_failures",
                "WAL objects that could not be written",
                &self.upload_failures,
            ),
            (
                "commit_failures",
                "Commits of WAL objects without an answer",
                &self.commit_failures,
            ),
            (
                "upload_hedges",
                "Second uploads of WAL objects that took long",
                &self.upload_hedges,
            ),
            (
                "upload_hedges_won",
                "Second uploads that ended before the first",
                &self.upload_hedges_won,
            ),
            (
                "neighbour_failures",
                "Reads for which the store was asked, too: a broker of the zone gave no answer in time",
                &self.neighbour_failures,
            ),
            (
                "neighbours_served",
                "Reads of objects answered for brokers of the zone",
                &self.neighbours_served,
            ),
            (
                "neighbours_refused",
                "Reads of objects refused to brokers of the zone",
                &self.neighbours_refused,
            ),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
        let bytes = Unit::Bytes;
        registry.register_with_unit(
            "produce",
            "Records accepted",
            bytes.clone(),
            self.produce_bytes.clone(),
        );
        registry.register_with_unit("fetch", "Records sent", bytes.clone(), self.fetch_bytes.clone());
        registry.register_with_unit(
            "produce_buffer",
            "Not yet in an object",
            bytes.clone(),
            self.buffer_bytes.clone(),
        );
        registry.register_with_unit(
            "segment",
            "Size of WAL objects",
            bytes,
            self.segment_bytes.clone(),
        );
        let seconds = Unit::Seconds;
        registry.register_with_unit(
            "upload_latency",
            "WAL object writes",
            seconds.clone(),
            self.upload_latency.clone(),
        );
        registry.register_with_unit(
            "commit_latency",
            "Commits of WAL objects",
            seconds,
            self.commit_latency.clone(),
        );
    }

    /// The counts of an API; `None` if it is not served.
    pub fn api(&self, key: i16) -> Option<&ApiMetrics> {
        self.apis.get(&key)
    }

    /// Adds counts that are kept elsewhere: read at every scrape.
    pub fn add(&self, collector: impl Collector) {
        self.registry.lock().register_collector(Box::new(collector));
    }

    /// Everything in OpenMetrics text.
    pub fn text(&self) -> String {
        let mut out = String::new();
        if let Err(error) = prometheus_client::encoding::text::encode(&mut out, &self.registry.lock()) {
            tracing::error!(%error, "metrics cannot be written");
        }
        out
    }
}

/// Requests to the object store.
#[derive(Debug)]
pub struct StoreCollector(pub Arc<blob::Metrics>);

impl Collector for StoreCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let rows = self.0.snapshot();
        type Row = (&'static str, &'static str, fn(&blob::OperationSnapshot) -> u64);
        let counters: [Row; 4] = [
            (
                "object_store_requests",
                "Requests, as the provider bills them",
                |row| row.requests,
            ),
            ("object_store_errors", "Requests that failed", |row| row.errors),
            ("object_store_throttled", "Requests that were throttled", |row| {
                row.throttled
            }),
            ("object_store_body_bytes", "Bytes written or read", |row| {
                row.bytes
            }),
        ];
        for (name, help, value) in counters {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for row in &rows {
                ConstCounter::new(value(row))
                    .encode(family.encode_family(&[("operation", row.operation.name())])?)?;
            }
        }
        let unit = Unit::Seconds;
        let name = "object_store_latency";
        let mut family = encoder.encode_descriptor(name, "Requests", Some(&unit), MetricType::Histogram)?;
        for row in &rows {
            let bounds = blob::LATENCY_BUCKETS_MS
                .iter()
                .map(|ms| Duration::from_millis(*ms).as_secs_f64());
            let buckets: Vec<(f64, u64)> = bounds
                .chain([f64::MAX])
                .zip(row.latency.iter().copied())
                .collect();
            let sum = Duration::from_micros(row.latency_sum_us).as_secs_f64();
            let labels = [("operation", row.operation.name())];
            let count = row.latency.iter().sum();
            family
                .encode_family(&labels)?
                .encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }
}

/// A number that is read when it is asked for.
pub struct GaugeCollector<F> {
    name: &'static str,
    help: &'static str,
    unit: Option<Unit>,
    value: F,
}

impl<F: Fn() -> f64 + Send + Sync + 'static> GaugeCollector<F> {
    /// `value` is called at every scrape.
    pub fn new(name: &'static str, help: &'static str, unit: Option<Unit>, value: F) -> Self {
        GaugeCollector {
            name,
            help,
            unit,
            value,
        }
    }
}

impl<F> std::fmt::Debug for GaugeCollector<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("GaugeCollector").field(&self.name).finish()
    }
}

impl<F: Fn() -> f64 + Send + Sync + 'static> Collector for GaugeCollector<F> {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let gauge = ConstGauge::new((self.value)());
        gauge.encode(encoder.encode_descriptor(
            self.name,
            self.help,
            self.unit.as_ref(),
            MetricType::Gauge,
        )?)
    }
}

/// Where the objects that were read came from. `source="store"`: whole objects, one GET each; over the brokers of a zone that
/// is one for each object that the zone reads and did not write.
#[derive(Debug)]
pub struct CacheCollector {
    /// The object cache.
    pub cache: Arc<cache::ObjectCache>,
    /// [`Metrics::neighbour_reads`].
    pub neighbour_reads: Counter,
}

impl Collector for CacheCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let stats = self.cache.stats();
        let misses = stats.whole + stats.ranges;
        let counters = [
            ("cache_hits", "Objects found in memory", stats.hits),
            ("cache_misses", "Reads from the object store", misses),
        ];
        for (name, help, value) in counters {
            let counter = ConstCounter::new(value);
            counter.encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)?;
        }
        let sources = [
            ("cache", stats.hits),
            ("neighbour", self.neighbour_reads.get()),
            ("store", stats.whole),
            ("store_range", stats.ranges),
        ];
        let help = "Reads of WAL objects, by where the bytes came from";
        let mut family = encoder.encode_descriptor("object_reads", help, None, MetricType::Counter)?;
        for (source, count) in sources {
            ConstCounter::new(count).encode(family.encode_family(&[("source", source)])?)?;
        }
        let bytes = ConstGauge::new(i64::try_from(stats.bytes).unwrap_or(i64::MAX));
        bytes.encode(encoder.encode_descriptor(
            "cache",
            "Held in memory",
            Some(&Unit::Bytes),
            MetricType::Gauge,
        )?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_names_units_and_counts() {
        let metrics = Metrics::default();
        metrics.produce_bytes.inc_by(7);
        metrics.api(0).unwrap().requests.inc();
        metrics.api(0).unwrap().latency.observe(0.003);
        metrics.add(StoreCollector(Arc::new(blob::Metrics::default())));
        metrics.add(GaugeCollector::new(
            "flush_age",
            "help",
            Some(Unit::Seconds),
            || 1.5,
        ));
        let text = metrics.text();
        for line in [
            "diskless_produce_bytes_total 7",
            "diskless_requests_total{api=\"Produce\"} 1",
            "diskless_request_latency_seconds_bucket{le=\"0.005\",api=\"Produce\"} 1",
            "diskless_object_store_requests_total{operation=\"put\"} 0",
            "diskless_object_store_latency_seconds_count{operation=\"get\"} 0",
            "diskless_flush_age_seconds 1.5",
            "# EOF",
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn every_api_has_a_name() {
        for row in versions::SUPPORTED {
            assert_ne!(name(row.key), "other", "{:?}", row.key);
        }
    }
}
