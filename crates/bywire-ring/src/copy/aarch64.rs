//! Lines of aarch64. Its cores notice streams of stores by themselves and send them around the caches.

use std::sync::atomic::{Ordering, fence};

use super::LINE_BYTES;

/// Whether [`move_line`] is worth its while.
pub const MOVES_LINES: bool = true;
/// Whether [`stream_line`] goes around the caches.
pub const STREAMS_LINES: bool = false;

/// Moves one line.
///
/// # Safety
/// `source` valid for reads and `target` for writes of 64 bytes.
#[inline(always)]
pub unsafe fn move_line(source: *const u8, target: *mut u8) {
    const { assert!(LINE_BYTES == 64) };
    // SAFETY: the caller vouches for both lines.
    unsafe {
        core::arch::asm!(
            "ldp {a:q}, {b:q}, [{source}]", "ldp {c:q}, {d:q}, [{source}, #32]",
            "stp {a:q}, {b:q}, [{target}]", "stp {c:q}, {d:q}, [{target}, #32]",
            source = in(reg) source, target = in(reg) target,
            a = out(vreg) _, b = out(vreg) _, c = out(vreg) _, d = out(vreg) _,
            options(nostack, preserves_flags),
        );
    }
}

/// As [`move_line`].
///
/// # Safety
/// Its requirements.
#[inline(always)]
pub unsafe fn stream_line(source: *const u8, target: *mut u8) {
    // SAFETY: the caller vouches for both lines.
    unsafe { move_line(source, target) }
}

/// Nothing goes around the caches.
#[inline(always)]
pub fn settle() {}

/// A barrier for loads and stores.
#[inline(always)]
pub fn full_fence() {
    // SeqCst: pairs with the fence of the other side that the caller names.
    fence(Ordering::SeqCst);
}

/// Hints that the line at `address` will be written soon, so that its transfer starts now.
#[inline(always)]
pub fn claim(address: *const u8) {
    // SAFETY: a prefetch touches nothing and cannot fault.
    unsafe {
        core::arch::asm!("prfm pstl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
}

/// Hints that the line at `address` will be read soon.
#[inline(always)]
pub fn expect(address: *const u8) {
    // SAFETY: a prefetch touches nothing and cannot fault.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
}
