//! `cargo xtask demo`: the whole system on a cluster of this machine, from `kubectl apply` to a consumed record.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, bail};
use clap::Parser;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::cluster::{self, Cluster, Layout};
use crate::image::{self, Kind};
use crate::run;
use crate::tools::{self, Tool};

mod measure;

use measure::{Histogram, calls};

/// Where the demo's cluster, its S3 server and its client run.
const NAMESPACE: &str = "diskless-demo";
const OPERATOR_NAMESPACE: &str = "diskless-system";
const QUICKSTART: &str = "docs/examples/quickstart.yaml";
const RECORDS: usize = 10_000;
/// Records handed to the producer at once, and how often: 2,000 records a second, so that the latencies are those of
/// a steady load and not of a queue.
const BURST: usize = 100;
const BURST_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Parser)]
pub struct Args {
    /// Leave the cluster up and print how to connect.
    #[arg(long)]
    keep: bool,
    /// Only remove what an earlier demo left.
    #[arg(long, conflicts_with = "keep")]
    down: bool,
    /// Name of the local cluster, apart from that of `cargo xtask cluster up`.
    #[arg(long, default_value = "demo")]
    name: String,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    if args.down {
        return down(&args.name);
    }
    match play(&args.name) {
        Ok(demo) if args.keep => demo.print_connection(),
        Ok(_) => down(&args.name),
        Err(error) => Err(error.context(
            "the demo failed; its cluster is left for a look, `cargo xtask demo --down` removes it",
        )),
    }
}

/// Removes everything: the cluster if it is ours, otherwise what the demo put into the user's.
fn down(name: &str) -> anyhow::Result<()> {
    let Ok(cluster) = Cluster::find(name) else {
        // Nothing there, but perhaps a container engine that was started for it.
        return cluster::down(name);
    };
    if cluster.is_ours() {
        return cluster::down(name);
    }
    run::step("removing the demo from the cluster of KUBECONFIG (its CustomResourceDefinitions stay)");
    let quickstart = run::root().join(QUICKSTART);
    let mut delete = cluster.kubectl()?;
    delete
        .args([
            "-n",
            NAMESPACE,
            "delete",
            "--ignore-not-found",
            "--timeout=120s",
            "-f",
        ])
        .arg(quickstart);
    run::quiet(&mut delete)?;
    let mut helm = Command::new(tools::path(Tool::Helm)?);
    helm.env("KUBECONFIG", &cluster.kubeconfig);
    helm.args([
        "uninstall",
        "diskless-operator",
        "-n",
        OPERATOR_NAMESPACE,
        "--ignore-not-found",
        "--wait",
    ]);
    run::quiet(&mut helm)?;
    let mut namespaces = cluster.kubectl()?;
    run::quiet(namespaces.args([
        "delete",
        "namespace",
        "--ignore-not-found",
        NAMESPACE,
        OPERATOR_NAMESPACE,
    ]))
}

/// A system that serves.
struct Demo {
    cluster: Cluster,
    /// Name of the DisklessCluster.
    name: String,
    /// Name of the topic in Kafka.
    topic: String,
}

