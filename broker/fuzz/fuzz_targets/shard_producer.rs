//! A producer's batches in a row of the view.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| coordinator::fuzz_entry::producer(input));
