//! The program's buffers, as single buffers or as lists.

use core::cell::Cell;
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;

use libc::{iovec, msghdr};

use crate::os::user_access;

/// The maximum number of parts in a call: `UIO_MAXIOV`.
pub const PARTS_MAX: usize = 1024;
/// The maximum number of bytes that one call moves: the kernel's `MAX_RW_COUNT`.
pub const CALL_MAX: usize = 0x7FFF_F000;
/// The maximum number of parts that are passed to the kernel at once when a call continues there.
pub const REST_MAX: usize = 16;

/// The piece that the kernel copies at once.
const COPIED_BYTES: usize = 32 << 10;

/// A list of the program's buffers. The program guarantees their validity, as it does to the kernel.
pub struct Buffers<'a> {
    single: iovec,
    list: *const iovec,
    count: usize,
    limit: usize,
    control: Option<&'a Control>,
}

impl<'a> Buffers<'a> {
    /// One buffer.
    pub fn one(base: *const u8, length: usize) -> Self {
        let single = iovec { iov_base: base.cast_mut().cast(), iov_len: length.min(CALL_MAX) };
        Self { single, list: core::ptr::null(), count: 1, limit: CALL_MAX, control: None }
    }

    /// A list of them, as `readv` takes it. A list longer than the kernel allows counts as empty.
    pub fn list(list: *const iovec, count: usize) -> Self {
        let count = if list.is_null() || count > PARTS_MAX { 0 } else { count };
        let single = iovec { iov_base: core::ptr::null_mut(), iov_len: 0 };
        Self { single, list, count, limit: CALL_MAX, control: None }
    }

    /// These buffers with the room for control data that came with them.
    pub fn with_control(self, control: &'a Control) -> Self {
        Self { control: Some(control), ..self }
    }

    /// The first bytes of these buffers, as many as can be read. If not all can, they are whole pieces: the kernel, too,
    /// sends nothing of a piece that it cannot read whole.
    pub fn readable(&self) -> Self {
        let (mut limit, mut is_over) = (0, false);
        self.each(0, self.total(), |base, length| {
            if !is_over {
                let readable = user_access::readable_bytes(base, length);
                limit += readable;
                is_over = readable < length;
            }
        });
        if is_over {
            limit -= limit % COPIED_BYTES;
        }
        Self { limit, ..*self }
    }

    /// These buffers as a list for the kernel, with their number.
    pub fn as_list(&self) -> (*const iovec, usize) {
        if self.list.is_null() { (&raw const self.single, self.count) } else { (self.list, self.count) }
    }

    fn part(&self, index: usize) -> iovec {
        if self.list.is_null() {
            self.single
        } else {
            // SAFETY: the program's list has `count` entries, as the program states.
            unsafe { *self.list.add(index) }
        }
    }

    /// The total length in bytes, at most [`CALL_MAX`].
    #[inline]
    pub fn total(&self) -> usize {
        if self.list.is_null() {
            return self.single.iov_len.min(self.limit);
        }
        let sum = (0..self.count).fold(0usize, |sum, index| sum.saturating_add(self.part(index).iov_len));
        sum.min(self.limit)
    }

    /// Whether a part is at the null address. Other bad addresses fault in the program.
    #[inline(always)]
    pub fn has_null(&self) -> bool {
        let is_null = |part: iovec| part.iov_base.is_null() && part.iov_len > 0;
        if self.list.is_null() {
            is_null(self.single)
        } else {
            (0..self.count).any(|index| is_null(self.part(index)))
        }
    }

    /// How many of `length` bytes from offset `skip` on come before a part at the null address.
    #[cold]
    pub fn before_null(&self, skip: usize, length: usize) -> usize {
        let (mut bytes, mut is_over) = (0, false);
        self.each(skip, length, |base, length| {
            is_over |= base.is_null();
            bytes += if is_over { 0 } else { length };
        });
        bytes
    }

    /// Visits `length` bytes from offset `skip` on, piece by piece.
    #[inline]
    pub fn each(&self, skip: usize, length: usize, mut visit: impl FnMut(*mut u8, usize)) {
        if self.list.is_null() {
            let piece = self.single.iov_len.saturating_sub(skip).min(length);
            if piece > 0 {
                visit(self.single.iov_base.cast::<u8>().wrapping_add(skip), piece);
            }
            return;
        }
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
        let length = length.min(self.total().saturating_sub(skip));
        self.each(skip, length, |base, length| {
            if let Some(place) = list.get_mut(count) {
                *place = iovec { iov_base: base.cast(), iov_len: length };
                count += 1;
            }
        });
        (list, count)
    }
}

/// The program's room for the control data of a receive, and what the kernel has written last. Bytes of a ring have
/// none.
pub struct Control {
    room: *mut c_void,
    room_bytes: usize,
    written_bytes: Cell<usize>,
    flags: Cell<c_int>,
}

impl Control {
    /// The room that comes with a message.
    pub fn of(message: &msghdr) -> Self {
        let (written_bytes, flags) = (Cell::new(0), Cell::new(0));
        Self { room: message.msg_control, room_bytes: message.msg_controllen, written_bytes, flags }
    }

    /// The room, and its length.
    pub fn room(&self) -> (*mut c_void, usize) {
        (self.room, self.room_bytes)
    }

    /// The length of the control data, and the flags of the message.
    pub fn written(&self) -> (usize, c_int) {
        (self.written_bytes.get(), self.flags.get())
    }
}

/// Receives a message into the first `count` of these parts, and the control data that comes with them into the room of
/// the buffers. Returns as well whether there was control data, with room for it or without.
pub fn receive_by(
    buffers: &Buffers,
    parts: &mut [iovec],
    count: usize,
    receive: impl FnOnce(*mut msghdr) -> isize,
) -> (isize, bool) {
    let mut message = message(parts, count);
    if let Some(control) = buffers.control {
        message.msg_control = control.room;
        message.msg_controllen = control.room_bytes;
    }
    let received = receive(&raw mut message);
    if received < 0 {
        return (received, false);
    }
    if let Some(control) = buffers.control {
        control.written_bytes.set(message.msg_controllen);
        control.flags.set(message.msg_flags);
    }
    (received, message.msg_controllen > 0 || message.msg_flags & libc::MSG_CTRUNC != 0)
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