fn play(name: &str) -> anyhow::Result<Demo> {
    let tag = image::content_tag()?;
    let images = image::build(&[Kind::Broker, Kind::Operator, Kind::S3, Kind::Client], &tag)?;
    let cluster = Cluster::up(name, &Layout::default())?;
    for built in &images {
        cluster.load(&built.archive)?;
    }
    run::step("starting an S3 server and a client");
    namespace(&cluster)?;
    for manifest in ["s3.yaml", "client.yaml"] {
        let text = std::fs::read_to_string(run::root().join("e2e/kind/manifests").join(manifest))?;
        let text = [Kind::S3, Kind::Client].iter().fold(text, |text, kind| {
            let name = kind.image(&tag);
            text.replace(
                &format!("image: {name}"),
                &format!("image: {}", cluster.image(&name)),
            )
        });
        run::feed(
            cluster.kubectl()?.args(["-n", NAMESPACE, "apply", "-f", "-"]),
            text.as_bytes(),
        )?;
    }
    run::quiet(cluster.kubectl()?.args([
        "-n",
        NAMESPACE,
        "rollout",
        "status",
        "deployment/s3",
        "--timeout=120s",
    ]))?;
    let wait = [
        "-n",
        NAMESPACE,
        "wait",
        "pod/client",
        "--for=condition=Ready",
        "--timeout=120s",
    ];
    run::quiet(cluster.kubectl()?.args(wait))?;
    install_operator(&cluster, &tag)?;

    run::step(format!("applying {QUICKSTART}"));
    let quickstart = run::root().join(QUICKSTART);
    run::quiet(
        cluster
            .kubectl()?
            .args(["-n", NAMESPACE, "apply", "-f"])
            .arg(&quickstart),
    )?;
    let objects = cluster.get(&["-n", NAMESPACE, "-f", &quickstart.to_string_lossy()])?;
    let of_kind = |kind: &str| {
        let items = objects["items"].as_array().map_or(&[][..], Vec::as_slice);
        let found = items.iter().find(|item| item["kind"] == kind);
        found.with_context(|| format!("{QUICKSTART} has no {kind}"))
    };
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let cluster_name =
        text(&of_kind("DisklessCluster")?["metadata"]["name"]).context("a cluster without a name")?;
    let topic = of_kind("DisklessTopic")?;
    let topic_object = text(&topic["metadata"]["name"]).context("a topic without a name")?;
    let topic = text(&topic["spec"]["topicName"]).unwrap_or_else(|| topic_object.clone());
    await_ready(&cluster, "disklesscluster", &cluster_name)?;
    await_ready(&cluster, "disklesstopic", &topic_object)?;

    let demo = Demo {
        cluster,
        name: cluster_name,
        topic,
    };
    demo.round_trip()?;
    Ok(demo)
}

fn namespace(cluster: &Cluster) -> anyhow::Result<()> {
    if !run::succeeds(cluster.kubectl()?.args(["get", "namespace", NAMESPACE])) {
        run::quiet(cluster.kubectl()?.args(["create", "namespace", NAMESPACE]))?;
    }
    // The strictest standard holds for everything in it.
    let label = "pod-security.kubernetes.io/enforce=restricted";
    run::quiet(
        cluster
            .kubectl()?
            .args(["label", "--overwrite", "namespace", NAMESPACE, label]),
    )
}

fn install_operator(cluster: &Cluster, tag: &str) -> anyhow::Result<()> {
    run::step("installing the operator by its Helm chart");
    let operator = cluster.image(&Kind::Operator.image(tag));
    let repository = operator.strip_suffix(&format!(":{tag}")).unwrap_or(&operator);
    let mut helm = Command::new(tools::path(Tool::Helm)?);
    helm.env("KUBECONFIG", &cluster.kubeconfig);
    helm.args(["upgrade", "--install", "diskless-operator"])
        .arg(run::root().join("charts/diskless-operator"));
    helm.args([
        "-n",
        OPERATOR_NAMESPACE,
        "--create-namespace",
        "--wait",
        "--timeout",
        "120s",
    ]);
    for (key, value) in [
        ("image.repository", repository),
        ("image.tag", tag),
        ("brokerImage", &cluster.image(&Kind::Broker.image(tag))),
    ] {
        helm.arg("--set-string").arg(format!("{key}={value}"));
    }
    run::quiet(&mut helm)
}

