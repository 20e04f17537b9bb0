//! Peers that are gone, silent, or do not understand.

use futures::future::join_all;

use super::super::handshake::introduce;
use super::*;

#[tokio::test(start_paused = true)]
async fn who_answers_learns_that_the_caller_is_gone() {
    let world = World::new().await;
    let pool = world.pool();
    let held = world.call_on(&pool, Lane::Prompt, HELD, SECOND).await;
    assert!(matches!(held, Err(RpcError::TimedOut)));
    assert_eq!(world.gone(), 0, "the connection is there");
    world.simulation.net().reset("server");
    world.env.sleep(SECOND).await;
    assert_eq!(world.gone(), 1);
}

/// Through the old connection nothing would come for as long again as the cut has lasted.
#[tokio::test(start_paused = true)]
async fn a_peer_that_was_cut_off_is_reached_as_soon_as_it_can_be() {
    for (time, calls) in [(Duration::from_millis(1_500), 40), (5 * SECOND, 12)] {
        let world = World::new().await;
        let pool = world.pool();
        assert_eq!(world.call(&pool, 7001).await.unwrap(), 7001);
        world.cut_off();
        for _ in 0..calls {
            let lost = world.call_on(&pool, Lane::Prompt, 7001, time).await;
            assert!(
                matches!(lost, Err(RpcError::TimedOut | RpcError::Unreachable { .. })),
                "{lost:?}"
            );
        }
        world.simulation.net().heal();
        // One attempt to connect may have begun before.
        let found = world.call_on(&pool, Lane::Prompt, 7001, 3 * SECOND).await;
        assert_eq!(found.unwrap(), 7001, "{time:?}");
    }
}

/// It would undo what was done since.
#[tokio::test(start_paused = true)]
async fn a_call_that_was_given_up_with_its_connection_does_not_come_later() {
    let world = World::new().await;
    let pool = world.pool();
    assert_eq!(world.call(&pool, 7001).await.unwrap(), 7001);
    // The peer hears nothing, and is heard.
    world.simulation.net().cut("client", "server");
    let lost = world.call(&pool, 7002).await;
    assert!(matches!(lost, Err(RpcError::TimedOut)), "{lost:?}");
    world.simulation.net().heal();
    for key in [7002, 7003] {
        assert_eq!(world.call(&pool, key).await.unwrap(), key);
    }
    world.env.sleep(60 * SECOND).await;
    assert_eq!(*world.asked.lock(), [7001, 7002, 7003]);
}

#[tokio::test(start_paused = true)]
async fn a_connection_on_which_something_arrives_is_kept() {
    let world = World::new().await;
    let pool = world.pool();
    let slow = world.call_on(&pool, Lane::Prompt, SLOW, 20 * SECOND);
    let others = async {
        for _ in 0..4 {
            let held = world.call_on(&pool, Lane::Prompt, HELD, Duration::from_millis(1_500));
            assert!(matches!(held.await, Err(RpcError::TimedOut)));
            assert_eq!(world.call(&pool, 7001).await.unwrap(), 7001);
        }
    };
    let (slow, ()) = tokio::join!(slow, others);
    assert_eq!(slow.unwrap(), SLOW);
    assert_eq!((world.gone(), world.metrics.internal_connections.get()), (0, 1));
    // Calls that begin again and again, each soon given up, are silence.
    let slow = world.call_on(&pool, Lane::Prompt, SLOW, 20 * SECOND);
    let others = async {
        for _ in 0..2 {
            let _ = world
                .call_on(&pool, Lane::Prompt, HELD, Duration::from_millis(1_500))
                .await;
        }
    };
    let (slow, ()) = tokio::join!(slow, others);
    assert!(matches!(slow, Err(RpcError::Broken { .. })), "{slow:?}");
}

