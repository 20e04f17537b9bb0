//! A shard that this node leads or follows, as the RPC server sees it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use env::Env;
use metalog::{MetadataLog, Owner};
use rusqlite::Connection;
use tokio::sync::watch;
use types::{Epoch, LogOffset, ShardId, Timestamp};

use super::state::{LEFT_TO_LEADER, Shared, remove_all, view};
use super::tail::News;
use super::views::new_view;
use super::{Command, Features, Output, ShardState, queries, schema};
use crate::codes;
use crate::protocol::{
    CommitFileRequest, CommitFileResponse, CreatePartitionsRequest, DeleteRecordsRequest,
    DeleteRecordsResponse, DeleteTopicsRequest, DescribeFilesRequest, DescribeFilesResponse, ErrorResponse,
    FindBatchesPartition, FindBatchesRequest, FindBatchesResponse, FindBatchesResult, HandOverFileRequest,
    ListOffsetsRequest, ListOffsetsResponse, TailRequest, TailResponse,
};
use crate::replica::{self, End, Options, ReplicaError, ReplicaHandle, StateError, Status};

/// The longest that a follower may wait for news.
const MAX_TAIL_WAIT: Duration = Duration::from_secs(30);

/// A follower that has not seen the end of the log for so long finds no batches: it might be cut off.
const MAX_STALENESS: Duration = Duration::from_secs(10);

/// What a shard needs to know to run.
#[derive(Clone)]
pub struct ShardOptions {
    /// Which shard it is.
    pub shard: ShardId,
    /// The node's directory for what may be deleted at any moment; the view lies below `shards/<id>` in it.
    pub data_dir: PathBuf,
    /// Bounds of the replica.
    pub replica: Options,
    /// Formats of the log.
    pub features: Features,
}

/// A shard that this node leads, is about to lead, or follows. Shared by everybody who serves requests; it stops when
/// it is fenced, when [`ShardService::stop`] is called or when the last clone is dropped. A follower answers
/// `DisklessFindBatches` only.
///
/// Answers carry an error code: COORDINATOR_LOAD_IN_PROGRESS while the log is being opened, NOT_COORDINATOR when
/// another node leads, COORDINATOR_NOT_AVAILABLE when log or view failed (and the outcome may be unknown),
/// RECORD_LIST_TOO_LARGE when the request comes to more than one log entry can hold (nothing was done).
#[derive(Clone)]
pub struct ShardService {
    pub(super) env: Env,
    shard: ShardId,
    replica: ReplicaHandle<ShardState>,
    pub(super) shared: Arc<Shared>,
    dir: PathBuf,
    max_entry_bytes: usize,
}

type Begin = fn(
    &Env,
    &str,
    Arc<dyn MetadataLog>,
    ShardState,
    Owner,
    Options,
) -> std::io::Result<ReplicaHandle<ShardState>>;

/// The error code that says why a shard did not answer.
pub fn error_code(error: &ReplicaError) -> i16 {
    match error {
        ReplicaError::Loading => codes::COORDINATOR_LOAD_IN_PROGRESS,
        ReplicaError::NotLeader => codes::NOT_COORDINATOR,
        ReplicaError::Unavailable(_) => codes::COORDINATOR_NOT_AVAILABLE,
        ReplicaError::TooLarge { .. } => codes::RECORD_LIST_TOO_LARGE,
    }
}

fn code_of<T>(result: &Result<T, ReplicaError>) -> i16 {
    result.as_ref().err().map_or(codes::NONE, error_code)
}

impl ShardService {
    /// Starts to take the shard over: fences whoever leads it, rebuilds the view, then serves. Returns at once.
    pub fn start(
        env: &Env,
        options: ShardOptions,
        log: Arc<dyn MetadataLog>,
        owner: Owner,
    ) -> Result<Self, StateError> {
        Self::begin(env, options, log, owner, replica::start)
    }

    /// Starts to follow the shard: its view is kept up with the log, until [`ShardService::lead`]. Returns at once.
    pub fn follow(
        env: &Env,
        options: ShardOptions,
        log: Arc<dyn MetadataLog>,
        owner: Owner,
    ) -> Result<Self, StateError> {
        Self::begin(env, options, log, owner, replica::follow)
    }

