//! Asking a broker of the same zone for what it has read, instead of the store.
//!
//! Every object has one *owner* in a zone: its uploader if it is there, which has it in memory, else the broker that
//! rendezvous hashing names. The owner reads the object once, whole, and gives the others what they ask for
//! ([`super::serving`]). They ask for the batches that their consumers want, and keep nothing: the caches of a zone hold
//! different objects, and what a broker takes in grows with its consumers, not with the cluster.
//!
//! A neighbour may be dead, frozen, slow, wrong or of an earlier release. None of that is an error here: the store is read
//! instead, at once when there is no answer to be had, and beside the neighbour when it takes longer than it mostly does. Who
//! is dead or says nothing for a second is left alone for a while, and the next in the order of the hash is the owner meanwhile.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use blob::BlobError;
use bytes::Bytes;
use cluster::image::{Broker, ImageRecord};
use coordinator::protocol::{Coordinate, ObjectRange, ReadObjectRequest, ReadObjectResponse, api_key};
use env::{Env, Instant};
use kafka_wire::ResponseError;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use types::{FastMap, NodeId};
use uuid::Uuid;

use super::objects::intact;
use super::serving::{MAX_ANSWER, MAX_OBJECT, MAX_RANGES};
use crate::hedging::Hedging;
use crate::metadata::Metadata;
use crate::metrics::Metrics;
use crate::rpc::Pool;

/// A neighbour is late after this time, until it is known how long they take…
const LATE: Duration = Duration::from_millis(300);
/// …and after this one in any case.
const LONGEST: Duration = Duration::from_secs(1);
/// An answer that has not come by then does not count any more.
const ANSWER: Duration = Duration::from_secs(5);
/// How long a neighbour that does not answer is left alone.
const SHUNNED: Duration = Duration::from_secs(4);
/// Bytes that one neighbour is asked for at the same time: half of what it lets wait for one connection, because answers
/// to questions that were given up count there, too.
const ASKED: usize = 16 << 20;

/// Batches of one object by position and size, each of them checked.
pub(super) type Parts = BTreeMap<(u32, u32), Bytes>;

/// Who may be asked.
#[derive(Debug)]
struct Peer {
    /// A permit for each byte that may be asked for.
    room: Arc<Semaphore>,
    /// When it was first asked after its last answer.
    asked: Option<Instant>,
    shunned: Option<Instant>,
}

impl Default for Peer {
    fn default() -> Self {
        Peer {
            room: Arc::new(Semaphore::new(ASKED)),
            asked: None,
            shunned: None,
        }
    }
}

/// The brokers of this zone.
pub struct Neighbours {
    env: Env,
    node: NodeId,
    zone: String,
    metadata: Metadata,
    /// Of its own: large answers must not hold up those of the coordinators.
    pool: Pool,
    peers: Mutex<FastMap<NodeId, Peer>>,
    hedging: Mutex<Hedging>,
    metrics: Arc<Metrics>,
}

impl std::fmt::Debug for Neighbours {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Neighbours")
            .field("zone", &self.zone)
            .finish_non_exhaustive()
    }
}

/// A question for the owner of an object.
pub(super) struct Question<'a> {
    owner: NodeId,
    address: String,
    room: Arc<Semaphore>,
    request: ReadObjectRequest,
    /// By position, each once.
    wanted: Vec<&'a Coordinate>,
    bytes: u32,
}

/// Who gave the bytes.
pub(super) enum Answer<T> {
    Neighbour(Parts),
    Store(T),
}

impl Neighbours {
    /// Those of broker `node` in `zone`, as `metadata` names them, asked over `pool`.
    pub fn new(
        env: Env,
        node: NodeId,
        zone: String,
        metadata: Metadata,
        pool: Pool,
        metrics: Arc<Metrics>,
    ) -> Arc<Neighbours> {
        Arc::new(Neighbours {
            env,
            node,
            zone,
            metadata,
            pool,
            peers: Mutex::default(),
            hedging: Mutex::new(Hedging::new(LATE)),
            metrics,
        })
    }

