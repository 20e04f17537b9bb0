//! Outgoing frames as lists of shared slices.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::EncodeError;

/// Bytes in several pieces, none of them copied. Reading it as a [`Buf`] uses it up.
#[derive(Debug, Clone, Default)]
pub struct Rope {
    segments: VecDeque<Bytes>,
    len: usize,
}

impl Rope {
    /// Bytes in all segments.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The segments in order; none is empty.
    pub fn segments(&self) -> impl Iterator<Item = &Bytes> {
        self.segments.iter()
    }

    /// Adds a segment at the end.
    pub fn push(&mut self, segment: Bytes) {
        if !segment.is_empty() {
            self.len += segment.len();
            self.segments.push_back(segment);
        }
    }

    /// Adds all segments of `other` at the end.
    pub fn append(&mut self, mut other: Rope) {
        self.len += other.len;
        self.segments.append(&mut other.segments);
    }

    /// Everything in one piece; copies when there is more than one segment.
    pub fn into_bytes(mut self) -> Bytes {
        self.copy_to_bytes(self.len)
    }

    /// A frame of `head`, whose first four bytes are left for the length, with each of `inserts` put in before
    /// the byte of `head` at its position. Positions must not decrease.
    pub(crate) fn frame(mut head: BytesMut, inserts: Vec<(usize, Bytes)>) -> Result<Rope, EncodeError> {
        let len = head.len() + inserts.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() - 4;
        let prefix = i32::try_from(len).map_err(|_| EncodeError::TooLarge(len))?;
        if let Some(room) = head.first_chunk_mut() {
            *room = prefix.to_be_bytes();
        }
        let mut head = head.freeze();
        let mut rope = Rope {
            segments: VecDeque::with_capacity(2 * inserts.len() + 1),
            len: 0,
        };
        let mut done = 0;
        for (position, bytes) in inserts {
            rope.push(head.split_to(position - done));
            rope.push(bytes);
            done = position;
        }
        rope.push(head);
        Ok(rope)
    }
}

impl From<Bytes> for Rope {
    fn from(bytes: Bytes) -> Self {
        let mut rope = Self::default();
        rope.push(bytes);
        rope
    }
}

impl Buf for Rope {
    fn remaining(&self) -> usize {
        self.len
    }

    fn chunk(&self) -> &[u8] {
        self.segments.front().map_or(&[], |segment| segment)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut used = 0;
        for (slice, segment) in slices.iter_mut().zip(&self.segments) {
            *slice = IoSlice::new(segment);
            used += 1;
        }
        used
    }

    fn advance(&mut self, mut count: usize) {
        self.len = self.len.saturating_sub(count);
        while let Some(front) = self.segments.front_mut() {
            if count < front.len() {
                front.advance(count);
                return;
            }
            count -= front.len();
            self.segments.pop_front();
        }
    }

    fn copy_to_bytes(&mut self, len: usize) -> Bytes {
        if let Some(front) = self.segments.front()
            && front.len() == len
        {
            self.len -= len;
            return self.segments.pop_front().unwrap_or_default();
        }
        let mut out = BytesMut::with_capacity(len);
        bytes::BufMut::put(&mut out, self.take(len));
        out.freeze()
    }
}

/// Writes all of `rope` with vectored writes, going on after partial ones. Does not flush.
pub async fn write_vectored_all<W: AsyncWrite + Unpin>(
    writer: &mut W,
    mut rope: Rope,
) -> std::io::Result<()> {
    writer.write_all_buf(&mut rope).await
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use super::*;

    /// Takes a few bytes at a time and counts the calls.
    struct Slow {
        written: Vec<u8>,
        calls: usize,
        step: usize,
    }

    impl AsyncWrite for Slow {
        fn poll_write(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buf: &[u8],
        ) -> Poll<std::io::Result<usize>> {
            self.poll_write_vectored(cx, &[IoSlice::new(buf)])
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bufs: &[IoSlice<'_>],
        ) -> Poll<std::io::Result<usize>> {
            self.calls += 1;
            let all = bufs.iter().flat_map(|buf| buf.iter()).copied();
            let before = self.written.len();
            let step = self.step;
            self.written.extend(all.take(step));
            Poll::Ready(Ok(self.written.len() - before))
        }

        fn is_write_vectored(&self) -> bool {
            true
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn rope() -> (Rope, Vec<u8>) {
        let mut rope = Rope::default();
        let mut flat = Vec::new();
        for i in 0..200usize {
            let segment = vec![i as u8; i % 7];
            flat.extend_from_slice(&segment);
            rope.push(segment.into());
        }
        (rope, flat)
    }

    #[tokio::test]
    async fn partial_writes_lose_nothing() {
        for step in [1, 5, 64, 1_000_000] {
            let (rope, flat) = rope();
            assert_eq!(rope.len(), flat.len());
            let mut writer = Slow {
                written: Vec::new(),
                calls: 0,
                step,
            };
            write_vectored_all(&mut writer, rope).await.unwrap();
            assert_eq!(writer.written, flat);
            if step == 1_000_000 {
                assert!(writer.calls < 10, "{} calls for 200 segments", writer.calls);
            }
        }
    }

    #[test]
    fn inserts_share_their_bytes() {
        let payload = Bytes::from(vec![7; 100]);
        let head = BytesMut::from(&[0, 0, 0, 0, 1, 2, 3, 4][..]);
        let inserts = vec![
            (4, Bytes::from_static(b"x")),
            (6, payload.clone()),
            (6, payload.clone()),
            (8, payload.clone()),
        ];
        let rope = Rope::frame(head, inserts).unwrap();
        assert_eq!(
            rope.segments()
                .filter(|segment| segment.as_ptr() == payload.as_ptr())
                .count(),
            3
        );
        let flat = rope.into_bytes();
        assert_eq!(&flat[..7], &[0, 0, 1, 0x31, b'x', 1, 2]);
        assert_eq!(&flat[207..209], &[3, 4]);
        assert_eq!(flat.len(), 309);
    }

    #[test]
    fn bytes_of_a_single_segment_are_not_copied() {
        let bytes = Bytes::from(vec![1, 2, 3]);
        assert_eq!(Rope::from(bytes.clone()).into_bytes().as_ptr(), bytes.as_ptr());
        assert!(Rope::default().into_bytes().is_empty());
    }
}
