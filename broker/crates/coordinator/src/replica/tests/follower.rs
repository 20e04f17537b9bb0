//! Following a log, and taking it over.

use metalog::LogError;

use super::*;

fn follow_log(env: &Env, log: &MemoryLog, node: i32) -> ReplicaHandle<Sum> {
    let (log, options) = (Arc::new(log.clone()), Options::default());
    follow(env, "sum", log, Sum::default(), owner(node), options).unwrap()
}

fn applied(replica: &ReplicaHandle<Sum>) -> Option<LogOffset> {
    match *replica.status().borrow() {
        Status::Following { applied, .. } => applied,
        ref other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_follower_keeps_up_answers_nobody_and_takes_over() {
    let env = Env::simulated(1);
    let log = MemoryLog::new(&env);
    let follower = follow_log(&env, &log, 2);
    env.sleep(Duration::from_secs(5)).await;
    assert_eq!(applied(&follower), None, "the log was never opened");
    let leader = opened(&env, &log).await;
    for n in 1..=10 {
        leader.submit(n).await.unwrap();
    }
    env.sleep(Duration::from_secs(3)).await;
    assert_eq!(applied(&follower), Some(LogOffset(10)));
    assert_eq!(follower.submit(1).await, Err(ReplicaError::NotLeader));
    assert_eq!(follower.barrier().await, Err(ReplicaError::NotLeader));
    // What it has not seen yet is before its fence.
    leader.submit(100).await.unwrap();
    follower.lead().await;
    follower.leading().await.unwrap();
    assert_eq!(follower.submit(0).await, Ok(155));
    assert!(matches!(leader.ended().await, End::Fenced { .. } | End::Stopped));
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_told_to_lead_goes_on() {
    let env = Env::simulated(1);
    let log = MemoryLog::new(&env);
    let leader = opened(&env, &log).await;
    leader.lead().await;
    assert_eq!(leader.submit(1).await, Ok(1));
}

#[tokio::test(start_paused = true)]
async fn a_follower_that_was_away_starts_again_from_the_snapshot() {
    let env = Env::simulated(1);
    let log = MemoryLog::new(&env);
    let options = Options {
        snapshot_slots: 4,
        ..Options::default()
    };
    let leader = lead(&env, &log, 1, options);
    leader.leading().await.unwrap();
    leader.submit(1).await.unwrap();
    let early = follow_log(&env, &log, 2);
    env.sleep(Duration::from_secs(3)).await;
    assert_eq!(applied(&early), Some(LogOffset(1)));
    log.set_unavailable(true);
    for _ in 0..40 {
        leader.submit(1).await.unwrap();
        env.sleep(Duration::from_millis(1)).await;
    }
    assert!(log.log_start() > LogOffset(8));
    log.set_unavailable(false);
    let late = follow_log(&env, &log, 3);
    env.sleep(Duration::from_secs(3)).await;
    for follower in [early, late] {
        assert_eq!(applied(&follower), Some(LogOffset(41)));
        follower.lead().await;
        follower.leading().await.unwrap();
        assert_eq!(follower.submit(0).await, Ok(41));
    }
}

#[tokio::test(start_paused = true)]
async fn a_follower_says_when_it_last_saw_the_end() {
    let env = Env::simulated(1);
    let log = MemoryLog::new(&env);
    let follower = follow_log(&env, &log, 2);
    let current = || match *follower.status().borrow() {
        Status::Following { current, .. } => current,
        ref other => panic!("{other:?}"),
    };
    assert_eq!(current(), None);
    env.sleep(Duration::from_secs(1)).await;
    let seen = current().unwrap();
    log.set_unavailable(true);
    env.sleep(Duration::from_secs(30)).await;
    assert!(current().unwrap() <= seen + Duration::from_secs(3));
    log.set_unavailable(false);
    env.sleep(Duration::from_secs(5)).await;
    assert!(current().unwrap() > seen + Duration::from_secs(20));
    follower.stop().await;
    assert_eq!(follower.ended().await, End::Stopped);
}

#[tokio::test(start_paused = true)]
async fn a_follower_that_is_told_of_appends_does_not_wait_for_its_next_look() {
    let env = Env::simulated(1);
    let log = MemoryLog::telling(&env);
    let hour = Duration::from_secs(3600);
    let options = Options {
        poll_interval: hour,
        idle_poll_interval: hour,
        ..Options::default()
    };
    let leader = opened(&env, &log).await;
    leader.submit(1).await.unwrap();
    let follower = follow(
        &env,
        "sum",
        Arc::new(log.clone()),
        Sum::default(),
        owner(2),
        options,
    )
    .unwrap();
    for n in 1..=10 {
        env.sleep(Duration::from_secs(1)).await;
        assert_eq!(applied(&follower), Some(LogOffset(n)));
        leader.submit(1).await.unwrap();
    }
    // What it is told of and cannot read is no reason to ask without a pause.
    log.set_unavailable(true);
    env.sleep(Duration::from_secs(1)).await;
    leader.submit(1).await.unwrap();
    env.sleep(Duration::from_secs(1)).await;
    assert!(log.refused() <= 2, "{} looks", log.refused());
    log.set_unavailable(false);
    env.sleep(2 * hour).await;
    assert_eq!(applied(&follower), Some(LogOffset(12)));
}

#[tokio::test(start_paused = true)]
async fn a_log_that_has_lost_what_a_follower_has_seen_is_not_led_in_silence() {
    let env = Env::simulated(1);
    let log = MemoryLog::new(&env);
    let leader = opened(&env, &log).await;
    for _ in 0..5 {
        leader.submit(1).await.unwrap();
    }
    let follower = follow_log(&env, &log, 2);
    env.sleep(Duration::from_secs(1)).await;
    assert_eq!(applied(&follower), Some(LogOffset(5)));
    log.lose(3);
    follower.lead().await;
    assert!(matches!(follower.ended().await, End::Failed(why) if why.contains("lost")));
}

/// A log whose start was moved behind a snapshot, and its leader.
async fn snapshotted(env: &Env) -> (MemoryLog, ReplicaHandle<Sum>) {
    let log = MemoryLog::new(env);
    let options = Options {
        snapshot_slots: 4,
        ..Options::default()
    };
    let leader = lead(env, &log, 1, options);
    leader.leading().await.unwrap();
    for _ in 0..40 {
        leader.submit(1).await.unwrap();
        env.sleep(Duration::from_millis(1)).await;
    }
    assert!(log.log_start() > LogOffset(8));
    (log, leader)
}

#[tokio::test(start_paused = true)]
async fn a_follower_whose_snapshot_is_replaced_while_it_reads_takes_the_next() {
    let env = Env::simulated(1);
    let (log, _leader) = snapshotted(&env).await;
    let log_start = log.log_start();
    log.fail_snapshot(3, LogError::Trimmed { log_start });
    let follower = follow_log(&env, &log, 2);
    env.sleep(Duration::from_millis(50)).await;
    assert_eq!(applied(&follower), None, "half of a snapshot is nothing");
    env.sleep(Duration::from_secs(3)).await;
    assert_eq!(applied(&follower), Some(LogOffset(40)));
    follower.lead().await;
    follower.leading().await.unwrap();
    assert_eq!(follower.submit(0).await, Ok(40));
}

#[tokio::test(start_paused = true)]
async fn a_take_over_begins_a_snapshot_anew_that_it_could_not_read_to_its_end() {
    let env = Env::simulated(1);
    let (log, _leader) = snapshotted(&env).await;
    log.fail_snapshot(3, LogError::Unavailable("test".to_owned()));
    let next = lead(&env, &log, 2, Options::default());
    next.leading().await.unwrap();
    assert_eq!(next.submit(0).await, Ok(40));
    // What is damaged stays so.
    log.fail_snapshot(3, LogError::Corrupt("test".to_owned()));
    let last = lead(&env, &log, 3, Options::default());
    assert!(matches!(last.ended().await, End::Failed(why) if why.contains("corrupt")));
}
