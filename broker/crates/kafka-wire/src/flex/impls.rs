//! Encode and Decode of plain values and containers.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use uuid::Uuid;

use super::{Decode, Encode, get_compact_len, get_count, put_compact_len, take};
use crate::DecodeError;

/// Memory reserved for an array before its elements are read, in bytes: counts are already bounded by the
/// input, this bounds what wide elements make of them.
const PREALLOCATION: usize = 64 * 1024;

macro_rules! fixed {
    ($($ty:ty: $put:ident $get:ident $size:literal;)*) => {
        $(
            impl Encode for $ty {
                fn encode(&self, out: &mut BytesMut) {
                    out.$put(*self);
                }
            }
            impl Decode for $ty {
                const MIN_SIZE: usize = $size;

                fn decode(input: &mut Bytes) -> Result<Self, DecodeError> {
                    Ok(input.$get()?)
                }
            }
        )*
    };
}

fixed! {
    i8: put_i8 try_get_i8 1;
    i16: put_i16 try_get_i16 2;
    i32: put_i32 try_get_i32 4;
    i64: put_i64 try_get_i64 8;
    u8: put_u8 try_get_u8 1;
    u16: put_u16 try_get_u16 2;
    u32: put_u32 try_get_u32 4;
    u64: put_u64 try_get_u64 8;
}

impl Encode for bool {
    fn encode(&self, out: &mut BytesMut) {
        out.put_u8(u8::from(*self));
    }
}

impl Decode for bool {
    const MIN_SIZE: usize = 1;

    fn decode(input: &mut Bytes) -> Result<Self, DecodeError> {
        match input.try_get_u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(DecodeError::Tag {
                what: "boolean",
                value: other.into(),
            }),
        }
    }
}

impl Encode for Uuid {
    fn encode(&self, out: &mut BytesMut) {
        out.put_slice(self.as_bytes());
    }
}

impl Decode for Uuid {
    const MIN_SIZE: usize = 16;

    fn decode(input: &mut Bytes) -> Result<Self, DecodeError> {
        Ok(Uuid::from_u128(input.try_get_u128()?))
    }
}

impl Encode for str {
    fn encode(&self, out: &mut BytesMut) {
        put_compact_len(out, self.len());
        out.put_slice(self.as_bytes());
    }
}

fn decode_str<T: for<'a> From<&'a str>>(input: &mut Bytes) -> Result<T, DecodeError> {
    let len = get_compact_len(input)?;
    let bytes = take(input, len)?;
    Ok(std::str::from_utf8(&bytes).map_err(|_| DecodeError::Utf8)?.into())
}

macro_rules! strings {
    ($($ty:ty)*) => {
        $(
            impl Encode for $ty {
                fn encode(&self, out: &mut BytesMut) {
                    str::encode(self, out);
                }
            }
            impl Decode for $ty {
                const MIN_SIZE: usize = 1;

                fn decode(input: &mut Bytes) -> Result<Self, DecodeError> {
                    decode_str(input)
                }
            }
        )*
    };
}

strings! { String Arc<str> }

impl Encode for Bytes {
    fn encode(&self, out: &mut BytesMut) {
        put_compact_len(out, self.len());
        out.put_slice(self);
    }
}

impl Decode for Bytes {
    const MIN_SIZE: usize = 1;

    /// A slice of the input: it keeps the whole input alive.
    fn decode(input: &mut Bytes) -> Result<Self, DecodeError> {
        let len = get_compact_len(input)?;
        take(input, len)
    }
}

/// Presence marker as of Kafka's nullable structs: -1 for null, 1 before a value.
impl<T: Encode> Encode for Option<T> {
    fn encode(&self, out: &mut BytesMut) {
        match self {
            None => out.put_i8(-1),
            Some(value) => {
                out.put_i8(1);
                value.encode(out);
            }
        }
    }
}

impl<T: Decode> Decode for Option<T> {
    const MIN_SIZE: usize = 1;

    fn decode(input: &mut Bytes) -> Result<Self, DecodeError> {
        match input.try_get_i8()? {
            -1 => Ok(None),
            1 => Ok(Some(T::decode(input)?)),
            other => Err(DecodeError::Tag {
                what: "presence marker",
                value: other.into(),
            }),
        }
    }
}

impl<T: Encode> Encode for [T] {
    fn encode(&self, out: &mut BytesMut) {
        put_compact_len(out, self.len());
        for value in self {
            value.encode(out);
        }
    }
}

