//! The bytes of batches, by their coordinates.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use blob::BlobError;
use bytes::Bytes;
use cache::{Object, ObjectCache};
use coordinator::protocol::Coordinate;
use env::Env;
use kafka_wire::{ResponseError, batch};
use uuid::Uuid;

use super::neighbours::{Answer, Neighbours, Parts};

/// Data younger than this is read through the cache: others are about to read it, too.
const RECENT: Duration = Duration::from_secs(60);

/// Why a batch cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// What is stored is not what was committed.
    Corrupt,
    /// The object store does not give it (now).
    Unavailable,
}

impl ReadError {
    /// As a consumer hears it.
    pub fn response_error(self) -> ResponseError {
        match self {
            ReadError::Corrupt => ResponseError::CorruptMessage,
            ReadError::Unavailable => ResponseError::KafkaStorageError,
        }
    }
}

/// Reads batches through the cache. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Objects {
    env: Env,
    cache: Arc<ObjectCache>,
    read_timeout: Duration,
    /// `None`: they are of an earlier release, or this broker is.
    neighbours: Option<Arc<Neighbours>>,
}

/// What is wanted of one object.
struct Need<'a> {
    size: u64,
    wanted: Vec<&'a Coordinate>,
    whole: bool,
}

impl Need<'_> {
    /// From the first wanted byte to the last.
    fn span(&self) -> (u32, u64) {
        let ends = |at: &&Coordinate| u64::from(at.position) + u64::from(at.size);
        let from = self.wanted.iter().map(|at| at.position).min();
        let to = self.wanted.iter().map(ends).max();
        (from.unwrap_or(0), to.unwrap_or(0))
    }
}

enum Source {
    Whole(Arc<Object>),
    Part {
        start: u32,
        bytes: Bytes,
    },
    /// They are checked already.
    Neighbour(Parts),
}

/// Whether these are the bytes of the batch that was committed there.
pub(super) fn intact(at: &Coordinate, bytes: &[u8]) -> bool {
    let verified = batch::verify(bytes).is_ok_and(|header| {
        i64::from(header.last_offset_delta) == at.last_offset.saturating_sub(at.base_offset)
    });
    verified || env::mutation("trust-reads")
}

impl Objects {
    /// Reads through `cache`, and from `neighbours` what they read for this zone; each read takes `read_timeout` at most.
    pub fn new(
        env: Env,
        cache: Arc<ObjectCache>,
        read_timeout: Duration,
        neighbours: Option<Arc<Neighbours>>,
    ) -> Objects {
        Objects {
            env,
            cache,
            read_timeout,
            neighbours,
        }
    }

    /// What it reads through.
    pub fn cache(&self) -> &Arc<ObjectCache> {
        &self.cache
    }

    /// The batches at `coordinates`, in their order. `tail`: they were just pushed here, so other consumers are about
    /// to read their objects, too.
    pub async fn read(&self, coordinates: &[(Coordinate, bool)]) -> Vec<Result<Bytes, ReadError>> {
        let mut read = self.once(coordinates).await;
        // They may have been damaged on their way: the store is asked for them once more.
        let corrupt = coordinates.iter().zip(&mut read);
        let (again, places): (Vec<_>, Vec<_>) = corrupt
            .filter(|(_, bytes)| matches!(bytes, Err(ReadError::Corrupt)))
            .map(|(at, place)| (at.clone(), place))
            .unzip();
        if !again.is_empty() {
            for (place, bytes) in places.into_iter().zip(self.once(&again).await) {
                *place = bytes;
            }
        }
        read
    }

