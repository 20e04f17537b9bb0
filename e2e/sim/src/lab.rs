//! What everybody in a run shares: the trace, the topics, the findings.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, Ordering::Relaxed};

use env::Env;
use history::{Anomaly, GroupHistory, History, Operation, Span};
use parking_lot::Mutex;
use uuid::Uuid;

use crate::client::{Batch, ProducerId};

/// The lines of a run, in the order in which things happened.
#[derive(Clone, Default)]
pub(crate) struct Trace(Arc<Mutex<Vec<String>>>);

impl Trace {
    pub(crate) fn add(&self, env: &Env, line: impl std::fmt::Display) {
        self.0.lock().push(format!("{} {line}", clock(env)));
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().clone()
    }
}

/// Time in ms since 2026 began, as runs do. For clients and the bucket, whose clocks are right.
pub(crate) fn clock(env: &Env) -> i64 {
    env.now().0 - 1_767_225_600_000
}

/// A topic that lives as long as the run.
pub(crate) struct Topic {
    pub(crate) name: &'static str,
    /// How many it has, as far as everybody may know; it grows.
    partitions: AtomicI32,
    pub(crate) configs: &'static [(&'static str, &'static str)],
    /// Records vanish by retention: what the broker says is the beginning has to be believed.
    pub(crate) expires: bool,
    /// So many records at least are kept by `retention.bytes`.
    pub(crate) keeps: Option<i64>,
    pub(crate) id: Mutex<Uuid>,
    pub(crate) history: Mutex<History>,
    /// Deletions of records that were acknowledged: partition, offset, and when.
    deletions: Mutex<Vec<(i32, i64, i64)>>,
}

/// Batches that were acknowledged, the newest of their producer in their partition: sent again, they get the same answer.
pub(crate) struct Repeat {
    pub(crate) topic: &'static str,
    pub(crate) partition: i32,
    pub(crate) producer: ProducerId,
    pub(crate) batches: Vec<Batch>,
}

impl Topic {
    pub(crate) fn new(
        name: &'static str,
        partitions: i32,
        configs: &'static [(&'static str, &'static str)],
    ) -> Topic {
        Topic {
            name,
            partitions: AtomicI32::new(partitions),
            configs,
            expires: false,
            keeps: None,
            id: Mutex::default(),
            history: Mutex::new(History {
                idempotent: true,
                ..History::default()
            }),
            deletions: Mutex::default(),
        }
    }

    pub(crate) fn expiring(self) -> Topic {
        Topic {
            expires: true,
            ..self
        }
    }

    /// Records are kept so long at least, in ms, as a node sees it whose clock is `off` by no more than that.
    pub(crate) fn keeping_for(self, retention: i64, off: i64) -> Topic {
        self.history.lock().retention = Some(retention - off);
        self.expiring()
    }

    /// As many records as have `retention.bytes` are kept of each partition, and no more.
    pub(crate) fn keeping(self, records: i64) -> Topic {
        Topic {
            keeps: Some(records),
            ..self.expiring()
        }
    }

    pub(crate) fn partitions(&self) -> i32 {
        self.partitions.load(Relaxed)
    }

    pub(crate) fn has_grown(&self, partitions: i32) {
        self.partitions.store(partitions, Relaxed);
    }

    /// The records of a partition below `offset` are deleted, as a broker has said now.
    pub(crate) fn has_deleted(&self, env: &Env, partition: i32, offset: i64) {
        self.history.lock().deleted.insert(partition, offset);
        self.deletions.lock().push((partition, offset, clock(env)));
    }

    /// When it was first acknowledged that the record at `offset` is deleted.
    pub(crate) fn deleted_at(&self, partition: i32, offset: i64) -> Option<i64> {
        let deletions = self.deletions.lock();
        let first = deletions
            .iter()
            .find(|(of, below, _)| *of == partition && offset < *below);
        first.map(|(_, _, at)| *at)
    }

    /// One of its partitions.
    pub(crate) fn random_partition(&self, env: &Env) -> i32 {
        let partitions = u64::try_from(self.partitions()).unwrap_or(1);
        i32::try_from(env.random_below(partitions)).unwrap_or(0)
    }
}

/// Shared by all clients of a run.
#[derive(Default)]
pub(crate) struct Lab {
    pub(crate) trace: Trace,
    pub(crate) bootstrap: Vec<String>,
    pub(crate) topics: Vec<Topic>,
    /// Histories of topics that were deleted again.
    pub(crate) past: Mutex<Vec<History>>,
    /// The group that reads `grown`.
    pub(crate) group: Mutex<GroupHistory>,
    /// Shared with the clients.
    pub(crate) found: Arc<Mutex<Vec<Anomaly>>>,
    /// What is to be sent again when nothing is left of the nodes but what they have stored.
    pub(crate) repeats: Mutex<Vec<Repeat>>,
    pub(crate) operations: Mutex<Vec<Operation>>,
    pub(crate) faults: Mutex<Vec<Span>>,
    /// Nothing is broken any more, and nothing is produced any more.
    pub(crate) quiet: AtomicBool,
    /// Since when, ms; 0: not yet.
    pub(crate) quiet_since: AtomicI64,
}

impl Lab {
    pub(crate) fn topic(&self, name: &str) -> &Topic {
        self.topics
            .iter()
            .find(|topic| topic.name == name)
            .expect("a topic of the run")
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet.load(Relaxed)
    }

    /// From here on nothing is broken or produced any more.
    pub(crate) fn becomes_quiet(&self, env: &Env) {
        self.quiet_since.store(clock(env), Relaxed);
        self.quiet.store(true, Relaxed);
        self.trace.add(env, "quiet");
    }

    /// Notes that a broker has broken its word.
    pub(crate) fn broken(&self, env: &Env, what: impl Into<String>) {
        let what = what.into();
        self.trace.add(env, format_args!("BROKEN {what}"));
        self.found.lock().push(Anomaly::Broken { what });
    }

    /// Notes that something took from `from` until now.
    pub(crate) fn took(&self, env: &Env, what: impl Into<String>, from: i64) {
        let span = Span { from, to: clock(env) };
        self.operations.lock().push(Operation {
            what: what.into(),
            span,
        });
    }
}
