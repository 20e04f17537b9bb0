//! From record batches to acknowledged offsets.
//!
//! ```text
//!  batches ─▶ validate ─▶ buffer ─▶ segment ─┬▶ upload ─┬▶ wait for earlier ─▶ CommitFile to shard 1 ─▶ outcomes
//!  (in order of a           (wal)             │  (many   └▶ wait for earlier ─▶ CommitFile to shard 2 ─▶ outcomes
//!   connection)                               ▼   at once)
//!                                           cache
//! ```
//!
//! Memory: until its segment is written, a batch counts for `produce.memory_bytes` with all its bytes; then the cache has
//! them, and only what stands for it here counts until it has its outcome. So neither a store nor a shard that does not
//! answer costs more than that.
//!
//! Order: the buffer keeps the order of arrival, uploads overtake each other, and a commit waits for the commits of
//! earlier segments that share a partition with it ([`order`]). An upload that takes long is hedged ([`upload`]). What a
//! producer gets to hear:
//!
//! - the object could not be written: KAFKA_STORAGE_ERROR. Nothing was stored, the client sends it again;
//! - no answer to the commit in time: REQUEST_TIMED_OUT. It may have been stored; a retry of an idempotent producer
//!   finds out, by its sequence numbers;
//! - the coordinator refused the batch: its error;
//! - an earlier batch of the same idempotent producer was lost and did not come through another broker meanwhile:
//!   OUT_OF_ORDER_SEQUENCE_NUMBER ([`gaps`]), and the client sends both again, in order.
//!
//! An object that a commit has named is never deleted here, whatever the answer was: it may be referred to.

mod gaps;
#[cfg(test)]
mod lost_replies;
mod order;
mod pipeline;
mod reading;
mod request;
mod segment;
#[cfg(test)]
pub(crate) mod testing;
mod upload;
mod validate;

pub use pipeline::{Append, Producer, detach};
pub use reading::{Readers, Reading, Unread};
pub use request::Outcome;
pub use validate::{Refusal, validate};
