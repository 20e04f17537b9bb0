//! A simulated PostgreSQL: what the log engine `postgres` of a run talks to.
//!
//! ```text
//!   node ── tokio-postgres ══ simulated network ══ wire ── backend ──▶ tables
//! ```
//!
//! Two hosts, a primary and its synchronous standby. What is committed is on both, so they share their tables, and a fail-over
//! only says whose word counts from now on. Each connection has a backend, a task of its host, which takes one statement after
//! the other, and runs one that it has taken whatever becomes of the client. It dies with its host: then the statement has happened
//! or it has not, and what is committed stays.

#[cfg(test)]
mod rounds;
#[cfg(test)]
#[path = "../../../../broker/crates/metalog/tests/support/mod.rs"]
mod support;
mod tables;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use env::{Env, Simulation, Stream};
use metalog::Statement;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::store::Storm;
use tables::{Answer, BOOL, SqlError, Tables, boolean};
use wire::{Request, Wire};

/// Its hosts.
pub(crate) const HOSTS: [&str; 2] = ["pg0", "pg1"];
/// What nodes are told.
pub(crate) const URL: &str = "postgres://diskless@pg0,pg1/logs?sslmode=disable";
/// Who appends tells here.
const CHANNEL: &str = "diskless_metalog";
const VOID: u32 = 2278;

/// A database that the nodes of a run share.
pub(crate) struct Database {
    simulation: Simulation,
    shared: Arc<Shared>,
    /// Hosts that are up.
    running: Mutex<BTreeMap<&'static str, Env>>,
}

struct Shared {
    tables: Mutex<Tables>,
    primary: Mutex<&'static str>,
    listeners: Mutex<Vec<mpsc::UnboundedSender<String>>>,
    weather: Mutex<Weather>,
}

#[derive(Default)]
struct Weather {
    /// Now and then a statement fails, loses its answer, or hangs.
    drizzle: bool,
    /// Reads or writes fail or crawl for some time.
    storms: Vec<(Kind, Storm)>,
    /// What must not have happened.
    broken: Vec<String>,
}

/// Whether a statement changes anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
}

/// What becomes of one statement.
#[derive(Debug)]
enum Fate {
    Answered,
    /// It is not run.
    Refused(&'static str),
    /// It is not run, and the connection ends with this.
    Ended(&'static str),
    /// It is run, and then the connection ends without an answer.
    HungUp,
    /// The connection ends, and so much later it is run.
    Late(Duration),
}

impl Database {
    /// Both hosts are up.
    pub(crate) fn new(simulation: &Simulation) -> Arc<Database> {
        let database = Arc::new(Database {
            simulation: simulation.clone(),
            shared: Arc::new(Shared {
                tables: Mutex::default(),
                primary: Mutex::new(HOSTS[0]),
                listeners: Mutex::default(),
                weather: Mutex::default(),
            }),
            running: Mutex::default(),
        });
        HOSTS.into_iter().for_each(|host| database.start(host));
        database
    }

    /// The host that takes writes.
    pub(crate) fn primary(&self) -> &'static str {
        *self.shared.primary.lock()
    }

    /// Makes the other host the primary. The one before must be down: it would go on.
    pub(crate) fn promote(&self) -> &'static str {
        let mut primary = self.shared.primary.lock();
        *primary = HOSTS[usize::from(*primary == HOSTS[0])];
        *primary
    }

    /// Starts a host.
    pub(crate) fn start(&self, host: &'static str) {
        let env = self.simulation.node(host);
        self.running.lock().insert(host, env.clone());
        let shared = self.shared.clone();
        env.clone().spawn(async move {
            if let Err(error) = serve(&env, &shared, host).await {
                shared.broken(format!("{host} does not listen: {error}"));
            }
        });
    }

    /// As SIGKILL, or the end of the machine.
    pub(crate) async fn kill(&self, host: &str) {
        let life = self.running.lock().remove(host);
        if let Some(env) = life {
            env.shut_down().await;
        }
    }

    /// As SIGSTOP and SIGCONT to all its processes.
    pub(crate) fn pause(&self, host: &str, paused: bool) {
        match self.running.lock().get(host) {
            Some(env) if paused => env.pause(),
            Some(env) => env.resume(),
            None => {}
        }
    }

    /// Turns the small faults on or off; off ends storms, too.
    pub(crate) fn drizzle(&self, on: bool) {
        let mut weather = self.shared.weather.lock();
        weather.drizzle = on;
        weather.storms.clear();
    }

    pub(crate) fn storm(&self, kind: Kind, storm: Storm) {
        self.shared.weather.lock().storms.push((kind, storm));
    }

    /// What must not have happened.
    pub(crate) fn broken(&self) -> Vec<String> {
        self.shared.weather.lock().broken.clone()
    }
}

async fn serve(env: &Env, shared: &Arc<Shared>, host: &'static str) -> io::Result<()> {
    let mut listener = env.listen(&format!("{host}:5432")).await?;
    loop {
        let stream = listener.accept().await?;
        let backend = Backend {
            env: env.clone(),
            shared: shared.clone(),
            host,
        };
        // A connection that breaks is its client's trouble.
        env.spawn(async move { drop(backend.run(stream).await) });
    }
}

struct Backend {
    env: Env,
    shared: Arc<Shared>,
    host: &'static str,
}

