//! Groups that are too large, or nearly.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests"
)]

mod lab;

use std::sync::Arc;

use bytes::Bytes;
use coordinator::replica::Status;
use groups::GroupService;
use kafka_wire::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_wire::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_wire::messages::{
    DeleteGroupsRequest, JoinGroupRequest, JoinGroupResponse, SyncGroupRequest, SyncGroupResponse,
};
use kafka_wire::{RequestKind, ResponseError, ResponseKind};

use lab::*;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

fn zeros(bytes: usize) -> Bytes {
    Bytes::from(vec![0; bytes])
}

/// A static member says that it speaks these protocols, with so many bytes for each.
async fn join_static(
    groups: &Arc<GroupService>,
    member: &str,
    protocols: &[(&str, usize)],
) -> JoinGroupResponse {
    let protocol = |(name, bytes): &(&str, usize)| {
        JoinGroupRequestProtocol::default()
            .with_name(text(name))
            .with_metadata(zeros(*bytes))
    };
    let request = JoinGroupRequest::default()
        .with_group_id(group("g"))
        .with_member_id(text(member))
        .with_group_instance_id(Some(text("host")))
        .with_session_timeout_ms(10_000)
        .with_rebalance_timeout_ms(30_000)
        .with_protocol_type(text("consumer"))
        .with_protocols(protocols.iter().map(protocol).collect());
    match ask(groups, 9, RequestKind::JoinGroup(request)).await {
        Ok(ResponseKind::JoinGroup(response)) => response,
        other => panic!("{other:?}"),
    }
}

/// The only member asks for its assignment, or brings one.
async fn sync(
    groups: &Arc<GroupService>,
    member: &str,
    generation: i32,
    assignment: Option<usize>,
) -> SyncGroupResponse {
    let assignments = assignment.map(|bytes| {
        SyncGroupRequestAssignment::default()
            .with_member_id(text(member))
            .with_assignment(zeros(bytes))
    });
    let request = SyncGroupRequest::default()
        .with_group_id(group("g"))
        .with_member_id(text(member))
        .with_group_instance_id(Some(text("host")))
        .with_generation_id(generation)
        .with_protocol_type(Some(text("consumer")))
        .with_protocol_name(Some(text("range")))
        .with_assignments(assignments.into_iter().collect());
    match ask(groups, 5, RequestKind::SyncGroup(request)).await {
        Ok(ResponseKind::SyncGroup(response)) => response,
        other => panic!("{other:?}"),
    }
}

/// The next leader knows the generation that was answered last.
async fn is_kept(lab: &mut Lab, member: &str, generation: i32, assignment: usize) {
    let groups = lab.open().await;
    let synced = sync(&groups, member, generation, None).await;
    assert_eq!((synced.error_code, synced.assignment.len()), (0, assignment));
}

const TOO_LARGE: ResponseError = ResponseError::UnknownServerError;

#[tokio::test(start_paused = true)]
async fn an_assignment_is_answered_only_if_the_log_takes_it() {
    let mut lab = Lab::new();
    let groups = lab.open().await;
    let range = [("range", 4 * MIB)];
    let id = join_static(&groups, "", &range).await.member_id.to_string();
    assert_eq!(
        sync(&groups, &id, 1, Some(5 * MIB)).await.error_code,
        TOO_LARGE.code()
    );
    let again = sync(&groups, &id, 1, None).await;
    let expected = ResponseError::RebalanceInProgress.code();
    assert_eq!((again.error_code, again.assignment.len()), (expected, 0));
    // Everybody joins again, and there is a new assignment.
    let joined = join_static(&groups, &id, &range).await;
    assert_eq!((joined.error_code, joined.generation_id), (0, 2));
    let bytes = 3 * MIB + 512 * KIB;
    assert_eq!(sync(&groups, &id, 2, Some(bytes)).await.assignment.len(), bytes);
    is_kept(&mut lab, &id, 2, bytes).await;
}

#[tokio::test(start_paused = true)]
async fn a_member_that_makes_its_group_too_large_for_the_log_joins_again() {
    let mut lab = Lab::new();
    lab.max_entry_bytes = 64 * KIB;
    let groups = lab.open().await;
    let id = join_static(&groups, "", &[("range", 10)]).await.member_id;
    let synced = sync(&groups, &id, 1, Some(50 * KIB)).await;
    assert_eq!(synced.error_code, 0);
    // It starts anew and says more than fits beside its assignment. What it would be told is not stored.
    let more = [("range", 10), ("other", 40 * KIB)];
    let refused = join_static(&groups, "", &more).await;
    assert_eq!(refused.error_code, TOO_LARGE.code());
    let joined = join_static(&groups, "", &more).await;
    assert_eq!((joined.error_code, joined.generation_id), (0, 2));
    let synced = sync(&groups, &joined.member_id, 2, Some(10 * KIB)).await;
    assert_eq!((synced.error_code, synced.assignment.len()), (0, 10 * KIB));
    is_kept(&mut lab, &joined.member_id, 2, 10 * KIB).await;
}

#[tokio::test(start_paused = true)]
async fn the_offsets_of_a_group_are_deleted_in_steps() {
    let mut lab = Lab::new();
    let groups = lab.open().await;
    let codes = commit(&groups, "g", NOBODY, 0..3_500, "").await;
    assert!(codes.iter().all(|code| *code == 0));
    let shard = lab.shard.clone().unwrap();
    let slots = || match *shard.status().borrow() {
        Status::Leading { applied, .. } => applied.0,
        ref other => panic!("{other:?}"),
    };
    let before = slots();
    let request = DeleteGroupsRequest::default().with_groups_names(vec![group("g")]);
    match ask(&groups, 2, RequestKind::DeleteGroups(request)).await {
        Ok(ResponseKind::DeleteGroups(deleted)) => assert_eq!(deleted.results[0].error_code, 0),
        other => panic!("{other:?}"),
    }
    assert!(slots() - before >= 4, "commits have their turn in between");
    assert!(committed(&groups, "g").await.is_empty());
    let groups = lab.open().await;
    assert!(list(&groups).await.unwrap().is_empty());
}
