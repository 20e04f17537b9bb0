//! How a connection to the internal listener begins: Kafka's SaslHandshake (key 17, version 1) and SaslAuthenticate
//! (key 36, version 1) with SCRAM-SHA-256, in which both sides prove that they know the cluster's secret.
//!
//! Nothing else is answered before, and little is kept of a stranger: small frames only, and not for long.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use coordinator::protocol::ErrorResponse;
use env::{Env, ReadHalf, Stream, WriteHalf};
use kafka_wire::ResponseError;
use kafka_wire::flex::Encode;
use kafka_wire::frame::read_frame;
use kafka_wire::rope::write_vectored_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{RpcError, response_frame};
use crate::auth::scram::{self, ClientExchange, ServerExchange};
use crate::auth::{ClusterSecret, NODE_USER, nonce};

const SASL_HANDSHAKE: i16 = 17;
const SASL_AUTHENTICATE: i16 = 36;
const VERSION: i16 = 1;
/// Largest frame taken from a peer that is not known yet, bytes.
const MAX_FRAME: usize = 8 << 10;
/// How long a peer may take to say who it is.
const PATIENCE: Duration = Duration::from_secs(10);

/// Proves to the listener at `address` that this node belongs to the cluster, and has it prove the same.
pub(super) async fn introduce(
    env: &Env,
    stream: &mut Stream,
    secret: &ClusterSecret,
    address: &str,
) -> Result<(), RpcError> {
    let denied = |reason: String| RpcError::Denied {
        address: address.to_owned(),
        reason,
    };
    let malformed = || RpcError::Malformed("not an answer to a sasl request".to_owned());

    let mut mechanism = BytesMut::new();
    put_string(&mut mechanism, scram::MECHANISM);
    let mut answer = exchange(stream, address, SASL_HANDSHAKE, &mechanism).await?;
    match answer.try_get_i16().map_err(|_| malformed())? {
        0 => {}
        code => return Err(denied(format!("sasl handshake refused with error {code}"))),
    }
    let secret = secret.current();
    let (client, first) = ClientExchange::start(NODE_USER, &nonce(env));
    let answer = authenticate(stream, address, &first).await?;
    let (proof, last) = client
        .prove(&answer, |salt, iterations| secret.salted(salt, iterations))
        .map_err(|error| denied(error.to_string()))?;
    let answer = authenticate(stream, address, &last).await?;
    proof.check(&answer).map_err(|error| denied(error.to_string()))
}

async fn authenticate(stream: &mut Stream, address: &str, message: &str) -> Result<Bytes, RpcError> {
    let mut body = BytesMut::new();
    put_bytes(&mut body, message.as_bytes());
    let answer = exchange(stream, address, SASL_AUTHENTICATE, &body).await?;
    let (code, reason, bytes) = split_authenticated(answer)
        .ok_or_else(|| RpcError::Malformed("not an answer to a sasl request".to_owned()))?;
    if code != 0 {
        return Err(RpcError::Denied {
            address: address.to_owned(),
            reason,
        });
    }
    Ok(bytes)
}

/// Sends one request and gives the body of its answer. Nothing else is on the connection yet.
async fn exchange(stream: &mut Stream, address: &str, key: i16, body: &[u8]) -> Result<Bytes, RpcError> {
    let broken = |reason: String| RpcError::Unreachable {
        address: address.to_owned(),
        reason,
    };
    let mut frame = BytesMut::new();
    frame.put_u32(u32::try_from(10 + body.len()).unwrap_or(u32::MAX));
    frame.put_i16(key);
    frame.put_i16(VERSION);
    frame.put_i32(0);
    frame.put_i16(-1);
    frame.put_slice(body);
    stream
        .write_all(&frame)
        .await
        .map_err(|error| broken(error.to_string()))?;
    stream.flush().await.map_err(|error| broken(error.to_string()))?;
    let length = stream
        .read_u32()
        .await
        .map_err(|error| broken(error.to_string()))? as usize;
    if !(4..=MAX_FRAME).contains(&length) {
        return Err(RpcError::Malformed(format!(
            "an answer of {length} bytes to a sasl request"
        )));
    }
    // Read exactly: what follows belongs to whoever gets the stream next.
    let mut answer = vec![0; length];
    stream
        .read_exact(&mut answer)
        .await
        .map_err(|error| broken(error.to_string()))?;
    let mut answer = Bytes::from(answer);
    answer.advance(4);
    Ok(answer)
}

/// Lets a peer say who it is. `Err` says in words why it is not served; it has been told, and the connection is to be
/// closed.
pub(super) async fn admit(
    env: &Env,
    reading: &mut ReadHalf,
    writing: &mut WriteHalf,
    buffer: &mut BytesMut,
    secret: &ClusterSecret,
) -> Result<(), String> {
    let admitted = env
        .timeout(PATIENCE, listen(env, reading, writing, buffer, secret))
        .await;
    let admitted = admitted.unwrap_or_else(|_| Err("it did not say who it is".to_owned()));
    if admitted.is_err() {
        let _ = writing.shutdown().await;
    }
    admitted
}

