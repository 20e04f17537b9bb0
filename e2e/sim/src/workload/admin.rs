use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use env::Env;
use history::{History, ListedEnd, ListedStart, OffsetStep, Place, Span, TimeLookup};
use parking_lot::Mutex;

use super::PAUSE;
use super::producers::{Target, burst, note_sent, producer_id, random_batches};
use crate::client::{Client, Failure};
use crate::group_requests::Identity;
use crate::lab::{Lab, Topic, clock};
use crate::requests::{Fetched, PLENTY, Position, codes};

/// Repeats `$ask`, which may use `$client`, until it gives something. (A function would need an asynchronous closure
/// that can be sent to another thread.)
macro_rules! until {
    ($client:ident, $lab:ident, $ask:expr) => {
        loop {
            let asked: Result<Option<_>, Failure> = $ask;
            match asked {
                Ok(Some(found)) => break found,
                Ok(None) => {}
                Err(failure) => $lab.trace.add(&$client.env, failure),
            }
            $client.disconnect();
            $client.env.sleep(PAUSE).await;
        }
    };
}

/// Asks where partitions begin and end, and where times begin, and compares that with what was acknowledged before.
pub(crate) async fn audit(env: Env, lab: Arc<Lab>, topics: &'static [&'static str]) {
    let mut client = Client::new(env.clone(), &lab);
    // Since when it has no answer.
    let mut since = None;
    while !lab.is_quiet() {
        let pick = env.random_below(topics.len() as u64) as usize;
        let topic = lab.topic(topics[pick]);
        let start = *since.get_or_insert_with(|| clock(&env));
        let asked = match env.random_below(4) {
            0 | 1 => ask_ends(&mut client, &lab, topic).await.map(drop),
            2 => ask_starts(&mut client, &lab, topic).await,
            _ => ask_time(&mut client, &lab, topic).await,
        };
        match asked {
            Ok(()) => {
                lab.took(&env, "ListOffsets", start);
                since = None;
            }
            Err(failure) => lab.trace.add(&env, format_args!("no offsets: {failure}")),
        }
        // Every question goes to another broker: one of them may still follow a leader that was deposed.
        client.disconnect();
        let before = clock(&env);
        env.sleep(Duration::from_millis(env.random_below(400))).await;
        // Its own pauses count for nothing.
        since = since.map(|since| since + clock(&env) - before);
    }
}

/// The ends of all partitions.
pub(super) async fn ask_ends(client: &mut Client, lab: &Lab, topic: &Topic) -> Result<Vec<i64>, Failure> {
    let known: Vec<i64> = {
        let history = topic.history.lock();
        let partitions = 0..topic.partitions();
        partitions
            .map(|partition| history.last_known(partition))
            .collect()
    };
    let count = i32::try_from(known.len()).unwrap_or(0);
    let from = clock(&client.env);
    let listed = client.offsets(topic.name, count, -1).await?;
    let to = clock(&client.env);
    let line = format!("{} ends at {listed:?}, known is {known:?}", topic.name);
    lab.trace.add(&client.env, line);
    let ends = (0..).zip(known.into_iter().zip(&listed));
    let ends = ends.map(|(partition, (known, listed))| ListedEnd {
        partition,
        known,
        listed: *listed,
        span: Span { from, to },
    });
    topic.history.lock().ends.extend(ends);
    Ok(listed)
}

async fn ask_starts(client: &mut Client, lab: &Lab, topic: &Topic) -> Result<(), Failure> {
    let deleted = topic.history.lock().deleted.clone();
    let from = clock(&client.env);
    let listed = client.offsets(topic.name, topic.partitions(), -2).await?;
    let line = format!("{} begins at {listed:?}, deleted {deleted:?}", topic.name);
    lab.trace.add(&client.env, line);
    let to = clock(&client.env);
    let mut history = topic.history.lock();
    for (partition, listed) in (0..).zip(listed) {
        let deleted = deleted.get(&partition).copied().unwrap_or(0);
        let asked = history.trimmed.get(&partition).copied().unwrap_or(0);
        history.starts.push(ListedStart {
            partition,
            deleted,
            asked,
            listed,
            span: Span { from, to },
        });
    }
    Ok(())
}

