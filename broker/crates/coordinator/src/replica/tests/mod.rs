//! The runtime with a state machine that only adds.

mod follower;
pub mod memory_log;

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use env::Env;
use memory_log::{MemoryLog, owner};
use types::{LogOffset, Timestamp};

use super::*;

/// From here on numbers take many bytes.
const LARGE: i64 = 1 << 40;

/// Adds numbers; an answer is the sum after the number. Adding 0 changes nothing.
#[derive(Default)]
struct Sum {
    committed: i64,
    pending: i64,
    applied: Option<LogOffset>,
}

impl StateMachine for Sum {
    type Command = i64;
    type Output = i64;
    type Staged = BytesMut;

    fn speculate(&mut self, _now: Timestamp, command: &i64) -> Result<Speculated<i64>, StateError> {
        if *command < 0 {
            return Err(StateError::View("negative".to_owned()));
        }
        self.pending += command;
        let output = self.committed + self.pending;
        let entry = (*command > 0).then(|| {
            let mut entry = command.to_be_bytes().to_vec();
            if *command >= LARGE {
                entry.resize(1000, 0);
            }
            Bytes::from(entry)
        });
        Ok(Speculated { output, entry })
    }

    fn rollback(&mut self) -> Result<(), StateError> {
        self.pending = 0;
        Ok(())
    }

    fn apply(&mut self, offset: LogOffset, entries: &[Bytes]) -> Result<(), StateError> {
        assert_eq!(self.pending, 0, "applied on top of pending state");
        assert_eq!(offset, self.applied.map_or(LogOffset(0), LogOffset::next));
        self.committed += entries.iter().map(|entry| entry.clone().get_i64()).sum::<i64>();
        self.applied = Some(offset);
        Ok(())
    }

    fn applied(&self) -> Option<LogOffset> {
        self.applied
    }

    fn begin_snapshot(&mut self) -> Result<SnapshotJob, StateError> {
        let (applied, committed) = (self.applied.unwrap(), self.committed);
        let body = vec![Bytes::copy_from_slice(&committed.to_be_bytes())];
        Ok(Box::new(move || Ok((applied, body.into()))))
    }

    fn stage(&mut self) -> Result<BytesMut, StateError> {
        Ok(BytesMut::new())
    }

    fn restore(&mut self, offset: LogOffset, mut snapshot: BytesMut) -> Result<(), StateError> {
        *self = Sum {
            committed: snapshot.get_i64(),
            pending: 0,
            applied: Some(offset),
        };
        Ok(())
    }
}

fn lead(env: &Env, log: &MemoryLog, node: i32, options: Options) -> ReplicaHandle<Sum> {
    start(
        env,
        "sum",
        Arc::new(log.clone()),
        Sum::default(),
        owner(node),
        options,
    )
    .unwrap()
}

async fn opened(env: &Env, log: &MemoryLog) -> ReplicaHandle<Sum> {
    let replica = lead(env, log, 1, Options::default());
    replica.leading().await.unwrap();
    replica
}

fn submit(
    env: &Env,
    replica: &ReplicaHandle<Sum>,
    command: i64,
) -> env::JoinHandle<Result<i64, ReplicaError>> {
    let replica = replica.clone();
    env.spawn(async move { replica.submit(command).await })
}

