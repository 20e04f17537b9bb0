//! All groups of a shard.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use coordinator::replica::ReplicaError;
use coordinator::shard::ShardService;
use env::{Env, Instant};
use kafka_wire::messages::leave_group_response::MemberResponse;
use kafka_wire::messages::{
    DeleteGroupsRequest, DeleteGroupsResponse, HeartbeatRequest, HeartbeatResponse, JoinGroupRequest,
    LeaveGroupRequest, LeaveGroupResponse, SyncGroupRequest, SyncGroupResponse,
    delete_groups_response::DeletableGroupResult,
};
use kafka_wire::{RequestKind, ResponseError, ResponseKind};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use types::{FastMap, TopicId};

use crate::group::{Group, Join, Reply, Rules, Sync, Ticket, join_refused, sync_refused};
use crate::record::GroupRecord;
use crate::saves::Saving;
use crate::settings::GroupSettings;

/// Deadlines are looked at no more often than this.
const GRAIN: Duration = Duration::from_millis(50);
/// After groups could not be loaded.
const LOAD_AGAIN: Duration = Duration::from_millis(200);
/// First version in which a member without an id is told one (KIP-394).
const MEMBER_ID_REQUIRED: i16 = 4;
/// First version in which the leader can be told not to assign anew (KIP-814).
const SKIP_ASSIGNMENT: i16 = 9;
/// First version of SyncGroup that says which protocol the member means (KIP-559).
const PROTOCOL_NAMED: i16 = 5;
/// First version of JoinGroup whose answer may name no protocol (KIP-559).
const NO_PROTOCOL: i16 = 7;
/// First version of LeaveGroup with a list of members.
const LEAVE_MANY: i16 = 3;

type Answer = Result<ResponseKind, ResponseError>;

/// The groups of a shard that this node leads.
pub struct GroupService {
    pub(crate) env: Env,
    pub(crate) shard: ShardService,
    pub(crate) settings: GroupSettings,
    pub(crate) rules: Rules,
    pub(crate) state: Mutex<Groups>,
    /// A deadline came nearer.
    pub(crate) sooner: Notify,
    /// A group has no save under way any more.
    pub(crate) saved: Notify,
}

#[derive(Default)]
pub(crate) struct Groups {
    phase: Phase,
    pub(crate) groups: BTreeMap<String, Group>,
    waiting: FastMap<Ticket, oneshot::Sender<Answer>>,
    tickets: Ticket,
    pub(crate) saving: BTreeMap<String, Saving>,
    /// Groups that are being deleted: their requests are to come again.
    pub(crate) deleting: BTreeSet<String>,
    /// When the timer looks next.
    pub(crate) next_look: Option<Instant>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Loading,
    Open,
    Lost,
}

pub(crate) fn code(error: &ReplicaError) -> ResponseError {
    match error {
        ReplicaError::Loading => ResponseError::CoordinatorLoadInProgress,
        ReplicaError::NotLeader => ResponseError::NotCoordinator,
        // What clients may send is bounded so that it fits; see `Rules` and `offsets`.
        ReplicaError::TooLarge { .. } => ResponseError::InvalidRequest,
        ReplicaError::Unavailable(_) => ResponseError::CoordinatorNotAvailable,
    }
}

impl GroupService {
    /// Returns at once; the groups are restored when the shard is led from here.
    pub fn start(env: &Env, shard: ShardService, settings: GroupSettings) -> Arc<GroupService> {
        let service = Arc::new(GroupService {
            env: env.clone(),
            rules: Rules::new(&settings, shard.max_entry_bytes()),
            shard,
            settings,
            state: Mutex::default(),
            sooner: Notify::new(),
            saved: Notify::new(),
        });
        let running = service.clone();
        env.spawn(async move {
            let ended = running.shard.clone();
            tokio::select! {
                biased;
                _ = ended.ended() => {}
                () = running.run() => {}
            }
            running.lose();
        });
        service
    }

