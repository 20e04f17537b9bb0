use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use env::{Env, Instant};
use kafka_wire::ResponseError;
use proptest::prelude::*;
use types::{Epoch, NodeId, ShardId};
use uuid::Uuid;

use super::{node, owner};
use crate::controller::{Controller, Grace};
use crate::image::ImageRecord;
use crate::protocol::HeartbeatRequest;
use crate::state::Metadata;

const SESSION: Duration = Duration::from_secs(2);

/// A controller and nodes that do as they are told.
struct Lab {
    controller: Controller,
    now: Instant,
    nodes: BTreeMap<i32, HeartbeatRequest>,
}

impl Lab {
    fn new(shards: u32, grace: Grace) -> Lab {
        let now = Env::simulated(1).instant();
        let mut controller = Controller::new(&owner(9), Epoch(4), SESSION, grace, 1, now);
        let metadata = Metadata {
            cluster_id: "c".into(),
            shards,
            group_shards: shards,
            ..Metadata::default()
        };
        controller.set_metadata(Arc::new(metadata), now);
        Lab {
            controller,
            now,
            nodes: BTreeMap::new(),
        }
    }

    fn add(&mut self, said: HeartbeatRequest) {
        self.nodes.insert(said.node.0, said);
    }

    /// One heartbeat of every node, after a tenth of a second.
    fn round(&mut self) {
        self.now += Duration::from_millis(100);
        self.controller.tick(self.now);
        for said in self.nodes.values_mut() {
            self.controller.heartbeat(said, self.now).unwrap();
            if let Some(answer) = self.controller.answer(said, true) {
                said.leading = answer.lead;
                said.following = answer.follow;
                if let Some(image) = answer.image {
                    (said.controller_epoch, said.version) = (image.controller_epoch, image.version);
                }
            }
        }
    }

    fn rounds(&mut self, rounds: usize) {
        for _ in 0..rounds {
            self.round();
        }
    }

    fn image(&self) -> Arc<ImageRecord> {
        self.controller.image().expect("published")
    }

    fn leaders(&self) -> Vec<i32> {
        self.image().shards.iter().map(|shard| shard.leader.0).collect()
    }

    /// Where shards are led, in the order of the names.
    fn zones(&self) -> Vec<String> {
        let leaders = self.leaders().into_iter();
        let mut zones: Vec<String> = leaders.map(|leader| self.nodes[&leader].zone.clone()).collect();
        zones.sort_unstable();
        zones
    }

    /// Shards that are led and followed in one zone, or not followed at all.
    fn in_one_zone(&self) -> usize {
        let image = self.image();
        let zone = |address: &str| {
            let node = self.nodes.values().find(|node| node.internal == address);
            node.map(|node| node.zone.clone())
        };
        let near = |shard: &&crate::image::Shard| {
            shard.follower.is_empty() || zone(&shard.follower) == zone(&shard.address)
        };
        image.shards.iter().filter(near).count()
    }
}

#[test]
fn shards_spread_over_the_zones_again_after_a_failure() {
    let mut lab = Lab::new(3, Grace::default());
    for (id, zone) in [(0, "a"), (1, "a"), (2, "b"), (3, "c")] {
        lab.add(node(id, zone));
    }
    lab.rounds(20);
    assert_eq!(
        (lab.zones(), lab.in_one_zone()),
        (vec!["a".into(), "b".into(), "c".into()], 0)
    );
    let gone = [2, 3].map(|id| lab.nodes.remove(&id).unwrap());
    lab.rounds(40);
    assert_eq!((lab.zones(), lab.in_one_zone()), (vec!["a".into(); 3], 3));
    for (number, mut said) in (100..).zip(gone) {
        // Another life of it.
        (said.incarnation, said.leading, said.following) = (Uuid::from_u128(number), vec![], vec![]);
        lab.add(said);
        lab.rounds(30);
    }
    assert_eq!(
        (lab.zones(), lab.in_one_zone()),
        (vec!["a".into(), "b".into(), "c".into()], 0)
    );
    let image = lab.image();
    lab.rounds(30);
    assert_eq!(lab.image(), image, "and there they stay");
}

