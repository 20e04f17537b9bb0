//! What a shard can do: commits through the whole replica over a log in memory, with a follower and brokers attached; reads;
//! hand-over and take-over; then commits at a steady pace while the shard works in the background.
//!
//! `cargo run --release -p coordinator --example shard -- [BATCHES] [PARTITIONS] [BATCHES PER FILE] [LOG LATENCY MS]`
#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "a measurement, not a service"
)]

#[path = "../src/replica/tests/memory_log.rs"]
mod memory_log;

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use coordinator::protocol::*;
use coordinator::replica::Status;
use coordinator::shard::{JobOptions, Jobs, RetentionConfig, ShardOptions, ShardService};
use env::{Env, JoinHandle};
use hdrhistogram::Histogram;
use memory_log::{MemoryLog, owner};
use types::{LogOffset, NodeId, ShardId, Timestamp, TopicId, TopicPartition};
use uuid::Uuid;

const SHARD: ShardId = ShardId(0);
const IN_FLIGHT: u64 = 64;
const PACED: u64 = 1_000;
const PROCESS: &str = "/proc/self/stat";

fn topic() -> TopicId {
    TopicId(Uuid::from_u128(1))
}

/// CPU of a process or thread by its `stat`, in seconds.
fn cpu_of(stat: &Path) -> f64 {
    let stat = std::fs::read_to_string(stat).unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

/// The threads of shards.
fn shard_threads() -> BTreeSet<std::path::PathBuf> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let tasks = tasks.map(|task| task.unwrap().path());
    let named = |task: &std::path::PathBuf| {
        std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "shard-0")
    };
    tasks.filter(named).collect()
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

/// A log in memory, and all that runs over it.
struct Lab {
    env: Env,
    log: MemoryLog,
    batches: u64,
    partitions: u64,
    per_file: u64,
    retention_bytes: Arc<AtomicI64>,
    /// Number of the next file.
    next: u64,
    dirs: Vec<tempfile::TempDir>,
}

impl Lab {
    fn options(&mut self) -> ShardOptions {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = dir.path().to_owned();
        self.dirs.push(dir);
        ShardOptions {
            shard: SHARD,
            data_dir,
            replica: Default::default(),
            features: Default::default(),
        }
    }

    async fn start(&mut self, options: ShardOptions) -> ShardService {
        let shard = ShardService::start(&self.env, options, Arc::new(self.log.clone()), owner(1)).unwrap();
        shard.leading().await.unwrap();
        shard
    }

    fn follow(&mut self) -> ShardService {
        let options = self.options();
        ShardService::follow(&self.env, options, Arc::new(self.log.clone()), owner(2)).unwrap()
    }

    /// Has the shard do its background work.
    fn work(&self, shard: &ShardService) {
        let bytes = self.retention_bytes.clone();
        let jobs = Jobs {
            store: Arc::new(blob::MemoryStore::new(self.env.clone())),
            object_key: |object| object.to_string(),
            retention: Arc::new(move |_| {
                Some(RetentionConfig {
                    retention_ms: -1,
                    retention_bytes: bytes.load(Ordering::Relaxed),
                })
            }),
            hand_over: Arc::new(|_| Box::pin(async { 0 })),
            describe: Arc::new(|_| Box::pin(async { unreachable!("every file has one owner") })),
            options: JobOptions {
                retention_interval: Duration::from_millis(200),
                ..Default::default()
            },
        };
        let worker = shard.clone();
        self.env.spawn(async move { worker.run_jobs(&jobs).await });
    }

    async fn create(&self, shard: &ShardService, topic: TopicId) {
        let request = CreatePartitionsRequest {
            shard: SHARD,
            topic,
            name: "t".into(),
            partitions: (0..self.partitions as i32).collect(),
        };
        assert_eq!(shard.create_partitions(request).await.error_code, 0);
    }

    /// As many brokers learn what is new.
    fn brokers(&self, shard: &ShardService, count: usize) -> Vec<JoinHandle<()>> {
        let broker = || {
            let shard = shard.clone();
            self.env.spawn(async move {
                let mut from = LogOffset(0);
                loop {
                    let news = shard.tail(TailRequest {
                        shard: SHARD,
                        from,
                        max_wait_ms: 1000,
                    });
                    let news = news.await;
                    if news.error_code != 0 {
                        return;
                    }
                    from = news.next;
                }
            })
        };
        (0..count).map(|_| broker()).collect()
    }

