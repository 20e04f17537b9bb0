//! Answering the other brokers of the zone ([`super::neighbours`]).

use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{BufMut, Bytes, BytesMut};
use cache::ObjectCache;
use coordinator::protocol::{ReadObjectRequest, ReadObjectResponse, api_key};
use env::Env;
use kafka_wire::ResponseError;
use kafka_wire::flex::{Encode, put_uvarint};
use kafka_wire::rope::Rope;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use types::FastMap;
use uuid::Uuid;

use super::memory::attach;
use super::plan::is_sparse;
use crate::metrics::Metrics;
use crate::rpc::{Caller, Handler, read_request};

/// Largest object that is read for another broker, bytes. A buffer that grows because uploads are slow stays below.
pub(super) const MAX_OBJECT: u64 = 32 << 20;
/// Most bytes in an answer, and most parts.
pub(super) const MAX_ANSWER: u64 = 16 << 20;
pub(super) const MAX_RANGES: usize = 10_000;

/// Reads objects for the zone: `DisklessReadObject`.
pub struct ObjectServer {
    env: Env,
    cache: Arc<ObjectCache>,
    read_timeout: Duration,
    /// For what answers on their way keep in memory, though the cache may have given it up.
    room: Arc<Semaphore>,
    pinned: Mutex<FastMap<Uuid, Weak<OwnedSemaphorePermit>>>,
    metrics: Arc<Metrics>,
}

impl ObjectServer {
    /// Reads through `cache`; each read takes `read_timeout` at most, and answers on their way `memory` bytes together.
    pub fn new(
        env: Env,
        cache: Arc<ObjectCache>,
        read_timeout: Duration,
        memory: usize,
        metrics: Arc<Metrics>,
    ) -> Arc<ObjectServer> {
        Arc::new(ObjectServer {
            env,
            cache,
            read_timeout,
            room: Arc::new(Semaphore::new(memory)),
            pinned: Mutex::default(),
            metrics,
        })
    }

    /// The wanted parts, shared with the cache unless they are a small part of the object.
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
        let copy = is_sparse(wanted, object.size());
        let pin = match copy {
            true => self.take(wanted),
            false => self.pin(request.object, object.size()),
        };
        let pin = pin.ok_or(ResponseError::ThrottlingQuotaExceeded)?;
        // Held until all parts are written, or dropped with their connection.
        let held = Arc::new((unwritten, pin));
        let mut parts = Vec::new();
        for range in &request.ranges {
            let slices = object
                .slices(range.position, range.size)
                .ok_or(ResponseError::InvalidRequest)?;
            parts.extend(slices.into_iter().map(|bytes| {
                let bytes = if copy {
                    Bytes::copy_from_slice(&bytes)
                } else {
                    bytes
                };
                attach(bytes, held.clone())
            }));
        }
        Ok(parts)
    }

    fn take(&self, bytes: u64) -> Option<Arc<OwnedSemaphorePermit>> {
        let permit = self
            .room
            .clone()
            .try_acquire_many_owned(u32::try_from(bytes).ok()?);
        permit.ok().map(Arc::new)
    }

    /// Counts an object once however many answers hold it. A part keeps all of it in memory.
    fn pin(&self, object: Uuid, size: u64) -> Option<Arc<OwnedSemaphorePermit>> {
        let mut pinned = self.pinned.lock();
        if let Some(pin) = pinned.get(&object).and_then(Weak::upgrade) {
            return Some(pin);
        }
        let pin = self.take(size)?;
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
    async fn handle(&self, api_key: i16, body: Bytes, caller: &Caller) -> Result<Rope, ResponseError> {
        if api_key != api_key::READ_OBJECT {
            return Err(ResponseError::UnsupportedVersion);
        }
        let request: ReadObjectRequest = read_request(body)?;
        Ok(match self.read(&request, caller).await {
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
