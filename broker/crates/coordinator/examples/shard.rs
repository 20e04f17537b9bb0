//! How fast a shard is: commits through the whole replica over a log in memory, then reads, then commits at a steady
//! pace while the shard works in the background, then replay and take-over.
//!
//! `cargo run --release -p coordinator --example shard -- [BATCHES] [PARTITIONS] [BATCHES PER FILE] [LOG LATENCY MS]`
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "a measurement, not a service"
)]

#[path = "../src/replica/tests/memory_log.rs"]
mod memory_log;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use coordinator::protocol::*;
use coordinator::shard::{RetentionConfig, ShardOptions, ShardService};
use env::Env;
use hdrhistogram::Histogram;
use memory_log::{MemoryLog, owner};
use types::{LogOffset, NodeId, ShardId, Timestamp, TopicId, TopicPartition};
use uuid::Uuid;

const SHARD: ShardId = ShardId(0);
const IN_FLIGHT: u64 = 64;
const PACED: u64 = 1_000;

fn topic() -> TopicId {
    TopicId(Uuid::from_u128(1))
}

fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

fn show(what: &str, histogram: &Histogram<u64>) {
    let at = |q| histogram.value_at_quantile(q) as f64 / 1000.0;
    println!(
        "{what}: p50 {:.1} us, p99 {:.1} us, p99.9 {:.1} us",
        at(0.5),
        at(0.99),
        at(0.999)
    );
}

/// A file of one producer per partition, `sequence` being the number of batches each partition has so far.
fn file(n: u64, per_file: u64, partitions: u64) -> CommitFileRequest {
    let batch = |i: u64| {
        let at = n * per_file + i;
        let partition = at.wrapping_mul(7919) % partitions;
        BatchRequest {
            must_follow: false,
            topic: topic(),
            partition: partition as i32,
            position: 1 + i as u32 * 1000,
            size: 1000,
            last_offset_delta: 9,
            max_timestamp: Timestamp(1_700_000_000_000 + n as i64),
            log_append_time: false,
            producer_id: partition as i64 % 100,
            producer_epoch: 0,
            base_sequence: ((at / partitions) * 10) as i32,
        }
    };
    CommitFileRequest {
        shard: SHARD,
        object: Uuid::from_u128(u128::from(n).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835)),
        uploader: NodeId(1),
        size: 1 + per_file * 1000,
        owners: vec![SHARD],
        batches: (0..per_file).map(batch).collect(),
    }
}

/// A file of a topic without producers.
fn plain_file(n: u64, per_file: u64, partitions: u64) -> CommitFileRequest {
    let mut request = file(n, per_file, partitions);
    for batch in &mut request.batches {
        (batch.producer_id, batch.producer_epoch) = (-1, -1);
    }
    request
}

