//! A group as a shard keeps it.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| groups::fuzz_entry::record(input));
