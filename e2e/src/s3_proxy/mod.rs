//! An HTTP proxy that makes a local S3 server as slow, and as unreliable, as a real one.
//!
//! Each answer is held back until a time drawn from a table per verb and size ([`Profile`]); [`Rule`]s say which requests
//! meet which [`Fault`]. All is drawn from a seed: the n-th request of a verb has the same latency, and the n-th request that
//! a rule covers the same fate, in every run. Rules can be changed at any time, in the process with [`Proxy::set_rules`] and
//! from outside over HTTP ([`serve`]).

mod profile;
mod rules;
mod socket;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use futures::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, http};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

pub use self::profile::Profile;
pub use self::rules::{Counts, Fault, Rule, Verb};
use self::rules::{Decider, Decision};
use self::socket::Socket;

type Body = UnsyncBoxBody<Bytes, io::Error>;

/// Half of a body is on its way before the connection ends.
const HALF: Duration = Duration::from_millis(5);

/// A proxy in this process; it ends, with its connections, when dropped.
pub struct Proxy {
    address: SocketAddr,
    state: Arc<State>,
    /// An `Option` so that dropping need not wait for silent requests.
    runtime: Option<Runtime>,
}

impl Proxy {
    /// Listens on a free port of `host` (an IP address) in front of `upstream` (`host:port` or `http://host:port`).
    pub fn start(host: &str, upstream: &str, profile: Option<Profile>, seed: u64) -> anyhow::Result<Proxy> {
        let listener =
            StdListener::bind((host, 0)).with_context(|| format!("s3 proxy: cannot listen on {host}"))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let state = State::new(upstream, profile, seed);
        let accepting = state.clone();
        runtime.spawn(async move {
            match TcpListener::from_std(listener) {
                Ok(listener) => accept(listener, accepting).await,
                Err(error) => Err(error.into()),
            }
        });
        Ok(Proxy {
            address,
            state,
            runtime: Some(runtime),
        })
    }

    /// `http://host:port`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Port it listens on.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// From now on these faults and no others. Requests that met silence keep it.
    pub fn set_rules(&self, rules: Vec<Rule>) {
        self.state.decider.lock().set_rules(rules);
    }

