use tokio::io::{AsyncWriteExt, DuplexStream};

use super::*;

const MAX: usize = 100 << 20;

fn request(key: i16, version: i16, body: usize) -> Vec<u8> {
    let mut out = u32::try_from(8 + body).unwrap().to_be_bytes().to_vec();
    out.extend_from_slice(&key.to_be_bytes());
    out.extend_from_slice(&version.to_be_bytes());
    out.extend_from_slice(&[0, 0, 0, 1]);
    out.extend((0..body).map(|i| i as u8));
    out
}

fn reader(input: &[u8], budget: usize) -> FrameReader<&[u8]> {
    FrameReader::new(input, Env::simulated(1), MemoryBudget::new(budget), MAX)
}

#[tokio::test]
async fn small_and_large_frames_come_out_whole() {
    let sizes = [0, 10, 100, 5000, 16_376, 16_377, 70_000, 3_000_000, 1];
    let input: Vec<u8> = sizes.iter().flat_map(|size| request(3, 1, *size)).collect();
    let mut reader = reader(&input, MAX);
    for size in sizes {
        let frame = reader.next().await.unwrap().unwrap();
        assert!(frame.bytes == request(3, 1, size)[4..], "{size}");
        assert_eq!(frame.memory.is_some(), size + 8 > FREE, "{size}");
    }
    assert!(reader.next().await.unwrap().is_none());
}

#[tokio::test]
async fn a_small_frame_keeps_nothing_but_itself_alive() {
    for size in [0, 100, 3000, 20_000] {
        let (mut far, near) = tokio::io::duplex(1 << 20);
        let mut reader = FrameReader::new(near, Env::simulated(1), MemoryBudget::new(MAX), MAX);
        // Two in one read: what is left in the read buffer is not theirs.
        let two = [request(0, 9, size), request(0, 9, size)].concat();
        far.write_all(&two).await.unwrap();
        let (first, second) = (
            reader.next().await.unwrap().unwrap(),
            reader.next().await.unwrap().unwrap(),
        );
        drop(reader);
        for frame in [first, second] {
            // Alone with its memory, it can be had back for writing, and there is not much more of it.
            let memory = frame.bytes.try_into_mut().unwrap();
            assert!(memory.capacity() <= size + 8, "{} for {size}", memory.capacity());
        }
    }
}

#[tokio::test]
async fn produce_takes_its_size_and_what_a_request_costs_from_the_budget() {
    let input = request(0, 9, 100);
    let mut reader = reader(&input, 1000);
    let budget = reader.budget.clone();
    let frame = reader.next().await.unwrap().unwrap();
    assert_eq!(budget.used(), 108 + REQUEST);
    drop(frame);
    assert_eq!(budget.used(), 0);
}

#[tokio::test(start_paused = true)]
async fn past_the_budget_the_socket_is_not_read() {
    let input = [request(0, 9, 600), request(0, 9, 600)].concat();
    let mut reader = reader(&input, 2000);
    let first = reader.next().await.unwrap().unwrap();
    let env = reader.env.clone();
    assert!(env.timeout(Duration::from_secs(60), reader.next()).await.is_err());
    drop(first);
    assert_eq!(reader.next().await.unwrap().unwrap().bytes.len(), 608);
}

#[tokio::test]
async fn foreign_protocols_and_unknown_apis_end_the_connection() {
    let refused = [
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
        vec![0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 0, 0, 0, 0, 0],
        vec![0x7f, 0xff, 0xff, 0xff, 0, 3, 0, 1, 0, 0, 0, 1],
        request(999, 0, 50_000_000)[..50].to_vec(),
        request(-1, 0, 10),
        vec![0, 0, 0, 2, 0, 3],
        vec![0, 0, 0, 0],
    ];
    for input in refused {
        let mut reader = reader(&input, MAX);
        assert!(reader.next().await.is_err(), "{input:?}");
        assert_eq!(reader.budget.used(), 0);
    }
}

