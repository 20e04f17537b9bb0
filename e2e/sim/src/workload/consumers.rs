use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use env::Env;
use history::{Expiry, FetchedBounds, Operation, Place, Span};
use uuid::Uuid;

use super::PAUSE;
use super::admin::ask_ends;
use crate::client::Client;
use crate::lab::{Lab, Topic, clock};
use crate::requests::{Fetched, PLENTY, Position, codes};

/// A consumer of all topics that assigns itself all partitions, from the beginning, and goes on until it has seen the end
/// of everything after the run has become quiet.
struct Consumer<'a> {
    env: Env,
    lab: &'a Lab,
    name: String,
    client: Client,
    /// Where it is.
    next: BTreeMap<(Uuid, i32), i64>,
    reads: BTreeMap<Uuid, Vec<(u64, Place)>>,
    /// What was said over the present connection.
    fetches: BTreeMap<Uuid, Vec<FetchedBounds>>,
    connection: u64,
    /// Since when it waits for whatever a partition has, ms.
    asks_since: BTreeMap<(Uuid, i32), i64>,
    /// Since when no Fetch of a partition has succeeded, ms.
    silent_since: BTreeMap<(Uuid, i32), i64>,
    /// It takes its time, and little at a time: it reads what others have read long ago.
    slow: bool,
}

/// About one batch, bytes.
const LITTLE: i32 = 110;
/// Longest pause of a slow consumer, ms.
const SLOW: u64 = 3_000;

/// Runs a consumer to its end.
pub(crate) async fn consume(env: Env, lab: Arc<Lab>, name: String, slow: bool) {
    let mut consumer = Consumer {
        client: Client::new(env.clone(), &lab),
        lab: &lab,
        name,
        next: BTreeMap::new(),
        reads: BTreeMap::new(),
        fetches: BTreeMap::new(),
        connection: 0,
        asks_since: BTreeMap::new(),
        silent_since: BTreeMap::new(),
        slow,
        env,
    };
    for topic in &lab.topics {
        consumer.reads.insert(*topic.id.lock(), Vec::new());
    }
    consumer.run().await;
    consumer.keep_fetches();
    for topic in &lab.topics {
        let read = consumer.reads.remove(&topic.id.lock()).unwrap_or_default();
        topic.history.lock().reads.push(read);
    }
}

