//! WAL segments: how produced batches are gathered, laid out in an object, and named.
//!
//! ```text
//!  produce requests ─▶ Buffer (one per broker) ─▶ Segment ─▶ object wal/<hash prefix>/<uuid>
//!                       due at size, time or         │
//!                       while the PUT budget lasts   ├── body: byte 0 = 0, then whole record batches
//!                                                    └── where each batch lies, for the commit
//! ```
//!
//! An object holds nothing but batches as the producers sent them; what they are and which offsets they have is
//! known by their coordinates in the metadata log. Nothing here does I/O or reads a clock.

mod buffer;
mod format;
mod key;

pub use buffer::{Buffer, Due, Limits};
pub use format::{Batch, COPY_BELOW, FORMAT_VERSION, Placed, Segment};
pub use key::{PREFIX, name_object, object_id, object_key, uploader};
