//! Frames and request headers: what stands before a body.
//!
//! A frame is a 4-byte big-endian length and that many bytes. The length is the first thing a stranger may
//! send, so nothing is allocated on its word: the buffer grows with the bytes that arrive.

use bytes::{Buf, Bytes, BytesMut};
use kafka_protocol::messages::ApiKey;
use kafka_protocol::protocol::StrBytes;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::flex::{get_uvarint, take};
use crate::{DecodeError, versions};

/// Largest frame accepted unless configured otherwise, in bytes: Kafka's default of `socket.request.max.bytes`.
pub const DEFAULT_MAX_FRAME: usize = 100 * 1024 * 1024;

/// Largest step in which the read buffer grows ahead of the bytes that have arrived, in bytes.
const READ_AHEAD: usize = 8 * 1024 * 1024;

/// Room kept free in the read buffer, in bytes.
const READ_SIZE: usize = 32 * 1024;

/// Why no frame could be read. The connection is closed.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The length is negative, zero or above the limit. An HTTP request or a TLS hello ends here.
    #[error("frame length {length} is outside 1..={max}")]
    Length {
        /// The announced length in bytes.
        length: i32,
        /// The limit in bytes.
        max: usize,
    },
    /// The peer closed the connection inside a frame.
    #[error("connection closed inside a frame")]
    Closed,
    /// Reading failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// The length of the frame at the front of `buffer`, in bytes without the prefix; `None` until four bytes are there.
pub fn announced_len(buffer: &[u8], max: usize) -> Result<Option<usize>, FrameError> {
    let Some(prefix) = buffer.first_chunk::<4>() else {
        return Ok(None);
    };
    let length = i32::from_be_bytes(*prefix);
    match usize::try_from(length) {
        Ok(len) if len > 0 && len <= max => Ok(Some(len)),
        _ => Err(FrameError::Length { length, max }),
    }
}

/// Takes a complete frame off the front of `buffer`, without its length; `None` when more bytes are needed.
pub fn split_frame(buffer: &mut BytesMut, max: usize) -> Result<Option<Bytes>, FrameError> {
    match announced_len(buffer, max)? {
        Some(len) if buffer.len() - 4 >= len => {
            buffer.advance(4);
            Ok(Some(buffer.split_to(len).freeze()))
        }
        _ => Ok(None),
    }
}

/// Reads the next frame. `None` when the peer closed the connection between two frames.
///
/// What was read beyond the frame stays in `buffer`, so the same buffer must be given again; dropping the future
/// loses nothing.
pub async fn read_frame<R: AsyncRead + Unpin>(
    reader: &mut R,
    buffer: &mut BytesMut,
    max: usize,
) -> Result<Option<Bytes>, FrameError> {
    loop {
        if let Some(frame) = split_frame(buffer, max)? {
            return Ok(Some(frame));
        }
        let missing = announced_len(buffer, max)?.map_or(0, |len| len + 4 - buffer.len());
        buffer.reserve(missing.clamp(READ_SIZE, READ_AHEAD.max(buffer.len())));
        if reader.read_buf(buffer).await? == 0 {
            return if buffer.is_empty() {
                Ok(None)
            } else {
                Err(FrameError::Closed)
            };
        }
    }
}

/// What stands before the body of a request (header versions 1 and 2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestHeader {
    /// API key as sent; it may be one nobody knows.
    pub api_key: i16,
    /// API version as sent.
    pub api_version: i16,
    /// Echoed in the response.
    pub correlation_id: i32,
    /// Name the client gives itself.
    pub client_id: Option<StrBytes>,
    /// Where the body starts in the frame.
    pub body_offset: usize,
}

impl RequestHeader {
    /// Reads the header at the front of `frame`.
    ///
    /// Of an ApiVersions request in a version that is not served only the first eight bytes are needed, because
    /// that is all its answer ([`crate::response::unsupported_api_versions`]) is made of.
    pub fn parse(frame: &Bytes) -> Result<Self, DecodeError> {
        let mut rest = frame.clone();
        let api_key = rest.try_get_i16()?;
        let api_version = rest.try_get_i16()?;
        let correlation_id = rest.try_get_i32()?;
        let mut header = Self {
            api_key,
            api_version,
            correlation_id,
            client_id: None,
            body_offset: frame.len(),
        };
        if header.wants_api_versions_fallback() {
            return Ok(header);
        }
        header.client_id = match rest.try_get_i16()? {
            -1 => None,
            len => {
                let len = usize::try_from(len).map_err(|_| DecodeError::Length(len.into()))?;
                Some(StrBytes::from_utf8(take(&mut rest, len)?).map_err(|_| DecodeError::Utf8)?)
            }
        };
        // The client id stays a plain string in the flexible header: only tagged fields are added.
        if header
            .key()
            .is_some_and(|key| versions::request_header_version(key, api_version) >= 2)
        {
            skip_tagged(&mut rest)?;
        }
        header.body_offset = frame.len() - rest.len();
        Ok(header)
    }

    /// The API, if it is one of Kafka's.
    pub fn key(&self) -> Option<ApiKey> {
        ApiKey::try_from(self.api_key).ok()
    }