/// Asks for the time of a record that somebody has read, or a millisecond before or after.
async fn ask_time(client: &mut Client, lab: &Lab, topic: &Topic) -> Result<(), Failure> {
    let (acked, time) = {
        let history = topic.history.lock();
        let pick = client.env.random_below(history.times.len() as u64) as usize;
        let Some(time) = history.times.values().nth(pick).copied() else {
            return Ok(());
        };
        drop(history);
        (last_acked(topic), time + client.env.random_below(3) as i64 - 1)
    };
    let count = i32::try_from(acked.len()).unwrap_or(0);
    let listed = client.offsets(topic.name, count, time).await?;
    let line = format!("{time} begins at {listed:?} in {}", topic.name);
    lab.trace.add(&client.env, line);
    let lookups = (0..).zip(acked.into_iter().zip(listed));
    let lookups = lookups.map(|(partition, (acked, listed))| TimeLookup {
        partition,
        time,
        acked,
        listed,
    });
    let mut history = topic.history.lock();
    // What is deleted is found no more, and nobody here knows when that happens.
    if history.trimmed.is_empty() {
        history.lookups.extend(lookups);
    }
    Ok(())
}

fn last_acked(topic: &Topic) -> Vec<i64> {
    let history = topic.history.lock();
    (0..topic.partitions())
        .map(|partition| history.last_acked(partition))
        .collect()
}

/// Commits growing offsets for a group, and asks for them.
pub(crate) async fn commit_offsets(env: Env, lab: Arc<Lab>, topic: &'static str, group: String) {
    let topic = lab.topic(topic);
    let mut client = Client::new(env.clone(), &lab);
    let mut steps = Vec::new();
    let mut offset = 0;
    // Since when it has no answer.
    let mut since = None;
    while !lab.is_quiet() {
        let partition = topic.random_partition(&env);
        let start = *since.get_or_insert_with(|| clock(&env));
        if env.random_below(3) > 0 {
            offset += 1;
            steps.push((partition, OffsetStep::Sent(offset)));
            let committed = client
                .commit_offset(&group, &Identity::none(), topic.name, partition, offset)
                .await;
            match committed {
                Ok(Ok(())) => {
                    lab.trace
                        .add(&env, format_args!("{group} committed {offset} of {partition}"));
                    steps.push((partition, OffsetStep::Acked(offset)));
                    lab.took(&env, "OffsetCommit", start);
                    since = None;
                }
                failed => {
                    let failure = match failed {
                        Ok(Err(code)) => client.refused("OffsetCommit", code, codes::COORDINATOR),
                        failed => format!("{failed:?}"),
                    };
                    lab.trace.add(
                        &env,
                        format_args!("{group} could not commit {offset} of {partition}: {failure}"),
                    );
                    client.disconnect();
                }
            }
        } else {
            match client.committed_offset(&group, topic.name, partition).await {
                Ok(found) => {
                    lab.trace
                        .add(&env, format_args!("{group} is at {found} of {partition}"));
                    steps.push((partition, OffsetStep::Fetched(found)));
                    lab.took(&env, "OffsetFetch", start);
                    since = None;
                }
                Err(failure) => {
                    lab.trace.add(
                        &env,
                        format_args!("{group} does not learn where it is: {failure}"),
                    );
                    client.disconnect();
                }
            }
        }
        let before = clock(&env);
        env.sleep(Duration::from_millis(env.random_below(600))).await;
        // Its own pauses count for nothing.
        since = since.map(|since| since + clock(&env) - before);
    }
    topic.history.lock().commits.push(steps);
}