    /// What it has seen and done so far.
    pub fn counts(&self) -> Counts {
        self.state.decider.lock().counts.clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

struct State {
    upstream: String,
    decider: Mutex<Decider>,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl State {
    fn new(upstream: &str, profile: Option<Profile>, seed: u64) -> Arc<State> {
        Arc::new(State {
            upstream: upstream.trim_start_matches("http://").to_owned(),
            decider: Mutex::new(Decider::new(seed, profile)),
            client: Client::builder(TokioExecutor::new()).build_http(),
        })
    }
}

/// Serves on `listen` in front of `upstream` (`host:port`) until the process ends. Prints nothing per request.
///
/// `admin` is another address to listen on: `GET /counts` gives [`Counts`], `PUT /rules` takes a list of [`Rule`]s, both as
/// JSON.
pub async fn serve(
    listen: &str,
    upstream: &str,
    admin: Option<&str>,
    profile: Option<Profile>,
    seed: u64,
) -> anyhow::Result<()> {
    let bind = async |address: &str| {
        TcpListener::bind(address)
            .await
            .with_context(|| format!("cannot listen on {address}"))
    };
    let state = State::new(upstream, profile, seed);
    if let Some(admin) = admin {
        tokio::spawn(administer(bind(admin).await?, state.clone()));
    }
    accept(bind(listen).await?, state).await
}

async fn accept(listener: TcpListener, state: Arc<State>) -> anyhow::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let state = state.clone();
        tokio::spawn(async move {
            let (socket, resets) = Socket::new(stream);
            let service = service_fn(move |request| {
                let (state, resets) = (state.clone(), resets.clone());
                async move {
                    let result = handle(&state, request).await;
                    if result.is_err() {
                        resets.reset();
                    }
                    result
                }
            });
            // A client that goes away is no fault of the proxy.
            let _ = http1::Builder::new()
                .serve_connection(TokioIo::new(socket), service)
                .await;
        });
    }
}

/// An error ends the connection with a reset.
async fn handle(state: &State, request: Request<Incoming>) -> anyhow::Result<Response<Body>> {
    let start = Instant::now();
    let verb = Verb::of(&request);
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let (decision, profile) = {
        let mut decider = state.decider.lock();
        (decider.decide(verb, path), decider.profile)
    };
    let (mut size, result) = treat(state, request, decision).await;
    let response = result?;
    if verb == Verb::Get {
        size = body_size(&response);
    }
    let delay = match decision.fault {
        Some(Fault::Delay { ms }) => Duration::from_millis(ms),
        _ => Duration::ZERO,
    };
    let latency = profile.map_or(Duration::ZERO, |profile| profile.latency(verb, size, decision.q));
    tokio::time::sleep_until((start + latency + delay).into()).await;
    Ok(response)
}

fn body_size(response: &Response<Body>) -> usize {
    let length = response.headers().get(CONTENT_LENGTH);
    length
        .and_then(|value| value.to_str().ok()?.parse().ok())
        .unwrap_or(0)
}

/// Forwards the request as far as its fault lets it; gives the size of its body, too.
async fn treat(
    state: &State,
    request: Request<Incoming>,
    decision: Decision,
) -> (usize, anyhow::Result<Response<Body>>) {
    let (head, body) = request.into_parts();
    let body = match body.collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => return (0, Err(error.into())),
    };
    let size = body.len();
    let result = match decision.fault {
        Some(Fault::Status { code, after: false }) => Ok(refusal(code)),
        Some(Fault::Reset { after: false }) => Err(anyhow::anyhow!("reset before the effect")),
        Some(Fault::Silence { after: false }) => std::future::pending().await,
        Some(Fault::TruncateRequest) => send_half(state, &head, &body).await,
        Some(Fault::RefuseSome) => match forward(state, head, body.clone()).await {
            Err(error) => Ok(bad_gateway(&error)),
            Ok(response) => Ok(refuse_some(response, &body)),
        },
        fault => match forward(state, head, body).await {
            Err(error) => Ok(bad_gateway(&error)),
            Ok(response) => spoil(response, fault).await,
        },
    };
    (size, result)
}

/// What is left of an answer.
async fn spoil(response: Response<Bytes>, fault: Option<Fault>) -> anyhow::Result<Response<Body>> {
    match fault {
        Some(Fault::Status { code, .. }) => Ok(refusal(code)),
        Some(Fault::Reset { .. }) => Err(anyhow::anyhow!("reset after the effect")),
        Some(Fault::Silence { .. }) => std::future::pending().await,
        // Of an answer without a body nothing can be left out but all.
        Some(Fault::TruncateResponse) if response.body().is_empty() => Err(anyhow::anyhow!("no answer")),
        Some(Fault::TruncateResponse) => {
            let (mut head, body) = response.into_parts();
            head.headers.insert(CONTENT_LENGTH, body.len().into());
            let half = body.slice(..body.len() / 2);
            let frames = stream::unfold(Some(half), |half| async move {
                match half {
                    Some(half) if !half.is_empty() => Some((Ok(Frame::data(half)), Some(Bytes::new()))),
                    Some(_) => {
                        tokio::time::sleep(HALF).await;
                        Some((Err(io::Error::other("half of the body")), None))
                    }
                    None => None,
                }
            });
            Ok(Response::from_parts(
                head,
                UnsyncBoxBody::new(StreamBody::new(frames)),
            ))
        }
        Some(Fault::TruncateRequest | Fault::RefuseSome | Fault::Delay { .. }) | None => {
            Ok(response.map(whole))
        }
    }
}

