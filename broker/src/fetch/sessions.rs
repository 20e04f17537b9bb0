//! Fetch sessions (KIP-227): a consumer names its partitions once, and then only what changes. No I/O.
//!
//! A session is soft state of one broker, bounded in number and size. A client whose session is gone hears so and
//! begins anew with a full request; a client that gets none (id 0) sends full requests for ever. So nothing depends on
//! one but bytes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use env::Instant;
use kafka_wire::fetch::{Fetch, FetchPartition};
use kafka_wire::messages::FetchRequest;
use kafka_wire::{ResponseError, StrBytes};
use parking_lot::Mutex;
use types::FastMap;
use uuid::Uuid;

/// Kafka's `max.incremental.fetch.session.cache.slots`.
const SESSIONS: usize = 1000;
/// Partitions of all sessions (about 150 bytes each, see [`Session::size`]).
const PARTITIONS: usize = 1_000_000;
/// A name of a topic takes the place of one more partition for each so many bytes: nobody has checked how long it is.
const NAME: usize = 256;
/// A session that was used since is not evicted for one that is not larger, nor one that is younger for any; Kafka's
/// `min.incremental.fetch.session.eviction.ms`.
const KEEP: Duration = Duration::from_secs(120);

/// Epoch of a request that opens a session.
const INITIAL: i32 = 0;
/// Epoch of a request that wants none, or ends one.
const FINAL: i32 = -1;

/// A topic as the request names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TopicKey {
    /// Up to version 12.
    Name(StrBytes),
    /// From version 13 on.
    Id(Uuid),
}

/// One partition that a client wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Its topic.
    pub topic: TopicKey,
    /// Its index.
    pub partition: i32,
    /// What is wanted of it.
    pub wish: Wish,
}

/// What a client wants of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// From here on.
    pub offset: i64,
    /// Bound in bytes.
    pub max_bytes: i32,
    /// The leader epoch that the client knows; -1: none.
    pub leader_epoch: i32,
}

/// A request as the session completes it.
#[derive(Debug)]
pub struct Round {
    /// All partitions that are wanted; those of a topic follow each other.
    pub asked: Vec<Asked>,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Sessionless,
    Opening { by_id: bool },
    Increment(i32, Arc<Mutex<Session>>),
}

/// The sessions of a broker.
#[derive(Debug, Default)]
pub struct Sessions(Mutex<Cache>);

#[derive(Debug, Default)]
struct Cache {
    sessions: FastMap<i32, Entry>,
    partitions: usize,
}

#[derive(Debug)]
struct Entry {
    session: Arc<Mutex<Session>>,
    size: usize,
    created: Instant,
    used: Instant,
}

#[derive(Debug)]
struct Session {
    by_id: bool,
    /// Of the next request.
    epoch: i32,
    partitions: BTreeMap<(TopicKey, i32), Cached>,
}

#[derive(Debug)]
struct Cached {
    wish: Wish,
    told: Told,
}

/// What the client has heard last; -1: nothing, or an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Told {
    high_watermark: i64,
    log_start_offset: i64,
}

const NOTHING: Told = Told {
    high_watermark: -1,
    log_start_offset: -1,
};

impl Told {
    fn by(answer: &FetchPartition) -> Told {
        if answer.error_code != 0 {
            // So that the client hears when it is over.
            return NOTHING;
        }
        Told {
            high_watermark: answer.high_watermark,
            log_start_offset: answer.log_start_offset,
        }
    }
}

impl Sessions {
    /// Takes a request in. The error is one of the whole request: FETCH_SESSION_ID_NOT_FOUND,
    /// INVALID_FETCH_SESSION_EPOCH or FETCH_SESSION_TOPIC_ID_ERROR.
    pub fn begin(&self, request: &FetchRequest, by_id: bool, now: Instant) -> Result<Round, ResponseError> {
        let kind = match request.session_epoch {
            INITIAL => Kind::Opening { by_id },
            FINAL => Kind::Sessionless,
            _ => return self.go_on(request, by_id, now),
        };
        self.0.lock().remove(request.session_id);
        Ok(Round {
            asked: asked(request, by_id).collect(),
            kind,
        })
    }

    fn go_on(&self, request: &FetchRequest, by_id: bool, now: Instant) -> Result<Round, ResponseError> {
        let id = request.session_id;
        let shared = {
            let mut cache = self.0.lock();
            let entry = cache
                .sessions
                .get_mut(&id)
                .ok_or(ResponseError::FetchSessionIdNotFound)?;
            entry.used = now;
            entry.session.clone()
        };
        let mut session = shared.lock();
        if session.by_id != by_id {
            return Err(ResponseError::FetchSessionTopicIdError);
        }
        if session.epoch != request.session_epoch {
            return Err(ResponseError::InvalidFetchSessionEpoch);
        }
        session.epoch = next(session.epoch);
        for asked in asked(request, by_id) {
            session.ask(asked, NOTHING);
        }
        for topic in &request.forgotten_topics_data {
            let key = topic_key(by_id, &topic.topic.0, topic.topic_id);
            for partition in &topic.partitions {
                session.partitions.remove(&(key.clone(), *partition));
            }
        }
        let all = session.partitions.iter();
        let all: Vec<Asked> = all
            .map(|((topic, partition), cached)| Asked {
                topic: topic.clone(),
                partition: *partition,
                wish: cached.wish,
            })
            .collect();
        let size = session.size();
        drop(session);
        let kept = self.0.lock().resize(id, size);
        let kind = match kept {
            true => Kind::Increment(id, shared),
            false if all.is_empty() => Kind::Sessionless,
            false => return Err(ResponseError::FetchSessionIdNotFound),
        };
        Ok(Round { asked: all, kind })
    }

