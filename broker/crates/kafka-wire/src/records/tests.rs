use std::io::Write;

use bytes::{BufMut, BytesMut};

use super::*;
use crate::batch::tests::{batch, record};
use crate::batch::verify;

const CODECS: [Codec; 5] = [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd];

fn compress(codec: Codec, plain: &[u8]) -> Vec<u8> {
    match codec {
        Codec::None => plain.to_vec(),
        Codec::Gzip => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(plain).unwrap();
            encoder.finish().unwrap()
        }
        Codec::Snappy => snap::raw::Encoder::new().compress_vec(plain).unwrap(),
        Codec::Lz4 => {
            let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
            encoder.write_all(plain).unwrap();
            encoder.finish().unwrap()
        }
        Codec::Zstd => zstd::encode_all(plain, 3).unwrap(),
    }
}

/// Snappy as snappy-java and so Kafka's own clients frame it.
fn xerial(plain: &[u8]) -> Vec<u8> {
    let mut out = b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01".to_vec();
    for block in plain.chunks(1000) {
        let block = snap::raw::Encoder::new().compress_vec(block).unwrap();
        out.put_u32(block.len() as u32);
        out.put_slice(&block);
    }
    out
}

/// `plain` with its records replaced by `records`.
fn rebuilt(plain: &Bytes, codec: Codec, records: &[u8]) -> Bytes {
    let mut header = BatchHeader::parse(plain).unwrap();
    header.attributes = CODECS.iter().position(|other| *other == codec).unwrap() as i16;
    header.length = (records.len() + HEADER_LEN - 12) as i32;
    let mut out = BytesMut::new();
    out.put_slice(&header.to_bytes());
    out.put_slice(records);
    header.crc = crc_fast::crc32_iscsi(&out[21..]);
    out[..HEADER_LEN].copy_from_slice(&header.to_bytes());
    let out = out.freeze();
    verify(&out).unwrap();
    out
}

fn thousand() -> Bytes {
    let records: Vec<_> = (0..1000)
        .map(|i| record(i, 10_000 + 10 * i, &[i as u8; 50]))
        .collect();
    batch(&records)
}

#[test]
fn the_exact_record_is_found_under_every_codec() {
    let plain = thousand();
    let mut batches: Vec<_> = CODECS
        .iter()
        .map(|codec| rebuilt(&plain, *codec, &compress(*codec, &plain[HEADER_LEN..])))
        .collect();
    batches.push(rebuilt(&plain, Codec::Snappy, &xerial(&plain[HEADER_LEN..])));
    for batch in batches {
        let find = |t| find_record_by_timestamp(&batch, 5_000, 0, t).unwrap();
        assert_eq!(find(i64::MIN), Some((5_000, 10_000)));
        assert_eq!(find(10_000), Some((5_000, 10_000)));
        assert_eq!(find(10_001), Some((5_001, 10_010)));
        assert_eq!(find(15_555), Some((5_556, 15_560)));
        assert_eq!(find(19_990), Some((5_999, 19_990)));
        assert_eq!(find(19_991), None);
        assert_eq!(offsets_and_timestamps(&batch).unwrap().count(), 1000);
    }
}

#[test]
fn timestamps_out_of_order_give_the_first_that_is_late_enough() {
    let batch = batch(&[
        record(0, 50, b"a"),
        record(1, 20, b"b"),
        record(2, 90, b"c"),
        record(3, 60, b"d"),
    ]);
    assert_eq!(find_record_by_timestamp(&batch, 0, 0, 51).unwrap(), Some((2, 90)));
    assert_eq!(find_record_by_timestamp(&batch, 0, 0, 10).unwrap(), Some((0, 50)));
    // What lies before an offset does not count.
    assert_eq!(
        find_record_by_timestamp(&batch, 100, 101, 10)
            .unwrap()
            .map(|(offset, _)| offset),
        Some(101)
    );
    assert_eq!(find_record_by_timestamp(&batch, 100, 104, 51).unwrap(), None);
}

#[test]
fn append_time_holds_for_every_record() {
    let plain = thousand();
    let mut stored = BytesMut::from(&plain[..]);
    stored[..HEADER_LEN].copy_from_slice(&crate::batch::patched_head(&plain, 0, 0, Some(77)).unwrap());
    let stored = stored.freeze();
    assert_eq!(
        find_record_by_timestamp(&stored, 9, 0, 77).unwrap(),
        Some((9, 77))
    );
    assert_eq!(find_record_by_timestamp(&stored, 9, 0, 78).unwrap(), None);
}

