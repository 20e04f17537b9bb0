//! Client connections: from accepted sockets to requests, and from replies back to bytes.
//!
//! ```text
//!  listener per zone ─▶ connection ─┬─ reader: frames ─▶ Handler ─▶ queue of replies (bounded)
//!                                   └─ writer: awaits them in order ─▶ vectored writes
//! ```
//!
//! Kafka promises answers in the order of the requests, and clients pipeline: the reader never waits for an answer.
//! A handler does at once what must happen in order (putting a batch into the produce buffer) and returns the rest as a
//! future, which runs when its turn to be answered has come.
//!
//! A peer may send anything. A frame is refused by its length, its API and its version before memory is taken for it;
//! memory for produced data is taken from a budget, and past it sockets are not read ([`frames`]).

mod connection;
pub mod frames;
mod listeners;
mod zone;

pub use listeners::{Net, start};
pub use zone::client_zone;

use std::sync::Arc;

use futures::future::BoxFuture;
use kafka_wire::rope::Rope;

use frames::Frame;

/// Who sent a request.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Address as Kafka shows it: `/10.0.0.1`.
    pub host: Arc<str>,
    /// Zone of the port that the client came in through; `None`: the port for clients of unknown zone.
    pub zone: Option<Arc<str>>,
}

/// What becomes of a request.
#[derive(Debug)]
pub enum Answer {
    /// A whole frame to send.
    Reply(Rope),
    /// Nothing is sent (acks=0).
    Silence,
    /// The connection ends.
    Close,
}

/// What answers requests.
pub trait Handler: Send + Sync + 'static {
    /// Takes a request in. Requests of a connection come in the order they were sent; what must keep that order
    /// happens before this returns, the future does the rest.
    fn handle(&self, peer: &Peer, frame: Frame) -> BoxFuture<'static, Answer>;
}

#[cfg(test)]
mod tests;