    /// Makes the answer of a round, which has a partition for each that was asked and in the same order, the session's:
    /// an increment leaves out what the client knows already. `random` makes the id of a new session.
    pub fn finish(&self, round: Round, answer: &mut Fetch, now: Instant, random: u64) {
        match round.kind {
            Kind::Sessionless => {}
            Kind::Opening { by_id } => {
                let answers = answer.topics.iter().flat_map(|topic| &topic.partitions);
                let mut session = Session {
                    by_id,
                    epoch: next(INITIAL),
                    partitions: BTreeMap::new(),
                };
                for (asked, answer) in round.asked.into_iter().zip(answers) {
                    session.ask(asked, Told::by(answer));
                }
                let mut cache = self.0.lock();
                if cache.make_room(session.size(), now) {
                    answer.session_id = cache.add(session, now, random);
                }
            }
            Kind::Increment(id, session) => {
                let mut session = session.lock();
                let mut asked = round.asked.into_iter();
                for topic in &mut answer.topics {
                    topic.partitions.retain(|partition| {
                        let Some(asked) = asked.next() else {
                            return true;
                        };
                        session.has_news(&(asked.topic, asked.partition), partition)
                    });
                }
                answer.topics.retain(|topic| !topic.partitions.is_empty());
                answer.session_id = id;
            }
        }
    }

    /// Sessions there are.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.0.lock().sessions.len()
    }
}

impl Session {
    fn ask(&mut self, asked: Asked, told: Told) {
        let Asked {
            topic,
            partition,
            wish,
        } = asked;
        let topic = match topic {
            // A slice of the request would keep all of it.
            TopicKey::Name(name) => TopicKey::Name(StrBytes::from_string(name.to_string())),
            id => id,
        };
        self.partitions
            .entry((topic, partition))
            .or_insert(Cached { wish, told })
            .wish = wish;
    }

    /// What it takes, in partitions with names of usual length.
    fn size(&self) -> usize {
        let size = |topic: &TopicKey| match topic {
            TopicKey::Name(name) => 1 + name.len() / NAME,
            TopicKey::Id(_) => 1,
        };
        self.partitions.keys().map(|(topic, _)| size(topic)).sum()
    }

    /// Whether the client must hear of the partition.
    fn has_news(&mut self, key: &(TopicKey, i32), answer: &FetchPartition) -> bool {
        let Some(cached) = self.partitions.get_mut(key) else {
            return true;
        };
        let told = Told::by(answer);
        let news = answer.error_code != 0 || !answer.batches.is_empty() || told != cached.told;
        cached.told = told;
        news
    }
}

impl Cache {
    fn remove(&mut self, id: i32) {
        if let Some(entry) = self.sessions.remove(&id) {
            self.partitions -= entry.size;
        }
    }

    /// False if the session is gone: it is empty, or too much.
    fn resize(&mut self, id: i32, size: usize) -> bool {
        let Some(entry) = self.sessions.get_mut(&id) else {
            return false;
        };
        self.partitions = self.partitions - entry.size + size;
        entry.size = size;
        let stays = size > 0 && self.partitions <= PARTITIONS;
        if !stays {
            self.remove(id);
        }
        stays
    }

    /// Whether a session of `size` partitions may be added, after the eviction of one that is idle, or else of one that
    /// is smaller and has had its time.
    fn make_room(&mut self, size: usize, now: Instant) -> bool {
        if size == 0 || self.partitions + size > PARTITIONS {
            return false;
        }
        if self.sessions.len() < SESSIONS {
            return true;
        }
        let old = |since: Instant| now.saturating_duration_since(since) > KEEP;
        let all = || self.sessions.iter();
        let idle = all()
            .min_by_key(|(_, entry)| entry.used)
            .filter(|(_, entry)| old(entry.used));
        let smaller = || {
            all()
                .filter(|(_, entry)| entry.size < size && old(entry.created))
                .min_by_key(|(_, entry)| entry.size)
        };
        let Some(evicted) = idle.or_else(smaller).map(|(id, _)| *id) else {
            return false;
        };
        self.remove(evicted);
        true
    }

    fn add(&mut self, session: Session, now: Instant, random: u64) -> i32 {
        // Positive, and 0 is none.
        let mut id = i32::try_from(random % (i32::MAX as u64)).unwrap_or(0) + 1;
        while self.sessions.contains_key(&id) {
            id = id.checked_add(1).unwrap_or(1);
        }
        let size = session.size();
        self.partitions += size;
        let session = Arc::new(Mutex::new(session));
        self.sessions.insert(
            id,
            Entry {
                session,
                size,
                created: now,
                used: now,
            },
        );
        id
    }
}

/// Epochs go round without 0.
fn next(epoch: i32) -> i32 {
    epoch.checked_add(1).unwrap_or(1)
}

fn topic_key(by_id: bool, name: &StrBytes, id: Uuid) -> TopicKey {
    if by_id {
        TopicKey::Id(id)
    } else {
        TopicKey::Name(name.clone())
    }
}

fn asked(request: &FetchRequest, by_id: bool) -> impl Iterator<Item = Asked> {
    request.topics.iter().flat_map(move |topic| {
        let key = topic_key(by_id, &topic.topic.0, topic.topic_id);
        topic.partitions.iter().map(move |partition| Asked {
            topic: key.clone(),
            partition: partition.partition,
            wish: Wish {
                offset: partition.fetch_offset,
                max_bytes: partition.partition_max_bytes,
                leader_epoch: partition.current_leader_epoch,
            },
        })
    })
}

#[cfg(test)]
mod tests;
