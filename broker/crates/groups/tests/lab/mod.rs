//! Groups in a bucket, and clients of them.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests, of which each test binary uses some"
)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use blob::faults::{Decision, Faulty};
use blob::{MemoryStore, Operation, SharedStore};
use bytes::Bytes;
use coordinator::replica::Options;
use coordinator::shard::{Features, ShardOptions, ShardService};
use env::Env;
use groups::{GroupService, GroupSettings};
use kafka_wire::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_wire::messages::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use kafka_wire::messages::offset_fetch_request::OffsetFetchRequestGroup;
use kafka_wire::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_wire::messages::{
    GroupId, HeartbeatRequest, JoinGroupRequest, JoinGroupResponse, ListGroupsRequest, OffsetCommitRequest,
    OffsetFetchRequest, SyncGroupRequest, TopicName,
};
use kafka_wire::{RequestKind, ResponseError, ResponseKind, StrBytes};
use metalog::{MetadataLog, ObjectLog, Owner};
use tempfile::TempDir;
use types::{ShardId, TopicId};
use uuid::Uuid;

pub fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

pub fn group(id: &str) -> GroupId {
    GroupId(text(id))
}

/// A bucket with a shard that one node after the other leads.
pub struct Lab {
    pub env: Env,
    pub store: SharedStore,
    /// What the bucket does with every request.
    pub fate: Arc<Mutex<Decision>>,
    pub dirs: Vec<TempDir>,
    /// Largest entry of the log.
    pub max_entry_bytes: usize,
    /// As its last leader has it.
    pub shard: Option<ShardService>,
}

impl Lab {
    pub fn new() -> Lab {
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
            max_entry_bytes: Options::default().max_entry_bytes,
            shard: None,
        }
    }

    pub async fn open(&mut self) -> Arc<GroupService> {
        let groups = self.open_while(Decision::FINE).await;
        while list(&groups).await.is_none() {
            self.env.sleep(Duration::from_millis(10)).await;
        }
        groups
    }

    /// Leads the shard, and begins to load the groups when the bucket is like that.
    pub async fn open_while(&mut self, fate: Decision) -> Arc<GroupService> {
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
            replica: Options {
                max_entry_bytes: self.max_entry_bytes,
                ..Options::default()
            },
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

pub async fn ask(
    groups: &Arc<GroupService>,
    version: i16,
    request: RequestKind,
) -> Result<ResponseKind, ResponseError> {
    ask_of(groups, version, request, &[]).await
}

/// The same, passed on by a broker that knows these topics.
pub async fn ask_of(
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
pub async fn list(groups: &Arc<GroupService>) -> Option<Vec<(String, String)>> {
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

pub async fn join(groups: &Arc<GroupService>, id: &str, member: &str) -> JoinGroupResponse {
    join_for(groups, id, member, 10_000).await
}

pub async fn join_for(
    groups: &Arc<GroupService>,
    id: &str,
    member: &str,
    session_ms: i32,
) -> JoinGroupResponse {
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
pub async fn member(groups: &Arc<GroupService>, id: &str) -> String {
    member_for(groups, id, 10_000).await
}

pub async fn member_for(groups: &Arc<GroupService>, id: &str, session_ms: i32) -> String {
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

pub async fn heartbeat(groups: &Arc<GroupService>, id: &str, member: &str, generation: i32) -> i16 {
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

pub async fn commit(
    groups: &Arc<GroupService>,
    id: &str,
    member: (&str, i32),
    partitions: std::ops::Range<i32>,
    metadata: &str,
) -> Vec<i16> {
    commit_of(groups, id, member, partitions, metadata, &[]).await
}

pub async fn commit_of(
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
pub async fn committed(groups: &Arc<GroupService>, id: &str) -> Vec<(i32, i64, String)> {
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

pub const NOBODY: (&str, i32) = ("", -1);
