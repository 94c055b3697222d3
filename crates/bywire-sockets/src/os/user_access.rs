//! Is an address of the program's one that can be read? Structures that this library looks at before the kernel does must not
//! be a fault where the kernel would say `EFAULT`.
//!
//! The kernel is asked once for each page and thread, and a few answers are kept: what a program hands over again and again
//! costs nothing. So a page that was there and has gone since is not noticed. Where the library does nothing any more, it does
//! not ask either: then nothing new can be read, and the call is the kernel's, which says what there is to say.

use core::cell::Cell;

use crate::os::{errno, own_call, real};

const PAGE_BYTES: usize = 4096;
/// Pages of a thread that are known.
const KNOWN: usize = 8;

thread_local! {
    // Constant and without a destructor: nothing is allocated or registered for them.
    static PAGES: [Cell<usize>; KNOWN] = const { [const { Cell::new(0) }; KNOWN] };
    static NEXT: Cell<usize> = const { Cell::new(0) };
}

/// Can so many of these be read, as far as may be asked? A null never can.
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

#[inline]
fn is_readable(page: usize) -> bool {
    PAGES.with(|pages| pages.iter().any(|known| known.get() == page)) || ask(page)
}

/// The kernel reads a set of signals there, before it finds that there is nothing to do with it.
#[cold]
fn ask(page: usize) -> bool {
    const NOTHING: usize = 0x7FFF;
    // First without a count, for which a new thread would ask for its number.
    if own_call::are_over() {
        return false;
    }
    let Some(_own) = own_call::begin() else { return false };
    // SAFETY: it reads eight bytes, if it can, and then fails in any case.
    let number = errno::keep(|| unsafe {
        real::syscall(libc::SYS_rt_sigprocmask, NOTHING, page * PAGE_BYTES, 0, 8, 0, 0);
        errno::last()
    });
    if number == libc::EFAULT {
        return false;
    }
    let next = NEXT.replace((NEXT.get() + 1) % KNOWN);
    PAGES.with(|pages| pages.get(next).map(|place| place.set(page)));
    true
}
