//! Producers and consumers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use e2e::history::{History, Place};
use env::Env;
use parking_lot::Mutex;

use crate::Trace;
use crate::client::Client;

/// OUT_OF_ORDER_SEQUENCE_NUMBER, UNKNOWN_PRODUCER_ID, INVALID_PRODUCER_EPOCH, DUPLICATE_SEQUENCE_NUMBER: a client that
/// sends one record at a time must never see them.
const FATAL: [i16; 4] = [45, 59, 47, 46];
const PAUSE: Duration = Duration::from_millis(100);

pub(crate) type Shared = Arc<Mutex<History>>;

/// Sends `count` values from `first` on, each until it is acknowledged.
pub(crate) async fn produce(
    env: Env,
    bootstrap: Vec<String>,
    partitions: i32,
    first: u64,
    count: u64,
    history: Shared,
    trace: Trace,
) -> anyhow::Result<()> {
    let mut client = Client::new(env.clone(), bootstrap);
    let producer = loop {
        match client.init_producer_id().await {
            Ok(producer) => break producer,
            Err(failure) => {
                trace.add(&env, format_args!("no producer id: {failure}"));
                client.disconnect();
                env.sleep(PAUSE).await;
            }
        }
    };
    let mut sequences: BTreeMap<i32, i32> = BTreeMap::new();
    {
        let mut history = history.lock();
        history.sent.extend(first..first + count);
        history.sends.push((first..first + count).collect());
    }
    for value in first..first + count {
        let partition = i32::try_from(env.random_below(u64::try_from(partitions)?))?;
        let sequence = sequences.entry(partition).or_insert(0);
        let offset = loop {
            match client.produce(partition, producer, *sequence, value).await {
                Ok(Ok(offset)) => break offset,
                Ok(Err(code)) if FATAL.contains(&code) => {
                    anyhow::bail!(
                        "producer {} partition {partition} sequence {sequence}: error {code}",
                        producer.id
                    );
                }
                Ok(Err(code)) => {
                    trace.add(&env, format_args!("retry {value}: error {code}"));
                    client.disconnect();
                }
                Err(failure) => trace.add(&env, format_args!("retry {value}: {failure}")),
            }
            env.sleep(PAUSE).await;
        };
        *sequence += 1;
        trace.add(&env, format_args!("ack {value} at {partition}/{offset}"));
        history.lock().acked.insert(value, Place { partition, offset });
        env.sleep(Duration::from_millis(env.random_below(200))).await;
    }
    Ok(())
}

/// Reads all partitions from the beginning until `total` distinct values have come.
pub(crate) async fn consume(
    env: Env,
    bootstrap: Vec<String>,
    partitions: i32,
    total: usize,
    trace: Trace,
    name: u64,
) -> Vec<(u64, Place)> {
    let mut client = Client::new(env.clone(), bootstrap);
    let mut next: BTreeMap<i32, i64> = (0..partitions).map(|partition| (partition, 0)).collect();
    let mut read = Vec::new();
    while read.len() < total {
        for (partition, offset) in &mut next {
            match client.fetch(*partition, *offset).await {
                Ok((found, _)) => {
                    for (value, at) in found {
                        trace.add(
                            &env,
                            format_args!("consumer {name} got {value} at {partition}/{at}"),
                        );
                        read.push((
                            value,
                            Place {
                                partition: *partition,
                                offset: at,
                            },
                        ));
                        *offset = at + 1;
                    }
                }
                Err(failure) => {
                    trace.add(&env, format_args!("consumer {name}: {failure}"));
                    client.disconnect();
                    env.sleep(PAUSE).await;
                }
            }
        }
    }
    read
}
