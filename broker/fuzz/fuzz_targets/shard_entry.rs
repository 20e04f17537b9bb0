//! An entry of a shard's log.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| coordinator::fuzz_entry::log_entry(input));
