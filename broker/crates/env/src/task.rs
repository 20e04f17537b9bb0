use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

/// The time given to [`crate::Env::timeout`] ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("timed out")]
pub struct Elapsed;

/// Waits for a task. `None`: the node ended first, or the task was aborted. A panic goes on in who waits.
#[derive(Debug)]
pub struct JoinHandle<T>(tokio::task::JoinHandle<Option<T>>);

impl<T> JoinHandle<T> {
    pub(crate) fn new(inner: tokio::task::JoinHandle<Option<T>>) -> Self {
        Self(inner)
    }

    /// Ends the task at its next await point.
    pub fn abort(&self) {
        self.0.abort();
    }

    /// True once the task has ended.
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        match Pin::new(&mut self.0).poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(value)) => Poll::Ready(value),
            Poll::Ready(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Poll::Ready(Err(_)) => Poll::Ready(None),
        }
    }
}

/// Holds the tasks of a simulated node up while it is closed.
#[derive(Debug, Default)]
pub(crate) struct Gate(Mutex<GateState>);

#[derive(Debug, Default)]
struct GateState {
    closed: bool,
    waiting: Vec<Waker>,
}

impl Gate {
    pub(crate) fn close(&self) {
        self.0.lock().closed = true;
    }

    pub(crate) fn open(&self) {
        let waiting = {
            let mut state = self.0.lock();
            state.closed = false;
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    /// `future`, which is not polled while the gate is closed.
    pub(crate) async fn guard<F: Future>(self: Arc<Gate>, future: F) -> F::Output {
        let mut future = std::pin::pin!(future);
        std::future::poll_fn(|context| {
            let mut state = self.0.lock();
            if state.closed {
                state.waiting.push(context.waker().clone());
                return Poll::Pending;
            }
            drop(state);
            future.as_mut().poll(context)
        })
        .await
    }
}