    async fn run(self: &Arc<Self>) {
        if self.shard.leading().await.is_err() {
            return;
        }
        // A store that fails for a moment must not leave the groups unserved for as long as the shard is led here.
        while let Err(error) = self.load().await {
            tracing::warn!(shard = %self.shard.shard(), %error, "groups not loaded, it is tried again");
            self.env.sleep(LOAD_AGAIN).await;
        }
        futures::join!(self.tick(), self.expire());
    }

    async fn load(&self) -> Result<(), ReplicaError> {
        let stored = self.shard.load_groups().await?;
        let (now, rules) = (self.env.instant(), self.rules);
        let mut state = self.state.lock();
        for group in stored {
            let only_offsets = |since| {
                let mut group = Group::new(rules, since);
                group.note_commit();
                group
            };
            let stored = group.metadata.filter(|_| !env::mutation("forget-groups"));
            let restored = match stored.map(GroupRecord::read) {
                Some(Ok(record)) => Group::restore(record, rules, now),
                Some(Err(error)) => {
                    tracing::error!(group = group.group, %error, "a stored group cannot be read; its members join anew");
                    only_offsets(self.env.now())
                }
                None => only_offsets(types::Timestamp(0)),
            };
            state.groups.insert(group.group, restored);
        }
        state.phase = Phase::Open;
        Ok(())
    }

    /// The shard is led elsewhere: whoever waits is to ask there.
    fn lose(&self) {
        let mut state = self.state.lock();
        state.phase = Phase::Lost;
        for (_, waiting) in state.waiting.drain() {
            let _ = waiting.send(Err(ResponseError::NotCoordinator));
        }
        state.groups.clear();
    }

    /// Answers a request. `topics` are those that it names, where that is known. An error means that nothing was decided
    /// and the next leader is to be asked.
    pub async fn handle(
        self: &Arc<Self>,
        client_id: &str,
        client_host: &str,
        version: i16,
        request: RequestKind,
        topics: BTreeMap<String, TopicId>,
    ) -> Answer {
        match request {
            RequestKind::JoinGroup(request) => {
                let mut answer = self.join(client_id, client_host, version, request).await;
                if let Ok(ResponseKind::JoinGroup(response)) = &mut answer
                    && response.error_code != 0
                    && version >= NO_PROTOCOL
                {
                    response.protocol_name = None;
                }
                answer
            }
            RequestKind::SyncGroup(request) => self.sync(version, request).await,
            RequestKind::Heartbeat(request) => self.heartbeat(&request),
            RequestKind::LeaveGroup(request) => self.leave(version, request),
            RequestKind::OffsetCommit(request) => self.offset_commit(version, request, topics).await,
            RequestKind::OffsetFetch(request) => self.offset_fetch(version, request).await,
            RequestKind::OffsetDelete(request) => self.offset_delete(request).await,
            RequestKind::DescribeGroups(request) => self.describe(version, &request),
            RequestKind::ListGroups(request) => self.list(&request),
            RequestKind::DeleteGroups(request) => self.delete(request).await,
            _ => Err(ResponseError::InvalidRequest),
        }
    }

    /// Runs `work` on the groups, if this is the place to do so.
    pub(crate) fn with<T>(
        &self,
        group: &str,
        work: impl FnOnce(&mut Groups) -> T,
    ) -> Result<T, ResponseError> {
        let mut state = self.state.lock();
        match state.phase {
            Phase::Loading => Err(ResponseError::CoordinatorLoadInProgress),
            Phase::Lost => Err(ResponseError::NotCoordinator),
            Phase::Open if state.deleting.contains(group) => Err(ResponseError::CoordinatorLoadInProgress),
            Phase::Open => Ok(work(&mut state)),
        }
    }

