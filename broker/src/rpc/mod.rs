//! The internal listener: how brokers, coordinators and the controller talk to each other.
//!
//! Kafka framing with private API keys ([`coordinator::protocol`], [`cluster::protocol`]); many requests fly on one
//! connection and are answered in any order.

mod connection;
mod coordinators;
mod server;

pub use connection::Pool;
pub use coordinators::{Coordinators, Destination};
pub use server::{Handler, serve};

use bytes::{BufMut, Bytes, BytesMut};
use kafka_wire::DecodeError;
use kafka_wire::flex::{Decode, Encode};

/// Largest frame taken from a peer, bytes.
const MAX_FRAME: usize = 128 << 20;

/// An internal call that did not come to an answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RpcError {
    /// No answer in time; whether the call took effect is unknown.
    #[error("no answer in time")]
    TimedOut,
    /// The node could not be reached, or the connection broke.
    #[error("{address}: {reason}")]
    Unreachable {
        /// `host:port` of the node.
        address: String,
        /// What happened.
        reason: String,
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

/// A request or reply header plus body, with its length prefix.
fn request_frame(api_key: i16, correlation_id: i32, body: &impl Encode) -> Bytes {
    let mut frame = BytesMut::with_capacity(256);
    frame.put_i32(0);
    frame.put_i16(api_key);
    frame.put_i16(0);
    frame.put_i32(correlation_id);
    frame.put_i16(-1);
    frame.put_u8(0);
    body.encode(&mut frame);
    with_length(frame)
}

fn response_frame(correlation_id: i32, body: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(body.len() + 9);
    frame.put_i32(0);
    frame.put_i32(correlation_id);
    frame.put_u8(0);
    frame.put_slice(body);
    with_length(frame)
}

fn with_length(mut frame: BytesMut) -> Bytes {
    let length = u32::try_from(frame.len() - 4).unwrap_or(u32::MAX).to_be_bytes();
    for (to, from) in frame.iter_mut().zip(length) {
        *to = from;
    }
    frame.freeze()
}

/// Decodes a whole body.
pub fn decode<T: Decode>(mut body: Bytes) -> Result<T, DecodeError> {
    T::decode(&mut body)
}

/// Encodes a body.
pub fn encode(body: &impl Encode) -> Bytes {
    let mut out = BytesMut::with_capacity(256);
    body.encode(&mut out);
    out.freeze()
}
