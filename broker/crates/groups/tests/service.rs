//! Groups of a shard as their clients meet them: what is kept, what is forgotten, what a take-over does.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests"
)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use blob::faults::{Decision, Fault, Faulty};
use blob::{BlobError, MemoryStore, Operation, SharedStore};
use bytes::Bytes;
use coordinator::protocol::{DeleteTopic, DeleteTopicsRequest};
use coordinator::replica::Options;
use coordinator::shard::{Features, ShardOptions, ShardService};
use env::Env;
use groups::{GroupService, GroupSettings};
use kafka_wire::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_wire::messages::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use kafka_wire::messages::offset_delete_request::{OffsetDeleteRequestPartition, OffsetDeleteRequestTopic};
use kafka_wire::messages::offset_fetch_request::OffsetFetchRequestGroup;
use kafka_wire::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_wire::messages::{
    DeleteGroupsRequest, DescribeGroupsRequest, GroupId, HeartbeatRequest, JoinGroupRequest,
    JoinGroupResponse, LeaveGroupRequest, ListGroupsRequest, OffsetCommitRequest, OffsetDeleteRequest,
    OffsetFetchRequest, SyncGroupRequest, TopicName,
};
use kafka_wire::{RequestKind, ResponseError, ResponseKind, StrBytes};
use metalog::{MetadataLog, ObjectLog, Owner};
use tempfile::TempDir;
use types::{ShardId, TopicId};
use uuid::Uuid;

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

fn group(id: &str) -> GroupId {
    GroupId(text(id))
}

/// A bucket with a shard that one node after the other leads.
struct Lab {
    env: Env,
    store: SharedStore,
    /// What the bucket does with every request.
    fate: Arc<Mutex<Decision>>,
    dirs: Vec<TempDir>,
    /// As its last leader has it.
    shard: Option<ShardService>,
}

impl Lab {
    fn new() -> Lab {
        let env = Env::simulated(3);
        let fate = Arc::new(Mutex::new(Decision::FINE));
        let decided = fate.clone();
        let memory = Arc::new(MemoryStore::new(env.clone()));
        let plan = Arc::new(move |_: Operation, _: &str| decided.lock().unwrap().clone());
        Lab {
            store: Arc::new(Faulty::new(memory, env.clone(), plan)),
            env,
            fate,
            dirs: Vec::new(),
            shard: None,
        }
    }

    async fn open(&mut self) -> Arc<GroupService> {
        let groups = self.open_while(Decision::FINE).await;
        while list(&groups).await.is_none() {
            self.env.sleep(Duration::from_millis(10)).await;
        }
        groups
    }

