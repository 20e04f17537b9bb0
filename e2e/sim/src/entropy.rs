//! The C library's source of randomness, replaced by a counter.
//!
//! Our own code draws from the crate `env`. Others draw from the operating system: the standard library seeds its hash
//! maps, tokio the order in which it wakes waiters. In this program both must be the same in every run.
#![allow(unsafe_code, reason = "defines a symbol of the C library")]

use std::sync::atomic::{AtomicU64, Ordering};

static STATE: AtomicU64 = AtomicU64::new(0x9e37_79b9_7f4a_7c15);

/// As getrandom(2), but repeatable.
///
/// # Safety
///
/// `buffer` must be valid for writes of `length` bytes, as the C library demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(buffer: *mut u8, length: usize, _flags: u32) -> isize {
    for i in 0..length {
        let state = STATE.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let mixed = (state ^ (state >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        // SAFETY: the caller vouches for `length` bytes.
        unsafe { buffer.add(i).write((mixed >> 32) as u8) };
    }
    isize::try_from(length).unwrap_or(isize::MAX)
}
