//! What the settings of a topic make of a batch.

use e2e::wire::list_offsets;

use super::Case;
use super::batch::{Batch, GZIP, LZ4, Rec, SNAPPY, ZSTD};
use super::produce::{VERSIONS, try_batch};
use super::requests::{fetch, produce_all, produce_to};
use super::side::{Side, now};

const HOUR: i64 = 3_600_000;
const DAY: i64 = 24 * HOUR;

pub const CASES: &[Case] = &[
    ("settings/limits", limits),
    ("settings/times", times),
    ("settings/append-time", append_time),
    ("settings/codecs", codecs),
];

fn limits(side: &mut Side) -> anyhow::Result<()> {
    let topic = side.topic("limits", 2, &[("max.message.bytes", "1000")])?;
    let sized = |size: usize| {
        let most = size - Batch::of(&[""]).encode().len();
        // Lengths take more bytes as they grow.
        let mut batches = (0..8).map(|less| Batch::of(&[&"x".repeat(most - less)]).encode());
        batches.find(|bytes| bytes.len() == size).expect("one fits")
    };
    for version in [3, 8, 9, 13] {
        for size in [999, 1000, 1001, 5000] {
            try_batch(side, &topic, &format!("{size} bytes"), version, sized(size))?;
        }
    }
    let large = "x".repeat(5000);
    for codec in [GZIP, SNAPPY, LZ4, ZSTD] {
        let batch = Batch::of(&[&large]).compressed(codec);
        try_batch(
            side,
            &topic,
            &format!("small when compressed, codec {codec}"),
            9,
            batch.encode(),
        )?;
    }
    let one_bad = [(0, Some(sized(1001))), (1, Some(sized(900)))];
    let request = produce_all(-1, vec![produce_to(9, &topic, one_bad)]);
    side.produce("one of two too large", 9, &topic, &request)?;
    let topic = side.topic("limits-default", 1, &[])?;
    let most = "x".repeat(1_048_588 - Batch::of(&[""]).encode().len() - 12);
    try_batch(
        side,
        &topic,
        "almost the default limit",
        9,
        Batch::of(&[&most]).encode(),
    )?;
    let over = most + &"x".repeat(100);
    try_batch(
        side,
        &topic,
        "over the default limit",
        9,
        Batch::of(&[&over]).encode(),
    )?;
    Ok(())
}

fn times(side: &mut Side) -> anyhow::Result<()> {
    let plain = side.topic("times", 1, &[])?;
    for (what, time) in [
        ("two hours ahead", 2 * HOUR),
        ("a minute ahead", 60_000),
        ("a year old", -365 * DAY),
    ] {
        for version in [3, 7, 8, 9, 13] {
            try_batch(
                side,
                &plain,
                what,
                version,
                Batch::of(&["x"]).at(now() + time).encode(),
            )?;
        }
    }
    let narrow = [
        ("message.timestamp.before.max.ms", "3600000"),
        ("message.timestamp.after.max.ms", "3600000"),
    ];
    let narrow = side.topic("times-narrow", 1, &narrow)?;
    let records = |deltas: &[i64]| {
        let records = (0..).zip(deltas).map(|(index, delta)| Rec {
            timestamp_delta: *delta,
            ..Rec::new(index, "x")
        });
        Batch::with(&records.collect::<Vec<_>>())
    };
    for (what, deltas) in [
        ("all good", &[0, 1, 2][..]),
        ("the first too old", &[-DAY, 0, 0]),
        ("the second too old", &[0, -DAY, 0]),
        ("the last two too old", &[0, -DAY, -DAY]),
        ("the second too new", &[0, DAY, 0]),
        ("all too old", &[-DAY, -DAY, -DAY]),
        ("old and new", &[-DAY, 0, DAY]),
    ] {
        for codec in [0, GZIP] {
            let batch = records(deltas).compressed(codec).at(now());
            try_batch(
                side,
                &narrow,
                &format!("{what}, codec {codec}"),
                9,
                batch.encode(),
            )?;
        }
    }
    for version in [3, 7, 8, 13] {
        try_batch(
            side,
            &narrow,
            "the second too old",
            version,
            records(&[0, -DAY, 0]).at(now()).encode(),
        )?;
    }
    try_batch(
        side,
        &narrow,
        "no time at all",
        9,
        Batch::of(&["x"])
            .change(|b| (b.base_timestamp, b.max_timestamp) = (-1, -1))
            .encode(),
    )?;
    Ok(())
}