    /// Commits as fast as it goes. Files of one task commit in order; partitions of a file belong to whoever comes first, so
    /// that sequences hold.
    async fn commit_all(&mut self, shard: &ShardService) {
        let leader = shard_threads();
        let follower = self.follow();
        let brokers = self.brokers(shard, 3);
        let process = Path::new(PROCESS);
        let of_leader = || leader.iter().map(|task| cpu_of(&task.join("stat"))).sum::<f64>();
        let files = self.batches / self.per_file;
        let (began, cpu, leader_cpu) = (Instant::now(), cpu_of(process), of_leader());
        let mut commits = Histogram::<u64>::new(3).unwrap();
        let mut flying = VecDeque::<JoinHandle<Duration>>::new();
        for n in 0..files {
            if flying.len() as u64 == IN_FLIGHT {
                let took: Duration = flying.pop_front().unwrap().await.unwrap();
                commits.record(took.as_nanos() as u64).unwrap();
            }
            let shard = shard.clone();
            let request = file(n, self.per_file, self.partitions);
            flying.push_back(self.env.spawn(async move {
                let began = Instant::now();
                let response = shard.commit_file(request).await;
                assert!(
                    response.error_code == 0 && response.batches.iter().all(|batch| batch.error_code == 0)
                );
                began.elapsed()
            }));
        }
        while let Some(commit) = flying.pop_front() {
            commit.await.unwrap();
        }
        let wall = began.elapsed().as_secs_f64();
        let (cpu, leader_cpu) = (cpu_of(process) - cpu, of_leader() - leader_cpu);
        let done = (files * self.per_file) as f64;
        println!(
            "commit, a follower and 3 brokers attached: {:.0} batches/s; CPU per batch: {:.1} us of the leader's thread \
             ({:.0} batches/s on one core), {:.1} us of all",
            done / wall,
            leader_cpu / done * 1e6,
            done / leader_cpu,
            cpu / done * 1e6
        );
        show("commit latency", &commits);
        let began = Instant::now();
        let end = match *shard.status().borrow() {
            Status::Leading { applied, .. } => applied,
            ref other => panic!("{other:?}"),
        };
        let behind = |applied: &Option<LogOffset>| applied.is_none_or(|applied| applied < end);
        while matches!(&*follower.status().borrow(), Status::Following { applied, .. } if behind(applied)) {
            self.env.sleep(Duration::from_millis(5)).await;
        }
        println!(
            "the follower has caught up {:.2} s after the last commit",
            began.elapsed().as_secs_f64()
        );
        follower.stop().await;
        brokers.iter().for_each(JoinHandle::abort);
    }

    async fn find(&self, shard: &ShardService, what: &str, looks: u64, offset: impl Fn(u64) -> u64) {
        let mut found = Histogram::<u64>::new(3).unwrap();
        for n in 0..looks {
            let partition = TopicPartition {
                topic: topic(),
                partition: (n.wrapping_mul(7919) % self.partitions) as i32,
            };
            let request = FindBatchesRequest {
                shard: SHARD,
                partitions: vec![FindBatchesPartition {
                    partition,
                    offset: offset(n) as i64,
                    max_bytes: 10_000,
                }],
                max_bytes: 10_000,
            };
            let began = Instant::now();
            let response = shard.find_batches(request).await;
            found.record(began.elapsed().as_nanos() as u64).unwrap();
            assert!(response.error_code == 0 && response.partitions[0].error_code == 0);
        }
        show(&format!("find up to 10 batches, {what}"), &found);
    }

    /// Commits four batches a second to each partition, in files of one batch each, while retention keeps twenty: does it keep up?
    async fn keep_up(&mut self, shard: &ShardService) {
        let live = || -> i64 {
            let view = rusqlite::Connection::open(shard.dir().join("view.db")).unwrap();
            view.query_row("SELECT count(*) FROM batches", (), |row| row.get(0))
                .unwrap()
        };
        self.retention_bytes.store(20 * 1000, Ordering::Relaxed);
        let mut took = Histogram::<u64>::new(3).unwrap();
        let mut counted = Vec::new();
        let mut next = Instant::now();
        for n in 1..=80 {
            let request = self.plain_file(self.partitions);
            let began = Instant::now();
            assert_eq!(shard.commit_file(request).await.error_code, 0);
            took.record(began.elapsed().as_nanos() as u64).unwrap();
            if n % 20 == 0 {
                counted.push(live());
            }
            next += Duration::from_millis(250);
            self.env
                .sleep(next.saturating_duration_since(Instant::now()))
                .await;
        }
        println!(
            "{} batches/s under retention: {counted:?} live after every 5 s, {} to be kept",
            self.partitions * 4,
            self.partitions * 20
        );
        show("commits of a batch for each partition", &took);
    }

    /// Moves the shard to a warm follower; the clock runs from the first sign to the first commit there.
    async fn move_to(&mut self, old: &ShardService, planned: bool) -> ShardService {
        let follower = self.follow();
        while !follower.is_warm() {
            self.env.sleep(Duration::from_millis(10)).await;
        }
        let request = self.plain_file(20);
        let began = Instant::now();
        if planned {
            old.stop().await;
        }
        follower.lead().await;
        follower.leading().await.unwrap();
        let led = began.elapsed();
        assert_eq!(follower.commit_file(request).await.error_code, 0);
        println!(
            "{}: leads after {:.1} ms, first commit after {:.1} ms",
            if planned {
                "planned hand-over to a follower"
            } else {
                "take-over by a follower"
            },
            led.as_secs_f64() * 1e3,
            began.elapsed().as_secs_f64() * 1e3
        );
        old.ended().await;
        follower
    }

