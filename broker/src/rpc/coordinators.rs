//! Calls to whoever leads a shard (or the cluster log) now, repeated until the deadline while leadership moves, and asked anew
//! at once when another node is named: the one before may be frozen.

use std::time::Duration;

use bytes::Bytes;
use cluster::protocol::{
    AllocateProducerIdsRequest, AllocateProducerIdsResponse, ForwardRequest, ForwardResponse, NamedTopic,
};
use coordinator::protocol::{
    CommitFileRequest, CommitFileResponse, DeleteRecordsRequest, DeleteRecordsResponse, DescribeFilesRequest,
    DescribeFilesResponse, DescribePartitionsRequest, DescribePartitionsResponse, ErrorResponse,
    FindBatchesRequest, FindBatchesResponse, HandOverFileRequest, ListOffsetsRequest, ListOffsetsResponse,
    TailRequest, TailResponse, api_key,
};
use env::{Env, Instant};
use kafka_wire::flex::{Decode, Encode};
use kafka_wire::{ApiKey, ResponseError};
use types::{NodeId, ShardId};

use super::seen::{Bounds, Seen};
use super::{Lane, Pool, RpcError};
use crate::metadata::Metadata;

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// One attempt: a peer that is frozen must not eat the whole deadline.
const ATTEMPT: Duration = Duration::from_secs(5);

/// A leader that has not found batches after this time may be gone: a follower is asked beside it,
const FOLLOWER_AFTER: Duration = Duration::from_millis(250);
/// which gets this long,
const FOLLOWER_ATTEMPT: Duration = Duration::from_secs(1);
/// and is asked again after this pause, because it may still be catching up.
const FOLLOWER_PAUSE: Duration = Duration::from_millis(100);

/// Who a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The leader of a shard.
    Shard(ShardId),
    /// The leader of the cluster log.
    Controller,
}

/// How a request is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Manner {
    lane: Lane,
    /// How long one node is waited for.
    attempt: Duration,
    /// Nothing is lost if two nodes work on it: when another one is named, it is asked at once.
    moves: bool,
}

/// That of the requests of this project: all may be repeated.
const PROMPT: Manner = Manner {
    lane: Lane::Prompt,
    attempt: ATTEMPT,
    moves: true,
};

impl Manner {
    /// That of a client's request for which there is so much time.
    fn of_forwarded(request: &Bytes, time: Duration) -> Manner {
        let key = request.first_chunk().map(|key| i16::from_be_bytes(*key));
        match key.and_then(|key| ApiKey::try_from(key).ok()) {
            // They wait for other members, whom a new owner knows no more than them.
            Some(ApiKey::JoinGroup | ApiKey::SyncGroup) => Manner {
                lane: Lane::Held,
                attempt: time,
                moves: true,
            },
            // The second answer is the same as the first.
            Some(
                ApiKey::Heartbeat
                | ApiKey::OffsetCommit
                | ApiKey::OffsetFetch
                | ApiKey::OffsetDelete
                | ApiKey::DescribeGroups
                | ApiKey::ListGroups,
            ) => PROMPT,
            // Of one that leaves, makes or deletes the second answer may be an error because the first one was done.
            _ => Manner {
                attempt: time,
                moves: false,
                ..PROMPT
            },
        }
    }
}

/// Finds leaders by the metadata image and talks to them. Cheap to clone.
#[derive(Clone)]
pub struct Coordinators {
    env: Env,
    metadata: Metadata,
    pool: Pool,
    seen: Seen,
}

/// An answer says whether the asked node could decide.
trait Answer: Decode {
    fn error_code(&self) -> i16;
}

macro_rules! answers {
    ($($response:ty),*) => { $(impl Answer for $response {
        fn error_code(&self) -> i16 {
            self.error_code
        }
    })* };
}

answers!(
    CommitFileResponse,
    FindBatchesResponse,
    ListOffsetsResponse,
    DeleteRecordsResponse,
    DescribePartitionsResponse,
    DescribeFilesResponse,
    TailResponse,
    ErrorResponse,
    AllocateProducerIdsResponse,
    ForwardResponse
);

impl Coordinators {
    /// Calls go to the leaders that `metadata` names.
    pub fn new(env: Env, metadata: Metadata, pool: Pool) -> Coordinators {
        Coordinators {
            env,
            metadata,
            pool,
            seen: Seen::default(),
        }
    }

    /// `DisklessCommitFile`. An unknown outcome is asked again by the same object until `deadline`.
    pub async fn commit_file(
        &self,
        request: &CommitFileRequest,
        deadline: Instant,
    ) -> Result<CommitFileResponse, RpcError> {
        self.ask(request.shard, api_key::COMMIT_FILE, request, deadline)
            .await
    }

