//! A real S3 server (versitygw) on loopback.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::bail;
use tempfile::TempDir;

use crate::clients::tool;
use crate::node::free_port;

const BUCKET: &str = "diskless";
const ACCESS_KEY: &str = "test-access";
const SECRET_KEY: &str = "test-secret-key";
/// The server knows this user, but nobody has allowed it anything.
const STRANGER: &str = "test-stranger";
const READY: Duration = Duration::from_secs(30);

/// A running server with one bucket; it ends, with all its data, when dropped.
pub struct S3Server {
    port: u16,
    child: Child,
    dir: TempDir,
}

impl S3Server {
    /// Starts a server over a new folder.
    pub fn start() -> anyhow::Result<S3Server> {
        let program = tool("versitygw")?;
        // Somebody else may take the port between our look and the server's start.
        let mut result = S3Server::try_start(&program);
        for _ in 0..2 {
            result = result.or_else(|_| S3Server::try_start(&program));
        }
        result
    }

    fn try_start(program: &Path) -> anyhow::Result<S3Server> {
        let dir = tempfile::tempdir()?;
        // To this server a bucket is a folder.
        std::fs::create_dir_all(dir.path().join("data").join(BUCKET))?;
        let credentials = dir.path().join("credentials");
        std::fs::create_dir(&credentials)?;
        std::fs::write(credentials.join("access_key_id"), ACCESS_KEY)?;
        std::fs::write(credentials.join("secret_access_key"), SECRET_KEY)?;
        let users = dir.path().join("users");
        std::fs::create_dir(&users)?;
        let stranger = serde_json::json!({ "access": STRANGER, "secret": SECRET_KEY, "role": "user" });
        let accounts = serde_json::json!({ "accessAccounts": { STRANGER: stranger } });
        std::fs::write(users.join("users.json"), accounts.to_string())?;
        let log = std::fs::File::create(dir.path().join("s3.log"))?;
        let port = free_port();
        let mut command = Command::new(program);
        command.args([
            "--port",
            &format!("127.0.0.1:{port}"),
            "--access",
            ACCESS_KEY,
            "--secret",
            SECRET_KEY,
        ]);
        command.args(["--region", "us-east-1", "--quiet", "--health", "/health"]);
        command.arg("--access-log").arg(dir.path().join("access.log"));
        command.arg("--iam-dir").arg(users);
        command.arg("posix").arg(dir.path().join("data"));
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let mut server = S3Server { port, child, dir };
        let start = Instant::now();
        while start.elapsed() < READY {
            if let Some(status) = server.child.try_wait()? {
                bail!("the S3 server ended with {status}: {}", server.log());
            }
            if server.is_healthy() {
                return Ok(server);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("the S3 server is not ready after {READY:?}: {}", server.log())
    }

    fn is_healthy(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else {
            return false;
        };
        let _ = stream.set_read_timeout(Some(Duration::from_secs(2)));
        let mut answer = [0; 12];
        stream
            .write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .is_ok()
            && stream.read_exact(&mut answer).is_ok()
            && answer.ends_with(b" 200")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("s3.log")).unwrap_or_default()
    }

    /// The bucket there is.
    pub fn bucket(&self) -> &str {
        BUCKET
    }

    /// `http://host:port`.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Object store URL of a prefix in the bucket.
    pub fn url(&self, prefix: &str) -> String {
        self.url_through(&self.endpoint(), prefix)
    }

    /// The same through something that stands before the server.
    pub fn url_through(&self, endpoint: &str, prefix: &str) -> String {
        format!("s3://{BUCKET}/{prefix}?region=us-east-1&path_style=true&endpoint={endpoint}")
    }

    /// Credentials, as environment variables of a process.
    pub fn environment(&self) -> Vec<(String, String)> {
        [
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec()
    }

    /// Credentials of a user who is not allowed anything.
    pub fn stranger(&self) -> Vec<(String, String)> {
        [
            ("AWS_ACCESS_KEY_ID", STRANGER),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec()
    }

    /// Credentials, as the files of a node's `object_store.credentials_dir`.
    pub fn credentials_dir(&self) -> PathBuf {
        self.dir.path().join("credentials")
    }

    /// How many requests of a kind it has served, by the names of its access log (`s3_PutObject`).
    pub fn requests(&self, kind: &str) -> usize {
        let log = std::fs::read_to_string(self.dir.path().join("access.log")).unwrap_or_default();
        log.lines()
            .filter(|line| line.contains(&format!(" {kind} ")))
            .count()
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
