use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use env::Env;
use history::{History, ListedEnd, OffsetStep, Place};

use super::PAUSE;
use super::producers::{Target, burst, producer_id};
use crate::client::{Client, Failure};
use crate::group_requests::Identity;
use crate::lab::{Lab, clock};
use crate::requests::{Fetched, Position};

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

/// Compares the ends of partitions, as they are listed, with what was acknowledged before.
pub(crate) async fn audit(env: Env, lab: Arc<Lab>, topics: &'static [&'static str]) {
    let mut client = Client::new(env.clone(), lab.bootstrap.clone());
    while !lab.is_quiet() {
        let pick = env.random_below(topics.len() as u64) as usize;
        let topic = lab.topic(topics[pick]);
        let acked: Vec<i64> = {
            let history = topic.history.lock();
            (0..topic.partitions())
                .map(|partition| history.last_acked(partition))
                .collect()
        };
        let start = clock(&env);
        match client
            .offsets(topic.name, i32::try_from(acked.len()).unwrap_or(0), -1)
            .await
        {
            Ok(listed) => {
                lab.trace.add(
                    &env,
                    format_args!("{} ends at {listed:?}, acknowledged {acked:?}", topic.name),
                );
                let ends = (0..).zip(acked.iter().zip(&listed));
                let ends = ends.map(|(partition, (acked, listed))| ListedEnd {
                    partition,
                    acked: *acked,
                    listed: *listed,
                });
                topic.history.lock().ends.extend(ends);
                lab.took(&env, "ListOffsets", start);
            }
            Err(failure) => lab.trace.add(&env, format_args!("no offsets: {failure}")),
        }
        // Every question goes to another broker: one of them may still follow a leader that was deposed.
        client.disconnect();
        env.sleep(Duration::from_millis(env.random_below(400))).await;
    }
}

/// Commits growing offsets for a group, and asks for them.
pub(crate) async fn commit_offsets(env: Env, lab: Arc<Lab>, topic: &'static str, group: String) {
    let topic = lab.topic(topic);
    let mut client = Client::new(env.clone(), lab.bootstrap.clone());
    let mut steps = Vec::new();
    let mut offset = 0;
    while !lab.is_quiet() {
        let partition = topic.random_partition(&env);
        let start = clock(&env);
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
                }
                failed => {
                    lab.trace.add(
                        &env,
                        format_args!("{group} could not commit {offset} of {partition}: {failed:?}"),
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
        env.sleep(Duration::from_millis(env.random_below(600))).await;
    }
    topic.history.lock().commits.push(steps);
}

/// Deletes the beginnings of partitions.
pub(crate) async fn delete_records(env: Env, lab: Arc<Lab>, topic: &'static str) {
    let topic = lab.topic(topic);
    let mut client = Client::new(env.clone(), lab.bootstrap.clone());
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
        if let Err(failure) = client.delete_records(topic.name, partition, offset).await {
            lab.trace
                .add(&env, format_args!("records not deleted: {failure}"));
            client.disconnect();
        }
    }
}

/// Gives a topic more partitions, one by one, up to `most`.
pub(crate) async fn grow(env: Env, lab: Arc<Lab>, topic: &'static str, most: i32) {
    let topic = lab.topic(topic);
    let mut client = Client::new(env.clone(), lab.bootstrap.clone());
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

/// Creates a topic, fills and reads it, deletes it, and again under the same name.
pub(crate) async fn come_and_go(env: Env, lab: Arc<Lab>, name: String, first: u64) {
    let mut client = Client::new(env.clone(), lab.bootstrap.clone());
    let mut next = first;
    let mut before = None;
    while !lab.is_quiet() {
        let start = clock(&env);
        until!(
            client,
            lab,
            client.create(&name, 2, &[("retention.ms", "-1")]).await.map(Some)
        );
        // A broker that has heard of neither the deletion nor the creation still knows the topic before.
        let is_new = |found: Option<(uuid::Uuid, i32)>| found.filter(|(found, _)| Some(*found) != before);
        let (id, partitions) = until!(client, lab, client.describe(&name).await.map(is_new));
        before = Some(id);
        lab.took(&env, format!("creation of {name}"), start);
        lab.trace.add(&env, format_args!("{name} is {id}"));
        let mut history = History {
            idempotent: true,
            ..History::default()
        };
        let producer = producer_id(&mut client, &lab).await;
        for partition in 0..partitions {
            let count = 1 + env.random_below(5);
            history.sent.extend(next..next + count);
            history.sends.push((next..next + count).collect());
            let records: VecDeque<(i32, u64)> = (0..).zip(next..next + count).collect();
            next += count;
            let mut acked = |value, offset| {
                history.acked.insert(value, Place { partition, offset });
            };
            let target = Target {
                topic: &name,
                partition,
                producer,
                gap: Duration::ZERO,
            };
            if !burst(&mut client, &lab, target, records, &mut acked).await {
                return;
            }
        }
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
                    Some(found) => Err(format!("fetch of {name}/{partition}: error {}", found.error)),
                    None => Ok(None),
                };
                let found = until!(client, lab, client.fetch(&[position]).await.and_then(fetched));
                for record in found.records {
                    offset = record.offset + 1;
                    let place = Place {
                        partition,
                        offset: record.offset,
                    };
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
        env.sleep(Duration::from_millis(env.random_below(2_000))).await;
    }
}
