//! One entry point for every habit of the project: `cargo xtask <command>`.
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::indexing_slicing,
    missing_docs,
    reason = "a tool for developers: it prints, waits and starts processes"
)]

use clap::{Parser, Subcommand};

mod bench;
mod cluster;
mod demo;
mod fuzz;
mod generate;
mod image;
mod lint;
mod run;
mod sim;
mod test;
mod tools;

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    about = "Build, test and run everything of this repository"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Throughput, latency and cost, with Apache Kafka beside it.
    Bench(bench::Args),
    /// A local Kubernetes cluster of three zones (kind), and faults for it.
    Cluster(cluster::Args),
    /// The whole system on a local cluster, from `kubectl apply` to a consumed record.
    Demo(demo::Args),
    /// The decoders on made-up input (libFuzzer).
    Fuzz(fuzz::Args),
    /// Write what is generated: CRDs, chart CRDs, API reference.
    Generate(generate::Args),
    /// Build the container images without a container engine.
    Image(image::Args),
    /// Formatting, clippy, dependency rules, licences.
    Lint(lint::Args),
    /// The simulation: whole clusters from a seed.
    Sim(sim::Args),
    /// Every test there is, ending in one line `N passed, N failed`.
    Test(test::Args),
    /// Build the external tools that tests use and print where they are.
    Tools(tools::Args),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Bench(args) => bench::run(args),
        Command::Cluster(args) => cluster::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Fuzz(args) => fuzz::run(args),
        Command::Generate(args) => generate::run(args),
        Command::Image(args) => image::run(args),
        Command::Lint(args) => lint::run(args),
        Command::Sim(args) => sim::run(args),
        Command::Test(args) => test::run(args),
        Command::Tools(args) => tools::run(args),
    }
}
