//! Clients that ask: where partitions begin and end, where a time begins, and what a group has committed.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use e2e::history::{History, ListedEnd, ListedStart, OffsetStep, Span, TimeLookup};
use e2e::wire::{list_offsets, text, topic_name};
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestTopic;
use kafka_protocol::messages::{GroupId, OffsetCommitRequest, OffsetFetchRequest};
use rand::RngExt;

use crate::link::{Link, is_done};
use crate::run::{PARTITIONS, TOPIC};

pub const EARLIEST: i64 = -2;
pub const LATEST: i64 = -1;
/// Longest pause between two questions, ms.
const PAUSE: u64 = 200;
const LONER: &str = "loner";

/// What clients know of the topic while they work.
pub struct Notes {
    start: Instant,
    pub history: Mutex<History>,
}

impl Notes {
    pub fn new() -> Notes {
        Notes {
            start: Instant::now(),
            history: Mutex::new(History {
                idempotent: true,
                ..History::default()
            }),
        }
    }

    fn now(&self) -> i64 {
        self.start.elapsed().as_millis() as i64
    }
}

/// The offsets of partitions at a time, and when they were asked for. `None`: to be asked again.
fn ask(
    link: &mut Link,
    notes: &Notes,
    time: i64,
) -> anyhow::Result<Option<(impl Iterator<Item = (i32, i64)>, Span)>> {
    let from = notes.now();
    let listed = offsets(link, TOPIC, 0..PARTITIONS, time)?;
    let to = notes.now();
    Ok(listed.map(|listed| ((0..).zip(listed), Span { from, to })))
}

/// The same of any topic.
pub fn offsets(
    link: &mut Link,
    topic: &str,
    partitions: std::ops::Range<i32>,
    time: i64,
) -> anyhow::Result<Option<Vec<i64>>> {
    let Ok(answer) = link.call(&list_offsets(topic, partitions.clone(), time), 7) else {
        return Ok(None);
    };
    let mut listed = vec![None; partitions.len()];
    for found in answer.topics.iter().flat_map(|topic| &topic.partitions) {
        if !is_done("ListOffsets", found.error_code)? {
            return Ok(None);
        }
        let index = usize::try_from(found.partition_index - partitions.start)?;
        *listed.get_mut(index).context("not asked for")? = Some(found.offset);
    }
    let listed: Option<Vec<i64>> = listed.into_iter().collect();
    listed.context("a partition without an answer").map(Some)
}

/// The ends of all partitions. `None`: to be asked again.
pub fn ends(link: &mut Link, notes: &Notes) -> anyhow::Result<Option<Vec<i64>>> {
    let known: Vec<i64> = {
        let history = notes.history.lock().unwrap();
        (0..PARTITIONS).map(|index| history.last_known(index)).collect()
    };
    let Some((listed, span)) = ask(link, notes, LATEST)? else {
        return Ok(None);
    };
    let listed: Vec<(i32, i64)> = listed.collect();
    let ends = listed.iter().zip(known);
    let ends = ends.map(|((partition, listed), known)| ListedEnd {
        partition: *partition,
        known,
        listed: *listed,
        span,
    });
    notes.history.lock().unwrap().ends.extend(ends);
    Ok(Some(listed.into_iter().map(|(_, end)| end).collect()))
}

/// Asks for bounds and times until it is `done`.
pub fn audit(mut link: Link, notes: &Notes, done: &AtomicBool) -> anyhow::Result<()> {
    while !done.load(Ordering::Relaxed) {
        match link.random.random_range(0..4) {
            0 | 1 => drop(ends(&mut link, notes)?),
            // Nothing is ever deleted here.
            2 => {
                if let Some((listed, span)) = ask(&mut link, notes, EARLIEST)? {
                    let starts = listed.map(|(partition, listed)| ListedStart {
                        partition,
                        deleted: 0,
                        asked: 0,
                        listed,
                        span,
                    });
                    notes.history.lock().unwrap().starts.extend(starts);
                }
            }
            _ => ask_time(&mut link, notes)?,
        }
        pause(&mut link);
    }
    Ok(())
}

/// The time of a record that somebody has read, or a millisecond before or after.
fn ask_time(link: &mut Link, notes: &Notes) -> anyhow::Result<()> {
    let (acked, time) = {
        let history = notes.history.lock().unwrap();
        if history.times.is_empty() {
            return Ok(());
        }
        let pick = link.random.random_range(0..history.times.len());
        let time = history.times.values().nth(pick).copied().unwrap_or_default();
        let acked = (0..PARTITIONS).map(|index| history.last_acked(index));
        (acked.collect::<Vec<i64>>(), time)
    };
    let time = time + link.random.random_range(-1..=1);
    if let Some((listed, _)) = ask(link, notes, time)? {
        let lookups = listed.zip(acked).map(|((partition, listed), acked)| TimeLookup {
            partition,
            time,
            acked,
            listed,
        });
        notes.history.lock().unwrap().lookups.extend(lookups);
    }
    Ok(())
}

fn pause(link: &mut Link) {
    // Every question goes to another broker.
    link.leave();
    let pause = link.random.random_range(0..PAUSE);
    std::thread::sleep(Duration::from_millis(pause));
}

/// Commits growing offsets for a group without members, and asks for them, until it is `done`.
pub fn commit(mut link: Link, notes: &Notes, done: &AtomicBool) -> anyhow::Result<()> {
    let mut steps = Vec::new();
    let mut offset = 0;
    while !done.load(Ordering::Relaxed) {
        let partition = link.random.random_range(0..PARTITIONS);
        if link.random.random_ratio(2, 3) {
            offset += 1;
            steps.push((partition, OffsetStep::Sent(offset)));
            if commit_one(&mut link, partition, offset)? {
                steps.push((partition, OffsetStep::Acked(offset)));
            }
        } else if let Some(found) = fetch_one(&mut link, partition)? {
            steps.push((partition, OffsetStep::Fetched(found)));
        }
        pause(&mut link);
    }
    notes.history.lock().unwrap().commits.push(steps);
    Ok(())
}

fn commit_one(link: &mut Link, partition: i32, offset: i64) -> anyhow::Result<bool> {
    let wanted = OffsetCommitRequestPartition::default()
        .with_partition_index(partition)
        .with_committed_offset(offset);
    let wanted = OffsetCommitRequestTopic::default()
        .with_name(topic_name(TOPIC))
        .with_partitions(vec![wanted]);
    let request = OffsetCommitRequest::default()
        .with_group_id(GroupId(text(LONER)))
        .with_topics(vec![wanted]);
    let Ok(answer) = link.call(&request, 7) else {
        return Ok(false);
    };
    let topic = answer.topics.first().context("no topic")?;
    let found = topic.partitions.first().context("no partition")?;
    is_done("OffsetCommit", found.error_code)
}

fn fetch_one(link: &mut Link, partition: i32) -> anyhow::Result<Option<i64>> {
    let wanted = OffsetFetchRequestTopic::default()
        .with_name(topic_name(TOPIC))
        .with_partition_indexes(vec![partition]);
    let request = OffsetFetchRequest::default()
        .with_group_id(GroupId(text(LONER)))
        .with_topics(Some(vec![wanted]));
    let Ok(answer) = link.call(&request, 7) else {
        return Ok(None);
    };
    if !is_done("OffsetFetch", answer.error_code)? {
        return Ok(None);
    }
    let topic = answer.topics.first().context("no topic")?;
    let found = topic.partitions.first().context("no partition")?;
    Ok(is_done("OffsetFetch", found.error_code)?.then_some(found.committed_offset))
}