#[test]
fn shards_spread_over_zones_and_every_one_has_one_leader() {
    let mut lab = Lab::new(3, Grace::default());
    for (id, zone) in [(0, "a"), (1, "a"), (2, "b"), (3, "c")] {
        lab.add(node(id, zone));
    }
    lab.rounds(5);
    assert_eq!(lab.zones(), ["a", "b", "c"]);
    for (id, said) in &lab.nodes {
        let own: Vec<u32> = (0..3)
            .filter(|shard| lab.leaders()[*shard as usize] == *id)
            .collect();
        assert_eq!(said.leading.iter().map(|shard| shard.0).collect::<Vec<_>>(), own);
    }
    let address = &lab.image().shards[0].address;
    assert_eq!(*address, format!("node-{}:9190", lab.leaders()[0]));
}

#[test]
fn nothing_changes_while_nothing_changes() {
    let mut lab = Lab::new(3, Grace::default());
    lab.add(node(0, "a"));
    lab.add(node(1, "b"));
    lab.rounds(5);
    let (image, changes) = (lab.image(), lab.controller.changes());
    lab.rounds(50);
    assert_eq!(lab.image(), image);
    assert_eq!(lab.controller.changes(), changes, "nobody is woken");
    assert!(lab.controller.everybody_knows());
    let said = lab.nodes[&0].clone();
    assert_eq!(lab.controller.answer(&said, false), None, "no news, no answer");
}

#[test]
fn a_silent_node_is_gone_and_its_shards_move_alone() {
    let mut lab = Lab::new(6, Grace::default());
    for id in 0..3 {
        lab.add(node(id, "a"));
    }
    lab.rounds(5);
    let before = lab.leaders();
    lab.nodes.remove(&1);
    lab.rounds(25);
    let after = lab.leaders();
    assert_eq!(lab.image().brokers.len(), 2);
    for (before, after) in before.iter().zip(&after) {
        assert!(
            *after != 1 && (before == after || *before == 1),
            "{before} -> {after}"
        );
    }
}

#[test]
fn a_new_controller_listens_first_and_moves_nothing() {
    let grace = Grace {
        longest: Duration::from_secs(2),
        awaited: BTreeSet::new(),
    };
    let mut lab = Lab::new(2, grace);
    let mut first = node(0, "a");
    first.leading = vec![ShardId(1)];
    first.controller_epoch = 3;
    lab.add(first);
    lab.rounds(5);
    assert_eq!(lab.controller.image(), None);
    assert_eq!(lab.nodes[&0].leading, [ShardId(1)], "it keeps what it has");
    let mut second = node(1, "b");
    second.leading = vec![ShardId(0)];
    lab.add(second);
    lab.rounds(20);
    assert_eq!(lab.leaders(), [1, 0]);
    assert_eq!(lab.image().brokers.len(), 2);
}

#[test]
fn the_grace_ends_when_all_are_back() {
    let awaited = ["node-0:9190", "node-1:9190"].map(str::to_owned).into();
    let mut lab = Lab::new(
        2,
        Grace {
            longest: Duration::from_secs(3600),
            awaited,
        },
    );
    lab.add(node(0, "a"));
    lab.rounds(3);
    assert_eq!(lab.controller.image(), None);
    lab.add(node(1, "b"));
    lab.rounds(3);
    assert_eq!(lab.image().brokers.len(), 2);
}

#[test]
fn a_shard_that_the_dead_controller_led_goes_to_who_followed_it() {
    let mut lab = Lab::new(1, Grace::default());
    for id in [0, 1, 2] {
        let mut said = node(id, "a");
        said.broker = id == 2;
        lab.add(said);
        lab.rounds(5);
    }
    let before = ImageRecord {
        controller: NodeId(0),
        controller_address: "node-0:9190".into(),
        ..lab.image().as_ref().clone()
    };
    let shard = &before.shards[0];
    assert_eq!(
        (shard.leader, shard.follower.as_str()),
        (NodeId(0), "node-1:9190")
    );
    let awaited = crate::service::awaited(&before);
    let all = ["node-1:9190", "node-2:9190"].map(str::to_owned);
    assert_eq!(awaited, all.into());

    // The next controller hears from another coordinator first.
    let grace = Grace {
        longest: Duration::from_secs(2),
        awaited,
    };
    let mut next = Lab::new(1, grace);
    let nodes = std::mem::take(&mut lab.nodes);
    for id in [2, 1] {
        next.add(nodes[&id].clone());
        next.rounds(3);
    }
    assert_eq!(next.leaders(), [1]);
}

