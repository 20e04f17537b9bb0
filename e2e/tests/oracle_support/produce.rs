//! What producers may send, and what they hear.

use std::ops::RangeInclusive;

use bytes::Bytes;
use e2e::wire::list_offsets;

use super::Case;
use super::batch::{Batch, GZIP, Rec, TIME, varint};
use super::requests::{nowhere, produce, produce_all, produce_to};
use super::side::{Side, Topic};

pub const VERSIONS: RangeInclusive<i16> = 3..=13;
const LATEST: i64 = -1;

pub const CASES: &[Case] = &[
    ("produce/versions", versions),
    ("produce/acks", acks),
    ("produce/topics", topics),
    ("produce/several", several),
    ("produce/headers", headers),
    ("produce/records", records),
    ("produce/attributes", attributes),
    ("produce/producers", producers),
];

/// Sends one batch to partition 0.
pub fn try_batch(
    side: &mut Side,
    topic: &Topic,
    what: &str,
    version: i16,
    records: Bytes,
) -> anyhow::Result<()> {
    side.produce(what, version, topic, &produce(version, topic, records))
}

fn versions(side: &mut Side) -> anyhow::Result<()> {
    let topic = side.topic("versions", 1, &[])?;
    for version in VERSIONS {
        let batch = Batch::of(&["one", "two"]).at(TIME + i64::from(version));
        try_batch(side, &topic, "two records", version, batch.encode())?;
    }
    Ok(())
}

fn acks(side: &mut Side) -> anyhow::Result<()> {
    let topic = side.topic("acks", 1, &[])?;
    for (version, acks) in [
        (9, 1),
        (9, -1),
        (3, 2),
        (9, 2),
        (13, 2),
        (9, -2),
        (9, i16::MAX),
        (9, i16::MIN),
    ] {
        let records = Some(Batch::of(&["x"]).encode());
        let request = produce_all(acks, vec![produce_to(version, &topic, [(0, records)])]);
        side.produce(&format!("acks {acks}"), version, &topic, &request)?;
    }
    for (what, topic, bytes) in [
        ("to a topic", &topic, Batch::of(&["x"]).encode()),
        ("nowhere", &nowhere(), Batch::of(&["x"]).encode()),
        (
            "of damage",
            &topic,
            Batch::of(&["x"]).change(|batch| batch.crc_error = 1).encode(),
        ),
    ] {
        for version in [9, 13] {
            let request = produce_all(0, vec![produce_to(version, topic, [(0, Some(bytes.clone()))])]);
            side.send(version, &request)?;
            // The next answer on the connection, or its end.
            let request = list_offsets("nowhere", [0], LATEST);
            side.ask(format!("after acks 0 {what}, v{version}"), 7, &request)?;
            side.reconnect()?;
        }
    }
    // What was not waited for may still be on its way.
    side.until("both without an answer", |side| {
        let answer = side.quiet(7, &list_offsets("acks", [0], LATEST))?;
        Ok((answer.topics[0].partitions[0].offset == 4).then_some(()))
    })
}

fn topics(side: &mut Side) -> anyhow::Result<()> {
    let topic = side.topic("known", 2, &[])?;
    let records = Some(Batch::of(&["x"]).encode());
    let nil = Topic {
        id: uuid::Uuid::nil(),
        ..topic.clone()
    };
    let unnamed = Topic {
        name: e2e::wire::text(""),
        ..topic.clone()
    };
    for version in [3, 8, 9, 12, 13] {
        side.ask(
            "unknown topic",
            version,
            &produce(version, &nowhere(), Batch::of(&["x"]).encode()),
        )?;
        for index in [2, -1, i32::MAX] {
            let request = produce_all(-1, vec![produce_to(version, &topic, [(index, records.clone())])]);
            side.ask(format!("partition {index}"), version, &request)?;
        }
        side.ask("no topics", version, &produce_all(-1, Vec::new()))?;
        side.ask(
            "no partitions",
            version,
            &produce_all(-1, vec![produce_to(version, &topic, [])]),
        )?;
        side.ask(
            "no name or id",
            version,
            &produce(
                version,
                if version < 13 { &unnamed } else { &nil },
                Batch::of(&["x"]).encode(),
            ),
        )?;
        let empty = produce_all(-1, vec![produce_to(version, &topic, [(0, Some(Bytes::new()))])]);
        side.ask("empty records", version, &empty)?;
        let good = produce_to(version, &topic, [(0, records.clone()), (1, records.clone())]);
        let bad = produce_to(version, &nowhere(), [(0, records.clone())]);
        side.produce(
            "one of two topics is unknown",
            version,
            &topic,
            &produce_all(-1, vec![good, bad]),
        )?;
    }
    Ok(())
}

