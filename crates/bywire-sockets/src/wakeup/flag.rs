//! The flag: an eventfd that can always be read. It makes an epoll set of the program ready for whatever watches that
//! set; see [`crate::epoll::nested`].

use core::sync::atomic::{AtomicI32, Ordering};

use crate::memory::{descriptors, vforked};
use crate::os::{errno, own_call, real};
use crate::wakeup::doorbell;

static FLAG: AtomicI32 = AtomicI32::new(-1);

/// This process's flag, made on the first call.
pub fn own() -> Option<i32> {
    // Acquire: pairs with the release exchange below. The flag is marked and hidden before.
    let known = FLAG.load(Ordering::Acquire);
    if doorbell::is_marked(known) {
        return Some(known);
    }
    // The descriptors of a child in its parent's memory are not its parent's.
    if vforked::is_child() {
        return None;
    }
    let _own = own_call::begin()?;
    // SAFETY: plain system calls; the results are checked.
    let made = unsafe { libc::eventfd(1, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if made < 0 {
        return None;
    }
    if !doorbell::mark(made) {
        // SAFETY: made above.
        errno::keep(|| unsafe { real::close(made) });
        return None;
    }
    let made = doorbell::hide_high(made);
    // Release: pairs with the acquire load above. Acquire: another thread's flag is marked and hidden as well.
    match FLAG.compare_exchange(known, made, Ordering::Release, Ordering::Acquire) {
        Ok(_) => Some(made),
        Err(others) => {
            doorbell::discard(made);
            Some(others)
        }
    }
}

/// Closes it. The kernel removes it from all sets, unless a forked process has a copy.
pub fn close() {
    let flag = FLAG.swap(-1, Ordering::Relaxed);
    if doorbell::is_marked(flag) && descriptors::kind(flag) == descriptors::DescriptorKind::Hidden {
        doorbell::discard(flag);
    }
}

/// The library's own descriptor `old`, which now has the number `new`, is about to be replaced. Returns whether it is
/// the flag. Sets know the flag by its number, so there will be another one.
pub fn is_replaced(old: i32, new: i32) -> bool {
    let was_flag = FLAG.compare_exchange(old, -1, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    if was_flag {
        doorbell::discard(new);
    }
    was_flag
}
