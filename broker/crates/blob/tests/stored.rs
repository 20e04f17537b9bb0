//! A write counts only if what was stored is what was sent, whatever the store says.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests"
)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use blob::{BlobError, PutOutcome, SharedStore};
use bytes::Bytes;
use env::Env;
use parking_lot::Mutex;

/// What the store does with a put.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Put {
    /// Stores it, and repeats its checksum.
    Checks,
    /// Stores it, and knows no checksums.
    Plain,
    /// Stores half of it and says that all is well.
    Half,
    /// Stores something else, and says so by its checksum.
    Other,
    /// Stores nothing and says that all is well.
    Nothing,
}

/// As much of S3 as a put needs; `puts` says what becomes of each, the last one of all that follow.
struct Store {
    puts: Vec<Put>,
    seen: usize,
    objects: BTreeMap<String, Vec<u8>>,
    heads: usize,
}

fn start(puts: &[Put]) -> (String, Arc<Mutex<Store>>) {
    let store = Arc::new(Mutex::new(Store {
        puts: puts.to_vec(),
        seen: 0,
        objects: BTreeMap::new(),
        heads: 0,
    }));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!(
        "s3://b?region=us-east-1&path_style=true&endpoint=http://{}",
        listener.local_addr().unwrap()
    );
    let shared = store.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, shared) = (stream.unwrap(), shared.clone());
            std::thread::spawn(move || while answer(&stream, &shared).is_some() {});
        }
    });
    (url, store)
}

/// Answers one request; `None` when the connection has ended.
fn answer(mut stream: &TcpStream, store: &Mutex<Store>) -> Option<()> {
    let mut reader = BufReader::with_capacity(1, stream);
    let mut first = String::new();
    reader.read_line(&mut first).ok().filter(|read| *read > 0)?;
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim().split_once(": ") else {
            break;
        };
        headers.insert(name.to_lowercase(), value.to_owned());
    }
    let length = headers
        .get("content-length")
        .map_or(0, |text| text.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let (method, rest) = first.split_once(' ')?;
    let key = rest.split(['?', ' ']).next()?.to_owned();
    let mut store = store.lock();
    let reply = match method {
        "PUT" => {
            let put = store.puts[store.seen.min(store.puts.len() - 1)];
            store.seen += 1;
            let checksum = match put {
                Put::Checks => headers["x-amz-checksum-crc32c"].clone(),
                Put::Other => "AAAAAA==".to_owned(),
                Put::Plain | Put::Half | Put::Nothing => String::new(),
            };
            match put {
                Put::Half => body.truncate(length / 2),
                Put::Other => body[0] ^= 1,
                Put::Checks | Put::Plain | Put::Nothing => {}
            }
            if put != Put::Nothing {
                store.objects.insert(key, body);
            }
            let header = if checksum.is_empty() {
                checksum
            } else {
                format!("x-amz-checksum-crc32c: {checksum}\r\n")
            };
            format!("HTTP/1.1 200 OK\r\n{header}ETag: \"e\"\r\nContent-Length: 0\r\n\r\n")
        }
        "HEAD" => {
            store.heads += 1;
            match store.objects.get(&key) {
                Some(object) => format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", object.len()),
                None => "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_owned(),
            }
        }
        other => panic!("unexpected {other}"),
    };
    stream.write_all(reply.as_bytes()).ok()
}

async fn open(url: &str) -> SharedStore {
    let credentials = tempfile::tempdir().unwrap();
    for file in ["access_key_id", "secret_access_key"] {
        std::fs::write(credentials.path().join(file), "x").unwrap();
    }
    let env = Env::production();
    let opened = blob::open(url, Some(credentials.path()), env).await.unwrap();
    // The files are read again only after a second; no request of these tests comes so late.
    std::mem::forget(credentials);
    opened.store
}

fn body() -> Vec<Bytes> {
    vec![Bytes::from_static(b"some"), Bytes::from_static(b"thing")]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_is_repeated_until_what_is_stored_is_what_was_sent() {
    for wrong in [Put::Half, Put::Other, Put::Nothing] {
        for right in [Put::Checks, Put::Plain] {
            let (url, stored) = start(&[wrong, wrong, right]);
            open(&url).await.put("k", body()).await.unwrap();
            assert_eq!(stored.lock().objects["/b/k"], b"something");
            assert_eq!(stored.lock().seen, 3, "{wrong:?}, then {right:?}");

            // Each try sends all of the file.
            let (url, stored) = start(&[wrong, wrong, right]);
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), b"some file").unwrap();
            open(&url).await.put_file("k", file.path()).await.unwrap();
            assert_eq!(stored.lock().objects["/b/k"], b"some file");
            assert_eq!(stored.lock().seen, 3, "{wrong:?}, then {right:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_repeats_the_checksum_is_not_asked_again() {
    let (url, stored) = start(&[Put::Checks]);
    let store = open(&url).await;
    store.put("k", body()).await.unwrap();
    assert_eq!(store.put_if_absent("n", body()).await, Ok(PutOutcome::Created));
    assert_eq!(stored.lock().heads, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_create_whose_bytes_are_not_there_is_not_called_created() {
    for wrong in [Put::Half, Put::Other, Put::Nothing] {
        let (url, stored) = start(&[wrong]);
        let error = open(&url).await.put_if_absent("k", body()).await.unwrap_err();
        assert!(error.outcome_unknown(), "{wrong:?}: {error}");
        assert_eq!(stored.lock().seen, 1, "it is not repeated");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_that_is_never_stored_whole_fails() {
    let (url, _stored) = start(&[Put::Half]);
    let error = open(&url).await.put("k", body()).await.unwrap_err();
    assert!(
        matches!(&error, BlobError::Unavailable(text) if text.contains("4 bytes instead of 9")),
        "{error}"
    );
}