    fn begin(
        env: &Env,
        options: ShardOptions,
        log: Arc<dyn MetadataLog>,
        owner: Owner,
        begin: Begin,
    ) -> Result<Self, StateError> {
        let shard = options.shard;
        // Views are never synced: what earlier lives have left is not looked at, only what snapshot and log say is trusted.
        let dir = new_view(env, &options.data_dir, shard);
        let shared = Shared::new(&dir);
        let name = format!("shard-{shard}");
        let max_entry_bytes = options.replica.max_entry_bytes;
        let opened = ShardState::create(shard, &dir, shared.clone(), options.features).and_then(|state| {
            begin(env, &name, log, state, owner, options.replica)
                .map_err(|error| StateError::View(format!("thread {name}: {error}")))
        });
        match opened {
            Ok(replica) => Ok(Self {
                env: env.clone(),
                shard,
                replica,
                shared,
                dir,
                max_entry_bytes,
            }),
            Err(error) => {
                // There is little in it, and it is tried again every second.
                let _ = remove_all(&dir);
                Err(error)
            }
        }
    }

    /// Which shard this is.
    pub fn shard(&self) -> ShardId {
        self.shard
    }

    /// Where its view lies, for [`super::delete_view`] when it has ended.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The largest log entry, in bytes: a command that comes to more is refused ([`ReplicaError::TooLarge`]).
    pub fn max_entry_bytes(&self) -> usize {
        self.max_entry_bytes
    }

