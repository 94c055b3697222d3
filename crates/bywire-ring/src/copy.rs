//! Copies between private memory and memory that another process may be writing at the same time.
//!
//! A plain `memcpy` would let the compiler assume that the shared bytes do not change. These copies are made of
//! inline assembly or of atomic words, so a racing writer causes garbage bytes and nothing worse.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::geometry::LINE_BYTES;

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
        if lines < READ_AHEAD_LINES {
            (0..lines).for_each(|line| expect(source.wrapping_add(line * LINE_BYTES)));
        }
        for line in 0..lines {
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

/// Copies `source` into shared memory with non-temporal stores, which need not first fetch the target's lines from
/// the cache of another core. Only [`settle`] orders them.
///
/// # Safety
/// As for [`to_shared`].
#[inline]
pub unsafe fn to_shared_nontemporal(source: &[u8], target: *mut u8) {
    #[cfg(target_arch = "x86_64")]
    let offset = {
        // The instruction requires an aligned target. Every payload of a ring is aligned.
        let lines = if target.cast::<Line>().is_aligned() { source.len() / LINE_BYTES } else { 0 };
        for line in 0..lines {
            // SAFETY: the caller vouches for the target, which is aligned; the source is a live slice; both have
            // `lines` lines.
            unsafe { stream_line(source.as_ptr().add(line * LINE_BYTES), target.add(line * LINE_BYTES)) };
        }
        lines * LINE_BYTES
    };
    #[cfg(not(target_arch = "x86_64"))]
    let offset = 0;
    // SAFETY: the rest of the bytes that the caller vouches for.
    unsafe { to_shared(&source[offset..], target.add(offset)) };
}

/// Orders all non-temporal stores before every store that follows.
#[inline(always)]
pub fn settle() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a fence touches nothing; SSE belongs to every x86_64.
    unsafe {
        core::arch::x86_64::_mm_sfence();
    }
}

/// A fence of [`Ordering::SeqCst`].
///
/// On x86_64 it is a locked instruction. A compiler makes MFENCE of `fence`. The processor's manuals give both the
/// same order for write-back memory, and MFENCE takes longer after stores around the caches.
#[inline(always)]
pub fn full_fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the word at the top of our own stack, above the red zone, is replaced by itself.
    unsafe {
        core::arch::asm!("lock or dword ptr [rsp], 0", options(nostack));
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SeqCst: pairs with the fence of the other side that the caller names.
    std::sync::atomic::fence(Ordering::SeqCst);
}

/// Hints that the line at `address` will be written soon, so that its transfer starts now.
#[inline(always)]
fn claim(address: *const u8) {
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

/// Copies of at least this length move whole lines.
#[cfg(target_arch = "x86_64")]
const LINES_BYTES_MIN: usize = 128;
/// A payload shorter than this is prefetched as a whole before it is read, so that its lines arrive all at once. The
/// processor's own look-ahead finds the lines of a longer one, for which prefetching costs 5 % of the rate.
#[cfg(target_arch = "x86_64")]
const READ_AHEAD_LINES: usize = 32;
/// How far ahead a writer claims lines: the next fragment of the default size.
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

#[cfg(target_arch = "x86_64")]
#[repr(align(64))]
struct Line(#[cfg_attr(not(test), expect(dead_code, reason = "only its alignment counts"))] [u8; LINE_BYTES]);

/// Moves one line around the caches.
///
/// # Safety
/// `source` valid for reads and `target` for writes of 64 bytes; `target` aligned to them.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn stream_line(source: *const u8, target: *mut u8) {
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
        for length in (0..150).chain([511, 512, 513, 2047, 2048, 4096]) {
            for shift in [0, 1, 7, 8] {
                let source: Vec<u8> = (0..length).map(|index| (index * 7 + shift) as u8).collect();
                for store in [to_shared, to_shared_nontemporal] {
                    let mut lines: Vec<Line> = (0..length / 64 + 2).map(|_| Line([0xEE; 64])).collect();
                    let shared = lines.as_mut_ptr().cast::<u8>();
                    let mut target = vec![0; length];
                    // SAFETY: `lines` have 64 bytes to spare and only this thread touches them.
                    unsafe {
                        store(&source, shared.add(shift));
                        settle();
                        from_shared(shared.add(shift), &mut target);
                    }
                    assert_eq!(source, target);
                    let bytes: Vec<u8> = lines.iter().flat_map(|line| line.0).collect();
                    assert!(bytes[..shift].iter().chain(&bytes[shift + length..]).all(|byte| *byte == 0xEE));
                }
            }
        }
    }
}
