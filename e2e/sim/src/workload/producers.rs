use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use env::Env;
use history::{History, Place};

use super::PAUSE;
use crate::client::{Batch, Client, ProducerId};
use crate::lab::{Lab, clock};

/// Most records in a batch.
const RECORDS: u64 = 3;
/// Most requests in flight, as with every idempotent producer.
const IN_FLIGHT: u64 = 5;
/// NOT_LEADER_OR_FOLLOWER: the client goes elsewhere.
const NOT_LEADER: i16 = 6;
/// UNKNOWN_TOPIC_OR_PARTITION: known to a broker that has not heard of a new topic yet.
const UNKNOWN_TOPIC: i16 = 3;

/// INVALID_PRODUCER_EPOCH
const FENCED: i16 = 47;
/// Errors after which a batch is sent again.
const RETRIABLE: [i16; 8] = [UNKNOWN_TOPIC, NOT_LEADER, 7, 13, 14, 15, 16, 56];

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

/// Where records go, and with what pauses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target<'a> {
    pub(super) topic: &'a str,
    pub(super) partition: i32,
    pub(super) producer: ProducerId,
    pub(super) gap: Duration,
}

/// Half of the time all requests of a burst leave at once, and come into one object. With pauses, each has an object of
/// its own: the uploads race, or one fails and the next does not.
fn random_gap(env: &Env) -> Duration {
    let longest = [0, 0, 20, 400][env.random_below(4) as usize];
    Duration::from_millis(longest)
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

/// An idempotent producer: bursts of records with up to five in flight, each sent until it is acknowledged. With some ids
/// it goes on in a new epoch half-way, as producers do after an error.
pub(crate) async fn produce_idempotent(env: Env, lab: Arc<Lab>, topic: &'static str, work: Work) {
    let topic = lab.topic(topic);
    let mut client = Client::new(env.clone(), lab.bootstrap.clone());
    let mut next = work.first;
    for _ in 0..work.lives {
        let mut producer = producer_id(&mut client, &lab).await;
        let mut sequences: BTreeMap<i32, i32> = BTreeMap::new();
        let bump_at = env.random_below(2 * work.bursts);
        for number in 0..work.bursts {
            let before = (number == bump_at && number > 0).then(|| (producer, sequences.clone()));
            if before.is_some() {
                producer.epoch += 1;
                sequences.clear();
            }
            let partition = topic.random_partition(&env);
            let sequence = sequences.entry(partition).or_insert(0);
            let batches = random_batches(&env, sequence, &mut next, RECORDS);
            note_sent(&mut topic.history.lock(), &batches);
            let start = clock(&env);
            let mut acked = |value, offset| {
                let place = Place { partition, offset };
                topic.history.lock().acked.insert(value, place);
            };
            let target = Target {
                topic: topic.name,
                partition,
                producer,
                gap: random_gap(&env),
            };
            if !burst(&mut client, &lab, target, batches, &mut acked).await {
                return;
            }
            lab.took(&env, format!("produce to {}/{partition}", topic.name), start);
            if let Some((producer, sequences)) = before {
                let target = Target { producer, ..target };
                let sequence = sequences.get(&partition).copied().unwrap_or(0);
                speak_as_before(&mut client, &lab, target, sequence, next).await;
                next += 1;
            }
            env.sleep(Duration::from_millis(env.random_below(work.pause)))
                .await;
        }
    }
}

/// Up to five batches from `next` on, with sequence numbers from `sequence` on.
pub(super) fn random_batches(env: &Env, sequence: &mut i32, next: &mut u64, most: u64) -> VecDeque<Batch> {
    let count = 1 + env.random_below(IN_FLIGHT);
    let batches = (0..count).map(|_| {
        let batch = Batch {
            sequence: *sequence,
            first: *next,
            count: 1 + env.random_below(most),
        };
        *next += batch.count;
        *sequence += batch.count as i32;
        batch
    });
    batches.collect()
}

/// Values that an idempotent producer is about to send.
pub(super) fn note_sent(history: &mut History, batches: &VecDeque<Batch>) {
    let values: Vec<u64> = batches.iter().flat_map(|batch| batch.values()).collect();
    history.sent.extend(&values);
    history.sends.push(values);
}

/// A record in the name of an epoch that is over must be refused. Its value counts as never sent.
async fn speak_as_before(client: &mut Client, lab: &Lab, target: Target<'_>, sequence: i32, value: u64) {
    let Target {
        topic,
        partition,
        producer,
        gap,
    } = target;
    let batch = Batch {
        sequence,
        first: value,
        count: 1,
    };
    let answers = client.produce(topic, partition, producer, &[batch], gap).await;
    let line = format!("{value} of an epoch that is over, for {topic}/{partition}: {answers:?}");
    match answers.first() {
        Some(Ok(Err(code))) if *code == FENCED || RETRIABLE.contains(code) => {
            lab.trace.add(&client.env, line);
        }
        Some(Ok(_)) => lab.broken(&client.env, line),
        _ => {
            lab.trace.add(&client.env, line);
            client.disconnect();
        }
    }
}

/// Sends batches of one partition until all are acknowledged. False: a broker has broken the rules.
pub(super) async fn burst(
    client: &mut Client,
    lab: &Lab,
    target: Target<'_>,
    mut left: VecDeque<Batch>,
    acked: &mut (dyn FnMut(u64, i64) + Send),
) -> bool {
    let env = client.env.clone();
    let Target {
        topic,
        partition,
        producer,
        gap,
    } = target;
    while !left.is_empty() {
        let sent: Vec<Batch> = left.iter().copied().collect();
        let answers = client.produce(topic, partition, producer, &sent, gap).await;
        let mut failed = false;
        for (batch, answer) in sent.into_iter().zip(answers) {
            let Batch { first, sequence, .. } = batch;
            match answer {
                Ok(Ok(offset)) => {
                    let line = format_args!("ack {:?} at {topic}/{partition}/{offset}", batch.values());
                    lab.trace.add(&env, line);
                    for (value, offset) in batch.values().zip(offset..) {
                        acked(value, offset);
                    }
                    left.retain(|left| left.first != first);
                    continue;
                }
                Ok(Err(UNKNOWN_TOPIC | NOT_LEADER)) => {
                    lab.trace
                        .add(&env, format_args!("{first}: no leader at this broker"));
                    client.disconnect();
                }
                // Retriable errors of a broker, and those that follow from the failure of an earlier record.
                Ok(Err(code)) if failed || RETRIABLE.contains(&code) => {
                    lab.trace.add(&env, format_args!("{first}: error {code}"));
                    if env.random_below(2) == 0 {
                        client.disconnect();
                    }
                }
                Ok(Err(code)) => {
                    let id = producer.id;
                    let what = format!(
                        "producer {id}, value {first} for {topic}/{partition}, sequence {sequence}, the first in flight: error {code}"
                    );
                    lab.broken(&env, what);
                    return false;
                }
                Err(failure) => lab.trace.add(&env, format_args!("{first}: {failure}")),
            }
            failed = true;
        }
        if failed {
            env.sleep(PAUSE).await;
        }
    }
    true
}

/// A producer without idempotence that sends each value once, several at a time, and leaves it at that.
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
    let mut next = first;
    while next < first + count {
        let partition = topic.random_partition(&env);
        // Where retention counts bytes all batches have the same size.
        let most = if topic.expires { 1 } else { RECORDS };
        let mut batches = random_batches(&env, &mut 0, &mut next, most);
        batches.iter_mut().for_each(|batch| batch.sequence = -1);
        let values = batches.iter().flat_map(|batch| batch.values());
        topic.history.lock().sent.extend(values);
        let batches: Vec<Batch> = batches.into();
        let answers = client
            .produce(topic.name, partition, nobody, &batches, random_gap(&env))
            .await;
        // What one connection has brought stands in its order, as far as it is acknowledged.
        let mut in_order = Vec::new();
        for (batch, answer) in batches.into_iter().zip(answers) {
            match answer {
                Ok(Ok(offset)) => {
                    let line =
                        format_args!("ack {:?} at {}/{partition}/{offset}", batch.values(), topic.name);
                    lab.trace.add(&env, line);
                    for (value, offset) in batch.values().zip(offset..) {
                        let place = Place { partition, offset };
                        topic.history.lock().acked.insert(value, place);
                        in_order.push(value);
                    }
                }
                other => {
                    lab.trace
                        .add(&env, format_args!("{} given up: {other:?}", batch.first));
                    client.disconnect();
                }
            }
        }
        topic.history.lock().sends.push(in_order);
        env.sleep(Duration::from_millis(env.random_below(pause))).await;
    }
}
