//! The program's buffers, as single buffers or as lists.

use core::mem::MaybeUninit;

use libc::{iovec, msghdr};

/// The maximum number of parts in a call: `UIO_MAXIOV`.
const PARTS_MAX: usize = 1024;
/// The maximum number of parts that are passed to the kernel at once when a call continues there.
pub const REST_MAX: usize = 16;

/// A list of the program's buffers. The program guarantees their validity, as it does to the kernel.
pub struct Buffers {
    single: iovec,
    list: *const iovec,
    count: usize,
}

impl Buffers {
    /// One buffer.
    pub fn one(base: *const u8, length: usize) -> Self {
        let single = iovec { iov_base: base.cast_mut().cast(), iov_len: length.min(isize::MAX as usize) };
        Self { single, list: core::ptr::null(), count: 1 }
    }

    /// A list of them, as `readv` takes it. A list longer than the kernel allows counts as empty.
    pub fn list(list: *const iovec, count: usize) -> Self {
        let count = if list.is_null() || count > PARTS_MAX { 0 } else { count };
        Self { single: iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }, list, count }
    }

    fn part(&self, index: usize) -> iovec {
        if self.list.is_null() {
            self.single
        } else {
            // SAFETY: the program's list has `count` entries, as the program states.
            unsafe { *self.list.add(index) }
        }
    }

    /// The total length in bytes.
    pub fn total(&self) -> usize {
        (0..self.count).fold(0usize, |sum, index| sum.saturating_add(self.part(index).iov_len))
    }

    /// Visits `length` bytes from offset `skip` on, piece by piece.
    pub fn each(&self, skip: usize, length: usize, mut visit: impl FnMut(*mut u8, usize)) {
        let (mut skip, mut left) = (skip, length);
        for index in 0..self.count {
            let part = self.part(index);
            if skip >= part.iov_len {
                skip -= part.iov_len;
                continue;
            }
            let piece = (part.iov_len - skip).min(left);
            if piece == 0 {
                return;
            }
            visit(part.iov_base.cast::<u8>().wrapping_add(skip), piece);
            (skip, left) = (0, left - piece);
        }
    }

    /// The bytes after `skip`, or the first parts of them, as a list for the kernel.
    pub fn rest(&self, skip: usize) -> ([iovec; REST_MAX], usize) {
        self.window(skip, usize::MAX)
    }

    /// At most `length` bytes of the list.
    pub fn window(&self, skip: usize, length: usize) -> ([iovec; REST_MAX], usize) {
        let empty = iovec { iov_base: core::ptr::null_mut(), iov_len: 0 };
        let (mut list, mut count) = ([empty; REST_MAX], 0);
        self.each(skip, length, |base, length| {
            if let Some(place) = list.get_mut(count) {
                *place = iovec { iov_base: base.cast(), iov_len: length };
                count += 1;
            }
        });
        (list, count)
    }
}

/// The first `count` parts of one list, followed by another list.
pub fn join(first: &[iovec; REST_MAX], count: usize, second: &[iovec; REST_MAX]) -> [iovec; 2 * REST_MAX] {
    let mut both = [iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; 2 * REST_MAX];
    let parts = first.iter().take(count).chain(second);
    both.iter_mut().zip(parts).for_each(|(place, part)| *place = *part);
    both
}

/// A message of the first `count` parts without anything else.
pub fn message(parts: &mut [iovec], count: usize) -> msghdr {
    // SAFETY: zeros are a valid message.
    let mut message: msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = count.min(parts.len());
    message
}
