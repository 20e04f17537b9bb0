use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use env::{Env, Instant};
use kafka_wire::flex::Encode;
use kafka_wire::messages::{JoinGroupResponse, SyncGroupResponse};
use kafka_wire::{ResponseError, ResponseKind};
use proptest::prelude::*;
use types::Timestamp;
use uuid::Uuid;

use super::{Group, Join, Reply, Rules, State, Sync, Ticket};
use crate::settings::GroupSettings;

const SESSION: Duration = Duration::from_secs(10);
const REBALANCE: Duration = Duration::from_secs(30);
const DELAY: Duration = Duration::from_secs(3);
const TIME: Timestamp = Timestamp(1_000);

/// Groups of five at most, in a log of entries of up to 8 MiB.
fn rules(initial_rebalance_delay: Duration) -> Rules {
    let settings = GroupSettings {
        initial_rebalance_delay,
        max_size: 5,
        ..GroupSettings::default()
    };
    Rules::new(&settings, 8 << 20)
}

/// A group with a clock, and clients that remember their answers.
struct Lab {
    group: Group,
    now: Instant,
    /// What members ask for.
    rebalance: Duration,
    /// Who joins does not want to be told an id first.
    old_client: bool,
    tickets: Ticket,
    joined: BTreeMap<Ticket, JoinGroupResponse>,
    synced: BTreeMap<Ticket, SyncGroupResponse>,
}

impl Lab {
    fn new(delay: Duration) -> Lab {
        let now = Env::simulated(1).instant();
        let group = Group::new(rules(delay), TIME);
        Lab {
            group,
            now,
            rebalance: REBALANCE,
            old_client: false,
            tickets: 0,
            joined: BTreeMap::new(),
            synced: BTreeMap::new(),
        }
    }

