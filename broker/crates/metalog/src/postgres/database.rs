//! Connections to the database.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use env::{Env, JoinHandle};
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, NoTls, Row};
use tokio_postgres_rustls::MakeRustlsConnect;
use uuid::Uuid;

use super::schema;
use super::statements::{CHANNEL, Statement};
use crate::{LogError, LogOffset};

/// How long to wait for a connection to one host.
const CONNECT: Duration = Duration::from_secs(5);
/// How long to wait for an answer. After that the connection is given up, the statement may still happen.
const ANSWER: Duration = Duration::from_secs(10);
/// Where the database is and how to get in.
#[derive(Clone, Debug, Default)]
pub struct PostgresSettings {
    /// `postgres://user@host[:port][,host[:port]…]/database[?sslmode=disable]`. Of several hosts the one that takes
    /// writes is used. TLS with a verified certificate, unless `sslmode` is `disable`.
    pub url: String,
    /// File with the password; read for every connection, so that it may change.
    pub password_file: Option<PathBuf>,
    /// PEM file of the authorities that sign the server's certificate; without it those of the system count.
    pub ca_file: Option<PathBuf>,
    /// Name of the cluster in the database, which may hold several.
    pub cluster: String,
}

impl PostgresSettings {
    /// What is wrong with the URL, as `None` or a text that does not repeat it: it may hold a password.
    pub fn problem(&self) -> Option<String> {
        self.parse().err()
    }

    fn parse(&self) -> Result<(Config, Vec<String>), String> {
        if !["postgres://", "postgresql://"]
            .iter()
            .any(|scheme| self.url.starts_with(scheme))
        {
            return Err("must start with postgres://".to_owned());
        }
        let mut config: Config = self
            .url
            .parse()
            .map_err(|error| format!("is not a PostgreSQL URL: {}", describe(&error)))?;
        if config.get_password().is_some() {
            return Err("must not contain a password: use metadata_log.password_file".to_owned());
        }
        if config.get_user().is_none() {
            return Err("names no user".to_owned());
        }
        let ports = config.get_ports();
        let address = |(i, host): (usize, &Host)| match host {
            Host::Tcp(host) => {
                let port = ports.get(i).or(ports.first()).copied().unwrap_or(5432);
                Ok(format!("{host}:{port}"))
            }
            Host::Unix(_) => Err("names a Unix socket, which is not supported".to_owned()),
        };
        let addresses: Vec<String> = config
            .get_hosts()
            .iter()
            .enumerate()
            .map(address)
            .collect::<Result<_, _>>()?;
        if addresses.is_empty() {
            return Err("names no host".to_owned());
        }
        config.application_name("diskless");
        Ok((config, addresses))
    }
}

/// A database that holds metadata logs. Cheap to clone; clones share their connection for reads.
#[derive(Clone)]
pub struct Database(Arc<Shared>);

struct Shared {
    env: Env,
    config: Config,
    addresses: Vec<String>,
    tls: Option<MakeRustlsConnect>,
    settings: PostgresSettings,
    /// For all that is not a leader's: reads, and hearing of appends.
    reads: Link,
    /// The newest tail that was heard of, of the logs that somebody listens for.
    heard: Mutex<BTreeMap<Uuid, watch::Sender<LogOffset>>>,
}

/// One connection, made when it is needed and again after every failure.
#[derive(Default)]
pub(super) struct Link(tokio::sync::Mutex<Option<Arc<Session>>>);

/// An open connection; dropping it closes the socket at once, whatever the server does.
pub(super) struct Session {
    client: Client,
    io: JoinHandle<()>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.io.abort();
    }
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database")
            .field("addresses", &self.0.addresses)
            .field("cluster", &self.0.settings.cluster)
            .finish_non_exhaustive()
    }
}

/// A parameter of a statement.
pub(super) type Param<'a> = &'a (dyn ToSql + Sync);

impl Database {
    /// Connects, and creates the tables if they are not there.
    pub async fn open(settings: PostgresSettings, env: Env) -> Result<Database, LogError> {
        let invalid = |text: String| LogError::Invalid(format!("metadata_log.{text}"));
        let (config, addresses) = settings
            .parse()
            .map_err(|problem| invalid(format!("url: {problem}")))?;
        let tls = match config.get_ssl_mode() {
            SslMode::Disable => None,
            _ => Some(tls(&settings).map_err(invalid)?),
        };
        let mut config = config;
        if tls.is_some() {
            config.ssl_mode(SslMode::Require);
        }
        let database = Database(Arc::new(Shared {
            env,
            config,
            addresses,
            tls,
            settings,
            reads: Link::default(),
            heard: Mutex::default(),
        }));
        schema::ensure(&database).await?;
        Ok(database)
    }

