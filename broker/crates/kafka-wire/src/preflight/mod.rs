//! Walks a request body before `kafka-protocol` decodes it.
//!
//! The protocol crate allocates an array on the word of its count: a body of 12 bytes that announces 2^31 topics
//! costs gigabytes (its issue is open as of 0.18.0). The walker reads the same bytes by a table ([`table`]) without
//! allocating anything, and refuses a body
//!
//! - whose counts or lengths exceed the bytes that are left, each element counted at the fewest bytes it takes,
//! - whose decoded form would take more memory than its size justifies ([`Walker::budget`]).
//!
//! It follows the crate's reading exactly where a difference would let a count slip past, and is stricter in one
//! place: a tagged field must fill its announced size.

mod table;

use kafka_protocol::messages::ApiKey;

use crate::DecodeError;
use crate::flex::get_uvarint;

/// A request body.
struct Schema {
    key: ApiKey,
    /// First version with compact lengths and tagged fields.
    flexible: i16,
    fields: &'static [Field],
}

/// A field of a struct, in the order of the wire.
struct Field {
    versions: std::ops::RangeInclusive<i16>,
    kind: Kind,
    /// Set for a field that stands in the tagged section.
    tag: Option<u32>,
}

/// How a field lies on the wire. Null is legal for every length here; the decoder knows better where it is not.
enum Kind {
    /// So many bytes.
    Fixed(usize),
    /// A string: 16-bit or compact length.
    String,
    /// Bytes or records: 32-bit or compact length.
    Bytes,
    /// A struct in place.
    Struct(&'static [Field]),
    /// A struct behind a byte that is 1 if there is one.
    NullableStruct(&'static [Field]),
    /// An array: `size` is the memory of an element once decoded, in bytes.
    Array { element: &'static Kind, size: usize },
}

/// Memory that a decoded request may always take, in bytes.
const BASE_BUDGET: usize = 64 * 1024;

/// Memory per byte of the body, in bytes: the widest legal element is about this much wider decoded than encoded.
const BUDGET_PER_BYTE: usize = 32;

/// Memory that a decoded request may never exceed, in bytes. Records do not count: they are slices of the frame.
const MAX_BUDGET: usize = 64 * 1024 * 1024;

/// Memory of the map that keeps unknown tagged fields: a first node, then room in it for each entry, in bytes.
const UNKNOWN_TAGS: usize = 420;
const UNKNOWN_TAG: usize = 80;

/// Checks a request body. APIs without a table are refused.
pub(crate) fn check(key: ApiKey, version: i16, body: &[u8]) -> Result<(), DecodeError> {
    let schema = table::SCHEMAS
        .iter()
        .find(|schema| schema.key == key)
        .ok_or(DecodeError::UnknownApi(key as i16))?;
    let limit = (BASE_BUDGET + BUDGET_PER_BYTE * body.len()).min(MAX_BUDGET);
    let mut walker = Walker {
        rest: body,
        version,
        flexible: version >= schema.flexible,
        budget: limit,
        limit,
    };
    walker.fields(schema.fields)
}

struct Walker<'a> {
    rest: &'a [u8],
    version: i16,
    flexible: bool,
    /// Memory still allowed, in bytes.
    budget: usize,
    limit: usize,
}

impl Walker<'_> {
    fn fields(&mut self, fields: &'static [Field]) -> Result<(), DecodeError> {
        for field in fields {
            if field.tag.is_none() && field.versions.contains(&self.version) {
                self.kind(&field.kind)?;
            }
        }
        if self.flexible {
            self.tagged(fields)
        } else {
            Ok(())
        }
    }

    fn kind(&mut self, kind: &'static Kind) -> Result<(), DecodeError> {
        match kind {
            Kind::Fixed(size) => self.skip(*size),
            Kind::String if !self.flexible => {
                let len = i16::from_be_bytes(self.array()?);
                self.skip_nullable(len.into())
            }
            Kind::String | Kind::Bytes => {
                let len = self.length()?;
                self.skip_nullable(len)
            }
            Kind::Struct(fields) => self.fields(fields),
            Kind::NullableStruct(fields) => match self.array()? {
                [1] => self.fields(fields),
                _ => Ok(()),
            },
            Kind::Array { element, size } => {
                let count = self.length()?;
                let Ok(elements) = usize::try_from(count) else {
                    return if count == -1 {
                        Ok(())
                    } else {
                        Err(DecodeError::Length(count))
                    };
                };
                if elements > self.rest.len() / self.min_size(element) {
                    return Err(DecodeError::Count {
                        count,
                        remaining: self.rest.len(),
                    });
                }
                self.charge(elements.saturating_mul(*size))?;
                match element {
                    // A million partition numbers need not be visited one by one.
                    Kind::Fixed(size) => self.skip(elements * size),
                    _ => (0..elements).try_for_each(|_| self.kind(element)),
                }
            }
        }
    }

    fn tagged(&mut self, fields: &'static [Field]) -> Result<(), DecodeError> {
        let count = get_uvarint(&mut self.rest)?;
        if count as usize > self.rest.len() / 2 {
            return Err(DecodeError::Count {
                count: count.into(),
                remaining: self.rest.len(),
            });
        }
        let mut unknown = 0usize;
        for _ in 0..count {
            let tag = get_uvarint(&mut self.rest)?;
            let size = get_uvarint(&mut self.rest)? as usize;
            let known = fields
                .iter()
                .find(|field| field.tag == Some(tag) && field.versions.contains(&self.version));
            match known {
                Some(field) => {
                    let before = self.rest.len();
                    self.kind(&field.kind)?;
                    if before - self.rest.len() != size {
                        return Err(DecodeError::Length(size as i64));
                    }
                }
                None => {
                    self.charge(if unknown == 0 { UNKNOWN_TAGS } else { UNKNOWN_TAG })?;
                    unknown += 1;
                    self.skip(size)?;
                }
            }
        }
        Ok(())
    }

    /// The fewest bytes `kind` takes in this version; at least one, so that a count is always bounded.
    fn min_size(&self, kind: &Kind) -> usize {
        let size = match kind {
            Kind::Fixed(size) => *size,
            Kind::NullableStruct(_) => 1,
            Kind::String if !self.flexible => 2,
            Kind::String | Kind::Bytes | Kind::Array { .. } if self.flexible => 1,
            Kind::String | Kind::Bytes | Kind::Array { .. } => 4,
            Kind::Struct(fields) => {
                let present = fields
                    .iter()
                    .filter(|field| field.tag.is_none() && field.versions.contains(&self.version));
                present.map(|field| self.min_size(&field.kind)).sum::<usize>() + usize::from(self.flexible)
            }
        };
        size.max(1)
    }

    /// A 32-bit or compact length; -1 is null.
    fn length(&mut self) -> Result<i64, DecodeError> {
        if self.flexible {
            Ok(i64::from(get_uvarint(&mut self.rest)?) - 1)
        } else {
            Ok(i32::from_be_bytes(self.array()?).into())
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(DecodeError::Truncated {
            needed: N,
            remaining: self.rest.len(),
        })?;
        self.rest = rest;
        Ok(*head)
    }

    fn skip_nullable(&mut self, len: i64) -> Result<(), DecodeError> {
        match usize::try_from(len) {
            Ok(len) => self.skip(len),
            Err(_) if len == -1 => Ok(()),
            Err(_) => Err(DecodeError::Length(len)),
        }
    }

    fn skip(&mut self, len: usize) -> Result<(), DecodeError> {
        self.rest = self.rest.get(len..).ok_or(DecodeError::Truncated {
            needed: len,
            remaining: self.rest.len(),
        })?;
        Ok(())
    }

    fn charge(&mut self, memory: usize) -> Result<(), DecodeError> {
        self.budget = self
            .budget
            .checked_sub(memory)
            .ok_or(DecodeError::Memory { limit: self.limit })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