#[test]
fn broken_records_are_errors() {
    let plain = thousand();
    for codec in CODECS {
        let compressed = compress(codec, &plain[HEADER_LEN..]);
        let cut = rebuilt(&plain, codec, &compressed[..compressed.len() / 2]);
        assert!(
            offsets_and_timestamps(&cut)
                .unwrap()
                .any(|record| record.is_err()),
            "{codec:?}"
        );
        let garbage = rebuilt(&plain, codec, &[0xee; 500]);
        assert!(
            find_record_by_timestamp(&garbage, 0, 0, i64::MIN).is_err(),
            "{codec:?}"
        );
    }
    // A record that is shorter than its own fields.
    let short = rebuilt(&plain, Codec::None, &[2, 0, 0, 0, 0, 0, 0]);
    assert_eq!(
        find_record_by_timestamp(&short, 0, 0, 0),
        Err(BatchError::Records)
    );
    let unknown = rebuilt(&plain, Codec::None, &[]);
    assert_eq!(
        find_record_by_timestamp(&unknown, 0, 0, 0),
        Err(BatchError::Records)
    );
}

#[test]
fn a_bomb_ends_at_the_limit() {
    // One record of 512 MiB of zeroes, from a few kilobytes.
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
    encoder
        .write_all(&[0x80, 0x80, 0x80, 0x80, 0x04, 0, 0, 2])
        .unwrap();
    let zeroes = vec![0; 1 << 20];
    for _ in 0..512 {
        encoder.write_all(&zeroes).unwrap();
    }
    let bomb = rebuilt(&thousand(), Codec::Zstd, &encoder.finish().unwrap());
    assert!(bomb.len() < 100_000);
    let found = offsets_and_timestamps(&bomb).unwrap().next();
    assert_eq!(found, Some(Err(BatchError::TooLarge)));

    // A snappy block that claims 4 GiB.
    let liar = rebuilt(
        &thousand(),
        Codec::Snappy,
        &[0xff, 0xff, 0xff, 0xff, 0x0f, 1, 2, 3],
    );
    assert_eq!(
        offsets_and_timestamps(&liar).unwrap().next(),
        Some(Err(BatchError::Records))
    );
}

#[test]
fn what_is_accepted_can_be_read_to_its_end() {
    let good: &[&[u8]] = &[
        // Null key, a value, no headers.
        &[16, 0, 0, 0, 1, 4, b'a', b'b', 0],
        // A key, null value, two headers, one of them without a value.
        &[28, 0, 0, 0, 2, b'k', 1, 4, 2, b'h', 2, b'v', 2, b'h', 1],
        // Longer than null is null, too.
        &[12, 0, 0, 0, 3, 3, 0],
    ];
    let bad: &[&[u8]] = &[
        // Bytes behind the record; too few for it; a record shorter and longer than what it holds.
        &[12, 0, 0, 0, 1, 1, 0, 0],
        &[12, 0, 0, 0, 1, 1],
        &[10, 0, 0, 0, 1, 1, 0],
        &[14, 0, 0, 0, 1, 1, 0],
        &[1, 0, 0, 0, 1, 1, 0],
        // A key, a value, a header that is longer than all; a header without a key; fewer than no headers.
        &[12, 0, 0, 0, 100, 1, 0],
        &[12, 0, 0, 0, 1, 100, 0],
        &[16, 0, 0, 0, 1, 1, 2, 100, 1],
        &[16, 0, 0, 0, 1, 1, 2, 1, 1],
        &[12, 0, 0, 0, 1, 1, 1],
        &[12, 0, 0, 0, 1, 1, 100],
        // Not the offset of its place.
        &[12, 0, 0, 2, 1, 1, 0],
        &[255; 20],
    ];
    for codec in CODECS {
        let plain = batch(&[record(0, 7, b"x")]);
        let checked = |records: &[u8]| {
            let mut seen = Vec::new();
            let bytes = rebuilt(&plain, codec, &compress(codec, records));
            let mut budget = u64::MAX;
            let result = check(&bytes, &mut budget, |index, time| seen.push((index, time)));
            (result, seen)
        };
        for records in good {
            let (result, seen) = checked(records);
            assert_eq!(result, Ok(()), "{codec:?} {records:?}");
            assert_eq!(seen, [(0, 7)]);
        }
        for records in bad {
            assert!(checked(records).0.is_err(), "{codec:?} {records:?}");
        }
    }
}

#[test]
fn no_more_is_read_than_allowed_and_what_was_read_is_counted() {
    let plain = thousand();
    let len = (plain.len() - HEADER_LEN) as u64;
    for codec in CODECS {
        let batch = rebuilt(&plain, codec, &compress(codec, &plain[HEADER_LEN..]));
        let mut budget = len + 10;
        assert_eq!(check(&batch, &mut budget, |_, _| ()), Ok(()), "{codec:?}");
        assert_eq!(budget, 10, "{codec:?}");
        let mut budget = len - 1;
        assert_eq!(check(&batch, &mut budget, |_, _| ()), Err(BatchError::TooLarge));
        assert_eq!(budget, 0, "{codec:?}");
        // What turns out to be wrong at its end has been read as well.
        let mut wrong = plain[HEADER_LEN..].to_vec();
        wrong.push(0);
        let batch = rebuilt(&plain, codec, &compress(codec, &wrong));
        let mut budget = 2 * len;
        assert_eq!(check(&batch, &mut budget, |_, _| ()), Err(BatchError::Records));
        assert_eq!(budget, len, "{codec:?}");
    }
}