    async fn join(
        self: &Arc<Self>,
        client_id: &str,
        client_host: &str,
        version: i16,
        request: JoinGroupRequest,
    ) -> Answer {
        let refuse = |error| Ok(join_refused(&request.member_id, error));
        if request.group_id.is_empty() {
            return refuse(ResponseError::InvalidGroupId);
        }
        let millis = |ms: i32| Duration::from_millis(u64::try_from(ms).unwrap_or(0));
        let session_timeout = millis(request.session_timeout_ms);
        if session_timeout < self.settings.min_session_timeout
            || session_timeout > self.settings.max_session_timeout
        {
            return refuse(ResponseError::InvalidSessionTimeout);
        }
        let metadata: usize = request
            .protocols
            .iter()
            .map(|protocol| protocol.metadata.len())
            .sum();
        if metadata > self.settings.max_member_metadata {
            return refuse(ResponseError::InvalidRequest);
        }
        // Version 0 has no rebalance timeout.
        let rebalance_timeout = if request.rebalance_timeout_ms < 0 {
            session_timeout
        } else {
            millis(request.rebalance_timeout_ms)
        };
        let protocols = request
            .protocols
            .into_iter()
            .map(|p| (p.name.to_string(), p.metadata))
            .collect();
        let group_id = request.group_id.0.to_string();
        let (now, time) = (self.env.instant(), self.env.now());
        let unique = self.env.uuid();
        let answer = self.with(&group_id, |state| {
            let (ticket, answer) = state.ticket();
            let join = Join {
                ticket,
                member_id: request.member_id.to_string(),
                instance_id: request.group_instance_id.map(|id| id.to_string()),
                client_id: client_id.to_owned(),
                client_host: client_host.to_owned(),
                session_timeout,
                rebalance_timeout,
                protocol_type: request.protocol_type.to_string(),
                protocols,
                requires_known_member: version >= MEMBER_ID_REQUIRED,
                can_skip_assignment: version >= SKIP_ASSIGNMENT,
                unique,
            };
            if join.member_id.is_empty() {
                state
                    .groups
                    .entry(group_id.clone())
                    .or_insert_with(|| Group::new(self.rules, time));
            }
            let replies = match state.groups.get_mut(&group_id) {
                Some(group) => group.join(now, time, join),
                None => vec![Reply {
                    ticket,
                    response: join_refused(&join.member_id, ResponseError::UnknownMemberId),
                }],
            };
            self.settle(state, &group_id, replies);
            answer
        })?;
        answer.await.unwrap_or(Err(ResponseError::NotCoordinator))
    }

    async fn sync(self: &Arc<Self>, version: i16, request: SyncGroupRequest) -> Answer {
        let refuse = |error: ResponseError| {
            let refused = SyncGroupResponse::default().with_error_code(error.code());
            Ok(ResponseKind::SyncGroup(refused))
        };
        if request.group_id.is_empty() {
            return refuse(ResponseError::InvalidGroupId);
        }
        if version >= PROTOCOL_NAMED && (request.protocol_type.is_none() || request.protocol_name.is_none()) {
            return refuse(ResponseError::InconsistentGroupProtocol);
        }
        let group_id = request.group_id.0.to_string();
        let (now, time) = (self.env.instant(), self.env.now());
        let answer = self.with(&group_id, |state| {
            let (ticket, answer) = state.ticket();
            let assignments = request
                .assignments
                .into_iter()
                .map(|a| (a.member_id.to_string(), a.assignment))
                .collect();
            let sync = Sync {
                ticket,
                member_id: request.member_id.to_string(),
                instance_id: request.group_instance_id.map(|id| id.to_string()),
                generation: request.generation_id,
                protocol_type: request.protocol_type.map(|text| text.to_string()),
                protocol: request.protocol_name.map(|text| text.to_string()),
                assignments,
            };
            let replies = match state.groups.get_mut(&group_id) {
                Some(group) => group.sync(now, time, sync),
                None => vec![sync_refused(ticket, ResponseError::UnknownMemberId)],
            };
            self.settle(state, &group_id, replies);
            answer
        })?;
        answer.await.unwrap_or(Err(ResponseError::NotCoordinator))
    }

    fn heartbeat(&self, request: &HeartbeatRequest) -> Answer {
        if request.group_id.is_empty() {
            let error = ResponseError::InvalidGroupId.code();
            return Ok(ResponseKind::Heartbeat(
                HeartbeatResponse::default().with_error_code(error),
            ));
        }
        let now = self.env.instant();
        let instance = request.group_instance_id.as_deref();
        let result = self.with(&request.group_id, |state| {
            match state.groups.get_mut(request.group_id.as_str()) {
                Some(group) => group.heartbeat(now, &request.member_id, instance, request.generation_id),
                None => Err(ResponseError::UnknownMemberId),
            }
        })?;
        let code = result.err().map_or(0, |error| error.code());
        Ok(ResponseKind::Heartbeat(
            HeartbeatResponse::default().with_error_code(code),
        ))
    }