async fn listen(
    env: &Env,
    reading: &mut ReadHalf,
    writing: &mut WriteHalf,
    buffer: &mut BytesMut,
    secret: &ClusterSecret,
) -> Result<(), String> {
    let secret = secret.current();
    let mut agreed = false;
    let mut begun: Option<ServerExchange> = None;
    loop {
        let frame = read_frame(reading, buffer, MAX_FRAME)
            .await
            .map_err(|error| error.to_string())?
            .ok_or_else(|| "it closed the connection".to_owned())?;
        let Some(request) = Request::parse(frame) else {
            return Err("not a kafka request".to_owned());
        };
        match (request.key, request.version) {
            (SASL_HANDSHAKE, VERSION) if !agreed => {
                let known = take_string(&mut request.body.clone()).as_deref() == Some(scram::MECHANISM);
                let error = if known {
                    0
                } else {
                    ResponseError::UnsupportedSaslMechanism.code()
                };
                let mut body = BytesMut::new();
                body.put_i16(error);
                body.put_i32(1);
                put_string(&mut body, scram::MECHANISM);
                send(writing, request.correlation_id, &body).await?;
                if !known {
                    return Err("it wants another sasl mechanism".to_owned());
                }
                agreed = true;
            }
            (SASL_AUTHENTICATE, VERSION) if agreed => {
                let message = take_bytes(&mut request.body.clone()).ok_or("malformed sasl request")?;
                let step = match begun.take() {
                    None => ServerExchange::start(&message, &nonce(env), |user| secret.keys(user))
                        .map(|(exchange, answer)| (Some(exchange), answer)),
                    Some(exchange) => exchange.finish(&message).map(|(_, answer)| (None, answer)),
                };
                let (next, answer) = match step {
                    Ok(step) => step,
                    Err(error) => {
                        let code = ResponseError::SaslAuthenticationFailed.code();
                        let body = authenticated(code, &error.to_string(), "");
                        send(writing, request.correlation_id, &body).await?;
                        return Err(error.to_string());
                    }
                };
                send(writing, request.correlation_id, &authenticated(0, "", &answer)).await?;
                match next {
                    Some(exchange) => begun = Some(exchange),
                    // The only user there is holds CLUSTER_ACTION.
                    None => return Ok(()),
                }
            }
            (key, _) => {
                let error_code = ResponseError::ClusterAuthorizationFailed.code();
                let refusal = ErrorResponse { error_code }.to_bytes().into();
                let refusal = response_frame(request.correlation_id, refusal);
                let _ = write_vectored_all(writing, refusal).await;
                return Err(format!("request {key} without cluster_action"));
            }
        }
    }
}

pub(crate) struct Request {
    key: i16,
    version: i16,
    correlation_id: i32,
    pub(crate) body: Bytes,
}

impl Request {
    /// Request header version 1: what follows it in version 2 is none of our business here.
    pub(crate) fn parse(mut frame: Bytes) -> Option<Request> {
        let key = frame.try_get_i16().ok()?;
        let version = frame.try_get_i16().ok()?;
        let correlation_id = frame.try_get_i32().ok()?;
        let client_id = frame.try_get_i16().ok()?;
        let skipped = usize::try_from(client_id).unwrap_or(0);
        (frame.len() >= skipped).then(|| {
            frame.advance(skipped);
            Request {
                key,
                version,
                correlation_id,
                body: frame,
            }
        })
    }
}

async fn send(writing: &mut WriteHalf, correlation_id: i32, body: &[u8]) -> Result<(), String> {
    let mut frame = BytesMut::new();
    frame.put_u32(u32::try_from(4 + body.len()).unwrap_or(u32::MAX));
    frame.put_i32(correlation_id);
    frame.put_slice(body);
    writing.write_all(&frame).await.map_err(|error| error.to_string())
}

/// Body of a SaslAuthenticate response.
fn authenticated(code: i16, reason: &str, message: &str) -> BytesMut {
    let mut body = BytesMut::new();
    body.put_i16(code);
    if code == 0 {
        body.put_i16(-1);
    } else {
        put_string(&mut body, reason);
    }
    put_bytes(&mut body, message.as_bytes());
    // The session lasts as long as the connection.
    body.put_i64(0);
    body
}

pub(crate) fn split_authenticated(mut body: Bytes) -> Option<(i16, String, Bytes)> {
    let code = body.try_get_i16().ok()?;
    let reason = take_string(&mut body).unwrap_or_default();
    let bytes = take_bytes(&mut body)?;
    Some((code, reason, bytes))
}

fn put_string(out: &mut BytesMut, text: &str) {
    out.put_i16(i16::try_from(text.len()).unwrap_or(i16::MAX));
    out.put_slice(text.as_bytes());
}

fn put_bytes(out: &mut BytesMut, bytes: &[u8]) {
    out.put_i32(i32::try_from(bytes.len()).unwrap_or(i32::MAX));
    out.put_slice(bytes);
}

/// `None` for null, and for what is not a string.
pub(crate) fn take_string(input: &mut Bytes) -> Option<String> {
    let length = usize::try_from(input.try_get_i16().ok()?).ok()?;
    (input.len() >= length).then(|| String::from_utf8_lossy(&input.split_to(length)).into_owned())
}

pub(crate) fn take_bytes(input: &mut Bytes) -> Option<Bytes> {
    let length = usize::try_from(input.try_get_i32().ok()?).ok()?;
    (input.len() >= length).then(|| input.split_to(length))
}
