//! What a stranger says at the internal listener, and what a listener answers to a node, for bytes of anybody's. The fuzz
//! targets and the tests with random bytes call the same functions: whatever comes, nothing panics and nobody is let in.

use std::num::NonZeroU32;

use bytes::Bytes;

use crate::auth::NODE_USER;
use crate::auth::scram::{ClientExchange, Keys, SaltedPassword, ServerExchange};
use crate::rpc::connection::split_response;
use crate::rpc::handshake::{Request, split_authenticated, take_bytes, take_string};
use crate::rpc::split_request;

/// Messages of SCRAM, a line each: the two of a client, then the two of a server.
pub fn scram(input: &[u8]) {
    // The costly part of a password is not what is tried here.
    let password = || SaltedPassword::derive(b"password", b"salt", NonZeroU32::MIN);
    let mut lines = input.split(|byte| *byte == b'\n');
    let mut next = || lines.next().unwrap_or_default();
    let keys = |user: &str| (user == NODE_USER).then(|| Keys::of(&password(), b"salt", NonZeroU32::MIN));
    if let Ok((exchange, _)) = ServerExchange::start(next(), "nonce", keys) {
        assert!(exchange.finish(next()).is_err(), "let in without the password");
    }
    let (exchange, _) = ClientExchange::start(NODE_USER, "nonce");
    if let Ok((proof, _)) = exchange.prove(next(), |_, _| password()) {
        assert!(
            proof.check(next()).is_err(),
            "a server that does not know the password"
        );
    }
}

/// Frames of the handshake, of a request and of an answer.
pub fn handshake(input: &[u8]) {
    let frame = Bytes::copy_from_slice(input);
    if let Some(mut request) = Request::parse(frame.clone()) {
        let _ = take_string(&mut request.body.clone());
        let _ = take_bytes(&mut request.body);
    }
    let _ = split_authenticated(frame.clone());
    let _ = split_request(frame.clone());
    let _ = split_response(frame);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    fn message() -> impl Strategy<Value = String> {
        let part = prop_oneof![
            Just("n,,n=diskless-node,r=x".to_owned()),
            Just("r=noncex,s=c2FsdA==,i=4096".to_owned()),
            Just("c=biws,r=xnonce,p=AAAA".to_owned()),
            "[a-z]=[ -~]{0,8}",
            "[ -~]{0,12}",
        ];
        prop::collection::vec(part, 0..4).prop_map(|parts| parts.join(","))
    }

    proptest! {
        #[test]
        fn nobody_talks_their_way_in(lines in prop::collection::vec(message(), 0..5)) {
            super::scram(lines.join("\n").as_bytes());
        }

        #[test]
        fn whatever_a_stranger_sends_is_read_or_refused(input in prop::collection::vec(any::<u8>(), 0..64)) {
            super::scram(&input);
            super::handshake(&input);
        }
    }
}
