//! An entry of the log `cluster`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| cluster::fuzz_entry::log_entry(input));
