//! From offsets to record bytes.
//!
//! ```text
//!   shard leaders ══ DisklessTail (long poll) ══▶ window: newest coordinates of every partition, its bounds
//!        ▲                                            │                 │ wakes
//!        └──── DisklessFindBatches (below the window, │                 ▼
//!              beyond what is known) ◀──────────── fetch: which batches, within the limits
//!                                                     ▼
//!             cache, the owner in this zone, or the store ─▶ objects ─▶ batches with their offsets
//! ```
//!
//! A consumer at the end of the log costs the coordinators nothing: its coordinates have been pushed here, and so has
//! the news it waits for. High watermarks may be older than the leader's, never newer; an offset beyond what is known
//! here is checked at the leader.
//!
//! A consumer that is far behind small batches could have gigabytes read for one answer. So an answer is bounded by what it
//! takes as well as by what it gives ([`plan`]), reads under way are bounded by the cache, and what answers hold until they
//! are written by [`AnswerMemory`].

mod memory;
mod neighbours;
mod objects;
mod plan;
mod reader;
mod serving;
mod sessions;
mod tail;
mod window;

pub use memory::AnswerMemory;
pub use neighbours::Neighbours;
pub use objects::{Objects, ReadError};
pub use reader::{FetchLimits, Fetched, Fetcher, Wanted};
pub use serving::ObjectServer;
pub use sessions::{Asked, Round, Sessions, TopicKey};
pub use tail::follow;
pub use window::Windows;