impl<T: Encode> Encode for Vec<T> {
    fn encode(&self, out: &mut BytesMut) {
        self.as_slice().encode(out);
    }
}

impl<T: Decode> Decode for Vec<T> {
    const MIN_SIZE: usize = 1;

    fn decode(input: &mut Bytes) -> Result<Self, DecodeError> {
        let count = get_count(input, T::MIN_SIZE)?;
        let mut values = Vec::with_capacity(count.min(PREALLOCATION / size_of::<T>().max(1)));
        for _ in 0..count {
            values.push(T::decode(input)?);
        }
        Ok(values)
    }
}

/// A compact array of pairs in key order; of equal keys the last wins.
impl<K: Encode, V: Encode> Encode for BTreeMap<K, V> {
    fn encode(&self, out: &mut BytesMut) {
        put_compact_len(out, self.len());
        for (key, value) in self {
            key.encode(out);
            value.encode(out);
        }
    }
}

impl<K: Decode + Ord, V: Decode> Decode for BTreeMap<K, V> {
    const MIN_SIZE: usize = 1;

    fn decode(input: &mut Bytes) -> Result<Self, DecodeError> {
        let count = get_count(input, K::MIN_SIZE + V::MIN_SIZE)?;
        let mut map = BTreeMap::new();
        for _ in 0..count {
            map.insert(K::decode(input)?, V::decode(input)?);
        }
        Ok(map)
    }
}

impl<A: Encode, B: Encode> Encode for (A, B) {
    fn encode(&self, out: &mut BytesMut) {
        self.0.encode(out);
        self.1.encode(out);
    }
}

impl<A: Decode, B: Decode> Decode for (A, B) {
    const MIN_SIZE: usize = A::MIN_SIZE + B::MIN_SIZE;

    fn decode(input: &mut Bytes) -> Result<Self, DecodeError> {
        Ok((A::decode(input)?, B::decode(input)?))
    }
}

impl<T: Encode> Encode for Arc<T> {
    fn encode(&self, out: &mut BytesMut) {
        (**self).encode(out);
    }
}

impl<T: Decode> Decode for Arc<T> {
    const MIN_SIZE: usize = T::MIN_SIZE;

    fn decode(input: &mut Bytes) -> Result<Self, DecodeError> {
        Ok(Arc::new(T::decode(input)?))
    }
}

impl<T: Encode> Encode for Box<T> {
    fn encode(&self, out: &mut BytesMut) {
        (**self).encode(out);
    }
}

impl<T: Decode> Decode for Box<T> {
    const MIN_SIZE: usize = T::MIN_SIZE;

    fn decode(input: &mut Bytes) -> Result<Self, DecodeError> {
        Ok(Box::new(T::decode(input)?))
    }
}

macro_rules! newtypes {
    ($($ty:path: $inner:ty;)*) => {
        $(
            impl Encode for $ty {
                fn encode(&self, out: &mut BytesMut) {
                    self.0.encode(out);
                }
            }
            impl Decode for $ty {
                const MIN_SIZE: usize = <$inner as Decode>::MIN_SIZE;

                fn decode(input: &mut Bytes) -> Result<Self, DecodeError> {
                    <$inner>::decode(input).map(Self)
                }
            }
        )*
    };
}

newtypes! {
    types::Timestamp: i64;
    types::NodeId: i32;
    types::ShardId: u32;
    types::Epoch: u64;
    types::LogOffset: u64;
    types::TopicId: Uuid;
    types::FeatureLevel: i16;
}

impl Encode for types::FeatureLevels {
    fn encode(&self, out: &mut BytesMut) {
        self.min.encode(out);
        self.max.encode(out);
    }
}

impl Decode for types::FeatureLevels {
    const MIN_SIZE: usize = 4;

    fn decode(input: &mut Bytes) -> Result<Self, DecodeError> {
        Ok(Self {
            min: types::FeatureLevel::decode(input)?,
            max: types::FeatureLevel::decode(input)?,
        })
    }
}

impl Encode for types::TopicPartition {
    fn encode(&self, out: &mut BytesMut) {
        self.topic.encode(out);
        self.partition.encode(out);
    }
}

impl Decode for types::TopicPartition {
    const MIN_SIZE: usize = 20;

    fn decode(input: &mut Bytes) -> Result<Self, DecodeError> {
        Ok(Self {
            topic: types::TopicId::decode(input)?,
            partition: i32::decode(input)?,
        })
    }
}
