//! What the rest of the project relies on in a simulated world.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "tests"
)]

use std::time::Duration;

use env::{Env, Simulation};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Echoes one connection after the other.
async fn echo(env: Env) {
    let mut listener = env.listen("server:9000").await.unwrap();
    loop {
        let (mut read, mut write) = listener.accept().await.unwrap().into_split();
        env.spawn(async move {
            let mut buffer = [0u8; 64];
            while let Ok(n @ 1..) = read.read(&mut buffer).await {
                if write.write_all(&buffer[..n]).await.is_err() {
                    break;
                }
            }
        });
    }
}

/// A node that echoes, and one that is its client.
async fn served(seed: u64) -> (Simulation, Env, Env) {
    let simulation = Simulation::new(seed);
    let server = simulation.node("server");
    server.spawn(echo(server.clone()));
    let client = simulation.node("client");
    client.sleep(Duration::from_millis(1)).await;
    (simulation, server, client)
}

async fn ask(env: &Env, stream: &mut env::Stream, text: &[u8]) -> Option<Vec<u8>> {
    stream.write_all(text).await.ok()?;
    let mut answer = vec![0u8; text.len()];
    let read = env
        .timeout(Duration::from_secs(5), stream.read_exact(&mut answer))
        .await;
    matches!(read, Ok(Ok(_))).then_some(answer)
}