/// Several partitions and batches in one request.
fn several(side: &mut Side) -> anyhow::Result<()> {
    let topic = side.topic("several", 3, &[])?;
    let batch = |text: &str| Batch::of(&[text]).encode();
    for version in [7, 9, 13] {
        let bad = Batch::of(&["x"]).change(|batch| batch.crc_error = 1).encode();
        let partitions = [
            (2, Some(batch("c"))),
            (0, Some(batch("a"))),
            (1, Some(bad)),
            (7, Some(batch("d"))),
        ];
        side.produce(
            "some of many",
            version,
            &topic,
            &produce_all(-1, vec![produce_to(version, &topic, partitions)]),
        )?;
    }
    let two = [batch("first").as_ref(), batch("second").as_ref()].concat();
    try_batch(side, &topic, "two batches", 9, two.clone().into())?;
    try_batch(side, &topic, "two batches", 3, two.into())?;
    let producer = side.producer_id()?;
    let sequenced = |sequence| Batch::of(&["x"]).by(producer, 0, sequence).encode();
    let two = [sequenced(0).as_ref(), sequenced(1).as_ref()].concat();
    try_batch(side, &topic, "two batches of a producer", 9, two.into())?;
    let half = batch("whole").len() / 2;
    let mixed = [batch("whole").as_ref(), &batch("broken")[..half]].concat();
    try_batch(side, &topic, "one and a half batches", 9, mixed.into())?;
    let garbage = [batch("whole").as_ref(), &[0; 5]].concat();
    try_batch(side, &topic, "a batch and five bytes", 9, garbage.into())?;
    Ok(())
}

/// A header that does not say what is true.
fn headers(side: &mut Side) -> anyhow::Result<()> {
    let topic = side.topic("headers", 1, &[])?;
    let plain = || Batch::of(&["one", "two", "three"]);
    let mut cases: Vec<(&str, Batch)> = vec![
        ("wrong checksum", plain().change(|b| b.crc_error = 1)),
        ("base offset of its own", plain().change(|b| b.base_offset = 500)),
        ("negative base offset", plain().change(|b| b.base_offset = -5)),
        ("leader epoch of its own", plain().change(|b| b.leader_epoch = 17)),
        (
            "last offset delta too large",
            plain().change(|b| b.last_offset_delta = 5),
        ),
        (
            "last offset delta too small",
            plain().change(|b| b.last_offset_delta = 1),
        ),
        (
            "last offset delta negative",
            plain().change(|b| b.last_offset_delta = -1),
        ),
        (
            "last offset delta largest",
            plain().change(|b| b.last_offset_delta = i32::MAX),
        ),
        ("count too large", plain().change(|b| b.count = 4)),
        (
            "count and delta too large",
            plain().change(|b| (b.count, b.last_offset_delta) = (4, 3)),
        ),
        ("count too small", plain().change(|b| b.count = 2)),
        (
            "count and delta too small",
            plain().change(|b| (b.count, b.last_offset_delta) = (2, 1)),
        ),
        ("count zero", plain().change(|b| b.count = 0)),
        ("count negative", plain().change(|b| b.count = -1)),
        ("no records", Batch::with(&[])),
        (
            "no records, as compaction leaves them",
            Batch::with(&[]).change(|b| b.last_offset_delta = 2),
        ),
        ("length one too large", plain().change(|b| b.length_error = 1)),
        ("length one too small", plain().change(|b| b.length_error = -1)),
        (
            "length zero",
            plain().change(|b| b.length_error = -(b.payload.len() as i32 + 49)),
        ),
        (
            "length negative",
            plain().change(|b| b.length_error = i32::MIN / 2),
        ),
        (
            "length largest",
            plain().change(|b| b.length_error = i32::MAX / 2),
        ),
        (
            "maximum timestamp too small",
            plain().change(|b| b.max_timestamp = TIME - 1),
        ),
        (
            "maximum timestamp too large",
            plain().change(|b| b.max_timestamp = TIME + 500),
        ),
        (
            "no timestamps",
            plain().change(|b| (b.base_timestamp, b.max_timestamp) = (-1, -1)),
        ),
        ("negative timestamps", plain().at(-1000)),
    ];
    for magic in [-1, 0, 1, 3, i8::MAX] {
        cases.push(("magic", plain().change(|b| b.magic = magic)));
    }
    for (what, batch) in &cases {
        try_batch(side, &topic, what, 9, batch.encode())?;
    }
    for (what, batch) in cases
        .iter()
        .filter(|(what, _)| what.starts_with("wrong") || what.starts_with("magic"))
    {
        for version in [3, 13] {
            try_batch(side, &topic, what, version, batch.encode())?;
        }
    }
    let bytes = plain().encode();
    for length in [1, 11, 16, 17, 60, 61, bytes.len() - 1] {
        try_batch(
            side,
            &topic,
            &format!("the first {length} bytes"),
            9,
            bytes.slice(..length),
        )?;
    }
    Ok(())
}

