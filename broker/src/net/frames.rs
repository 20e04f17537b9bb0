//! Frames off a socket, within the memory budget.
//!
//! Small frames share a read buffer, several to a system call. A large one gets an allocation of exactly its size, so
//! that nothing is copied and nothing is kept alive beside it; the smallest are copied out of the read buffer, for the
//! same reason.
//!
//! A frame's beginning must be there before anything is taken from the budget. Then it gets what it announces, all at
//! once: frames that each had a part would wait for each other. One that is slow while others wait goes back to what has
//! come of it, and takes the rest step by step as it comes.

use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use env::Env;
use kafka_wire::frame::{FrameError, announced_len};
use kafka_wire::{ApiKey, versions};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::memory::{LARGE, Memory, MemoryBudget};

/// Frames up to this size go through the read buffer, in bytes.
const SMALL: usize = 16 << 10;
/// The read buffer of a connection that is idle or slow, in bytes. A frame below this size would keep more alive than
/// itself, and be counted for less than it takes.
const READ_MIN: usize = 4 << 10;
/// The read buffer of a connection that fills it, in bytes.
const READ_MAX: usize = 64 << 10;
/// Frames of other APIs than Produce need a permit from this size on, in bytes.
const FREE: usize = 64 << 10;
/// API key, version and correlation id.
const FIXED_HEADER: usize = 8;
/// A frame that has begun must go on within this time: it holds memory.
const STALL: Duration = Duration::from_secs(30);
/// A large frame must come at least this fast, in bytes per second, for the same reason.
const SLOWEST: u64 = 256 << 10;
/// A frame holds what has not come of it for so long while others wait.
const PATIENCE: Duration = Duration::from_secs(1);
/// What it reads at a time from then on before it takes memory for it, in bytes.
const STEP: usize = 64 << 10;
/// What a request takes beside its bytes until it is answered, about, in bytes.
const REQUEST: usize = 512;

/// A request without its length prefix.
#[derive(Debug)]
pub struct Frame {
    /// Header and body.
    pub bytes: Bytes,
    /// The part of the memory budget it holds; kept as long as its bytes are.
    pub memory: Option<Memory>,
}

/// Reads the frames of one connection.
pub struct FrameReader<R> {
    reader: R,
    env: Env,
    budget: MemoryBudget,
    buffer: BytesMut,
    read_size: usize,
    max_frame: usize,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Reads from `reader`; frames above `max_frame` bytes are refused.
    pub fn new(reader: R, env: Env, budget: MemoryBudget, max_frame: usize) -> Self {
        let max_frame = max_frame.min(budget.total());
        FrameReader {
            reader,
            env,
            budget,
            buffer: BytesMut::new(),
            read_size: READ_MIN,
            max_frame,
        }
    }

    /// Resolves when there is something of the next frame, or the end; may be dropped and called again.
    pub async fn ready(&mut self) -> Result<bool, FrameError> {
        if self.buffer.is_empty() {
            if self.buffer.capacity() > READ_MIN {
                // Nothing is in flight: an idle connection keeps no buffer but the small one it waits with.
                self.buffer = BytesMut::new();
            }
            self.fill().await?;
        }
        Ok(!self.buffer.is_empty())
    }

