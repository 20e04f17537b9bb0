use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use env::Env;
use history::{History, ListedStart, Place, Span};
use parking_lot::Mutex;

use super::PAUSE;
use crate::client::{Batch, Client, ProducerId};
use crate::lab::{Lab, Repeat, Topic, clock};
use crate::requests::{Stored, codes};

/// Most records in a batch.
const RECORDS: u64 = 3;
/// Most requests in flight, as with every idempotent producer.
const IN_FLIGHT: u64 = 5;
/// A producer that sleeps does so for this long at least, and at most twice that: shards get snapshots and leaders meanwhile.
const SLEEP: Duration = Duration::from_secs(10);

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
    pub(super) history: &'a Mutex<History>,
    /// Records vanish by themselves.
    pub(super) expires: bool,
}

impl<'a> Target<'a> {
    fn new(topic: &'a Topic, partition: i32, producer: ProducerId) -> Target<'a> {
        Target {
            topic: topic.name,
            partition,
            producer,
            gap: Duration::ZERO,
            history: &topic.history,
            expires: topic.expires,
        }
    }

    fn before(self, env: &Env) -> Before {
        let deleted = self.history.lock().deleted.get(&self.partition).copied();
        Before {
            at: clock(env),
            deleted: deleted.unwrap_or(0),
        }
    }

    /// Takes over what an answer says of a batch that is stored.
    fn note_stored(self, env: &Env, before: Before, batch: Batch, stored: Stored) {
        let now = clock(env);
        let partition = self.partition;
        let mut history = self.history.lock();
        for (value, offset) in batch.values().zip(stored.base_offset..) {
            let place = Place { partition, offset };
            history.ack(value, place);
            history.acked_at.entry(place).or_insert(now);
            if stored.log_append_time >= 0 {
                history.note_time(place, stored.log_append_time, true);
            }
        }
        let asked = match self.expires {
            true => i64::MAX,
            false => history.trimmed.get(&partition).copied().unwrap_or(0),
        };
        history.starts.push(ListedStart {
            partition,
            deleted: before.deleted,
            asked,
            listed: stored.log_start,
            span: Span {
                from: before.at,
                to: now,
            },
        });
    }
}

/// When a request left, and what was known of its partition by then.
#[derive(Clone, Copy)]
struct Before {
    at: i64,
    deleted: i64,
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
    let mut client = Client::new(env.clone(), &lab);
    let mut next = work.first;
    for _ in 0..work.lives {
        let mut producer = producer_id(&mut client, &lab).await;
        let mut sequences: BTreeMap<i32, i32> = BTreeMap::new();
        let bump_at = env.random_below(2 * work.bursts);
        let mut last = None;
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
            let target = Target {
                gap: random_gap(&env),
                ..Target::new(topic, partition, producer)
            };
            last = Some((partition, producer, batches.clone()));
            if !burst(&mut client, &lab, target, batches).await {
                return;
            }
            let out_of_turn = match before {
                Some((producer, sequences)) => {
                    let target = Target { producer, ..target };
                    let sequence = sequences.get(&partition).copied().unwrap_or(0);
                    Some((target, sequence, codes::FENCED))
                }
                None if env.random_below(4) == 0 => {
                    let sequence = sequences.get(&partition).copied().unwrap_or(0);
                    Some((target, sequence + GAP, codes::OUT_OF_ORDER))
                }
                None => None,
            };
            if let Some((target, sequence, wanted)) = out_of_turn {
                speak_out_of_turn(&mut client, &lab, target, sequence, next, wanted).await;
                next += 1;
            }
            env.sleep(Duration::from_millis(env.random_below(work.pause)))
                .await;
        }
        repeat_later(&lab, topic, last);
    }
}

/// What was acknowledged last is to be sent once more at the end.
fn repeat_later(lab: &Lab, topic: &Topic, last: Option<(i32, ProducerId, VecDeque<Batch>)>) {
    lab.repeats
        .lock()
        .extend(last.map(|(partition, producer, batches)| Repeat {
            topic: topic.name,
            partition,
            producer,
            batches: batches.into(),
        }));
}

/// Sends once more what was acknowledged long ago: it is stored once.
pub(crate) async fn repeat(env: &Env, lab: &Lab) {
    let mut client = Client::new(env.clone(), lab);
    let repeats = std::mem::take(&mut *lab.repeats.lock());
    for repeat in repeats {
        let target = Target::new(lab.topic(repeat.topic), repeat.partition, repeat.producer);
        lab.trace
            .add(env, format_args!("once more: {:?}", repeat.batches));
        if !burst(&mut client, lab, target, repeat.batches.into()).await {
            return;
        }
    }
}

