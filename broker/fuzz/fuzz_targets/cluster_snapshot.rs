//! A snapshot of the cluster's state.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| cluster::fuzz_entry::snapshot(input));
