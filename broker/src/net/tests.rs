use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use env::{Env, Stream};
use futures::FutureExt;
use kafka_wire::rope::Rope;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::frames::Frame;
use super::memory::MemoryBudget;
use super::*;
use crate::config::Listeners;

const SECOND: Duration = Duration::from_secs(1);

/// Answers a frame with its last byte and the zone of the client, after as many seconds as its last but one says. A last
/// byte of 0 gets no answer, one of 255 ends the connection, and one of 254 is taken in only after these seconds.
struct Echo {
    env: Env,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Handler for Echo {
    fn handle(&self, peer: &Peer, frame: Frame) -> Taken {
        let [.., delay, last] = frame.bytes[..] else {
            return Taken::Now(std::future::ready(Answer::Close).boxed());
        };
        if last == 254 {
            let (env, seen) = (self.env.clone(), self.seen.clone());
            return Taken::Later(
                async move {
                    env.sleep(u32::from(delay) * SECOND).await;
                    seen.lock().push(last);
                    let answer = Answer::Reply(bytes::Bytes::from_static(&[254]).into());
                    Taken::Now(std::future::ready(answer).boxed())
                }
                .boxed(),
            );
        }
        self.seen.lock().push(last);
        let zone = peer.zone.as_deref().unwrap_or("-").to_owned();
        let env = self.env.clone();
        let answer = async move {
            env.sleep(u32::from(delay) * SECOND).await;
            match last {
                0 => Answer::Silence,
                255 => Answer::Close,
                _ => {
                    let mut reply = Rope::from(bytes::Bytes::from(vec![last]));
                    reply.push(bytes::Bytes::from(zone));
                    Answer::Reply(reply)
                }
            }
        };
        Taken::Now(answer.boxed())
    }
}

struct Fixture {
    env: Env,
    net: Net,
    handler: Arc<Echo>,
}

async fn fixture(max_connections: usize) -> Fixture {
    let env = Env::simulated(5);
    let listeners = Listeners {
        host: "test".to_owned(),
        advertised_host: "test".to_owned(),
        port: 9092,
        zones: BTreeMap::from([("a".to_owned(), 9093)]),
        max_connections,
    };
    let handler = Arc::new(Echo {
        env: env.clone(),
        seen: Arc::default(),
    });
    let budget = MemoryBudget::new(1 << 20);
    let net = start(env.clone(), &listeners, budget, handler.clone(), Arc::default())
        .await
        .unwrap();
    Fixture { env, net, handler }
}

impl Fixture {
    async fn connect(&self, port: u16) -> Stream {
        self.env.connect(&format!("test:{port}")).await.unwrap()
    }
}

/// A Metadata request that ends with the two bytes.
fn request(delay: u8, last: u8) -> Vec<u8> {
    vec![0, 0, 0, 10, 0, 3, 0, 1, 0, 0, 0, 1, delay, last]
}

async fn reads(stream: &mut Stream, expected: &[u8]) {
    let mut read = vec![0; expected.len()];
    stream.read_exact(&mut read).await.unwrap();
    assert_eq!(read, expected);
}

async fn is_closed(stream: &mut Stream) -> bool {
    matches!(stream.read(&mut [0; 16]).await, Ok(0) | Err(_))
}

#[tokio::test(start_paused = true)]
async fn answers_come_in_the_order_of_the_requests_and_none_waits_to_be_read() {
    let f = fixture(10).await;
    let mut stream = f.connect(9092).await;
    let all = [request(3, 1), request(0, 2), request(0, 0), request(0, 3)].concat();
    stream.write_all(&all).await.unwrap();
    f.env.sleep(SECOND).await;
    assert_eq!(
        *f.handler.seen.lock(),
        [1, 2, 0, 3],
        "the first answer is not there yet"
    );
    reads(&mut stream, b"\x01-\x02-\x03-").await;
}

#[tokio::test(start_paused = true)]
async fn what_takes_its_time_to_be_taken_in_is_not_overtaken() {
    let f = fixture(10).await;
    let (mut stream, mut other) = (f.connect(9092).await, f.connect(9092).await);
    let all = [request(5, 1), request(3, 254), request(0, 2), request(0, 3)].concat();
    stream.write_all(&all).await.unwrap();
    f.env.sleep(SECOND).await;
    assert_eq!(*f.handler.seen.lock(), [1], "the next one is not taken in yet");
    other.write_all(&request(0, 9)).await.unwrap();
    reads(&mut other, b"\x09-").await;
    f.env.sleep(3 * SECOND).await;
    assert_eq!(*f.handler.seen.lock(), [1, 9, 254, 2, 3]);
    reads(&mut stream, b"\x01-\xfe\x02-\x03-").await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_waits_holds_little_memory() {
    let f = fixture(10).await;
    let (mut reading, mut writing) = f.connect(9092).await.into_split();
    // Each is too small to be counted in the budget of the broker.
    let mut large = vec![0; 4 + 8 + 60_000];
    let length = u32::try_from(large.len() - 4).unwrap();
    large[..4].copy_from_slice(&length.to_be_bytes());
    large[4..12].copy_from_slice(&[0, 3, 0, 1, 0, 0, 0, 1]);
    let last = large.len() - 1;
    large[last] = 9;
    let mut all = request(30, 1);
    for _ in 0..20 {
        all.extend_from_slice(&large);
    }
    let sending = f.env.spawn(async move {
        writing.write_all(&all).await.unwrap();
        writing
    });
    f.env.sleep(10 * SECOND).await;
    let read = f.handler.seen.lock().len();
    assert!((2..=6).contains(&read), "{read} requests are read");
    let mut answers = vec![0; 2 * 21];
    reading.read_exact(&mut answers).await.unwrap();
    assert_eq!(f.handler.seen.lock().len(), 21, "nothing is lost");
    drop(sending.await);
}

#[tokio::test(start_paused = true)]
async fn the_port_tells_the_zone() {
    let f = fixture(10).await;
    assert_eq!(
        (f.net.port(), f.net.zone_ports()),
        (9092, &[("a".to_owned(), 9093)][..])
    );
    let mut stream = f.connect(9093).await;
    stream.write_all(&request(0, 7)).await.unwrap();
    reads(&mut stream, b"\x07a").await;
}

#[tokio::test(start_paused = true)]
async fn strangers_are_closed_and_others_served_on() {
    let f = fixture(10).await;
    let mut good = f.connect(9092).await;
    for hostile in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0x16, 3, 1, 0, 5, 1, 2, 3],
        &[0x7f, 0xff, 0xff, 0xff, 0, 0],
    ] {
        let mut stream = f.connect(9092).await;
        stream.write_all(hostile).await.unwrap();
        assert!(is_closed(&mut stream).await);
    }
    good.write_all(&request(0, 9)).await.unwrap();
    reads(&mut good, b"\x09-").await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_may_end_the_connection_after_those_before_it() {
    let f = fixture(10).await;
    let mut stream = f.connect(9092).await;
    stream
        .write_all(&[request(1, 1), request(0, 255), request(0, 2)].concat())
        .await
        .unwrap();
    reads(&mut stream, b"\x01-").await;
    assert!(is_closed(&mut stream).await);
}

#[tokio::test(start_paused = true)]
async fn more_connections_than_allowed_are_closed_at_once() {
    let f = fixture(2).await;
    let (mut first, second) = (f.connect(9092).await, f.connect(9093).await);
    f.env.sleep(SECOND).await;
    let mut third = f.connect(9092).await;
    assert!(is_closed(&mut third).await);
    drop(second);
    f.env.sleep(SECOND).await;
    let mut fourth = f.connect(9092).await;
    for stream in [&mut first, &mut fourth] {
        stream.write_all(&request(0, 4)).await.unwrap();
        reads(stream, b"\x04-").await;
    }
}

#[tokio::test(start_paused = true)]
async fn idle_connections_are_closed_and_waiting_ones_are_not() {
    let f = fixture(10).await;
    let (mut idle, mut waiting) = (f.connect(9092).await, f.connect(9092).await);
    for _ in 0..5 {
        waiting.write_all(&request(250, 1)).await.unwrap();
    }
    let start = f.env.instant();
    assert!(is_closed(&mut idle).await);
    assert!(f.env.instant() - start < 700 * SECOND);
    for _ in 0..5 {
        reads(&mut waiting, b"\x01-").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_answers_what_was_read_and_takes_nothing_new() {
    let f = fixture(10).await;
    let mut stream = f.connect(9092).await;
    stream.write_all(&request(3, 1)).await.unwrap();
    f.env.sleep(SECOND).await;
    let deadline = f.env.instant() + 60 * SECOND;
    let (env, seen) = (f.env.clone(), f.handler.clone());
    let stopping = env.spawn(f.net.stop(deadline));
    env.sleep(SECOND).await;
    stream.write_all(&request(0, 2)).await.unwrap();
    reads(&mut stream, b"\x01-").await;
    assert!(is_closed(&mut stream).await);
    stopping.await;
    assert!(env.instant() < deadline);
    assert_eq!(*seen.seen.lock(), [1]);
}