    /// `DisklessFindBatches`. When the leader does not answer in time a follower is asked as well. What either says counts
    /// unless it is behind what this node has seen of one of the partitions.
    pub async fn find_batches(
        &self,
        request: &FindBatchesRequest,
        deadline: Instant,
    ) -> Result<FindBatchesResponse, RpcError> {
        let found = tokio::select! {
            biased;
            found = self.ask_leader(request, deadline) => found?,
            found = self.ask_follower(request) => found,
        };
        let now = self.env.instant();
        for (wanted, result) in request.partitions.iter().zip(&found.partitions) {
            let bounds = Bounds {
                log_start_offset: result.log_start_offset,
                high_watermark: result.high_watermark,
            };
            self.seen.raise(wanted.partition, bounds, now);
        }
        Ok(found)
    }

    /// The answer of a leader that has everything this node has seen. One that was deposed while it was frozen or cut off does not know
    /// it, and a follower may be ahead of the true one for a moment.
    async fn ask_leader(
        &self,
        request: &FindBatchesRequest,
        deadline: Instant,
    ) -> Result<FindBatchesResponse, RpcError> {
        loop {
            let leader = Destination::Shard(request.shard);
            let found: FindBatchesResponse = self
                .call(leader, api_key::FIND_BATCHES, request, deadline, PROMPT)
                .await?;
            if !self.seen.is_behind(request, &found) {
                return Ok(found);
            }
            if self.env.instant() >= deadline {
                return Err(RpcError::TimedOut);
            }
            self.env.sleep(self.env.jittered(FIRST_PAUSE)).await;
        }
    }

    /// Resolves when a follower has an answer that counts.
    async fn ask_follower(&self, request: &FindBatchesRequest) -> FindBatchesResponse {
        self.env.sleep(FOLLOWER_AFTER).await;
        loop {
            let image = self.metadata.image();
            let follower = image.shard(request.shard).map(|shard| shard.follower.as_str());
            if let Some(address) = follower.filter(|address| !address.is_empty()) {
                let until = self.env.instant() + FOLLOWER_ATTEMPT;
                let answer =
                    self.pool
                        .call::<FindBatchesResponse>(address, api_key::FIND_BATCHES, request, until);
                if let Ok(answer) = answer.await
                    && answer.error_code == 0
                    && self.seen.agrees(request, &answer)
                {
                    return answer;
                }
            }
            self.env.sleep(self.env.jittered(FOLLOWER_PAUSE)).await;
        }
    }

    /// `DisklessListOffsets`.
    pub async fn list_offsets(
        &self,
        request: &ListOffsetsRequest,
        deadline: Instant,
    ) -> Result<ListOffsetsResponse, RpcError> {
        self.ask(request.shard, api_key::LIST_OFFSETS, request, deadline)
            .await
    }

    /// `DisklessDeleteRecords`.
    pub async fn delete_records(
        &self,
        request: &DeleteRecordsRequest,
        deadline: Instant,
    ) -> Result<DeleteRecordsResponse, RpcError> {
        self.ask(request.shard, api_key::DELETE_RECORDS, request, deadline)
            .await
    }

    /// `DisklessDescribePartitions`.
    pub async fn describe_partitions(
        &self,
        request: &DescribePartitionsRequest,
        deadline: Instant,
    ) -> Result<DescribePartitionsResponse, RpcError> {
        self.ask(request.shard, api_key::DESCRIBE_PARTITIONS, request, deadline)
            .await
    }

    /// `DisklessTail`.
    pub async fn tail(&self, request: &TailRequest, deadline: Instant) -> Result<TailResponse, RpcError> {
        let manner = Manner {
            attempt: ATTEMPT + Duration::from_millis(u64::from(request.max_wait_ms)),
            ..PROMPT
        };
        let leader = Destination::Shard(request.shard);
        let mut news: TailResponse = self
            .call(leader, api_key::TAIL, request, deadline, manner)
            .await?;
        let now = self.env.instant();
        self.seen.prune(&self.metadata.image(), now);
        for update in &mut news.partitions {
            match update.deleted {
                true => self.seen.forget(&update.partition),
                // After a change of leaders old news may come again, as they were when they were new.
                false => {
                    let bounds = Bounds {
                        log_start_offset: update.log_start_offset,
                        high_watermark: update.high_watermark,
                    };
                    let seen = self.seen.raise(update.partition, bounds, now);
                    update.log_start_offset = seen.log_start_offset;
                    update.high_watermark = seen.high_watermark;
                }
            }
        }
        Ok(news)
    }

    /// `DisklessDescribeFiles`.
    pub async fn describe_files(
        &self,
        request: &DescribeFilesRequest,
        deadline: Instant,
    ) -> Result<DescribeFilesResponse, RpcError> {
        self.ask(request.shard, api_key::DESCRIBE_FILES, request, deadline)
            .await
    }

