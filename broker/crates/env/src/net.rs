//! Sockets: TCP in production, an in-memory pipe in a simulation, behind one type without dynamic dispatch.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::net::{TcpListener, TcpStream, tcp};
use tokio::sync::mpsc;

/// A connection.
#[derive(Debug)]
pub struct Stream {
    kind: Kind,
    peer: String,
}

#[derive(Debug)]
enum Kind {
    Tcp(TcpStream),
    Sim(DuplexStream),
}

/// The reading side of a [`Stream`].
#[derive(Debug)]
pub struct ReadHalf(ReadKind);

#[derive(Debug)]
enum ReadKind {
    Tcp(tcp::OwnedReadHalf),
    Sim(tokio::io::ReadHalf<DuplexStream>),
}

/// The writing side of a [`Stream`]; dropping it closes that direction.
#[derive(Debug)]
pub struct WriteHalf(WriteKind);

#[derive(Debug)]
enum WriteKind {
    Tcp(tcp::OwnedWriteHalf),
    Sim(tokio::io::WriteHalf<DuplexStream>),
}

impl Stream {
    pub(crate) async fn connect(address: &str) -> io::Result<Stream> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Stream {
            kind: Kind::Tcp(stream),
            peer: address.to_owned(),
        })
    }

    pub(crate) fn simulated(pipe: DuplexStream, peer: String) -> Stream {
        Stream {
            kind: Kind::Sim(pipe),
            peer,
        }
    }

    /// Address of the other side, for logs and for the client host that Kafka shows in DescribeGroups.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Two halves that can be used at the same time.
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        match self.kind {
            Kind::Tcp(stream) => {
                let (read, write) = stream.into_split();
                (ReadHalf(ReadKind::Tcp(read)), WriteHalf(WriteKind::Tcp(write)))
            }
            Kind::Sim(stream) => {
                let (read, write) = tokio::io::split(stream);
                (ReadHalf(ReadKind::Sim(read)), WriteHalf(WriteKind::Sim(write)))
            }
        }
    }
}

macro_rules! each {
    ($kind:expr, $enum:ident, $inner:ident => $call:expr) => {
        match $kind {
            $enum::Tcp($inner) => $call,
            $enum::Sim($inner) => $call,
        }
    };
}

impl AsyncRead for ReadHalf {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        each!(&mut self.get_mut().0, ReadKind, s => Pin::new(s).poll_read(cx, buf))
    }
}

impl AsyncWrite for WriteHalf {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        each!(&mut self.get_mut().0, WriteKind, s => Pin::new(s).poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(&mut self.get_mut().0, WriteKind, s => Pin::new(s).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        each!(&self.0, WriteKind, s => s.is_write_vectored())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(&mut self.get_mut().0, WriteKind, s => Pin::new(s).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(&mut self.get_mut().0, WriteKind, s => Pin::new(s).poll_shutdown(cx))
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        each!(&mut self.get_mut().kind, Kind, s => Pin::new(s).poll_read(cx, buf))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        each!(&mut self.get_mut().kind, Kind, s => Pin::new(s).poll_write(cx, buf))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(&mut self.get_mut().kind, Kind, s => Pin::new(s).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(&mut self.get_mut().kind, Kind, s => Pin::new(s).poll_shutdown(cx))
    }
}

/// Accepts connections.
#[derive(Debug)]
pub struct Listener {
    kind: ListenerKind,
    address: String,
}

#[derive(Debug)]
enum ListenerKind {
    Tcp(TcpListener),
    Sim(mpsc::Receiver<Stream>),
}

impl Listener {
    pub(crate) async fn bind(address: &str) -> io::Result<Listener> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?.to_string();
        Ok(Listener {
            kind: ListenerKind::Tcp(listener),
            address,
        })
    }

    pub(crate) fn simulated(incoming: mpsc::Receiver<Stream>, address: String) -> Listener {
        Listener {
            kind: ListenerKind::Sim(incoming),
            address,
        }
    }

    /// The bound `host:port`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The bound port; 0 if the address has none.
    pub fn port(&self) -> u16 {
        self.address
            .rsplit(':')
            .next()
            .and_then(|port| port.parse().ok())
            .unwrap_or(0)
    }

    /// The next connection.
    pub async fn accept(&mut self) -> io::Result<Stream> {
        match &mut self.kind {
            ListenerKind::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(Stream {
                    kind: Kind::Tcp(stream),
                    peer: peer.to_string(),
                })
            }
            ListenerKind::Sim(incoming) => match incoming.recv().await {
                Some(stream) => Ok(stream),
                // The host is gone; its tasks are about to end.
                None => std::future::pending().await,
            },
        }
    }
}
