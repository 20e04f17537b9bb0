//! The command line: configuration, the runtime, signals.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use broker::config::Config;
use broker::metrics::StoreCollector;
use broker::server::Node;
use broker::stores::Stores;
use broker::telemetry;
use clap::{Parser, Subcommand};
use env::Env;
use tokio::signal::unix::{SignalKind, signal};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

// Deliberate bugs belong to the simulation: no broker is built with them.
const _: () = assert!(!env::HAS_MUTATIONS);

/// How long a node waits at its start for a store that does not answer yet.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Parser)]
#[command(
    name = "diskless-broker",
    version,
    about = "A Kafka broker that keeps its data in an object store"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a node of a cluster.
    Serve {
        /// TOML file; every key can also be given as DISKLESS_<SECTION>__<KEY>.
        #[arg(long)]
        config: PathBuf,
    },
    /// Look for objects that no part of the cluster knows, left behind by brokers that died. Changes nothing by itself.
    Orphans {
        /// The configuration of a node of the cluster.
        #[arg(long)]
        config: PathBuf,
        /// Have them deleted, after the grace period.
        #[arg(long)]
        delete: bool,
    },
    /// A whole Kafka in one process, on localhost.
    Dev {
        /// Folder for everything.
        #[arg(long, default_value = "diskless-data")]
        data: PathBuf,
        /// Port of the Kafka protocol.
        #[arg(long, default_value_t = 9092)]
        port: u16,
        /// Keep the data in this object store instead of the folder.
        #[arg(long)]
        object_store: Option<String>,
    },
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One line that names the culprit; the operator shows it as the reason.
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// What is done with a configuration.
enum Task {
    Serve { dev: bool },
    Orphans { delete: bool },
}

fn run(command: Command) -> anyhow::Result<()> {
    let (mut config, task) = match command {
        Command::Serve { config } => (Config::load(&config)?, Task::Serve { dev: false }),
        Command::Orphans { config, delete } => (Config::load(&config)?, Task::Orphans { delete }),
        Command::Dev {
            data,
            port,
            object_store,
        } => {
            let data = std::path::absolute(&data).with_context(|| format!("--data {}", data.display()))?;
            std::fs::create_dir_all(&data).with_context(|| format!("--data {}", data.display()))?;
            (
                Config::dev(&data, port, object_store.as_deref()),
                Task::Serve { dev: true },
            )
        }
    };
    if matches!(task, Task::Orphans { .. }) {
        // The answer is for people to read.
        config.log.level = "warn".to_owned();
    }
    telemetry::start(&config.log)?;
    rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .map_err(|_| anyhow::anyhow!("a TLS provider is installed already"))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("no runtime")?;
    match task {
        Task::Serve { dev } => runtime.block_on(serve(config, dev)),
        Task::Orphans { delete } => runtime.block_on(orphans(config, delete)),
    }
}

async fn orphans(config: Config, delete: bool) -> anyhow::Result<()> {
    let env = Env::production();
    let store = &config.object_store;
    let opened = blob::open(&store.url, store.credentials_dir.as_deref(), env.clone()).await?;
    let text = broker::orphans::command::run(&env, &config, opened.store, delete).await?;
    writeln!(std::io::stdout(), "{text}").context("cannot write to standard output")
}

async fn serve(config: Config, dev: bool) -> anyhow::Result<()> {
    let env = Env::production();
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT")?;
    let store = &config.object_store;
    let opened = blob::open(&store.url, store.credentials_dir.as_deref(), env.clone()).await?;
    let probed = env
        .timeout(PATIENCE, blob::probe(opened.store.as_ref(), &env))
        .await;
    probed
        .map_err(|_| anyhow::anyhow!("object_store.url: {}: no answer within {PATIENCE:?}", store.url))??;
    let url = store.url.clone();
    let stores = Stores::retrying(&opened.bare, &env);
    let node = Node::start(env.clone(), config, stores).await?;
    node.metrics().add(StoreCollector(opened.metrics));
    if dev {
        let ready = tokio::select! {
            () = node.ready() => true,
            _ = node.refused() => false,
        };
        if ready {
            let port = node.kafka_port().unwrap_or_default();
            eprintln!(
                "Kafka on localhost:{port} over {url} (metrics on http://localhost:{}/metrics)",
                node.admin_port()
            );
        }
    }
    let refused = tokio::select! {
        _ = terminate.recv() => None,
        _ = interrupt.recv() => None,
        reason = node.refused() => Some(reason),
    };
    tracing::info!("leaving");
    node.stop().await;
    refused.map_or(Ok(()), |reason| Err(reason.into()))
}
