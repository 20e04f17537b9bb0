//! What the controller says of the cluster.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| cluster::fuzz_entry::image(input));
