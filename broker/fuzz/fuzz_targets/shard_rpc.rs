//! A message of the Diskless RPCs; the first byte chooses which.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| coordinator::fuzz_entry::rpc(input));