#[tokio::test]
async fn a_closed_connection_inside_a_frame_is_an_error() {
    for size in [100, 100_000] {
        let whole = request(3, 1, size);
        for cut in [1, 3, 5, 11, 50] {
            assert!(reader(&whole[..cut], MAX).next().await.is_err());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_large_frame_must_not_trickle_in() {
    let (mut far, near) = tokio::io::duplex(1 << 16);
    let env = Env::simulated(1);
    let trickle = async {
        for chunk in request(0, 9, 1_000_000).chunks(1000) {
            if far.write_all(chunk).await.is_err() {
                return;
            }
            env.sleep(Duration::from_secs(10)).await;
        }
    };
    let mut reader = FrameReader::new(near, env.clone(), MemoryBudget::new(MAX), MAX);
    tokio::select! {
        () = trickle => panic!("it was read to its end"),
        frame = reader.next() => assert!(frame.is_err()),
    }
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_stops_arriving_gives_its_memory_back() {
    let (mut far, near) = tokio::io::duplex(1 << 16);
    let whole = request(0, 9, 1_000_000);
    far.write_all(&whole[..5000]).await.unwrap();
    let budget = MemoryBudget::new(MAX);
    let mut reader = FrameReader::new(near, Env::simulated(1), budget.clone(), MAX);
    assert!(reader.next().await.is_err());
    assert_eq!(budget.used(), 0);
}

/// Connections that share a budget, each the peer's end and the reader's.
fn connections(count: usize, budget: &MemoryBudget) -> Vec<(DuplexStream, FrameReader<DuplexStream>)> {
    let one = |_| {
        let (far, near) = tokio::io::duplex(1 << 16);
        (
            far,
            FrameReader::new(near, Env::simulated(1), budget.clone(), MAX),
        )
    };
    (0..count).map(one).collect()
}

/// Those who have sent `sent` bytes of frames of `len` bytes; their readers wait for the rest, until the ends are dropped.
async fn unfinished(count: usize, len: usize, sent: usize, budget: &MemoryBudget) -> Vec<Waiting> {
    let env = Env::simulated(1);
    let mut all = Vec::new();
    for (mut far, mut reader) in connections(count, budget) {
        far.write_all(&request(0, 9, len - 8)[..sent]).await.unwrap();
        let reading = env.spawn(async move { reader.next().await.is_err() });
        all.push((far, reading));
    }
    env.sleep(Duration::from_millis(10)).await;
    all
}

type Waiting = (DuplexStream, env::JoinHandle<bool>);

/// The frame of a producer that sends `len` bytes at once, if it is read within `patience`.
async fn honest(len: usize, budget: &MemoryBudget, patience: Duration) -> Option<Frame> {
    let (mut far, mut reader) = connections(1, budget).remove(0);
    let env = Env::simulated(1);
    let sending = env.spawn(async move {
        far.write_all(&request(0, 9, len - 8)).await.unwrap();
        far
    });
    let frame = env.timeout(patience, reader.next()).await.ok()?;
    drop(sending);
    Some(frame.unwrap().unwrap())
}

#[tokio::test(start_paused = true)]
async fn an_announcement_takes_nothing_from_the_budget() {
    let budget = MemoryBudget::new(8 << 20);
    let _waiting = unfinished(30, 7 << 20, 100, &budget).await;
    assert_eq!(budget.used(), 0);
    assert!(
        honest(6 << 20, &budget, Duration::from_millis(100))
            .await
            .is_some()
    );
}

#[tokio::test(start_paused = true)]
async fn large_frames_that_do_not_come_hold_up_no_smaller_ones() {
    let budget = MemoryBudget::new(16 << 20);
    let _waiting = unfinished(30, 7 << 20, 5000, &budget).await;
    assert!(budget.used() >= 7 << 20, "the first has what it announced");
    let mut frames = Vec::new();
    for _ in 0..7 {
        frames.push(
            honest(1 << 20, &budget, Duration::from_millis(100))
                .await
                .unwrap(),
        );
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_gets_what_has_not_come_of_slow_frames() {
    let budget = MemoryBudget::new(16 << 20);
    for (count, len) in [(10, 7 << 20), (20, 1 << 20)] {
        let waiting = unfinished(count, len, 5000, &budget).await;
        // Before any of them is given up.
        assert!(honest(12 << 20, &budget, STALL / 2).await.is_some());
        assert!(waiting.iter().all(|(_, reading)| !reading.is_finished()));
        for (far, reading) in waiting {
            drop(far);
            assert!(reading.await.unwrap());
        }
        assert_eq!(budget.used(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_frame_comes_out_whole_although_others_wait() {
    const LEN: usize = 3 << 20;
    let budget = MemoryBudget::new(8 << 20);
    let env = Env::simulated(1);
    let (mut far, mut reader) = connections(1, &budget).remove(0);
    let sent = request(0, 9, LEN - 8);
    let slow = sent.clone();
    let sending = env.spawn({
        let env = env.clone();
        async move {
            for part in slow.chunks(64 << 10) {
                far.write_all(part).await.unwrap();
                env.sleep(Duration::from_millis(200)).await;
            }
            far
        }
    });
    let reading = env.spawn(async move { reader.next().await.unwrap().unwrap() });
    env.sleep(Duration::from_millis(100)).await;
    assert!(budget.used() >= LEN, "it has all it needs");
    // One who holds the rest, and one who waits.
    let held = budget.take((8 << 20) - budget.used()).await;
    let waiting = env.spawn({
        let budget = budget.clone();
        async move { budget.take(LEN / 2).await }
    });
    drop(env.timeout(Duration::from_secs(3), waiting).await.unwrap());
    assert!(budget.used() < (8 << 20) - LEN / 2, "it has what has come of it");
    drop(held);
    let frame = reading.await.unwrap();
    assert!(frame.bytes == sent[4..]);
    assert_eq!(budget.used(), LEN + REQUEST);
    drop((frame, sending));
    assert_eq!(budget.used(), 0);
}

#[tokio::test(start_paused = true)]
async fn incomplete_frames_that_hold_everything_are_given_up() {
    let budget = MemoryBudget::new(4 << 20);
    let env = Env::simulated(1);
    // All of them go on sending, and there is not room for half of what they announce.
    let mut all = Vec::new();
    for (mut far, mut reader) in connections(20, &budget) {
        env.spawn({
            let env = env.clone();
            async move {
                for part in request(0, 9, (1 << 20) - 8).chunks(20_000) {
                    let _ = far.write_all(part).await;
                    env.sleep(Duration::from_secs(2)).await;
                }
            }
        });
        all.push(env.spawn(async move { reader.next().await.is_ok() }));
    }
    for reading in all {
        // Whole or given up, but not for ever in each other's way.
        let ended = env.timeout(Duration::from_secs(1000), reading).await;
        assert!(ended.is_ok());
    }
    assert_eq!(budget.used(), 0);
}
