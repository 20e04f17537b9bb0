//! The two that are compared: each a whole cluster in one process, with the same id, rack and address.

use std::fs::{self, File};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::bail;
use e2e::clients::tool;
use e2e::node::{binary, free_port};
use tempfile::TempDir;

const READY: Duration = Duration::from_secs(90);

/// A process with a folder of its own; both go when it is dropped.
pub struct Server {
    /// `host:port`
    pub address: String,
    child: Child,
    dir: TempDir,
}

impl Server {
    /// `diskless-broker dev`.
    pub fn ours() -> anyhow::Result<Server> {
        let (dir, port) = (tempfile::tempdir()?, free_port());
        let mut command = Command::new(binary("diskless-broker")?);
        command.args(["dev", "--port", &port.to_string(), "--data"]);
        command.arg(dir.path().join("data")).env("RUST_LOG", "info");
        Server::start(command, dir, port, "Kafka on localhost")
    }

    /// Apache Kafka, one node in both roles.
    pub fn kafka() -> anyhow::Result<Server> {
        let (dir, port, controller) = (tempfile::tempdir()?, free_port(), free_port());
        let properties = dir.path().join("node.properties");
        fs::write(
            &properties,
            format!(
                "process.roles=broker,controller\nnode.id=1\nbroker.rack=local\n\
                 controller.quorum.bootstrap.servers=127.0.0.1:{controller}\ncontroller.listener.names=CONTROLLER\n\
                 listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n\
                 advertised.listeners=PLAINTEXT://localhost:{port}\n\
                 listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\nlog.dirs={}\n\
                 offsets.topic.replication.factor=1\noffsets.topic.num.partitions=1\n\
                 transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n\
                 transaction.state.log.num.partitions=1\ngroup.initial.rebalance.delay.ms=0\n",
                dir.path().join("data").display()
            ),
        )?;
        let mut format = java("kafka.tools.StorageTool")?;
        format.args(["format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c"]);
        format.arg(&properties);
        // Any id but those that Kafka reserves.
        let id = format!("1@127.0.0.1:{controller}:dGVzdC1kaXJlY3RvcnktMQ");
        let formatted = format.args(["--initial-controllers", &id]).output()?;
        if !formatted.status.success() {
            bail!(
                "no folder for Apache Kafka: {}",
                String::from_utf8_lossy(&formatted.stdout)
            );
        }
        let mut command = java("kafka.Kafka")?;
        command.arg(&properties);
        Server::start(command, dir, port, "Kafka Server started")
    }

    /// Ready when it has logged `sign` and accepts connections.
    fn start(mut command: Command, dir: TempDir, port: u16, sign: &str) -> anyhow::Result<Server> {
        let log = File::create(dir.path().join("log"))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let mut server = Server {
            address: format!("127.0.0.1:{port}"),
            child: command.spawn()?,
            dir,
        };
        let start = Instant::now();
        while start.elapsed() < READY {
            if server.log().contains(sign) && TcpStream::connect(&server.address).is_ok() {
                return Ok(server);
            }
            if let Some(status) = server.child.try_wait()? {
                bail!("{command:?} ended with {status}: {}", server.log());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("{command:?} is not ready: {}", server.log())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn java(class: &str) -> anyhow::Result<Command> {
    let log4j = Path::new("e2e/bench/kafka/log4j2.yaml");
    let log4j = e2e::root().join(log4j).canonicalize()?;
    let mut command = Command::new("java");
    // Quick to start, which is most of what it does here.
    command.args(["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]);
    command.arg(format!("-Dlog4j2.configurationFile={}", log4j.display()));
    command
        .arg("-cp")
        .arg(format!("{}/*", tool("kafka-jars")?.display()));
    command.arg(class);
    Ok(command)
}