    /// The next frame; `None` when the peer closed the connection between two frames.
    pub async fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        if !self.ready().await? {
            return Ok(None);
        }
        let len = loop {
            match announced_len(&self.buffer, self.max_frame)? {
                Some(len) if len < FIXED_HEADER || self.buffer.len() >= 4 + FIXED_HEADER => break len,
                _ => self.fill_in_time().await?,
            }
        };
        let produce = self.check_header(len)?;
        let mut incomplete = None;
        let mut memory = None;
        if produce || len > FREE {
            // An announcement costs nothing.
            while self.buffer.len() < READ_MIN.min(4 + len) {
                self.fill_in_time().await?;
            }
            if len > LARGE {
                incomplete = Some(self.budget.take_incomplete(len).await);
            }
            memory = Some(self.budget.take(len + REQUEST).await);
        }
        self.buffer.advance(4);
        let bytes = if len <= SMALL {
            self.small(len).await?
        } else {
            let held = incomplete.iter_mut().chain(&mut memory).collect();
            self.large(len, held).await?
        };
        Ok(Some(Frame { bytes, memory }))
    }

    /// Refuses what is not a request of ours before it costs anything. True for Produce.
    ///
    /// A version that is not served passes here: the router knows which of them are answered.
    fn check_header(&self, len: usize) -> Result<bool, FrameError> {
        let key = self
            .buffer
            .get(4..6)
            .and_then(|key| key.first_chunk::<2>())
            .map(|key| i16::from_be_bytes(*key));
        let key = key.and_then(|key| ApiKey::try_from(key).ok());
        match key.filter(|key| len >= FIXED_HEADER && versions::range(*key).is_some()) {
            Some(key) => Ok(key == ApiKey::Produce),
            None => Err(FrameError::Io(std::io::Error::new(
                std::io::ErrorKind::InvalidData,
                "not a request of an api that is served",
            ))),
        }
    }

    async fn small(&mut self, len: usize) -> Result<Bytes, FrameError> {
        while self.buffer.len() < len {
            self.fill_in_time().await?;
        }
        let frame = self.buffer.split_to(len);
        Ok(if len < READ_MIN {
            Bytes::copy_from_slice(&frame)
        } else {
            frame.freeze()
        })
    }

    /// `held` is counted for the whole frame.
    async fn large(&mut self, len: usize, mut held: Vec<&mut Memory>) -> Result<Bytes, FrameError> {
        let mut last = self.env.instant();
        let mut deadline = last + STALL + Duration::from_secs(len as u64 / SLOWEST);
        // When to look whether others wait; never again once what has not come is given back.
        let mut look = Some(last + PATIENCE).filter(|_| !held.is_empty());
        let mut given_back = false;
        // What follows is most likely as large: the read buffer would only be in its way.
        self.read_size = READ_MIN;
        let mut frame = BytesMut::with_capacity(len);
        let present = self.buffer.len().min(len);
        frame.extend_from_slice(&self.buffer.split_to(present));
        while frame.len() < len {
            let missing = len - frame.len();
            let now = self.env.instant();
            if look.is_some_and(|look| look <= now) {
                look = Some(now + PATIENCE);
                if self.budget.is_short() {
                    held.iter_mut().for_each(|held| held.release(missing));
                    // What has come is held on to, so the rest must not take long.
                    (look, given_back, deadline) = (None, true, deadline.min(now + STALL));
                }
            }
            let most = if given_back { missing.min(STEP) } else { missing };
            let mut rest = (&mut self.reader).take(most as u64);
            let stall = deadline.min(last + STALL);
            let until = look.map_or(stall, |look| look.min(stall));
            let read = match self.env.timeout_at(until, rest.read_buf(&mut frame)).await {
                Ok(read) => read?,
                Err(_) if self.env.instant() < stall => continue,
                Err(_) => return Err(stalled()),
            };
            if read == 0 {
                return Err(FrameError::Closed);
            }
            if given_back {
                for held in &mut held {
                    let grown = self.env.timeout_at(deadline, held.grow(read)).await;
                    grown.map_err(|_| stalled())?;
                }
            }
            last = self.env.instant();
        }
        Ok(frame.freeze())
    }

    /// More of a frame that has begun.
    async fn fill_in_time(&mut self) -> Result<(), FrameError> {
        let env = self.env.clone();
        let before = self.buffer.len();
        env.timeout(STALL, self.fill()).await.map_err(|_| stalled())??;
        if self.buffer.len() == before {
            Err(FrameError::Closed)
        } else {
            Ok(())
        }
    }

    /// One read; at the end of the stream nothing is added.
    async fn fill(&mut self) -> Result<(), FrameError> {
        if self.buffer.capacity() - self.buffer.len() < READ_MIN / 2 {
            self.buffer.reserve(self.read_size);
        }
        let room = self.buffer.capacity() - self.buffer.len();
        let read = self.reader.read_buf(&mut self.buffer).await?;
        self.read_size = if read == room {
            (self.read_size * 2).min(READ_MAX)
        } else {
            self.read_size
        };
        if read < READ_MIN / 2 {
            self.read_size = READ_MIN;
        }
        Ok(())
    }
}

fn stalled() -> FrameError {
    FrameError::Io(std::io::Error::new(
        std::io::ErrorKind::TimedOut,
        "the rest of a frame does not come",
    ))
}

#[cfg(test)]
mod tests;
