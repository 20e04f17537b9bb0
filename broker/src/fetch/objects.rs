//! The bytes of batches, by their coordinates.
//!
//! What has been read of an object is cut up as soon as it is there. If little of it is wanted, or nobody has room for all of it,
//! that is copied and the rest dropped: an answer may take minutes to be written, and batches of a few KiB lie in objects of
//! several MiB.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use blob::BlobError;
use bytes::Bytes;
use cache::{Object, ObjectCache, Part};
use coordinator::protocol::Coordinate;
use env::{Env, Instant};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use kafka_wire::{ResponseError, batch};
use types::{FastMap, FastSet, Timestamp};
use uuid::Uuid;

use super::neighbours::{Answer, Neighbours, Parts};
use super::plan::{Spans, Way, is_sparse};

/// Data younger than this is read through the cache: others are about to read it, too.
const RECENT: Duration = Duration::from_secs(60);
/// A fetch that has something waits no longer than this for the rest: clients give up after half a minute…
const PATIENCE: Duration = Duration::from_secs(3);
/// …but one in so many waits as long as for the only one, so that a batch that always takes longer comes in the end, too.
const PATIENT: u64 = 8;

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

/// What is read in one go.
struct Need<'a> {
    object: Uuid,
    size: u64,
    /// With their places in the answer.
    wanted: Vec<(usize, &'a Coordinate)>,
    whole: bool,
}

impl<'a> Need<'a> {
    /// From the first wanted byte to the last.
    fn span(&self) -> (u32, u64) {
        let ends = |at: &Coordinate| u64::from(at.position) + u64::from(at.size);
        let from = self.wanted.iter().map(|(_, at)| at.position).min();
        let to = self.wanted.iter().map(|(_, at)| ends(at)).max();
        (from.unwrap_or(0), to.unwrap_or(0))
    }