    fn leave(self: &Arc<Self>, version: i16, request: LeaveGroupRequest) -> Answer {
        let (now, time) = (self.env.instant(), self.env.now());
        let group_id = request.group_id.0.to_string();
        if group_id.is_empty() {
            let error = ResponseError::InvalidGroupId.code();
            return Ok(ResponseKind::LeaveGroup(
                LeaveGroupResponse::default().with_error_code(error),
            ));
        }
        let code = |result: Result<(), ResponseError>| result.err().map_or(0, |error| error.code());
        self.with(&group_id, |state| {
            let mut replies = Vec::new();
            let mut leave = |member: &str, instance: Option<&str>| match state.groups.get_mut(&group_id) {
                Some(group) => group.leave(now, time, member, instance, &mut replies),
                None => Err(ResponseError::UnknownMemberId),
            };
            let response = if version < LEAVE_MANY {
                LeaveGroupResponse::default().with_error_code(code(leave(&request.member_id, None)))
            } else {
                let members = request.members.iter().map(|member| {
                    let result = leave(&member.member_id, member.group_instance_id.as_deref());
                    MemberResponse::default()
                        .with_member_id(member.member_id.clone())
                        .with_group_instance_id(member.group_instance_id.clone())
                        .with_error_code(code(result))
                });
                LeaveGroupResponse::default().with_members(members.collect())
            };
            self.settle(state, &group_id, replies);
            ResponseKind::LeaveGroup(response)
        })
    }

    async fn delete(self: &Arc<Self>, request: DeleteGroupsRequest) -> Answer {
        let mut results = Vec::new();
        for group in request.groups_names {
            let error = match self.delete_group(&group, |_| true).await? {
                true => None,
                false if self.with(&group, |state| state.groups.contains_key(group.as_str()))? => {
                    Some(ResponseError::NonEmptyGroup)
                }
                false => Some(ResponseError::GroupIdNotFound),
            };
            let code = kafka_wire::code(error);
            results.push(
                DeletableGroupResult::default()
                    .with_group_id(group)
                    .with_error_code(code),
            );
        }
        Ok(ResponseKind::DeleteGroups(
            DeleteGroupsResponse::default().with_results(results),
        ))
    }

    async fn tick(self: &Arc<Self>) {
        loop {
            let (now, time) = (self.env.instant(), self.env.now());
            let next = {
                let mut state = self.state.lock();
                let due = |group: &Group| group.next_deadline().is_some_and(|deadline| deadline <= now);
                let due: Vec<String> = state
                    .groups
                    .iter()
                    .filter(|(_, group)| due(group))
                    .map(|(id, _)| id.clone())
                    .collect();
                for id in due {
                    let replies = state
                        .groups
                        .get_mut(&id)
                        .map(|group| group.tick(now, time))
                        .unwrap_or_default();
                    self.settle(&mut state, &id, replies);
                }
                state.next_look = state.groups.values().filter_map(Group::next_deadline).min();
                state.next_look
            };
            let wait = async {
                match next {
                    Some(deadline) => self.env.sleep_until(deadline.max(now + GRAIN)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.sooner.notified() => self.env.sleep(GRAIN).await,
                () = wait => {}
            }
        }
    }
}

impl Groups {
    fn ticket(&mut self) -> (Ticket, oneshot::Receiver<Answer>) {
        self.tickets += 1;
        let (waiting, answer) = oneshot::channel();
        self.waiting.insert(self.tickets, waiting);
        (self.tickets, answer)
    }

    pub(crate) fn answer(&mut self, ticket: Ticket, answer: Answer) {
        if let Some(waiting) = self.waiting.remove(&ticket) {
            // The client may have gone.
            let _ = waiting.send(answer);
        }
    }
}
