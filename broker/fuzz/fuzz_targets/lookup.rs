//! Records of a stored batch, decompressed.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| kafka_wire::fuzz_entry::lookup(input));
