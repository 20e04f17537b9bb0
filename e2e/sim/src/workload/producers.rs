use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use env::Env;
use history::Place;

use super::PAUSE;
use crate::client::{Client, ProducerId};
use crate::lab::{Lab, clock};

/// Most requests in flight, as with every idempotent producer.
const IN_FLIGHT: u64 = 5;
/// NOT_LEADER_OR_FOLLOWER: the client goes elsewhere.
const NOT_LEADER: i16 = 6;
/// UNKNOWN_TOPIC_OR_PARTITION: known to a broker that has not heard of a new topic yet.
const UNKNOWN_TOPIC: i16 = 3;

/// How much a producer does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    /// Its first value; they count up.
    pub(crate) first: u64,
    /// New producer ids it takes.
    pub(crate) lives: u64,
    /// Bursts of up to five records with each.
    pub(crate) bursts: u64,
    /// Longest pause between bursts, in ms.
    pub(crate) pause: u64,
}

/// A producer id, however long it takes.
pub(super) async fn producer_id(client: &mut Client, lab: &Lab) -> ProducerId {
    let env = client.env.clone();
    let start = clock(&env);
    loop {
        match client.init_producer_id().await {
            Ok(producer) => {
                lab.took(&env, "InitProducerId", start);
                return producer;
            }
            Err(failure) => {
                lab.trace.add(&env, format_args!("no producer id: {failure}"));
                client.disconnect();
                env.sleep(PAUSE).await;
            }
        }
    }
}

/// An idempotent producer: bursts of records with up to five in flight, each sent until it is acknowledged.
pub(crate) async fn produce_idempotent(env: Env, lab: Arc<Lab>, topic: &'static str, work: Work) {
    let topic = lab.topic(topic);
    let mut client = Client::new(env.clone(), lab.bootstrap.clone());
    let mut next = work.first;
    for _ in 0..work.lives {
        let producer = producer_id(&mut client, &lab).await;
        let mut sequences: BTreeMap<i32, i32> = BTreeMap::new();
        for _ in 0..work.bursts {
            let partition = env.random_below(u64::try_from(topic.partitions).unwrap_or(1)) as i32;
            let count = 1 + env.random_below(IN_FLIGHT);
            let sequence = sequences.entry(partition).or_insert(0);
            let values = next..next + count;
            next += count;
            {
                let mut history = topic.history.lock();
                history.sent.extend(values.clone());
                history.sends.push(values.clone().collect());
            }
            let start = clock(&env);
            let records: VecDeque<(i32, u64)> = (*sequence..).zip(values).collect();
            *sequence += count as i32;
            let mut acked = |value, offset| {
                let place = Place { partition, offset };
                topic.history.lock().acked.insert(value, place);
            };
            if !burst(
                &mut client,
                &lab,
                topic.name,
                partition,
                producer,
                records,
                &mut acked,
            )
            .await
            {
                return;
            }
            lab.took(&env, format!("produce to {}/{partition}", topic.name), start);
            env.sleep(Duration::from_millis(env.random_below(work.pause)))
                .await;
        }
    }
}

/// Sends records of one partition until all are acknowledged. False: a broker has broken the rules.
pub(super) async fn burst(
    client: &mut Client,
    lab: &Lab,
    topic: &str,
    partition: i32,
    producer: ProducerId,
    mut left: VecDeque<(i32, u64)>,
    acked: &mut (dyn FnMut(u64, i64) + Send),
) -> bool {
    let env = client.env.clone();
    while !left.is_empty() {
        let sent: Vec<(i32, u64)> = left.iter().copied().collect();
        let answers = client.produce(topic, partition, producer, &sent).await;
        let mut failed = false;
        for ((sequence, value), answer) in sent.into_iter().zip(answers) {
            match answer {
                Ok(Ok(offset)) => {
                    lab.trace
                        .add(&env, format_args!("ack {value} at {topic}/{partition}/{offset}"));
                    acked(value, offset);
                    left.retain(|(_, left)| *left != value);
                    continue;
                }
                Ok(Err(UNKNOWN_TOPIC | NOT_LEADER)) => {
                    lab.trace
                        .add(&env, format_args!("{value}: no leader at this broker"));
                    client.disconnect();
                }
                // Retriable errors of a broker, and those that follow from the failure of an earlier record.
                Ok(Err(code)) if failed || [7, 13, 14, 15, 16, 56].contains(&code) => {
                    lab.trace.add(&env, format_args!("{value}: error {code}"));
                    if env.random_below(2) == 0 {
                        client.disconnect();
                    }
                }
                Ok(Err(code)) => {
                    let id = producer.id;
                    let what = format!(
                        "producer {id}, value {value} for {topic}/{partition}, sequence {sequence}, the first in flight: error {code}"
                    );
                    lab.broken(&env, what);
                    return false;
                }
                Err(failure) => lab.trace.add(&env, format_args!("{value}: {failure}")),
            }
            failed = true;
        }
        if failed {
            env.sleep(PAUSE).await;
        }
    }
    true
}

/// A producer without idempotence that sends each value once, and leaves it at that.
pub(crate) async fn produce_once(
    env: Env,
    lab: Arc<Lab>,
    topic: &'static str,
    first: u64,
    count: u64,
    pause: u64,
) {
    let topic = lab.topic(topic);
    let mut client = Client::new(env.clone(), lab.bootstrap.clone());
    let nobody = ProducerId { id: -1, epoch: -1 };
    for value in first..first + count {
        let partition = env.random_below(u64::try_from(topic.partitions).unwrap_or(1)) as i32;
        topic.history.lock().sent.insert(value);
        let answers = client
            .produce(topic.name, partition, nobody, &[(-1, value)])
            .await;
        match answers.first() {
            Some(Ok(Ok(offset))) => {
                let place = Place {
                    partition,
                    offset: *offset,
                };
                lab.trace.add(
                    &env,
                    format_args!("ack {value} at {}/{partition}/{offset}", topic.name),
                );
                topic.history.lock().acked.insert(value, place);
            }
            other => {
                lab.trace.add(&env, format_args!("{value} given up: {other:?}"));
                client.disconnect();
            }
        }
        env.sleep(Duration::from_millis(env.random_below(pause))).await;
    }
}
