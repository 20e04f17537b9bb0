use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use proptest::prelude::*;
use uuid::Uuid;

use super::{Decode, Encode, get_uvarint, get_uvarlong, put_uvarint, put_uvarlong};
use crate::DecodeError;
use crate::{flex_enum, flex_struct};

flex_struct! {
    /// Everything a struct may hold.
    #[derive(Default)]
    pub struct All {
        pub a: i8,
        pub b: i16,
        pub c: i32,
        pub d: i64,
        pub e: u8,
        pub f: u16,
        pub g: u32,
        pub h: u64,
        pub i: bool,
        pub j: Uuid,
        pub k: String,
        pub l: Bytes,
        pub m: Option<String>,
        pub n: Vec<Inner>,
        pub o: BTreeMap<String, i64>,
        pub p: (i32, String),
        tagged {
            0 => pub q: Option<Vec<i32>>,
            3 => pub r: Option<Inner>,
        }
    }
}

flex_struct! {
    /// The same struct as an old reader knows it.
    pub struct Old {
        pub name: String,
    }
}

flex_struct! {
    /// As a new writer knows it.
    pub struct New {
        pub name: String,
        tagged { 7 => pub extra: Option<u64> }
    }
}

flex_struct! {
    #[derive(Default, Eq, PartialOrd, Ord)]
    pub struct Inner {
        pub x: i64,
        pub y: String,
    }
}

flex_struct! {
    pub struct Nothing {}
}

flex_enum! {
    pub enum Choice {
        0 => Empty,
        1 => One(Inner),
        200 => Many(Vec<Inner>),
    }
}

fn all() -> impl Strategy<Value = All> {
    let inner = || (any::<i64>(), ".*").prop_map(|(x, y)| Inner { x, y });
    let ints = (any::<i8>(), any::<i16>(), any::<i32>(), any::<i64>());
    let uints = (any::<u8>(), any::<u16>(), any::<u32>(), any::<u64>());
    let rest = (
        any::<bool>(),
        any::<u128>(),
        ".*",
        any::<Vec<u8>>(),
        any::<Option<String>>(),
    );
    let containers = (
        prop::collection::vec(inner(), 0..5),
        any::<BTreeMap<String, i64>>(),
        any::<(i32, String)>(),
        any::<Option<Vec<i32>>>(),
        prop::option::of(inner()),
    );
    (ints, uints, rest, containers).prop_map(
        |((a, b, c, d), (e, f, g, h), (i, j, k, l, m), (n, o, p, q, r))| {
            let (j, l) = (Uuid::from_u128(j), l.into());
            All {
                a,
                b,
                c,
                d,
                e,
                f,
                g,
                h,
                i,
                j,
                k,
                l,
                m,
                n,
                o,
                p,
                q,
                r,
            }
        },
    )
}

proptest! {
    #[test]
    fn what_is_written_is_read(value in all()) {
        let bytes = value.to_bytes();
        prop_assert!(bytes.len() >= All::MIN_SIZE);
        prop_assert_eq!(All::from_bytes(bytes).unwrap(), value);
    }

    #[test]
    fn a_cut_value_is_an_error(value in all(), cut in 0.0..1.0f64) {
        let bytes = value.to_bytes();
        let len = (bytes.len() as f64 * cut) as usize;
        prop_assert!(All::from_bytes(bytes.slice(..len)).is_err());
    }

    #[test]
    fn garbage_never_panics(bytes in any::<Vec<u8>>()) {
        let _ = All::from_bytes(bytes.clone().into());
        let _ = Choice::from_bytes(bytes.into());
    }

    #[test]
    fn uvarint_round_trip(value in any::<u32>()) {
        let mut out = BytesMut::new();
        put_uvarint(&mut out, value);
        prop_assert_eq!(get_uvarint(&mut out).unwrap(), value);
        prop_assert!(out.is_empty());
    }

    #[test]
    fn uvarlong_round_trip(value in any::<u64>(), bits in 0..64u32) {
        let value = value >> bits;
        let mut out = BytesMut::new();
        put_uvarlong(&mut out, value);
        prop_assert_eq!(out.len() as u32, (64 - value.leading_zeros()).div_ceil(7).max(1));
        prop_assert_eq!(get_uvarlong(&mut out).unwrap(), value);
        prop_assert!(out.is_empty());
    }
}

