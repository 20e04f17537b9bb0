//! An HTTP proxy that makes a local S3 server as slow as a real one: it holds each answer back until a time drawn,
//! from a seed, from a table per verb and size.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::net::TcpListener;

/// Quantiles of a latency in milliseconds, at 0, 0.5, 0.9, 0.99, 0.999 and 1.
type Quantiles = [f64; 6];
const AT: Quantiles = [0.0, 0.5, 0.9, 0.99, 0.999, 1.0];

/// Latencies of a store.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// PUT of up to 64 KiB.
    small_put: Quantiles,
    /// PUT of 4 MiB.
    large_put: Quantiles,
    /// GET and everything else.
    get: Quantiles,
}

impl Profile {
    /// S3 Standard as published: PUT of 4 MiB p50 110, p99 350 ms; small PUT p50 30, p99 120; GET p50 25, p99 120.
    pub const S3_STANDARD: Profile = Profile {
        small_put: [12.0, 30.0, 60.0, 120.0, 300.0, 1_000.0],
        large_put: [60.0, 110.0, 180.0, 350.0, 900.0, 3_000.0],
        get: [8.0, 25.0, 60.0, 120.0, 400.0, 1_000.0],
    };

    /// The latency at quantile `q` for a request of `size` bytes.
    fn latency(&self, method: &Method, size: usize, q: f64) -> Duration {
        let ms = if *method == Method::PUT || *method == Method::POST {
            let (low, high) = (64.0 * 1024.0, 4096.0 * 1024.0);
            let share = ((size as f64).clamp(low, high) / low).ln() / (high / low).ln();
            at(&self.small_put, q) * (1.0 - share) + at(&self.large_put, q) * share
        } else {
            at(&self.get, q)
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

struct State {
    upstream: String,
    profile: Profile,
    random: Mutex<StdRng>,
    client: Client<HttpConnector, Full<Bytes>>,
}

/// Serves on `listen` in front of `upstream` (`host:port`) until the process ends. Prints nothing per request.
pub async fn serve(listen: &str, upstream: &str, profile: Profile, seed: u64) -> anyhow::Result<()> {
    let listener = TcpListener::bind(listen)
        .await
        .with_context(|| format!("cannot listen on {listen}"))?;
    let state = Arc::new(State {
        upstream: upstream.to_owned(),
        profile,
        random: Mutex::new(StdRng::seed_from_u64(seed)),
        client: Client::builder(TokioExecutor::new()).build_http(),
    });
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let state = state.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| handle(state.clone(), request));
            // A client that goes away is no fault of the proxy.
            let _ = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn handle(state: Arc<State>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let start = Instant::now();
    match forward(&state, request).await {
        Ok((method, size, response)) => {
            let q = state.random.lock().random_range(0.0..1.0);
            tokio::time::sleep_until((start + state.profile.latency(&method, size, q)).into()).await;
            Ok(response)
        }
        Err(error) => {
            let body = Full::new(Bytes::from(format!("{error:#}")));
            let mut response = Response::new(body);
            *response.status_mut() = hyper::StatusCode::BAD_GATEWAY;
            Ok(response)
        }
    }
}

async fn forward(
    state: &State,
    request: Request<Incoming>,
) -> anyhow::Result<(Method, usize, Response<Full<Bytes>>)> {
    let (mut head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let method = head.method.clone();
    let size = body.len();
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    // The Host header stays as it is: the client has signed it.
    head.uri = format!("http://{}{path}", state.upstream).parse()?;
    let response = state
        .client
        .request(Request::from_parts(head, Full::new(body)))
        .await?;
    let (head, body) = response.into_parts();
    let body = body.collect().await?.to_bytes();
    Ok((method, size, Response::from_parts(head, Full::new(body))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_come_out_as_they_went_in() {
        let profile = Profile::S3_STANDARD;
        assert_eq!(profile.latency(&Method::PUT, 4 << 20, 0.5).as_millis(), 110);
        assert_eq!(profile.latency(&Method::PUT, 100, 0.99).as_millis(), 120);
        assert_eq!(profile.latency(&Method::GET, 0, 0.5).as_millis(), 25);
        let middle = profile.latency(&Method::PUT, 512 << 10, 0.5).as_millis();
        assert!((60..80).contains(&middle), "{middle}");
    }
}
