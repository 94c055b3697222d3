//! What the runtimes of the compilers' sanitizers would learn from the C library's calls.
//!
//! AddressSanitizer and ThreadSanitizer stand before the C library's calls as this library does, and check the buffers
//! that they are given, or learn that what was sent came before what was received. Where the runtime is a shared library,
//! a program's calls come here first, and bytes that are carried never pass through it: so it is told.

use core::ffi::c_void;
use core::sync::atomic::{AtomicUsize, Ordering};

/// A function of a runtime; 0: there is none in this program.
struct Told(AtomicUsize);

/// The first byte of some that the program does not own; null: all are its own.
static FIRST_FOREIGN: Told = Told::nobody();
/// Reports that a byte which is not the program's own is read, and ends it as the user has asked.
static ADDRESS_READ: Told = Told::nobody();
/// The same for one that is written.
static ADDRESS_WRITTEN: Told = Told::nobody();
static THREAD_READ: Told = Told::nobody();
static THREAD_WRITTEN: Told = Told::nobody();
/// What this thread did so far comes before what follows [`THREAD_ACQUIRES`] of the same address elsewhere.
static THREAD_RELEASES: Told = Told::nobody();
static THREAD_ACQUIRES: Told = Told::nobody();

/// Stands for every connection, as one word does in the runtime for every socket.
static ORDER: AtomicUsize = AtomicUsize::new(0);

impl Told {
    const fn nobody() -> Self {
        Self(AtomicUsize::new(0))
    }

    fn find(&self, name: &core::ffi::CStr) {
        // SAFETY: a valid name; the handle is the one for whatever the program has loaded.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        self.0.store(found as usize, Ordering::Relaxed);
    }

    #[inline(always)]
    fn tell(&self, base: *const u8, length: usize) {
        // Relaxed, here and below: it is set before the program has a thread.
        let address = self.0.load(Ordering::Relaxed);
        if address != 0 {
            let _nothing = tell(address, base, length);
        }
    }
}

#[cold]
fn tell(address: usize, base: *const u8, length: usize) -> *const u8 {
    // SAFETY: the runtimes' functions of these names take an address and a length, or an address alone, and follow neither;
    // what is returned where C returns nothing is not looked at.
    unsafe {
        let function: unsafe extern "C" fn(*const c_void, usize) -> *const u8 = core::mem::transmute(address);
        function(base.cast(), length)
    }
}

/// By its first byte that is wrong, which tells a runtime what is wrong with it.
#[inline(always)]
fn check(base: *const u8, length: usize, report: &Told) {
    let address = FIRST_FOREIGN.0.load(Ordering::Relaxed);
    if address != 0 {
        let foreign = tell(address, base, length);
        if !foreign.is_null() {
            report.tell(foreign, 1);
        }
    }
}

/// When the library is loaded.
pub fn find_all() {
    for (told, name) in [
        (&FIRST_FOREIGN, c"__asan_region_is_poisoned"),
        (&ADDRESS_READ, c"__asan_loadN"),
        (&ADDRESS_WRITTEN, c"__asan_storeN"),
        (&THREAD_READ, c"__tsan_read_range"),
        (&THREAD_WRITTEN, c"__tsan_write_range"),
        (&THREAD_RELEASES, c"__tsan_release"),
        (&THREAD_ACQUIRES, c"__tsan_acquire"),
    ] {
        told.find(name);
    }
}

/// These bytes of the program's are about to be sent.
#[inline(always)]
pub fn reads(base: *const u8, length: usize) {
    check(base, length, &ADDRESS_READ);
    THREAD_READ.tell(base, length);
}

/// These bytes of the program's are about to be received.
#[inline(always)]
pub fn writes(base: *const u8, length: usize) {
    check(base, length, &ADDRESS_WRITTEN);
    THREAD_WRITTEN.tell(base, length);
}

/// Bytes are about to be sent, in memory or by a call that no runtime sees.
#[inline(always)]
pub fn sends() {
    THREAD_RELEASES.tell((&raw const ORDER).cast(), 0);
}

/// Bytes have been received, wherever they were.
#[inline(always)]
pub fn has_received() {
    THREAD_ACQUIRES.tell((&raw const ORDER).cast(), 0);
}
