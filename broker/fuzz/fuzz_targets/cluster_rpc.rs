//! A message between nodes and controller; the first byte chooses which.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| cluster::fuzz_entry::rpc(input));
