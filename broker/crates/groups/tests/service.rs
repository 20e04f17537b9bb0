//! Groups of a shard as their clients meet them: what is kept, what is forgotten, what a take-over does.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests"
)]

mod lab;

use std::time::Duration;

use blob::BlobError;
use blob::faults::{Decision, Fault};
use bytes::Bytes;
use coordinator::protocol::{DeleteTopic, DeleteTopicsRequest};
use kafka_wire::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_wire::messages::offset_delete_request::{OffsetDeleteRequestPartition, OffsetDeleteRequestTopic};
use kafka_wire::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_wire::messages::{
    DeleteGroupsRequest, DescribeGroupsRequest, JoinGroupRequest, LeaveGroupRequest, OffsetDeleteRequest,
    SyncGroupRequest, TopicName,
};
use kafka_wire::{RequestKind, ResponseError, ResponseKind, StrBytes};
use types::{ShardId, TopicId};
use uuid::Uuid;

use lab::*;

#[tokio::test(start_paused = true)]
async fn a_take_over_needs_no_rebalance() {
    let mut lab = Lab::new();
    let first = lab.open().await;
    let id = member(&first, "g").await;
    assert_eq!(commit(&first, "g", (&id, 1), 0..2, "mine").await, [0, 0]);
    let second = lab.open().await;
    assert_eq!(heartbeat(&second, "g", &id, 1).await, 0);
    assert_eq!(commit(&second, "g", (&id, 1), 1..2, "").await, [0]);
    let expected = [(0, 100, "mine".to_owned()), (1, 101, String::new())];
    assert_eq!(committed(&second, "g").await, expected);
    // Who asks the former leader is sent away, without an answer that could be wrong.
    assert_eq!(
        commit(&first, "g", (&id, 1), 0..1, "lost").await,
        [ResponseError::NotCoordinator.code()]
    );
    assert_eq!(committed(&second, "g").await, expected);
    // Members that do not come back are given up.
    lab.env.sleep(Duration::from_secs(11)).await;
    assert_eq!(
        heartbeat(&second, "g", &id, 1).await,
        ResponseError::UnknownMemberId.code()
    );
    assert_eq!(
        list(&second).await.unwrap(),
        [("g".to_owned(), "Empty".to_owned())]
    );
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_comes_after_the_deletion_of_its_topic_is_refused() {
    let mut lab = Lab::new();
    let groups = lab.open().await;
    let [old, new] = [1, 2].map(|id| TopicId(Uuid::from_u128(id)));
    assert_eq!(
        commit_of(&groups, "g", NOBODY, 0..1, "", &[("t", old)]).await,
        [0]
    );
    let deleted = DeleteTopic {
        topic: old,
        name: "t".to_owned(),
    };
    let request = DeleteTopicsRequest {
        shard: ShardId(0),
        topics: vec![deleted],
    };
    lab.shard.take().unwrap().delete_topics(request).await;
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    let late = async |groups| commit_of(groups, "g", NOBODY, 0..2, "", &[("t", old)]).await;
    assert_eq!(late(&groups).await, [unknown, unknown]);
    let groups = lab.open().await;
    assert_eq!(late(&groups).await, [unknown, unknown]);
    assert!(committed(&groups, "g").await.is_empty());
    assert_eq!(
        commit_of(&groups, "g", NOBODY, 0..1, "", &[("t", new)]).await,
        [0]
    );
    assert_eq!(committed(&groups, "g").await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn who_waits_when_the_shard_is_lost_is_sent_on() {
    let mut lab = Lab::new();
    let first = lab.open().await;
    let id = member(&first, "g").await;
    // A second member joins: both have to, and the first does not.
    let told = join(&first, "g", "").await.member_id;
    let waits = {
        let (groups, told) = (first.clone(), told.clone());
        let request = JoinGroupRequest::default()
            .with_group_id(group("g"))
            .with_member_id(told)
            .with_session_timeout_ms(10_000)
            .with_rebalance_timeout_ms(30_000)
            .with_protocol_type(text("consumer"))
            .with_protocols(vec![JoinGroupRequestProtocol::default().with_name(text("range"))]);
        lab.env
            .spawn(async move { ask(&groups, 9, RequestKind::JoinGroup(request)).await })
    };
    lab.env.sleep(Duration::from_millis(100)).await;
    assert_eq!(
        heartbeat(&first, "g", &id, 1).await,
        ResponseError::RebalanceInProgress.code()
    );
    let _second = lab.open().await;
    assert_eq!(waits.await.unwrap().unwrap_err(), ResponseError::NotCoordinator);
}

#[tokio::test(start_paused = true)]
async fn names_that_are_only_asked_about_leave_nothing() {
    let mut lab = Lab::new();
    let groups = lab.open().await;
    for number in 0..100 {
        join(&groups, &format!("g{number}"), "").await;
    }
    assert_eq!(
        join(&groups, "other", "unknown").await.error_code,
        ResponseError::UnknownMemberId.code()
    );
    lab.env.sleep(Duration::from_secs(11)).await;
    assert!(list(&groups).await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_group_without_members_and_offsets_is_forgotten() {
    let mut lab = Lab::new();
    let groups = lab.open().await;
    let id = member(&groups, "g").await;
    assert_eq!(commit(&groups, "kept", NOBODY, 0..1, "").await, [0]);
    let request = LeaveGroupRequest::default()
        .with_group_id(group("g"))
        .with_member_id(text(&id));
    ask(&groups, 2, RequestKind::LeaveGroup(request)).await.unwrap();
    lab.env.sleep(Duration::from_secs(700)).await;
    let kept = [("kept".to_owned(), "Empty".to_owned())];
    assert_eq!(list(&groups).await.unwrap(), kept);
    let groups = lab.open().await;
    assert_eq!(list(&groups).await.unwrap(), kept, "in the log, too");
}

#[tokio::test(start_paused = true)]
async fn offsets_expire_seven_days_after_the_last_member_left() {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    const SESSION: Duration = Duration::from_secs(30 * 60);
    let mut lab = Lab::new();
    let groups = lab.open().await;
    let id = member_for(&groups, "g", 30 * 60 * 1_000).await;
    assert_eq!(commit(&groups, "g", (&id, 1), 0..1, "").await, [0]);
    // It lives for longer than that without committing anything.
    for _ in 0..10 * 48 {
        assert_eq!(heartbeat(&groups, "g", &id, 1).await, 0);
        lab.env.sleep(SESSION - Duration::from_secs(1)).await;
    }
    assert_eq!(committed(&groups, "g").await.len(), 1);
    lab.env.sleep(6 * DAY).await;
    assert_eq!(committed(&groups, "g").await.len(), 1);
    lab.env.sleep(2 * DAY).await;
    assert!(committed(&groups, "g").await.is_empty());
    assert!(list(&groups).await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_is_committed_while_others_expire_is_kept() {
    const ALL: i32 = 3_500;
    let mut lab = Lab::new();
    let groups = lab.open().await;
    commit(&groups, "g", NOBODY, 0..ALL, "").await;
    lab.env.sleep(Duration::from_secs(6 * 24 * 3600)).await;
    // So the group stays.
    assert_eq!(commit(&groups, "g", NOBODY, 0..1, "").await, [0]);
    lab.env.sleep(Duration::from_secs(24 * 3600 - 300)).await;
    // Each step of the deletion takes a while, and another one follows.
    lab.fate.lock().unwrap().delay = Duration::from_secs(2);
    let shard = lab.shard.clone().unwrap();
    while shard.fetch_offsets("g".to_owned(), None).await.unwrap().len() == ALL as usize {
        lab.env.sleep(Duration::from_secs(1)).await;
    }
    while commit(&groups, "g", NOBODY, ALL - 1..ALL, "").await != [0] {
        lab.env.sleep(Duration::from_secs(1)).await;
    }
    lab.env.sleep(Duration::from_secs(60)).await;
    let kept: Vec<i32> = committed(&groups, "g")
        .await
        .iter()
        .map(|(partition, ..)| *partition)
        .collect();
    assert_eq!(kept, [0, ALL - 1]);
}

#[tokio::test(start_paused = true)]
async fn a_commit_larger_than_the_log_takes_at_once_is_kept_whole() {
    let mut lab = Lab::new();
    let groups = lab.open().await;
    // 24 MiB of metadata: more than a slot of the log.
    let codes = commit(&groups, "g", NOBODY, 0..6_000, &"m".repeat(4_096)).await;
    assert!(codes.len() == 6_000 && codes.iter().all(|code| *code == 0));
    assert_eq!(committed(&groups, "g").await.len(), 6_000);
    let codes = commit(&groups, "g", NOBODY, 0..1, &"m".repeat(4_097)).await;
    assert_eq!(codes, [ResponseError::OffsetMetadataTooLarge.code()]);
}

#[tokio::test(start_paused = true)]
async fn only_groups_without_members_are_deleted() {
    let mut lab = Lab::new();
    let groups = lab.open().await;
    let id = member(&groups, "busy").await;
    commit(&groups, "idle", NOBODY, 0..1, "").await;
    let names = ["busy", "idle", "missing"].map(group).to_vec();
    let request = DeleteGroupsRequest::default().with_groups_names(names);
    let Ok(ResponseKind::DeleteGroups(deleted)) = ask(&groups, 2, RequestKind::DeleteGroups(request)).await
    else {
        panic!()
    };
    let codes: Vec<i16> = deleted.results.iter().map(|result| result.error_code).collect();
    let expected = [
        ResponseError::NonEmptyGroup.code(),
        0,
        ResponseError::GroupIdNotFound.code(),
    ];
    assert_eq!(codes, expected);
    assert!(committed(&groups, "idle").await.is_empty());
    assert_eq!(heartbeat(&groups, "busy", &id, 1).await, 0);

    let request = DescribeGroupsRequest::default()
        .with_groups(vec![group("busy"), group("idle")])
        .with_include_authorized_operations(true);
    let Ok(ResponseKind::DescribeGroups(described)) =
        ask(&groups, 6, RequestKind::DescribeGroups(request)).await
    else {
        panic!()
    };
    let [busy, idle] = &described.groups[..] else {
        panic!()
    };
    assert_eq!((busy.group_state.as_str(), busy.members.len()), ("Stable", 1));
    assert_eq!(busy.members[0].client_host.as_str(), "/127.0.0.1");
    assert_eq!(
        busy.authorized_operations, 0b1101_0100_1000,
        "read, delete, describe, describe and alter configurations"
    );
    assert_eq!(
        (idle.error_code, idle.group_state.as_str()),
        (ResponseError::GroupIdNotFound.code(), "Dead")
    );
}

#[tokio::test(start_paused = true)]
async fn offsets_that_a_member_may_commit_again_are_not_deleted() {
    let mut lab = Lab::new();
    let groups = lab.open().await;
    let id = member(&groups, "g").await;
    assert_eq!(commit(&groups, "g", (&id, 1), 0..2, "").await, [0, 0]);
    let delete = async |id: &str| {
        let partition = OffsetDeleteRequestPartition::default().with_partition_index(0);
        let topic = OffsetDeleteRequestTopic::default()
            .with_name(TopicName(text("t")))
            .with_partitions(vec![partition]);
        let request = OffsetDeleteRequest::default()
            .with_group_id(group(id))
            .with_topics(vec![topic]);
        match ask(&groups, 0, RequestKind::OffsetDelete(request)).await {
            Ok(ResponseKind::OffsetDelete(response)) => (
                response.error_code,
                response
                    .topics
                    .first()
                    .map(|topic| topic.partitions[0].error_code),
            ),
            other => panic!("{other:?}"),
        }
    };
    let subscribed = ResponseError::GroupSubscribedToTopic.code();
    assert_eq!(delete("g").await, (0, Some(subscribed)));
    assert_eq!(
        delete("missing").await,
        (ResponseError::GroupIdNotFound.code(), None)
    );
    let request = LeaveGroupRequest::default()
        .with_group_id(group("g"))
        .with_member_id(text(&id));
    ask(&groups, 2, RequestKind::LeaveGroup(request)).await.unwrap();
    assert_eq!(delete("g").await, (0, Some(0)));
    assert_eq!(committed(&groups, "g").await, [(1, 101, String::new())]);
}

#[tokio::test(start_paused = true)]
async fn groups_are_served_after_a_store_that_failed_while_they_were_loaded() {
    let mut lab = Lab::new();
    let first = lab.open().await;
    let id = member(&first, "g").await;
    let broken = Decision {
        fault: Fault::Fail(BlobError::Unavailable("out of order".to_owned())),
        ..Decision::FINE
    };
    let second = lab.open_while(broken).await;
    lab.env.sleep(Duration::from_secs(1)).await;
    assert_eq!(
        heartbeat(&second, "g", &id, 1).await,
        ResponseError::CoordinatorLoadInProgress.code()
    );
    *lab.fate.lock().unwrap() = Decision::FINE;
    lab.env.sleep(Duration::from_secs(1)).await;
    assert_eq!(heartbeat(&second, "g", &id, 1).await, 0);
}

#[tokio::test(start_paused = true)]
async fn no_member_hears_of_an_assignment_before_it_is_stored() {
    let mut lab = Lab::new();
    let groups = lab.open().await;
    let (one, other) = (join(&groups, "g", "").await, join(&groups, "g", "").await);
    let (one, other) = futures::join!(
        join(&groups, "g", &one.member_id),
        join(&groups, "g", &other.member_id)
    );
    assert_eq!((one.generation_id, other.generation_id), (1, 1));
    let (leader, follower) = match one.leader == one.member_id {
        true => (one.member_id, other.member_id),
        false => (other.member_id, one.member_id),
    };
    let slow = Decision {
        delay: Duration::from_secs(5),
        ..Decision::FINE
    };
    *lab.fate.lock().unwrap() = slow;
    let sync = |member: &StrBytes| {
        let assignments = [&leader, &follower].map(|member| {
            SyncGroupRequestAssignment::default()
                .with_member_id(member.clone())
                .with_assignment(Bytes::from(member.to_string()))
        });
        let request = SyncGroupRequest::default()
            .with_group_id(group("g"))
            .with_member_id(member.clone())
            .with_generation_id(1)
            .with_protocol_type(Some(text("consumer")))
            .with_protocol_name(Some(text("range")))
            .with_assignments(assignments.to_vec());
        let (groups, env, member) = (groups.clone(), lab.env.clone(), member.to_string());
        async move {
            let answer = ask(&groups, 5, RequestKind::SyncGroup(request)).await;
            match answer {
                Ok(ResponseKind::SyncGroup(synced)) => assert_eq!(synced.assignment, member),
                other => panic!("{other:?}"),
            }
            env.instant()
        }
    };
    let start = lab.env.instant();
    // The second asks when the leader has brought the assignments, which are on their way to the log.
    let later = async {
        lab.env.sleep(Duration::from_millis(100)).await;
        sync(&follower).await
    };
    for answered in <[_; 2]>::from(futures::join!(sync(&leader), later)) {
        let waited = answered.saturating_duration_since(start);
        assert!(waited >= Duration::from_secs(5), "{waited:?}");
    }
}