/// Records that are not what they should be.
fn records(side: &mut Side) -> anyhow::Result<()> {
    let topic = side.topic("records", 1, &[])?;
    let one = |change: fn(&mut Rec)| {
        let mut records = vec![Rec::new(0, "zero"), Rec::new(1, "one"), Rec::new(2, "two")];
        change(&mut records[1]);
        Batch::with(&records)
    };
    let payload = |payload: &[u8]| Batch::of(&["x"]).change(|batch| batch.payload = payload.to_vec());
    let mut long = Vec::new();
    varint(&mut long, 1000);
    long.extend([0; 20]);
    let cases = [
        ("null key", one(|r| r.key = None)),
        ("null value", one(|r| r.value = None)),
        ("null key and value", one(|r| (r.key, r.value) = (None, None))),
        (
            "empty key and value",
            one(|r| (r.key, r.value) = (Some(Bytes::new()), Some(Bytes::new()))),
        ),
        (
            "headers",
            one(|r| r.headers = vec![(Some("a"), Some("1")), (Some("a"), None), (Some(""), Some(""))]),
        ),
        (
            "header without a key",
            one(|r| r.headers = vec![(None, Some("1"))]),
        ),
        ("record attributes", one(|r| r.attributes = 1)),
        ("offset delta repeated", one(|r| r.offset_delta = 0)),
        ("offset delta too large", one(|r| r.offset_delta = 7)),
        ("offset delta negative", one(|r| r.offset_delta = -1)),
        ("times out of order", one(|r| r.timestamp_delta = -500)),
        (
            "a later time than the header says",
            one(|r| r.timestamp_delta = 900).change(|b| b.max_timestamp = TIME + 2),
        ),
        (
            "bytes behind the records",
            one(|_| ()).change(|batch| batch.payload.extend([0, 0, 0])),
        ),
        ("a record longer than the batch", payload(&long)),
        ("a record of negative length", payload(&[1, 0, 0, 0, 0, 0, 0])),
        ("a record of length zero", payload(&[0, 0, 0, 0, 0, 0, 0])),
        ("an endless number", payload(&[0xff; 20])),
        ("a key longer than its record", payload(&[12, 0, 0, 0, 50, 0, 0])),
        (
            "a value longer than its record",
            payload(&[12, 0, 0, 0, 1, 50, 0]),
        ),
        (
            "a record with bytes behind its headers",
            payload(&[18, 0, 0, 0, 1, 1, 0, 9, 9, 9]),
        ),
        ("more headers than fit", payload(&[12, 0, 0, 0, 1, 1, 100])),
        ("a negative number of headers", payload(&[12, 0, 0, 0, 1, 1, 1])),
    ];
    for (what, batch) in &cases {
        try_batch(side, &topic, what, 9, batch.encode())?;
        let packed = format!("{what}, compressed");
        try_batch(side, &topic, &packed, 9, batch.clone().compressed(GZIP).encode())?;
    }
    for version in [3, 7, 8, 13] {
        let bad = one(|r| r.offset_delta = 7).compressed(GZIP);
        try_batch(side, &topic, "offset delta too large", version, bad.encode())?;
    }
    Ok(())
}

fn attributes(side: &mut Side) -> anyhow::Result<()> {
    let topic = side.topic("attributes", 1, &[])?;
    for version in [3, 9, 13] {
        for bit in 3..16 {
            let batch = Batch::of(&["x"]).change(|batch| batch.attributes = 1 << bit);
            try_batch(
                side,
                &topic,
                &format!("attribute bit {bit}"),
                version,
                batch.encode(),
            )?;
        }
        for codec in [5, 6, 7] {
            let batch = Batch::of(&["x"]).change(|batch| batch.attributes = codec);
            try_batch(side, &topic, &format!("codec {codec}"), version, batch.encode())?;
        }
    }
    let producer = side.producer_id()?;
    let control = Batch::of(&["x"])
        .by(producer, 0, 0)
        .change(|batch| batch.attributes = 1 << 5);
    try_batch(side, &topic, "control batch of a producer", 9, control.encode())?;
    Ok(())
}

/// Fields of an idempotent producer that do not go together.
fn producers(side: &mut Side) -> anyhow::Result<()> {
    let topic = side.topic("producers", 1, &[])?;
    let id = side.producer_id()?;
    for (what, id, epoch, sequence) in [
        ("id alone", id, -1, -1),
        ("no sequence", id, 0, -1),
        ("sequence below none", id, 0, -2),
        ("no epoch", id, -1, 0),
        ("epoch below none", id, -2, 0),
        ("sequence alone", -1, -1, 0),
        ("epoch alone", -1, 0, -1),
        ("no id", -1, 0, 0),
        ("id below none", -2, 0, 0),
    ] {
        try_batch(
            side,
            &topic,
            what,
            9,
            Batch::of(&["x"]).by(id, epoch, sequence).encode(),
        )?;
    }
    let transactional = |id| {
        Batch::of(&["x"])
            .by(id, 0, 0)
            .change(|batch| batch.attributes = 1 << 4)
    };
    for version in [9, 11, 12, 13] {
        try_batch(
            side,
            &topic,
            "transactional, no transaction",
            version,
            transactional(id).encode(),
        )?;
    }
    try_batch(
        side,
        &topic,
        "transactional, no producer",
        9,
        transactional(-1).encode(),
    )?;
    Ok(())
}
