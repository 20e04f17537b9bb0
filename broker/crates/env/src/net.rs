//! Sockets: TCP in production, an in-memory pipe in a simulation, behind one type without dynamic dispatch.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::net::{TcpListener, TcpStream, tcp};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// A connection whose other side is gone without a word ends after about a minute, however little is said on it.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(30))
    .with_interval(Duration::from_secs(10))
    .with_retries(3);

/// A connection.
#[derive(Debug)]
pub struct Stream {
    kind: Kind,
    peer: String,
}

#[derive(Debug)]
enum Kind {
    Tcp(TcpStream),
    /// The token discards what is on its way from here.
    Sim(DuplexStream, CancellationToken),
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
    Sim(tokio::io::WriteHalf<DuplexStream>, CancellationToken),
}

impl Stream {
    pub(crate) async fn connect(address: &str) -> io::Result<Stream> {
        Stream::of(TcpStream::connect(address).await?, address.to_owned())
    }

    fn of(stream: TcpStream, peer: String) -> io::Result<Stream> {
        stream.set_nodelay(true)?;
        SockRef::from(&stream).set_tcp_keepalive(&KEEPALIVE)?;
        let kind = Kind::Tcp(stream);
        Ok(Stream { kind, peer })
    }

    /// Has the connection end when the other side's machine does not confirm for `limit` that it has received what was
    /// sent, or, when nothing is sent, that it is there. Without this the kernel goes on for a quarter of an hour. A peer
    /// that is there and reads nothing for so long counts as gone, too. Does nothing in a simulation.
    pub fn limit_silence(&self, limit: Duration) -> io::Result<()> {
        let Kind::Tcp(stream) = &self.kind else {
            return Ok(());
        };
        let socket = SockRef::from(stream);
        // The kernel counts whole seconds; the user timeout stands above the number of probes.
        let keepalive = TcpKeepalive::new()
            .with_time(limit / 2)
            .with_interval((limit / 5).max(Duration::from_secs(1)));
        socket.set_tcp_keepalive(&keepalive)?;
        #[cfg(target_os = "linux")]
        socket.set_tcp_user_timeout(Some(limit))?;
        Ok(())
    }

    pub(crate) fn simulated(pipe: DuplexStream, peer: String, discard: CancellationToken) -> Stream {
        Stream {
            kind: Kind::Sim(pipe, discard),
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
            Kind::Sim(stream, discard) => {
                let (read, write) = tokio::io::split(stream);
                (
                    ReadHalf(ReadKind::Sim(read)),
                    WriteHalf(WriteKind::Sim(write, discard)),
                )
            }
        }
    }
}

macro_rules! each {
    ($kind:expr, $enum:ident, $inner:ident => $call:expr) => {
        match $kind {
            $enum::Tcp($inner) => $call,
            $enum::Sim($inner, ..) => $call,
        }
    };
}

impl WriteHalf {
    /// Ends the connection once the other half is dropped, too, and discards what the other side has not confirmed: what was sent
    /// is there by then, or never comes. Otherwise the kernel goes on trying to deliver it.
    pub fn abort(self) {
        match self.0 {
            WriteKind::Tcp(stream) => {
                // An error: the connection has ended already.
                let _ = SockRef::from(stream.as_ref()).set_linger(Some(Duration::ZERO));
            }
            WriteKind::Sim(_, discard) => discard.cancel(),
        }
    }
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
                Stream::of(stream, peer.to_string())
            }
            ListenerKind::Sim(incoming) => match incoming.recv().await {
                Some(stream) => Ok(stream),
                // The host is gone; its tasks are about to end.
                None => std::future::pending().await,
            },
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn socket(stream: &Stream) -> SockRef<'_> {
        match &stream.kind {
            Kind::Tcp(stream) => SockRef::from(stream),
            Kind::Sim(..) => unreachable!(),
        }
    }

    /// A machine that vanishes cannot be had in a test: what the kernel was told is looked at.
    #[tokio::test]
    async fn the_kernel_knows_when_to_give_a_silent_peer_up() {
        let mut listener = Listener::bind("127.0.0.1:0").await.unwrap();
        let near = Stream::connect(&listener.address).await.unwrap();
        let far = listener.accept().await.unwrap();
        for stream in [&near, &far] {
            let socket = socket(stream);
            assert!(socket.keepalive().unwrap());
            let patience = socket.tcp_keepalive_time().unwrap()
                + socket.tcp_keepalive_interval().unwrap() * socket.tcp_keepalive_retries().unwrap();
            assert_eq!(patience, Duration::from_secs(60));
            assert_eq!(socket.tcp_user_timeout().unwrap(), None);
            let limit = Duration::from_secs(10);
            stream.limit_silence(limit).unwrap();
            assert_eq!(socket.tcp_user_timeout().unwrap(), Some(limit));
            // The probes begin early enough for the limit to be met.
            let first = socket.tcp_keepalive_time().unwrap();
            assert!(
                first + socket.tcp_keepalive_interval().unwrap() < limit,
                "{first:?}"
            );
        }
    }

    #[tokio::test]
    async fn what_is_not_confirmed_when_a_connection_is_aborted_is_never_sent() {
        let mut listener = Listener::bind("127.0.0.1:0").await.unwrap();
        let near = Stream::connect(&listener.address).await.unwrap();
        let (mut far, _held) = listener.accept().await.unwrap().into_split();
        let (reading, mut writing) = near.into_split();
        // More than the kernels take while nobody reads.
        let sent = async { while writing.write_all(&[0; 1 << 20]).await.is_ok() {} };
        let full = tokio::time::timeout(Duration::from_millis(500), sent).await;
        assert!(full.is_err());
        writing.abort();
        drop(reading);
        let error = far.read_to_end(&mut Vec::new()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
}