    /// An ApiVersions request in a version that is not served: it is answered, every other such request is not.
    pub fn wants_api_versions_fallback(&self) -> bool {
        self.key() == Some(ApiKey::ApiVersions)
            && !versions::is_supported(ApiKey::ApiVersions, self.api_version)
    }
}

/// Skips a tagged section without keeping any of it.
fn skip_tagged(rest: &mut Bytes) -> Result<(), DecodeError> {
    let count = get_uvarint(rest)?;
    for _ in 0..count {
        get_uvarint(rest)?;
        let size = get_uvarint(rest)?;
        take(rest, size as usize)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(bytes: &'static [u8]) -> Result<RequestHeader, DecodeError> {
        RequestHeader::parse(&Bytes::from_static(bytes))
    }

    async fn read(mut input: &[u8]) -> Result<Option<Bytes>, FrameError> {
        read_frame(&mut input, &mut BytesMut::new(), DEFAULT_MAX_FRAME).await
    }

    #[tokio::test]
    async fn frames_are_cut_at_their_length() {
        let mut input: &[u8] = &[0, 0, 0, 2, 7, 8, 0, 0, 0, 1, 9];
        let mut buffer = BytesMut::new();
        assert_eq!(
            &read_frame(&mut input, &mut buffer, 100).await.unwrap().unwrap()[..],
            &[7, 8]
        );
        assert_eq!(
            &read_frame(&mut input, &mut buffer, 100).await.unwrap().unwrap()[..],
            &[9]
        );
        assert!(read_frame(&mut input, &mut buffer, 100).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn foreign_protocols_and_silly_lengths_are_refused() {
        let refused = [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3],
            &[0x7f, 0xff, 0xff, 0xff],
            &[0x80, 0, 0, 0],
            &[0xff, 0xff, 0xff, 0xff],
            &[0, 0, 0, 0],
        ];
        for input in refused {
            assert!(
                matches!(read(input).await, Err(FrameError::Length { .. })),
                "{input:?}"
            );
        }
        assert!(matches!(read(&[0, 0, 0, 9, 1]).await, Err(FrameError::Closed)));
        assert!(matches!(read(&[0, 0]).await, Err(FrameError::Closed)));
    }

    #[tokio::test]
    async fn an_announced_length_alone_reserves_little() {
        let mut input: &[u8] = &[6, 0x40, 0, 0, 1];
        let mut buffer = BytesMut::new();
        assert!(
            read_frame(&mut input, &mut buffer, DEFAULT_MAX_FRAME)
                .await
                .is_err()
        );
        assert!(buffer.capacity() <= 2 * READ_AHEAD, "{}", buffer.capacity());
    }

    #[tokio::test]
    async fn a_large_frame_arrives_whole() {
        let body: Vec<u8> = (0..30_000_000u32).map(|i| i as u8).collect();
        let mut input = 30_000_000u32.to_be_bytes().to_vec();
        input.extend_from_slice(&body);
        assert!(read(&input).await.unwrap().unwrap() == body);
    }

    #[test]
    fn header_one_and_two() {
        let plain = header(&[0, 3, 0, 1, 0, 0, 0, 7, 0, 2, b'm', b'e', 1, 2]).unwrap();
        assert_eq!(plain.key(), Some(ApiKey::Metadata));
        assert_eq!(
            (plain.api_version, plain.correlation_id, plain.body_offset),
            (1, 7, 12)
        );
        assert_eq!(plain.client_id.as_deref(), Some("me"));

        // Version 12 is flexible: one unknown tag of two bytes is skipped.
        let flexible = header(&[0, 3, 0, 12, 0, 0, 0, 7, 0xff, 0xff, 1, 50, 2, 1, 1, 9]).unwrap();
        assert_eq!((flexible.client_id, flexible.body_offset), (None, 15));
    }

    #[test]
    fn short_headers_are_errors() {
        let whole = Bytes::from_static(&[0, 3, 0, 12, 0, 0, 0, 7, 0, 2, b'm', b'e', 1, 50, 2, 1, 1]);
        RequestHeader::parse(&whole).unwrap();
        for len in 0..whole.len() {
            RequestHeader::parse(&whole.slice(..len)).unwrap_err();
        }
        assert_eq!(
            header(&[0, 3, 0, 1, 0, 0, 0, 7, 0xff, 0xfe]),
            Err(DecodeError::Length(-2))
        );
        assert_eq!(
            header(&[0, 3, 0, 1, 0, 0, 0, 7, 0, 1, 0xff]),
            Err(DecodeError::Utf8)
        );
        let tags = header(&[0, 3, 0, 12, 0, 0, 0, 7, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f]);
        assert!(matches!(tags, Err(DecodeError::Truncated { .. })));
    }

    #[test]
    fn an_unknown_version_of_api_versions_needs_no_more_than_its_correlation_id() {
        let unknown = header(&[0, 18, 0, 9, 0, 0, 0, 7, 0xde, 0xad]).unwrap();
        assert!(unknown.wants_api_versions_fallback());
        assert_eq!(unknown.correlation_id, 7);
        assert!(header(&[0, 18, 0, 4, 0, 0, 0, 7, 0xde, 0xad]).is_err());
    }
}
