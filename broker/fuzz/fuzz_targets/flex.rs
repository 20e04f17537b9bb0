//! The encoding of internal RPCs and log entries.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| kafka_wire::fuzz_entry::flex(input));
