//! Lines of x86-64.

use super::LINE_BYTES;

/// Whether [`move_line`] is worth its while.
pub const MOVES_LINES: bool = true;
/// Whether [`stream_line`] goes around the caches.
pub const STREAMS_LINES: bool = true;

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
            "movups {a}, [{source}]", "movups {b}, [{source} + 16]",
            "movups {c}, [{source} + 32]", "movups {d}, [{source} + 48]",
            "movups [{target}], {a}", "movups [{target} + 16], {b}",
            "movups [{target} + 32], {c}", "movups [{target} + 48], {d}",
            source = in(reg) source, target = in(reg) target,
            a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
            options(nostack, preserves_flags),
        );
    }
}

/// Moves one line around the caches.
///
/// # Safety
/// `source` valid for reads and `target` for writes of 64 bytes; `target` aligned to them.
#[inline(always)]
pub unsafe fn stream_line(source: *const u8, target: *mut u8) {
    // SAFETY: the caller vouches for both lines.
    unsafe {
        core::arch::asm!(
            "movups {a}, [{source}]", "movups {b}, [{source} + 16]",
            "movups {c}, [{source} + 32]", "movups {d}, [{source} + 48]",
            "movntps [{target}], {a}", "movntps [{target} + 16], {b}",
            "movntps [{target} + 32], {c}", "movntps [{target} + 48], {d}",
            source = in(reg) source, target = in(reg) target,
            a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
            options(nostack, preserves_flags),
        );
    }
}

/// Orders stores of [`stream_line`] before every store that follows.
#[inline(always)]
pub fn settle() {
    // SAFETY: a fence touches nothing; SSE belongs to every x86_64.
    unsafe { core::arch::x86_64::_mm_sfence() }
}

/// A locked instruction. A compiler makes MFENCE of `fence`. The processor's manuals give both the same order for
/// write-back memory, and MFENCE takes longer after stores around the caches.
#[inline(always)]
pub fn full_fence() {
    // SAFETY: the word at the top of our own stack, above the red zone, is replaced by itself.
    unsafe {
        core::arch::asm!("lock or dword ptr [rsp], 0", options(nostack));
    }
}

/// Hints that the line at `address` will be written soon, so that its transfer starts now.
#[inline(always)]
pub fn claim(address: *const u8) {
    // SAFETY: a prefetch touches nothing and cannot fault.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
}

/// Hints that the line at `address` will be read soon.
#[inline(always)]
pub fn expect(address: *const u8) {
    // SAFETY: a prefetch touches nothing and cannot fault.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
}
