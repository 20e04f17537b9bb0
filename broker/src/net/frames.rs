//! Frames off a socket, within the memory budget.
//!
//! Small frames share a read buffer, several to a system call. A large one gets an allocation of exactly its size, so
//! that nothing is copied and nothing is kept alive beside it; the smallest are copied out of the read buffer, for the
//! same reason.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use env::Env;
use kafka_wire::frame::{FrameError, announced_len};
use kafka_wire::{ApiKey, versions};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

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

/// A request without its length prefix.
#[derive(Debug)]
pub struct Frame {
    /// Header and body.
    pub bytes: Bytes,
    /// The part of the memory budget it holds; kept as long as its bytes are.
    pub permit: Option<OwnedSemaphorePermit>,
}

/// Memory for requests that are not answered yet, in bytes.
#[derive(Clone, Debug)]
pub struct MemoryBudget {
    permits: Arc<Semaphore>,
    total: usize,
}

impl MemoryBudget {
    /// A budget of `bytes`.
    pub fn new(bytes: usize) -> MemoryBudget {
        MemoryBudget {
            permits: Arc::new(Semaphore::new(bytes)),
            total: bytes,
        }
    }

    /// Bytes in use.
    pub fn used(&self) -> usize {
        self.total.saturating_sub(self.permits.available_permits())
    }

