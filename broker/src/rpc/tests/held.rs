//! Requests that wait for others.

use coordinator::protocol::api_key;
use env::Listener;
use kafka_wire::frame::read_frame;

use super::super::handshake::admit;
use super::super::server::{IN_FLIGHT, WAITING};
use super::*;

impl World {
    /// Calls that wait until they are given up.
    fn waiting(&self, pool: &Pool, count: usize) -> Vec<env::JoinHandle<Result<i16, RpcError>>> {
        let call = |_| {
            let (env, pool) = (self.env.clone(), pool.clone());
            self.env
                .spawn(async move { call_on(&env, &pool, Lane::Held, ASIDE, 600 * SECOND).await })
        };
        (0..count).map(call).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn requests_that_wait_hold_nobody_up_and_are_let_go_with_their_callers() {
    let world = World::new().await;
    let pool = world.pool();
    let waiting = world.waiting(&pool, IN_FLIGHT + 100);
    world.env.sleep(SECOND).await;
    for lane in [Lane::Prompt, Lane::Held] {
        assert_eq!(world.call_on(&pool, lane, 7001, SECOND).await.unwrap(), 7001);
    }
    assert_eq!(world.metrics.internal_connections.get(), 2);
    let (leaving, staying) = waiting.split_at(1_000);
    leaving.iter().for_each(env::JoinHandle::abort);
    world.env.sleep(SECOND).await;
    assert_eq!(world.gone(), 1_000);
    assert!(staying.iter().all(|call| !call.is_finished()));
    // Those that are silent for long wait on.
    world.env.sleep(100 * SECOND).await;
    assert!(staying.iter().all(|call| !call.is_finished()));
}

#[tokio::test(start_paused = true)]
async fn no_more_than_so_many_wait_and_those_beyond_are_refused() {
    let world = World::new().await;
    let pool = world.pool();
    let waiting = world.waiting(&pool, WAITING);
    world.env.sleep(SECOND).await;
    let refused = world.call_on(&pool, Lane::Held, ASIDE, SECOND).await;
    let code = ResponseError::CoordinatorNotAvailable.code();
    assert_eq!(refused.unwrap(), code);
    waiting[7].abort();
    world.env.sleep(SECOND).await;
    let room = world.call_on(&pool, Lane::Held, ASIDE, SECOND).await;
    assert!(matches!(room, Err(RpcError::TimedOut)), "{room:?}");
}

/// Answers as the first release does: what it does not know ends the connection.
async fn first_release(
    env: Env,
    mut listener: Listener,
    secret: Arc<ClusterSecret>,
    accepted: Arc<AtomicUsize>,
) {
    loop {
        let (mut reading, mut writing) = listener.accept().await.unwrap().into_split();
        accepted.fetch_add(1, Ordering::Relaxed);
        let mut buffer = BytesMut::new();
        admit(&env, &mut reading, &mut writing, &mut buffer, &secret)
            .await
            .unwrap();
        while let Ok(Some(mut frame)) = read_frame(&mut reading, &mut buffer, MAX_FRAME).await {
            let (key, _version, id) = (frame.get_i16(), frame.get_i16(), frame.get_i32());
            if key == api_key::CANCEL {
                break;
            }
            if key == HELD {
                continue;
            }
            let answer = ErrorResponse { error_code: key }.to_bytes().into();
            let mut answer = response_frame(id, answer).into_bytes();
            writing.write_all_buf(&mut answer).await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_of_the_first_release_is_told_nothing_that_it_does_not_know() {
    let world = World::new().await;
    let old = world.simulation.node("old");
    let secret = world.secret("client", "the right secret of it all");
    let accepted = Arc::new(AtomicUsize::new(0));
    let listener = old.listen("old:9190").await.unwrap();
    old.spawn(first_release(old.clone(), listener, secret, accepted.clone()));
    let pool = world.pool();
    let call = async |key| {
        let deadline = world.env.instant() + SECOND;
        let request = ErrorResponse { error_code: 0 };
        pool.call_on::<ErrorResponse>(Lane::Held, "old:9190", key, &request, deadline)
            .await
    };
    assert_eq!(call(7030).await.unwrap().error_code, 7030);
    for _ in 0..3 {
        assert!(matches!(call(HELD).await, Err(RpcError::TimedOut)));
        assert_eq!(call(7030).await.unwrap().error_code, 7030);
    }
    assert_eq!(accepted.load(Ordering::Relaxed), 2, "one to ask, one to use");
}
