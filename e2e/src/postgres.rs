//! A real PostgreSQL on loopback, from the operating system's packages.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tempfile::TempDir;

use crate::node::free_port;

const USER: &str = "diskless";
/// Of the database's owner.
const PASSWORD: &str = "test-password";
const READY: Duration = Duration::from_secs(60);
/// How long it may take to end by itself.
const GOODBYE: Duration = Duration::from_secs(10);

/// A running server with one empty database; it ends, with all its data, when dropped.
pub struct Postgres {
    port: u16,
    child: Option<Child>,
    dir: TempDir,
}

/// Where Debian keeps the server's programs: the newest version there is.
fn programs() -> anyhow::Result<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").context("the package postgresql is missing")?;
    let newest = versions
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok()?.parse::<u32>().ok())
        .max()
        .context("the package postgresql is missing")?;
    Ok(PathBuf::from(format!("/usr/lib/postgresql/{newest}/bin")))
}

/// The server refuses to run as root.
fn command(program: &Path) -> anyhow::Result<Command> {
    let uid = Command::new("id").arg("-u").output()?.stdout;
    if uid.trim_ascii() != b"0" {
        return Ok(Command::new(program));
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
    command.arg(program);
    Ok(command)
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    if !output.status.success() {
        bail!(
            "{command:?} ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

impl Postgres {
    /// Starts a server over a new folder.
    pub fn start() -> anyhow::Result<Postgres> {
        let dir = tempfile::tempdir()?;
        let password = dir.path().join("password");
        std::fs::write(&password, format!("{PASSWORD}\n"))?;
        if command(Path::new("initdb"))?.get_program() == "setpriv" {
            run(Command::new("chown").arg("-R").arg("postgres").arg(dir.path()))?;
        }
        let mut initdb = command(&programs()?.join("initdb"))?;
        initdb.args([
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
            "--username",
            USER,
        ]);
        initdb.arg("--pwfile").arg(&password);
        initdb.arg("--pgdata").arg(dir.path().join("data"));
        run(&mut initdb)?;
        let mut server = Postgres {
            port: free_port(),
            child: None,
            dir,
        };
        server.settings("")?;
        server.run()?;
        Ok(server)
    }

    /// Adds lines to the server's configuration; the next start reads them.
    pub fn settings(&self, lines: &str) -> anyhow::Result<()> {
        let mut file = std::fs::File::options()
            .append(true)
            .open(self.dir.path().join("data/postgresql.conf"))?;
        writeln!(
            file,
            "port = {}\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = ''\nmax_connections = 200\n{lines}",
            self.port
        )?;
        Ok(())
    }

    /// Starts the process (again) and waits until it takes connections.
    pub fn run(&mut self) -> anyhow::Result<()> {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.dir.path().join("postgres.log"))?;
        let mut postgres = command(&programs()?.join("postgres"))?;
        postgres.arg("-D").arg(self.dir.path().join("data"));
        let child = postgres
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        self.child = Some(child);
        let start = Instant::now();
        while start.elapsed() < READY {
            if self.psql("SELECT 1").is_ok() {
                return Ok(());
            }
            if let Some(child) = &mut self.child
                && let Some(status) = child.try_wait()?
            {
                bail!("postgres ended with {status}: {}", self.log());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("postgres is not ready after {READY:?}: {}", self.log());
    }

    /// Runs a statement as the server's owner; gives what it prints.
    pub fn psql(&self, statement: &str) -> anyhow::Result<String> {
        let output = Command::new(programs()?.join("psql"))
            .args([
                "--no-psqlrc",
                "--tuples-only",
                "--no-align",
                "-v",
                "ON_ERROR_STOP=1",
            ])
            .args([
                "-h",
                "127.0.0.1",
                "-p",
                &self.port.to_string(),
                "-U",
                USER,
                "-d",
                "postgres",
            ])
            .args(["-c", statement])
            .env("PGPASSWORD", PASSWORD)
            .env("PGCONNECT_TIMEOUT", "5")
            .stdin(Stdio::null())
            .output()?;
        if !output.status.success() {
            bail!("psql: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }

    /// The server's process and all it has started, one for each connection.
    fn processes(&self) -> Vec<u32> {
        let Some(child) = &self.child else {
            return Vec::new();
        };
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id()));
        let mut all = vec![child.id()];
        all.extend(
            children
                .unwrap_or_default()
                .split_whitespace()
                .filter_map(|pid| pid.parse::<u32>().ok()),
        );
        all
    }

    /// Sends a signal by name to the server and all its processes.
    pub fn signal(&self, name: &str) {
        for pid in self.processes() {
            // One that has just ended is no loss.
            let _ = Command::new("kill")
                .arg(format!("-{name}"))
                .arg(pid.to_string())
                .stderr(Stdio::null())
                .status();
        }
    }

    /// SIGKILL to everything at once, as a power cut of the machine would, but for the caches of its disk.
    pub fn kill(&mut self) {
        let processes = self.processes();
        self.signal("KILL");
        if let Some(mut child) = self.child.take() {
            let _ = child.wait();
        }
        // The next start finds out that nobody uses the data.
        let start = Instant::now();
        let alive = |pid: &u32| Path::new(&format!("/proc/{pid}/exe")).read_link().is_ok();
        while processes.iter().any(alive) && start.elapsed() < READY {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// `host:port`
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The database at `address`, without TLS.
    pub fn url_at(&self, address: &str) -> String {
        format!("postgres://{USER}@{address}/postgres?sslmode=disable")
    }

    /// The database, without TLS.
    pub fn url(&self) -> String {
        self.url_at(&self.address())
    }

    /// File with the password.
    pub fn password_file(&self) -> PathBuf {
        self.dir.path().join("password")
    }

    /// Makes a file the server's own.
    pub fn own(&self, file: &Path) -> anyhow::Result<()> {
        run(Command::new("chmod").arg("600").arg(file))?;
        run(Command::new("chown")
            .arg("--reference")
            .arg(self.data())
            .arg(file))
    }

    /// Folder of the server's data.
    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// All it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("postgres.log")).unwrap_or_default()
    }
}

impl Drop for Postgres {
    /// Killed outright it would leave its shared memory to the machine, which nobody ever takes back.
    fn drop(&mut self) {
        self.signal("CONT");
        if let Some(child) = &mut self.child {
            // "Immediate shutdown"; its processes end with it.
            let told = Command::new("kill")
                .arg("-QUIT")
                .arg(child.id().to_string())
                .status();
            let start = Instant::now();
            while told.is_ok() && start.elapsed() < GOODBYE && matches!(child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        self.kill();
    }
}
