//! `cargo xtask bench`: throughput, latency, CPU and requests, with Apache Kafka beside it in the same run.
//!
//! Figures of one machine at one moment: only ratios within a run mean anything, and pairs during which
//! something else used the processors (`other_cores`) do not count.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Parser;
use serde_json::Value;

use crate::run::{output, run as run_command};
use crate::tools::{self, Tool};

/// Measures this broker over a local folder (tmpfs), over an S3 server, and behind S3's latencies, beside Apache Kafka.
#[derive(Parser)]
pub struct Args {
    /// Seconds measured per row.
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    /// Repetitions of the rows that are compared; each is a pair, Kafka then this broker.
    #[arg(long, default_value_t = 2)]
    pairs: u32,
    /// Leave Apache Kafka out.
    #[arg(long)]
    without_kafka: bool,
    /// Leave the S3 rows out.
    #[arg(long)]
    without_s3: bool,
    /// Write all rows as JSON lines to this file.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// One load: name and flags of the load generator.
const LOADS: &[(&str, &[&str])] = &[
    ("max, 1 producer", &["-producers", "1"]),
    ("max, 4 producers", &["-producers", "4", "-buf", "16777216"]),
    (
        "10 MB/s, 1 to 1",
        &["-producers", "1", "-consumers", "1", "-rate", "10"],
    ),
    (
        "25 MB/s, 1 to 3",
        &["-producers", "1", "-consumers", "3", "-rate", "25"],
    ),
    ("max, 1 to 3", &["-producers", "1", "-consumers", "3"]),
];

/// Loads for the rows over S3: the store on the same two cores is soon the limit. A client with five requests in
/// flight and a short linger uses them up right after an answer and then waits for the next one, once per flush;
/// the rows with a longer linger and with many in flight show what the broker itself takes.
const S3_LOADS: &[(&str, &[&str])] = &[
    ("max, 1 producer, 5 in flight", &["-producers", "1"]),
    (
        "10 MB/s, 1 to 1",
        &["-producers", "1", "-consumers", "1", "-rate", "10"],
    ),
    (
        "10 MB/s, linger 50 ms",
        &[
            "-producers",
            "1",
            "-consumers",
            "1",
            "-rate",
            "10",
            "-linger",
            "50ms",
        ],
    ),
    (
        "10 MB/s, 100 in flight",
        &[
            "-producers",
            "1",
            "-consumers",
            "1",
            "-rate",
            "10",
            "-acks",
            "1",
            "-inflight",
            "100",
        ],
    ),
    (
        "3 records/s, no linger",
        &[
            "-producers",
            "1",
            "-consumers",
            "1",
            "-rate",
            "0.003",
            "-linger",
            "0s",
        ],
    ),
];

/// A process of the benchmark; killed when dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Row {
    system: String,
    values: BTreeMap<String, Value>,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    println!("building");
    run_command(Command::new("cargo").args(["build", "--release", "--quiet", "-p", "broker", "-p", "e2e"]))?;
    let kload = tools::path(Tool::Kload)?;
    let dir = tempfile::Builder::new()
        .prefix("diskless-bench")
        .tempdir_in(memory_folder())?;
    let mut rows = Vec::new();
    for _ in 0..args.pairs {
        for load in LOADS {
            // What a row has written goes before the next one starts: gigabytes in memory that the system has to find
            // anew make whoever comes second look slow.
            let data = dir.path().join("data");
            if !args.without_kafka {
                let (_kafka, port) = start_kafka(&data)?;
                rows.push(measure(&kload, "kafka", port, load, args.seconds)?);
            }
            remove(&data)?;
            {
                let (_broker, port) = start_broker(&format!("file://{}", data.display()), &[])?;
                rows.push(measure(&kload, "diskless, folder", port, load, args.seconds)?);
            }
            remove(&data)?;
        }
    }
    if !args.without_s3 {
        s3_rows(&args, &kload, dir.path(), &mut rows)?;
    }
    print_table(&rows);
    if let Some(file) = &args.json {
        let lines: Vec<String> = rows
            .iter()
            .map(|row| serde_json::to_string(&row.values))
            .collect::<Result<_, _>>()?;
        fs::write(file, lines.join("\n") + "\n")?;
    }
    Ok(())
}

