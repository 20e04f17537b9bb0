//! Nodes that are sent what has changed have what the controller has, and are sent little.

use std::sync::Arc;
use std::time::Duration;

use env::{Env, Instant};
use kafka_wire::flex::{Decode, Encode};
use proptest::prelude::*;
use types::{Epoch, ShardId, TopicId};
use uuid::Uuid;

use super::{node, owner};
use crate::controller::{Controller, Grace};
use crate::entry::TopicRecord;
use crate::image::{Config, ImageRecord, MetadataImage};
use crate::protocol::{HeartbeatRequest, HeartbeatResponse};
use crate::state::Metadata;

/// A controller, and what its log says.
struct World {
    controller: Controller,
    metadata: Metadata,
    now: Instant,
    epoch: u64,
}

impl World {
    fn new() -> World {
        let now = Env::simulated(1).instant();
        let mut world = World {
            controller: controller(1, now),
            metadata: Metadata {
                cluster_id: "c".into(),
                shards: 2,
                group_shards: 2,
                ..Metadata::default()
            },
            now,
            epoch: 1,
        };
        world.commit();
        world
    }

    fn commit(&mut self) {
        self.now += Duration::from_millis(10);
        let metadata = Arc::new(self.metadata.clone());
        self.controller.set_metadata(metadata, self.now);
    }

    fn put(&mut self, n: u128, ready: u32, deleting: bool, value: &str) {
        let topic = TopicRecord {
            id: TopicId(Uuid::from_u128(n)),
            name: format!("topic-{}", n ^ 0x5a),
            partitions: vec![ShardId(0), ShardId(1)],
            ready,
            configs: vec![Config {
                name: "retention.ms".into(),
                value: value.into(),
            }],
            deleting,
        };
        self.metadata.topics.insert(topic.id, Arc::new(topic));
    }

    /// The next controller; what it is told stays the same.
    fn fail_over(&mut self) {
        self.epoch += 1;
        self.controller = controller(self.epoch, self.now);
        self.commit();
    }
}

fn controller(epoch: u64, now: Instant) -> Controller {
    let session = Duration::from_secs(2);
    Controller::new(&owner(9), Epoch(epoch), session, Grace::default(), 1, now)
}

/// A node.
struct Reader {
    said: HeartbeatRequest,
    image: MetadataImage,
    wholes: usize,
    changes: usize,
    /// Of the answers to it.
    bytes: usize,
}

fn nothing() -> MetadataImage {
    let mut world = World::new();
    let said = node(0, "a");
    world.controller.heartbeat(&said, world.now).unwrap();
    let record = world.controller.image().unwrap();
    MetadataImage::new(ImageRecord {
        version: 0,
        controller_epoch: 0,
        ..record.as_ref().clone()
    })
}

impl Reader {
    fn new(id: i32, reads_changes: Option<bool>) -> Reader {
        let mut said = node(id, "a");
        said.reads_changes = reads_changes;
        Reader {
            said,
            image: nothing(),
            wholes: 0,
            changes: 0,
            bytes: 0,
        }
    }

    /// One heartbeat. Then it has what the controller has.
    fn poll(&mut self, world: &mut World) {
        let record = self.image.record();
        (self.said.controller_epoch, self.said.version) = (record.controller_epoch, record.version);
        self.said.sequence += 1;
        world.controller.heartbeat(&self.said, world.now).unwrap();
        let answer = world.controller.answer(&self.said, true).unwrap().to_bytes();
        self.bytes += answer.len();
        let answer = HeartbeatResponse::from_bytes(answer).unwrap();
        (self.said.leading, self.said.following) = (answer.lead, answer.follow);
        assert!(answer.image.is_none() || answer.changes.is_none());
        if let Some(image) = answer.image {
            self.image = MetadataImage::new(image);
            self.wholes += 1;
        }
        if let Some(changes) = answer.changes {
            assert_eq!(self.said.reads_changes, Some(true));
            self.image = self.image.changed(&changes).expect("they are for what it has");
            self.changes += 1;
        }
        let published = world.controller.image().unwrap();
        assert_eq!(self.image.record(), published.as_ref());
        for topic in &published.topics {
            assert_eq!(self.image.topic(&topic.name), Some(topic.as_ref()));
            assert_eq!(self.image.topic_by_id(topic.id), Some(topic.as_ref()));
        }
        assert_eq!(self.image.topic("nobody's"), None);
    }
}

#[derive(Clone, Debug)]
enum Op {
    Put(u128, u32, bool, u8),
    Remove(u128),
    Poll(usize),
    Drain(usize),
    Restart(usize),
    FailOver,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..12u128, 0..3u32, prop::bool::weighted(0.2), 0..3u8)
            .prop_map(|(n, ready, deleting, value)| Op::Put(n, ready, deleting, value)),
        2 => (0..12u128).prop_map(Op::Remove),
        6 => (0..4usize).prop_map(Op::Poll),
        1 => (0..4usize).prop_map(Op::Drain),
        1 => (0..4usize).prop_map(Op::Restart),
        1 => Just(Op::FailOver),
    ]
}

