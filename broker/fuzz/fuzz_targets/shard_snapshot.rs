//! A snapshot of a shard.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let dir = std::env::temp_dir().join(format!("diskless-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder for the snapshot");
    coordinator::fuzz_entry::snapshot(&dir, input);
});