    async fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let bytes = u32::try_from(bytes.min(self.total)).unwrap_or(u32::MAX);
        self.permits.clone().acquire_many_owned(bytes).await.ok()
    }
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
        let max_frame = max_frame.min(budget.total);
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
        let permit = if produce || len > FREE {
            self.budget.take(len).await
        } else {
            None
        };
        self.buffer.advance(4);
        let bytes = if len <= SMALL {
            self.small(len).await?
        } else {
            self.large(len).await?
        };
        Ok(Some(Frame { bytes, permit }))
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

    async fn large(&mut self, len: usize) -> Result<Bytes, FrameError> {
        let deadline = self.env.instant() + STALL + Duration::from_secs(len as u64 / SLOWEST);
        // What follows is most likely as large: the read buffer would only be in its way.
        self.read_size = READ_MIN;
        let mut frame = BytesMut::with_capacity(len);
        let present = self.buffer.len().min(len);
        frame.extend_from_slice(&self.buffer.split_to(present));
        while frame.len() < len {
            let missing = (len - frame.len()) as u64;
            let mut rest = (&mut self.reader).take(missing);
            let until = deadline.min(self.env.instant() + STALL);
            let read = self.env.timeout_at(until, rest.read_buf(&mut frame)).await;
            if read.map_err(|_| stalled())?? == 0 {
                return Err(FrameError::Closed);
            }
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
mod tests {
    use super::*;

    const MAX: usize = 100 << 20;

    fn request(key: i16, version: i16, body: usize) -> Vec<u8> {
        let mut out = u32::try_from(8 + body).unwrap().to_be_bytes().to_vec();
        out.extend_from_slice(&key.to_be_bytes());
        out.extend_from_slice(&version.to_be_bytes());
        out.extend_from_slice(&[0, 0, 0, 1]);
        out.extend((0..body).map(|i| i as u8));
        out
    }

    fn reader(input: &[u8], budget: usize) -> FrameReader<&[u8]> {
        FrameReader::new(input, Env::simulated(1), MemoryBudget::new(budget), MAX)
    }

    #[tokio::test]
    async fn small_and_large_frames_come_out_whole() {
        let sizes = [0, 10, 100, 5000, 16_376, 16_377, 70_000, 3_000_000, 1];
        let input: Vec<u8> = sizes.iter().flat_map(|size| request(3, 1, *size)).collect();
        let mut reader = reader(&input, MAX);
        for size in sizes {
            let frame = reader.next().await.unwrap().unwrap();
            assert!(frame.bytes == request(3, 1, size)[4..], "{size}");
            assert_eq!(frame.permit.is_some(), size + 8 > FREE, "{size}");
        }
        assert!(reader.next().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_small_frame_keeps_nothing_but_itself_alive() {
        for size in [0, 100, 3000, 20_000] {
            let (mut far, near) = tokio::io::duplex(1 << 20);
            let mut reader = FrameReader::new(near, Env::simulated(1), MemoryBudget::new(MAX), MAX);
            // Two in one read: what is left in the read buffer is not theirs.
            let two = [request(0, 9, size), request(0, 9, size)].concat();
            tokio::io::AsyncWriteExt::write_all(&mut far, &two).await.unwrap();
            let (first, second) = (
                reader.next().await.unwrap().unwrap(),
                reader.next().await.unwrap().unwrap(),
            );
            drop(reader);
            for frame in [first, second] {
                // Alone with its memory, it can be had back for writing, and there is not much more of it.
                let memory = frame.bytes.try_into_mut().unwrap();
                assert!(memory.capacity() <= size + 8, "{} for {size}", memory.capacity());
            }
        }
    }

    #[tokio::test]
    async fn produce_takes_its_size_from_the_budget() {
        let input = request(0, 9, 100);
        let mut reader = reader(&input, 1000);
        let budget = reader.budget.clone();
        let frame = reader.next().await.unwrap().unwrap();
        assert_eq!(budget.used(), 108);
        drop(frame);
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn past_the_budget_the_socket_is_not_read() {
        let input = [request(0, 9, 600), request(0, 9, 600)].concat();
        let mut reader = reader(&input, 1000);
        let first = reader.next().await.unwrap().unwrap();
        let env = reader.env.clone();
        assert!(env.timeout(Duration::from_secs(60), reader.next()).await.is_err());
        drop(first);
        assert_eq!(reader.next().await.unwrap().unwrap().bytes.len(), 608);
    }

    #[tokio::test]
    async fn foreign_protocols_and_unknown_apis_end_the_connection() {
        let refused = [
            b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
            vec![0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 0, 0, 0, 0, 0],
            vec![0x7f, 0xff, 0xff, 0xff, 0, 3, 0, 1, 0, 0, 0, 1],
            request(999, 0, 50_000_000)[..50].to_vec(),
            request(-1, 0, 10),
            vec![0, 0, 0, 2, 0, 3],
            vec![0, 0, 0, 0],
        ];
        for input in refused {
            let mut reader = reader(&input, MAX);
            assert!(reader.next().await.is_err(), "{input:?}");
            assert_eq!(reader.budget.used(), 0);
        }
    }

    #[tokio::test]
    async fn a_closed_connection_inside_a_frame_is_an_error() {
        for size in [100, 100_000] {
            let whole = request(3, 1, size);
            for cut in [1, 3, 5, 11, 50] {
                assert!(reader(&whole[..cut], MAX).next().await.is_err());
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_frame_must_not_trickle_in() {
        let (mut far, near) = tokio::io::duplex(1 << 16);
        let env = Env::simulated(1);
        let trickle = async {
            for chunk in request(0, 9, 1_000_000).chunks(1000) {
                if tokio::io::AsyncWriteExt::write_all(&mut far, chunk)
                    .await
                    .is_err()
                {
                    return;
                }
                env.sleep(Duration::from_secs(10)).await;
            }
        };
        let mut reader = FrameReader::new(near, env.clone(), MemoryBudget::new(MAX), MAX);
        tokio::select! {
            () = trickle => panic!("it was read to its end"),
            frame = reader.next() => assert!(frame.is_err()),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_frame_that_stops_arriving_gives_its_memory_back() {
        let (mut far, near) = tokio::io::duplex(1 << 16);
        let whole = request(0, 9, 1_000_000);
        tokio::io::AsyncWriteExt::write_all(&mut far, &whole[..5000])
            .await
            .unwrap();
        let budget = MemoryBudget::new(MAX);
        let mut reader = FrameReader::new(near, Env::simulated(1), budget.clone(), MAX);
        assert!(reader.next().await.is_err());
        assert_eq!(budget.used(), 0);
    }
}
