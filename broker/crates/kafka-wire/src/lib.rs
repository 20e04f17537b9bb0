//! Kafka's wire protocol as this project speaks it: bytes in, values out, and back. No sockets, no state.
//!
//! The messages themselves come from the crate `kafka-protocol`, which is generated from Kafka's schemas. It
//! trusts its input, so a request passes three gates before it gets there:
//!
//! ```text
//!  socket ─▶ frame      length within bounds, header readable       (frame::read_frame, RequestHeader)
//!         ─▶ versions   an API and a version that is served         (versions::range)
//!         ─▶ preflight  every count fits in the bytes that are left (request::decode does both)
//!         ─▶ kafka-protocol, whose byte fields are slices of the frame
//! ```
//!
//! Record batches are never decoded on the way through the broker. [`batch`] reads and checks the 61-byte
//! header, [`fetch`] sends the producer's bytes back behind a patched copy of it, and only a lookup of a record
//! by its timestamp ([`records`]) looks inside. [`rope`] is the form in which responses leave: a list of shared
//! slices for vectored writes.
//!
//! [`flex`] is the codec of the project's own RPCs and log entries.

pub mod batch;
pub mod client;
mod error;
pub mod fetch;
pub mod flex;
pub mod frame;
#[doc(hidden)]
pub mod fuzz_entry;
mod preflight;
pub mod records;
pub mod request;
pub mod response;
pub mod rope;
pub mod versions;

pub use error::{DecodeError, EncodeError};
pub use kafka_protocol::error::ResponseError;
pub use kafka_protocol::messages::{self, ApiKey, RequestKind, ResponseKind};
pub use kafka_protocol::protocol::StrBytes;

/// The code a response carries: 0 for no error.
pub fn code(error: Option<ResponseError>) -> i16 {
    error.map_or(0, |error| error.code())
}