impl Consumer<'_> {
    async fn run(&mut self) {
        let mut ends: Option<BTreeMap<(Uuid, i32), i64>> = None;
        loop {
            // Topics grow.
            for topic in &self.lab.topics {
                let id = *topic.id.lock();
                for partition in 0..topic.partitions() {
                    let at = (id, partition);
                    self.next.entry(at).or_insert(0);
                    let now = clock(&self.env);
                    self.asks_since.entry(at).or_insert(now);
                    self.silent_since.entry(at).or_insert(now);
                }
            }
            if ends.is_none() && self.lab.is_quiet() {
                ends = self.ends().await;
            }
            let at_end = |ends: &BTreeMap<(Uuid, i32), i64>| {
                ends.iter()
                    .all(|(id, end)| self.next.get(id).is_some_and(|next| next >= end))
            };
            if ends.as_ref().is_some_and(at_end) {
                return;
            }
            // One node does not answer for another's silence: partitions take turns at being asked for first.
            let mut positions: Vec<Position> = self
                .next
                .iter()
                .map(|((topic, partition), offset)| Position {
                    topic: *topic,
                    partition: *partition,
                    offset: *offset,
                })
                .collect();
            let turn = self.env.random_below(positions.len().max(1) as u64) as usize;
            positions.rotate_left(turn);
            let slow = self.slow && !self.lab.is_quiet();
            let most = if slow { LITTLE } else { PLENTY };
            let sent = clock(&self.env);
            match self.client.fetch(&positions, most).await {
                Ok(fetched) => {
                    // Before anything else is asked: that may be at another broker.
                    if self.connection != self.client.connections {
                        self.keep_fetches();
                        self.connection = self.client.connections;
                    }
                    self.check_limit(&fetched, most);
                    let nothing = fetched.iter().all(|partition| partition.records.is_empty());
                    for partition in fetched {
                        self.take(partition, sent).await;
                    }
                    if nothing {
                        // A broker that answers at once with nothing must not stop the clock.
                        self.env.sleep(PAUSE / 10).await;
                    }
                }
                Err(failure) => self.failed(&failure).await,
            }
            if slow {
                let pause = Duration::from_millis(self.env.random_below(SLOW));
                self.env.sleep(pause).await;
                // Whatever it has not got by now it has not asked for.
                let now = clock(&self.env);
                self.asks_since.values_mut().for_each(|since| *since = now);
                self.silent_since.values_mut().for_each(|since| *since = now);
            }
        }
    }

    /// One batch may be larger than it should, so that a consumer gets on; only one, and nothing comes with it.
    fn check_limit(&self, fetched: &[Fetched], most: i32) {
        let large = fetched.iter().filter(|partition| partition.bytes > most as usize);
        let large: Vec<usize> = large.map(|partition| partition.batches).collect();
        if large.len() > 1 || large.iter().any(|batches| *batches > 1) {
            let line = format!(
                "{}: more than {most} bytes of a partition, {large:?} batches",
                self.name
            );
            self.lab.broken(&self.env, line);
        }
    }

    async fn failed(&mut self, failure: &str) {
        let line = format!("{}: {failure}", self.name);
        self.lab.trace.add(&self.env, line);
        self.client.disconnect();
        self.env.sleep(PAUSE).await;
    }

    fn topic(&self, id: Uuid) -> &Topic {
        let found = self.lab.topics.iter().find(|topic| *topic.id.lock() == id);
        found.expect("only topics of the run are fetched")
    }

    /// `sent`: when the Fetch was.
    async fn take(&mut self, fetched: Fetched, sent: i64) {
        let Fetched {
            topic: id,
            partition,
            error,
            high_watermark,
            log_start,
            records,
            corrupt,
            ..
        } = fetched;
        if let Some(why) = corrupt {
            let name = self.topic(id).name;
            self.lab
                .broken(&self.env, format!("{name}/{partition} is served corrupt: {why}"));
        }
        if error == codes::OUT_OF_RANGE {
            self.out_of_range(id, partition).await;
            return;
        }
        if error != 0 {
            let name = self.topic(id).name;
            self.failed(&format!("{name}/{partition}: error {error}")).await;
            return;
        }
        let at = (id, partition);
        let name = self.topic(id).name;
        if let Some(since) = self.silent_since.insert(at, clock(&self.env)) {
            self.took(format!("waits for a fetch of {name}/{partition}"), since);
        }
        let ends = records.first().zip(records.last());
        self.fetches.entry(id).or_default().push(FetchedBounds {
            partition,
            log_start,
            high_watermark,
            records: ends.map(|(first, last)| (first.offset, last.offset)),
        });
        let keeps = self.topic(id).keeps;
        if keeps.is_some_and(|keeps| log_start > 0 && high_watermark - log_start < keeps) {
            let line = format!("{name}/{partition} has {log_start} to {high_watermark} only, not {keeps:?}");
            self.lab.broken(&self.env, line);
        }
        self.note_expiry(id, partition, log_start);
        if let Some((first, _)) = ends
            && let Some(deleted) = self.topic(id).deleted_at(partition, first.offset)
            && deleted < sent
        {
            // Brokers hear of it one after the other.
            self.lab.operations.lock().push(Operation {
                what: format!(
                    "{name}/{partition}/{} is served though it is deleted",
                    first.offset
                ),
                span: Span {
                    from: deleted,
                    to: sent,
                },
            });
        }
        let asked = self.asks_since.get(&at).copied().unwrap_or(sent);
        for record in records {
            let place = Place {
                partition,
                offset: record.offset,
            };
            let line = format!(
                "{} got {} at {name}/{partition}/{}",
                self.name, record.value, record.offset
            );
            self.lab.trace.add(&self.env, line);
            let waited = {
                let mut history = self.topic(id).history.lock();
                history.note_time(place, record.time, record.log_append_time);
                history.waited(place, asked, clock(&self.env))
            };
            if let Some(span) = waited {
                self.took(
                    format!("waits for {name}/{partition}/{}", record.offset),
                    span.from,
                );
            }
            if let Some(read) = self.reads.get_mut(&id) {
                read.push((record.value, place));
            }
            self.next.insert(at, record.offset + 1);
        }
    }

    fn took(&self, what: String, from: i64) {
        self.lab.took(&self.env, format!("{} {what}", self.name), from);
    }

    /// Retention has come this far.
    fn note_expiry(&self, id: Uuid, partition: i32, start: i64) {
        let topic = self.topic(id);
        if !topic.expires || start <= 0 {
            return;
        }
        let mut history = topic.history.lock();
        let known = history.trimmed.entry(partition).or_insert(0);
        if start > *known {
            *known = start;
            history.expiries.push(Expiry {
                partition,
                start,
                at: self.env.now().0,
            });
        }
    }

    /// Records below the position were deleted: the beginning must be above it, and somebody must have asked for that.
    async fn out_of_range(&mut self, id: Uuid, partition: i32) {
        let (name, partitions) = {
            let topic = self.topic(id);
            (topic.name, topic.partitions())
        };
        let position = self.next.get(&(id, partition)).copied().unwrap_or(0);
        let starts = match self.client.offsets(name, partitions, -2).await {
            Ok(starts) => starts,
            Err(failure) => return self.failed(&failure).await,
        };
        let start = starts.get(partition as usize).copied().unwrap_or(-1);
        self.note_expiry(id, partition, start);
        let line = format!(
            "{}: {position} of {name}/{partition} is out of range, which begins at {start}",
            self.name
        );
        self.lab.trace.add(&self.env, &line);
        if start <= position {
            self.lab.broken(&self.env, line);
        }
        self.next.insert((id, partition), start.max(position));
        self.env.sleep(PAUSE).await;
    }

    /// The ends of all partitions by now.
    async fn ends(&mut self) -> Option<BTreeMap<(Uuid, i32), i64>> {
        let mut ends = BTreeMap::new();
        for topic in &self.lab.topics {
            let listed = match ask_ends(&mut self.client, self.lab, topic).await {
                Ok(listed) => listed,
                Err(failure) => {
                    self.failed(&failure).await;
                    return None;
                }
            };
            let id = *topic.id.lock();
            ends.extend((0..).zip(listed).map(|(partition, end)| ((id, partition), end)));
        }
        Some(ends)
    }

    fn keep_fetches(&mut self) {
        for (id, seen) in std::mem::take(&mut self.fetches) {
            self.topic(id).history.lock().fetches.push(seen);
        }
    }
}
