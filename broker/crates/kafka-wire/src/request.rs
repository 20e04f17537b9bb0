//! From a frame to a request.

use bytes::Bytes;
use kafka_protocol::messages::RequestKind;

use crate::frame::RequestHeader;
use crate::{DecodeError, preflight, versions};

/// Decodes the body of a request whose header has been read from `frame`.
///
/// Byte and string fields are slices of `frame`. A request of an API or a version that is not served is an error,
/// and so is one whose counts its bytes cannot hold. Bytes after the body are ignored, as Kafka does.
pub fn decode(header: &RequestHeader, frame: &Bytes) -> Result<RequestKind, DecodeError> {
    let key = header.key().ok_or(DecodeError::UnknownApi(header.api_key))?;
    let version = header.api_version;
    match versions::range(key) {
        None => return Err(DecodeError::UnknownApi(header.api_key)),
        Some(range) if !range.contains(&version) => {
            return Err(DecodeError::UnsupportedVersion {
                api_key: header.api_key,
                version,
            });
        }
        Some(_) => {}
    }
    let mut body = frame
        .get(header.body_offset..)
        .map(|body| frame.slice_ref(body))
        .ok_or(DecodeError::Truncated {
            needed: header.body_offset,
            remaining: frame.len(),
        })?;
    preflight::check(key, version, &body)?;
    RequestKind::decode(key, &mut body, version).map_err(|error| DecodeError::Malformed(format!("{error:#}")))
}
