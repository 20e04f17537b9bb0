//! What the operator counts, in Prometheus form. Label sets are closed: no object names but in the gauge of what
//! is being reconciled at this moment.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// The controllers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "the names are the label values")]
pub enum Controller {
    /// Of `DisklessCluster`.
    cluster,
    /// Of `DisklessTopic`.
    topic,
}

impl Controller {
    /// Field manager of the objects this controller applies.
    pub fn field_manager(self) -> &'static str {
        match self {
            Controller::cluster => "diskless-operator/cluster",
            Controller::topic => "diskless-operator/topic",
        }
    }

    /// Field manager of the status: its own, so that taking over an object never takes over its status.
    pub fn status_manager(self) -> &'static str {
        match self {
            Controller::cluster => "diskless-operator/cluster-status",
            Controller::topic => "diskless-operator/topic-status",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ControllerLabel {
    controller: Controller,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    controller: Controller,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabels {
    controller: Controller,
    kind: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ObjectLabels {
    controller: Controller,
    namespace: String,
    name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AdminLabels {
    api: &'static str,
    result: &'static str,
}

type Seconds = Gauge<f64, AtomicU64>;

/// The registry and its families.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    reconciles: Family<ResultLabels, Counter>,
    duration: Family<ControllerLabel, Histogram, fn() -> Histogram>,
    started: Family<ObjectLabels, Seconds>,
    last_success: Family<ControllerLabel, Seconds>,
    writes: Family<WriteLabels, Counter>,
    disruptions: Counter,
    admin: Family<AdminLabels, Counter>,
    leader: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        // 1 ms to 33 s.
        let duration: Family<_, _, fn() -> Histogram> =
            Family::new_with_constructor(|| Histogram::new((0..16).map(|i| 0.001 * f64::from(1 << i))));
        let mut metrics = Metrics {
            registry: Registry::with_prefix("diskless_operator"),
            reconciles: Family::default(),
            duration,
            started: Family::default(),
            last_success: Family::default(),
            writes: Family::default(),
            disruptions: Counter::default(),
            admin: Family::default(),
            leader: Gauge::default(),
        };
        let r = &mut metrics.registry;
        r.register(
            "reconciles",
            "Reconciles by how they ended",
            metrics.reconciles.clone(),
        );
        r.register(
            "reconcile_duration_seconds",
            "Time a reconcile took",
            metrics.duration.clone(),
        );
        r.register(
            "reconcile_started_timestamp_seconds",
            "When the reconcile that is running now was started",
            metrics.started.clone(),
        );
        r.register(
            "last_success_timestamp_seconds",
            "When a reconcile last ended without error",
            metrics.last_success.clone(),
        );
        r.register(
            "writes",
            "Write requests to the API server",
            metrics.writes.clone(),
        );
        r.register(
            "disruptions",
            "Pods taken down on purpose",
            metrics.disruptions.clone(),
        );
        r.register(
            "admin_requests",
            "Kafka admin requests by how they ended",
            metrics.admin.clone(),
        );
        r.register(
            "leader",
            "1 while this replica holds the leader lease",
            metrics.leader.clone(),
        );
        metrics
    }
}

impl Metrics {
    /// A reconcile of `namespace/name` begins at `now` (seconds since the epoch).
    pub fn reconcile_started(&self, controller: Controller, namespace: &str, name: &str, now: f64) {
        let labels = ObjectLabels {
            controller,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        self.started.get_or_create(&labels).set(now);
    }

    /// The reconcile ended; `result` is a word of a closed set.
    pub fn reconcile_ended(
        &self,
        controller: Controller,
        (namespace, name): (&str, &str),
        result: &'static str,
        took: Duration,
        now: f64,
    ) {
        let labels = ObjectLabels {
            controller,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        self.started.remove(&labels);
        self.reconciles
            .get_or_create(&ResultLabels { controller, result })
            .inc();
        self.duration
            .get_or_create(&ControllerLabel { controller })
            .observe(took.as_secs_f64());
        if result == "success" {
            self.last_success
                .get_or_create(&ControllerLabel { controller })
                .set(now);
        }
    }

    /// A write request goes to the API server.
    pub fn write(&self, controller: Controller, kind: &str) {
        self.writes
            .get_or_create(&WriteLabels {
                controller,
                kind: kind.to_owned(),
            })
            .inc();
    }

    /// A pod is taken down on purpose.
    pub fn disruption(&self) {
        self.disruptions.inc();
    }

    /// A Kafka admin request has ended.
    pub fn admin_request(&self, api: &'static str, ok: bool) {
        let result = if ok { "success" } else { "error" };
        self.admin.get_or_create(&AdminLabels { api, result }).inc();
    }

    /// This replica leads, or does not.
    pub fn set_leader(&self, leads: bool) {
        self.leader.set(i64::from(leads));
    }

    /// Everything in OpenMetrics text.
    pub fn render(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_names_show_only_while_they_are_reconciled() {
        let metrics = Metrics::default();
        metrics.reconcile_started(Controller::topic, "ns", "orders", 5.0);
        assert!(metrics.render().contains("orders"));
        metrics.reconcile_ended(
            Controller::topic,
            ("ns", "orders"),
            "success",
            Duration::from_millis(2),
            6.0,
        );
        let text = metrics.render();
        assert!(!text.contains("orders"), "{text}");
        assert!(
            text.contains(r#"diskless_operator_reconciles_total{controller="topic",result="success"} 1"#)
        );
    }
}
