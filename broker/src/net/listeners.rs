use std::sync::Arc;
use std::time::Duration;

use env::{Env, Instant, JoinHandle, Listener};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::connection::{self, Shared};
use super::memory::MemoryBudget;
use super::{Handler, Peer};
use crate::config::Listeners;
use crate::metrics::Metrics;

/// After a failed accept (no file descriptors left): wait for some to be freed.
const PAUSE: Duration = Duration::from_millis(50);

/// The listeners of a broker and their connections.
pub struct Net {
    env: Env,
    /// Port for clients of unknown zone.
    port: u16,
    /// Port of each zone.
    zone_ports: Vec<(String, u16)>,
    stop: CancellationToken,
    accepting: Vec<JoinHandle<()>>,
    connections: Arc<Semaphore>,
    max_connections: usize,
}

/// Binds all ports and serves them. An error names the setting.
pub async fn start(
    env: Env,
    config: &Listeners,
    budget: MemoryBudget,
    handler: Arc<dyn Handler>,
    metrics: Arc<Metrics>,
) -> std::io::Result<Net> {
    let mut bound = vec![(None, bind(&env, config, "listeners.port", config.port).await?)];
    for (zone, port) in &config.zones {
        bound.push((
            Some(zone.clone()),
            bind(&env, config, "listeners.zones", *port).await?,
        ));
    }
    let ports = bound
        .iter()
        .map(|(zone, listener)| (zone.clone(), listener.port()));
    let zone_ports = ports.filter_map(|(zone, port)| Some((zone?, port))).collect();
    let port = bound.first().map_or(0, |(_, listener)| listener.port());
    let connections = Arc::new(Semaphore::new(config.max_connections));
    let stop = CancellationToken::new();
    let shared = Arc::new(Shared {
        env: env.clone(),
        budget,
        handler,
        metrics,
        stop: stop.clone(),
    });
    let accepting = bound
        .into_iter()
        .map(|(zone, listener)| {
            let zone = zone.map(Arc::from);
            env.spawn(accept(shared.clone(), listener, zone, connections.clone()))
        })
        .collect();
    Ok(Net {
        env,
        port,
        zone_ports,
        stop,
        accepting,
        connections,
        max_connections: config.max_connections,
    })
}

async fn bind(env: &Env, config: &Listeners, setting: &str, port: u16) -> std::io::Result<Listener> {
    let address = format!("{}:{port}", config.host);
    env.listen(&address).await.map_err(|error| {
        std::io::Error::new(
            error.kind(),
            format!("{setting}: cannot listen on {address}: {error}"),
        )
    })
}

async fn accept(shared: Arc<Shared>, mut listener: Listener, zone: Option<Arc<str>>, limit: Arc<Semaphore>) {
    loop {
        let accepted = tokio::select! {
            biased;
            () = shared.stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok(stream) => {
                let Ok(slot) = limit.clone().try_acquire_owned() else {
                    shared.metrics.connections_refused.inc();
                    continue;
                };
                let host = stream
                    .peer()
                    .rsplit_once(':')
                    .map_or(stream.peer(), |(host, _)| host);
                let peer = Peer {
                    host: Arc::from(format!("/{host}")),
                    zone: zone.clone(),
                };
                let shared = shared.clone();
                shared.env.clone().spawn(async move {
                    shared.metrics.connections.inc();
                    connection::serve(&shared, stream, peer).await;
                    shared.metrics.connections.dec();
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                shared.env.sleep(PAUSE).await;
            }
        }
    }
}

impl Net {
    /// Port for clients of unknown zone, as bound.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Port for the clients of each zone, as bound.
    pub fn zone_ports(&self) -> &[(String, u16)] {
        &self.zone_ports
    }

    /// Takes no more connections and requests, and waits until those that were read are answered, at most until
    /// `deadline`.
    pub async fn stop(self, deadline: Instant) {
        self.stop.cancel();
        for task in self.accepting {
            task.await;
        }
        let all = u32::try_from(self.max_connections).unwrap_or(u32::MAX);
        if self
            .env
            .timeout_at(deadline, self.connections.acquire_many(all))
            .await
            .is_err()
        {
            tracing::warn!("connections are closed with requests unanswered");
        }
    }
}
