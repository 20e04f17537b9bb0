//! Consumer groups under faults: who dies is replaced, and what was committed stays committed.
#![allow(clippy::disallowed_methods, clippy::expect_used, reason = "tests")]

use std::time::{Duration, Instant};

use bytes::Bytes;
use e2e::clients::Library;
use e2e::history::History;
use e2e::node::{Cluster, Plan};
use e2e::wire::{Wire, text, topic_name};
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestTopic;
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    DescribeGroupsRequest, GroupId, HeartbeatRequest, JoinGroupRequest, OffsetCommitRequest,
    OffsetFetchRequest, SyncGroupRequest,
};
use kafka_protocol::protocol::StrBytes;

/// What [`Member`] commits offsets of.
const COMMITTED: &str = "anything";
const COUNT: u64 = 3_000;
/// COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR: the client is to try again.
const TRY_AGAIN: [i16; 3] = [14, 15, 16];
/// Longer than any take-over.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn members_of_all_libraries_share_a_topic() -> anyhow::Result<()> {
    let cluster = Cluster::start(Plan::default())?;
    let bootstrap = cluster.bootstrap();
    let broker = format!("127.0.0.1:{}", cluster.brokers[0].port);
    Wire::connect(&broker)?.create_topic("shared", 8)?;
    let mut history = History {
        idempotent: true,
        ..History::default()
    };
    let libraries = [
        Library::FranzGo,
        Library::Confluent,
        Library::KafkaPython,
        Library::Java,
    ];
    // None of them can know when the others have the rest: all end after a quiet while.
    let start = |library: Library| library.consume(&bootstrap, "shared", "team", COUNT, 12);
    let members = libraries
        .map(start)
        .into_iter()
        .collect::<anyhow::Result<Vec<_>>>()?;
    wait_for_members(&broker, "team", members.len())?;
    let output = Library::FranzGo
        .produce(&bootstrap, "shared", 0, COUNT, 0)?
        .finish()?;
    history.add_producer(&output, 0, COUNT);
    assert_eq!(history.acked.len() as u64, COUNT);
    let mut all = String::new();
    for (library, member) in libraries.into_iter().zip(members) {
        let output = member.finish()?;
        assert!(output.contains("got "), "{library:?} got no part of the topic");
        all += &output;
    }
    assert_eq!(
        all.lines().count() as u64,
        COUNT,
        "a stable group reads every record once"
    );
    history.add_consumer(&all);
    history.assert_clean();
    Ok(())
}

#[test]
fn the_others_take_over_from_a_killed_member() -> anyhow::Result<()> {
    let cluster = Cluster::start(Plan::default())?;
    let bootstrap = cluster.bootstrap();
    let broker = format!("127.0.0.1:{}", cluster.brokers[0].port);
    Wire::connect(&broker)?.create_topic("orphaned", 6)?;
    let mut victim = Library::FranzGo.consume(&bootstrap, "orphaned", "pair", COUNT, 60)?;
    let survivor = Library::Java.consume(&bootstrap, "orphaned", "pair", COUNT, 30)?;
    wait_for_members(&broker, "pair", 2)?;
    let producing = Library::Confluent.produce(&bootstrap, "orphaned", 0, COUNT, 150)?;
    victim.wait_for_lines(200)?;
    let before = victim.kill()?;
    let mut history = History {
        idempotent: true,
        ..History::default()
    };
    history.add_producer(&producing.finish()?, 0, COUNT);
    assert_eq!(history.acked.len() as u64, COUNT);
    history.add_consumer(&(before + &survivor.finish()?));
    history.assert_clean();
    Ok(())
}

#[test]
fn a_stable_group_lives_through_killed_coordinators() -> anyhow::Result<()> {
    let mut cluster = Cluster::start(Plan::default())?;
    let broker = format!("127.0.0.1:{}", cluster.brokers[0].port);
    Wire::connect(&broker)?.create_topic(COMMITTED, 1)?;
    let mut member = Member::join(&broker, "steady")?;
    for round in 1..=3i64 {
        assert_eq!(member.commit(round * 10)?, 0);
        for node in &mut cluster.coordinators {
            node.kill();
            // The view is a copy: the log alone must hold the group.
            node.delete_data()?;
        }
        for node in &mut cluster.coordinators {
            node.start()?;
        }
        assert_eq!(
            member.heartbeat()?,
            0,
            "the member is still one, in the same generation"
        );
        assert_eq!(member.committed()?, (round * 10, Some(text("where I am"))));
    }
    // One after the other, as in an upgrade: the group moves between them.
    for i in 0..cluster.coordinators.len() {
        cluster.coordinators[i].stop()?;
        assert_eq!(member.heartbeat()?, 0);
        assert_eq!(member.commit(100 + i as i64)?, 0);
        cluster.coordinators[i].start()?;
        cluster.coordinators[i].wait_ready()?;
    }
    assert_eq!(member.committed()?.0, 101);
    Ok(())
}