#[test]
fn bytes_are_slices_of_the_input() {
    let input = Bytes::from_static(b"some record bytes").to_bytes();
    let value = Bytes::from_bytes(input.clone()).unwrap();
    assert!(input.as_ptr_range().contains(&value.as_ptr()));
}

#[test]
fn a_new_field_is_skipped_by_an_old_reader() {
    let new = New {
        name: "t".into(),
        extra: Some(9),
    };
    assert_eq!(Old::from_bytes(new.to_bytes()).unwrap(), Old { name: "t".into() });
    let old = Old { name: "t".into() };
    assert_eq!(
        New::from_bytes(old.to_bytes()).unwrap(),
        New {
            name: "t".into(),
            extra: None
        }
    );
}

#[test]
fn encoding_is_kafkas() {
    let inner = Inner { x: 1, y: "ab".into() };
    assert_eq!(&inner.to_bytes()[..], &[0, 0, 0, 0, 0, 0, 0, 1, 3, b'a', b'b', 0]);
    assert_eq!(&Some(1u8).to_bytes()[..], &[1, 1]);
    assert_eq!(&None::<u8>.to_bytes()[..], &[0xff]);
    assert_eq!(&Nothing {}.to_bytes()[..], &[0]);
    assert_eq!(&Choice::Many(vec![inner]).to_bytes()[..3], &[200, 2, 0]);
    assert_eq!(
        Arc::<str>::from_bytes("x".to_string().to_bytes())
            .unwrap()
            .as_ref(),
        "x"
    );
}

#[test]
fn counts_are_refused_before_anything_is_allocated() {
    let mut out = BytesMut::new();
    put_uvarint(&mut out, u32::MAX);
    out.put_slice(&[1; 1000]);
    let input = out.freeze();
    assert!(matches!(
        Vec::<u8>::from_bytes(input.clone()),
        Err(DecodeError::Count { .. })
    ));
    assert!(matches!(
        BTreeMap::<u8, u8>::from_bytes(input.clone()),
        Err(DecodeError::Count { .. })
    ));
    assert!(matches!(
        Nothing::from_bytes(input.clone()),
        Err(DecodeError::Count { .. })
    ));
    assert!(matches!(
        Bytes::from_bytes(input),
        Err(DecodeError::Truncated { .. })
    ));

    // 111 values of nine bytes fit into what is left, 112 do not.
    let mut out = BytesMut::new();
    put_uvarint(&mut out, 113);
    out.put_slice(&[0; 1000]);
    assert!(matches!(
        Vec::<(i64, u8)>::from_bytes(out.freeze()),
        Err(DecodeError::Count { count: 112, .. })
    ));
}

#[test]
fn malformed_values_are_errors() {
    let read = |bytes: &'static [u8]| Bytes::from_static(bytes);
    assert_eq!(
        bool::from_bytes(read(&[2])),
        Err(DecodeError::Tag {
            what: "boolean",
            value: 2
        })
    );
    assert!(matches!(
        Option::<u8>::from_bytes(read(&[0])),
        Err(DecodeError::Tag { .. })
    ));
    assert_eq!(
        Choice::from_bytes(read(&[9])),
        Err(DecodeError::Tag {
            what: "Choice",
            value: 9
        })
    );
    assert_eq!(String::from_bytes(read(&[0])), Err(DecodeError::Length(-1)));
    assert_eq!(String::from_bytes(read(&[3, 0xff, 0xff])), Err(DecodeError::Utf8));
    assert_eq!(u8::from_bytes(read(&[1, 2])), Err(DecodeError::Trailing(1)));
    assert_eq!(
        get_uvarint(&mut read(&[0xff, 0xff, 0xff, 0xff, 0x1f])),
        Err(DecodeError::VarInt)
    );
    assert_eq!(get_uvarint(&mut read(&[0xff; 6])), Err(DecodeError::VarInt));
    assert_eq!(get_uvarlong(&mut read(&[0xff; 11])), Err(DecodeError::VarInt));
}