    /// Whom to ask for `wanted`, batches of one object of `size` bytes; `None`: the store.
    pub(super) fn question<'a>(
        &self,
        object: Uuid,
        size: u64,
        wanted: &[&'a Coordinate],
    ) -> Option<Question<'a>> {
        if size > MAX_OBJECT {
            return None;
        }
        let image = self.metadata.image();
        let now = self.env.instant();
        let mut peers = self.peers.lock();
        let shunned = |node: NodeId| {
            let until = peers.get(&node).and_then(|peer| peer.shunned);
            until.is_some_and(|until| now < until)
        };
        let owner = owner(image.record(), self.node, &self.zone, object, shunned)?;
        let (wanted, ranges, bytes) = ranges(wanted);
        if bytes > MAX_ANSWER || ranges.len() > MAX_RANGES {
            return None;
        }
        let peer = peers.entry(owner.id).or_default();
        if peer.shunned.is_some() {
            // One finds out whether it is back, the others go on as before.
            peer.shunned = Some(now + SHUNNED);
        }
        peer.asked.get_or_insert(now);
        Some(Question {
            owner: owner.id,
            address: owner.internal.clone(),
            room: peer.room.clone(),
            request: ReadObjectRequest { object, size, ranges },
            wanted,
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
        })
    }

    /// Asks, and reads the `store` if there is no answer, or none in time. `at_hand`: reading the store would cost nothing, or
    /// nothing more.
    pub(super) async fn read<T>(
        &self,
        question: Question<'_>,
        at_hand: impl Fn() -> bool,
        store: impl Future<Output = Result<T, BlobError>>,
    ) -> Result<Answer<T>, BlobError> {
        let begun = self.env.instant();
        // What takes time, if anything, is to read the whole object.
        let size = question.request.size;
        let patience = self.hedging.lock().begin(size).min(LONGEST);
        let mut asked = pin!(self.ask(&question));
        let mut answer = self.env.timeout(patience, &mut asked).await.ok();
        if answer.is_none() && !at_hand() && !self.hedging.lock().pay() {
            answer = self.env.timeout_at(begun + LONGEST, &mut asked).await.ok();
        }
        if !matches!(answer, Some(Some(_))) {
            self.metrics.neighbour_failures.inc();
        }
        let answer = match answer {
            Some(Some(parts)) => Answer::Neighbour(parts),
            Some(None) => Answer::Store(store.await?),
            None => {
                let mut store = pin!(store);
                tokio::select! {
                    biased;
                    parts = &mut asked => match parts {
                        Some(parts) => Answer::Neighbour(parts),
                        None => Answer::Store(store.await?),
                    },
                    read = &mut store => {
                        let read = read?;
                        self.overtaken(question.owner);
                        Answer::Store(read)
                    }
                }
            }
        };
        if matches!(answer, Answer::Neighbour(_)) {
            self.metrics.neighbour_reads.inc();
        }
        let took = self.env.instant().saturating_duration_since(begun);
        self.hedging.lock().end(size, took);
        Ok(answer)
    }

    /// `None`: the store must be asked.
    async fn ask(&self, question: &Question<'_>) -> Option<Parts> {
        let _room = question.room.acquire_many(question.bytes).await.ok()?;
        let deadline = self.env.instant() + ANSWER;
        let answer: Result<ReadObjectResponse, _> = self
            .pool
            .call(
                &question.address,
                api_key::READ_OBJECT,
                &question.request,
                deadline,
            )
            .await;
        let (owner, object) = (question.owner, question.request.object);
        match answer {
            Ok(answer) => {
                if let Some(peer) = self.peers.lock().get_mut(&owner) {
                    (peer.asked, peer.shunned) = (None, None);
                }
                if answer.error_code != 0 {
                    let error = ResponseError::try_from_code(answer.error_code);
                    tracing::debug!(%owner, %object, ?error, "a neighbour does not give an object");
                    return None;
                }
                let parts = cut(&question.wanted, answer.records);
                if parts.is_none() {
                    tracing::warn!(%owner, %object, "what a neighbour gives of an object is corrupt");
                }
                parts
            }
            Err(error) => {
                tracing::debug!(%owner, %error, "a neighbour does not answer");
                self.shun(owner);
                None
            }
        }
    }

    /// The store was faster than a neighbour. That happens, unless it has said nothing at all for long.
    fn overtaken(&self, node: NodeId) {
        let asked = self.peers.lock().get(&node).and_then(|peer| peer.asked);
        let now = self.env.instant();
        if asked.is_some_and(|asked| now.saturating_duration_since(asked) >= LONGEST) {
            tracing::debug!(owner = %node, "a neighbour is silent");
            self.shun(node);
        }
    }

    fn shun(&self, node: NodeId) {
        let until = self.env.instant() + self.env.jittered(SHUNNED);
        self.peers.lock().entry(node).or_default().shunned = Some(until);
    }
}