fn append_time(side: &mut Side) -> anyhow::Result<()> {
    let topic = side.topic("append-time", 1, &[("message.timestamp.type", "LogAppendTime")])?;
    for version in VERSIONS {
        try_batch(
            side,
            &topic,
            "two records",
            version,
            Batch::of(&["one", "two"]).encode(),
        )?;
    }
    for (what, time) in [("a day ahead", DAY), ("very old", -1_600_000_000_000)] {
        try_batch(side, &topic, what, 9, Batch::of(&["x"]).at(now() + time).encode())?;
    }
    let claims = Batch::of(&["x"]).change(|batch| batch.attributes = 1 << 3);
    try_batch(side, &topic, "that says LogAppendTime itself", 9, claims.encode())?;
    for codec in [GZIP, SNAPPY, LZ4, ZSTD] {
        let batch = Batch::of(&["one", "two"]).compressed(codec);
        try_batch(side, &topic, &format!("codec {codec}"), 9, batch.encode())?;
    }
    let producer = side.producer_id()?;
    let batch = Batch::of(&["one", "two"]).by(producer, 0, 0).encode();
    try_batch(side, &topic, "of a producer", 9, batch.clone())?;
    try_batch(side, &topic, "of a producer, again", 9, batch)?;
    side.ask("by time", 7, &list_offsets(&topic.name, [0], now() - HOUR))?;
    side.ask("the latest time", 7, &list_offsets(&topic.name, [0], -3))?;
    Ok(())
}

fn codecs(side: &mut Side) -> anyhow::Result<()> {
    let topic = side.topic("codecs", 1, &[])?;
    for codec in [GZIP, SNAPPY, LZ4, ZSTD] {
        for version in [3, 6, 7, 13] {
            let batch = Batch::of(&["one", "two", "three"]).compressed(codec);
            try_batch(side, &topic, &format!("codec {codec}"), version, batch.encode())?;
        }
        let lies = Batch::of(&["one", "two"]).change(|batch| batch.attributes = codec);
        try_batch(
            side,
            &topic,
            &format!("not compressed, says codec {codec}"),
            9,
            lies.encode(),
        )?;
        let cut = Batch::of(&["one", "two", "three"])
            .compressed(codec)
            .change(|batch| {
                batch.payload.truncate(batch.payload.len() - 9);
            });
        try_batch(
            side,
            &topic,
            &format!("cut short, codec {codec}"),
            9,
            cut.encode(),
        )?;
        let none = Batch::of(&["x"]).change(|batch| {
            batch.payload.clear();
            batch.attributes = codec;
        });
        try_batch(side, &topic, &format!("nothing, codec {codec}"), 9, none.encode())?;
        let wrong =
            Batch::of(&["one", "two"]).change(|batch| (batch.count, batch.last_offset_delta) = (3, 2));
        try_batch(
            side,
            &topic,
            &format!("fewer than it says, codec {codec}"),
            9,
            wrong.compressed(codec).encode(),
        )?;
        let wrong =
            Batch::of(&["one", "two"]).change(|batch| (batch.count, batch.last_offset_delta) = (1, 0));
        try_batch(
            side,
            &topic,
            &format!("more than it says, codec {codec}"),
            9,
            wrong.compressed(codec).encode(),
        )?;
    }
    side.fetch("all of them, before zstd was known", 9, &fetch(9, &topic, 0))?;
    Ok(())
}
