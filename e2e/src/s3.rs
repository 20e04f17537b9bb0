//! A real S3 server on loopback: versitygw over a temporary folder.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tempfile::TempDir;

use crate::node::free_port;

const ACCESS_KEY: &str = "e2e-access-key";
const SECRET_KEY: &str = "e2e-secret-key";
const BUCKET: &str = "e2e-bucket";
const READY: Duration = Duration::from_secs(30);

/// The server with one bucket. Ended, and its folder removed, when dropped.
pub struct S3Server {
    port: u16,
    child: Child,
    dir: TempDir,
}

impl S3Server {
    /// Starts the server and waits until it answers.
    pub fn start() -> anyhow::Result<S3Server> {
        let program = versitygw()?;
        // Somebody else may take the port between our look and the server's start.
        let mut last = anyhow::anyhow!("never tried");
        for _ in 0..3 {
            match S3Server::try_start(&program) {
                Ok(server) => return Ok(server),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn try_start(program: &Path) -> anyhow::Result<S3Server> {
        let dir = tempfile::tempdir()?;
        // A bucket of the posix backend is a folder; one that appears later is served all the same.
        let buckets = dir.path().join("buckets");
        std::fs::create_dir_all(buckets.join(BUCKET))?;
        let log = std::fs::File::create(dir.path().join("log"))?;
        let port = free_port();
        let mut command = Command::new(program);
        command.args(["--port", &format!("127.0.0.1:{port}"), "--access", ACCESS_KEY, "--secret", SECRET_KEY]);
        command.args(["--region", "us-east-1", "--quiet", "--health", "/health"]);
        command.arg("--access-log").arg(dir.path().join("access-log"));
        command.arg("posix").arg(&buckets);
        let child = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
        let mut server = S3Server { port, child, dir };
        let start = Instant::now();
        while start.elapsed() < READY {
            if let Some(status) = server.child.try_wait()? {
                bail!("versitygw ended with {status}: {}", server.log());
            }
            if server.is_healthy() {
                return Ok(server);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("versitygw is not ready after {READY:?}: {}", server.log())
    }

    fn is_healthy(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else { return false };
        let _ = stream.set_read_timeout(Some(Duration::from_secs(2)));
        let mut answer = [0; 12];
        stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").is_ok()
            && stream.read_exact(&mut answer).is_ok()
            && answer.ends_with(b" 200")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// The name of its bucket.
    pub fn bucket(&self) -> &str {
        BUCKET
    }

    /// `http://host:port`.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Object store URL of a prefix of the bucket, for the configuration of a node.
    pub fn url(&self, prefix: &str) -> String {
        self.url_through(&self.endpoint(), prefix)
    }

    /// The same through something that stands before the server.
    pub fn url_through(&self, endpoint: &str, prefix: &str) -> String {
        format!("s3://{BUCKET}/{prefix}?region=us-east-1&endpoint={endpoint}&path_style=true")
    }

    /// Credentials for the AWS default chain of a process.
    pub fn environment(&self) -> Vec<(String, String)> {
        [("AWS_ACCESS_KEY_ID", ACCESS_KEY), ("AWS_SECRET_ACCESS_KEY", SECRET_KEY)]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec()
    }

    /// Writes the credentials as a node's `object_store.credentials_dir` holds them.
    pub fn write_credentials(&self, dir: &Path) -> anyhow::Result<()> {
        std::fs::write(dir.join("access_key_id"), ACCESS_KEY)?;
        std::fs::write(dir.join("secret_access_key"), SECRET_KEY)?;
        Ok(())
    }

    /// The folder that holds the bucket's objects as files.
    pub fn folder(&self) -> PathBuf {
        self.dir.path().join("buckets").join(BUCKET)
    }

    /// How many requests of a kind it has served, by the names of its access log (`s3_PutObject`).
    pub fn requests(&self, kind: &str) -> usize {
        let log = std::fs::read_to_string(self.dir.path().join("access-log")).unwrap_or_default();
        log.lines().filter(|line| line.contains(&format!(" {kind} "))).count()
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program, from the cache of `cargo xtask tools`, which builds it when it is not there.
fn versitygw() -> anyhow::Result<PathBuf> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let find = || -> anyhow::Result<PathBuf> {
        if let Some(path) = std::env::var_os("DISKLESS_VERSITYGW") {
            return Ok(path.into());
        }
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let output = Command::new(cargo)
            .args(["run", "--quiet", "--package", "xtask", "--", "tools", "versitygw"])
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let path = text.lines().find_map(|line| line.strip_prefix("versitygw="));
        path.map(PathBuf::from).with_context(|| {
            format!("cargo xtask tools versitygw gives no path:\n{}", String::from_utf8_lossy(&output.stderr))
        })
    };
    FOUND.get_or_init(|| find().map_err(|error| format!("{error:#}"))).clone().map_err(anyhow::Error::msg)
}
