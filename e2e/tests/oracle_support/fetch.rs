//! What consumers get, and when they get nothing.

use bytes::Bytes;
use e2e::wire::{delete_records, text};
use kafka_protocol::messages::fetch_request::{FetchTopic, ForgottenTopic};
use kafka_protocol::messages::{BrokerId, FetchRequest, TopicName};

use super::Case;
use super::batch::{Batch, GZIP, Rec};
use super::requests::{
    fetch, fetch_all, fetch_partition, fetch_topic, nowhere, produce, produce_all, produce_to,
};
use super::side::{Side, Topic};

pub const CASES: &[Case] = &[
    ("fetch/versions", versions),
    ("fetch/bytes", bytes),
    ("fetch/offsets", offsets),
    ("fetch/unknown", unknown),
    ("fetch/epochs", epochs),
    ("fetch/limits", limits),
    ("fetch/sessions", sessions),
    ("fetch/session-errors", session_errors),
    ("fetch/session-topics", session_topics),
];

/// A topic with the batches 0-1, 2, 3-5.
fn filled(side: &mut Side, name: &str, partitions: i32) -> anyhow::Result<Topic> {
    let topic = side.topic(name, partitions, &[])?;
    for index in 0..partitions {
        for values in [&["a", "b"][..], &["c"], &["d", "e", "f"]] {
            append(side, &topic, index, Batch::of(values).encode())?;
        }
    }
    Ok(topic)
}

fn append(side: &mut Side, topic: &Topic, index: i32, records: Bytes) -> anyhow::Result<()> {
    let answer = side.quiet(
        9,
        &produce_all(-1, vec![produce_to(9, topic, [(index, Some(records))])]),
    )?;
    anyhow::ensure!(
        answer.responses[0].partition_responses[0].error_code == 0,
        "{answer:?}"
    );
    Ok(())
}

fn versions(side: &mut Side) -> anyhow::Result<()> {
    let topic = filled(side, "read", 1)?;
    for version in 4..=18 {
        for committed in [false, true] {
            let request = fetch(version, &topic, 0).with_isolation_level(committed.into());
            side.fetch(format!("from 0, committed {committed}"), version, &request)?;
            let request = fetch(version, &topic, 6).with_isolation_level(committed.into());
            side.fetch(format!("at the end, committed {committed}"), version, &request)?;
            let request = fetch(version, &topic, 7).with_isolation_level(committed.into());
            side.fetch(
                format!("behind the end, committed {committed}"),
                version,
                &request,
            )?;
        }
        if version >= 11 {
            for rack in ["local", "elsewhere"] {
                let request = fetch(version, &topic, 3).with_rack_id(text(rack));
                side.fetch(format!("from rack {rack}"), version, &request)?;
            }
        }
        if version <= 14 {
            let request = fetch(version, &topic, 0).with_replica_id(BrokerId(-2));
            side.fetch("of a debugging consumer", version, &request)?;
        }
        side.fetch("nothing", version, &fetch_all(Vec::new()))?;
    }
    side.fetch(
        "isolation level 7",
        12,
        &fetch(12, &topic, 0).with_isolation_level(7),
    )?;
    Ok(())
}

/// What producers wrote is what consumers read, byte by byte.
fn bytes(side: &mut Side) -> anyhow::Result<()> {
    let topic = side.topic("bytes", 1, &[])?;
    let producer = side.producer_id()?;
    let mut odd = Rec::new(1, "");
    odd.key = None;
    odd.headers = vec![(Some("h"), None), (Some("h"), Some("v"))];
    for batch in [
        Batch::of(&["plain"]),
        Batch::with(&[Rec::new(0, "x"), odd]),
        Batch::of(&["of a producer"]).by(producer, 0, 0),
        Batch::of(&["one", "two", "three"]).compressed(GZIP),
        Batch::of(&["with offsets and an epoch of its own"])
            .change(|batch| (batch.base_offset, batch.leader_epoch) = (99, 3)),
        Batch::of(&["before 1970"]).at(0),
    ] {
        side.ask("append", 9, &produce(9, &topic, batch.encode()))?;
    }
    side.fetch("all", 12, &fetch(12, &topic, 0))?;
    Ok(())
}