/// An idempotent producer that hears no answer, sleeps, and sends the same again.
pub(crate) async fn produce_late(env: Env, lab: Arc<Lab>, topic: &'static str, first: u64, times: u64) {
    let topic = lab.topic(topic);
    let mut client = Client::new(env.clone(), &lab);
    let mut next = first;
    for _ in 0..times {
        let producer = producer_id(&mut client, &lab).await;
        let partition = topic.random_partition(&env);
        let batches = random_batches(&env, &mut 0, &mut next, RECORDS);
        note_sent(&mut topic.history.lock(), &batches);
        let patience = Duration::from_millis(1 + env.random_below(500));
        let sent: Vec<Batch> = batches.iter().copied().collect();
        client
            .produce_and_leave(topic.name, partition, producer, &sent, patience)
            .await;
        let longer = Duration::from_millis(env.random_below(SLEEP.as_millis() as u64));
        env.sleep(SLEEP + longer).await;
        let target = Target::new(topic, partition, producer);
        if !burst(&mut client, &lab, target, batches.clone()).await {
            return;
        }
        repeat_later(&lab, topic, Some((partition, producer, batches)));
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
            created: env.now().0,
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
    history
        .created
        .extend(batches.iter().flat_map(|batch| batch.times()));
}

/// Further ahead than any producer comes.
const GAP: i32 = 100_000;

/// A record in the name of an epoch that is over, or whose predecessors were never sent, must be refused and never be read.
async fn speak_out_of_turn(
    client: &mut Client,
    lab: &Lab,
    target: Target<'_>,
    sequence: i32,
    value: u64,
    wanted: i16,
) {
    let Target {
        topic,
        partition,
        producer,
        gap,
        history,
        ..
    } = target;
    let env = client.env.clone();
    let batch = Batch {
        sequence,
        first: value,
        count: 1,
        created: env.now().0,
    };
    history.lock().refused.insert(value);
    let answers = client.produce(topic, partition, producer, &[batch], gap).await;
    let line = format!("{value} out of turn, for {topic}/{partition}: {answers:?}");
    match answers.first() {
        Some(Ok(Err(code))) if *code == wanted || codes::PRODUCE.contains(code) => {
            lab.trace.add(&env, line);
        }
        Some(Ok(_)) => lab.broken(&env, line),
        _ => {
            lab.trace.add(&env, line);
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
) -> bool {
    let env = client.env.clone();
    let Target {
        topic,
        partition,
        producer,
        gap,
        ..
    } = target;
    let (start, paused) = (clock(&env), client.paused);
    while !left.is_empty() {
        let sent: Vec<Batch> = left.iter().copied().collect();
        let before = target.before(&env);
        let answers = client.produce(topic, partition, producer, &sent, gap).await;
        let mut failed = false;
        for (batch, answer) in sent.into_iter().zip(answers) {
            let Batch { first, sequence, .. } = batch;
            match answer {
                Ok(Ok(stored)) => {
                    let offset = stored.base_offset;
                    let line = format_args!("ack {:?} at {topic}/{partition}/{offset}", batch.values());
                    lab.trace.add(&env, line);
                    target.note_stored(&env, before, batch, stored);
                    left.retain(|left| left.first != first);
                    continue;
                }
                Ok(Err(code @ (codes::UNKNOWN_TOPIC | codes::NOT_LEADER))) => {
                    lab.trace.add(
                        &env,
                        format_args!("{first}: no leader at this broker, error {code}"),
                    );
                    client.disconnect();
                }
                // Who comes after a batch that failed is out of order.
                Ok(Err(code)) if codes::PRODUCE.contains(&code) || failed && code == codes::OUT_OF_ORDER => {
                    lab.trace.add(&env, format_args!("{first}: error {code}"));
                    if env.random_below(2) == 0 {
                        client.disconnect();
                    }
                }
                Ok(Err(code)) => {
                    let id = producer.id;
                    let what = format!(
                        "producer {id}, value {first} for {topic}/{partition}, sequence {sequence}, {}: error {code}",
                        if failed {
                            "after one that failed"
                        } else {
                            "the first in flight"
                        }
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
    // Not the pauses that the client has made itself.
    let since = start + client.paused - paused;
    lab.took(&env, format!("produce to {topic}/{partition}"), since);
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
    let mut client = Client::new(env.clone(), &lab);
    let nobody = ProducerId { id: -1, epoch: -1 };
    let mut next = first;
    while next < first + count {
        let partition = topic.random_partition(&env);
        // Where retention counts bytes all batches have the same size.
        let most = if topic.expires { 1 } else { RECORDS };
        let mut batches = random_batches(&env, &mut 0, &mut next, most);
        batches.iter_mut().for_each(|batch| batch.sequence = -1);
        {
            let mut history = topic.history.lock();
            history
                .sent
                .extend(batches.iter().flat_map(|batch| batch.values()));
            history
                .created
                .extend(batches.iter().flat_map(|batch| batch.times()));
        }
        let batches: Vec<Batch> = batches.into();
        let target = Target::new(topic, partition, nobody);
        let before = target.before(&env);
        let answers = client
            .produce(topic.name, partition, nobody, &batches, random_gap(&env))
            .await;
        // What one connection has brought stands in its order, as far as it is acknowledged.
        let mut in_order = Vec::new();
        for (batch, answer) in batches.into_iter().zip(answers) {
            let failure = match answer {
                Ok(Ok(stored)) => {
                    let offset = stored.base_offset;
                    let line =
                        format_args!("ack {:?} at {}/{partition}/{offset}", batch.values(), topic.name);
                    lab.trace.add(&env, line);
                    target.note_stored(&env, before, batch, stored);
                    in_order.extend(batch.values());
                    continue;
                }
                Ok(Err(code)) => client.refused("Produce", code, codes::PRODUCE),
                Err(failure) => failure,
            };
            lab.trace
                .add(&env, format_args!("{} given up: {failure}", batch.first));
            client.disconnect();
        }
        topic.history.lock().sends.push(in_order);
        env.sleep(Duration::from_millis(env.random_below(pause))).await;
    }
}