#[test]
fn one_node_id_is_one_process() {
    let mut lab = Lab::new(1, Grace::default());
    lab.add(node(0, "a"));
    lab.rounds(3);
    let mut other = node(0, "a");
    other.incarnation = Uuid::from_u128(99);
    other.internal = "elsewhere:9190".to_owned();
    let now = lab.now;
    assert_eq!(
        lab.controller.heartbeat(&other, now),
        Err(ResponseError::DuplicateBrokerRegistration)
    );
    // The next life of a process has its address, and need not wait for the session to end.
    let mut next = node(0, "a");
    next.incarnation = Uuid::from_u128(99);
    assert_eq!(lab.controller.heartbeat(&next, now), Ok(()));
    let former = lab.nodes[&0].clone();
    assert_eq!(
        lab.controller.heartbeat(&former, now),
        Err(ResponseError::DuplicateBrokerRegistration)
    );
    // Silence frees the id.
    let later = now + SESSION;
    assert_eq!(lab.controller.heartbeat(&other, later), Ok(()));
}

#[test]
fn a_node_that_leaves_is_forgotten_at_once() {
    let mut lab = Lab::new(2, Grace::default());
    lab.add(node(0, "a"));
    lab.add(node(1, "a"));
    lab.rounds(5);
    let mut leaves = lab.nodes.remove(&1).unwrap();
    leaves.leaving = true;
    lab.controller.heartbeat(&leaves, lab.now).unwrap();
    assert_eq!(lab.leaders(), [0, 0]);
    assert_eq!(lab.image().brokers.len(), 1);
}

#[test]
fn a_draining_coordinator_gives_up_before_the_next_one_starts() {
    let mut lab = Lab::new(2, Grace::default());
    lab.add(node(0, "a"));
    lab.add(node(1, "b"));
    lab.rounds(5);
    let moving =
        ShardId(u32::try_from(lab.leaders().iter().position(|leader| *leader == 1).unwrap()).unwrap());
    lab.nodes.get_mut(&1).unwrap().draining = true;
    let mut given_up = false;
    for _ in 0..10 {
        lab.round();
        let holds = lab.nodes[&1].leading.contains(&moving);
        let takes = lab.nodes[&0].leading.contains(&moving);
        assert!(!(holds && takes), "two lead at once");
        given_up |= !holds;
        assert!(given_up || !takes);
    }
    assert_eq!(lab.leaders(), [0, 0]);
    assert!(
        lab.image()
            .brokers
            .iter()
            .any(|broker| broker.id.0 == 1 && broker.draining)
    );
}

/// Nodes that do not get their followers up to date.
fn keep_cold(lab: &mut Lab) {
    for said in lab.nodes.values_mut() {
        said.following.clear();
    }
}

#[test]
fn every_shard_is_followed_elsewhere_and_goes_there_when_its_leader_dies() {
    let mut lab = Lab::new(3, Grace::default());
    for (id, zone) in [(0, "a"), (1, "b"), (2, "c")] {
        lab.add(node(id, zone));
    }
    lab.rounds(10);
    let before = lab.image();
    for shard in &before.shards {
        assert!(
            !shard.follower.is_empty() && shard.follower != shard.address,
            "{shard:?}"
        );
    }
    let dead = before.shards[1].leader.0;
    lab.nodes.remove(&dead);
    lab.rounds(21);
    let after = lab.image();
    assert_eq!(after.shards[1].address, before.shards[1].follower);
    lab.rounds(10);
    for shard in &lab.image().shards {
        assert!(
            !shard.follower.is_empty() && shard.follower != shard.address,
            "{shard:?}"
        );
    }
}

