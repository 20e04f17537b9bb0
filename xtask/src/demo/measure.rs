//! What the demo reads from the running system: request latencies, and calls to the object store.

use std::collections::BTreeMap;

/// Counts of a histogram by upper bound in seconds (the bits of the float, which sort like it), cumulative.
#[derive(Default, Clone)]
pub struct Histogram(BTreeMap<u64, u64>);

impl Histogram {
    /// Adds the produce latencies of one broker's `/metrics`.
    pub fn add(&mut self, metrics: &str) {
        for line in metrics
            .lines()
            .filter(|line| line.starts_with("diskless_request_latency_seconds_bucket{"))
        {
            let bound = line
                .split_once("le=\"")
                .and_then(|(_, rest)| rest.split_once('"'));
            let count = line
                .rsplit(' ')
                .next()
                .and_then(|count| count.parse::<u64>().ok());
            if let (true, Some((bound, _)), Some(count)) = (line.contains("api=\"Produce\""), bound, count) {
                let bound = bound.parse().unwrap_or(f64::INFINITY);
                *self.0.entry(f64::to_bits(bound)).or_default() += count;
            }
        }
    }

    /// What was counted since `earlier`. A broker that started again meanwhile counts from zero.
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |bound| earlier.0.get(bound).copied().unwrap_or(0);
        Self(
            self.0
                .iter()
                .map(|(bound, count)| (*bound, count.saturating_sub(before(bound))))
                .collect(),
        )
    }

    pub fn count(&self) -> u64 {
        self.0.values().copied().max().unwrap_or(0)
    }

    /// A quantile in milliseconds, interpolated within its bucket as Prometheus does.
    pub fn quantile(&self, quantile: f64) -> Option<f64> {
        let rank = quantile * self.count() as f64;
        let (mut lower, mut below) = (0.0, 0);
        for (bound, count) in &self.0 {
            let bound = f64::from_bits(*bound);
            if *count > 0 && *count as f64 >= rank {
                let within = (rank - below as f64) / (count - below).max(1) as f64;
                let seconds = if bound.is_finite() {
                    lower + (bound - lower) * within
                } else {
                    lower
                };
                return Some(seconds * 1000.0);
            }
            (lower, below) = (bound, *count);
        }
        None
    }
}

/// Calls of one kind in the S3 server's log.
pub fn calls(log: &str, operation: &str) -> usize {
    log.lines()
        .filter(|line| line.split_whitespace().any(|word| word == operation))
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_several_brokers() {
        let metrics = "diskless_request_latency_seconds_bucket{le=\"0.1\",api=\"Produce\"} 10\n\
                       diskless_request_latency_seconds_bucket{le=\"0.2\",api=\"Produce\"} 30\n\
                       diskless_request_latency_seconds_bucket{le=\"+Inf\",api=\"Produce\"} 30\n\
                       diskless_request_latency_seconds_bucket{le=\"0.1\",api=\"Fetch\"} 99\n";
        let mut one = Histogram::default();
        one.add(metrics);
        let mut both = one.clone();
        both.add(metrics);
        assert_eq!(both.count(), 60);
        assert_eq!(both.since(&one).count(), 30);
        assert!((both.quantile(0.5).unwrap() - 125.0).abs() < 1e-6);
        assert_eq!(Histogram::default().quantile(0.5), None);
    }

    #[test]
    fn calls_are_counted_by_name() {
        let log = "demo b [t] 1.2.3.4 demo ID s3_PutObject k\ndemo b [t] 1.2.3.4 demo ID s3_GetObject s3_PutObjectX\n";
        assert_eq!(calls(log, "s3_PutObject"), 1);
        assert_eq!(calls(log, "s3_GetObject"), 1);
    }
}
