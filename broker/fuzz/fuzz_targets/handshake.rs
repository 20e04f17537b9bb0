//! Frames of the handshake of nodes.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| broker::fuzz_entry::handshake(input));
