//! What a member of a group says it reads.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| groups::fuzz_entry::subscription(input));