    /// What the shard is doing, and every change of it.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.replica.status()
    }

    /// Whether the shard is led from here, as far as is known.
    pub fn is_leading(&self) -> bool {
        self.replica.check_leading().is_ok()
    }

    /// Whether both are the same opening of a shard.
    pub fn same_as(&self, other: &ShardService) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Waits until the shard is led from here and returns the term.
    pub async fn leading(&self) -> Result<Epoch, ReplicaError> {
        self.replica.leading().await
    }

    /// Takes over a shard that is followed so far; [`ShardService::leading`] waits.
    pub async fn lead(&self) {
        self.replica.lead().await;
    }

    /// Whether this node could take the shard over at once: it follows it, and was up to date not long ago.
    pub fn is_warm(&self) -> bool {
        match *self.replica.status().borrow() {
            Status::Following {
                current: Some(current),
                ..
            } => self.env.instant().saturating_duration_since(current) <= MAX_STALENESS,
            _ => false,
        }
    }

    /// Batches committed in the view since it was created, replayed ones included.
    pub fn batches(&self) -> u64 {
        self.shared.batches.load(Ordering::Relaxed)
    }

    /// Size of the view without its WAL, in bytes.
    pub async fn view_bytes(&self) -> Result<u64, ReplicaError> {
        self.read_view(queries::size).await
    }

    /// Finishes what was accepted, then lets the shard go.
    pub async fn stop(&self) {
        self.replica.stop().await;
    }

    /// Waits until the shard is no longer led from here.
    pub async fn ended(&self) -> End {
        self.replica.ended().await
    }

    pub(super) async fn submit(&self, command: Command) -> Result<Output, ReplicaError> {
        self.replica.submit(command).await
    }

    /// Reads the committed state of the leader.
    pub(super) async fn read<T>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, ReplicaError> {
        self.replica.check_leading()?;
        self.read_view(read).await
    }

    /// Like [`ShardService::read`], for what looks at many rows: beside the tasks that serve requests.
    pub(super) async fn scan<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, ReplicaError> {
        self.replica.check_leading()?;
        let shared = self.shared.clone();
        let done = self.env.blocking(move || shared.readers.read(read)).await;
        self.readable(done).await
    }

    /// Reads the committed state, whoever leads.
    async fn read_view<T>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, ReplicaError> {
        self.readable(self.shared.readers.read(read)).await
    }

    /// A view that cannot be read is given up, with the replica: it will be built anew.
    async fn readable<T>(&self, done: rusqlite::Result<T>) -> Result<T, ReplicaError> {
        match done {
            Ok(value) => Ok(value),
            Err(error) => {
                let reason = format!("reading the view of shard {}: {error}", self.shard);
                self.replica.fail(reason.clone()).await;
                Err(ReplicaError::Unavailable(reason))
            }
        }
    }

    /// What is read from here on has everything that was answered before the call.
    pub(super) async fn barrier(&self) -> Result<(), ReplicaError> {
        if !env::mutation("list-without-barrier") {
            self.replica.barrier().await?;
        }
        Ok(())
    }

    /// [`ShardService::scan`] behind a [`ShardService::barrier`].
    pub(super) async fn strict_scan<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, ReplicaError> {
        self.barrier().await?;
        self.scan(read).await
    }

    /// `DisklessCreatePartitions`
    pub async fn create_partitions(&self, request: CreatePartitionsRequest) -> ErrorResponse {
        let error_code = match self.submit(Command::CreatePartitions(request)).await {
            Ok(Output::Refused(code)) => code,
            other => code_of(&other),
        };
        ErrorResponse { error_code }
    }

    /// `DisklessDeleteTopics`
    pub async fn delete_topics(&self, request: DeleteTopicsRequest) -> ErrorResponse {
        ErrorResponse {
            error_code: code_of(&self.submit(Command::DeleteTopics(request.topics)).await),
        }
    }

    /// `DisklessCommitFile`
    pub async fn commit_file(&self, request: CommitFileRequest) -> CommitFileResponse {
        match self.submit(Command::CommitFile(request)).await {
            Ok(Output::Committed { error_code, batches }) => CommitFileResponse { error_code, batches },
            other => CommitFileResponse {
                error_code: unexpected(&other),
                batches: Vec::new(),
            },
        }
    }

    /// `DisklessDeleteRecords`
    pub async fn delete_records(&self, request: DeleteRecordsRequest) -> DeleteRecordsResponse {
        match self.submit(Command::DeleteRecords(request.partitions)).await {
            Ok(Output::RecordsDeleted(partitions)) => DeleteRecordsResponse {
                error_code: codes::NONE,
                partitions,
            },
            other => DeleteRecordsResponse {
                error_code: unexpected(&other),
                partitions: Vec::new(),
            },
        }
    }

    /// `DisklessListOffsets`; strict.
    pub async fn list_offsets(&self, request: ListOffsetsRequest) -> ListOffsetsResponse {
        match self
            .strict_scan(move |db| queries::list_offsets(db, &request.partitions))
            .await
        {
            Ok(partitions) => ListOffsetsResponse {
                error_code: codes::NONE,
                partitions,
            },
            Err(error) => ListOffsetsResponse {
                error_code: error_code(&error),
                partitions: Vec::new(),
            },
        }
    }

    /// `DisklessFindBatches`, of leaders and followers; what was committed a moment ago may be missing, what is not
    /// durable is never there.
    pub async fn find_batches(&self, request: FindBatchesRequest) -> FindBatchesResponse {
        let found = async {
            if !self.is_warm() {
                self.replica.check_leading()?;
            }
            let find = |db: &Connection| {
                let partitions = queries::find_batches(db, &request.partitions, request.max_bytes)?;
                Ok((queries::applied(db)?, partitions))
            };
            let found = self.read_view(find).await?;
            if !beyond_the_end(&request.partitions, &found.1) {
                return Ok(found);
            }
            // A leader that was deposed, or a follower, knows too little to send a consumer back.
            self.barrier().await?;
            self.read(find).await
        };
        match found.await {
            Ok((applied, partitions)) => FindBatchesResponse {
                error_code: codes::NONE,
                applied,
                partitions,
            },
            Err(error) => FindBatchesResponse {
                error_code: error_code(&error),
                applied: LogOffset(0),
                partitions: Vec::new(),
            },
        }
    }

    /// `DisklessDescribeFiles`; strict, because objects are deleted by what it says.
    pub async fn describe_files(&self, request: DescribeFilesRequest) -> DescribeFilesResponse {
        match self
            .strict_scan(move |db| queries::describe_files(db, &request.objects))
            .await
        {
            Ok((oldest_file, known)) => DescribeFilesResponse {
                error_code: codes::NONE,
                oldest_file,
                known,
            },
            Err(error) => {
                let error_code = error_code(&error);
                DescribeFilesResponse {
                    error_code,
                    oldest_file: Timestamp(-1),
                    known: Vec::new(),
                }
            }
        }
    }

    /// `DisklessTail`: waits for news after `from`, and gives up when the time is over or the shard is lost.
    pub async fn tail(&self, request: TailRequest) -> TailResponse {
        let wait = Duration::from_millis(request.max_wait_ms.into()).min(MAX_TAIL_WAIT);
        let deadline = self.env.instant() + wait;
        let mut next = self.shared.tail.watch();
        loop {
            if let Err(error) = self.replica.check_leading() {
                let (next, partitions) = (request.from, Vec::new());
                return TailResponse {
                    error_code: error_code(&error),
                    reset: false,
                    next,
                    partitions,
                    file_grace_ms: None,
                };
            }
            let News {
                reset,
                next: end,
                updates,
            } = {
                next.mark_unchanged();
                self.shared.tail.read(request.from)
            };
            let late = self.env.instant() >= deadline;
            if reset || late || !updates.is_empty() {
                return TailResponse {
                    error_code: codes::NONE,
                    reset,
                    next: end,
                    partitions: updates,
                    file_grace_ms: None,
                };
            }
            tokio::select! {
                biased;
                _ = next.changed() => {}
                _ = self.replica.ended() => {}
                () = self.env.sleep_until(deadline) => {}
            }
        }
    }

    /// `DisklessHandOverFile`
    pub async fn hand_over_file(&self, request: HandOverFileRequest) -> ErrorResponse {
        let HandOverFileRequest {
            object, size, owners, ..
        } = request;
        if owners.first() != Some(&self.shard) {
            return ErrorResponse {
                error_code: codes::INVALID_REQUEST,
            };
        }
        ErrorResponse {
            error_code: code_of(&self.submit(Command::TakeOverFile { object, size, owners }).await),
        }
    }

    /// How long the leader took to apply the last group.
    pub(super) fn applied_in(&self) -> Duration {
        self.replica.applied_in()
    }

    /// Copies what the WAL holds into the database, beside the leader, and has the leader start the WAL anew. One at a time.
    pub(super) async fn checkpoint(&self, wal_pages: i64) -> Result<(), ReplicaError> {
        let mut copied = self.shared.checkpointed.lock().await;
        let applied = match *self.replica.status().borrow() {
            Status::Leading { applied, .. } => Some(applied),
            _ => None,
        };
        if std::mem::replace(&mut *copied, applied) == applied {
            return Ok(());
        }
        let view = view(&self.dir);
        let work = move || -> rusqlite::Result<bool> {
            let db = schema::connect(&view)?;
            let mut left = i64::MAX;
            loop {
                let (pages, done) = db.query_row("PRAGMA wal_checkpoint(PASSIVE)", (), |row| {
                    Ok((row.get::<_, i64>(1)?, row.get::<_, i64>(2)?))
                })?;
                if pages < wal_pages {
                    return Ok(false);
                }
                // What is left is the leader's to copy: little, or nothing yet. A reader of an old state, as a snapshot is, keeps
                // what came after it from being copied, and commits add to it: again, as long as that makes it less.
                if pages - done <= LEFT_TO_LEADER || pages - done >= left {
                    return Ok(pages - done <= LEFT_TO_LEADER);
                }
                left = pages - done;
            }
        };
        match self.env.blocking(work).await {
            Ok(due) => self.shared.restart_wal.store(due, Ordering::Release),
            Err(error) => tracing::warn!(shard = %self.shard, %error, "checkpoint failed; it is tried again"),
        }
        Ok(())
    }
}

/// Whether a partition was asked for an offset that it does not have yet, as far as is known here.
fn beyond_the_end(wanted: &[FindBatchesPartition], found: &[FindBatchesResult]) -> bool {
    let mut both = wanted.iter().zip(found);
    both.any(|(wanted, found)| {
        found.error_code == codes::OFFSET_OUT_OF_RANGE && wanted.offset > found.high_watermark
    })
}

/// The code for an answer of the wrong kind, which does not exist, or for none.
fn unexpected(result: &Result<Output, ReplicaError>) -> i16 {
    result
        .as_ref()
        .err()
        .map_or(codes::COORDINATOR_NOT_AVAILABLE, error_code)
}