/// Waits until an object's condition Ready is true for its newest generation, and tells what it says meanwhile.
fn await_ready(cluster: &Cluster, kind: &str, name: &str) -> anyhow::Result<()> {
    run::step(format!("waiting for {kind} {name} to be Ready"));
    let deadline = Instant::now() + Duration::from_secs(300);
    let mut said = String::new();
    loop {
        let object = cluster.get(&["-n", NAMESPACE, kind, name])?;
        let conditions = object["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let ready = conditions.iter().find(|c| c["type"] == "Ready");
        let current = object["metadata"]["generation"] == object["status"]["observedGeneration"];
        if current && ready.is_some_and(|c| c["status"] == "True") {
            return Ok(());
        }
        let message = ready
            .and_then(|c| c["message"].as_str())
            .unwrap_or("not looked at yet")
            .to_owned();
        if message != said {
            run::step(format!("  {message}"));
            said = message;
        }
        if Instant::now() > deadline {
            let all = serde_json::to_string_pretty(&conditions)?;
            bail!("{kind} {name} was not Ready within 5 minutes; its conditions:\n{all}");
        }
        sleep(Duration::from_secs(1));
    }
}

impl Demo {
    fn bootstrap(&self) -> String {
        format!("{}-bootstrap:9092", self.name)
    }

    /// `kubectl exec` of a program in the client pod.
    fn client(&self, command: &[&str]) -> anyhow::Result<Command> {
        let mut exec = self.cluster.kubectl()?;
        exec.args(["-n", NAMESPACE, "exec", "-i", "client", "--"])
            .args(command);
        Ok(exec)
    }

    /// Produces and consumes, compares, and prints the table.
    fn round_trip(&self) -> anyhow::Result<()> {
        let run_id = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)?
            .as_secs()
            .to_string();
        let start = run::output(&mut self.client(&["date", "-u", "+%Y-%m-%dT%H:%M:%SZ"])?)?;
        let before = self.latencies()?;
        run::step(format!(
            "producing {RECORDS} records to topic {} with kcat",
            self.topic
        ));
        let mut sent = records(&run_id);
        self.produce(&sent)?;
        run::step("consuming them with kcat");
        let mut received = self.consume(&run_id)?;
        // The order of records holds within a partition only.
        sent.sort();
        received.sort();
        if sent != received {
            let missing = sent
                .iter()
                .filter(|record| received.binary_search(record).is_err())
                .count();
            bail!(
                "sent {} records and received {}: {missing} of those sent are missing",
                sent.len(),
                received.len()
            );
        }
        run::step("all records came back, byte for byte");
        let produce = self.latencies()?.since(&before);
        let since = format!("--since-time={start}");
        let mut logs = self.cluster.kubectl()?;
        let log = run::output(logs.args(["-n", NAMESPACE, "logs", "deployment/s3", "-c", "s3", &since]))?;
        self.print_table(sent.len(), &produce, &log)
    }

    fn produce(&self, records: &[String]) -> anyhow::Result<()> {
        let mut kcat = self.client(&["kcat", "-P", "-b", &self.bootstrap(), "-t", &self.topic])?;
        kcat.args(["-X", "acks=all", "-X", "enable.idempotence=true"]);
        let mut child = kcat
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start kubectl")?;
        let mut stdin = child.stdin.take().context("kubectl without standard input")?;
        let mut next = Instant::now();
        for burst in records.chunks(BURST) {
            let lines: String = burst.iter().flat_map(|record| [record, "\n"]).collect();
            if stdin.write_all(lines.as_bytes()).is_err() {
                break; // It ended: its own words say why.
            }
            next += BURST_INTERVAL;
            sleep(next.saturating_duration_since(Instant::now()));
        }
        drop(stdin);
        let out = child.wait_with_output()?;
        if !out.status.success() {
            bail!(
                "kcat could not produce: {}",
                String::from_utf8_lossy(&out.stderr).trim()
            );
        }
        Ok(())
    }

    /// The records of this run, in the order of arrival.
    fn consume(&self, run_id: &str) -> anyhow::Result<Vec<String>> {
        let mut kcat = self.client(&["kcat", "-C", "-b", &self.bootstrap(), "-t", &self.topic])?;
        let out = run::output(kcat.args(["-o", "beginning", "-e", "-q", "-X", "check.crcs=true"]))?;
        // An earlier run left its records in the topic.
        Ok(out
            .lines()
            .filter(|line| line.starts_with(run_id))
            .map(str::to_owned)
            .collect())
    }

    /// Produce latencies of all brokers together, since each started.
    fn latencies(&self) -> anyhow::Result<Histogram> {
        let mut sum = Histogram::default();
        for pod in self.pods()? {
            let path = format!(
                "/api/v1/namespaces/{NAMESPACE}/pods/{}:9644/proxy/metrics",
                pod.name
            );
            sum.add(&run::output(
                self.cluster.kubectl()?.args(["get", "--raw", &path]),
            )?);
        }
        Ok(sum)
    }

    /// Brokers and coordinators.
    fn pods(&self) -> anyhow::Result<Vec<Pod>> {
        let nodes = self.cluster.get(&["nodes"])?;
        let zone_of = |node: &Value| {
            let nodes = nodes["items"].as_array()?;
            let node = nodes.iter().find(|item| item["metadata"]["name"] == *node)?;
            node["metadata"]["labels"]["topology.kubernetes.io/zone"]
                .as_str()
                .map(str::to_owned)
        };
        let pods = self.cluster.get(&["-n", NAMESPACE, "pods"])?;
        let prefix = format!("{}-", self.name);
        Ok(pods["items"]
            .as_array()
            .context("kubectl gave no list of pods")?
            .iter()
            .filter_map(|pod| {
                let name = pod["metadata"]["name"]
                    .as_str()
                    .filter(|name| name.starts_with(&prefix))?;
                let node = &pod["spec"]["nodeName"];
                Some(Pod {
                    name: name.to_owned(),
                    node: node.as_str()?.to_owned(),
                    zone: zone_of(node).unwrap_or_default(),
                })
            })
            .collect())
    }

    fn print_table(&self, records: usize, produce: &Histogram, log: &str) -> anyhow::Result<()> {
        let mut table = String::new();
        let mut pods = self.pods()?;
        pods.sort_by(|a, b| (&a.zone, &a.name).cmp(&(&b.zone, &b.name)));
        writeln!(table, "\n{:<6} {:<24} node", "zone", "pod")?;
        for pod in &pods {
            writeln!(table, "{:<6} {:<24} {}", pod.zone, pod.name, pod.node)?;
        }
        let ms = |quantile| {
            produce
                .quantile(quantile)
                .map_or_else(|| "?".to_owned(), |ms| format!("{ms:.0} ms"))
        };
        writeln!(
            table,
            "\nrecords   {records} produced, {records} consumed, equal byte for byte"
        )?;
        let requests = produce.count();
        writeln!(
            table,
            "produce   P50 {}, P99 {} ({requests} requests, seen by the brokers)",
            ms(0.5),
            ms(0.99)
        )?;
        let (puts, gets) = (calls(log, "s3_PutObject"), calls(log, "s3_GetObject"));
        writeln!(
            table,
            "S3        {puts} PUTs, {gets} GETs from the first produced to the last consumed record"
        )?;
        print!("{table}");
        Ok(())
    }

    fn print_connection(&self) -> anyhow::Result<()> {
        let kubectl = tools::path(Tool::Kubectl)?;
        let kubectl = kubectl.display();
        println!("\nThe cluster is up. To look around:");
        println!("  export KUBECONFIG={}", self.cluster.kubeconfig.display());
        println!("  {kubectl} -n {NAMESPACE} get diskless,pods");
        println!(
            "  {kubectl} -n {NAMESPACE} exec -it client -- kcat -b {} -L",
            self.bootstrap()
        );
        println!(
            "  {kubectl} -n {NAMESPACE} exec -it client -- kcat -b {} -C -t {}",
            self.bootstrap(),
            self.topic
        );
        println!("To remove all of it: cargo xtask demo --down");
        Ok(())
    }
}

struct Pod {
    name: String,
    node: String,
    zone: String,
}

/// Records of about 150 bytes, none equal to another, that tell their run.
fn records(run_id: &str) -> Vec<String> {
    (0..RECORDS)
        .map(|i| {
            let id = format!("{run_id}-{i:05}");
            let filler: String = Sha256::digest(&id)
                .iter()
                .map(|byte| format!("{byte:02x}{byte:02X}"))
                .collect();
            format!("{id} {filler}")
        })
        .collect()
}