    /// `DisklessHandOverFile`.
    pub async fn hand_over_file(
        &self,
        request: &HandOverFileRequest,
        deadline: Instant,
    ) -> Result<ErrorResponse, RpcError> {
        self.ask(request.shard, api_key::HAND_OVER_FILE, request, deadline)
            .await
    }

    /// A block of producer ids for `node`.
    pub async fn allocate_producer_ids(
        &self,
        node: NodeId,
        deadline: Instant,
    ) -> Result<AllocateProducerIdsResponse, RpcError> {
        let request = AllocateProducerIdsRequest { node };
        self.call(
            Destination::Controller,
            api_key::ALLOCATE_PRODUCER_IDS,
            &request,
            deadline,
            PROMPT,
        )
        .await
    }

    /// Passes a client's request (header and body) to its owner and gives the reply (header and body). Requests that
    /// wait at the owner, such as JoinGroup, get the whole time until `deadline`. `topics`: those that the request names.
    pub async fn forward(
        &self,
        to: Destination,
        client_host: &str,
        request: Bytes,
        topics: Option<Vec<NamedTopic>>,
        deadline: Instant,
    ) -> Result<Bytes, RpcError> {
        let shard = match to {
            Destination::Shard(shard) => i32::try_from(shard.0).unwrap_or(i32::MAX),
            Destination::Controller => -1,
        };
        let request = ForwardRequest {
            shard,
            client_host: client_host.to_owned(),
            request,
            topics,
        };
        let time = deadline.saturating_duration_since(self.env.instant());
        let manner = Manner::of_forwarded(&request.request, time);
        let answer: ForwardResponse = self
            .call(to, api_key::FORWARD, &request, deadline, manner)
            .await?;
        match answer.error_code {
            0 => Ok(answer.response),
            // There is nothing to pass back.
            code => Err(RpcError::Malformed(format!(
                "the owner refuses with error {code}"
            ))),
        }
    }

    async fn ask<R: Answer>(
        &self,
        shard: ShardId,
        api_key: i16,
        request: &impl Encode,
        deadline: Instant,
    ) -> Result<R, RpcError> {
        self.call(Destination::Shard(shard), api_key, request, deadline, PROMPT)
            .await
    }

    async fn call<R: Answer>(
        &self,
        to: Destination,
        api_key: i16,
        request: &impl Encode,
        deadline: Instant,
        manner: Manner,
    ) -> Result<R, RpcError> {
        let mut metadata = self.metadata.clone();
        let mut pause = FIRST_PAUSE;
        let mut last = RpcError::TimedOut;
        loop {
            if let Some(address) = self.address(to) {
                let until = deadline.min(self.env.instant() + manner.attempt);
                let call = self
                    .pool
                    .call_on::<R>(manner.lane, &address, api_key, request, until);
                let answer = tokio::select! {
                    biased;
                    answer = call => answer,
                    () = self.moved(&mut metadata, to, &address), if manner.moves => continue,
                };
                match answer {
                    Ok(answer) if !is_moving(answer.error_code()) => return Ok(answer),
                    Ok(_) => {}
                    Err(error @ (RpcError::Malformed(_) | RpcError::Unserved { .. })) => return Err(error),
                    Err(error) => last = error,
                }
            }
            let now = self.env.instant();
            if now >= deadline {
                return Err(last);
            }
            // Whichever comes first: news of a leader, or the pause.
            let until = deadline.min(now + self.env.jittered(pause));
            let _ = self.env.timeout_at(until, metadata.changed()).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Resolves when the node to ask is another one than that at `address`.
    async fn moved(&self, metadata: &mut Metadata, to: Destination, address: &str) {
        loop {
            metadata.changed().await;
            if self.address(to).is_some_and(|named| named != address) {
                return;
            }
        }
    }

    fn address(&self, to: Destination) -> Option<String> {
        let image = self.metadata.image();
        let shard_address = |id| image.shard(id).map(|shard| shard.address.clone());
        match to {
            Destination::Shard(id) => shard_address(id).filter(|address| !address.is_empty()),
            Destination::Controller => {
                let address = image.record().controller_address.clone();
                (!address.is_empty()).then_some(address)
            }
        }
    }
}

/// The asked node does not lead (yet, or any more), so another one is to be asked. Whether it has done anything is unknown: who
/// loses the lead while it writes does not know whether the log has it.
fn is_moving(code: i16) -> bool {
    [
        ResponseError::NotCoordinator,
        ResponseError::NotController,
        ResponseError::CoordinatorNotAvailable,
        ResponseError::CoordinatorLoadInProgress,
    ]
    .iter()
    .any(|error| error.code() == code)
}

#[cfg(test)]
mod tests;