    /// A file without producers.
    fn plain_file(&mut self, batches: u64) -> CommitFileRequest {
        let mut request = file(self.next, batches, self.partitions);
        self.next += 1;
        for batch in &mut request.batches {
            (batch.producer_id, batch.producer_epoch) = (-1, -1);
        }
        request
    }

    /// Commits a file of 20 batches every 5 ms for some seconds and tells how long that took each time.
    async fn paced(&mut self, shard: &ShardService, what: &str) {
        let mut took = Histogram::<u64>::new(3).unwrap();
        let mut flying = Vec::new();
        let began = Instant::now();
        for _ in 0..PACED {
            let (shard, request) = (shard.clone(), self.plain_file(20));
            flying.push(self.env.spawn(async move {
                let began = Instant::now();
                assert_eq!(shard.commit_file(request).await.error_code, 0);
                began.elapsed()
            }));
            self.env.sleep(Duration::from_millis(5)).await;
        }
        for commit in flying {
            took.record(commit.await.unwrap().as_nanos() as u64).unwrap();
        }
        show(
            &format!("paced commits for {:.1} s, {what}", began.elapsed().as_secs_f64()),
            &took,
        );
    }
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
    assert!(
        partitions >= per_file * IN_FLIGHT,
        "a partition must not be in two files in flight: its sequences would be out of order"
    );
    let env = Env::production();
    let log = MemoryLog::new(&env);
    log.set_latency(latency);
    let mut lab = Lab {
        env: env.clone(),
        log,
        batches,
        partitions,
        per_file,
        retention_bytes: Arc::new(AtomicI64::new(-1)),
        next: batches,
        dirs: Vec::new(),
    };
    let options = lab.options();
    let shard = lab.start(options).await;
    lab.create(&shard, topic()).await;
    lab.work(&shard);
    lab.commit_all(&shard).await;
    println!("view: {:.0} MB", shard.view_bytes().await.unwrap() as f64 / 1e6);

    // Far behind and near the end, the same.
    let per_partition = batches / partitions * 10;
    let anywhere = |n: u64| n.wrapping_mul(104_729) % per_partition.max(1);
    lab.find(&shard, "anywhere", 100_000, anywhere).await;
    for (what, at) in [("the oldest", 0), ("in the middle", 50), ("the newest", 100)] {
        let offset = per_partition.saturating_sub(10) * at / 100;
        lab.find(&shard, what, 20_000, |_| offset).await;
    }

    let shard = lab.move_to(&shard, true).await;
    let shard = lab.move_to(&shard, false).await;
    shard.stop().await;
    let (began, cpu) = (Instant::now(), cpu_of(Path::new(PROCESS)));
    let options = lab.options();
    let shard = lab.start(options).await;
    println!(
        "cold take-over ({} batches from the log, the others from a snapshot): {:.2} s, {:.2} s of CPU",
        shard.batches(),
        began.elapsed().as_secs_f64(),
        cpu_of(Path::new(PROCESS)) - cpu
    );

    lab.work(&shard);
    lab.paced(&shard, "nothing else").await;
    lab.retention_bytes
        .store(per_partition as i64 * 50, Ordering::Relaxed);
    lab.paced(&shard, "retention takes half of all").await;
    lab.retention_bytes.store(-1, Ordering::Relaxed);
    shard.stop().await;

    let mut busy = lab.options();
    (busy.replica.snapshot_slots, busy.replica.snapshot_bytes) = (1, 0);
    let shard = lab.start(busy).await;
    lab.paced(&shard, "snapshots all the time").await;
    shard.stop().await;

    let options = lab.options();
    let shard = lab.start(options).await;
    lab.work(&shard);
    lab.create(&shard, TopicId(Uuid::from_u128(2))).await;
    let topics = vec![DeleteTopic {
        topic: topic(),
        name: "t".into(),
    }];
    let response = shard.delete_topics(DeleteTopicsRequest { shard: SHARD, topics });
    assert_eq!(response.await.error_code, 0);
    lab.paced(&shard, "a topic with all those batches is deleted")
        .await;
    shard.stop().await;

    let mut lab = Lab {
        log: MemoryLog::new(&env),
        ..lab
    };
    let options = lab.options();
    let shard = lab.start(options).await;
    lab.create(&shard, topic()).await;
    lab.work(&shard);
    lab.keep_up(&shard).await;
    shard.stop().await;
    env.shut_down().await;
}