fn offsets(side: &mut Side) -> anyhow::Result<()> {
    let topic = filled(side, "places", 1)?;
    for offset in [-1, -2, i64::MIN, 0, 1, 2, 3, 4, 5, 6, 7, 1000, i64::MAX] {
        for version in [4, 12, 18] {
            side.fetch(format!("from {offset}"), version, &fetch(version, &topic, offset))?;
        }
    }
    side.ask(
        "delete to inside a batch",
        2,
        &delete_records(&topic.name, 0, 4, 30_000),
    )?;
    for offset in [0, 3, 4, 5, 6, 7] {
        side.fetch(
            format!("from {offset}, begins at 4"),
            12,
            &fetch(12, &topic, offset),
        )?;
    }
    side.ask("delete all", 2, &delete_records(&topic.name, 0, -1, 30_000))?;
    for offset in [0, 5, 6, 7] {
        side.fetch(format!("from {offset}, empty"), 12, &fetch(12, &topic, offset))?;
    }
    append(side, &topic, 0, Batch::of(&["anew"]).encode())?;
    side.fetch("what came then", 12, &fetch(12, &topic, 6))?;
    Ok(())
}

fn unknown(side: &mut Side) -> anyhow::Result<()> {
    let topic = filled(side, "there", 1)?;
    let unnamed = Topic {
        name: text(""),
        id: uuid::Uuid::nil(),
    };
    for version in [4, 7, 12, 13, 18] {
        for (what, topic, index) in [
            ("unknown topic", &nowhere(), 0),
            ("no name or id", &unnamed, 0),
            ("partition 1", &topic, 1),
            ("partition -1", &topic, -1),
        ] {
            let asked = fetch_topic(version, topic, vec![fetch_partition(index, 0)]);
            side.fetch(what, version, &fetch_all(vec![asked]))?;
        }
        let there = || fetch_topic(version, &topic, vec![fetch_partition(0, 0)]);
        let missing = || {
            fetch_topic(
                version,
                &nowhere(),
                vec![fetch_partition(0, 0), fetch_partition(1, 0)],
            )
        };
        side.fetch("one of two topics", version, &fetch_all(vec![missing(), there()]))?;
        side.fetch(
            "no partitions",
            version,
            &fetch_all(vec![fetch_topic(version, &topic, Vec::new())]),
        )?;
        // An error is told at once, not after what it would wait for.
        let patient = fetch_all(vec![missing()])
            .with_max_wait_ms(20_000)
            .with_min_bytes(1 << 20);
        side.fetch("a patient one", version, &patient)?;
    }
    Ok(())
}

fn epochs(side: &mut Side) -> anyhow::Result<()> {
    let topic = filled(side, "fetch-epochs", 1)?;
    for version in [9, 11, 12, 18] {
        for epoch in [-2, -1, 0, 1, 7, i32::MAX] {
            let partition = fetch_partition(0, 3).with_current_leader_epoch(epoch);
            let request = fetch_all(vec![fetch_topic(version, &topic, vec![partition])]);
            side.fetch(format!("current epoch {epoch}"), version, &request)?;
        }
    }
    for version in [12, 18] {
        for (epoch, offset) in [(-1, 3), (0, 3), (0, 6), (0, 9), (1, 3), (5, 6)] {
            let partition = fetch_partition(0, offset).with_last_fetched_epoch(epoch);
            let request = fetch_all(vec![fetch_topic(version, &topic, vec![partition])]);
            side.fetch(
                format!("fetched epoch {epoch} before {offset}"),
                version,
                &request,
            )?;
        }
    }
    Ok(())
}

