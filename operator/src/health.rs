//! `/healthz` (the process runs), `/readyz` (the resource definitions are installed and the API server answers) and
//! `/metrics`. A replica that waits for the lease is ready: it can take over.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use env::Env;

use crate::metrics::Metrics;

/// Whether `/readyz` says yes.
#[derive(Debug, Clone, Default)]
pub struct Readiness(Arc<AtomicBool>);

impl Readiness {
    /// From now on the operator is ready.
    pub fn set_ready(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_ready(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Opens `address` and serves in the background.
///
/// # Errors
/// The address cannot be bound.
pub async fn serve(env: &Env, address: &str, ready: Readiness, metrics: Arc<Metrics>) -> io::Result<()> {
    let listener = HttpListener(env.listen(address).await?, env.clone());
    env.spawn(async move {
        if let Err(error) = axum::serve(listener, router(ready, metrics)).await {
            tracing::error!(%error, "health server ended");
        }
    });
    Ok(())
}

fn router(ready: Readiness, metrics: Arc<Metrics>) -> Router {
    let readyz = move || async move {
        if ready.is_ready() {
            (StatusCode::OK, "ok")
        } else {
            (
                StatusCode::SERVICE_UNAVAILABLE,
                "waiting for the custom resource definitions of diskless.dev",
            )
        }
    };
    let render = move || async move {
        let form = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        ([(header::CONTENT_TYPE, form)], metrics.render()).into_response()
    };
    Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(render))
}

struct HttpListener(env::Listener, Env);

impl axum::serve::Listener for HttpListener {
    type Io = env::Stream;
    type Addr = String;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            match self.0.accept().await {
                Ok(stream) => {
                    let peer = stream.peer().to_owned();
                    return (stream, peer);
                }
                Err(error) => {
                    // Out of file descriptors, most likely: it passes.
                    tracing::warn!(%error, "cannot accept a connection");
                    self.1.sleep(std::time::Duration::from_millis(200)).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        Ok(self.0.address().to_owned())
    }
}
