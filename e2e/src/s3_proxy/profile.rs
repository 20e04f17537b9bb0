//! Latencies of object stores, by verb and size.

use std::time::Duration;

use super::Verb;

/// Quantiles of a latency in milliseconds, at 0, 0.5, 0.9, 0.99, 0.999 and 1.
type Quantiles = [f64; 6];
const AT: Quantiles = [0.0, 0.5, 0.9, 0.99, 0.999, 1.0];
/// Sizes that the tables of small and of large bodies are for.
const SMALL: f64 = 64.0 * 1024.0;
const LARGE: f64 = 4096.0 * 1024.0;

/// Latencies of a store.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// PUT of up to 64 KiB.
    small_put: Quantiles,
    /// PUT of 4 MiB.
    large_put: Quantiles,
    /// GET of up to 64 KiB, HEAD.
    small_get: Quantiles,
    /// GET of 4 MiB.
    large_get: Quantiles,
    /// DELETE, of one object or of many.
    delete: Quantiles,
    /// LIST of a page.
    list: Quantiles,
}

impl Profile {
    /// S3 Standard as published: PUT of 4 MiB p50 110, p99 350 ms; small PUT p50 30, p99 120; small GET p50 25, p99 120.
    pub const S3_STANDARD: Profile = Profile {
        small_put: [12.0, 30.0, 60.0, 120.0, 300.0, 1_000.0],
        large_put: [60.0, 110.0, 180.0, 350.0, 900.0, 3_000.0],
        small_get: [8.0, 25.0, 60.0, 120.0, 400.0, 1_000.0],
        large_get: [30.0, 60.0, 110.0, 250.0, 700.0, 2_000.0],
        delete: [10.0, 30.0, 70.0, 150.0, 400.0, 1_500.0],
        list: [15.0, 50.0, 110.0, 250.0, 600.0, 2_000.0],
    };

    /// By name: `s3-standard`, or `none` for a store that answers at once.
    pub fn named(name: &str) -> Option<Option<Profile>> {
        match name {
            "s3-standard" => Some(Some(Profile::S3_STANDARD)),
            "none" => Some(None),
            _ => None,
        }
    }

    /// The latency at quantile `q` for a request that moves `size` bytes.
    pub fn latency(&self, verb: Verb, size: usize, q: f64) -> Duration {
        let by_size = |small: &Quantiles, large: &Quantiles| {
            let share = ((size as f64).clamp(SMALL, LARGE) / SMALL).ln() / (LARGE / SMALL).ln();
            at(small, q) * (1.0 - share) + at(large, q) * share
        };
        let ms = match verb {
            Verb::Put => by_size(&self.small_put, &self.large_put),
            Verb::Get | Verb::Head => by_size(&self.small_get, &self.large_get),
            Verb::Delete => at(&self.delete, q),
            Verb::List => at(&self.list, q),
        };
        Duration::from_secs_f64(ms / 1e3)
    }
}

fn at(quantiles: &Quantiles, q: f64) -> f64 {
    for i in 1..AT.len() {
        if q <= AT[i] {
            let share = (q - AT[i - 1]) / (AT[i] - AT[i - 1]);
            // Between two quantiles a latency grows geometrically, not linearly.
            return quantiles[i - 1] * (quantiles[i] / quantiles[i - 1]).powf(share);
        }
    }
    quantiles[AT.len() - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_come_out_as_they_went_in() {
        let profile = Profile::S3_STANDARD;
        assert_eq!(profile.latency(Verb::Put, 4 << 20, 0.5).as_millis(), 110);
        assert_eq!(profile.latency(Verb::Put, 100, 0.99).as_millis(), 120);
        assert_eq!(profile.latency(Verb::Get, 0, 0.5).as_millis(), 25);
        let middle = profile.latency(Verb::Put, 512 << 10, 0.5).as_millis();
        assert!((60..80).contains(&middle), "{middle}");
    }
}
