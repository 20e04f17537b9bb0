//! Hash maps with a fixed seed: quick, and the same in every run. For maps whose order never shows.

use std::hash::{BuildHasherDefault, Hasher};

/// A map whose iteration order must not be relied on.
#[allow(clippy::disallowed_types, reason = "fixed hasher")]
pub type FastMap<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<Fnv>>;

/// A set whose iteration order must not be relied on.
#[allow(clippy::disallowed_types, reason = "fixed hasher")]
pub type FastSet<K> = std::collections::HashSet<K, BuildHasherDefault<Fnv>>;

/// FNV-1a over eight bytes at a time. Keys chosen by clients must not be hashed with it unbounded: an
/// attacker can make them collide.
#[derive(Clone)]
pub struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn mix(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x0100_0000_01b3);
        self.0 ^= self.0 >> 29;
    }
}

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0u8; 8];
            for (to, from) in word.iter_mut().zip(chunk) {
                *to = *from;
            }
            self.mix(u64::from_le_bytes(word));
        }
    }

    fn write_u32(&mut self, value: u32) {
        self.mix(u64::from(value));
    }

    fn write_i32(&mut self, value: i32) {
        self.mix(u64::from(value.cast_unsigned()));
    }

    fn write_u64(&mut self, value: u64) {
        self.mix(value);
    }

    fn write_usize(&mut self, value: usize) {
        self.mix(value as u64);
    }

    fn finish(&self) -> u64 {
        let mut x = self.0;
        x ^= x >> 32;
        x = x.wrapping_mul(0xd6e8_feb8_6659_fd93);
        x ^ (x >> 32)
    }
}