    /// One for each part of the object that is read for itself.
    fn split(self) -> Vec<Need<'a>> {
        if self.whole {
            return vec![self];
        }
        let mut spans = Spans::default();
        self.wanted.iter().for_each(|(_, at)| spans.add(at));
        let of = |span: &std::ops::Range<u64>| {
            let here = |(_, at): &&(usize, &Coordinate)| span.contains(&u64::from(at.position));
            self.only(self.wanted.iter().filter(here).copied().collect())
        };
        spans.iter().map(of).collect()
    }

    fn only(&self, wanted: Vec<(usize, &'a Coordinate)>) -> Need<'a> {
        Need { wanted, ..*self }
    }
}

enum Source<'a> {
    Whole(Arc<Object>),
    Part {
        start: u32,
        part: Part<'a>,
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
    /// Reads through `cache`, and from `neighbours` what they read for this zone, for `read_timeout` at most.
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

    /// Since when data is read through the cache.
    pub(super) fn recent(&self) -> Timestamp {
        self.env.now().plus(-(RECENT.as_millis() as i64))
    }

    /// How a batch would be read now.
    pub(super) fn way(&self, at: &Coordinate, tail: bool, recent: Timestamp) -> Way {
        if self.cache.is_at_hand(at.object) {
            Way::AtHand
        } else if tail || at.max_timestamp >= recent {
            Way::Whole
        } else {
            Way::Ranges
        }
    }

    /// The batches at `coordinates`, in their order, each for itself. `tail`: they were just pushed here, so other consumers are
    /// about to read their objects, too.
    pub async fn read(&self, coordinates: &[(Coordinate, bool)]) -> Vec<Result<Bytes, ReadError>> {
        let none = FastSet::default();
        let read = self.read_some(coordinates, &none, 0, self.env.instant()).await;
        let read = read.into_iter();
        read.map(|read| read.unwrap_or(Err(ReadError::Unavailable)))
            .collect()
    }

    /// The same, but in slices of the objects in `sliced`, and when one of the `firsts` is there, the others may be missing if they take long. The objects are read in
    /// the order of `coordinates`; the time limit counts from `begun`.
    pub(super) async fn read_some(
        &self,
        coordinates: &[(Coordinate, bool)],
        sliced: &FastSet<Uuid>,
        firsts: usize,
        begun: Instant,
    ) -> Vec<Option<Result<Bytes, ReadError>>> {
        let deadline = begun + self.read_timeout;
        let patience = match self.env.random_below(PATIENT) {
            0 => deadline,
            _ => deadline.min(self.env.instant() + PATIENCE),
        };
        let mut found: Vec<Option<Result<Bytes, ReadError>>> = vec![None; coordinates.len()];
        let needs = self.needs(coordinates).into_iter();
        let mut reads: FuturesUnordered<_> = needs.map(|need| self.batches(need, sliced, deadline)).collect();
        let mut late = pin!(self.env.sleep_until(patience));
        let mut is_late = false;
        loop {
            let something = || found.iter().take(firsts).flatten().any(Result::is_ok);
            if is_late && something() {
                return found;
            }
            tokio::select! {
                biased;
                read = reads.next() => {
                    let Some(read) = read else { return found };
                    for (place, bytes) in read {
                        if let Some(place) = found.get_mut(place) {
                            *place = Some(bytes);
                        }
                    }
                }
                () = &mut late, if !is_late => is_late = true,
            }
        }
    }

    /// What has to be read, what is wanted first first.
    fn needs<'a>(&self, coordinates: &'a [(Coordinate, bool)]) -> Vec<Need<'a>> {
        let recent = self.recent();
        let mut needs: Vec<Need<'a>> = Vec::new();
        let mut places: FastMap<Uuid, usize> = FastMap::default();
        for (index, (at, tail)) in coordinates.iter().enumerate() {
            let object = match (env::mutation("wrong-object"), coordinates.first()) {
                (true, Some((first, _))) => first.object,
                _ => at.object,
            };
            let place = *places.entry(object).or_insert(needs.len());
            if place == needs.len() {
                needs.push(Need {
                    object,
                    size: at.object_size,
                    wanted: Vec::new(),
                    whole: false,
                });
            }
            if let Some(need) = needs.get_mut(place) {
                need.wanted.push((index, at));
                need.whole |= *tail || at.max_timestamp >= recent;
            }
        }
        needs.into_iter().flat_map(Need::split).collect()
    }

    /// The batches with their places.
    async fn batches(
        &self,
        need: Need<'_>,
        sliced: &FastSet<Uuid>,
        deadline: Instant,
    ) -> Vec<(usize, Result<Bytes, ReadError>)> {
        let mut read = self.once(&need, sliced, deadline).await;
        // They may have been damaged on their way: the store is asked for them once more.
        let corrupt = need.wanted.iter().copied().zip(&mut read);
        let (again, places): (Vec<_>, Vec<_>) = corrupt
            .filter(|(_, bytes)| matches!(bytes, Err(ReadError::Corrupt)))
            .unzip();
        if !again.is_empty() {
            let second = self.once(&need.only(again), sliced, deadline).await;
            for (place, bytes) in places.into_iter().zip(second) {
                *place = bytes;
            }
        }
        need.wanted.iter().map(|(index, _)| *index).zip(read).collect()
    }

    async fn once(
        &self,
        need: &Need<'_>,
        sliced: &FastSet<Uuid>,
        deadline: Instant,
    ) -> Vec<Result<Bytes, ReadError>> {
        match self.source(need, deadline).await {
            Ok(source) => {
                let wanted = need.wanted.iter().map(|(_, at)| u64::from(at.size)).sum();
                let copy = match &source {
                    Source::Whole(_) => !sliced.contains(&need.object),
                    Source::Part { part, .. } => is_sparse(wanted, part.bytes.len() as u64),
                    // Nothing was sent but what is wanted.
                    Source::Neighbour(_) => false,
                };
                let cut = |(_, at): &(usize, &Coordinate)| self.cut(&source, at, copy);
                need.wanted.iter().map(cut).collect()
            }
            Err(error) => vec![Err(error); need.wanted.len()],
        }
    }

    async fn source(&self, need: &Need<'_>, deadline: Instant) -> Result<Source<'_>, ReadError> {
        if let Some(found) = self.cache.cached(need.object) {
            return Ok(Source::Whole(found));
        }
        let key = wal::object_key(need.object);
        let reading = async {
            if need.whole {
                return self.hot(&key, need).await;
            }
            let (start, end) = need.span();
            let part = self.cache.read(&key, u64::from(start)..end).await?;
            Ok(Source::Part { start, part })
        };
        let read = self.env.timeout_at(deadline, reading).await;
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
    async fn hot(&self, key: &str, need: &Need<'_>) -> Result<Source<'_>, BlobError> {
        let object = need.object;
        let question = self.neighbours.as_ref().and_then(|neighbours| {
            let wanted: Vec<_> = need.wanted.iter().map(|(_, at)| *at).collect();
            Some((neighbours, neighbours.question(object, need.size, &wanted)?))
        });
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

    fn cut(&self, source: &Source<'_>, at: &Coordinate, copy: bool) -> Result<Bytes, ReadError> {
        let (bytes, trusted) = match source {
            Source::Whole(object) => (object.slice(at.position, at.size), object.is_trusted()),
            Source::Part { start, part } => {
                let from = at.position.saturating_sub(*start) as usize;
                let range = part.bytes.get(from..from.saturating_add(at.size as usize));
                (range.map(|range| part.bytes.slice_ref(range)), false)
            }
            Source::Neighbour(parts) => (parts.get(&(at.position, at.size)).cloned(), true),
        };
        match bytes.filter(|bytes| trusted || intact(at, bytes)) {
            Some(bytes) if copy => Ok(Bytes::copy_from_slice(&bytes)),
            Some(bytes) => Ok(bytes),
            None => {
                let key = wal::object_key(at.object);
                tracing::error!(
                    key,
                    position = at.position,
                    size = at.size,
                    "a batch in a wal object is corrupt"
                );
                self.cache.forget(at.object);
                Err(ReadError::Corrupt)
            }
        }
    }
}

#[cfg(test)]
mod tests;
