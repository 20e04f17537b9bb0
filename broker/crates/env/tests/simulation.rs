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
    let simulation = Simulation::new(seed);
    let server = simulation.node("server");
    server.spawn(echo(server.clone()));
    let client = simulation.node("client");
    let mut seen = Vec::new();
    client.sleep(Duration::from_millis(1)).await;
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
    let simulation = Simulation::new(1);
    let server = simulation.node("server");
    server.spawn(echo(server.clone()));
    let client = simulation.node("client");
    client.sleep(Duration::from_millis(1)).await;
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
async fn a_one_way_cut_holds_bytes_back_until_it_is_healed() {
    let simulation = Simulation::new(1);
    let server = simulation.node("server");
    server.spawn(echo(server.clone()));
    let client = simulation.node("client");
    client.sleep(Duration::from_millis(1)).await;
    let mut stream = client.connect("server:9000").await.unwrap();
    simulation.net().cut("server", "client");
    assert!(
        ask(&client, &mut stream, b"x").await.is_none(),
        "the answer came through the cut"
    );
    simulation.net().heal();
    let mut answer = [0u8; 1];
    let read = client
        .timeout(Duration::from_secs(5), stream.read_exact(&mut answer))
        .await;
    assert!(matches!(read, Ok(Ok(_))), "nothing is lost, only late");
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