proptest! {
    #[test]
    fn whoever_asks_whenever_has_what_the_controller_has(ops in prop::collection::vec(op(), 1..120)) {
        let mut world = World::new();
        let mut readers: Vec<Reader> = (0..4).map(|id| Reader::new(id, (id > 0).then_some(true))).collect();
        for op in ops {
            match op {
                Op::Put(n, ready, deleting, value) => world.put(n, ready, deleting, &value.to_string()),
                Op::Remove(n) => drop(world.metadata.topics.remove(&TopicId(Uuid::from_u128(n)))),
                Op::Poll(id) => readers[id].poll(&mut world),
                Op::Drain(id) => readers[id].said.draining ^= true,
                Op::Restart(id) => readers[id].image = nothing(),
                Op::FailOver => world.fail_over(),
            }
            world.commit();
        }
        for reader in &mut readers {
            reader.poll(&mut world);
        }
        prop_assert_eq!(readers[0].changes, 0, "the first release does not read them");
    }
}

#[test]
fn who_is_too_far_behind_gets_all_of_it() {
    let mut world = World::new();
    let mut reader = Reader::new(1, Some(true));
    reader.poll(&mut world);
    world.put(1, 1, false, "0");
    world.commit();
    reader.poll(&mut world);
    assert_eq!((reader.wholes, reader.changes), (1, 1));
    for n in 0..6_000 {
        world.put(1, 1, false, &n.to_string());
        world.commit();
    }
    reader.poll(&mut world);
    assert_eq!((reader.wholes, reader.changes), (2, 1));
    world.put(2, 1, false, "0");
    world.commit();
    reader.poll(&mut world);
    assert_eq!((reader.wholes, reader.changes), (2, 2));
}

#[test]
fn changes_that_are_for_another_picture_change_nothing() {
    let mut world = World::new();
    let mut reader = Reader::new(1, Some(true));
    reader.poll(&mut world);
    world.put(1, 1, false, "0");
    world.commit();
    reader.said.version = reader.image.record().version;
    reader.said.controller_epoch = 1;
    let answer = world.controller.answer(&reader.said, true).unwrap();
    let changes = answer.changes.unwrap();
    assert!(reader.image.changed(&changes).is_some());
    let mut wrong = vec![changes.clone(), changes.clone(), changes.clone(), changes.clone()];
    wrong[0].base += 1;
    wrong[1].picture.controller_epoch += 1;
    wrong[2].topics += 1;
    wrong[3].picture.topics.clear();
    for changes in wrong {
        assert!(reader.image.changed(&changes).is_none(), "{changes:?}");
    }
}

/// `--nocapture` shows bytes and, with optimisation, how long it takes on both sides.
#[test]
fn a_creation_costs_a_node_what_it_says_and_not_what_there_is() {
    let mut world = World::new();
    for n in 0..5_000 {
        world.put(n, 2, false, "604800000");
    }
    world.commit();
    let (mut reader, mut old) = (Reader::new(1, Some(true)), Reader::new(2, None));
    reader.poll(&mut world);
    old.poll(&mut world);
    reader.poll(&mut world);
    let first = std::mem::take(&mut reader.bytes);
    let (mut publish, mut send, mut take) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    for n in 5_000..6_000 {
        world.put(n, 2, false, "604800000");
        publish += timed(|| world.commit()).1;
        let said = asking(&reader);
        let (answer, took) = timed(|| world.controller.answer(&said, true).unwrap().to_bytes());
        send += took;
        reader.bytes += answer.len();
        let (image, took) = timed(|| {
            let answer = HeartbeatResponse::from_bytes(answer).unwrap();
            reader.image.changed(&answer.changes.unwrap()).unwrap()
        });
        take += took;
        reader.image = image;
    }
    old.bytes = 0;
    old.poll(&mut world);
    let whole = old.bytes;
    let mut said = asking(&old);
    said.version = 0;
    let (answer, send_whole) = timed(|| world.controller.answer(&said, true).unwrap().to_bytes());
    let (_, take_whole) = timed(|| {
        let answer = HeartbeatResponse::from_bytes(answer).unwrap();
        MetadataImage::new(answer.image.unwrap())
    });
    eprintln!(
        "1,000 creations at 5,000 topics: {} bytes to a node, about {} bytes without changes; each {:?} to publish, \
         {:?} to send (whole {send_whole:?}), {:?} to take (whole {take_whole:?})",
        reader.bytes,
        (first + whole) / 2 * 1_000,
        publish / 1_000,
        send / 1_000,
        take / 1_000,
    );
    assert!(reader.bytes < 2 * whole, "{} of {whole}", reader.bytes);
    reader.poll(&mut world);
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let env = Env::production();
    let began = env.instant();
    let done = work();
    (done, env.instant() - began)
}

/// What the node says next.
fn asking(reader: &Reader) -> HeartbeatRequest {
    let record = reader.image.record();
    HeartbeatRequest {
        controller_epoch: record.controller_epoch,
        version: record.version,
        ..reader.said.clone()
    }
}