    async fn once(&self, coordinates: &[(Coordinate, bool)]) -> Vec<Result<Bytes, ReadError>> {
        let recent = self.env.now().plus(-(RECENT.as_millis() as i64));
        let mut needs: BTreeMap<Uuid, Need<'_>> = BTreeMap::new();
        for (at, tail) in coordinates {
            let need = needs.entry(at.object).or_insert_with(|| Need {
                size: at.object_size,
                wanted: Vec::new(),
                whole: false,
            });
            need.wanted.push(at);
            need.whole |= *tail || at.max_timestamp >= recent;
        }
        let sources = needs
            .into_iter()
            .map(|(object, need)| async move { (object, self.source(object, need).await) });
        let sources: BTreeMap<Uuid, Result<Source, ReadError>> =
            futures::future::join_all(sources).await.into_iter().collect();
        let source = |object| match env::mutation("wrong-object") {
            true => sources.values().next(),
            false => sources.get(&object),
        };
        coordinates
            .iter()
            .map(|(at, _)| match source(at.object) {
                Some(Ok(source)) => self.cut(source, at),
                Some(Err(error)) => Err(*error),
                None => Err(ReadError::Unavailable),
            })
            .collect()
    }

    async fn source(&self, object: Uuid, need: Need<'_>) -> Result<Source, ReadError> {
        if let Some(found) = self.cache.cached(object) {
            return Ok(Source::Whole(found));
        }
        let key = wal::object_key(object);
        let reading = async {
            if need.whole {
                return self.hot(object, &key, &need).await;
            }
            let (start, end) = need.span();
            let bytes = self.cache.read(&key, u64::from(start)..end).await?;
            Ok(Source::Part { start, bytes })
        };
        let read = self.env.timeout(self.read_timeout, reading).await;
        match read.unwrap_or_else(|_| Err(BlobError::Timeout(key.clone()))) {
            Ok(source) => Ok(source),
            Err(error) => {
                tracing::warn!(%error, key, "a wal object cannot be read");
                Err(if matches!(error, BlobError::Corrupt(_)) {
                    ReadError::Corrupt
                } else {
                    ReadError::Unavailable
                })
            }
        }
    }

    /// From the broker that reads the object for the zone, or whole from the store: if that is this one, or has no answer.
    async fn hot(&self, object: Uuid, key: &str, need: &Need<'_>) -> Result<Source, BlobError> {
        let question = self
            .neighbours
            .as_ref()
            .and_then(|neighbours| Some((neighbours, neighbours.question(object, need.size, &need.wanted)?)));
        let store = self.cache.load(object, key, need.size);
        match question {
            None => store.await.map(Source::Whole),
            Some((neighbours, question)) => {
                let at_hand = || self.cache.is_at_hand(object);
                Ok(match neighbours.read(question, at_hand, store).await? {
                    Answer::Neighbour(parts) => Source::Neighbour(parts),
                    Answer::Store(found) => Source::Whole(found),
                })
            }
        }
    }

