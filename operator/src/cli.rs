//! The command line.

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Kubernetes operator for diskless Kafka clusters.
#[derive(Debug, Parser)]
#[command(name = "diskless-operator", version)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands of the binary.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the controllers.
    Run(Box<RunArgs>),
    /// Print the CustomResourceDefinitions as YAML.
    Crds,
}

/// Settings of `run`; every one can be given in the environment too.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// Watch this namespace only, so that a Role is enough; all namespaces when absent or empty.
    #[arg(long, env = "WATCH_NAMESPACE", default_value = "")]
    pub namespace: String,

    /// Image of brokers and coordinators for clusters that name none.
    #[arg(long, env = "DISKLESS_BROKER_IMAGE")]
    pub broker_image: String,

    /// Domain of the Kubernetes cluster, for the addresses that brokers advertise.
    #[arg(long, env = "CLUSTER_DOMAIN", default_value = "cluster.local")]
    pub cluster_domain: String,

    /// Address of /healthz, /readyz and /metrics.
    #[arg(long, env = "LISTEN_ADDRESS", default_value = "0.0.0.0:8080")]
    pub listen: String,

    /// Namespace of the leader lease.
    #[arg(long, env = "POD_NAMESPACE", default_value = "default")]
    pub lease_namespace: String,

    /// Name of this replica in the leader lease; unique among the replicas.
    #[arg(long, env = "POD_NAME")]
    pub identity: Option<String>,

    /// Address (host:port) of a broker to use for every cluster instead of its bootstrap Service; for an operator
    /// that runs outside of the Kubernetes cluster.
    #[arg(long, env = "DISKLESS_ADMIN_ADDRESS")]
    pub admin_address: Option<String>,

    /// Form of the log lines; their level is RUST_LOG.
    #[arg(long, env = "LOG_FORMAT", value_enum, default_value = "text")]
    pub log_format: LogFormat,
}

/// Form of the log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn run_needs_a_broker_image() {
        assert!(Cli::try_parse_from(["diskless-operator", "run"]).is_err());
        let cli = Cli::try_parse_from(["diskless-operator", "run", "--broker-image", "b:1"]).unwrap();
        let Command::Run(args) = cli.command else {
            panic!("not run")
        };
        assert_eq!((args.broker_image.as_str(), args.namespace.as_str()), ("b:1", ""));
    }
}
