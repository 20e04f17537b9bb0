use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

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
