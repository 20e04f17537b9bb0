use std::convert::Infallible;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest};
use hyper::body::{Body, Frame, SizeHint};

use crate::body_len;

/// A request body of shared slices.
pub(super) struct Slices {
    slices: std::vec::IntoIter<Bytes>,
    left: u64,
}

impl Slices {
    pub(super) fn new(mut body: Vec<Bytes>) -> Slices {
        body.retain(|slice| !slice.is_empty());
        Slices {
            left: body_len(&body),
            slices: body.into_iter(),
        }
    }
}

impl fmt::Debug for Slices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slices({} bytes left)", self.left)
    }
}

impl Body for Slices {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = self.slices.next();
        self.left -= next.as_ref().map_or(0, |slice| slice.len() as u64);
        Poll::Ready(next.map(|slice| Ok(Frame::data(slice))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// CRC-32C as S3 writes it.
pub(super) fn crc32c_base64(body: &[Bytes]) -> String {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    for slice in body {
        digest.update(slice);
    }
    base64(&digest)
}

/// Length and CRC-32C of a file.
pub(super) fn crc32c_of_file(path: &Path) -> io::Result<(u64, String)> {
    let mut file = File::open(path)?;
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    let (mut buffer, mut length) = (vec![0; 1 << 18], 0);
    loop {
        let read = file.read(&mut buffer)?;
        match buffer.get(..read) {
            None | Some([]) => return Ok((length, base64(&digest))),
            Some(bytes) => digest.update(bytes),
        }
        length += read as u64;
    }
}

fn base64(digest: &Digest) -> String {
    let crc = u32::try_from(digest.finalize()).unwrap_or(0);
    aws_smithy_types::base64::encode(crc.to_be_bytes())
}