/// Commits a file of 20 batches every 5 ms for some seconds and tells how long that took each time.
async fn paced(env: &Env, shard: &ShardService, next: &mut u64, partitions: u64, what: &str) {
    let mut took = Histogram::<u64>::new(3).unwrap();
    let mut flying = Vec::new();
    let began = Instant::now();
    for _ in 0..PACED {
        let (shard, request) = (shard.clone(), plain_file(*next, 20, partitions));
        *next += 1;
        flying.push(env.spawn(async move {
            let began = Instant::now();
            assert_eq!(shard.commit_file(request).await.error_code, 0);
            began.elapsed()
        }));
        env.sleep(Duration::from_millis(5)).await;
    }
    for commit in flying {
        took.record(commit.await.unwrap().as_nanos() as u64).unwrap();
    }
    show(
        &format!("paced commits for {:.1} s, {what}", began.elapsed().as_secs_f64()),
        &took,
    );
}

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args()
        .skip(1)
        .map(|argument| argument.parse::<u64>().unwrap());
    let batches = arguments.next().unwrap_or(1_000_000);
    let partitions = arguments.next().unwrap_or(10_000);
    let per_file = arguments.next().unwrap_or(100);
    let latency = Duration::from_millis(arguments.next().unwrap_or(0));
    let env = Env::production();
    let dir = tempfile::tempdir().unwrap();
    let log = MemoryLog::new(&env);
    log.set_latency(latency);
    let options = ShardOptions {
        shard: SHARD,
        data_dir: dir.path().to_owned(),
        replica: Default::default(),
    };
    let start_shard = || ShardService::start(&env, options.clone(), Arc::new(log.clone()), owner(1)).unwrap();
    let shard = start_shard();
    shard.leading().await.unwrap();
    let request = CreatePartitionsRequest {
        shard: SHARD,
        topic: topic(),
        name: "t".into(),
        partitions: (0..partitions as i32).collect(),
    };
    assert_eq!(shard.create_partitions(request).await.error_code, 0);
    let retention_bytes = Arc::new(AtomicI64::new(-1));
    let jobs = {
        let store = blob::MemoryStore::new(env.clone());
        coordinator::shard::Jobs {
            store: Arc::new(store),
            object_key: |object| object.to_string(),
            retention: {
                let bytes = retention_bytes.clone();
                Arc::new(move |_| {
                    Some(RetentionConfig {
                        retention_ms: -1,
                        retention_bytes: bytes.load(Ordering::Relaxed),
                    })
                })
            },
            hand_over: Arc::new(|_| Box::pin(async { 0 })),
            describe: Arc::new(|_| Box::pin(async { unreachable!("every file has one owner") })),
            options: coordinator::shard::JobOptions {
                retention_interval: Duration::from_millis(200),
                ..Default::default()
            },
        }
    };
    let (worker, jobs_again) = (shard.clone(), jobs.clone());
    env.spawn(async move { worker.run_jobs(&jobs).await });

    // Files of one task commit in order; partitions of a file belong to whoever comes first, so that sequences hold.
    let files = batches / per_file;
    let (began, cpu) = (Instant::now(), cpu_seconds());
    let mut commits = Histogram::<u64>::new(3).unwrap();
    let mut flying = std::collections::VecDeque::<env::JoinHandle<Duration>>::new();
    for n in 0..files {
        if flying.len() as u64 == IN_FLIGHT {
            let took: Duration = flying.pop_front().unwrap().await.unwrap();
            commits.record(took.as_nanos() as u64).unwrap();
        }
        let shard = shard.clone();
        let request = file(n, per_file, partitions);
        flying.push_back(env.spawn(async move {
            let began = Instant::now();
            let response = shard.commit_file(request).await;
            assert!(response.error_code == 0 && response.batches.iter().all(|batch| batch.error_code == 0));
            began.elapsed()
        }));
    }
    while let Some(commit) = flying.pop_front() {
        commit.await.unwrap();
    }
    let (wall, cpu) = (began.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    let done = (files * per_file) as f64;
    println!(
        "commit: {:.0} batches/s, {:.1} us CPU per batch, all threads",
        done / wall,
        cpu / done * 1e6
    );
    show("commit latency", &commits);

    let mut found = Histogram::<u64>::new(3).unwrap();
    let per_partition = batches / partitions * 10;
    for n in 0..100_000u64 {
        let partition = TopicPartition {
            topic: topic(),
            partition: (n.wrapping_mul(7919) % partitions) as i32,
        };
        let offset = (n.wrapping_mul(104_729) % per_partition.max(1)) as i64;
        let partitions = vec![FindBatchesPartition {
            partition,
            offset,
            max_bytes: 10_000,
        }];
        let began = Instant::now();
        let response = shard
            .find_batches(FindBatchesRequest {
                shard: SHARD,
                partitions,
                max_bytes: 10_000,
            })
            .await;
        found.record(began.elapsed().as_nanos() as u64).unwrap();
        assert!(response.error_code == 0 && response.applied > LogOffset(0));
    }
    show("find up to 10 batches", &found);

    println!("view: {:.0} MB", shard.view_bytes().await.unwrap() as f64 / 1e6);

    // Far behind and near the end, the same.
    for (what, offset) in [("oldest", 0), ("newest", per_partition - 10)] {
        let mut found = Histogram::<u64>::new(3).unwrap();
        for n in 0..20_000u64 {
            let partition = TopicPartition {
                topic: topic(),
                partition: (n.wrapping_mul(7919) % partitions) as i32,
            };
            let request = FindBatchesRequest {
                shard: SHARD,
                partitions: vec![FindBatchesPartition {
                    partition,
                    offset: offset as i64,
                    max_bytes: 10_000,
                }],
                max_bytes: 10_000,
            };
            let began = Instant::now();
            assert_eq!(shard.find_batches(request).await.error_code, 0);
            found.record(began.elapsed().as_nanos() as u64).unwrap();
        }
        show(&format!("find at the {what} batches"), &found);
    }

    let mut next = files + 1_000_000;
    paced(&env, &shard, &mut next, partitions, "nothing else").await;
    retention_bytes.store(per_partition as i64 * 50, Ordering::Relaxed);
    paced(&env, &shard, &mut next, partitions, "retention takes half of all").await;
    retention_bytes.store(-1, Ordering::Relaxed);

    let follower_dir = tempfile::tempdir().unwrap();
    let following = ShardOptions {
        data_dir: follower_dir.path().to_owned(),
        ..options.clone()
    };
    let began = Instant::now();
    let follower = ShardService::follow(&env, following, Arc::new(log.clone()), owner(2)).unwrap();
    while !follower.is_warm() {
        env.sleep(Duration::from_millis(10)).await;
    }
    println!(
        "a follower is warm (newest snapshot and log, {} batches from the log) after {:.2} s",
        follower.batches(),
        began.elapsed().as_secs_f64()
    );
    shard.stop().await;
    let began = Instant::now();
    follower.lead().await;
    follower.leading().await.unwrap();
    println!(
        "take-over by the follower: {:.1} ms",
        began.elapsed().as_secs_f64() * 1e3
    );
    follower.stop().await;

    let mut busy = options.clone();
    busy.replica.snapshot_slots = 1;
    busy.replica.snapshot_bytes = 0;
    let shard = ShardService::start(&env, busy, Arc::new(log.clone()), owner(1)).unwrap();
    shard.leading().await.unwrap();
    paced(&env, &shard, &mut next, partitions, "snapshots all the time").await;
    let topics = vec![DeleteTopic {
        topic: topic(),
        name: "t".into(),
    }];
    let request = CreatePartitionsRequest {
        shard: SHARD,
        topic: TopicId(Uuid::from_u128(2)),
        name: "u".into(),
        partitions: (0..partitions as i32).collect(),
    };
    shard.stop().await;
    let shard = start_shard();
    shard.leading().await.unwrap();
    assert_eq!(shard.create_partitions(request).await.error_code, 0);
    let worker = shard.clone();
    env.spawn(async move { worker.run_jobs(&jobs_again).await });
    let response = shard.delete_topics(DeleteTopicsRequest { shard: SHARD, topics });
    assert_eq!(response.await.error_code, 0);
    paced(
        &env,
        &shard,
        &mut next,
        partitions,
        "a topic with all those batches is deleted",
    )
    .await;

    shard.stop().await;
    let began = Instant::now();
    let shard = start_shard();
    shard.leading().await.unwrap();
    println!(
        "cold take-over (snapshot and log): {:.2} s",
        began.elapsed().as_secs_f64()
    );
    env.shut_down().await;
}