fn s3_rows(args: &Args, kload: &Path, dir: &Path, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let keys = [
        ("AWS_ACCESS_KEY_ID", "bench"),
        ("AWS_SECRET_ACCESS_KEY", "benchsecret"),
    ];
    let data = dir.join("s3");
    fs::create_dir_all(data.join("bench"))?;
    let s3_port = free_port()?;
    let mut s3 = Command::new(tools::path(Tool::Versitygw)?);
    s3.args([
        "--port",
        &format!("127.0.0.1:{s3_port}"),
        "--access",
        keys[0].1,
        "--secret",
        keys[1].1,
    ]);
    s3.args(["--region", "us-east-1", "--quiet", "posix"]).arg(&data);
    let _s3 = start(&mut s3, &dir.join("s3.log"))?;
    wait_for(s3_port, Duration::from_secs(20))?;
    let proxy_port = free_port()?;
    let mut proxy = Command::new("target/release/s3-proxy");
    proxy.args([
        &format!("127.0.0.1:{proxy_port}"),
        &format!("127.0.0.1:{s3_port}"),
        "1",
    ]);
    let _proxy = start(&mut proxy, &dir.join("proxy.log"))?;
    wait_for(proxy_port, Duration::from_secs(20))?;
    for (system, port) in [
        ("diskless, S3 server", s3_port),
        ("diskless, S3 latencies", proxy_port),
    ] {
        for (i, load) in S3_LOADS.iter().enumerate() {
            let url = format!(
                "s3://bench/{port}-{i}?region=us-east-1&path_style=true&endpoint=http://127.0.0.1:{port}"
            );
            let (_broker, kafka_port) = start_broker(&url, &keys)?;
            rows.push(measure(kload, system, kafka_port, load, args.seconds)?);
        }
    }
    Ok(())
}

fn measure(
    kload: &Path,
    system: &str,
    port: u16,
    load: &(&str, &[&str]),
    seconds: u32,
) -> anyhow::Result<Row> {
    let (name, flags) = load;
    let mut command = Command::new(kload);
    command
        .args([
            "-b",
            &format!("127.0.0.1:{port}"),
            "-name",
            name,
            "-dur",
            &format!("{seconds}s"),
        ])
        .args(*flags);
    let line = output(&mut command)?;
    println!("{system}: {line}");
    Ok(Row {
        system: system.to_owned(),
        values: serde_json::from_str(&line)?,
    })
}

fn start_broker(url: &str, environment: &[(&str, &str)]) -> anyhow::Result<(Process, u16)> {
    let port = free_port()?;
    let data = tempfile::tempdir()?;
    let mut command = Command::new("target/release/diskless-broker");
    command
        .args([
            "dev",
            "--port",
            &port.to_string(),
            "--object-store",
            url,
            "--data",
        ])
        .arg(data.path());
    command.env("RUST_LOG", "warn").envs(environment.iter().copied());
    let process = start(&mut command, Path::new("target/bench-broker.log"))?;
    wait_for(port, Duration::from_secs(20))?;
    // The views of this run may go with the system's temporary files.
    let _ = data.keep();
    Ok((process, port))
}

