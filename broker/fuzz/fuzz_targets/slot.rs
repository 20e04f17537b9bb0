//! A slot of a metadata log.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| metalog::fuzz_entry::slot(input));