/// Lets everything run that can run without time passing.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_given_only_when_it_is_durable() {
    let env = Env::simulated(1);
    let log = MemoryLog::new(&env);
    let replica = opened(&env, &log).await;
    log.set_open(false);
    let waiting = submit(&env, &replica, 5);
    settle().await;
    assert!(!waiting.is_finished());
    log.set_open(true);
    assert_eq!(waiting.await.unwrap(), Ok(5));
    assert_eq!(log.slots().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn commands_are_judged_on_top_of_what_is_pending_and_go_out_as_one_group() {
    let env = Env::simulated(1);
    let log = MemoryLog::new(&env);
    let replica = opened(&env, &log).await;
    log.set_open(false);
    let mut waiting = vec![submit(&env, &replica, 1)];
    settle().await;
    for n in 2..=10 {
        waiting.push(submit(&env, &replica, n));
    }
    settle().await;
    log.set_open(true);
    let mut sums = Vec::new();
    for answer in waiting {
        sums.push(answer.await.unwrap().unwrap());
    }
    assert_eq!(sums, [1, 3, 6, 10, 15, 21, 28, 36, 45, 55]);
    let groups: Vec<_> = log.slots().iter().map(|slot| slot.entries.len()).collect();
    assert_eq!(groups, [1, 9], "one slot flew while the second group gathered");
}

#[tokio::test(start_paused = true)]
async fn what_changes_nothing_waits_for_what_it_rests_on() {
    let env = Env::simulated(1);
    let log = MemoryLog::new(&env);
    let replica = opened(&env, &log).await;
    assert_eq!(
        replica.submit(0).await,
        Ok(0),
        "with nothing pending it is answered at once"
    );
    log.set_open(false);
    let first = submit(&env, &replica, 3);
    settle().await;
    let second = submit(&env, &replica, 0);
    let barrier = {
        let replica = replica.clone();
        env.spawn(async move { replica.barrier().await })
    };
    settle().await;
    assert!(!second.is_finished() && !barrier.is_finished());
    log.set_open(true);
    assert_eq!(first.await.unwrap(), Ok(3));
    assert_eq!(second.await.unwrap(), Ok(3));
    assert_eq!(barrier.await.unwrap(), Ok(LogOffset(1)));
}

#[tokio::test(start_paused = true)]
async fn the_pipeline_is_bounded() {
    let env = Env::simulated(1);
    let log = MemoryLog::new(&env);
    let options = Options {
        queue: 2,
        group_commands: 3,
        ..Options::default()
    };
    let replica = lead(&env, &log, 1, options);
    replica.leading().await.unwrap();
    log.set_open(false);
    let waiting: Vec<_> = (0..20).map(|_| submit(&env, &replica, 1)).collect();
    settle().await;
    log.set_open(true);
    for answer in waiting {
        answer.await.unwrap().unwrap();
    }
    assert!(log.slots().iter().all(|slot| slot.entries.len() <= 3));
    assert_eq!(replica.submit(0).await, Ok(20));
}

#[tokio::test(start_paused = true)]
async fn what_is_too_large_for_the_log_is_refused_alone() {
    let env = Env::simulated(1);
    let log = MemoryLog::new(&env);
    let options = Options {
        max_entry_bytes: 999,
        ..Options::default()
    };
    let replica = lead(&env, &log, 1, options);
    replica.leading().await.unwrap();
    log.set_open(false);
    let mut waiting = vec![submit(&env, &replica, 1)];
    settle().await;
    for command in [2, LARGE, 3, LARGE + 1, 4] {
        waiting.push(submit(&env, &replica, command));
    }
    settle().await;
    log.set_open(true);
    let mut answers = Vec::new();
    for answer in waiting {
        answers.push(answer.await.unwrap());
    }
    let refused = || {
        Err(ReplicaError::TooLarge {
            size: 1000,
            limit: 999,
        })
    };
    assert_eq!(answers, [Ok(1), Ok(3), refused(), Ok(6), refused(), Ok(10)]);
    assert_eq!(replica.submit(1).await, Ok(11));
}

#[tokio::test(start_paused = true)]
async fn a_fenced_leader_fails_its_callers_and_leaves_nothing_behind() {
    let env = Env::simulated(1);
    let log = MemoryLog::new(&env);
    let old = opened(&env, &log).await;
    assert_eq!(old.submit(1).await, Ok(1));
    log.set_open(false);
    let lost = submit(&env, &old, 10);
    settle().await;
    let lost_too = submit(&env, &old, 100);
    settle().await;
    let new = lead(&env, &log, 2, Options::default());
    new.leading().await.unwrap();
    log.set_open(true);
    assert_eq!(lost.await.unwrap(), Err(ReplicaError::NotLeader));
    assert_eq!(lost_too.await.unwrap(), Err(ReplicaError::NotLeader));
    let End::Fenced { owner: by, .. } = old.ended().await else {
        panic!("not fenced")
    };
    assert_eq!(by, Some(owner(2)));
    assert_eq!(old.submit(1).await, Err(ReplicaError::NotLeader));
    assert_eq!(new.submit(1).await, Ok(2));
}

#[tokio::test(start_paused = true)]
async fn what_is_not_logged_is_answered_only_by_who_still_leads() {
    let env = Env::simulated(1);
    let log = MemoryLog::new(&env);
    let old = opened(&env, &log).await;
    old.submit(1).await.unwrap();
    old.barrier().await.unwrap();
    assert_eq!(
        log.checks(),
        1,
        "the slot before may be from another leader's time"
    );
    let (reading, writing) = futures::join!(old.barrier(), old.submit(1));
    assert_eq!((reading, writing), (Ok(LogOffset(2)), Ok(2)));
    // However fresh: another leader may have answered in the meantime.
    old.submit(1).await.unwrap();
    let new = lead(&env, &log, 2, Options::default());
    new.leading().await.unwrap();
    let (read, noop) = futures::join!(old.barrier(), old.submit(0));
    assert_eq!(read, Err(ReplicaError::NotLeader));
    assert_eq!(noop, Err(ReplicaError::NotLeader));
}

#[tokio::test(start_paused = true)]
async fn a_barrier_fails_when_leadership_cannot_be_confirmed() {
    let env = Env::simulated(1);
    let log = MemoryLog::new(&env);
    let replica = opened(&env, &log).await;
    env.sleep(Duration::from_secs(3)).await;
    log.set_unavailable(true);
    assert!(matches!(
        replica.barrier().await,
        Err(ReplicaError::Unavailable(_))
    ));
    log.set_unavailable(false);
    assert!(replica.barrier().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn an_idle_leader_notices_that_it_was_deposed() {
    let env = Env::simulated(1);
    let log = MemoryLog::new(&env);
    let old = opened(&env, &log).await;
    opened(&env, &log).await;
    let end = env.timeout(Duration::from_secs(6), old.ended()).await.unwrap();
    assert!(matches!(end, End::Fenced { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_shortens_the_log_and_is_what_the_next_leader_starts_from() {
    let env = Env::simulated(1);
    let log = MemoryLog::new(&env);
    let options = Options {
        snapshot_slots: 10,
        ..Options::default()
    };
    let replica = lead(&env, &log, 1, options.clone());
    replica.leading().await.unwrap();
    for _ in 0..35 {
        replica.submit(1).await.unwrap();
        settle().await;
    }
    replica.stop().await;
    assert!(log.log_start() > LogOffset(10), "start is {}", log.log_start());
    let next = lead(&env, &log, 2, options);
    next.leading().await.unwrap();
    assert_eq!(next.submit(1).await, Ok(36));
}

#[tokio::test(start_paused = true)]
async fn stopping_finishes_what_was_accepted() {
    let env = Env::simulated(1);
    let log = MemoryLog::new(&env);
    log.set_latency(Duration::from_millis(30));
    let replica = opened(&env, &log).await;
    let waiting: Vec<_> = (0..5).map(|_| submit(&env, &replica, 1)).collect();
    settle().await;
    replica.stop().await;
    assert_eq!(replica.ended().await, End::Stopped);
    for answer in waiting {
        answer.await.unwrap().unwrap();
    }
    assert_eq!(replica.submit(1).await, Err(ReplicaError::NotLeader));
}

#[tokio::test(start_paused = true)]
async fn opening_goes_on_while_the_store_is_unavailable_and_refuses_commands() {
    let env = Env::simulated(1);
    let log = MemoryLog::new(&env);
    log.set_unavailable(true);
    let replica = lead(&env, &log, 1, Options::default());
    env.sleep(Duration::from_secs(5)).await;
    assert_eq!(replica.submit(1).await, Err(ReplicaError::Loading));
    log.set_unavailable(false);
    replica.leading().await.unwrap();
    assert_eq!(replica.submit(1).await, Ok(1));
}

#[tokio::test(start_paused = true)]
async fn a_broken_state_ends_the_replica_and_says_why() {
    let env = Env::simulated(1);
    let log = MemoryLog::new(&env);
    let replica = opened(&env, &log).await;
    assert!(
        matches!(replica.submit(-1).await, Err(ReplicaError::Unavailable(why)) if why.contains("negative"))
    );
    assert!(matches!(replica.ended().await, End::Failed(_)));
    // The log is fine: another try leads it.
    assert_eq!(opened(&env, &log).await.submit(2).await, Ok(2));
}