fn start_kafka(dir: &Path) -> anyhow::Result<(Process, u16)> {
    let jars = tools::path(Tool::KafkaJars)?;
    let classpath = format!("{}/*", jars.display());
    let (port, controller) = (free_port()?, free_port()?);
    fs::create_dir_all(dir)?;
    // Any id but those that Kafka reserves.
    let directory_id = "dGVzdC1kaXJlY3RvcnktMQ";
    let properties = dir.join("node.properties");
    fs::write(
        &properties,
        format!(
            "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.bootstrap.servers=127.0.0.1:{controller}\n\
             listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n\
             advertised.listeners=PLAINTEXT://127.0.0.1:{port}\ncontroller.listener.names=CONTROLLER\n\
             listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\nlog.dirs={}\n\
             offsets.topic.replication.factor=1\ntransaction.state.log.replication.factor=1\n\
             transaction.state.log.min.isr=1\ngroup.initial.rebalance.delay.ms=0\n",
            dir.join("data").display()
        ),
    )?;
    let log4j = format!(
        "-Dlog4j2.configurationFile={}",
        fs::canonicalize("e2e/bench/kafka/log4j2.yaml")?.display()
    );
    let mut format = Command::new("java");
    format.args([
        "-Xmx256m",
        &log4j,
        "-cp",
        &classpath,
        "kafka.tools.StorageTool",
        "format",
    ]);
    format
        .args(["-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c"])
        .arg(&properties);
    format.args([
        "--initial-controllers",
        &format!("1@127.0.0.1:{controller}:{directory_id}"),
    ]);
    run_command(format.stdout(Stdio::null()))?;
    let mut kafka = Command::new("java");
    kafka.args([
        "-Xms1g",
        "-Xmx1g",
        "-XX:+UseG1GC",
        "-XX:MaxGCPauseMillis=20",
        &log4j,
        "-cp",
        &classpath,
    ]);
    let log = dir.join("kafka.log");
    let process = start(kafka.arg("kafka.Kafka").arg(&properties), &log)?;
    let begin = Instant::now();
    while !fs::read_to_string(&log)
        .unwrap_or_default()
        .contains("Kafka Server started")
    {
        if begin.elapsed() > Duration::from_secs(60) {
            bail!("Apache Kafka did not start; see {}", log.display());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok((process, port))
}

fn remove(dir: &Path) -> anyhow::Result<()> {
    if dir.exists() {
        fs::remove_dir_all(dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    }
    Ok(())
}

fn start(command: &mut Command, log: &Path) -> anyhow::Result<Process> {
    let file = fs::File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    command
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file);
    let child = command
        .spawn()
        .with_context(|| format!("cannot start {command:?}"))?;
    Ok(Process(child))
}

fn wait_for(port: u16, limit: Duration) -> anyhow::Result<()> {
    let begin = Instant::now();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        if begin.elapsed() > limit {
            bail!("nothing listens on port {port} after {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// A folder in memory, where there is one.
fn memory_folder() -> PathBuf {
    let shm = PathBuf::from("/dev/shm");
    if shm.is_dir() { shm } else { std::env::temp_dir() }
}

fn print_table(rows: &[Row]) {
    const COLUMNS: &[(&str, &str)] = &[
        ("mb_s", "MB/s in"),
        ("consumed_mb_s", "MB/s out"),
        ("ack_p50_ms", "ack p50"),
        ("ack_p99_ms", "ack p99"),
        ("e2e_p50_ms", "e2e p50"),
        ("e2e_p99_ms", "e2e p99"),
        ("broker_cores", "cores"),
        ("mb_per_broker_cpu_s", "MB/CPU-s"),
        ("cpu_s_per_gib", "CPU-s/GiB"),
        ("other_cores", "others"),
        ("broker_rss_mib", "RSS MiB"),
        ("errors", "errors"),
    ];
    print!("\n{:<26} {:<24}", "load", "system");
    for (_, title) in COLUMNS {
        print!("{title:>10}");
    }
    println!();
    let mut sorted: Vec<&Row> = rows.iter().collect();
    sorted.sort_by_key(|row| row.values.get("name").map(Value::to_string));
    for row in sorted {
        let name = row.values.get("name").and_then(Value::as_str).unwrap_or_default();
        print!("{name:<26} {:<24}", row.system);
        for (key, _) in COLUMNS {
            print!("{:>10}", cell(row, key));
        }
        println!();
    }
    println!("(1 MB = 1e6 bytes of values; latencies in ms, open loop where a rate is given)");
}

fn cell(row: &Row, key: &str) -> String {
    if key == "cpu_s_per_gib" {
        let rate = row.values.get("mb_per_broker_cpu_s").and_then(Value::as_f64);
        return rate.map_or("-".to_owned(), |rate| format!("{:.2}", 1_073.741_824 / rate));
    }
    row.values.get(key).map_or("-".to_owned(), Value::to_string)
}