#[test]
fn a_shard_moves_only_to_who_has_caught_up() {
    let mut lab = Lab::new(2, Grace::default());
    lab.add(node(0, "a"));
    lab.rounds(5);
    lab.add(node(1, "b"));
    for _ in 0..100 {
        lab.round();
        keep_cold(&mut lab);
    }
    assert_eq!(lab.leaders(), [0, 0]);
    assert!(lab.image().shards.iter().all(|shard| shard.follower.is_empty()));
    lab.rounds(10);
    let mut leaders = lab.leaders();
    leaders.sort_unstable();
    assert_eq!(leaders, [0, 1]);
}

#[test]
fn who_wants_to_leave_waits_for_the_next_leader_but_not_for_ever() {
    let mut lab = Lab::new(1, Grace::default());
    lab.add(node(0, "a"));
    lab.rounds(5);
    lab.add(node(1, "b"));
    lab.round();
    keep_cold(&mut lab);
    lab.nodes.get_mut(&0).unwrap().draining = true;
    let mut rounds = 0;
    while lab.leaders() == [0] {
        lab.round();
        keep_cold(&mut lab);
        rounds += 1;
        assert!(rounds < 100);
    }
    assert!(rounds > 30, "{rounds}");
}

#[test]
fn a_shard_that_does_not_open_goes_to_another_node() {
    let mut lab = Lab::new(1, Grace::default());
    lab.add(node(0, "a"));
    lab.add(node(1, "b"));
    lab.rounds(10);
    let leader = lab.leaders()[0];
    lab.nodes.get_mut(&leader).unwrap().failing = vec![ShardId(0)];
    lab.rounds(10);
    assert_eq!(lab.leaders(), [1 - leader]);
    // Nobody can: then it stays where it is.
    lab.nodes.get_mut(&(1 - leader)).unwrap().failing = vec![ShardId(0)];
    lab.rounds(10);
    assert_eq!(lab.leaders(), [1 - leader]);
}

#[test]
fn orders_are_given_to_the_newest_heartbeat() {
    let mut lab = Lab::new(1, Grace::default());
    let mut said = node(0, "a");
    lab.controller.heartbeat(&said, lab.now).unwrap();
    let held = said.clone();
    said.sequence = 1;
    lab.controller.heartbeat(&said, lab.now).unwrap();
    // Nobody may be there any more to take the answer.
    lab.controller.answer(&held, true);
    let answer = lab.controller.answer(&said, false).unwrap();
    assert_eq!(answer.lead, [ShardId(0)]);
    let image = answer.image.unwrap();
    (said.controller_epoch, said.version) = (image.controller_epoch, image.version);
    said.sequence = 2;
    lab.controller.heartbeat(&said, lab.now).unwrap();
    assert_eq!(lab.controller.answer(&said, false), None, "it was told");
}

#[test]
fn a_heartbeat_that_was_overtaken_changes_nothing() {
    let mut lab = Lab::new(1, Grace::default());
    let mut said = node(0, "a");
    lab.controller.heartbeat(&said, lab.now).unwrap();
    let mut held = said.clone();
    (held.failing, held.draining) = (vec![ShardId(0)], true);
    held.sequence = 1;
    said.sequence = 2;
    lab.controller.heartbeat(&said, lab.now).unwrap();
    let before = (lab.image(), lab.controller.changes());
    lab.now += SESSION / 2;
    lab.controller.heartbeat(&held, lab.now).unwrap();
    assert_eq!((lab.image(), lab.controller.changes()), before);
    // It shows that the node lives, all the same.
    lab.now += SESSION / 2;
    lab.controller.tick(lab.now);
    assert_eq!(lab.image(), before.0);
}

#[test]
fn a_node_whose_connection_ends_must_come_back_soon() {
    let mut lab = Lab::new(2, Grace::default());
    lab.add(node(0, "a"));
    lab.add(node(1, "b"));
    lab.rounds(10);
    let brokers = |lab: &Lab| lab.image().brokers.len();
    let (quick, killed) = (lab.nodes[&0].clone(), lab.nodes[&1].clone());
    for said in [&quick, &killed] {
        lab.controller.lost_connection(said, lab.now);
    }
    lab.nodes.remove(&1);
    lab.rounds(4);
    assert_eq!(brokers(&lab), 2);
    lab.rounds(2);
    assert_eq!(
        (brokers(&lab), lab.leaders()),
        (1, vec![0, 0]),
        "long before its session ends"
    );
    // It has come back on another connection: the end of the former one tells nothing.
    let mut back = quick.clone();
    back.sequence += 1;
    lab.controller.heartbeat(&back, lab.now).unwrap();
    lab.controller.lost_connection(&quick, lab.now);
    lab.nodes.clear();
    lab.rounds(10);
    assert_eq!(brokers(&lab), 1);
}