#[tokio::test(start_paused = true)]
async fn callers_share_an_attempt_to_connect_also_when_it_fails() {
    let world = World::new().await;
    let pool = world.pool();
    world.cut_off();
    let begun = world.env.instant();
    let calls = join_all((0..20).map(|_| world.call_on(&pool, Lane::Prompt, 7001, 60 * SECOND))).await;
    for call in calls {
        assert!(matches!(call, Err(RpcError::Unreachable { .. })), "{call:?}");
    }
    let took = world.env.instant() - begun;
    assert!(took < 3 * SECOND, "{took:?}: one after the other");
    world.simulation.net().heal();
    assert_eq!(world.call(&pool, 7001).await.unwrap(), 7001);
}

#[tokio::test]
async fn only_a_host_that_is_up_refuses() {
    let env = Env::production();
    let address = env.listen("127.0.0.1:0").await.unwrap().address().to_owned();
    let pool = Pool::new(env.clone(), Arc::new(ClusterSecret::random(&env)));
    let call = async |address: &str| {
        let request = ErrorResponse { error_code: 0 };
        let deadline = env.instant() + 5 * SECOND;
        pool.call::<ErrorResponse>(address, 7001, &request, deadline)
            .await
    };
    let refused = call(&address).await;
    assert!(matches!(refused, Err(RpcError::Refused { .. })), "{refused:?}");
    // As of a name service that does not answer, nobody has said anything.
    let unreachable = call("no address").await;
    assert!(
        matches!(unreachable, Err(RpcError::Unreachable { .. })),
        "{unreachable:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_not_served_is_refused_and_the_connection_goes_on() {
    let world = World::new().await;
    let secret = world.secret("client", "the right secret of it all");
    let mut stream = world.env.connect("server:9190").await.unwrap();
    introduce(&world.env, &mut stream, &secret, "server:9190")
        .await
        .unwrap();
    let mut ask = async |header: &[u8], body: &[u8]| {
        let mut frame = BytesMut::new();
        frame.put_u32((header.len() + body.len()) as u32);
        frame.put_slice(header);
        frame.put_slice(body);
        stream.write_all(&frame).await.unwrap();
        let mut answer = vec![0; stream.read_u32().await.unwrap() as usize];
        stream.read_exact(&mut answer).await.unwrap();
        let mut answer = Bytes::from(answer);
        assert_eq!((answer.get_i32(), answer.get_u8()), (77, 0));
        // A lone error code.
        assert_eq!(answer.len(), 3);
        answer.get_i16()
    };
    let header = |key: i16, version: i16| request(key, version, &[]);
    let understood = &[0, 0, 0][..];
    let mut tagged = header(7001, 0);
    tagged.extend([2, 5, 1, 9, 6, 0]);
    let mut named = header(7001, 0);
    named.truncate(8);
    named.extend(*b"\0\x02me\0");
    let plain = |key, version| [header(key, version), vec![0]].concat();
    for (header, body, code) in [
        (plain(7001, 0), understood, 7001),
        (plain(7001, 1), understood, 35),
        (plain(7001, -1), understood, 35),
        (plain(9000, 0), understood, 35),
        (plain(7001, 0), &[], 42),
        (plain(7001, 0), &[0, 0, 0, 0], 42),
        (tagged, understood, 7001),
        (named, understood, 7001),
        (plain(7001, 0), understood, 7001),
    ] {
        assert_eq!(ask(&header, body).await, code, "{header:?} {body:?}");
    }
    // Only without a header nobody can be answered.
    stream.write_all(&[0, 0, 0, 3, 1, 2, 3]).await.unwrap();
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_an_error_of_its_call_alone() {
    let world = World::new().await;
    let pool = world.pool();
    let slow = world.call_on(&pool, Lane::Prompt, SLOW, 20 * SECOND);
    let refused = async {
        let request = ErrorResponse { error_code: 0 };
        let deadline = world.env.instant() + SECOND;
        // An answer with more in it than an error.
        let answer = pool
            .call::<coordinator::protocol::TailResponse>("server:9190", 9000, &request, deadline)
            .await;
        assert!(
            matches!(
                answer,
                Err(RpcError::Unserved {
                    error: ResponseError::UnsupportedVersion,
                    ..
                })
            ),
            "{answer:?}"
        );
    };
    let (slow, ()) = tokio::join!(slow, refused);
    assert_eq!(slow.unwrap(), SLOW);
}
