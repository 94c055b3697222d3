//! Copies between private memory and memory that another process may be writing at the same time.
//!
//! A plain `memcpy` would let the compiler assume that the shared bytes do not change. These copies are made of
//! inline assembly or of atomic words, so a racing writer causes garbage bytes and nothing worse.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::geometry::LINE_BYTES;

#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), path = "other.rs")]
mod lines;

/// Copies of at least this length move whole lines.
const LINES_BYTES_MIN: usize = 128;
/// A payload shorter than this is prefetched as a whole before it is read, so that its lines arrive all at once. The
/// processor's own look-ahead finds the lines of a longer one, for which prefetching costs 5 % of the rate.
const READ_AHEAD_LINES: usize = 32;
/// How far ahead a writer claims lines: the next fragment of the default size.
const WRITE_AHEAD: usize = 4096;

#[repr(align(64))]
struct Line(#[cfg_attr(not(test), expect(dead_code, reason = "only its alignment counts"))] [u8; LINE_BYTES]);

/// Copies `target.len()` bytes out of shared memory.
///
/// # Safety
/// `source` must be valid for reads of `target.len()` bytes; other processes may write there meanwhile.
#[inline]
pub unsafe fn from_shared(source: *const u8, target: &mut [u8]) {
    let mut offset = 0;
    if lines::MOVES_LINES && target.len() >= LINES_BYTES_MIN {
        let count = target.len() / LINE_BYTES;
        if count < READ_AHEAD_LINES {
            (0..count).for_each(|line| expect(source.wrapping_add(line * LINE_BYTES)));
        }
        for line in 0..count {
            let at = line * LINE_BYTES;
            // SAFETY: the caller vouches for the source; the target is a live slice; both have `count` lines.
            unsafe { lines::move_line(source.add(at), target.as_mut_ptr().add(at)) };
        }
        offset = count * LINE_BYTES;
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
    if lines::MOVES_LINES && source.len() >= LINES_BYTES_MIN {
        let count = source.len() / LINE_BYTES;
        for line in 0..count {
            let at = line * LINE_BYTES;
            lines::claim(target.wrapping_add(at + WRITE_AHEAD));
            // SAFETY: the caller vouches for the target; the source is a live slice; both have `count` lines.
            unsafe { lines::move_line(source.as_ptr().add(at), target.add(at)) };
        }
        offset = count * LINE_BYTES;
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
    // The instruction requires an aligned target. Every payload of a ring is aligned.
    let is_possible = lines::STREAMS_LINES && target.cast::<Line>().is_aligned();
    let count = if is_possible { source.len() / LINE_BYTES } else { 0 };
    for line in 0..count {
        let at = line * LINE_BYTES;
        // SAFETY: the caller vouches for the target, which is aligned; the source is a live slice; both have `count`
        // lines.
        unsafe { lines::stream_line(source.as_ptr().add(at), target.add(at)) };
    }
    let offset = count * LINE_BYTES;
    // SAFETY: the rest of the bytes that the caller vouches for.
    unsafe { to_shared(&source[offset..], target.add(offset)) };
}

/// Orders all non-temporal stores before every store of [`Ordering::Release`] that follows. Where there are none, such a
/// store orders what came before by itself.
#[inline(always)]
pub fn settle() {
    lines::settle();
}

/// A fence of [`Ordering::SeqCst`].
#[inline(always)]
pub fn full_fence() {
    // Pairs with the fence of the other side that the caller names.
    lines::full_fence();
}

/// Hints that the line at `address` will be read soon.
#[inline(always)]
pub fn expect(address: *const u8) {
    lines::expect(address);
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