/// Deletes the beginnings of partitions.
pub(crate) async fn delete_records(env: Env, lab: Arc<Lab>, topic: &'static str) {
    let topic = lab.topic(topic);
    let mut client = Client::new(env.clone(), &lab);
    while !lab.is_quiet() {
        env.sleep(Duration::from_millis(200 + env.random_below(1_500)))
            .await;
        let partition = topic.random_partition(&env);
        let offset = {
            let mut history = topic.history.lock();
            let end = history.last_acked(partition) + 1;
            let start = history.trimmed.get(&partition).copied().unwrap_or(0);
            let room = u64::try_from(end - start).unwrap_or(0);
            if room == 0 {
                continue;
            }
            // Often all there is, so that files die young.
            let part = if env.random_below(2) == 0 {
                room
            } else {
                1 + env.random_below(room)
            };
            let offset = start + i64::try_from(part).unwrap_or(0);
            // It counts from here on, whatever the answer.
            history.trimmed.insert(partition, offset);
            offset
        };
        lab.trace.add(
            &env,
            format_args!("delete {}/{partition} below {offset}", topic.name),
        );
        match client.delete_records(topic.name, partition, offset).await {
            Ok(start) if start == offset => topic.has_deleted(&env, partition, offset),
            Ok(start) => {
                let name = topic.name;
                let what = format!("{name}/{partition} begins at {start} after a deletion up to {offset}");
                lab.broken(&env, what);
            }
            Err(failure) => {
                lab.trace
                    .add(&env, format_args!("records not deleted: {failure}"));
                client.disconnect();
            }
        }
    }
}

/// Gives a topic more partitions, one by one, up to `most`.
pub(crate) async fn grow(env: Env, lab: Arc<Lab>, topic: &'static str, most: i32) {
    let topic = lab.topic(topic);
    let mut client = Client::new(env.clone(), &lab);
    for partitions in topic.partitions() + 1..=most {
        env.sleep(Duration::from_millis(1_000 + env.random_below(6_000)))
            .await;
        if lab.is_quiet() {
            return;
        }
        let start = clock(&env);
        until!(client, lab, client.grow(topic.name, partitions).await.map(Some));
        let are_there =
            |found: Option<(uuid::Uuid, i32)>| found.filter(|(_, found)| *found == partitions).map(|_| ());
        until!(client, lab, client.describe(topic.name).await.map(are_there));
        lab.took(&env, format!("growth of {}", topic.name), start);
        lab.trace
            .add(&env, format_args!("{} has {partitions} partitions", topic.name));
        topic.has_grown(partitions);
    }
}

/// A request that was given up takes effect within this time, if at all: nodes are paused for less.
const LATE: Duration = Duration::from_secs(20);

/// A group that commits offsets of a topic that is about to go.
const DRIFTER: &str = "drifter";

/// Commits offsets until the topic is gone. True: what became of each is known, so none of them may be heard of again.
async fn commit_until(env: Env, lab: Arc<Lab>, topic: String, gone: Arc<AtomicBool>) -> bool {
    let mut client = Client::new(env.clone(), &lab);
    let mut all_settled = true;
    let mut offset = 0;
    while !gone.load(Relaxed) {
        offset += 1;
        let committed = client
            .commit_offset(DRIFTER, &Identity::none(), &topic, 0, offset)
            .await;
        if !matches!(committed, Ok(Ok(()) | Err(codes::UNKNOWN_TOPIC))) {
            lab.trace.add(
                &env,
                format_args!("{DRIFTER} could not commit {offset}: {committed:?}"),
            );
            if let Ok(Err(code)) = committed {
                client.refused("OffsetCommit", code, codes::COORDINATOR);
            }
            all_settled = false;
        }
        // Brokers hear of the end of a topic one after the other.
        client.disconnect();
        env.sleep(Duration::from_millis(env.random_below(100))).await;
    }
    all_settled
}

