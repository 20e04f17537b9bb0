//! What clients and the store see of each fault.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use super::{Fault, Proxy, Rule, Verb};

const ANSWER: usize = 100_000;
const SENT: usize = 50_000;
/// What must not come has this long to come.
const SOON: Duration = Duration::from_millis(1_500);
/// What must come may take this long.
const LATE: Duration = Duration::from_secs(30);

/// A store that answers everything with so many bytes; says how much of each body has come.
fn store() -> (String, Receiver<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address").to_string();
    let (tell, told) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let tell = tell.clone();
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream);
                while let Some(length) = read_head(&mut reader) {
                    let mut body = Vec::new();
                    let _ = reader.by_ref().take(length).read_to_end(&mut body);
                    let _ = tell.send(body.len());
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {ANSWER}\r\n\r\n");
                    let _ = reader.get_mut().write_all(head.as_bytes());
                    let _ = reader.get_mut().write_all(&vec![b'x'; ANSWER]);
                }
            });
        }
    });
    (address, told)
}

/// Reads a head; gives the announced length of the body.
fn read_head(reader: &mut impl BufRead) -> Option<u64> {
    let mut length = None;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end().to_lowercase();
        if line.is_empty() {
            return Some(length.unwrap_or(0));
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().ok();
        }
    }
}

/// What a client gets of an answer.
#[derive(Debug, PartialEq)]
enum Seen {
    /// Status and how many bytes of the body came.
    Answer(u16, usize),
    Reset,
    Nothing,
}

/// A PUT through the proxy, whose answer may take so long.
fn put(proxy: &Proxy, patience: Duration) -> Seen {
    let mut stream = TcpStream::connect(("127.0.0.1", proxy.port())).expect("the proxy accepts");
    stream.set_read_timeout(Some(patience)).expect("a time limit");
    let head = format!(
        "PUT /b/wal/1 HTTP/1.1\r\nHost: store\r\nContent-Length: {SENT}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).expect("sent");
    stream.write_all(&vec![b'y'; SENT]).expect("sent");
    let mut answer = Vec::new();
    let error = stream.read_to_end(&mut answer).err();
    if answer.is_empty() {
        let nothing = error.is_some_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
        return if nothing { Seen::Nothing } else { Seen::Reset };
    }
    let end = answer
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .expect("a head");
    let head = String::from_utf8_lossy(&answer[..end]);
    let status = head
        .split(' ')
        .nth(1)
        .expect("a status")
        .parse()
        .expect("a number");
    Seen::Answer(status, answer.len() - end - 4)
}

/// What a client sees, how much the store gets of the body (`effect` tells whether it should get any), and the number of faults.
fn with(fault: Fault, effect: bool) -> (Seen, Option<usize>, u64) {
    let silent = matches!(fault, Fault::Silence { .. });
    let (address, stored) = store();
    let proxy = Proxy::start("127.0.0.1", &address, None, 1).expect("a proxy");
    proxy.set_rules(vec![Rule::new(fault).on(Verb::Put, "/wal/")]);
    let seen = put(&proxy, if silent { SOON } else { LATE });
    let stored = stored.recv_timeout(if effect { LATE } else { SOON }).ok();
    (seen, stored, proxy.counts().faults())
}

#[test]
fn without_rules_everything_passes() {
    let (address, stored) = store();
    let proxy = Proxy::start("127.0.0.1", &address, None, 1).expect("a proxy");
    assert_eq!(put(&proxy, LATE), Seen::Answer(200, ANSWER));
    assert_eq!(stored.recv_timeout(LATE), Ok(SENT));
    assert_eq!((proxy.counts().of(Verb::Put), proxy.counts().faults()), (1, 0));
}

#[test]
fn errors_come_before_or_after_the_effect() {
    for (after, effect) in [(false, None), (true, Some(SENT))] {
        let (seen, stored, faults) = with(Fault::Status { code: 503, after }, after);
        assert!(matches!(seen, Seen::Answer(503, _)), "{seen:?}");
        assert_eq!((stored, faults), (effect, 1));
    }
}

#[test]
fn resets_come_before_or_after_the_effect() {
    for (after, effect) in [(false, None), (true, Some(SENT))] {
        assert_eq!(with(Fault::Reset { after }, after), (Seen::Reset, effect, 1));
    }
}

#[test]
fn silence_comes_before_or_after_the_effect() {
    for (after, effect) in [(false, None), (true, Some(SENT))] {
        assert_eq!(with(Fault::Silence { after }, after), (Seen::Nothing, effect, 1));
    }
}

#[test]
fn bodies_are_cut_in_both_directions() {
    assert_eq!(
        with(Fault::TruncateRequest, true),
        (Seen::Reset, Some(SENT / 2), 1)
    );
    let (seen, stored, _) = with(Fault::TruncateResponse, true);
    assert!(
        matches!(seen, Seen::Answer(200, part) if 0 < part && part < ANSWER),
        "{seen:?}"
    );
    assert_eq!(stored, Some(SENT));
}
