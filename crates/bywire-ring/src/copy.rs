//! Copies between private memory and memory that another process may be writing at the same time.
//!
//! A plain `memcpy` would let the compiler assume that the shared bytes hold still. These copies are
//! made of inline assembly or of atomic words, so a racing writer yields garbage bytes and nothing worse.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::memory::LINE_BYTES;

/// Copies `target.len()` bytes out of shared memory.
///
/// # Safety
/// `source` must be valid for reads of `target.len()` bytes; other processes may write there meanwhile.
#[inline]
pub unsafe fn from_shared(source: *const u8, target: &mut [u8]) {
    let mut offset = 0;
    #[cfg(target_arch = "x86_64")]
    if target.len() >= LINES_BYTES_MIN {
        let lines = target.len() / LINE_BYTES;
        // Only what has been published: asking for the lines behind would take them from their writer.
        (0..lines.min(READ_AHEAD)).for_each(|line| expect(source.wrapping_add(line * LINE_BYTES)));
        for line in 0..lines {
            if line + READ_AHEAD < lines {
                expect(source.wrapping_add((line + READ_AHEAD) * LINE_BYTES));
            }
            // SAFETY: the caller vouches for the source; the target is a live slice; both have `lines` lines.
            unsafe { move_line(source.add(line * LINE_BYTES), target.as_mut_ptr().add(line * LINE_BYTES)) };
        }
        offset = lines * LINE_BYTES;
    }
    let mut words = target[offset..].chunks_exact_mut(8);
    for word in &mut words {
        // SAFETY: in bounds by the caller's promise. The word may be unaligned only when the caller's
        // pointer is; every shared offset of ours is a multiple of 8.
        let value = unsafe { load_word(source.add(offset)) };
        word.copy_from_slice(&value.to_ne_bytes());
        offset += 8;
    }
    for byte in words.into_remainder() {
        // SAFETY: in bounds by the caller's promise; bytes are always aligned.
        *byte = unsafe { (*source.add(offset).cast::<AtomicU8>()).load(Ordering::Relaxed) };
        offset += 1;
    }
}

/// Copies `source` into shared memory.
///
/// # Safety
/// `target` must be valid for writes of `source.len()` bytes, and this process its only writer.
#[inline]
pub unsafe fn to_shared(source: &[u8], target: *mut u8) {
    let mut offset = 0;
    #[cfg(target_arch = "x86_64")]
    if source.len() >= LINES_BYTES_MIN {
        let lines = source.len() / LINE_BYTES;
        for line in 0..lines {
            claim(target.wrapping_add(line * LINE_BYTES + WRITE_AHEAD));
            // SAFETY: the caller vouches for the target; the source is a live slice; both have `lines` lines.
            unsafe { move_line(source.as_ptr().add(line * LINE_BYTES), target.add(line * LINE_BYTES)) };
        }
        offset = lines * LINE_BYTES;
    }
    let words = source[offset..].chunks_exact(8);
    let rest = words.remainder();
    for word in words {
        let value = u64::from_ne_bytes(word.try_into().expect("chunks of eight"));
        // SAFETY: in bounds by the caller's promise.
        unsafe { store_word(target.add(offset), value) };
        offset += 8;
    }
    for byte in rest {
        // SAFETY: in bounds by the caller's promise; bytes are always aligned.
        unsafe { (*target.add(offset).cast::<AtomicU8>()).store(*byte, Ordering::Relaxed) };
        offset += 1;
    }
}

/// Hints that the line at `address` will be written soon, so that its transfer starts now.
#[inline(always)]
pub fn claim(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch touches nothing and cannot fault.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Hints that the line at `address` will be read soon.
#[inline(always)]
pub fn expect(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch touches nothing and cannot fault.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// From here on whole lines are moved with a look ahead. What is known of it: no gain was measured for fragments
/// of 4 KiB and above, where the processor's own look-ahead does as well; it is for the short ones.
#[cfg(target_arch = "x86_64")]
const LINES_BYTES_MIN: usize = 128;
/// How many lines ahead a reader asks: enough to cover the way to another core's cache.
#[cfg(target_arch = "x86_64")]
const READ_AHEAD: usize = 32;
/// How far ahead a writer claims: the next fragment of the default size.
#[cfg(target_arch = "x86_64")]
const WRITE_AHEAD: usize = 4096;

/// Moves one line.
///
/// # Safety
/// `source` valid for reads and `target` for writes of 64 bytes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn move_line(source: *const u8, target: *mut u8) {
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

/// # Safety
/// `source` must be valid for a read of 8 bytes.
#[inline(always)]
unsafe fn load_word(source: *const u8) -> u64 {
    if source.cast::<AtomicU64>().is_aligned() {
        // SAFETY: valid by the caller's promise, aligned by the check.
        return unsafe { (*source.cast::<AtomicU64>()).load(Ordering::Relaxed) };
    }
    let bytes = std::array::from_fn(|index| {
        // SAFETY: within the 8 bytes of the caller's promise.
        unsafe { (*source.add(index).cast::<AtomicU8>()).load(Ordering::Relaxed) }
    });
    u64::from_ne_bytes(bytes)
}

/// # Safety
/// `target` must be valid for a write of 8 bytes.
#[inline(always)]
unsafe fn store_word(target: *mut u8, value: u64) {
    if target.cast::<AtomicU64>().is_aligned() {
        // SAFETY: valid by the caller's promise, aligned by the check.
        return unsafe { (*target.cast::<AtomicU64>()).store(value, Ordering::Relaxed) };
    }
    for (index, byte) in value.to_ne_bytes().into_iter().enumerate() {
        // SAFETY: within the 8 bytes of the caller's promise.
        unsafe { (*target.add(index).cast::<AtomicU8>()).store(byte, Ordering::Relaxed) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_alignment_arrives_whole() {
        for length in (0..150).chain([511, 512, 513, 4096]) {
            for shift in [0, 1, 7, 8] {
                let source: Vec<u8> = (0..length).map(|index| (index * 7 + shift) as u8).collect();
                let mut shared = vec![0xEE_u8; length + 16];
                let mut target = vec![0; length];
                // SAFETY: `shared` has 16 bytes to spare and only this thread touches it.
                unsafe {
                    to_shared(&source, shared.as_mut_ptr().add(shift));
                    from_shared(shared.as_ptr().add(shift), &mut target);
                }
                assert_eq!(source, target);
                assert!(shared[..shift].iter().chain(&shared[shift + length..]).all(|byte| *byte == 0xEE));
            }
        }
    }
}
