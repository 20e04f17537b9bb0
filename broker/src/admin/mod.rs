//! The admin listener: `/healthz` (the process answers), `/readyz` (it is in the cluster), `/metrics` (Prometheus).

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use env::{Env, Listener, Stream};

use crate::metrics::Metrics;

/// What the admin listener answers from.
pub trait Health: Send + Sync + 'static {
    /// `Err` says in words why the node is not ready.
    fn ready(&self) -> Result<(), String>;
}

#[derive(Clone)]
struct Admin {
    health: Arc<dyn Health>,
    metrics: Arc<Metrics>,
}

/// Serves `listener` until the node ends.
pub async fn serve(env: Env, listener: Listener, health: Arc<dyn Health>, metrics: Arc<Metrics>) {
    let routes = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(text))
        .with_state(Admin { health, metrics });
    let address = listener.address().to_owned();
    if let Err(error) = axum::serve(Incoming { env, listener }, routes).await {
        tracing::error!(%error, address, "the admin listener ended");
    }
}

async fn ready(State(admin): State<Admin>) -> (StatusCode, String) {
    match admin.health.ready() {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

async fn text(State(admin): State<Admin>) -> impl IntoResponse {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], admin.metrics.text())
}

/// [`Listener`] as axum wants it.
struct Incoming {
    env: Env,
    listener: Listener,
}

impl axum::serve::Listener for Incoming {
    type Io = Stream;
    type Addr = String;

    async fn accept(&mut self) -> (Stream, String) {
        loop {
            match self.listener.accept().await {
                Ok(stream) => {
                    let peer = stream.peer().to_owned();
                    return (stream, peer);
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept an admin connection");
                    self.env.sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<String> {
        Ok(self.listener.address().to_owned())
    }
}