#[test]
fn a_hand_over_does_not_wait_for_ever() {
    let mut lab = Lab::new(1, Grace::default());
    lab.add(node(0, "a"));
    lab.add(node(1, "b"));
    lab.rounds(5);
    let leader = lab.leaders()[0];
    let said = lab.nodes.get_mut(&leader).unwrap();
    said.draining = true;
    let stuck = said.clone();
    for _ in 0..40 {
        lab.round();
        // It goes on saying that it leads.
        lab.nodes.get_mut(&leader).unwrap().leading = stuck.leading.clone();
    }
    assert_eq!(lab.leaders(), [1 - leader]);
}

#[test]
fn the_last_coordinator_keeps_its_shards_while_it_drains() {
    let mut lab = Lab::new(2, Grace::default());
    let mut only = node(0, "a");
    only.draining = true;
    lab.add(only);
    lab.rounds(5);
    assert_eq!(lab.leaders(), [0, 0]);
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let mut lab = Lab::new(1, Grace::default());
    let now = lab.now;
    for change in [
        |said: &mut HeartbeatRequest| said.node = NodeId(-1),
        |said: &mut HeartbeatRequest| {
            (said.broker, said.coordinator) = (false, false);
        },
    ] {
        let mut said = node(0, "a");
        change(&mut said);
        assert_eq!(
            lab.controller.heartbeat(&said, now),
            Err(ResponseError::InvalidRegistration)
        );
    }
}

#[derive(Clone, Debug)]
enum Step {
    Start(i32),
    Kill(i32),
    Drain(i32),
    Leave(i32),
    Rounds(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..5).prop_map(Step::Start),
        1 => (0..5).prop_map(Step::Kill),
        1 => (0..5).prop_map(Step::Drain),
        1 => (0..5).prop_map(Step::Leave),
        4 => (1..30usize).prop_map(Step::Rounds),
    ]
}

proptest! {
    #[test]
    fn whatever_happens_it_settles(shards in 1..8u32, steps in prop::collection::vec(step(), 1..30)) {
        let mut lab = Lab::new(shards, Grace::default());
        let mut lives = 1000;
        let mut version = 0;
        for step in steps {
            match step {
                Step::Start(id) => {
                    if !lab.nodes.contains_key(&id) {
                        lives += 1;
                        let mut said = node(id, ["a", "b", "c"][id as usize % 3]);
                        said.incarnation = Uuid::from_u128(lives);
                        lab.add(said);
                    }
                }
                Step::Kill(id) => drop(lab.nodes.remove(&id)),
                Step::Drain(id) => { if let Some(said) = lab.nodes.get_mut(&id) { said.draining = true; } }
                Step::Leave(id) => if let Some(mut said) = lab.nodes.remove(&id) {
                    said.leaving = true;
                    lab.controller.heartbeat(&said, lab.now).unwrap();
                },
                Step::Rounds(rounds) => lab.rounds(rounds),
            }
            if let Some(image) = lab.controller.image() {
                prop_assert!(image.version >= version);
                version = image.version;
            }
        }
        lab.rounds(60);
        let leaders = lab.leaders();
        prop_assert_eq!(leaders.len(), shards as usize);
        let able: Vec<i32> = lab.nodes.values().filter(|said| !said.draining).map(|said| said.node.0).collect();
        for (shard, leader) in (0..).map(ShardId).zip(&leaders) {
            if lab.nodes.is_empty() {
                prop_assert_eq!(*leader, -1);
            } else {
                prop_assert!(able.is_empty() || able.contains(leader), "a draining node leads {}", shard);
                let lead: Vec<i32> = lab.nodes.values().filter(|said| said.leading.contains(&shard))
                    .map(|said| said.node.0).collect();
                prop_assert_eq!(&lead, &vec![*leader]);
            }
        }
        let image = lab.image();
        lab.rounds(30);
        prop_assert_eq!(lab.image(), image);
    }
}
