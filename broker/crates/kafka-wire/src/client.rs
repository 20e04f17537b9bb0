//! The other side of the protocol: what a client, a test or a forwarding broker writes and reads.
//!
//! Responses are decoded on the word of the broker that sent them: only for peers that are trusted.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::messages::RequestHeader;
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes};

use crate::rope::Rope;
use crate::{DecodeError, EncodeError};

/// A whole request frame, length included.
pub fn encode<R: Request>(
    request: &R,
    version: i16,
    correlation_id: i32,
    client_id: &str,
) -> Result<Bytes, EncodeError> {
    let mut out = BytesMut::with_capacity(128);
    out.put_i32(0);
    let header = RequestHeader::default()
        .with_request_api_key(R::KEY)
        .with_request_api_version(version)
        .with_correlation_id(correlation_id)
        .with_client_id(Some(StrBytes::from_string(client_id.to_owned())));
    header
        .encode(&mut out, R::header_version(version))
        .and_then(|()| request.encode(&mut out, version))
        .map_err(|error| EncodeError::Message {
            version,
            reason: format!("{error:#}"),
        })?;
    Ok(Rope::frame(out, Vec::new())?.into_bytes())
}

/// The correlation id and the body of a response frame, given without its length.
pub fn decode<R: Request>(mut frame: Bytes, version: i16) -> Result<(i32, R::Response), DecodeError> {
    let correlation_id = frame.try_get_i32()?;
    if R::Response::header_version(version) >= 1 {
        crate::flex::get_tagged(&mut frame, |_, _| Ok(()))?;
    }
    let response = R::Response::decode(&mut frame, version)
        .map_err(|error| DecodeError::Malformed(format!("{error:#}")))?;
    if frame.is_empty() {
        Ok((correlation_id, response))
    } else {
        Err(DecodeError::Trailing(frame.len()))
    }
}
