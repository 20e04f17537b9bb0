//! Answering the other brokers of the zone ([`super::neighbours`]).

use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{BufMut, Bytes, BytesMut};
use cache::ObjectCache;
use coordinator::protocol::{ReadObjectRequest, ReadObjectResponse, api_key};
use env::Env;
use kafka_wire::ResponseError;
use kafka_wire::flex::{Decode, Encode, put_uvarint};
use kafka_wire::rope::Rope;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use types::FastMap;
use uuid::Uuid;

use crate::metrics::Metrics;
use crate::rpc::{Caller, Handler};

/// Largest object that is read for another broker, bytes. A buffer that grows because uploads are slow stays below.
pub(super) const MAX_OBJECT: u64 = 32 << 20;
/// Most bytes in an answer, and most parts.
pub(super) const MAX_ANSWER: u64 = 16 << 20;
pub(super) const MAX_RANGES: usize = 10_000;
/// Objects that answers on their way keep in memory, though the cache may have given them up, in bytes.
const PINNED: usize = 64 << 20;

/// Reads objects for the zone: `DisklessReadObject`.
pub struct ObjectServer {
    env: Env,
    cache: Arc<ObjectCache>,
    read_timeout: Duration,
    room: Arc<Semaphore>,
    pinned: Mutex<FastMap<Uuid, Weak<OwnedSemaphorePermit>>>,
    metrics: Arc<Metrics>,
}

/// A part of an answer. It holds its room until it is written, or dropped with its connection.
struct Slice {
    bytes: Bytes,
    _held: Arc<(OwnedSemaphorePermit, Arc<OwnedSemaphorePermit>)>,
}

impl AsRef<[u8]> for Slice {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl ObjectServer {
    /// Reads through `cache`; each read takes `read_timeout` at most.
    pub fn new(
        env: Env,
        cache: Arc<ObjectCache>,
        read_timeout: Duration,
        metrics: Arc<Metrics>,
    ) -> Arc<ObjectServer> {
        Arc::new(ObjectServer {
            env,
            cache,
            read_timeout,
            room: Arc::new(Semaphore::new(PINNED)),
            pinned: Mutex::default(),
            metrics,
        })
    }

    /// The wanted parts, shared with the cache.
    async fn read(&self, request: &ReadObjectRequest, caller: &Caller) -> Result<Vec<Bytes>, ResponseError> {
        let wanted: u64 = request.ranges.iter().map(|range| u64::from(range.size)).sum();
        if request.size > MAX_OBJECT || wanted > MAX_ANSWER || request.ranges.len() > MAX_RANGES {
            return Err(ResponseError::InvalidRequest);
        }
        let room = caller.unwritten.clone();
        let unwritten = room
            .try_acquire_many_owned(u32::try_from(wanted).unwrap_or(u32::MAX))
            .map_err(|_| ResponseError::ThrottlingQuotaExceeded)?;
        let key = wal::object_key(request.object);
        let load = self.cache.load(request.object, &key, request.size);
        let loaded = tokio::select! {
            biased;
            // If others wait for it, one of them goes on.
            () = caller.gone.cancelled() => return Err(ResponseError::KafkaStorageError),
            loaded = self.env.timeout(self.read_timeout, load) => loaded,
        };
        let object = match loaded {
            Ok(Ok(object)) => object,
            Ok(Err(error)) => {
                tracing::warn!(%error, key, "a wal object cannot be read for a neighbour");
                return Err(ResponseError::KafkaStorageError);
            }
            Err(_) => return Err(ResponseError::KafkaStorageError),
        };
        let pin = self
            .pin(request.object, object.size())
            .ok_or(ResponseError::ThrottlingQuotaExceeded)?;
        let held = Arc::new((unwritten, pin));
        let mut parts = Vec::new();
        for range in &request.ranges {
            let slices = object
                .slices(range.position, range.size)
                .ok_or(ResponseError::InvalidRequest)?;
            parts.extend(slices.into_iter().map(|bytes| {
                let _held = held.clone();
                Bytes::from_owner(Slice { bytes, _held })
            }));
        }
        Ok(parts)
    }

    /// Counts an object once however many answers hold it. A part keeps all of it in memory.
    fn pin(&self, object: Uuid, size: u64) -> Option<Arc<OwnedSemaphorePermit>> {
        let mut pinned = self.pinned.lock();
        if let Some(pin) = pinned.get(&object).and_then(Weak::upgrade) {
            return Some(pin);
        }
        let size = u32::try_from(size).ok()?;
        let pin = Arc::new(self.room.clone().try_acquire_many_owned(size).ok()?);
        pinned.retain(|_, pin| pin.strong_count() > 0);
        pinned.insert(object, Arc::downgrade(&pin));
        Some(pin)
    }
}

/// [`ReadObjectResponse`] around parts that are not copied.
fn answer(records: Vec<Bytes>) -> Rope {
    let len: usize = records.iter().map(Bytes::len).sum();
    let mut head = BytesMut::with_capacity(8);
    head.put_i16(0);
    // A compact length is one more.
    put_uvarint(&mut head, u32::try_from(len + 1).unwrap_or(u32::MAX));
    let mut rope = Rope::from(head.freeze());
    records.into_iter().for_each(|part| rope.push(part));
    // No tagged fields.
    rope.push(Bytes::from_static(&[0]));
    rope
}

#[async_trait]
impl Handler for ObjectServer {
    async fn handle(&self, api_key: i16, body: Bytes, caller: &Caller) -> Option<Rope> {
        if api_key != api_key::READ_OBJECT {
            return None;
        }
        let request = ReadObjectRequest::from_bytes(body).ok()?;
        Some(match self.read(&request, caller).await {
            Ok(records) => {
                self.metrics.neighbours_served.inc();
                answer(records)
            }
            Err(error) => {
                self.metrics.neighbours_refused.inc();
                let refusal = ReadObjectResponse {
                    error_code: error.code(),
                    records: Bytes::new(),
                };
                refusal.to_bytes().into()
            }
        })
    }
}

#[cfg(test)]
mod tests;
