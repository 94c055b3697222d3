//! Whether an address of the program can be read. This library reads some structures before the kernel does, and must
//! not fault where the kernel would return `EFAULT`.
//!
//! The kernel is asked once for each page and thread. A few answers are cached, so structures that a program passes
//! again and again cost nothing. A page that was unmapped since is not noticed. Once the library may make no calls of
//! its own, it does not ask either: then no new address counts as readable, and the call goes to the kernel, which
//! reports the error.

use core::cell::Cell;

use crate::os::per_thread::per_thread;
use crate::os::{errno, own_call, real};

const PAGE_BYTES: usize = 4096;
/// Cached pages of a thread.
const KNOWN: usize = 8;

per_thread! {
    /// The complements of the pages' numbers. 0, with which it begins, is that of a page without addresses.
    static PAGES: [Cell<usize>; KNOWN], "bywire_thread_pages"
}
per_thread!(static NEXT: Cell<usize>, "bywire_thread_next_page");

/// Whether an array of this many values can be read, as far as the library may ask. A null pointer never can.
#[inline]
pub fn are_readable<T>(first: *const T, count: usize) -> bool {
    let start = first as usize;
    let Some(length) = size_of::<T>().checked_mul(count) else { return false };
    if length == 0 {
        return true;
    }
    let Some(last) = start.checked_add(length - 1).filter(|_| start != 0) else { return false };
    (start / PAGE_BYTES..=last / PAGE_BYTES).all(is_readable)
}

/// The number of these bytes that can be read, from the first one on.
pub fn readable_bytes(first: *const u8, count: usize) -> usize {
    let start = first as usize;
    let end = start.saturating_add(count);
    let bad = (start / PAGE_BYTES..=end.saturating_sub(1) / PAGE_BYTES).find(|page| !is_readable(*page));
    bad.map_or(count, |page| (page * PAGE_BYTES).saturating_sub(start).min(count))
}

#[inline]
fn is_readable(page: usize) -> bool {
    PAGES.with(|pages| pages.iter().any(|known| known.get() == !page)) || ask(page)
}

/// Asks by a system call that reads a set of signals from the address and then fails without an effect.
#[cold]
fn ask(page: usize) -> bool {
    const NOTHING: usize = 0x7FFF;
    // Checked first without counting: counting would make a new thread ask for its number.
    if own_call::are_over() {
        return false;
    }
    let Some(_own) = own_call::begin() else { return false };
    // Not the page's first bytes: a null pointer would stand for no set.
    // SAFETY: the kernel reads eight bytes, if it can, and then fails in any case.
    let number = errno::keep(|| unsafe {
        real::syscall(libc::SYS_rt_sigprocmask, NOTHING, page * PAGE_BYTES + 8, 0, 8, 0, 0);
        errno::last()
    });
    if number == libc::EFAULT {
        return false;
    }
    let next = NEXT.with(|next| next.replace((next.get() + 1) % KNOWN));
    PAGES.with(|pages| pages.get(next).map(|place| place.set(!page)));
    true
}