    fn take(&mut self, replies: Vec<Reply>) {
        for reply in replies {
            match reply.response {
                ResponseKind::JoinGroup(response) => {
                    assert!(
                        self.joined.insert(reply.ticket, response).is_none(),
                        "answered twice"
                    );
                }
                ResponseKind::SyncGroup(response) => {
                    assert!(
                        self.synced.insert(reply.ticket, response).is_none(),
                        "answered twice"
                    );
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        let replies = self.group.tick(self.now, TIME);
        self.take(replies);
    }

    fn join_as(&mut self, member: &str, instance: Option<&str>, protocols: &[&str]) -> Ticket {
        self.tickets += 1;
        let join = Join {
            ticket: self.tickets,
            member_id: member.to_owned(),
            instance_id: instance.map(str::to_owned),
            client_id: "client".to_owned(),
            client_host: "/127.0.0.1".to_owned(),
            session_timeout: SESSION,
            rebalance_timeout: self.rebalance,
            protocol_type: "consumer".to_owned(),
            protocols: protocols
                .iter()
                .map(|name| ((*name).to_owned(), Bytes::from("topics")))
                .collect(),
            requires_known_member: !self.old_client,
            can_skip_assignment: true,
            unique: Uuid::from_u128(self.tickets.into()),
        };
        let replies = self.group.join(self.now, TIME, join);
        self.take(replies);
        self.tickets
    }

    fn join(&mut self, member: &str) -> Ticket {
        self.join_as(member, None, &["range"])
    }

    /// A dynamic member: it is told an id and comes again with it.
    fn enter(&mut self) -> (String, Ticket) {
        let first = self.join("");
        let answer = &self.joined[&first];
        assert_eq!(answer.error_code, ResponseError::MemberIdRequired.code());
        let id = answer.member_id.to_string();
        let ticket = self.join(&id);
        (id, ticket)
    }

    fn sync(&mut self, member: &str, generation: i32, assignments: &[(&str, &str)]) -> Ticket {
        self.tickets += 1;
        let sync = Sync {
            ticket: self.tickets,
            member_id: member.to_owned(),
            instance_id: None,
            generation,
            protocol_type: Some("consumer".to_owned()),
            protocol: Some("range".to_owned()),
            assignments: assignments
                .iter()
                .map(|(id, text)| ((*id).to_owned(), Bytes::from((*text).to_owned())))
                .collect(),
        };
        let replies = self.group.sync(self.now, TIME, sync);
        self.take(replies);
        self.tickets
    }

    fn join_code(&self, ticket: Ticket) -> i16 {
        self.joined
            .get(&ticket)
            .unwrap_or_else(|| panic!("join {ticket} waits"))
            .error_code
    }

    /// Two members in a stable generation; the first leads.
    fn stable_pair() -> (Lab, String, String) {
        let mut lab = Lab::new(DELAY);
        let ((a, first), (b, second)) = (lab.enter(), lab.enter());
        lab.pass(DELAY);
        lab.pass(DELAY);
        assert_eq!((lab.join_code(first), lab.join_code(second)), (0, 0));
        let leads = lab.sync(&a, 1, &[(&a, "for a"), (&b, "for b")]);
        let follows = lab.sync(&b, 1, &[]);
        assert_eq!(lab.synced[&leads].assignment, "for a");
        assert_eq!(lab.synced[&follows].assignment, "for b");
        assert_eq!(lab.group.state, State::Stable);
        (lab, a, b)
    }
}

#[test]
fn three_members_that_join_at_once_are_one_generation() {
    let mut lab = Lab::new(DELAY);
    let members: Vec<(String, Ticket)> = (0..3).map(|_| lab.enter()).collect();
    assert!(
        members.iter().all(|(_, ticket)| !lab.joined.contains_key(ticket)),
        "the first waits for others"
    );
    lab.pass(DELAY);
    lab.pass(DELAY);
    let answers: Vec<&JoinGroupResponse> = members.iter().map(|(_, ticket)| &lab.joined[ticket]).collect();
    assert!(
        answers
            .iter()
            .all(|answer| answer.error_code == 0 && answer.generation_id == 1)
    );
    let leaders = answers
        .iter()
        .filter(|answer| answer.leader == answer.member_id)
        .count();
    assert_eq!(leaders, 1);
    let told: Vec<usize> = answers.iter().map(|answer| answer.members.len()).collect();
    assert_eq!(told, [3, 0, 0], "the leader alone is told who is there");
}

#[test]
fn a_member_that_joins_a_stable_group_starts_a_new_generation() {
    let (mut lab, a, b) = Lab::stable_pair();
    let (_, third) = lab.enter();
    assert_eq!(
        lab.group.heartbeat(lab.now, &a, None, 1),
        Err(ResponseError::RebalanceInProgress)
    );
    let (again_a, again_b) = (lab.join(&a), lab.join(&b));
    for ticket in [third, again_a, again_b] {
        assert_eq!((lab.join_code(ticket), lab.joined[&ticket].generation_id), (0, 2));
    }
}

#[test]
fn a_member_that_says_nothing_new_is_answered_without_a_rebalance() {
    let (mut lab, _, b) = Lab::stable_pair();
    let again = lab.join(&b);
    assert_eq!((lab.join_code(again), lab.joined[&again].generation_id), (0, 1));
    assert_eq!(lab.group.state, State::Stable);
}

#[test]
fn the_session_of_a_silent_member_ends_and_the_rest_goes_on() {
    let (mut lab, a, b) = Lab::stable_pair();
    lab.pass(SESSION - Duration::from_secs(1));
    assert_eq!(lab.group.heartbeat(lab.now, &a, None, 1), Ok(()));
    lab.pass(Duration::from_secs(2));
    assert!(!lab.group.members.contains_key(&b));
    let again = lab.join(&a);
    assert_eq!((lab.join_code(again), lab.joined[&again].generation_id), (0, 2));
    assert_eq!(
        lab.group.heartbeat(lab.now, &b, None, 1),
        Err(ResponseError::UnknownMemberId)
    );
}

#[test]
fn members_that_do_not_join_again_are_left_out_when_the_time_is_over() {
    let (mut lab, a, b) = Lab::stable_pair();
    let again = lab.join(&a);
    assert!(!lab.joined.contains_key(&again), "the other has time to join");
    // It keeps its session alive, but does not join.
    for _ in 0..6 {
        let _ = lab.group.heartbeat(lab.now, &b, None, 1);
        lab.pass(REBALANCE / 6);
    }
    assert_eq!((lab.join_code(again), lab.joined[&again].generation_id), (0, 2));
    assert!(!lab.group.members.contains_key(&b));
}

#[test]
fn a_leader_that_fails_before_it_assigns_is_replaced() {
    let mut lab = Lab::new(DELAY);
    let ((a, _), (b, _)) = (lab.enter(), lab.enter());
    lab.pass(DELAY);
    lab.pass(DELAY);
    let waits = lab.sync(&b, 1, &[]);
    assert!(!lab.synced.contains_key(&waits));
    lab.pass(SESSION + Duration::from_secs(1));
    assert!(!lab.group.members.contains_key(&a));
    assert_eq!(
        lab.synced[&waits].error_code,
        ResponseError::RebalanceInProgress.code()
    );
    let again = lab.join(&b);
    assert_eq!(lab.joined[&again].leader, lab.joined[&again].member_id);
}

#[test]
fn a_member_that_leaves_makes_room_at_once() {
    let (mut lab, a, b) = Lab::stable_pair();
    let mut replies = Vec::new();
    assert_eq!(lab.group.leave(lab.now, TIME, &b, None, &mut replies), Ok(()));
    lab.take(replies);
    let again = lab.join(&a);
    assert_eq!(lab.joined[&again].generation_id, 2);
    let mut replies = Vec::new();
    assert_eq!(
        lab.group.leave(lab.now, TIME, &b, None, &mut replies),
        Err(ResponseError::UnknownMemberId)
    );
    assert_eq!(lab.group.leave(lab.now, TIME, &a, None, &mut replies), Ok(()));
    assert_eq!(lab.group.state, State::Empty);
    assert!(
        lab.group
            .take_record()
            .is_some_and(|record| record.members.is_empty())
    );
}

#[test]
fn a_static_member_comes_back_under_its_name_without_a_rebalance() {
    let mut lab = Lab::new(Duration::ZERO);
    let first = lab.join_as("", Some("host-1"), &["range"]);
    let id = lab.joined[&first].member_id.to_string();
    lab.sync(&id, 1, &[(&id, "mine")]);
    let again = lab.join_as("", Some("host-1"), &["range"]);
    let answer = lab.joined[&again].clone();
    assert_eq!(
        (answer.error_code, answer.generation_id, answer.skip_assignment),
        (0, 1, true)
    );
    assert_ne!(answer.member_id.as_str(), id);
    let synced = lab.sync(&answer.member_id, 1, &[]);
    assert_eq!(lab.synced[&synced].assignment, "mine");
    // Its former self is fenced.
    assert_eq!(
        lab.group.heartbeat(lab.now, &id, Some("host-1"), 1),
        Err(ResponseError::FencedInstanceId)
    );
    let fenced = lab.join_as(&id, Some("host-1"), &["range"]);
    assert_eq!(lab.join_code(fenced), ResponseError::FencedInstanceId.code());
}

#[test]
fn members_must_have_a_protocol_in_common() {
    let (mut lab, ..) = Lab::stable_pair();
    let ticket = lab.join_as("", None, &["sticky"]);
    assert_eq!(
        lab.join_code(ticket),
        ResponseError::InconsistentGroupProtocol.code()
    );
    let ticket = lab.join_as("", None, &[]);
    assert_eq!(
        lab.join_code(ticket),
        ResponseError::InconsistentGroupProtocol.code()
    );
}

#[test]
fn the_protocol_most_members_want_wins() {
    let mut lab = Lab::new(Duration::ZERO);
    let a = lab.join_as("", Some("a"), &["sticky", "range"]);
    let (b, c) = (
        lab.join_as("", Some("b"), &["range", "sticky"]),
        lab.join_as("", Some("c"), &["range", "sticky"]),
    );
    let id = lab.joined[&a].member_id.to_string();
    let again = lab.join_as(&id, Some("a"), &["sticky", "range"]);
    for ticket in [b, c, again] {
        assert_eq!(lab.joined[&ticket].protocol_name.as_deref(), Some("range"));
    }
}

#[test]
fn a_full_group_takes_nobody_in() {
    let mut lab = Lab::new(DELAY);
    for _ in 0..5 {
        lab.enter();
    }
    let ticket = lab.join("");
    assert_eq!(lab.join_code(ticket), ResponseError::GroupMaxSizeReached.code());
}

#[test]
fn commits_are_judged_by_member_and_generation() {
    let (mut lab, a, _) = Lab::stable_pair();
    let now = lab.now;
    assert_eq!(lab.group.check_commit(now, &a, None, 1), Ok(()));
    assert_eq!(
        lab.group.check_commit(now, &a, None, 0),
        Err(ResponseError::IllegalGeneration)
    );
    assert_eq!(
        lab.group.check_commit(now, "stranger", None, 1),
        Err(ResponseError::UnknownMemberId)
    );
    assert_eq!(
        lab.group.check_commit(now, "", None, -1),
        Err(ResponseError::UnknownMemberId)
    );
    let mut empty = Group::new(rules(DELAY), TIME);
    assert_eq!(empty.check_commit(now, "", None, -1), Ok(()));
    let mut young = Lab::new(DELAY);
    let (id, _) = young.enter();
    young.pass(DELAY);
    young.pass(DELAY);
    let now = young.now;
    assert_eq!(
        young.group.check_commit(now, &id, None, 1),
        Err(ResponseError::RebalanceInProgress)
    );
}

#[test]
fn a_restored_group_goes_on_without_a_rebalance() {
    let (mut lab, a, b) = Lab::stable_pair();
    let record = lab.group.take_record().expect("a new generation is stored");
    let bytes = record.to_bytes();
    let record = crate::record::GroupRecord::read(bytes).expect("reads what it wrote");
    lab.group = Group::restore(record, rules(DELAY), lab.now);
    assert_eq!(lab.group.heartbeat(lab.now, &a, None, 1), Ok(()));
    let synced = lab.sync(&b, 1, &[]);
    assert_eq!(lab.synced[&synced].assignment, "for b");
    assert!(lab.group.take_record().is_none(), "nothing has changed");
}

#[test]
fn a_group_that_could_not_be_stored_takes_nobody_in() {
    let mut lab = Lab::new(Duration::ZERO);
    let large = |lab: &mut Lab, instance: &str, bytes: usize| {
        lab.tickets += 1;
        let join = Join {
            ticket: lab.tickets,
            member_id: String::new(),
            instance_id: Some(instance.to_owned()),
            client_id: "client".to_owned(),
            client_host: "/127.0.0.1".to_owned(),
            session_timeout: SESSION,
            rebalance_timeout: REBALANCE,
            protocol_type: "consumer".to_owned(),
            protocols: vec![("range".to_owned(), Bytes::from(vec![0; bytes]))],
            requires_known_member: true,
            can_skip_assignment: true,
            unique: Uuid::from_u128(lab.tickets.into()),
        };
        let replies = lab.group.join(lab.now, TIME, join);
        lab.take(replies);
        lab.tickets
    };
    let first = large(&mut lab, "a", 4 << 20);
    let id = lab.joined[&first].member_id.to_string();
    let second = large(&mut lab, "b", 2 << 20);
    assert_eq!(lab.join_code(second), ResponseError::GroupMaxSizeReached.code());
    let long = "x".repeat(4 << 20);
    let refused = lab.sync(&id, 1, &[(&id, &long)]);
    assert_eq!(
        lab.synced[&refused].error_code,
        ResponseError::UnknownServerError.code()
    );
    assert!(lab.group.take_record().is_none(), "there is nothing to store");
    // Everybody joins again, and gets what can be stored.
    assert_eq!(
        lab.group.heartbeat(lab.now, &id, Some("a"), 1),
        Err(ResponseError::RebalanceInProgress)
    );
    let again = lab.join_as(&id, Some("a"), &["range"]);
    assert_eq!((lab.join_code(again), lab.joined[&again].generation_id), (0, 2));
    let synced = lab.sync(&id, 2, &[(&id, &long[..3 << 20])]);
    assert_eq!(lab.synced[&synced].error_code, 0);
    let record = lab.group.take_record().expect("a new generation is stored");
    assert!(record.to_bytes().len() < 8 << 20);
}

#[test]
fn a_new_member_that_waits_for_too_long_is_forgotten() {
    const MINUTE: Duration = Duration::from_secs(60);
    let mut lab = Lab::new(Duration::ZERO);
    lab.rebalance = 60 * MINUTE;
    let (a, _) = lab.enter();
    lab.sync(&a, 1, &[(&a, "mine")]);
    // It was told no id (before v4), and its connection ends: nobody will ever know.
    lab.old_client = true;
    let gone = lab.join("");
    lab.old_client = false;
    // This one goes on asking.
    let (b, first) = lab.enter();
    let live = |lab: &mut Lab, time: Duration| {
        for _ in 0..time.as_secs() / 5 {
            let generation = lab.group.generation;
            let _ = lab.group.heartbeat(lab.now, &a, None, generation);
            lab.pass(Duration::from_secs(5));
        }
    };
    live(&mut lab, 4 * MINUTE);
    assert_eq!(lab.group.members.len(), 3, "longer than any session");
    live(&mut lab, 2 * MINUTE);
    assert_eq!(lab.join_code(gone), ResponseError::UnknownMemberId.code());
    // It asks again, as clients do that hear of that.
    assert_eq!(lab.join_code(first), ResponseError::UnknownMemberId.code());
    assert!(!lab.group.members.contains_key(&b));
    let (b, second) = lab.enter();
    live(&mut lab, MINUTE);
    let again = lab.join(&a);
    for ticket in [again, second] {
        assert_eq!((lab.join_code(ticket), lab.joined[&ticket].generation_id), (0, 2));
    }
    // Who has been answered once has a session; who waits again has all the time of the rebalance.
    let third = lab.join_as(&b, None, &["range", "sticky"]);
    live(&mut lab, 10 * MINUTE);
    assert!(!lab.joined.contains_key(&third) && lab.group.members.contains_key(&b));
}

#[test]
fn a_group_nobody_came_back_to_is_nothing() {
    let mut lab = Lab::new(DELAY);
    lab.join("");
    assert!(!lab.group.is_nothing());
    lab.pass(SESSION);
    assert!(lab.group.is_nothing());
    lab.group.note_commit();
    assert!(!lab.group.is_nothing(), "it has offsets");
    let (mut lab, ..) = Lab::stable_pair();
    assert!(lab.group.take_record().is_some());
    lab.pass(SESSION);
    assert!(lab.group.is_empty() && !lab.group.is_nothing(), "it is stored");
}

/// What a client can do next.
#[derive(Clone, Debug)]
enum Step {
    Enter,
    Join(usize),
    Sync(usize),
    Heartbeat(usize),
    Leave(usize),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => Just(Step::Enter),
        4 => (0..6usize).prop_map(Step::Join),
        4 => (0..6usize).prop_map(Step::Sync),
        2 => (0..6usize).prop_map(Step::Heartbeat),
        1 => (0..6usize).prop_map(Step::Leave),
        3 => (0..12_000u64).prop_map(Step::Pass),
    ]
}

proptest! {
    #[test]
    fn whatever_members_do_nobody_is_stuck(steps in prop::collection::vec(step(), 1..80)) {
        let mut lab = Lab::new(DELAY);
        let mut known: Vec<String> = Vec::new();
        let mut generation = 0;
        for step in steps {
            let id = |i: usize, known: &[String]| known.get(i % known.len().max(1)).cloned();
            match step {
                Step::Enter => {
                    let ticket = lab.join("");
                    known.push(lab.joined[&ticket].member_id.to_string());
                }
                Step::Join(i) => { if let Some(id) = id(i, &known) { lab.join(&id); } }
                Step::Sync(i) => if let Some(id) = id(i, &known) {
                    let generation = lab.group.generation;
                    lab.sync(&id, generation, &[(&id, "some")]);
                },
                Step::Heartbeat(i) => if let Some(id) = id(i, &known) {
                    let generation = lab.group.generation;
                    let _ = lab.group.heartbeat(lab.now, &id, None, generation);
                },
                Step::Leave(i) => if let Some(id) = id(i, &known) {
                    let mut replies = Vec::new();
                    let _ = lab.group.leave(lab.now, TIME, &id, None, &mut replies);
                    lab.take(replies);
                },
                Step::Pass(ms) => lab.pass(Duration::from_millis(ms)),
            }
            prop_assert!(lab.group.generation >= generation);
            generation = lab.group.generation;
            if matches!(lab.group.state, State::Stable | State::CompletingRebalance) {
                let leader = lab.group.leader.clone();
                prop_assert!(leader.is_none_or(|id| lab.group.members.contains_key(&id)), "the leader is no member");
                prop_assert!(lab.group.protocol.is_some());
            }
            prop_assert_eq!(lab.group.members.is_empty() && lab.group.pending.is_empty() && lab.group.preparing.is_none(),
                lab.group.state == State::Empty && lab.group.pending.is_empty());
        }
        // Everybody falls silent: the group must come to rest, and every request be answered.
        for _ in 0..20 {
            lab.pass(REBALANCE);
        }
        prop_assert_eq!(lab.group.state, State::Empty);
        prop_assert!(lab.group.is_empty());
        prop_assert_eq!(lab.joined.len() + lab.synced.len(), usize::try_from(lab.tickets).expect("fits"));
        prop_assert_eq!(lab.group.next_deadline(), None);
    }
}
