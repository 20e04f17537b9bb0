//! Codec of our own records: internal RPCs, log entries, snapshots' headers.
//!
//! It is Kafka's *flexible* encoding (KIP-482) without versions in the schema: big-endian integers, compact
//! strings and arrays (unsigned varint of length + 1), and a tagged-field section at the end of every struct. A
//! reader skips tags it does not know, so a field may be added later as a tag without a new version; anything
//! else needs a version carried beside the value.
//!
//! Decoding works on [`Bytes`], so byte fields are slices of the input, and every count is checked against the
//! bytes that are left *before* anything is allocated.
//!
//! ```
//! use kafka_wire::flex::{Decode, Encode};
//! kafka_wire::flex_struct! {
//!     /// One batch of a file.
//!     pub struct Coordinate {
//!         /// First offset.
//!         pub base_offset: i64,
//!         /// Where it lies.
//!         pub key: String,
//!         tagged {
//!             /// Added later: old readers skip it.
//!             0 => pub checksum: Option<u32>,
//!         }
//!     }
//! }
//! kafka_wire::flex_enum! {
//!     /// What a log entry says.
//!     pub enum Entry {
//!         /// Nothing.
//!         0 => Noop,
//!         /// A batch was committed.
//!         1 => Committed(Coordinate),
//!     }
//! }
//! let entry = Entry::Committed(Coordinate { base_offset: 7, key: "wal/1".into(), checksum: None });
//! assert_eq!(Entry::from_bytes(entry.to_bytes()).unwrap(), entry);
//! ```

mod impls;
mod macros;

pub use bytes::{Bytes, BytesMut};

use bytes::{Buf, BufMut};

use crate::DecodeError;

/// A value that can be written in flexible encoding.
pub trait Encode {
    /// Appends the value to `out`.
    fn encode(&self, out: &mut BytesMut);

    /// The value alone in a new buffer.
    fn to_bytes(&self) -> Bytes {
        let mut out = BytesMut::new();
        self.encode(&mut out);
        out.freeze()
    }
}

/// A value that can be read from flexible encoding.
pub trait Decode: Sized {
    /// The fewest bytes a value takes; bounds the element count of an array before it is allocated.
    const MIN_SIZE: usize;

    /// Takes one value off the front of `input`. On an error `input` is left somewhere inside the value.
    fn decode(input: &mut Bytes) -> Result<Self, DecodeError>;

    /// Reads a value that must fill `input`.
    fn from_bytes(mut input: Bytes) -> Result<Self, DecodeError> {
        let value = Self::decode(&mut input)?;
        if input.is_empty() {
            Ok(value)
        } else {
            Err(DecodeError::Trailing(input.len()))
        }
    }
}

/// Appends an unsigned varint: seven bits a byte, least significant first (KIP-482).
pub fn put_uvarint(out: &mut impl BufMut, mut value: u32) {
    while value >= 0x80 {
        out.put_u8((value as u8 & 0x7f) | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

/// Takes an unsigned varint of at most 32 bits off the front of `input`.
pub fn get_uvarint(input: &mut impl Buf) -> Result<u32, DecodeError> {
    let mut value = 0u32;
    for shift in [0, 7, 14, 21, 28] {
        let byte = input.try_get_u8()?;
        if shift == 28 && byte > 0x0f {
            return Err(DecodeError::VarInt);
        }
        value |= u32::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(DecodeError::VarInt)
}

/// [`put_uvarint`] for 64 bits.
pub fn put_uvarlong(out: &mut impl BufMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8((value as u8 & 0x7f) | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

/// [`get_uvarint`] for 64 bits.
pub fn get_uvarlong(input: &mut impl Buf) -> Result<u64, DecodeError> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = input.try_get_u8()?;
        if shift == 63 && byte > 0x01 {
            return Err(DecodeError::VarInt);
        }
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(DecodeError::VarInt)
}

/// Takes `len` bytes off the front of `input` without copying them.
pub fn take(input: &mut Bytes, len: usize) -> Result<Bytes, DecodeError> {
    if len > input.len() {
        return Err(DecodeError::Truncated {
            needed: len,
            remaining: input.len(),
        });
    }
    Ok(input.split_to(len))
}

/// Appends length + 1 as a compact array or string does.
///
/// Lengths beyond 32 bits cannot be written: a value in memory that large is a bug of the caller, and it is cut
/// to what the reader will refuse rather than wrapped to a small number.
pub(crate) fn put_compact_len(out: &mut BytesMut, len: usize) {
    put_uvarint(out, u32::try_from(len).unwrap_or(u32::MAX).saturating_add(1));
}

/// Takes a compact length; null is an error.
pub(crate) fn get_compact_len(input: &mut Bytes) -> Result<usize, DecodeError> {
    match get_uvarint(input)?.checked_sub(1) {
        Some(len) => Ok(len as usize),
        None => Err(DecodeError::Length(-1)),
    }
}

/// Takes a compact array length whose elements take at least `min_size` bytes each.
pub(crate) fn get_count(input: &mut Bytes, min_size: usize) -> Result<usize, DecodeError> {
    let count = get_compact_len(input)?;
    if count > input.len() / min_size.max(1) {
        return Err(DecodeError::Count {
            count: count as i64,
            remaining: input.len(),
        });
    }
    Ok(count)
}

/// Reads the tagged section at the end of a struct; `field` takes the tags it knows, the rest is skipped.
pub fn get_tagged(
    input: &mut Bytes,
    mut field: impl FnMut(u32, Bytes) -> Result<(), DecodeError>,
) -> Result<(), DecodeError> {
    let count = get_uvarint(input)?;
    // Each takes a tag and a size of at least one byte.
    if count as usize > input.len() / 2 {
        return Err(DecodeError::Count {
            count: count.into(),
            remaining: input.len(),
        });
    }
    for _ in 0..count {
        let tag = get_uvarint(input)?;
        let size = get_uvarint(input)?;
        field(tag, take(input, size as usize)?)?;
    }
    Ok(())
}

/// Appends one tagged field.
pub fn put_tagged(out: &mut BytesMut, tag: u32, value: &impl Encode) {
    let value = value.to_bytes();
    put_uvarint(out, tag);
    put_uvarint(out, value.len() as u32);
    out.put_slice(&value);
}

#[cfg(test)]
mod tests;