/// The answer to a deletion of many (`request` is its body) that has failed in part. Anything else stays as it is.
fn refuse_some(response: Response<Bytes>, request: &Bytes) -> Response<Body> {
    let request = String::from_utf8_lossy(request);
    let keys = request
        .split("<Key>")
        .skip(1)
        .filter_map(|rest| rest.split("</Key>").next());
    let errors: String = keys
        .step_by(2)
        .map(|key| {
            format!("<Error><Key>{key}</Key><Code>SlowDown</Code><Message>by the proxy</Message></Error>")
        })
        .collect();
    if errors.is_empty() {
        return response.map(whole);
    }
    let text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <DeleteResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">{errors}</DeleteResult>"
    );
    let (mut head, _) = response.into_parts();
    head.headers.insert(CONTENT_LENGTH, text.len().into());
    Response::from_parts(head, whole(text.into()))
}

async fn forward(
    state: &State,
    mut head: http::request::Parts,
    body: Bytes,
) -> anyhow::Result<Response<Bytes>> {
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    // The Host header stays as it is: the client has signed it.
    head.uri = format!("http://{}{path}", state.upstream).parse()?;
    let response = state
        .client
        .request(Request::from_parts(head, Full::new(body)))
        .await?;
    let (head, body) = response.into_parts();
    Ok(Response::from_parts(head, body.collect().await?.to_bytes()))
}

/// The client library would never send less than it announces.
async fn send_half(
    state: &State,
    head: &http::request::Parts,
    body: &Bytes,
) -> anyhow::Result<Response<Body>> {
    let mut stream = TcpStream::connect(&state.upstream).await?;
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut text = format!("{} {path} HTTP/1.1\r\n", head.method).into_bytes();
    for (name, value) in &head.headers {
        text.extend(name.as_str().as_bytes());
        text.extend(b": ");
        text.extend(value.as_bytes());
        text.extend(b"\r\n");
    }
    text.extend(b"\r\n");
    text.extend(&body[..body.len() / 2]);
    stream.write_all(&text).await?;
    stream.shutdown().await?;
    anyhow::bail!("half of the body was sent")
}

fn whole(body: Bytes) -> Body {
    UnsyncBoxBody::new(Full::new(body).map_err(|never| match never {}))
}

fn refusal(status: u16) -> Response<Body> {
    let code = match status {
        503 => "SlowDown",
        409 => "ConditionalRequestConflict",
        _ => "InternalError",
    };
    let text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code><Message>by the proxy</Message></Error>"
    );
    let mut response = Response::new(whole(text.into()));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let xml = http::HeaderValue::from_static("application/xml");
    response.headers_mut().insert(CONTENT_TYPE, xml);
    response
}

fn bad_gateway(error: &anyhow::Error) -> Response<Body> {
    let mut response = Response::new(whole(format!("{error:#}").into()));
    *response.status_mut() = StatusCode::BAD_GATEWAY;
    response
}

async fn administer(listener: TcpListener, state: Arc<State>) -> anyhow::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        let state = state.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| command(state.clone(), request));
            let _ = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn command(state: Arc<State>, request: Request<Incoming>) -> anyhow::Result<Response<Body>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let (status, text) = match (&head.method, head.uri.path()) {
        (&Method::GET, "/counts") => {
            let counts = state.decider.lock().counts.clone();
            (StatusCode::OK, serde_json::to_string(&counts)?)
        }
        (&Method::PUT, "/rules") => match serde_json::from_slice(&body) {
            Ok(rules) => {
                state.decider.lock().set_rules(rules);
                (StatusCode::NO_CONTENT, String::new())
            }
            Err(error) => (StatusCode::BAD_REQUEST, format!("{error}\n")),
        },
        _ => (StatusCode::NOT_FOUND, "GET /counts or PUT /rules\n".to_owned()),
    };
    let mut response = Response::new(whole(text.into()));
    *response.status_mut() = status;
    Ok(response)
}