    /// Leads the shard, and begins to load the groups when the bucket is like that.
    async fn open_while(&mut self, fate: Decision) -> Arc<GroupService> {
        let node = i32::try_from(self.dirs.len()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let log = ObjectLog::new(
            self.store.clone(),
            "shard-0",
            metalog::Options::default(),
            self.env.clone(),
        );
        let log: Arc<dyn MetadataLog> = Arc::new(log);
        let owner = Owner {
            node_id: node,
            incarnation: Uuid::from_u128(1),
            address: format!("node-{node}:9190"),
        };
        let options = ShardOptions {
            shard: ShardId(0),
            data_dir: dir.path().to_owned(),
            replica: Options::default(),
            features: Features::default(),
        };
        self.dirs.push(dir);
        let shard = ShardService::start(&self.env, options, log, owner).unwrap();
        shard.leading().await.unwrap();
        self.shard = Some(shard.clone());
        let settings = GroupSettings {
            initial_rebalance_delay: Duration::ZERO,
            ..GroupSettings::default()
        };
        *self.fate.lock().unwrap() = fate;
        GroupService::start(&self.env, shard, settings)
    }
}

async fn ask(
    groups: &Arc<GroupService>,
    version: i16,
    request: RequestKind,
) -> Result<ResponseKind, ResponseError> {
    ask_of(groups, version, request, &[]).await
}

/// The same, passed on by a broker that knows these topics.
async fn ask_of(
    groups: &Arc<GroupService>,
    version: i16,
    request: RequestKind,
    topics: &[(&str, TopicId)],
) -> Result<ResponseKind, ResponseError> {
    let topics = topics.iter().map(|(name, id)| ((*name).to_owned(), *id));
    groups
        .handle("client", "/127.0.0.1", version, request, topics.collect())
        .await
}

/// Ids and states; `None` while the groups are loaded.
async fn list(groups: &Arc<GroupService>) -> Option<Vec<(String, String)>> {
    match ask(groups, 5, RequestKind::ListGroups(ListGroupsRequest::default())).await {
        Ok(ResponseKind::ListGroups(listed)) => Some(
            listed
                .groups
                .iter()
                .map(|g| (g.group_id.to_string(), g.group_state.to_string()))
                .collect(),
        ),
        Err(ResponseError::CoordinatorLoadInProgress) => None,
        other => panic!("{other:?}"),
    }
}

async fn join(groups: &Arc<GroupService>, id: &str, member: &str) -> JoinGroupResponse {
    join_for(groups, id, member, 10_000).await
}

async fn join_for(groups: &Arc<GroupService>, id: &str, member: &str, session_ms: i32) -> JoinGroupResponse {
    let protocol = JoinGroupRequestProtocol::default()
        .with_name(text("range"))
        .with_metadata(Bytes::from("t"));
    let request = JoinGroupRequest::default()
        .with_group_id(group(id))
        .with_member_id(text(member))
        .with_session_timeout_ms(session_ms)
        .with_rebalance_timeout_ms(30_000)
        .with_protocol_type(text("consumer"))
        .with_protocols(vec![protocol]);
    match ask(groups, 9, RequestKind::JoinGroup(request)).await {
        Ok(ResponseKind::JoinGroup(response)) => response,
        other => panic!("{other:?}"),
    }
}

/// The only member of a group, in a stable generation.
async fn member(groups: &Arc<GroupService>, id: &str) -> String {
    member_for(groups, id, 10_000).await
}

async fn member_for(groups: &Arc<GroupService>, id: &str, session_ms: i32) -> String {
    let told = join_for(groups, id, "", session_ms).await;
    assert_eq!(told.error_code, ResponseError::MemberIdRequired.code());
    let joined = join_for(groups, id, &told.member_id, session_ms).await;
    assert_eq!((joined.error_code, joined.generation_id), (0, 1));
    let assignment = SyncGroupRequestAssignment::default()
        .with_member_id(joined.member_id.clone())
        .with_assignment(Bytes::from("all of it"));
    let request = SyncGroupRequest::default()
        .with_group_id(group(id))
        .with_member_id(joined.member_id.clone())
        .with_generation_id(1)
        .with_protocol_type(Some(text("consumer")))
        .with_protocol_name(Some(text("range")))
        .with_assignments(vec![assignment]);
    match ask(groups, 5, RequestKind::SyncGroup(request)).await {
        Ok(ResponseKind::SyncGroup(synced)) => assert_eq!(
            (synced.error_code, &synced.assignment[..]),
            (0, &b"all of it"[..])
        ),
        other => panic!("{other:?}"),
    }
    joined.member_id.to_string()
}

async fn heartbeat(groups: &Arc<GroupService>, id: &str, member: &str, generation: i32) -> i16 {
    let request = HeartbeatRequest::default()
        .with_group_id(group(id))
        .with_member_id(text(member))
        .with_generation_id(generation);
    match ask(groups, 4, RequestKind::Heartbeat(request)).await {
        Ok(ResponseKind::Heartbeat(response)) => response.error_code,
        Err(error) => error.code(),
        other => panic!("{other:?}"),
    }
}

async fn commit(
    groups: &Arc<GroupService>,
    id: &str,
    member: (&str, i32),
    partitions: std::ops::Range<i32>,
    metadata: &str,
) -> Vec<i16> {
    commit_of(groups, id, member, partitions, metadata, &[]).await
}

async fn commit_of(
    groups: &Arc<GroupService>,
    id: &str,
    member: (&str, i32),
    partitions: std::ops::Range<i32>,
    metadata: &str,
    topics: &[(&str, TopicId)],
) -> Vec<i16> {
    let partitions = partitions.map(|index| {
        OffsetCommitRequestPartition::default()
            .with_partition_index(index)
            .with_committed_offset(i64::from(index) + 100)
            .with_committed_metadata(Some(text(metadata)))
    });
    let topic = OffsetCommitRequestTopic::default()
        .with_name(TopicName(text("t")))
        .with_partitions(partitions.collect());
    let request = OffsetCommitRequest::default()
        .with_group_id(group(id))
        .with_member_id(text(member.0))
        .with_generation_id_or_member_epoch(member.1)
        .with_topics(vec![topic]);
    match ask_of(groups, 9, RequestKind::OffsetCommit(request), topics).await {
        Ok(ResponseKind::OffsetCommit(response)) => response
            .topics
            .iter()
            .flat_map(|t| &t.partitions)
            .map(|p| p.error_code)
            .collect(),
        Err(error) => vec![error.code()],
        other => panic!("{other:?}"),
    }
}

/// Partition, offset and metadata of everything that is committed.
async fn committed(groups: &Arc<GroupService>, id: &str) -> Vec<(i32, i64, String)> {
    let of = OffsetFetchRequestGroup::default()
        .with_group_id(group(id))
        .with_topics(None);
    let request = OffsetFetchRequest::default().with_groups(vec![of]);
    match ask(groups, 9, RequestKind::OffsetFetch(request)).await {
        Ok(ResponseKind::OffsetFetch(response)) => {
            let partitions = response.groups[0]
                .topics
                .iter()
                .flat_map(|topic| &topic.partitions);
            partitions
                .map(|p| {
                    (
                        p.partition_index,
                        p.committed_offset,
                        p.metadata.as_deref().unwrap_or_default().to_owned(),
                    )
                })
                .collect()
        }
        other => panic!("{other:?}"),
    }
}

const NOBODY: (&str, i32) = ("", -1);

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
