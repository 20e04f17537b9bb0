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

/// Data younger than this is read through the cache: others are about to read it, too.
const RECENT: Duration = Duration::from_secs(60);
/// Bound of all reads of one request.
const DEADLINE: Duration = Duration::from_secs(30);

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
}

/// What is wanted of one object.
struct Need {
    size: u64,
    from: u32,
    to: u64,
    whole: bool,
}

#[derive(Clone)]
enum Source {
    Whole(Arc<Object>),
    Part { start: u32, bytes: Bytes },
}

impl Objects {
    /// Reads through `cache`.
    pub fn new(env: Env, cache: Arc<ObjectCache>) -> Objects {
        Objects { env, cache }
    }

    /// The batches at `coordinates`, in their order. `tail`: they were just pushed here, so other consumers are about
    /// to read their objects, too.
    pub async fn read(&self, coordinates: &[(Coordinate, bool)]) -> Vec<Result<Bytes, ReadError>> {
        let recent = self.env.now().plus(-(RECENT.as_millis() as i64));
        let mut needs: BTreeMap<Uuid, Need> = BTreeMap::new();
        for (at, tail) in coordinates {
            let to = u64::from(at.position) + u64::from(at.size);
            let need = Need {
                size: at.object_size,
                from: at.position,
                to,
                whole: false,
            };
            let need = needs.entry(at.object).or_insert(need);
            need.from = need.from.min(at.position);
            need.to = need.to.max(to);
            need.whole |= *tail || at.max_timestamp >= recent;
        }
        let sources = needs
            .into_iter()
            .map(|(object, need)| async move { (object, self.source(object, need).await) });
        let sources: BTreeMap<Uuid, Result<Source, ReadError>> =
            futures::future::join_all(sources).await.into_iter().collect();
        coordinates
            .iter()
            .map(|(at, _)| match sources.get(&at.object) {
                Some(Ok(source)) => self.cut(source, at),
                Some(Err(error)) => Err(*error),
                None => Err(ReadError::Unavailable),
            })
            .collect()
    }

    async fn source(&self, object: Uuid, need: Need) -> Result<Source, ReadError> {
        if let Some(found) = self.cache.cached(object) {
            return Ok(Source::Whole(found));
        }
        let key = wal::object_key(object);
        let reading = async {
            if need.whole {
                return self.cache.load(object, &key, need.size).await.map(Source::Whole);
            }
            let bytes = self.cache.read(&key, u64::from(need.from)..need.to).await?;
            Ok(Source::Part {
                start: need.from,
                bytes,
            })
        };
        let read = self.env.timeout(DEADLINE, reading).await;
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

    fn cut(&self, source: &Source, at: &Coordinate) -> Result<Bytes, ReadError> {
        let (bytes, trusted) = match source {
            Source::Whole(object) => (object.slice(at.position, at.size), object.is_trusted()),
            Source::Part { start, bytes } => {
                let from = at.position.saturating_sub(*start) as usize;
                let range = bytes.get(from..from.saturating_add(at.size as usize));
                (range.map(|range| bytes.slice_ref(range)), false)
            }
        };
        let intact = |bytes: &Bytes| {
            trusted
                || batch::verify(bytes).is_ok_and(|header| {
                    i64::from(header.last_offset_delta) == at.last_offset.saturating_sub(at.base_offset)
                })
        };
        bytes.filter(intact).ok_or_else(|| {
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
    use blob::{MemoryStore, SharedStore};
    use types::Timestamp;

    use super::*;
    use crate::produce::testing::batch;

    async fn stored(damage: bool) -> (Objects, Vec<(Coordinate, bool)>) {
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
        let cache = Arc::new(ObjectCache::new(store, 1 << 20));
        (
            Objects::new(env, cache),
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
    async fn a_missing_object_is_unavailable() {
        let (objects, mut coordinates) = stored(false).await;
        coordinates[0].0.object = Uuid::from_u128(1);
        let read = objects.read(&coordinates).await;
        assert_eq!(read[0], Err(ReadError::Unavailable));
        assert!(read[1].is_ok());
    }
}
