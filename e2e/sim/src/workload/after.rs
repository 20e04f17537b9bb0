//! What has to be true when everything has come to rest.

use std::sync::Arc;
use std::time::Duration;

use env::{Env, Instant};

use super::PAUSE;
use crate::client::{Batch, Client, Failure, ProducerId, encode_batch};
use crate::lab::{Lab, Topic};
use crate::world::World;

/// Retention has taken what it may take, and nothing else.
pub(crate) async fn check_retention(env: &Env, lab: &Lab) {
    let mut client = Client::new(env.clone(), lab);
    for topic in lab.topics.iter().filter(|topic| topic.expires) {
        let keeps = topic.keeps.unwrap_or(0);
        let bounds = loop {
            match bounds(&mut client, topic).await {
                Ok(bounds) => break bounds,
                Err(failure) => lab.trace.add(env, failure),
            }
            client.disconnect();
            env.sleep(PAUSE).await;
        };
        for (partition, (start, end)) in bounds.into_iter().enumerate() {
            if end - start != keeps.min(end) {
                let name = topic.name;
                lab.broken(
                    env,
                    format!("{name}/{partition} has {start} to {end}, not {keeps} records"),
                );
            }
        }
    }
}

async fn bounds(client: &mut Client, topic: &Topic) -> Result<Vec<(i64, i64)>, Failure> {
    let starts = client.offsets(topic.name, topic.partitions(), -2).await?;
    let ends = client.offsets(topic.name, topic.partitions(), -1).await?;
    Ok(starts.into_iter().zip(ends).collect())
}

/// How many bytes a batch of one record takes that is not from an idempotent producer.
pub(crate) fn batch_bytes() -> usize {
    let nobody = ProducerId { id: -1, epoch: -1 };
    let batch = Batch {
        sequence: -1,
        first: 1_000_000,
        count: 1,
        created: 1_767_225_600_000,
    };
    encode_batch(nobody, batch).map_or(0, |bytes| bytes.len())
}

/// Deletes all topics; then nothing is left of their objects before `until`.
pub(crate) async fn check_leaks(env: &Env, world: &Arc<World>, lab: &Lab, until: Instant) {
    let mut client = Client::new(env.clone(), lab);
    let names = lab.topics.iter().map(|topic| topic.name);
    for name in names.chain(["temporary"]) {
        while let Err(failure) = client.delete(name).await {
            lab.trace.add(env, failure);
            client.disconnect();
            env.sleep(PAUSE).await;
        }
    }
    loop {
        let left = world.bucket().objects().await;
        if left.is_empty() {
            return;
        }
        if env.instant() >= until {
            let first = left.first().cloned().unwrap_or_default();
            lab.broken(
                env,
                format!("{} objects are left that nobody needs: {first}", left.len()),
            );
            return;
        }
        env.sleep(Duration::from_secs(1)).await;
    }
}
