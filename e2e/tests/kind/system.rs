//! The demo's system and what the tests do with it.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, bail};
use serde_json::Value;

/// Name of the kind cluster, apart from those that people use.
pub const CLUSTER: &str = "e2e";
/// Where the demo puts the Kafka cluster.
pub const NAMESPACE: &str = "diskless-demo";
const OPERATOR_NAMESPACE: &str = "diskless-system";
/// The topic that is written and read.
pub const TOPIC: &str = "orders";
const SETTLE: Duration = Duration::from_secs(300);

/// Runs `cargo xtask …`.
pub fn xtask(args: &[&str]) -> anyhow::Result<()> {
    let status = xtask_command(args).status()?;
    if !status.success() {
        bail!("cargo xtask {} ended with {status}", args.join(" "));
    }
    Ok(())
}

fn xtask_command(args: &[&str]) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(["run", "--quiet", "--package", "xtask", "--"])
        .args(args)
        .current_dir(e2e::root());
    command
}

/// Bytes that each zone has sent to each zone.
pub type ZoneBytes = BTreeMap<String, BTreeMap<String, u64>>;

/// What the nodes have counted, `--reset`: since the last time.
pub fn zone_bytes(more: &[&str]) -> anyhow::Result<ZoneBytes> {
    let args = [&["cluster", "zone-bytes", "--json", "--name", CLUSTER], more].concat();
    Ok(serde_json::from_str(&succeed(&mut xtask_command(&args))?)?)
}

/// Zones that do not reach each other, until it is dropped.
pub struct Cut;

impl Cut {
    pub fn between(zone: &str, other: &str) -> anyhow::Result<Cut> {
        let cut = Cut;
        xtask(&["cluster", "cut", zone, other, "--name", CLUSTER])?;
        Ok(cut)
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        if let Err(error) = xtask(&["cluster", "heal", "--name", CLUSTER]) {
            println!("{error:#}");
        }
    }
}

/// A pod with kcat, and the brokers that it is told.
pub struct Client {
    pod: String,
    bootstrap: String,
}

impl Client {
    /// The demo's, which may be anywhere.
    pub fn anywhere() -> Client {
        Client::at("demo-bootstrap:9092")
    }

    /// The demo's, with another cluster.
    pub fn at(bootstrap: &str) -> Client {
        Client {
            pod: "client".to_owned(),
            bootstrap: bootstrap.to_owned(),
        }
    }

    /// One in a zone.
    pub fn in_zone(system: &System, zone: &str) -> anyhow::Result<Client> {
        let pod = format!("client-{zone}");
        let manifest = std::fs::read_to_string(e2e::root().join("e2e/kind/manifests/client.yaml"))?;
        let mut object: Value = serde_saphyr::from_str(&manifest)?;
        object["metadata"]["name"] = pod.clone().into();
        object["spec"]["nodeSelector"] = serde_json::json!({"topology.kubernetes.io/zone": zone});
        object["spec"]["containers"][0]["image"] =
            system.get(&["pod", "client"])?["spec"]["containers"][0]["image"].clone();
        system.apply(&object.to_string())?;
        system.kubectl(&[
            "wait",
            &format!("pod/{pod}"),
            "--for=condition=Ready",
            "--timeout=60s",
        ])?;
        Ok(Client {
            pod,
            bootstrap: format!("demo-{zone}-bootstrap:9092"),
        })
    }

    /// Whether it gets an answer from the first broker of `zone`.
    pub fn reaches(&self, system: &System, zone: &str) -> anyhow::Result<bool> {
        let mut command = system.command(NAMESPACE);
        command.args(["exec", &self.pod, "--", "kcat", "-L", "-m", "5"]);
        command.args(["-b", &format!("demo-{zone}-0.demo-brokers:9092")]);
        Ok(command.output()?.status.success())
    }

    fn kcat(&self, system: &System, mode: &str) -> Command {
        let mut command = system.command(NAMESPACE);
        command.args(["exec", "-i", &self.pod, "--", "kcat", mode]);
        command.args(["-b", &self.bootstrap, "-t", TOPIC]);
        command
    }
}

/// The system, brought up by the first who asks.
pub fn system() -> anyhow::Result<&'static System> {
    static SYSTEM: OnceLock<Result<System, String>> = OnceLock::new();
    let system = SYSTEM.get_or_init(|| System::start().map_err(|error| format!("{error:#}")));
    system.as_ref().map_err(|error| anyhow::anyhow!("{error}"))
}

pub struct System {
    kubectl: PathBuf,
    kubeconfig: PathBuf,
}

