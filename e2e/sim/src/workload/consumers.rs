use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use env::Env;
use history::Place;
use uuid::Uuid;

use super::PAUSE;
use crate::client::Client;
use crate::lab::{Lab, Topic, clock};
use crate::requests::{Fetched, PLENTY, Position};

const OUT_OF_RANGE: i16 = 1;

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
    /// High watermarks of the present connection.
    watermarks: BTreeMap<Uuid, Vec<(i32, i64)>>,
    connection: u64,
    /// Since when nothing was answered.
    silent_since: i64,
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
        client: Client::new(env.clone(), lab.bootstrap.clone()),
        lab: &lab,
        name,
        next: BTreeMap::new(),
        reads: BTreeMap::new(),
        watermarks: BTreeMap::new(),
        connection: 0,
        silent_since: clock(&env),
        slow,
        env,
    };
    for topic in &lab.topics {
        consumer.reads.insert(*topic.id.lock(), Vec::new());
    }
    consumer.run().await;
    consumer.keep_watermarks();
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
                    self.next.entry((id, partition)).or_insert(0);
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
            match self.client.fetch(&positions, most).await {
                Ok(fetched) => {
                    // Before anything else is asked: that may be at another broker.
                    if self.connection != self.client.connections {
                        self.keep_watermarks();
                        self.connection = self.client.connections;
                    }
                    self.check_limit(&fetched, most);
                    let nothing = fetched.iter().all(|partition| partition.records.is_empty());
                    for partition in fetched {
                        self.take(partition).await;
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
                self.silent_since = clock(&self.env);
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

    async fn take(&mut self, fetched: Fetched) {
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
        if error == OUT_OF_RANGE {
            self.out_of_range(id, partition).await;
            return;
        }
        if error != 0 {
            let name = self.topic(id).name;
            self.failed(&format!("{name}/{partition}: error {error}")).await;
            return;
        }
        self.lab.took(
            &self.env,
            format!("{} waits for a fetch", self.name),
            self.silent_since,
        );
        self.silent_since = clock(&self.env);
        self.watermarks
            .entry(id)
            .or_default()
            .push((partition, high_watermark));
        let name = self.topic(id).name;
        let keeps = self.topic(id).keeps;
        if keeps.is_some_and(|keeps| log_start > 0 && high_watermark - log_start < keeps) {
            let line = format!("{name}/{partition} has {log_start} to {high_watermark} only, not {keeps:?}");
            self.lab.broken(&self.env, line);
        }
        if self.topic(id).expires && log_start > 0 {
            let mut history = self.topic(id).history.lock();
            let start = history.trimmed.entry(partition).or_insert(0);
            *start = log_start.max(*start);
        }
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
            {
                let mut history = self.topic(id).history.lock();
                history.times.insert(place, record.time);
                if record.log_append_time {
                    history.append_times.insert(place, record.time);
                }
            }
            if let Some(read) = self.reads.get_mut(&id) {
                read.push((record.value, place));
            }
            self.next.insert((id, partition), record.offset + 1);
        }
    }

    /// Records below the position were deleted: the beginning must be above it, and somebody must have asked for that.
    async fn out_of_range(&mut self, id: Uuid, partition: i32) {
        let (name, partitions, expires) = {
            let topic = self.topic(id);
            (topic.name, topic.partitions(), topic.expires)
        };
        let position = self.next.get(&(id, partition)).copied().unwrap_or(0);
        let starts = match self.client.offsets(name, partitions, -2).await {
            Ok(starts) => starts,
            Err(failure) => return self.failed(&failure).await,
        };
        let start = starts.get(partition as usize).copied().unwrap_or(-1);
        if expires {
            let mut history = self.topic(id).history.lock();
            let known = history.trimmed.entry(partition).or_insert(0);
            *known = start.max(*known);
        }
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
            let listed = match self.client.offsets(topic.name, topic.partitions(), -1).await {
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

    fn keep_watermarks(&mut self) {
        for (id, seen) in std::mem::take(&mut self.watermarks) {
            self.topic(id).history.lock().watermarks.push(seen);
        }
    }
}
