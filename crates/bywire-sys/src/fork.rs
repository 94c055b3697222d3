//! Tells a process from its forked child without a system call per question.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

const PAGE_BYTES: usize = 4096;

/// A page that the kernel wipes in every forked child (`MADV_WIPEONFORK`).
#[derive(Debug)]
pub struct ForkGuard {
    page: *mut c_void,
}

// SAFETY: the page is written once, before the guard is shared, and only read afterwards.
unsafe impl Send for ForkGuard {}
// SAFETY: the page is written once, before the guard is shared, and only read afterwards; the only access through
// `&self` is an atomic load.
unsafe impl Sync for ForkGuard {}

impl ForkGuard {
    /// Marks this process as the owner.
    ///
    /// # Errors
    /// The error of `mmap` or `madvise` (out of memory).
    pub fn new() -> Result<Self, Errno> {
        // SAFETY: an anonymous mapping at an address of the kernel's choice aliases nothing.
        let page = unsafe {
            rustix::mm::mmap_anonymous(
                core::ptr::null_mut(),
                PAGE_BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )?
        };
        let guard = Self { page };
        // SAFETY: the range is the mapping just made, which nothing else refers to.
        unsafe { rustix::mm::madvise(page, PAGE_BYTES, Advice::LinuxWipeOnFork)? };
        // Relaxed: a child sees either the parent's page or a wiped one. No other data depends on it.
        guard.word().store(1, Ordering::Relaxed);
        Ok(guard)
    }

    /// True in the process that made the guard, false in its forked children.
    #[inline(always)]
    pub fn is_owner(&self) -> bool {
        self.word().load(Ordering::Relaxed) == 1
    }

    #[inline(always)]
    fn word(&self) -> &AtomicU32 {
        // SAFETY: the page is mapped for as long as `self` lives, is page-aligned, and is only ever
        // accessed as this atomic.
        unsafe { &*self.page.cast::<AtomicU32>() }
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        // SAFETY: made by `new` with this length, and unmapped only here.
        let _ = unsafe { rustix::mm::munmap(self.page, PAGE_BYTES) };
    }
}
