//! Bytes that no client would send: the connection ends, the process lives, memory stays flat.
#![allow(clippy::disallowed_methods, clippy::expect_used, reason = "tests")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use e2e::clients::kcat;
use e2e::node::{Cluster, Node, Plan};

/// Sends `bytes` and reads until the broker closes the connection (or stays silent).
fn send(port: u16, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the broker accepts");
    stream
        .set_read_timeout(Some(Duration::from_millis(500)))
        .expect("timeout");
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

/// True when the broker closed the connection after `bytes`.
fn closes(port: u16, bytes: &[u8]) -> bool {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the broker accepts");
    stream
        .set_read_timeout(Some(Duration::from_secs(5)))
        .expect("timeout");
    let _ = stream.write_all(bytes);
    match stream.read(&mut [0u8; 1024]) {
        Ok(0) => true,
        Ok(_) => false,
        // A reset is an end, too; a time-out is not.
        Err(error) => !matches!(
            error.kind(),
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
        ),
    }
}

fn frame(api_key: i16, version: i16, flexible: bool, body: &[u8]) -> Vec<u8> {
    let mut request = Vec::new();
    request.extend(api_key.to_be_bytes());
    request.extend(version.to_be_bytes());
    request.extend(7i32.to_be_bytes());
    request.extend((-1i16).to_be_bytes());
    if flexible {
        request.push(0);
    }
    request.extend(body);
    let mut frame = (request.len() as i32).to_be_bytes().to_vec();
    frame.extend(request);
    frame
}

fn one_broker() -> Cluster {
    Cluster::start(Plan {
        broker_zones: vec!["a"],
        coordinators: 1,
        ..Plan::default()
    })
    .expect("a cluster")
}

fn assert_serves(cluster: &Cluster) {
    let produced = kcat(
        &["-P", "-b", &cluster.bootstrap(), "-t", "alive", "-p", "0"],
        b"still here\n",
    )
    .expect("kcat");
    assert!(
        produced.status.success(),
        "{}",
        String::from_utf8_lossy(&produced.stderr)
    );
}

fn resident_mib(node: &Node) -> u64 {
    node.resident_bytes().expect("resident memory") >> 20
}

#[test]
fn announced_counts_and_lengths_cost_nothing() {
    let cluster = one_broker();
    assert_serves(&cluster);
    let broker = &cluster.brokers[0];
    let before = resident_mib(broker);
    // Produce v8: transactional id null, acks, timeout, then 2^31 - 1 topics: the body is twelve bytes.
    let mut body = (-1i16).to_be_bytes().to_vec();
    body.extend(1i16.to_be_bytes());
    body.extend(1000i32.to_be_bytes());
    body.extend(i32::MAX.to_be_bytes());
    let produce_v8 = frame(0, 8, false, &body);
    // The same, compact (v9): the count as an unsigned varint.
    let mut body = vec![0u8];
    body.extend(1i16.to_be_bytes());
    body.extend(1000i32.to_be_bytes());
    body.extend([0xff, 0xff, 0xff, 0xff, 0x07]);
    let produce_v9 = frame(0, 9, true, &body);
    let metadata = frame(3, 1, false, &i32::MAX.to_be_bytes());
    for bytes in [&produce_v8, &produce_v9, &metadata] {
        assert!(closes(broker.port, bytes), "the connection stayed open");
    }
    // Two connections that announce 2 GiB and send a little of it.
    let mut huge = i32::MAX.to_be_bytes().to_vec();
    huge.extend([0u8; 100]);
    assert!(closes(broker.port, &huge));
    assert!(closes(broker.port, &(-5i32).to_be_bytes()));
    for _ in 0..50 {
        send(broker.port, &produce_v8);
    }
    let after = resident_mib(broker);
    assert!(
        after < before + 64,
        "resident memory went from {before} to {after} MiB"
    );
    assert_serves(&cluster);
}

#[test]
fn other_protocols_are_turned_away() {
    let cluster = one_broker();
    let port = cluster.brokers[0].port;
    assert!(closes(port, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    // A TLS 1.2 client hello.
    assert!(closes(
        port,
        &[
            0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03, 0, 0, 0, 0, 0
        ]
    ));
    assert!(closes(port, b"\x00\x00\x00\x01\x00"));
    assert_serves(&cluster);
}

#[test]
fn truncated_requests_of_every_api_end_the_connection_only() {
    let cluster = one_broker();
    let broker = &cluster.brokers[0];
    let before = resident_mib(broker);
    for api_key in 0..100i16 {
        for version in 0..20i16 {
            for flexible in [false, true] {
                send_quick(broker.port, &frame(api_key, version, flexible, &[]));
                send_quick(broker.port, &frame(api_key, version, flexible, &[0x7f; 9]));
            }
        }
    }
    let after = resident_mib(broker);
    assert!(
        after < before + 64,
        "resident memory went from {before} to {after} MiB"
    );
    assert_serves(&cluster);
}

/// Sends without waiting for what comes back.
fn send_quick(port: u16, bytes: &[u8]) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the broker accepts");
    let _ = stream.write_all(bytes);
}

#[test]
fn an_unknown_version_of_api_versions_is_answered_with_version_0() {
    let cluster = one_broker();
    let answer = send(cluster.brokers[0].port, &frame(18, 99, true, &[]));
    // length, correlation id 7, error 35 (UNSUPPORTED_VERSION), and a list that names ApiVersions (18) itself.
    assert_eq!(answer.get(4..8), Some(&7i32.to_be_bytes()[..]));
    assert_eq!(answer.get(8..10), Some(&35i16.to_be_bytes()[..]));
    let count = i32::from_be_bytes(answer[10..14].try_into().expect("four bytes"));
    let entries: Vec<i16> = (0..count as usize)
        .map(|i| i16::from_be_bytes(answer[14 + 6 * i..16 + 6 * i].try_into().expect("two bytes")))
        .collect();
    assert!(entries.contains(&18), "{entries:?}");
}