/// Creates a topic, fills and reads it, deletes it, and again under the same name.
pub(crate) async fn come_and_go(env: Env, lab: Arc<Lab>, name: String, first: u64) {
    let mut client = Client::new(env.clone(), &lab);
    let mut next = first;
    let mut before = None;
    let mut all_settled = true;
    let mut unanswered = None;
    while !lab.is_quiet() {
        let start = clock(&env);
        until!(
            client,
            lab,
            match client.create(&name, 2, &[("retention.ms", "-1")]).await {
                Ok(()) => Ok(Some(())),
                Err(failure) => {
                    unanswered = Some(env.instant());
                    Err(failure)
                }
            }
        );
        // A broker that has heard of neither the deletion nor the creation still knows the topic before.
        let is_new = |found: Option<(uuid::Uuid, i32)>| found.filter(|(found, _)| Some(*found) != before);
        let (id, partitions) = until!(client, lab, client.describe(&name).await.map(is_new));
        before = Some(id);
        lab.took(&env, format!("creation of {name}"), start);
        lab.trace.add(&env, format_args!("{name} is {id}"));
        let history = Mutex::new(History {
            idempotent: true,
            ..History::default()
        });
        // One that was given up may have made this topic long before it was seen, while commits were still on their way.
        let alone = unanswered.is_none_or(|at| env.instant().saturating_duration_since(at) > LATE);
        if all_settled && alone {
            let offset = until!(
                client,
                lab,
                client.committed_offset(DRIFTER, &name, 0).await.map(Some)
            );
            lab.trace
                .add(&env, format_args!("{DRIFTER} is at {offset} of the new {name}"));
            if offset != -1 {
                lab.broken(
                    &env,
                    format!("{name} is new, and {DRIFTER} has committed {offset}"),
                );
            }
        }
        let gone: Arc<AtomicBool> = Arc::default();
        let run = commit_until(env.clone(), lab.clone(), name.clone(), gone.clone());
        let committing = env.spawn(run);
        let producer = producer_id(&mut client, &lab).await;
        for partition in 0..partitions {
            let batches = random_batches(&env, &mut 0, &mut next, 3);
            note_sent(&mut history.lock(), &batches);
            let target = Target {
                topic: &name,
                partition,
                producer,
                gap: Duration::ZERO,
                history: &history,
                expires: false,
            };
            if !burst(&mut client, &lab, target, batches).await {
                return;
            }
        }
        let mut history = history.into_inner();
        let mut read = Vec::new();
        for partition in 0..partitions {
            let mut offset = 0;
            while offset <= history.last_acked(partition) {
                let position = Position {
                    topic: id,
                    partition,
                    offset,
                };
                let fetched = |found: Vec<Fetched>| match found.into_iter().next() {
                    Some(found) if found.error == 0 => Ok(Some(found)),
                    // What was acknowledged is there, and nobody has deleted it.
                    Some(found) if found.error == codes::OUT_OF_RANGE => {
                        lab.broken(&env, format!("{offset} of {name}/{partition} is out of range"));
                        Ok(None)
                    }
                    Some(found) => Err(format!("fetch of {name}/{partition}: error {}", found.error)),
                    None => Ok(None),
                };
                let found = until!(
                    client,
                    lab,
                    client.fetch(&[position], PLENTY).await.and_then(fetched)
                );
                for record in found.records {
                    offset = record.offset + 1;
                    let place = Place {
                        partition,
                        offset: record.offset,
                    };
                    history.note_time(place, record.time, record.log_append_time);
                    read.push((record.value, place));
                }
            }
        }
        history.reads.push(read);
        lab.past.lock().push(history);
        let start = clock(&env);
        until!(client, lab, client.delete(&name).await.map(Some));
        lab.took(&env, format!("deletion of {name}"), start);
        lab.trace.add(&env, format_args!("{name} is deleted"));
        // A broker that has not heard of it yet knows the old topic.
        let is_other =
            |found: Option<(uuid::Uuid, i32)>| found.is_none_or(|(found, _)| found != id).then_some(());
        until!(client, lab, client.describe(&name).await.map(is_other));
        gone.store(true, Relaxed);
        all_settled = committing.await.unwrap_or(false);
        env.sleep(Duration::from_millis(env.random_below(2_000))).await;
    }
}
