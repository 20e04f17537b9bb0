//! What an upload that never ends costs those who share no partition with it (ADR 0013).

use super::*;

const MS: Duration = Duration::from_millis(1);
const PARTITIONS: u64 = 3_000;
const SHARDS: u64 = 3;
/// Batches that come in together, every [`PAUSE`].
const TOGETHER: u64 = 30;
const PAUSE: Duration = Duration::from_millis(10);

/// Latencies of a broker to which every partition sends a batch a second on average, for ten seconds, in ms and sorted.
/// A segment has a quarter of all partitions. The uploads with the numbers in `stuck` do not end.
async fn latencies(stuck: std::ops::Range<u64>) -> Vec<u128> {
    let random = Env::simulated(23);
    let puts = Mutex::new(0);
    let plan = move |operation, _: &str| {
        if operation != Operation::Put {
            return Decision::FINE;
        }
        let mut puts = puts.lock();
        *puts += 1;
        // One in twenty takes two to three times as long as most.
        let slow = random.random_below(20) == 0;
        let usual = 70 + random.random_below(40);
        let ms = if slow {
            200 + random.random_below(50)
        } else {
            usual
        };
        Decision {
            delay: if stuck.contains(&puts) {
                3_600 * SECOND
            } else {
                MS * ms as u32
            },
            fault: Fault::None,
        }
    };
    let f = fixture_with(4, plan, |_| Behaviour::Answer(15 * MS));
    let mut waiting = Vec::new();
    for _ in 0..10 * SECOND.as_millis() / PAUSE.as_millis() {
        let appends = (0..TOGETHER).map(|_| {
            let partition = f.env.random_below(PARTITIONS);
            let shard = (partition % SHARDS) as u32;
            append(partition.into(), shard, plain(1, 1000, |_| {}))
        });
        let start = f.env.instant();
        // Each as a request of its own, as from so many clients.
        for append in appends.collect::<Vec<_>>() {
            let (env, outcome) = (f.env.clone(), f.producer.append(vec![append], 60 * SECOND, None));
            waiting.push(f.env.spawn(async move {
                assert_eq!(codes(&outcome.await), [0]);
                (env.instant() - start).as_millis()
            }));
        }
        f.env.sleep(PAUSE).await;
    }
    let mut latencies = Vec::new();
    for one in waiting {
        latencies.push(one.await.unwrap());
    }
    latencies.sort_unstable();
    latencies
}

fn percentile(sorted: &[u128], per_mille: usize) -> u128 {
    sorted[(sorted.len() - 1) * per_mille / 1000]
}

#[tokio::test(start_paused = true)]
async fn an_upload_that_never_ends_costs_nobody_half_a_second() {
    let all = |sorted: &[u128]| [500, 990, 999, 1000].map(|per_mille| percentile(sorted, per_mille));
    let usual = all(&latencies(0..0).await);
    for stuck in [25..26, 25..27] {
        let with = all(&latencies(stuck.clone()).await);
        let figures =
            format!("p50, p99, p99.9, max in ms: usually {usual:?}, uploads {stuck:?} stuck {with:?}");
        println!("{figures}");
        let [median, .., worst] = with;
        assert!(median <= usual[0] + 20, "{figures}");
        assert!(
            worst < usual[3] + 150 * (stuck.end - stuck.start) as u128,
            "{figures}"
        );
    }
}