/// The broker of `zone` that reads `object` for all of them: its uploader, else the one with the highest score, so that only
/// its own objects change hands when a broker comes or goes. `None`: it is `me`, or there is nobody to ask.
fn owner<'a>(
    image: &'a ImageRecord,
    me: NodeId,
    zone: &str,
    object: Uuid,
    shunned: impl Fn(NodeId) -> bool,
) -> Option<&'a Broker> {
    let able = |broker: &&Broker| {
        !zone.is_empty() && broker.zone == zone && broker.serves_objects == Some(true) && !shunned(broker.id)
    };
    let in_zone = || image.brokers.iter().filter(able);
    let uploader = wal::uploader(object);
    let owner = in_zone()
        // Even one that leaves still has it.
        .find(|broker| Some(broker.id) == uploader)
        .or_else(|| {
            in_zone()
                .filter(|broker| !broker.draining)
                .max_by_key(|broker| (score(object, broker.id), broker.id))
        })?;
    (owner.id != me).then_some(owner)
}

/// Different for every pair. Brokers of a zone that disagreed on it would only read some objects twice.
fn score(object: Uuid, node: NodeId) -> u64 {
    // The finalizer of SplitMix64.
    let mix = |mut z: u64| {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let (high, low) = object.as_u64_pair();
    mix(high ^ mix(low ^ mix(u64::from(node.0.cast_unsigned()).wrapping_add(0x9e37_79b9_7f4a_7c15))))
}

/// Each batch once and by position, the parts of the object they make up, and the bytes of all.
fn ranges<'a>(wanted: &[&'a Coordinate]) -> (Vec<&'a Coordinate>, Vec<ObjectRange>, u64) {
    let mut wanted = wanted.to_vec();
    wanted.sort_by_key(|at| (at.position, at.size));
    wanted.dedup_by_key(|at| (at.position, at.size));
    let mut ranges: Vec<ObjectRange> = Vec::new();
    let mut bytes = 0;
    for at in &wanted {
        bytes += u64::from(at.size);
        match ranges.last_mut() {
            Some(last) if last.position.checked_add(last.size) == Some(at.position) => {
                last.size = last.size.saturating_add(at.size);
            }
            _ => ranges.push(ObjectRange {
                position: at.position,
                size: at.size,
            }),
        }
    }
    (wanted, ranges, bytes)
}

/// The batches in an answer; `None` unless it is all of them, and nothing else.
fn cut(wanted: &[&Coordinate], mut records: Bytes) -> Option<Parts> {
    let mut parts = Parts::new();
    for at in wanted {
        let size = usize::try_from(at.size).ok()?;
        if records.len() < size {
            return None;
        }
        let batch = records.split_to(size);
        if !intact(at, &batch) {
            return None;
        }
        parts.insert((at.position, at.size), batch);
    }
    records.is_empty().then_some(parts)
}

#[cfg(test)]
mod tests;
