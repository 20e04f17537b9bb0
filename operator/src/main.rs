//! `diskless-operator`: wiring only.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Parser;
use env::Env;
use kube::{Api, Client, Config};
use operator::cli::{Cli, Command, RunArgs};
use operator::context::{Context, Settings};
use operator::health::{self, Readiness};
use operator::lease::Election;
use operator::metrics::Metrics;
use operator::{controllers, telemetry};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Thousands of small objects come and go with each watch; this allocator gives their pages back.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Reconciles that are running get this long to end at shutdown.
const DRAIN: Duration = Duration::from_secs(20);

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Run(args) => run(*args).await,
        Command::Crds => {
            use std::io::Write;
            let yaml = crds::to_yaml().map_err(|error| anyhow::anyhow!(error))?;
            std::io::stdout()
                .write_all(yaml.as_bytes())
                .context("cannot write to standard output")
        }
    }
}

async fn run(args: RunArgs) -> anyhow::Result<()> {
    telemetry::init(args.log_format);
    if rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .is_err()
    {
        bail!("another TLS provider is installed already");
    }
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let stop = async move {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
    };
    tokio::pin!(stop);

    let env = Env::production();
    let metrics = Arc::new(Metrics::default());
    let ready = Readiness::default();
    health::serve(&env, &args.listen, ready.clone(), metrics.clone())
        .await
        .with_context(|| format!("cannot listen on {} (--listen)", args.listen))?;
    let mut config = Config::infer().await.context("no Kubernetes configuration")?;
    // The client would retry a refused eviction by itself, long after the look at the pods that it was decided on.
    // Reconciles are retried as a whole.
    config.default_retry = false;
    let client = Client::try_from(config).context("unusable Kubernetes configuration")?;
    let identity = args
        .identity
        .clone()
        .unwrap_or_else(|| format!("diskless-operator-{}", env.uuid()));

    tokio::select! {
        () = wait_for_definitions(&client, &env) => ready.set_ready(),
        () = &mut stop => return Ok(()),
    }
    let election = Election::new(
        Api::namespaced(client.clone(), &args.lease_namespace),
        identity.clone(),
        env.clone(),
    );
    tracing::info!(identity, "waiting for the leader lease");
    tokio::select! {
        () = election.acquire() => metrics.set_leader(true),
        () = &mut stop => return Ok(()),
    }
    tracing::info!(identity, namespace = args.namespace, "leading");

    let settings = Settings {
        namespace: Some(args.namespace).filter(|namespace| !namespace.is_empty()),
        broker_image: args.broker_image,
        cluster_domain: args.cluster_domain,
        admin_address: args.admin_address,
    };
    let context = Context::new(client, env.clone(), metrics.clone(), settings, identity);
    let (shutdown, watched) = watch::channel(false);
    let stopped = |mut watched: watch::Receiver<bool>| async move {
        // An error means that the sender is gone, which is a shutdown too.
        let _ = watched.wait_for(|stop| *stop).await;
    };
    let clusters = env.spawn(controllers::cluster::run(
        context.clone(),
        stopped(watched.clone()),
    ));
    let topics = env.spawn(controllers::topic::run(context, stopped(watched)));
    let lost = tokio::select! {
        () = &mut stop => false,
        () = election.hold() => true,
    };
    metrics.set_leader(false);
    if lost {
        // Another replica may lead at any moment: what is running here must not go on.
        bail!("lost the leader lease");
    }
    let _ = shutdown.send(true);
    if env
        .timeout(DRAIN, futures::future::join(clusters, topics))
        .await
        .is_err()
    {
        tracing::warn!("reconciles did not end in time");
    }
    election.release().await;
    Ok(())
}

/// Waits until the API server knows both kinds. They may be installed after the operator.
async fn wait_for_definitions(client: &Client, env: &Env) {
    let group_version = format!("{}/{}", crds::GROUP, crds::VERSION);
    let mut said = false;
    loop {
        let missing = match client.list_api_group_resources(&group_version).await {
            Ok(list) => {
                let kinds = ["DisklessCluster", "DisklessTopic"];
                let missing = kinds
                    .into_iter()
                    .find(|kind| !list.resources.iter().any(|r| r.kind == *kind));
                match missing {
                    None => return,
                    Some(kind) => format!("kind {kind} of {group_version} is not installed"),
                }
            }
            Err(kube::Error::Api(status)) if status.code == 404 => {
                format!("{group_version} is not installed")
            }
            Err(error) => format!("cannot ask for {group_version}: {error}"),
        };
        if !said {
            tracing::warn!("waiting for the custom resource definitions: {missing}");
            said = true;
        }
        env.sleep(Duration::from_millis(500)).await;
    }
}