/// Everything that a run can observe.
async fn run(seed: u64) -> Vec<u64> {
    let (_simulation, _server, client) = served(seed).await;
    let mut seen = Vec::new();
    let mut stream = client.connect("server:9000").await.unwrap();
    for _ in 0..20 {
        let start = client.instant();
        assert_eq!(ask(&client, &mut stream, b"hello").await.unwrap(), b"hello");
        seen.push(u64::try_from(start.elapsed().as_micros()).unwrap());
        seen.push(client.random_u64());
    }
    seen
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_gives_the_same_run_and_another_seed_another() {
    let first = run(7).await;
    assert_eq!(first, run(7).await);
    assert_ne!(first, run(8).await);
}

#[tokio::test(start_paused = true)]
async fn a_killed_node_drops_its_connections_and_refuses_new_ones() {
    let (simulation, server, client) = served(1).await;
    let mut stream = client.connect("server:9000").await.unwrap();
    assert!(ask(&client, &mut stream, b"x").await.is_some());
    server.kill();
    assert!(ask(&client, &mut stream, b"x").await.is_none());
    let error = client.connect("server:9000").await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    // A new life of the node under the same name.
    let server = simulation.node("server");
    server.spawn(echo(server.clone()));
    client.sleep(Duration::from_millis(1)).await;
    let mut stream = client.connect("server:9000").await.unwrap();
    assert!(ask(&client, &mut stream, b"x").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_reset_ends_the_connections_of_a_host_that_lives_on() {
    let (simulation, _server, client) = served(1).await;
    let mut stream = client.connect("server:9000").await.unwrap();
    assert!(ask(&client, &mut stream, b"x").await.is_some());
    simulation.net().reset("server");
    assert!(ask(&client, &mut stream, b"x").await.is_none());
    let mut stream = client.connect("server:9000").await.unwrap();
    assert!(
        ask(&client, &mut stream, b"x").await.is_some(),
        "it takes new ones"
    );
}

#[tokio::test(start_paused = true)]
async fn a_one_way_cut_holds_bytes_back_until_it_is_healed() {
    let (simulation, _server, client) = served(1).await;
    let mut stream = client.connect("server:9000").await.unwrap();
    simulation.net().cut("server", "client");
    assert!(
        ask(&client, &mut stream, b"x").await.is_none(),
        "the answer came through the cut"
    );
    simulation.net().heal();
    let mut answer = [0u8; 1];
    // As long again as the cut has held it.
    let read = client
        .timeout(Duration::from_secs(6), stream.read_exact(&mut answer))
        .await;
    assert!(matches!(read, Ok(Ok(_))), "nothing is lost, only late");
    assert!(ask(&client, &mut stream, b"y").await.is_some(), "that was all");
}

#[tokio::test(start_paused = true)]
async fn what_a_cut_has_held_back_comes_late_while_new_connections_work_at_once() {
    let (simulation, _server, client) = served(1).await;
    let mut muted = 0;
    for _ in 0..10 {
        let mut stream = client.connect("server:9000").await.unwrap();
        let mut idle = client.connect("server:9000").await.unwrap();
        simulation.net().cut("client", "server");
        stream.write_all(b"x").await.unwrap();
        client.sleep(Duration::from_secs(4)).await;
        simulation.net().heal();
        let mut new = client.connect("server:9000").await.unwrap();
        for stream in [&mut new, &mut idle] {
            let answer = client.timeout(Duration::from_millis(50), ask(&client, stream, b"y"));
            assert_eq!(answer.await.unwrap().unwrap(), b"y");
        }
        let soon = client.timeout(Duration::from_millis(500), stream.read_u8());
        muted += u32::from(soon.await.is_err());
    }
    assert!((5..=10).contains(&muted), "{muted} of 10");
}

#[tokio::test(start_paused = true)]
async fn what_is_held_back_when_a_connection_is_aborted_never_comes() {
    for aborted in [false, true] {
        let simulation = Simulation::new(1);
        let (server, client) = (simulation.node("server"), simulation.node("client"));
        let mut listener = server.listen("server:9000").await.unwrap();
        let (_read, mut write) = client.connect("server:9000").await.unwrap().into_split();
        let mut accepted = listener.accept().await.unwrap();
        simulation.net().cut("client", "server");
        write.write_all(b"x").await.unwrap();
        client.sleep(Duration::from_secs(4)).await;
        if aborted {
            write.abort();
        } else {
            write.shutdown().await.unwrap();
        }
        let mut received = Vec::new();
        let end = server.timeout(Duration::from_secs(1), accepted.read_to_end(&mut received));
        assert!(end.await.is_err(), "the cut lets nothing through");
        simulation.net().heal();
        accepted.read_to_end(&mut received).await.unwrap();
        assert_eq!(received.is_empty(), aborted);
    }
}

#[tokio::test(start_paused = true)]
async fn a_name_that_nobody_ever_had_is_not_a_host_that_refuses() {
    let (_simulation, _server, client) = served(1).await;
    let refused = client.connect("server:9001").await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    let unknown = client.connect("nowhere:9000").await.unwrap_err();
    assert_ne!(unknown.kind(), std::io::ErrorKind::ConnectionRefused);
}

#[tokio::test(start_paused = true)]
async fn a_paused_node_stands_still_until_it_is_resumed_or_killed() {
    let (_simulation, server, client) = served(1).await;
    let mut stream = client.connect("server:9000").await.unwrap();
    server.pause();
    assert!(
        ask(&client, &mut stream, b"x").await.is_none(),
        "it answers while it is paused"
    );
    let mut queued = client.connect("server:9000").await.unwrap();
    server.resume();
    let mut answer = [0u8; 1];
    let read = client
        .timeout(Duration::from_secs(5), stream.read_exact(&mut answer))
        .await;
    assert!(matches!(read, Ok(Ok(_))), "what was sent to it is not lost");
    assert!(ask(&client, &mut queued, b"y").await.is_some());
    server.pause();
    server.shut_down().await;
    assert!(ask(&client, &mut queued, b"y").await.is_none());
}

#[tokio::test(start_paused = true)]
async fn the_wall_clock_of_a_host_may_jump_and_its_monotonic_clock_does_not() {
    let simulation = Simulation::new(1);
    let (one, other) = (simulation.node("one"), simulation.node("other"));
    let (now, instant) = (one.now(), one.instant());
    simulation.net().set_clock("one", -5_000);
    assert_eq!((one.now().0, other.now()), (now.0 - 5_000, now));
    assert_eq!(one.instant(), instant);
    simulation.net().set_clock("one", 0);
    assert_eq!(one.now(), now);
}

#[tokio::test(start_paused = true)]
async fn cuts_are_mended_one_by_one() {
    let net = Simulation::new(1).net().clone();
    net.cut("a", "b");
    net.cut("b", "a");
    net.mend("a", "b");
    assert!(!net.is_cut("a", "b") && net.is_cut("b", "a"));
    net.heal();
    assert!(!net.is_cut("b", "a"));
}

#[cfg(not(feature = "mutations"))]
#[test]
fn no_bug_is_on_in_a_build_without_them() {
    const { assert!(!env::HAS_MUTATIONS && !env::mutation("skip-fence")) };
    assert!(
        !env::choose_mutation("skip-fence"),
        "it cannot be turned on either"
    );
    assert!(!env::mutation("skip-fence"));
}

#[tokio::test]
async fn tcp_on_the_real_machine() {
    let env = Env::production();
    let mut listener = env.listen("127.0.0.1:0").await.unwrap();
    let address = listener.address().to_owned();
    assert!(listener.port() > 0);
    let server = env.spawn(async move {
        let (mut read, mut write) = listener.accept().await.unwrap().into_split();
        let mut buffer = [0u8; 5];
        read.read_exact(&mut buffer).await.unwrap();
        write.write_all(&buffer).await.unwrap();
    });
    let mut stream = env.connect(&address).await.unwrap();
    assert_eq!(ask(&env, &mut stream, b"hello").await.unwrap(), b"hello");
    server.await;
}

#[tokio::test]
async fn shutting_down_ends_every_task() {
    let env = Env::production();
    let forever = env.spawn(std::future::pending::<()>());
    env.shut_down().await;
    assert_eq!(forever.await, None);
}
