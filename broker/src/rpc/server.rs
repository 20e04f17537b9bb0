//! The answering side.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Buf, Bytes, BytesMut};
use env::{Env, Listener, Stream};
use kafka_wire::frame::read_frame;
use tokio::sync::{Semaphore, mpsc};

use super::{MAX_FRAME, response_frame, write_queue};

/// Requests of one connection that are worked on at the same time. Long polls of all partitions of a broker share
/// one connection, so this is not small.
const IN_FLIGHT: usize = 4096;

/// What answers internal requests.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// The encoded answer, or `None` for a request that cannot be understood: the connection is closed.
    async fn handle(&self, api_key: i16, body: Bytes) -> Option<Bytes>;
}

/// Accepts connections until the node ends.
pub async fn serve(env: Env, mut listener: Listener, handler: Arc<dyn Handler>) {
    loop {
        match listener.accept().await {
            Ok(stream) => {
                env.spawn(connection(env.clone(), stream, handler.clone()));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept an internal connection");
                env.sleep(std::time::Duration::from_millis(50)).await;
            }
        }
    }
}

async fn connection(env: Env, stream: Stream, handler: Arc<dyn Handler>) {
    let peer = stream.peer().to_owned();
    let (mut reading, mut writing) = stream.into_split();
    let (answers, queue) = mpsc::channel(256);
    let writer = env.spawn(async move { write_queue(queue, &mut writing).await });
    let slots = Arc::new(Semaphore::new(IN_FLIGHT));
    let mut buffer = BytesMut::new();
    while let Ok(Some(frame)) = read_frame(&mut reading, &mut buffer, MAX_FRAME).await {
        let Some((api_key, correlation_id, body)) = split_request(frame) else {
            tracing::warn!(%peer, "not an internal request: connection closed");
            break;
        };
        let Ok(slot) = slots.clone().acquire_owned().await else {
            break;
        };
        let (handler, answers, peer) = (handler.clone(), answers.clone(), peer.clone());
        env.spawn(async move {
            let _slot = slot;
            match handler.handle(api_key, body).await {
                Some(body) => {
                    // The peer may be gone.
                    let _ = answers.send(response_frame(correlation_id, body)).await;
                }
                None => tracing::warn!(%peer, api_key, "unreadable internal request dropped"),
            }
        });
        if writer.is_finished() {
            break;
        }
    }
}

fn split_request(mut frame: Bytes) -> Option<(i16, i32, Bytes)> {
    if frame.len() < 11 {
        return None;
    }
    let api_key = frame.get_i16();
    let version = frame.get_i16();
    let correlation_id = frame.get_i32();
    let client_id = frame.get_i16();
    let tags = frame.get_u8();
    (version == 0 && client_id == -1 && tags == 0).then_some((api_key, correlation_id, frame))
}
