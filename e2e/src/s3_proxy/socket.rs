//! A connection that can end with a reset instead of an orderly close.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Says how the connection of a [`Socket`] ends.
#[derive(Clone)]
pub(super) struct Resets(Arc<AtomicBool>);

impl Resets {
    /// It ends with a reset.
    pub(super) fn reset(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A TCP connection.
pub(super) struct Socket {
    stream: TcpStream,
    resets: Resets,
}

impl Socket {
    pub(super) fn new(stream: TcpStream) -> (Socket, Resets) {
        let resets = Resets(Arc::default());
        let socket = Socket {
            stream,
            resets: resets.clone(),
        };
        (socket, resets)
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.resets.0.load(Ordering::Relaxed) {
            // An orderly end now would make the reset one of a connection that has ended.
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.resets.0.load(Ordering::Relaxed) {
            let _ = self.stream.set_zero_linger();
        }
    }
}