/// Where xtask keeps what it makes.
fn cache() -> anyhow::Result<PathBuf> {
    if let Some(dir) = std::env::var_os("DISKLESS_CACHE") {
        return Ok(PathBuf::from(dir));
    }
    let base = match std::env::var_os("XDG_CACHE_HOME") {
        Some(dir) => PathBuf::from(dir),
        None => PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?).join(".cache"),
    };
    Ok(base.join("diskless"))
}

impl System {
    fn start() -> anyhow::Result<System> {
        xtask(&["demo", "--keep", "--name", CLUSTER])?;
        let kubectl = e2e::clients::tool("kubectl")?;
        Ok(System {
            kubectl,
            kubeconfig: cache()?.join("clusters").join(CLUSTER).join("kubeconfig"),
        })
    }

    fn command(&self, namespace: &str) -> Command {
        let mut command = Command::new(&self.kubectl);
        command
            .env("KUBECONFIG", &self.kubeconfig)
            .args(["-n", namespace]);
        command
    }

    /// `kubectl` in the namespace of the Kafka cluster.
    pub fn kubectl(&self, args: &[&str]) -> anyhow::Result<()> {
        self.output(args).map(drop)
    }

    /// The same, with what it prints.
    pub fn output(&self, args: &[&str]) -> anyhow::Result<String> {
        succeed(self.command(NAMESPACE).args(args))
    }

