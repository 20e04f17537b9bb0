//! Client connections: from accepted sockets to requests, and from replies back to bytes.
//!
//! ```text
//!  listener per zone ─▶ connection ─┬─ reader: frames ─▶ Handler ─▶ queue of replies (bounded)
//!                                   └─ writer: awaits them in order ─▶ vectored writes
//! ```
//!
//! Kafka promises answers in the order of the requests, and clients pipeline: the reader never waits for an answer.
//! A handler does first what must happen in order (putting a batch into the produce buffer) and returns the rest as a
//! future, which runs when its turn to be answered has come.
//!
//! A peer may send anything. A frame is refused by its length, its API and its version before memory is taken for it;
//! memory for produced data is taken from a budget, and past it sockets are not read ([`frames`], [`memory`]).

mod connection;
pub mod frames;
mod listeners;
pub mod memory;
mod zone;

pub use listeners::{Net, start};
pub use zone::client_zone;

use std::sync::Arc;

use futures::FutureExt;
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

/// A request that was taken in, or is about to be.
pub enum Taken {
    /// What must keep the order of the requests has happened; the future does the rest.
    Now(BoxFuture<'static, Answer>),
    /// It happens in this future. Nothing more is read of the connection until then.
    Later(BoxFuture<'static, Taken>),
}

impl Taken {
    /// With the answer that `change` makes of this one.
    pub fn map<F>(self, change: F) -> Taken
    where
        F: FnOnce(BoxFuture<'static, Answer>) -> BoxFuture<'static, Answer> + Send + 'static,
    {
        match self {
            Taken::Now(answer) => Taken::Now(change(answer)),
            Taken::Later(taking) => Taken::Later(taking.map(|taken| taken.map(change)).boxed()),
        }
    }
}

/// What answers requests.
pub trait Handler: Send + Sync + 'static {
    /// Takes a request in. Requests of a connection come in the order they were sent.
    fn handle(&self, peer: &Peer, frame: Frame) -> Taken;
}

#[cfg(test)]
mod tests;