#[test]
fn consumers_go_on_where_they_were_when_coordinators_die() -> anyhow::Result<()> {
    let mut cluster = Cluster::start(Plan::default())?;
    let bootstrap = cluster.bootstrap();
    let broker = format!("127.0.0.1:{}", cluster.brokers[0].port);
    Wire::connect(&broker)?.create_topic("flow", 4)?;
    let one = Library::Confluent.consume(&bootstrap, "flow", "flowing", COUNT, 25)?;
    let two = Library::Java.consume(&bootstrap, "flow", "flowing", COUNT, 25)?;
    wait_for_members(&broker, "flowing", 2)?;
    let producing = Library::FranzGo.produce(&bootstrap, "flow", 0, COUNT, 200)?;
    for i in 0..cluster.coordinators.len() {
        std::thread::sleep(Duration::from_secs(2));
        cluster.coordinators[i].kill();
        std::thread::sleep(Duration::from_secs(2));
        cluster.coordinators[i].start()?;
        cluster.coordinators[i].wait_ready()?;
    }
    let mut history = History {
        idempotent: true,
        ..History::default()
    };
    history.add_producer(&producing.finish()?, 0, COUNT);
    assert_eq!(history.acked.len() as u64, COUNT);
    history.add_consumer(&(one.finish()? + &two.finish()?));
    history.assert_clean();
    // They committed when they left: a new member of the group has nothing to read.
    let late = Library::KafkaPython
        .consume(&bootstrap, "flow", "flowing", 1, 8)?
        .finish()?;
    assert_eq!(
        late.lines().count(),
        0,
        "committed records came again:\n{late:.500}"
    );
    Ok(())
}

/// Waits until a group is stable with so many members.
fn wait_for_members(broker: &str, group: &str, count: usize) -> anyhow::Result<()> {
    let mut wire = Wire::connect(broker)?;
    let start = Instant::now();
    let request = DescribeGroupsRequest::default().with_groups(vec![GroupId(text(group))]);
    loop {
        let response = wire.call(&request, 5)?;
        let found = response
            .groups
            .first()
            .map(|group| (group.group_state.to_string(), group.members.len()));
        if found == Some(("Stable".to_owned(), count)) {
            return Ok(());
        }
        anyhow::ensure!(
            start.elapsed() < PATIENCE * 2,
            "group {group} does not get {count} members: {found:?}"
        );
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// The only member of a group, spoken for by hand.
struct Member {
    wire: Wire,
    group: GroupId,
    id: StrBytes,
    generation: i32,
}

impl Member {
    fn join(broker: &str, group: &str) -> anyhow::Result<Member> {
        let mut wire = Wire::connect(broker)?;
        let group = GroupId(text(group));
        let protocol = JoinGroupRequestProtocol::default()
            .with_name(text("range"))
            .with_metadata(Bytes::from_static(b"subscribed"));
        let request = JoinGroupRequest::default()
            .with_group_id(group.clone())
            .with_session_timeout_ms(120_000)
            .with_rebalance_timeout_ms(60_000)
            .with_protocol_type(text("consumer"))
            .with_protocols(vec![protocol]);
        let joined = again(|| {
            let response = wire.call(&request, 3)?;
            Ok((response.error_code, response))
        })?;
        assert_eq!(joined.error_code, 0);
        let assignment = SyncGroupRequestAssignment::default()
            .with_member_id(joined.member_id.clone())
            .with_assignment(Bytes::from_static(b"all"));
        let request = SyncGroupRequest::default()
            .with_group_id(group.clone())
            .with_generation_id(joined.generation_id)
            .with_member_id(joined.member_id.clone())
            .with_assignments(vec![assignment]);
        assert_eq!(wire.call(&request, 3)?.error_code, 0);
        Ok(Member {
            wire,
            group,
            id: joined.member_id,
            generation: joined.generation_id,
        })
    }

    fn heartbeat(&mut self) -> anyhow::Result<i16> {
        let request = HeartbeatRequest::default()
            .with_group_id(self.group.clone())
            .with_generation_id(self.generation)
            .with_member_id(self.id.clone());
        again(|| {
            let code = self.wire.call(&request, 3)?.error_code;
            Ok((code, code))
        })
    }

    fn commit(&mut self, offset: i64) -> anyhow::Result<i16> {
        let partition = OffsetCommitRequestPartition::default()
            .with_committed_offset(offset)
            .with_committed_metadata(Some(text("where I am")));
        let topic = OffsetCommitRequestTopic::default()
            .with_name(topic_name(COMMITTED))
            .with_partitions(vec![partition]);
        let request = OffsetCommitRequest::default()
            .with_group_id(self.group.clone())
            .with_generation_id_or_member_epoch(self.generation)
            .with_member_id(self.id.clone())
            .with_topics(vec![topic]);
        again(|| {
            let code = self.wire.call(&request, 7)?.topics[0].partitions[0].error_code;
            Ok((code, code))
        })
    }

    fn committed(&mut self) -> anyhow::Result<(i64, Option<StrBytes>)> {
        let topic = OffsetFetchRequestTopic::default()
            .with_name(topic_name(COMMITTED))
            .with_partition_indexes(vec![0]);
        let request = OffsetFetchRequest::default()
            .with_group_id(self.group.clone())
            .with_topics(Some(vec![topic]));
        again(|| {
            let mut response = self.wire.call(&request, 7)?;
            let code = response.error_code;
            let found = response.topics.pop().and_then(|mut topic| topic.partitions.pop());
            Ok((
                code,
                found.map_or((-1, None), |found| (found.committed_offset, found.metadata)),
            ))
        })
    }
}

/// Asks until the answer is something else than to try again.
fn again<T>(mut ask: impl FnMut() -> anyhow::Result<(i16, T)>) -> anyhow::Result<T> {
    let start = Instant::now();
    loop {
        let (code, answer) = ask()?;
        if !TRY_AGAIN.contains(&code) || start.elapsed() > PATIENCE {
            return Ok(answer);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
