use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::messages::RequestKind;
use kafka_protocol::protocol::{Decodable, Encodable};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRng, TestRunner};

use super::*;
use crate::flex::put_uvarint;
use crate::frame::RequestHeader;
use crate::{request, versions};

/// Writes bodies by the tables, with everything present.
struct Generator<'a> {
    rng: &'a mut TestRng,
    out: BytesMut,
    version: i16,
    flexible: bool,
    /// Counts down over the arrays and lengths written; the one at zero announces `hostile`.
    until_hostile: Option<u32>,
    hostile: i64,
    /// Arrays and lengths written.
    lengths: u32,
}

impl Generator<'_> {
    fn fields(&mut self, fields: &'static [Field]) {
        let present: Vec<_> = fields
            .iter()
            .filter(|field| field.versions.contains(&self.version))
            .collect();
        for field in present.iter().filter(|field| field.tag.is_none()) {
            self.kind(&field.kind);
        }
        if !self.flexible {
            return;
        }
        let mut tagged: Vec<_> = present
            .iter()
            .filter_map(|field| Some((field.tag?, &field.kind)))
            .collect();
        tagged.sort_by_key(|(tag, _)| *tag);
        let unknown = self.rng.next_u32() % 3;
        put_uvarint(&mut self.out, tagged.len() as u32 + unknown);
        for (tag, kind) in tagged {
            put_uvarint(&mut self.out, tag);
            let outer = std::mem::take(&mut self.out);
            self.kind(kind);
            let value = std::mem::replace(&mut self.out, outer);
            put_uvarint(&mut self.out, value.len() as u32);
            self.out.put(value);
        }
        for tag in 0..unknown {
            put_uvarint(&mut self.out, 1000 + tag);
            put_uvarint(&mut self.out, 3);
            self.out.put_slice(b"new");
        }
    }

    fn kind(&mut self, kind: &'static Kind) {
        match kind {
            // Booleans are one byte of 0 or 1.
            Kind::Fixed(1) => self.out.put_u8((self.rng.next_u32() % 2) as u8),
            Kind::Fixed(size) => (0..*size).for_each(|_| self.out.put_u8(self.rng.next_u32() as u8 | 1)),
            Kind::String | Kind::Bytes => {
                let len = self.rng.next_u32() as usize % 20 + 1;
                self.length(len, matches!(kind, Kind::String));
                self.out.put_bytes(b'x', len);
            }
            Kind::Struct(fields) => self.fields(fields),
            Kind::NullableStruct(fields) => {
                self.out.put_u8(1);
                self.fields(fields);
            }
            Kind::Array { element, .. } => {
                let count = self.rng.next_u32() as usize % 3 + 1;
                self.length(count, false);
                (0..count).for_each(|_| self.kind(element));
            }
        }
    }

    fn length(&mut self, len: usize, short: bool) {
        self.lengths += 1;
        let mut len = len as i64;
        if let Some(left) = &mut self.until_hostile {
            if *left == 0 {
                len = if short && !self.flexible {
                    i16::MAX.into()
                } else {
                    self.hostile
                };
                self.until_hostile = None;
            } else {
                *left -= 1;
            }
        }
        match (self.flexible, short) {
            (true, _) => put_uvarint(&mut self.out, (len + 1) as u32),
            (false, true) => self.out.put_i16(len as i16),
            (false, false) => self.out.put_i32(len as i32),
        }
    }
}

fn generate(rng: &mut TestRng, schema: &Schema, version: i16, hostile: Option<(u32, i64)>) -> (Bytes, u32) {
    let mut generator = Generator {
        rng,
        out: BytesMut::new(),
        version,
        flexible: version >= schema.flexible,
        until_hostile: hostile.map(|(index, _)| index),
        hostile: hostile.map_or(0, |(_, len)| len),
        lengths: 0,
    };
    generator.fields(schema.fields);
    (generator.out.freeze(), generator.lengths)
}