    pub(super) fn cluster(&self) -> &str {
        &self.0.settings.cluster
    }

    /// Follows the tail of a log by what is heard.
    pub(super) fn listen(&self, log: Uuid) -> watch::Receiver<LogOffset> {
        let mut heard = self.0.heard.lock();
        let told = heard.entry(log).or_insert_with(|| watch::channel(LogOffset(0)).0);
        told.subscribe()
    }

    /// Rows of a statement on the shared connection.
    pub(super) async fn read(
        &self,
        statement: Statement,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, LogError> {
        self.query(&self.0.reads, statement, params).await
    }

    /// Several statements as one transaction, on the shared connection.
    pub(super) async fn batch(&self, statements: Statement) -> Result<(), LogError> {
        let session = self.session(&self.0.reads).await?;
        let run = session.client.batch_execute(statements.sql());
        self.answered(&self.0.reads, &session, run).await
    }

    /// Rows of a statement. After `Unavailable` it may have happened, or may still happen.
    pub(super) async fn query(
        &self,
        link: &Link,
        statement: Statement,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, LogError> {
        let session = self.session(link).await?;
        let run = say(&session.client, statement, params);
        self.answered(link, &session, run).await
    }

    /// Tells all who listen of a new tail. Nobody waits for it: who does not hear of it finds out by looking.
    pub(super) async fn tell(&self, link: &Link, log: Uuid, tail: LogOffset) {
        let Some(session) = link.0.lock().await.clone() else {
            return;
        };
        let env = self.0.env.clone();
        self.0.env.spawn(async move {
            let text = format!("{log}/{tail}");
            let params: [Param<'_>; 2] = [&CHANNEL, &text];
            let telling = say(&session.client, Statement::Notify, &params);
            // A connection that nobody wants any more is not held for it.
            if let Ok(Err(error)) = env.timeout(ANSWER, telling).await {
                tracing::debug!(%log, error = describe(&error), "the new tail was not told");
            }
        });
    }

    async fn answered<T>(
        &self,
        link: &Link,
        session: &Arc<Session>,
        run: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, LogError> {
        let error = match self.0.env.timeout(ANSWER, run).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => failed(&error),
            Err(_) => LogError::Unavailable(format!("the database has not answered for {ANSWER:?}")),
        };
        // Whatever went wrong, perhaps it is this connection, or this host.
        let mut current = link.0.lock().await;
        if current.as_ref().is_some_and(|held| Arc::ptr_eq(held, session)) {
            *current = None;
        }
        Err(error)
    }

    async fn session(&self, link: &Link) -> Result<Arc<Session>, LogError> {
        let mut held = link.0.lock().await;
        if let Some(session) = held.as_ref().filter(|session| !session.client.is_closed()) {
            return Ok(session.clone());
        }
        *held = None;
        let listens = std::ptr::eq(link, &self.0.reads);
        let mut reasons = Vec::new();
        for address in &self.0.addresses {
            let error = match self.0.env.timeout(CONNECT, self.connect(address, listens)).await {
                Ok(Ok(session)) => {
                    let session = Arc::new(session);
                    *held = Some(session.clone());
                    return Ok(session);
                }
                Ok(Err(error @ LogError::Invalid(_))) => return Err(error),
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("no answer within {CONNECT:?}"),
            };
            reasons.push(format!("{address}: {error}"));
        }
        Err(LogError::Unavailable(format!(
            "metadata_log.url: {}",
            reasons.join("; ")
        )))
    }

    async fn connect(&self, address: &str, listens: bool) -> Result<Session, LogError> {
        let Shared {
            env,
            config,
            settings,
            ..
        } = &*self.0;
        let mut config = config.clone();
        if let Some(file) = &settings.password_file {
            let password = std::fs::read_to_string(file).map_err(|error| {
                LogError::Unavailable(format!("metadata_log.password_file: {}: {error}", file.display()))
            })?;
            config.password(password.trim_end_matches(['\r', '\n']));
        }
        let stream = env
            .connect(address)
            .await
            .map_err(|error| LogError::Unavailable(error.to_string()))?;
        let session = match self.0.tls.clone() {
            Some(mut tls) => {
                let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
                let tls = MakeTlsConnect::<env::Stream>::make_tls_connect(&mut tls, host)
                    .map_err(|error| LogError::Invalid(format!("metadata_log.url: {error}")))?;
                let (client, connection) = config
                    .connect_raw(stream, tls)
                    .await
                    .map_err(|error| failed(&error))?;
                self.drive(client, connection)
            }
            None => {
                let (client, connection) = config
                    .connect_raw(stream, NoTls)
                    .await
                    .map_err(|error| failed(&error))?;
                self.drive(client, connection)
            }
        };
        let client = &session.client;
        let rows = say(client, Statement::Server, &[])
            .await
            .map_err(|error| failed(&error))?;
        let Some(row) = rows.first() else {
            return Err(LogError::Unavailable("database: an empty answer".to_owned()));
        };
        if value::<bool>(row, 0)? {
            return Err(LogError::Unavailable("it is a standby".to_owned()));
        }
        if !value::<bool>(row, 1)? {
            let text =
                "metadata_log.url: this database runs with fsync = off and would lose acknowledged data";
            return Err(LogError::Invalid(text.to_owned()));
        }
        let listen = listens.then_some(Statement::Listen);
        for statement in [Statement::Setup].into_iter().chain(listen) {
            client
                .batch_execute(statement.sql())
                .await
                .map_err(|error| failed(&error))?;
        }
        Ok(session)
    }

    /// Moves bytes of a connection until it ends, and takes note of what is told.
    fn drive<S, T>(&self, client: Client, mut connection: Connection<S, T>) -> Session
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        // Not the whole database: its link holds the session, whose task this is.
        let shared = Arc::downgrade(&self.0);
        let io = self.0.env.spawn(async move {
            while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
                match message {
                    Ok(AsyncMessage::Notification(told)) => {
                        let heard = told.payload().split_once('/').and_then(|(log, tail)| {
                            Some((log.parse::<Uuid>().ok()?, tail.parse().ok().map(LogOffset)?))
                        });
                        if let (Some((log, tail)), Some(shared)) = (heard, shared.upgrade())
                            && let Some(listening) = shared.heard.lock().get(&log)
                        {
                            listening.send_if_modified(|known| {
                                let newer = tail > *known;
                                *known = tail.max(*known);
                                newer
                            });
                        }
                    }
                    Ok(_) => {}
                    Err(error) => {
                        tracing::debug!(error = describe(&error), "a connection to the database ended");
                        return;
                    }
                }
            }
        });
        Session { client, io }
    }
}

async fn say(
    client: &Client,
    statement: Statement,
    params: &[Param<'_>],
) -> Result<Vec<Row>, tokio_postgres::Error> {
    let typed: Vec<_> = params
        .iter()
        .copied()
        .zip(statement.types().iter().cloned())
        .collect();
    client.query_typed(statement.sql(), &typed).await
}

/// Certificates are verified, and for the name in the URL.
fn tls(settings: &PostgresSettings) -> Result<MakeRustlsConnect, String> {
    let mut roots = rustls::RootCertStore::empty();
    match &settings.ca_file {
        Some(file) => {
            let problem = |text: String| format!("ca_file: {}: {text}", file.display());
            let certificates =
                CertificateDer::pem_file_iter(file).map_err(|error| problem(error.to_string()))?;
            for certificate in certificates {
                let certificate = certificate.map_err(|error| problem(error.to_string()))?;
                roots
                    .add(certificate)
                    .map_err(|error| problem(error.to_string()))?;
            }
            if roots.is_empty() {
                return Err(problem("no certificate in it".to_owned()));
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                return Err("ca_file: missing, and the system trusts no authority".to_owned());
            }
        }
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("url: {error}"))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

/// A column of a row.
pub(super) fn value<'a, T: tokio_postgres::types::FromSql<'a>>(
    row: &'a Row,
    column: usize,
) -> Result<T, LogError> {
    row.try_get(column)
        .map_err(|error| LogError::Corrupt(format!("database: {}", describe(&error))))
}

/// The driver's own text leaves out what the server said.
fn describe(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(said) => format!("{} (SQLSTATE {})", said.message(), said.code().code()),
        None => match std::error::Error::source(error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        },
    }
}

fn failed(error: &tokio_postgres::Error) -> LogError {
    let text = format!("database: {}", describe(error));
    match error.as_db_error().map(|said| said.code().code()) {
        Some("XX001" | "XX002") => LogError::Corrupt(text),
        // A missing privilege can be granted; a missing table or a bad value stays.
        Some("42501") => LogError::Unavailable(text),
        Some(code) if ["22", "23", "42"].iter().any(|class| code.starts_with(class)) => {
            LogError::Invalid(text)
        }
        _ => LogError::Unavailable(text),
    }
}
