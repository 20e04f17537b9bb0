//! A records field from a producer: batch headers, checksums, patching.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| kafka_wire::fuzz_entry::produced(input));