    fn cut(&self, source: &Source, at: &Coordinate) -> Result<Bytes, ReadError> {
        let (bytes, trusted) = match source {
            Source::Whole(object) => (object.slice(at.position, at.size), object.is_trusted()),
            Source::Part { start, bytes } => {
                let from = at.position.saturating_sub(*start) as usize;
                let range = bytes.get(from..from.saturating_add(at.size as usize));
                (range.map(|range| bytes.slice_ref(range)), false)
            }
            Source::Neighbour(parts) => (parts.get(&(at.position, at.size)).cloned(), true),
        };
        let good = |bytes: &Bytes| trusted || intact(at, bytes);
        bytes.filter(good).ok_or_else(|| {
            let key = wal::object_key(at.object);
            tracing::error!(
                key,
                position = at.position,
                size = at.size,
                "a batch in a wal object is corrupt"
            );
            self.cache.forget(at.object);
            ReadError::Corrupt
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use blob::faults::{Decision, Fault, Faulty};
    use blob::{MemoryStore, Operation, SharedStore};
    use types::Timestamp;

    use super::*;
    use crate::produce::testing::batch;

    async fn stored(damage: bool) -> (Objects, Vec<(Coordinate, bool)>) {
        stored_behind(damage, 0).await
    }

    /// The first `damaged` reads of the store give wrong bytes.
    async fn stored_behind(damage: bool, damaged: u32) -> (Objects, Vec<(Coordinate, bool)>) {
        let env = Env::simulated(3);
        let store: SharedStore = Arc::new(MemoryStore::new(env.clone()));
        let object = env.uuid();
        let batches = [
            batch(3, 1000, |_| {}),
            batch(2, 1000, |_| {}),
            batch(1, 1000, |_| {}),
        ];
        let mut bytes = vec![0];
        let mut coordinates = Vec::new();
        for (index, batch) in batches.iter().enumerate() {
            let base = index as i64 * 10;
            coordinates.push(Coordinate {
                base_offset: base,
                last_offset: base + 2 - index as i64,
                object,
                object_size: 0,
                position: bytes.len() as u32,
                size: batch.len() as u32,
                max_timestamp: Timestamp(1000),
                log_append_time: Timestamp(-1),
            });
            bytes.extend_from_slice(batch);
        }
        if damage {
            let at = coordinates[1].position as usize + 70;
            bytes[at] ^= 1;
        }
        for coordinate in &mut coordinates {
            coordinate.object_size = bytes.len() as u64;
        }
        store
            .put(&wal::object_key(object), vec![Bytes::from(bytes)])
            .await
            .unwrap();
        let gets = AtomicU32::new(0);
        let plan = move |operation, _: &str| {
            let bad = operation == Operation::Get && gets.fetch_add(1, Relaxed) < damaged;
            Decision {
                delay: Duration::ZERO,
                fault: if bad { Fault::Damage } else { Fault::None },
            }
        };
        let faulty = Faulty::new(store, env.clone(), Arc::new(plan));
        let cache = Arc::new(ObjectCache::new(Arc::new(faulty), 1 << 20));
        (
            Objects::new(env, cache, Duration::from_secs(30), None),
            coordinates.into_iter().map(|at| (at, false)).collect(),
        )
    }

    #[tokio::test]
    async fn batches_come_in_order_from_ranges_and_from_whole_objects() {
        for tail in [false, true] {
            let (objects, mut coordinates) = stored(false).await;
            coordinates.iter_mut().for_each(|(_, flag)| *flag = tail);
            coordinates.swap(0, 2);
            let read = objects.read(&coordinates[..2]).await;
            for ((at, _), bytes) in coordinates.iter().zip(read) {
                assert_eq!(bytes.unwrap().len(), at.size as usize);
            }
            assert_eq!(objects.cache.stats().bytes > 0, tail);
        }
    }

    #[tokio::test]
    async fn only_the_damaged_batch_is_corrupt() {
        for tail in [false, true] {
            let (objects, mut coordinates) = stored(true).await;
            coordinates.iter_mut().for_each(|(_, flag)| *flag = tail);
            let read = objects.read(&coordinates).await;
            assert!(read[0].is_ok() && read[2].is_ok());
            assert_eq!(read[1], Err(ReadError::Corrupt));
            assert!(
                objects.cache.stats().bytes == 0,
                "the next reader asks the store again"
            );
        }
    }

    #[tokio::test]
    async fn what_was_damaged_on_its_way_is_read_again_once() {
        for tail in [false, true] {
            for damaged in [1, 2] {
                let (objects, mut coordinates) = stored_behind(false, damaged).await;
                coordinates.iter_mut().for_each(|(_, flag)| *flag = tail);
                // The damage is in the last batch.
                let read = objects.read(&coordinates).await;
                assert!(read[0].is_ok() && read[1].is_ok());
                assert_eq!(read[2].is_ok(), damaged == 1, "tail {tail}, {damaged} times");
            }
        }
    }

    #[tokio::test]
    async fn a_missing_object_is_unavailable() {
        let (objects, mut coordinates) = stored(false).await;
        coordinates[0].0.object = Uuid::from_u128(1);
        let read = objects.read(&coordinates).await;
        assert_eq!(read[0], Err(ReadError::Unavailable));
        assert!(read[1].is_ok());
    }
}
