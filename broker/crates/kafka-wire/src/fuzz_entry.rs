//! One function for each way in for bytes from outside. The fuzz targets and the tests with random bytes call the
//! same functions; each returns whatever the decoder says and must neither panic nor take memory beyond its input.

use std::fmt::Debug;

use bytes::Bytes;

use crate::flex::{Decode, Encode};
use crate::frame::{self, RequestHeader};
use crate::{DecodeError, batch, records, request};

crate::flex_struct! {
    /// A value with every kind of field that flexible encoding has.
    pub struct Sample {
        /// A fixed one.
        pub number: i64,
        /// A string.
        pub text: String,
        /// Bytes.
        pub bytes: Bytes,
        /// Null or a value.
        pub optional: Option<uuid::Uuid>,
        /// An array of structs.
        pub children: Vec<SampleChild>,
        /// A map.
        pub map: std::collections::BTreeMap<String, u32>,
        tagged {
            0 => pub tag: Option<Vec<bool>>,
        }
    }
}

crate::flex_enum! {
    /// An element of the sample.
    pub enum SampleChild {
        /// Without payload.
        0 => Empty,
        /// With payload.
        1 => Pair((i32, String)),
    }
}

/// One of several kinds of messages; the first byte of `input` chooses which, the rest is the message.
pub fn one_of(readers: &[fn(Bytes)], input: &[u8]) {
    let Some((choice, body)) = input.split_first() else {
        return;
    };
    let reader = usize::from(*choice).checked_rem(readers.len());
    if let Some(read) = reader.and_then(|index| readers.get(index)) {
        read(Bytes::copy_from_slice(body));
    }
}

/// What is taken for a value survives being written and read again.
pub fn again<T: Decode + Encode + PartialEq + Debug>(body: Bytes) {
    if let Ok(value) = T::from_bytes(body) {
        assert_eq!(T::from_bytes(value.to_bytes()), Ok(value));
    }
}

/// What a connection hands over: frames, each with its header and body.
pub fn stream(input: &[u8]) {
    let mut buffer = bytes::BytesMut::from(input);
    while let Ok(Some(frame)) = frame::split_frame(&mut buffer, frame::DEFAULT_MAX_FRAME) {
        let _ = frame_body(&frame);
    }
}

/// One frame without its length.
pub fn frame_body(frame: &Bytes) -> Result<(), DecodeError> {
    let header = RequestHeader::parse(frame)?;
    request::decode(&header, frame).map(drop)
}

/// A body of any served API and version: the first two bytes choose.
pub fn body(input: &[u8]) {
    let Some(([row, version], body)) = input.split_first_chunk() else {
        return;
    };
    let Some(row) = crate::versions::SUPPORTED.get(usize::from(*row) % crate::versions::SUPPORTED.len())
    else {
        return;
    };
    let header = RequestHeader {
        api_key: row.key as i16,
        api_version: row.min + i16::from(*version) % (row.max - row.min + 1),
        correlation_id: 0,
        client_id: None,
        body_offset: 0,
    };
    let _ = request::decode(&header, &Bytes::copy_from_slice(body));
}

/// What a producer put into a records field.
pub fn produced(input: &[u8]) {
    let _ = batch::validate(input);
    let input = Bytes::copy_from_slice(input);
    let mut budget = u64::MAX;
    let _ = records::check(&input, &mut budget, |_, _| ());
    for (header, batch) in batch::batches(&input).flatten() {
        let _ = batch::patched_head(&batch, i64::MAX, 0, Some(header.max_timestamp));
    }
}

/// A lookup by time in a stored batch, decompression included.
pub fn lookup(input: &[u8]) {
    let input = Bytes::copy_from_slice(input);
    let _ = records::find_record_by_timestamp(&input, 0, 0, i64::MAX);
    if let Ok(records) = records::offsets_and_timestamps(&input) {
        records.for_each(drop);
    }
}

/// A value in the project's own encoding.
pub fn flex(input: &[u8]) {
    let _ = Sample::from_bytes(Bytes::copy_from_slice(input));
}