fn each_version(mut test: impl FnMut(&mut TestRng, &'static Schema, i16)) {
    let mut runner = TestRunner::deterministic();
    for row in versions::SUPPORTED {
        let schema = table::SCHEMAS
            .iter()
            .find(|schema| schema.key == row.key)
            .expect("a table for every API");
        for version in row.min..=row.max {
            test(runner.rng(), schema, version);
        }
    }
}

fn decode(key: ApiKey, version: i16, body: &Bytes) -> Result<RequestKind, DecodeError> {
    let header = RequestHeader {
        api_key: key as i16,
        api_version: version,
        correlation_id: 0,
        client_id: None,
        body_offset: 0,
    };
    request::decode(&header, body)
}

#[test]
fn flexible_versions_are_the_protocol_crates() {
    for schema in table::SCHEMAS {
        for version in 0..20 {
            let flexible = schema.key.request_header_version(version) >= 2;
            assert_eq!(
                version >= schema.flexible,
                flexible,
                "{:?} v{version}",
                schema.key
            );
        }
    }
}

/// The proof that the tables are those of the protocol crate: what is written by a table, with every field and
/// unknown tags, is decoded to the last byte and comes out the same when the crate encodes it.
#[test]
fn tables_match_the_protocol_crate() {
    each_version(|rng, schema, version| {
        for _ in 0..30 {
            let (body, _) = generate(rng, schema, version, None);
            let context = format!("{:?} v{version} {body:?}", schema.key);
            check(schema.key, version, &body).expect(&context);
            let mut rest = body.clone();
            let request = RequestKind::decode(schema.key, &mut rest, version).expect(&context);
            assert!(rest.is_empty(), "{context}");
            let mut out = BytesMut::new();
            request.encode(&mut out, version).expect(&context);
            assert_eq!(out, body, "{context}");
        }
    });
}

#[test]
fn requests_cut_at_any_byte_are_errors() {
    each_version(|rng, schema, version| {
        let (body, _) = generate(rng, schema, version, None);
        for len in 0..body.len() {
            let cut = decode(schema.key, version, &body.slice(..len));
            assert!(
                cut.is_err(),
                "{:?} v{version} cut at {len} of {body:?}",
                schema.key
            );
        }
    });
}

#[test]
fn every_length_that_lies_is_an_error() {
    each_version(|rng, schema, version| {
        let (_, lengths) = generate(rng, schema, version, None);
        for index in 0..lengths {
            for hostile in [i64::from(i32::MAX), 0x00ff_ffff, 100_000] {
                // Another body may have fewer lengths; then nothing was hostile.
                let (body, written) = generate(rng, schema, version, Some((index, hostile)));
                if index >= written {
                    continue;
                }
                let refused = check(schema.key, version, &body);
                assert!(
                    matches!(
                        refused,
                        Err(DecodeError::Count { .. } | DecodeError::Truncated { .. })
                    ),
                    "{:?} v{version} length {index}: {refused:?}",
                    schema.key
                );
            }
        }
    });
}

#[test]
fn mutated_requests_never_panic() {
    each_version(|rng, schema, version| {
        let (body, _) = generate(rng, schema, version, None);
        for _ in 0..200 {
            let mut mutated = body.to_vec();
            for _ in 0..rng.next_u32() % 4 + 1 {
                let Some(len) = (!mutated.is_empty()).then_some(mutated.len()) else {
                    break;
                };
                let at = rng.next_u32() as usize % len;
                mutated[at] = rng.next_u32() as u8;
            }
            let _ = decode(schema.key, version, &mutated.into());
        }
    });
}

proptest! {
    #![proptest_config(Config::with_cases(2000))]

    #[test]
    fn random_bytes_never_panic(input in prop::collection::vec(any::<u8>(), 0..300)) {
        crate::fuzz_entry::body(&input);
        crate::fuzz_entry::stream(&input);
        crate::fuzz_entry::flex(&input);
    }
}

/// The 12-byte body that takes the protocol crate 100 GB: acks, timeout and 2^31 - 1 topics.
#[test]
fn twelve_bytes_that_announce_two_billion_topics() {
    let mut body = BytesMut::new();
    body.put_i16(-1);
    body.put_i16(1);
    body.put_i32(1000);
    body.put_i32(i32::MAX);
    assert_eq!(body.len(), 12);
    for version in 3..=8 {
        let refused = decode(ApiKey::Produce, version, &body.clone().freeze());
        assert_eq!(
            refused,
            Err(DecodeError::Count {
                count: i32::MAX.into(),
                remaining: 0
            })
        );
    }

    let mut body = BytesMut::new();
    body.put_u8(0);
    body.put_i16(1);
    body.put_i32(1000);
    put_uvarint(&mut body, 1 << 31);
    assert_eq!(body.len(), 12);
    for version in 9..=13 {
        let refused = decode(ApiKey::Produce, version, &body.clone().freeze());
        assert_eq!(
            refused,
            Err(DecodeError::Count {
                count: i32::MAX.into(),
                remaining: 0
            })
        );
    }
}

#[test]
fn metadata_of_int_max_topics() {
    let plain = Bytes::from_static(&[0x7f, 0xff, 0xff, 0xff, 0, 1, b'a', 1]);
    let compact = Bytes::from_static(&[0xff, 0xff, 0xff, 0xff, 0x0f, 2, b'a', 0, 1, 1, 0]);
    for version in 0..=13 {
        let body = if version < 9 { &plain } else { &compact };
        assert!(matches!(
            decode(ApiKey::Metadata, version, body),
            Err(DecodeError::Count { .. })
        ));
    }
    let negative = Bytes::from_static(&[0xff, 0xff, 0xff, 0xfe, 1, 1, 1]);
    assert_eq!(
        decode(ApiKey::Metadata, 4, &negative),
        Err(DecodeError::Length(-2))
    );
}

#[test]
fn null_means_all_topics() {
    let body = Bytes::from_static(&[0xff, 0xff, 0xff, 0xff, 1]);
    let Ok(RequestKind::Metadata(request)) = decode(ApiKey::Metadata, 4, &body) else {
        panic!()
    };
    assert!(request.topics.is_none());
    let body = Bytes::from_static(&[0, 1, 0, 0]);
    let Ok(RequestKind::Metadata(request)) = decode(ApiKey::Metadata, 13, &body) else {
        panic!()
    };
    assert!(request.topics.is_none());
}

#[test]
fn memory_is_bounded_by_the_frame() {
    // 16 MiB of empty topic names would become half a gigabyte of names.
    let mut body = BytesMut::new();
    put_uvarint(&mut body, (16 << 20) + 1);
    body.put_bytes(1, 16 << 20);
    body.put_i32(0);
    body.put_u8(0);
    let refused = decode(ApiKey::DeleteTopics, 4, &body.freeze());
    assert_eq!(refused, Err(DecodeError::Memory { limit: MAX_BUDGET }));

    // So would unknown tags, kept in a map.
    let mut body = BytesMut::new();
    body.put_slice(&[1, 0, 0]);
    put_uvarint(&mut body, 1 << 20);
    for tag in 0..1 << 20 {
        put_uvarint(&mut body, 1000 + tag);
        put_uvarint(&mut body, 0);
    }
    let refused = decode(ApiKey::Metadata, 11, &body.freeze());
    assert_eq!(refused, Err(DecodeError::Memory { limit: MAX_BUDGET }));
}

#[test]
fn large_but_honest_requests_pass() {
    // 20,000 partitions with short names and a produce of many partitions.
    let mut body = BytesMut::new();
    body.put_i32(10_000);
    for i in 0..10_000 {
        let name = format!("t{i}");
        body.put_i16(name.len() as i16);
        body.put_slice(name.as_bytes());
    }
    body.put_u8(0);
    let Ok(RequestKind::Metadata(request)) = decode(ApiKey::Metadata, 4, &body.freeze()) else {
        panic!()
    };
    assert_eq!(request.topics.unwrap().len(), 10_000);

    let mut body = BytesMut::new();
    body.put_slice(&[0, 0, 1, 0, 0, 0, 9, 2, 2, b't']);
    put_uvarint(&mut body, 10_001);
    for index in 0..10_000 {
        body.put_i32(index);
        body.put_slice(&[3, 1, 2, 0]);
    }
    body.put_slice(&[0, 0]);
    let Ok(RequestKind::Produce(request)) = decode(ApiKey::Produce, 9, &body.freeze()) else {
        panic!()
    };
    assert_eq!(request.topic_data[0].partition_data.len(), 10_000);
}

#[test]
fn records_of_a_produce_request_are_slices_of_the_frame() {
    let mut frame = BytesMut::new();
    frame.put_slice(&[
        0xff, 0xff, 0, 1, 0, 0, 0, 9, 0, 0, 0, 1, 0, 1, b't', 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 3, 7, 8, 9,
    ]);
    let frame = frame.freeze();
    let Ok(RequestKind::Produce(request)) = decode(ApiKey::Produce, 8, &frame) else {
        panic!()
    };
    let records = request.topic_data[0].partition_data[0].records.clone().unwrap();
    assert_eq!(&records[..], &[7, 8, 9]);
    assert!(frame.as_ptr_range().contains(&records.as_ptr()));
}

#[test]
fn a_tagged_field_must_fill_its_size() {
    // Fetch 12 with a cluster id of three bytes in a tag of five.
    let mut body = BytesMut::new();
    body.put_bytes(0, 4 + 4 + 4 + 4 + 1 + 4 + 4);
    body.put_slice(&[1, 1, 1]);
    let start = body.clone();
    body.put_slice(&[1, 0, 3, 3, b'i', b'd']);
    decode(ApiKey::Fetch, 12, &body.freeze()).unwrap();
    let mut body = start;
    body.put_slice(&[1, 0, 5, 3, b'i', b'd', 0, 0]);
    assert_eq!(
        decode(ApiKey::Fetch, 12, &body.freeze()),
        Err(DecodeError::Length(5))
    );
}

#[test]
fn unknown_apis_and_versions_are_refused() {
    assert_eq!(
        decode(ApiKey::Produce, 2, &Bytes::new()),
        Err(DecodeError::UnsupportedVersion {
            api_key: 0,
            version: 2
        })
    );
    assert_eq!(
        decode(ApiKey::Vote, 0, &Bytes::new()),
        Err(DecodeError::UnknownApi(ApiKey::Vote as i16))
    );
}

/// Whole frames as a client writes them, header included.
#[test]
fn frames_of_a_client_are_decoded() {
    use kafka_protocol::messages::{ApiVersionsRequest, MetadataRequest};
    let request = ApiVersionsRequest::default()
        .with_client_software_name("librdkafka".into())
        .with_client_software_version("2.0.2".into());
    let frame = crate::client::encode(&request, 3, 11, "me").unwrap().slice(4..);
    let header = RequestHeader::parse(&frame).unwrap();
    assert_eq!(
        (header.correlation_id, header.client_id.as_deref()),
        (11, Some("me"))
    );
    assert_eq!(
        request::decode(&header, &frame),
        Ok(RequestKind::ApiVersions(request))
    );

    for version in 0..=13 {
        let request = MetadataRequest::default().with_topics(Some(vec![]));
        let mut frame = crate::client::encode(&request, version, 5, "").unwrap();
        assert_eq!(frame.get_u32() as usize, frame.len());
        let header = RequestHeader::parse(&frame).unwrap();
        assert_eq!(
            request::decode(&header, &frame),
            Ok(RequestKind::Metadata(request)),
            "v{version}"
        );
        let mut body = frame.slice(header.body_offset..);
        let decoded = MetadataRequest::decode(&mut body, version).unwrap();
        assert_eq!(
            decoded.compute_size(version).unwrap(),
            frame.len() - header.body_offset
        );
    }
}
