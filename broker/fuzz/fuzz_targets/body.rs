//! The body of any served API and version; the first two bytes choose which.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| kafka_wire::fuzz_entry::body(input));
