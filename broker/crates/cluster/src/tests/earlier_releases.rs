//! What an earlier release has written to the cluster log. `fixtures/level-1.txt` is of the first one: a line for every
//! entry, and the snapshot of them all in the last.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use coordinator::replica::StateMachine;
use types::{FeatureLevel, FeatureLevels, LogOffset, Timestamp, TopicId};
use uuid::Uuid;

use crate::configs::Op;
use crate::state::{Alteration, ClusterState, Command, Growth, Metadata, NewTopic, TopicRef};

fn fixture() -> PathBuf {
    let root = std::env::var("CARGO_MANIFEST_DIR").expect("cargo runs the tests");
    Path::new(&root).join("fixtures/level-1.txt")
}

/// Commands that come to a change of every kind.
fn history() -> Vec<Command> {
    let id = |n| TopicId(Uuid::from_u128(n));
    let topic = |n: u128, partitions, configs: &[(&str, &str)]| NewTopic {
        id: id(n),
        name: format!("topic-{n}"),
        partitions,
        start: n as u64,
        configs: configs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), Some((*value).to_owned())))
            .collect(),
    };
    let format = |shards| Command::Format {
        cluster_id: "MkU3OEVBNTcwNTJENDM2Qg".to_owned(),
        shards,
        feature_level: FeatureLevel::FIRST,
    };
    vec![
        format(3),
        format(4),
        Command::CreateTopics {
            topics: vec![
                topic(1, 5, &[("retention.ms", "1000")]),
                topic(2, 1, &[]),
                topic(3, 2, &[]),
            ],
            validate_only: false,
        },
        Command::TopicReady { id: id(1), ready: 5 },
        Command::TopicReady { id: id(2), ready: 1 },
        Command::AlterConfigs {
            topics: vec![(
                "topic-2".to_owned(),
                Alteration::Ops(vec![("max.message.bytes".to_owned(), Op::Set("2000".to_owned()))]),
            )],
            validate_only: false,
        },
        Command::GrowTopics {
            topics: vec![Growth {
                name: "topic-2".to_owned(),
                count: 3,
                assignments: None,
                start: 7,
            }],
            validate_only: false,
        },
        Command::DeleteTopics(vec![TopicRef::Id(id(1)), TopicRef::Name("topic-3".to_owned())]),
        Command::TopicDeleted(id(3)),
        Command::AllocateProducerIds { count: 1000 },
    ]
}

fn hex(bytes: &Bytes) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Bytes {
    let digits = (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap());
    digits.collect()
}

/// Entries and snapshot of [`history`].
fn write() -> String {
    let mut state = ClusterState::new(FeatureLevels::SUPPORTED).0;
    let mut lines = Vec::new();
    for (offset, command) in (0..).zip(history()) {
        let entry = state.speculate(Timestamp(0), &command).unwrap().entry.unwrap();
        state.rollback().unwrap();
        state
            .apply(LogOffset(offset), std::slice::from_ref(&entry))
            .unwrap();
        lines.push(hex(&entry) + "\n");
    }
    lines.push(hex(&state.snapshot().unwrap().1) + "\n");
    lines.concat()
}

#[test]
#[ignore = "makes the fixture anew"]
fn make_the_fixture() {
    std::fs::create_dir_all(fixture().parent().unwrap()).unwrap();
    std::fs::write(fixture(), write()).unwrap();
}

#[test]
fn the_first_level_is_written_as_ever() {
    assert_eq!(write(), std::fs::read_to_string(fixture()).unwrap());
}

fn read() -> (Metadata, Metadata) {
    let text = std::fs::read_to_string(fixture()).unwrap();
    let lines: Vec<Bytes> = text.lines().map(bytes).collect();
    let (snapshot, entries) = lines.split_last().unwrap();
    let (mut state, replayed) = ClusterState::new(FeatureLevels::SUPPORTED);
    for (offset, entry) in (0..).zip(entries) {
        state
            .apply(LogOffset(offset), std::slice::from_ref(entry))
            .unwrap();
    }
    let (mut state, restored) = ClusterState::new(FeatureLevels::SUPPORTED);
    state
        .restore(LogOffset(entries.len() as u64), snapshot.clone().into())
        .unwrap();
    (
        replayed.borrow().as_ref().clone(),
        restored.borrow().as_ref().clone(),
    )
}

#[test]
fn a_log_of_the_first_release_is_read() {
    let (replayed, restored) = read();
    assert_eq!(replayed, restored);
    assert_eq!(replayed.cluster_id, "MkU3OEVBNTcwNTJENDM2Qg");
    assert_eq!((replayed.shards, replayed.group_shards), (4, 3));
    assert_eq!(replayed.feature_level, FeatureLevel::FIRST);
    assert_eq!(replayed.next_producer_id, 1000);
    assert_eq!(replayed.names.keys().collect::<Vec<_>>(), ["topic-2"]);
    let topic = replayed.topic("topic-2").unwrap();
    assert_eq!((topic.partitions.len(), topic.ready), (3, 1));
    assert_eq!(topic.configs[0].value, "2000");
    assert_eq!(replayed.topics.len(), 2, "one is still being deleted");
}