impl Backend {
    async fn run(self, stream: Stream) -> io::Result<()> {
        let mut wire = Wire::accept(stream).await?;
        let (tell, mut told) = mpsc::unbounded_channel::<String>();
        loop {
            let request = tokio::select! {
                biased;
                request = wire.request() => request?,
                Some(payload) = told.recv() => {
                    wire.notify(CHANNEL, &payload).await?;
                    continue;
                }
            };
            let Some(request) = request else { return Ok(()) };
            let known = |statement: &Statement| statement.sql() == request.statement;
            let Some(statement) = Statement::ALL.into_iter().find(known) else {
                let message = format!(
                    "a statement that the simulation does not know: {}",
                    request.statement
                );
                self.shared.broken(message.clone());
                wire.answer(&request, Err(failure("0A000", &message))).await?;
                continue;
            };
            let (delay, fate) = self.shared.fate(&self.env, statement);
            self.env.sleep(delay).await;
            match fate {
                Fate::Answered => {
                    let answer = self.execute(statement, &request, &tell);
                    wire.answer(&request, answer).await?;
                }
                Fate::Refused(code) => wire.answer(&request, Err(failure(code, "simulated"))).await?,
                Fate::Ended(code) => {
                    return wire.answer(&request, Err(failure(code, "simulated"))).await;
                }
                Fate::HungUp => {
                    let _ = self.execute(statement, &request, &tell);
                    return Ok(());
                }
                Fate::Late(after) => {
                    drop(wire);
                    self.env.sleep(after).await;
                    let _ = self.execute(statement, &request, &tell);
                    return Ok(());
                }
            }
        }
    }

    /// One step: nobody sees half of it.
    fn execute(
        &self,
        statement: Statement,
        request: &Request,
        tell: &mpsc::UnboundedSender<String>,
    ) -> Result<Answer, SqlError> {
        let is_standby = *self.shared.primary.lock() != self.host;
        match statement {
            Statement::Server => Ok(Answer {
                columns: vec![BOOL, BOOL],
                rows: vec![vec![boolean(is_standby), boolean(true)]],
            }),
            Statement::Setup => Ok(Answer::default()),
            _ if is_standby => Err(failure("25006", "this is a standby")),
            Statement::Listen => {
                self.shared.listeners.lock().push(tell.clone());
                Ok(Answer::default())
            }
            Statement::Notify => {
                let payload = request.params.last().cloned().flatten().unwrap_or_default();
                let payload = String::from_utf8_lossy(&payload).into_owned();
                let heard = |listener: &mpsc::UnboundedSender<String>| listener.send(payload.clone()).is_ok();
                self.shared.listeners.lock().retain(heard);
                Ok(Answer {
                    columns: vec![VOID],
                    rows: vec![vec![Some(Bytes::new())]],
                })
            }
            _ => self.shared.tables.lock().run(statement, &request.params),
        }
    }
}

fn failure(code: &'static str, message: &str) -> SqlError {
    SqlError {
        code,
        message: message.to_owned(),
    }
}

fn kind(statement: Statement) -> Kind {
    match statement {
        Statement::CreateTables
        | Statement::CreateRow
        | Statement::Replace
        | Statement::Append
        | Statement::Delete
        | Statement::Notify => Kind::Write,
        Statement::Server
        | Statement::Setup
        | Statement::Listen
        | Statement::HasTables
        | Statement::Version
        | Statement::Row
        | Statement::Slot
        | Statement::Read => Kind::Read,
    }
}

impl Shared {
    fn broken(&self, what: String) {
        let mut weather = self.weather.lock();
        if !weather.broken.contains(&what) {
            weather.broken.push(what);
        }
    }

    /// How long a statement takes, and what becomes of it.
    fn fate(&self, env: &Env, statement: Statement) -> (Duration, Fate) {
        let mut delay = Duration::from_micros(200 + env.random_below(3_000));
        let mut fate = Fate::Answered;
        let mut weather = self.weather.lock();
        if !weather.drizzle {
            return (delay, fate);
        }
        // The disk is full; a lock has taken too long; somebody has cancelled it; a connection inside the server broke.
        const REFUSED: [&str; 4] = ["53100", "55P03", "57014", "08006"];
        // Too many connections; an administrator ends it; it has crashed; it starts.
        const ENDED: [&str; 4] = ["53300", "57P01", "57P02", "57P03"];
        let pick = |codes: [&'static str; 4]| codes[env.random_below(4) as usize];
        match env.random_below(1_000) {
            0..10 => fate = Fate::Refused(pick(REFUSED)),
            10..14 => fate = Fate::Ended(pick(ENDED)),
            14..26 => fate = Fate::HungUp,
            26..32 => fate = Fate::Late(Duration::from_millis(env.random_below(4_000))),
            32..42 => delay += Duration::from_millis(env.random_below(2_500)),
            // Beside those who are not connected at the moment.
            42..100 if statement == Statement::Notify => fate = Fate::Refused("57014"),
            _ => {}
        }
        let now = env.instant();
        weather.storms.retain(|(_, storm)| storm.until > now);
        for (_, storm) in weather
            .storms
            .iter()
            .filter(|(stormy, _)| *stormy == kind(statement))
        {
            delay += storm.slow;
            if env.random_below(100) < storm.failing {
                fate = Fate::Refused(pick(REFUSED));
            }
        }
        (delay, fate)
    }
}
