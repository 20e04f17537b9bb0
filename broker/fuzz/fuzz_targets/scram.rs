//! Messages of SCRAM, a line each.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| broker::fuzz_entry::scram(input));