    /// `kubectl apply` there.
    pub fn apply(&self, objects: &str) -> anyhow::Result<()> {
        let mut apply = self.command(NAMESPACE);
        apply
            .args(["apply", "-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        let mut apply = apply.spawn()?;
        let mut stdin = apply.stdin.take().context("no stdin")?;
        stdin.write_all(objects.as_bytes())?;
        drop(stdin);
        if !apply.wait()?.success() {
            bail!("these objects cannot be made:\n{objects}");
        }
        Ok(())
    }

    /// `kubectl` in the operator's namespace.
    pub fn operator_kubectl(&self, args: &[&str]) -> anyhow::Result<()> {
        succeed(self.command(OPERATOR_NAMESPACE).args(args)).map(drop)
    }

    /// `kubectl get … -o json`.
    pub fn get(&self, args: &[&str]) -> anyhow::Result<Value> {
        let text = succeed(self.command(NAMESPACE).arg("get").args(args).args(["-o", "json"]))?;
        Ok(serde_json::from_str(&text)?)
    }

    fn pods(&self) -> anyhow::Result<Vec<Value>> {
        let list = self.get(&["pods"])?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    /// Until it is so.
    pub fn wait(&self, what: &str, mut done: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
        let start = Instant::now();
        loop {
            // The API server may be out of reach for a moment while a node is gone.
            if done().unwrap_or(false) {
                return Ok(());
            }
            if start.elapsed() > SETTLE {
                let pods =
                    succeed(self.command(NAMESPACE).args(["get", "pods", "-o", "wide"])).unwrap_or_default();
                let cluster = self.get(&["disklesscluster", "demo"]).unwrap_or_default();
                bail!(
                    "{what}: not within {SETTLE:?}\n{pods}\n{:#}",
                    cluster["status"]["conditions"]
                );
            }
            std::thread::sleep(Duration::from_secs(1));
        }
    }

    /// The cluster is Ready for its newest generation and every pod of it is ready.
    fn is_settled(&self) -> anyhow::Result<bool> {
        let cluster = self.get(&["disklesscluster", "demo"])?;
        let conditions = cluster["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let current = cluster["status"]["observedGeneration"] == cluster["metadata"]["generation"];
        let ready = conditions
            .iter()
            .any(|c| c["type"] == "Ready" && c["status"] == "True");
        Ok(current && ready && self.pods()?.iter().all(is_ready))
    }

    pub fn await_settled(&self) -> anyhow::Result<()> {
        self.wait("the cluster is Ready", || self.is_settled())
    }

    pub fn await_brokers(&self, count: usize) -> anyhow::Result<()> {
        self.wait(&format!("{count} brokers"), || {
            let pods = self.pods()?;
            let is_broker = |pod: &&Value| {
                let name = pod["metadata"]["name"].as_str().unwrap_or_default();
                ["demo-a-", "demo-b-", "demo-c-"]
                    .iter()
                    .any(|prefix| name.starts_with(prefix))
            };
            Ok(pods.iter().filter(is_broker).count() == count && self.is_settled()?)
        })
    }

    /// Every broker and coordinator runs `image`.
    pub fn await_image(&self, image: &str) -> anyhow::Result<()> {
        self.wait(&format!("every pod runs {image}"), || {
            let pods = self.pods()?;
            let ours = pods.iter().filter(|pod| {
                pod["metadata"]["name"]
                    .as_str()
                    .is_some_and(|name| name.starts_with("demo-"))
            });
            let running = |pod: &Value| {
                pod["spec"]["containers"][0]["image"]
                    .as_str()
                    .is_some_and(|i| i.ends_with(image))
            };
            let ours: Vec<&Value> = ours.collect();
            Ok(ours.len() > 3 && ours.iter().all(|pod| running(pod) && is_ready(pod)))
        })
    }

    /// A worker with a broker, but without what the test itself needs (the bucket, the client).
    pub fn node_to_kill(&self) -> anyhow::Result<String> {
        let mut by_node: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for pod in self.pods()? {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            by_node
                .entry(text(&pod["spec"]["nodeName"]))
                .or_default()
                .push(text(&pod["metadata"]["name"]));
        }
        let fits = |pods: &Vec<String>| {
            let has = |prefix: &str| pods.iter().any(|pod| pod.starts_with(prefix));
            !has("s3") && !has("client") && (has("demo-a-") || has("demo-b-") || has("demo-c-"))
        };
        let found = by_node
            .iter()
            .find(|(_, pods)| fits(pods))
            .map(|(node, _)| node.clone());
        found.with_context(|| format!("no node can be killed: {by_node:?}"))
    }
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    pod["metadata"]["deletionTimestamp"].is_null()
        && conditions
            .iter()
            .any(|c| c["type"] == "Ready" && c["status"] == "True")
}

fn succeed(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output()?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// What is produced: how many records of how many bytes, and how long to wait after each.
#[derive(Clone, Copy)]
pub struct Load {
    pub count: usize,
    pub size: usize,
    pub pause: Duration,
}

/// kcat in a client pod, fed with records at a steady pace.
pub struct Producing {
    sent: Vec<String>,
    run: JoinHandle<anyhow::Result<()>>,
}

impl Producing {
    pub fn start(system: &System, client: &Client, name: &str, load: Load) -> anyhow::Result<Producing> {
        let unique = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)?
            .as_millis();
        let text = |i: usize| format!("{name}-{unique}-{i:06} ");
        let sent: Vec<String> = (0..load.count)
            .map(|i| format!("{:x<1$}", text(i), load.size))
            .collect();
        let mut command = client.kcat(system, "-P");
        // kcat alone among clients ends itself when no broker is connected for a moment; -E is its switch against it.
        command.args([
            "-E",
            "-X",
            "enable.idempotence=true",
            "-X",
            "message.timeout.ms=240000",
        ]);
        let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let mut stdin = child.stdin.take().context("no stdin")?;
        let records = sent.clone();
        let run = std::thread::spawn(move || {
            let fed: std::io::Result<()> = records.iter().try_for_each(|record| {
                stdin.write_all(format!("{record}\n").as_bytes())?;
                std::thread::sleep(load.pause);
                Ok(())
            });
            drop(stdin);
            // A client that gave up says why on stderr, which is worth more than the broken pipe.
            let output = child.wait_with_output()?;
            if !output.status.success() || fed.is_err() {
                bail!(
                    "the producer gave up ({}, {fed:?}): {}",
                    output.status,
                    String::from_utf8_lossy(&output.stderr)
                );
            }
            Ok(())
        });
        Ok(Producing { sent, run })
    }

    /// All were acknowledged, and all are there exactly once.
    pub fn finish_and_check(self, system: &System, client: &Client) -> anyhow::Result<()> {
        self.run
            .join()
            .map_err(|_| anyhow::anyhow!("the producer panicked"))??;
        let (prefix, _) = self.sent[0].rsplit_once("-000000").context("a first record")?;
        let text = succeed(client.kcat(system, "-C").args(["-o", "beginning", "-e"]))?;
        let mut received: Vec<&str> = text.lines().filter(|line| line.starts_with(prefix)).collect();
        received.sort_unstable();
        let count = received.len();
        let mut distinct = received.clone();
        distinct.dedup();
        assert_eq!(distinct.len(), count, "records were stored twice");
        let missing: Vec<&String> = self
            .sent
            .iter()
            .filter(|sent| distinct.binary_search(&sent.as_str()).is_err())
            .collect();
        assert!(
            missing.is_empty(),
            "{} acknowledged records are lost, the first is {:?}",
            missing.len(),
            missing.first()
        );
        Ok(())
    }
}
