use std::sync::Arc;

use coordinator::replica::StateMachine;
use kafka_wire::ResponseError;
use proptest::prelude::*;
use types::{FeatureLevel, FeatureLevels, LogOffset, Timestamp, TopicId};
use uuid::Uuid;

use crate::ApiError;
use crate::configs::Op;
use crate::state::{Alteration, ClusterState, Command, Growth, NewTopic, Output, TopicRecord, TopicRef};

const NOW: Timestamp = Timestamp(0);

fn id(id: u128) -> TopicId {
    TopicId(Uuid::from_u128(id))
}

fn new_topic(number: u128, name: &str, partitions: u32) -> NewTopic {
    NewTopic {
        id: id(number),
        name: name.into(),
        partitions,
        start: number as u64,
        configs: Vec::new(),
    }
}

fn create(topics: Vec<NewTopic>) -> Command {
    Command::CreateTopics {
        topics,
        validate_only: false,
    }
}

/// A state whose every command is a slot.
struct Log {
    state: ClusterState,
    slots: Vec<Vec<bytes::Bytes>>,
}

impl Log {
    fn new(shards: u32) -> Log {
        let mut log = Log {
            state: ClusterState::new(FeatureLevels::SUPPORTED).0,
            slots: Vec::new(),
        };
        log.run(&Command::Format {
            cluster_id: "cluster".into(),
            shards,
            feature_level: FeatureLevel::FIRST,
        });
        log
    }

    fn run(&mut self, command: &Command) -> Output {
        let judged = self.state.speculate(NOW, command).unwrap();
        let entries: Vec<_> = judged.entry.into_iter().collect();
        self.state.rollback().unwrap();
        self.state
            .apply(LogOffset(self.slots.len() as u64), &entries)
            .unwrap();
        self.slots.push(entries);
        judged.output
    }

    fn topics(&mut self, command: &Command) -> Vec<Result<Arc<TopicRecord>, ApiError>> {
        match self.run(command) {
            Output::Topics(topics) => topics,
            other => panic!("{other:?}"),
        }
    }

    fn snapshot(&mut self) -> bytes::Bytes {
        self.state.snapshot().unwrap().1
    }
}

fn error(result: &Result<Arc<TopicRecord>, ApiError>) -> ResponseError {
    result.as_ref().unwrap_err().error
}

#[test]
fn a_pending_topic_counts_until_it_is_rolled_back() {
    let mut state = ClusterState::new(FeatureLevels::SUPPORTED).0;
    let command = create(vec![new_topic(1, "t", 1)]);
    state.speculate(NOW, &command).unwrap();
    let Output::Topics(second) = state
        .speculate(NOW, &create(vec![new_topic(2, "t", 1)]))
        .unwrap()
        .output
    else {
        panic!()
    };
    assert_eq!(error(&second[0]), ResponseError::TopicAlreadyExists);
    state.rollback().unwrap();
    let Output::Topics(third) = state
        .speculate(NOW, &create(vec![new_topic(2, "t", 1)]))
        .unwrap()
        .output
    else {
        panic!()
    };
    assert!(third[0].is_ok());
}

#[test]
fn partitions_spread_evenly_over_shards() {
    let mut log = Log::new(3);
    log.run(&create(vec![new_topic(1, "a", 4), new_topic(2, "b", 5)]));
    let topics = log.topics(&Command::GrowTopics {
        topics: vec![Growth {
            name: "a".into(),
            count: 7,
            assignments: None,
            start: 2,
        }],
        validate_only: false,
    });
    let a = topics[0].as_ref().unwrap().partitions.clone();
    // A second growth shows what the other topic has: both together differ by one at most.
    let topics = log.topics(&Command::GrowTopics {
        topics: vec![Growth {
            name: "b".into(),
            count: 6,
            assignments: None,
            start: 0,
        }],
        validate_only: false,
    });
    let mut load = [0; 3];
    for shard in a.iter().chain(&topics[0].as_ref().unwrap().partitions) {
        load[shard.0 as usize] += 1;
    }
    load.sort_unstable();
    assert_eq!(load, [4, 4, 5]);
}

#[test]
fn the_name_of_a_deleted_topic_is_free_and_its_id_is_not() {
    let mut log = Log::new(1);
    log.run(&create(vec![new_topic(1, "t", 1)]));
    assert!(log.topics(&Command::DeleteTopics(vec![TopicRef::Name("t".into())]))[0].is_ok());
    assert_eq!(
        error(&log.topics(&Command::DeleteTopics(vec![TopicRef::Id(id(1))]))[0]),
        ResponseError::UnknownTopicId
    );
    assert!(log.topics(&create(vec![new_topic(2, "t", 1)]))[0].is_ok());
    // The end of the first deletion does not touch the second topic.
    log.run(&Command::TopicDeleted(id(1)));
    log.run(&Command::TopicDeleted(id(2)));
    assert_eq!(
        error(&log.topics(&create(vec![new_topic(3, "t", 1)]))[0]),
        ResponseError::TopicAlreadyExists
    );
}

