//! The internal listener: how brokers, coordinators and the controller talk to each other.
//!
//! A connection begins with a proof that the peer knows the cluster's secret ([`handshake`]).
//! Kafka framing with private API keys ([`coordinator::protocol`], [`cluster::protocol`]); many requests fly on one
//! connection and are answered in any order. What may wait long, for other members of a group, has a connection of its own ([`Lane`]), so that
//! commits and heartbeats never stand behind it.
//!
//! A peer that is gone without a word shows in two ways. Its machine confirms nothing: the kernel ends the connection
//! ([`UNCONFIRMED`]). Or calls get no answer and nothing else arrives: the caller ends it, and discards what is still on its way, since
//! the calls are made again and whatever came later would undo what was done after them.

pub(crate) mod connection;
mod coordinators;
pub(crate) mod handshake;
mod seen;
mod server;

pub use connection::{Lane, Pool};
pub use coordinators::{Coordinators, Destination};
pub(crate) use server::split_request;
pub use server::{Caller, Handler, read_request, serve};

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use env::WriteHalf;
use kafka_wire::rope::{Rope, write_vectored_all};
use kafka_wire::{DecodeError, ResponseError};
use tokio::sync::mpsc;

/// Largest frame taken from a peer, bytes.
const MAX_FRAME: usize = 128 << 20;

/// Version of all requests.
const VERSION: i16 = 0;

/// How long a peer's machine may leave unconfirmed what was sent to it, or that it is there.
const UNCONFIRMED: Duration = Duration::from_secs(10);

/// An internal call that did not come to an answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RpcError {
    /// No answer in time; whether the call took effect is unknown.
    #[error("no answer in time")]
    TimedOut,
    /// The connection broke; whether the call took effect is unknown.
    #[error("{address}: the connection broke")]
    Broken {
        /// `host:port` of the node.
        address: String,
    },
    /// The host is up, and nothing listens there.
    #[error("{address}: {reason}")]
    Refused {
        /// `host:port` of the node.
        address: String,
        /// What happened.
        reason: String,
    },
    /// The node could not be reached, which says nothing about it: the fault may be on the way, or on this side.
    #[error("{address}: {reason}")]
    Unreachable {
        /// `host:port` of the node.
        address: String,
        /// What happened.
        reason: String,
    },
    /// The peer does not take this node for one of its cluster, or is none itself: their secrets differ.
    #[error("{address}: authentication failed: {reason}")]
    Denied {
        /// `host:port` of the node.
        address: String,
        /// What the peer said, or did wrong.
        reason: String,
    },
    /// The peer does not serve this request (UNSUPPORTED_VERSION) or cannot read it (INVALID_REQUEST).
    #[error("{address}: the request is refused: {error:?}")]
    Unserved {
        /// `host:port` of the node.
        address: String,
        /// What the peer said.
        error: ResponseError,
    },
    /// The peer sent something that is not an answer.
    #[error("malformed answer: {0}")]
    Malformed(String),
}

impl From<DecodeError> for RpcError {
    fn from(error: DecodeError) -> Self {
        RpcError::Malformed(error.to_string())
    }
}

/// A frame of `header` and `body`, with its length prefix.
fn frame(header: &[u8], body: Rope) -> Rope {
    let mut head = BytesMut::with_capacity(4 + header.len());
    head.put_u32(u32::try_from(header.len() + body.len()).unwrap_or(u32::MAX));
    head.put_slice(header);
    let mut frame = Rope::from(head.freeze());
    frame.append(body);
    frame
}

fn request_frame(api_key: i16, correlation_id: i32, body: Bytes) -> Rope {
    let mut header = BytesMut::with_capacity(11);
    header.put_i16(api_key);
    header.put_i16(VERSION);
    header.put_i32(correlation_id);
    header.put_i16(-1);
    header.put_u8(0);
    frame(&header, body.into())
}

fn response_frame(correlation_id: i32, body: Rope) -> Rope {
    let mut header = BytesMut::with_capacity(5);
    header.put_i32(correlation_id);
    header.put_u8(0);
    frame(&header, body)
}

/// Writes what is queued, together what waits together, until the queue or the connection ends.
async fn write_queue(mut queue: mpsc::Receiver<Rope>, writing: &mut WriteHalf) {
    while let Some(mut out) = queue.recv().await {
        while let Ok(next) = queue.try_recv() {
            out.append(next);
        }
        if write_vectored_all(writing, out).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