fn limits(side: &mut Side) -> anyhow::Result<()> {
    let topic = filled(side, "limited", 2)?;
    let (first, second) = (
        Batch::of(&["a", "b"]).encode().len(),
        Batch::of(&["c"]).encode().len(),
    );
    let (first, second) = (i32::try_from(first)?, i32::try_from(second)?);
    let limits = [
        0,
        1,
        first - 1,
        first,
        first + 1,
        first + second - 1,
        first + second,
        1 << 20,
        -1,
        i32::MAX,
    ];
    for version in [4, 12] {
        for limit in limits {
            let partition = fetch_partition(0, 0).with_partition_max_bytes(limit);
            let request = fetch_all(vec![fetch_topic(version, &topic, vec![partition])]);
            side.fetch(format!("{limit} bytes of a partition"), version, &request)?;
            let request = fetch(version, &topic, 0).with_max_bytes(limit);
            side.fetch(format!("{limit} bytes in all"), version, &request)?;
        }
    }
    let partition = fetch_partition(0, 1).with_partition_max_bytes(1);
    let request = fetch_all(vec![fetch_topic(12, &topic, vec![partition])]);
    side.fetch("one byte from inside a batch", 12, &request)?;
    // As much as is worth an answer.
    for (what, min_bytes, wait) in [
        ("more than there is", 1 << 20, 50),
        ("nothing", 0, 20_000),
        ("less than nothing", -1, 20_000),
    ] {
        let request = fetch(12, &topic, 0)
            .with_min_bytes(min_bytes)
            .with_max_wait_ms(wait);
        side.fetch(format!("worth an answer: {what}"), 12, &request)?;
    }
    let request = fetch(12, &topic, 6).with_max_wait_ms(-1);
    side.fetch("no time at the end", 12, &request)?;
    // Which of several partitions comes first is the broker's to choose: together they keep to the limit.
    for limit in [0, first, first + second] {
        let asked = fetch_topic(12, &topic, vec![fetch_partition(0, 0), fetch_partition(1, 0)]);
        let request = fetch_all(vec![asked]).with_max_bytes(limit);
        side.ask_tidy(
            format!("{limit} bytes of two partitions"),
            12,
            &request,
            |answer| {
                let partitions = answer
                    .responses
                    .iter_mut()
                    .flat_map(|topic| &mut topic.partitions);
                let sizes =
                    partitions.map(|partition| partition.records.take().map_or(0, |records| records.len()));
                vec![("sizes".to_owned(), sizes.sum::<usize>().to_string())]
            },
        )?;
    }
    Ok(())
}

/// A request in a session, `topics` being what changes in it.
fn in_session(id: i32, epoch: i32, topics: Vec<FetchTopic>) -> FetchRequest {
    fetch_all(topics).with_session_id(id).with_session_epoch(epoch)
}

fn sessions(side: &mut Side) -> anyhow::Result<()> {
    for version in [7, 12, 13, 18] {
        let topic = side.topic(&format!("session-{version}"), 3, &[])?;
        let at = |places: &[(i32, i64)]| {
            let partitions = places
                .iter()
                .map(|(index, offset)| fetch_partition(*index, *offset));
            vec![fetch_topic(version, &topic, partitions.collect())]
        };
        append(side, &topic, 0, Batch::of(&["a", "b"]).encode())?;
        let id = side.fetch("opened", version, &in_session(0, 0, at(&[(0, 0), (1, 0)])))?;
        side.fetch("from where it was", version, &in_session(id, 1, Vec::new()))?;
        side.fetch("goes on", version, &in_session(id, 2, at(&[(0, 2)])))?;
        side.fetch("nothing new", version, &in_session(id, 3, Vec::new()))?;
        append(side, &topic, 1, Batch::of(&["c"]).encode())?;
        side.fetch("news of one", version, &in_session(id, 4, Vec::new()))?;
        side.fetch(
            "with another partition",
            version,
            &in_session(id, 5, at(&[(1, 1), (2, 0)])),
        )?;
        append(side, &topic, 2, Batch::of(&["d"]).encode())?;
        let mut forgotten = ForgottenTopic::default().with_partitions(vec![0, 2, 9]);
        if version >= 13 {
            forgotten.topic_id = topic.id;
        } else {
            forgotten.topic = TopicName(topic.name.clone());
        }
        let request = in_session(id, 6, Vec::new()).with_forgotten_topics_data(vec![forgotten]);
        side.fetch("without two", version, &request)?;
        append(side, &topic, 0, Batch::of(&["e"]).encode())?;
        append(side, &topic, 1, Batch::of(&["f"]).encode())?;
        side.fetch("news of the one left", version, &in_session(id, 7, Vec::new()))?;
        side.fetch(
            "an offset out of range",
            version,
            &in_session(id, 8, at(&[(1, 50)])),
        )?;
        side.fetch("out of range still", version, &in_session(id, 9, Vec::new()))?;
        side.fetch("back in range", version, &in_session(id, 10, at(&[(1, 2)])))?;
        side.ask("delete all", 2, &delete_records(&topic.name, 1, -1, 30_000))?;
        side.fetch(
            "the beginning has moved",
            version,
            &in_session(id, 11, Vec::new()),
        )?;
        side.fetch("closed", version, &in_session(id, -1, at(&[(1, 2)])))?;
        side.fetch("after its end", version, &in_session(id, 12, Vec::new()))?;
    }
    Ok(())
}

