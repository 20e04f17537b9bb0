//! Frames as a connection delivers them: length, header, preflight, body.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| kafka_wire::fuzz_entry::stream(input));
