//! Lines of a processor that nothing is known of: payloads are copied by words.

use std::sync::atomic::{Ordering, fence};

/// Whether [`move_line`] is worth its while.
pub const MOVES_LINES: bool = false;
/// Whether [`stream_line`] goes around the caches.
pub const STREAMS_LINES: bool = false;

/// Moves nothing.
///
/// # Safety
/// It is not called.
pub unsafe fn move_line(_source: *const u8, _target: *mut u8) {
    unreachable!("payloads are copied by words");
}

/// Moves nothing.
///
/// # Safety
/// It is not called.
pub unsafe fn stream_line(_source: *const u8, _target: *mut u8) {
    unreachable!("payloads are copied by words");
}

/// Nothing goes around the caches.
pub fn settle() {}

/// A full fence.
pub fn full_fence() {
    // SeqCst: pairs with the fence of the other side that the caller names.
    fence(Ordering::SeqCst);
}

/// No hint is known.
pub fn claim(_address: *const u8) {}

/// No hint is known.
pub fn expect(_address: *const u8) {}
