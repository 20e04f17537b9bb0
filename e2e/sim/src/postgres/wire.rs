//! The server's side of PostgreSQL's protocol, version 3.0, as far as the engine's driver speaks it: no TLS, no password, statements
//! that are sent at once with all that belongs to them, binary values.
//!
//! <https://www.postgresql.org/docs/current/protocol-message-formats.html>

use std::io;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use env::Stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::tables::{Answer, SqlError, Value};

/// 3.0
const PROTOCOL: u32 = 3 << 16;
const TEXT_FORMAT: i16 = 0;

/// What a client asks.
#[derive(Debug, Default)]
pub(super) struct Request {
    pub(super) statement: String,
    pub(super) params: Vec<Value>,
    /// Parsed, bound and executed, instead of a simple query.
    extended: bool,
}

/// A connection of a client.
pub(super) struct Wire {
    stream: Stream,
    received: BytesMut,
    /// As much of the next request as has come.
    begun: Request,
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

fn text(body: &mut Bytes) -> io::Result<String> {
    let end = body.iter().position(|byte| *byte == 0);
    let text = body.split_to(end.ok_or_else(|| wrong("a text without an end"))?);
    body.advance(1);
    String::from_utf8(text.to_vec()).map_err(|_| wrong("a text that is not UTF-8"))
}

fn message(out: &mut BytesMut, tag: u8, body: impl FnOnce(&mut BytesMut)) {
    out.put_u8(tag);
    let at = out.len();
    out.put_u32(0);
    body(out);
    let length = (out.len() - at) as u32;
    out[at..at + 4].copy_from_slice(&length.to_be_bytes());
}

fn put_text(out: &mut BytesMut, text: &str) {
    out.put_slice(text.as_bytes());
    out.put_u8(0);
}

/// ReadyForQuery, outside of a transaction.
fn ready(out: &mut BytesMut) {
    message(out, b'Z', |out| out.put_u8(b'I'));
}

impl Wire {
    /// Lets a client in.
    pub(super) async fn accept(stream: Stream) -> io::Result<Wire> {
        let mut wire = Wire {
            stream,
            received: BytesMut::new(),
            begun: Request::default(),
        };
        let length = wire.stream.read_u32().await?;
        let mut startup = vec![0; (length as usize).saturating_sub(4)];
        wire.stream.read_exact(&mut startup).await?;
        if !startup.starts_with(&PROTOCOL.to_be_bytes()) {
            return Err(wrong("another protocol"));
        }
        let mut out = BytesMut::new();
        // AuthenticationOk
        message(&mut out, b'R', |out| out.put_u32(0));
        ready(&mut out);
        wire.stream.write_all(&out).await?;
        Ok(wire)
    }

    /// The next request; `None`: the client has said good-bye, or hung up. May be dropped and called again.
    pub(super) async fn request(&mut self) -> io::Result<Option<Request>> {
        loop {
            while let Some((tag, mut body)) = self.message() {
                match tag {
                    // Query
                    b'Q' => {
                        let statement = text(&mut body)?;
                        return Ok(Some(Request {
                            statement,
                            ..Request::default()
                        }));
                    }
                    // Parse: name, statement, types
                    b'P' => {
                        text(&mut body)?;
                        self.begun.statement = text(&mut body)?;
                    }
                    // Bind
                    b'B' => self.begun.params = bound(body)?,
                    // Describe, Execute: nobody does the one without the other.
                    b'D' | b'E' => {}
                    // Sync
                    b'S' => {
                        self.begun.extended = true;
                        return Ok(Some(std::mem::take(&mut self.begun)));
                    }
                    // Terminate
                    b'X' => return Ok(None),
                    tag => return Err(wrong(&format!("message {:?}", char::from(tag)))),
                }
            }
            if self.stream.read_buf(&mut self.received).await? == 0 {
                return Ok(None);
            }
        }
    }

    fn message(&mut self) -> Option<(u8, Bytes)> {
        let mut header = self.received.get(..5)?;
        let (tag, length) = (header.get_u8(), header.get_u32() as usize);
        if self.received.len() < 1 + length {
            return None;
        }
        let mut message = self.received.split_to(1 + length).freeze();
        message.advance(5);
        Some((tag, message))
    }

    /// Answers a request.
    pub(super) async fn answer(
        &mut self,
        request: &Request,
        answer: Result<Answer, SqlError>,
    ) -> io::Result<()> {
        let mut out = BytesMut::new();
        match answer {
            Ok(answer) => put_answer(&mut out, request, answer),
            Err(error) => message(&mut out, b'E', |out| {
                for (field, value) in [
                    (b'S', "ERROR"),
                    (b'V', "ERROR"),
                    (b'C', error.code),
                    (b'M', &error.message),
                ] {
                    out.put_u8(field);
                    put_text(out, value);
                }
                out.put_u8(0);
            }),
        }
        ready(&mut out);
        self.stream.write_all(&out).await
    }

    /// NotificationResponse
    pub(super) async fn notify(&mut self, channel: &str, payload: &str) -> io::Result<()> {
        let mut out = BytesMut::new();
        message(&mut out, b'A', |out| {
            out.put_u32(0);
            put_text(out, channel);
            put_text(out, payload);
        });
        self.stream.write_all(&out).await
    }
}

/// The parameters of a Bind message.
fn bound(mut body: Bytes) -> io::Result<Vec<Value>> {
    let short = |_| wrong("a Bind that ends too early");
    text(&mut body)?;
    text(&mut body)?;
    for _ in 0..body.try_get_u16().map_err(short)? {
        if body.try_get_i16().map_err(short)? == TEXT_FORMAT {
            return Err(wrong("a parameter that is not binary"));
        }
    }
    let mut params = Vec::new();
    for _ in 0..body.try_get_u16().map_err(short)? {
        let length = usize::try_from(body.try_get_i32().map_err(short)?);
        params.push(match length {
            Err(_) => None,
            Ok(length) if length > body.len() => return Err(wrong("a Bind that ends too early")),
            Ok(length) => Some(body.split_to(length)),
        });
    }
    Ok(params)
}

fn put_answer(out: &mut BytesMut, request: &Request, answer: Answer) {
    if request.extended {
        // ParseComplete, BindComplete, ParameterDescription, which nobody reads.
        message(out, b'1', |_| {});
        message(out, b'2', |_| {});
        message(out, b't', |out| out.put_u16(0));
    }
    match answer.columns.is_empty() {
        // NoData
        true if request.extended => message(out, b'n', |_| {}),
        true => {}
        // RowDescription: name, table, column, type, its size and modifier, format
        false => message(out, b'T', |out| {
            out.put_u16(answer.columns.len() as u16);
            for oid in &answer.columns {
                put_text(out, "?column?");
                out.put_u32(0);
                out.put_u16(0);
                out.put_u32(*oid);
                out.put_i16(-1);
                out.put_i32(-1);
                out.put_i16(TEXT_FORMAT);
            }
        }),
    }
    for row in &answer.rows {
        // DataRow
        message(out, b'D', |out| {
            out.put_u16(row.len() as u16);
            for value in row {
                match value {
                    None => out.put_i32(-1),
                    Some(value) => {
                        out.put_u32(value.len() as u32);
                        out.put_slice(value);
                    }
                }
            }
        });
    }
    // CommandComplete
    message(out, b'C', |out| {
        put_text(out, &format!("SELECT {}", answer.rows.len()))
    });
}