fn session_errors(side: &mut Side) -> anyhow::Result<()> {
    let topic = filled(side, "session-errors", 1)?;
    for version in [7, 12, 18] {
        let all = || vec![fetch_topic(version, &topic, vec![fetch_partition(0, 0)])];
        side.fetch(
            "no such session",
            version,
            &in_session(123_456_789, 1, Vec::new()),
        )?;
        side.fetch(
            "no such session, its end",
            version,
            &in_session(123_456_789, -1, all()),
        )?;
        side.fetch(
            "no such session, a new one",
            version,
            &in_session(123_456_789, 0, all()),
        )?;
        side.fetch("session 0 goes on", version, &in_session(0, 1, Vec::new()))?;
        let id = side.fetch("opened", version, &in_session(0, 0, all()))?;
        side.fetch("epoch too high", version, &in_session(id, 2, Vec::new()))?;
        side.fetch("the epoch it is at", version, &in_session(id, 1, Vec::new()))?;
        side.fetch("the same epoch again", version, &in_session(id, 1, Vec::new()))?;
        side.fetch("a negative epoch", version, &in_session(id, -2, Vec::new()))?;
        let new = side.fetch("opened over it", version, &in_session(id, 0, all()))?;
        side.fetch("the old one", version, &in_session(id, 2, Vec::new()))?;
        side.fetch("the new one", version, &in_session(new, 1, Vec::new()))?;
    }
    let all = |version| vec![fetch_topic(version, &topic, vec![fetch_partition(0, 0)])];
    let id = side.fetch("opened by name", 12, &in_session(0, 0, all(12)))?;
    side.fetch("goes on by id", 13, &in_session(id, 1, all(13)))?;
    side.fetch("goes on by id, nothing named", 13, &in_session(id, 1, Vec::new()))?;
    side.fetch("by name after that", 12, &in_session(id, 1, Vec::new()))?;
    let id = side.fetch("opened by id", 13, &in_session(0, 0, all(13)))?;
    side.fetch("goes on by name", 12, &in_session(id, 1, all(12)))?;
    for version in [7, 12, 18] {
        side.fetch("opened with nothing", version, &in_session(0, 0, Vec::new()))?;
    }
    Ok(())
}

/// Topics that are not there (yet) when a session begins.
fn session_topics(side: &mut Side) -> anyhow::Result<()> {
    let topic = filled(side, "session-topics", 1)?;
    for version in [7, 12, 13, 18] {
        let asked = vec![
            fetch_topic(version, &topic, vec![fetch_partition(0, 6)]),
            fetch_topic(version, &nowhere(), vec![fetch_partition(0, 0)]),
        ];
        let id = side.fetch("one is unknown", version, &in_session(0, 0, asked))?;
        side.fetch("unknown still", version, &in_session(id, 1, Vec::new()))?;
        let missing = vec![fetch_topic(version, &topic, vec![fetch_partition(5, 0)])];
        side.fetch(
            "with a partition that is not there",
            version,
            &in_session(id, 2, missing),
        )?;
        side.fetch("not there still", version, &in_session(id, 3, Vec::new()))?;
    }
    Ok(())
}