#[test]
fn shards_are_added_and_never_taken_away_and_groups_stay() {
    let mut log = Log::new(3);
    let (state, metadata) = ClusterState::new(FeatureLevels::SUPPORTED);
    log.state = state;
    log.slots.clear();
    for (shards, expected) in [(3, 3), (5, 5), (2, 5)] {
        log.run(&Command::Format {
            cluster_id: format!("c{shards}"),
            shards,
            feature_level: FeatureLevel::FIRST,
        });
        let known = metadata.borrow().clone();
        assert_eq!(
            (known.cluster_id.as_str(), known.shards, known.group_shards),
            ("c3", expected, 3)
        );
    }
}

#[test]
fn producer_ids_are_given_out_once() {
    let mut log = Log::new(1);
    let mut next = 0;
    for count in [1000, 1000, 5] {
        let Output::ProducerIds(first) = log.run(&Command::AllocateProducerIds { count }) else {
            panic!()
        };
        assert_eq!(first, next);
        next += i64::from(count);
    }
}

#[test]
fn what_is_only_validated_leaves_no_trace() {
    let mut log = Log::new(1);
    let topics = vec![new_topic(1, "t", 1), new_topic(2, "t", 1)];
    let results = log.topics(&Command::CreateTopics {
        topics,
        validate_only: true,
    });
    assert!(results[0].is_ok());
    assert_eq!(error(&results[1]), ResponseError::TopicAlreadyExists);
    assert!(log.slots.last().unwrap().is_empty());
    assert!(log.topics(&create(vec![new_topic(1, "t", 1)]))[0].is_ok());
}

#[test]
fn damaged_entries_are_refused() {
    let mut state = ClusterState::new(FeatureLevels::SUPPORTED).0;
    for bytes in [&b"\x00\x09"[..], b"\x07", b""] {
        assert!(
            state
                .apply(LogOffset(0), &[bytes::Bytes::from_static(bytes)])
                .is_err()
        );
        assert_eq!(state.applied(), None);
    }
}

fn command() -> impl Strategy<Value = Command> {
    let name = || "[ab]".prop_map(|name| name);
    prop_oneof![
        (0..9u128, name(), 1..5u32).prop_map(|(id, name, n)| create(vec![new_topic(id, &name, n)])),
        (name(), 0..9i32).prop_map(|(name, count)| Command::GrowTopics {
            topics: vec![Growth {
                name,
                count,
                assignments: None,
                start: 0
            }],
            validate_only: false,
        }),
        (0..9u128, 0..9u32).prop_map(|(topic, ready)| Command::TopicReady { id: id(topic), ready }),
        name().prop_map(|name| Command::DeleteTopics(vec![TopicRef::Name(name)])),
        (0..9u128).prop_map(|topic| Command::TopicDeleted(id(topic))),
        (name(), 1..9i64).prop_map(|(name, ms)| Command::AlterConfigs {
            topics: vec![(
                name,
                Alteration::Ops(vec![("retention.ms".into(), Op::Set(ms.to_string()))])
            )],
            validate_only: false,
        }),
        Just(Command::AllocateProducerIds { count: 10 }),
    ]
}

proptest! {
    #[test]
    fn replay_and_snapshot_come_to_the_same(commands in prop::collection::vec(command(), 0..40), cut in 0.0..1.0f64) {
        let mut log = Log::new(3);
        for command in &commands {
            log.run(command);
        }
        let expected = log.snapshot();
        let cut = ((log.slots.len() as f64 * cut) as usize).max(1);
        let mut half = ClusterState::new(FeatureLevels::SUPPORTED).0;
        for (offset, entries) in log.slots[..cut].iter().enumerate() {
            half.apply(LogOffset(offset as u64), entries).unwrap();
        }
        let (offset, snapshot) = half.snapshot().unwrap();
        let mut rest = ClusterState::new(FeatureLevels::SUPPORTED).0;
        rest.restore(offset, snapshot.into()).unwrap();
        // Slots that are in the snapshot do nothing.
        for (offset, entries) in log.slots.iter().enumerate() {
            rest.apply(LogOffset(offset as u64), entries).unwrap();
        }
        prop_assert_eq!(rest.snapshot().unwrap().1, expected);
    }
}
