//! What the runtimes of the compilers' sanitizers would learn from the C library's calls.
//!
//! AddressSanitizer and ThreadSanitizer hook the C library's calls as this library does. They check the buffers of the
//! calls, or learn that what was sent happened before what was received. If the runtime is a shared library, a
//! program's calls reach this library first, and the runtime does not see carried bytes. So this library tells it.

use core::ffi::c_void;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::os::real;

/// A function of a runtime; 0: this program has none.
struct RuntimeFunction(AtomicUsize);

/// Returns the first byte of a range that the program does not own; null: it owns all.
static FIRST_UNOWNED: RuntimeFunction = RuntimeFunction::absent();
/// Reports that a byte that the program does not own is read, and ends the program as the user has configured.
static ADDRESS_READ: RuntimeFunction = RuntimeFunction::absent();
/// The same for a byte that is written.
static ADDRESS_WRITTEN: RuntimeFunction = RuntimeFunction::absent();
static THREAD_READ: RuntimeFunction = RuntimeFunction::absent();
static THREAD_WRITTEN: RuntimeFunction = RuntimeFunction::absent();
/// Everything that this thread has done happens before what follows [`THREAD_ACQUIRES`] of the same address elsewhere.
static THREAD_RELEASES: RuntimeFunction = RuntimeFunction::absent();
static THREAD_ACQUIRES: RuntimeFunction = RuntimeFunction::absent();

/// Stands for every connection, as the runtime uses one word for all sockets.
static ORDER: AtomicUsize = AtomicUsize::new(0);

impl RuntimeFunction {
    const fn absent() -> Self {
        Self(AtomicUsize::new(0))
    }

    fn find(&self, name: &core::ffi::CStr) {
        // SAFETY: a valid name; the handle means whatever the program has loaded.
        let found = unsafe { real::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        self.0.store(found as usize, Ordering::Relaxed);
    }

    #[inline(always)]
    fn call(&self, base: *const u8, length: usize) {
        // Relaxed, here and below: it is set before the program has a second thread.
        let address = self.0.load(Ordering::Relaxed);
        if address != 0 {
            let _nothing = call(address, base, length);
        }
    }
}

#[cold]
fn call(address: usize, base: *const u8, length: usize) -> *const u8 {
    // SAFETY: the runtimes' functions of these names take an address and a length, or an address alone, and follow
    // neither. The result is ignored where C returns nothing.
    unsafe {
        let function: unsafe extern "C" fn(*const c_void, usize) -> *const u8 = core::mem::transmute(address);
        function(base.cast(), length)
    }
}

/// Reports the first byte that is wrong, so the runtime's report names it.
#[inline(always)]
fn check(base: *const u8, length: usize, report: &RuntimeFunction) {
    let address = FIRST_UNOWNED.0.load(Ordering::Relaxed);
    if address != 0 {
        let unowned = call(address, base, length);
        if !unowned.is_null() {
            report.call(unowned, 1);
        }
    }
}

/// Looks the functions up when the library is loaded.
pub fn find_all() {
    for (told, name) in [
        (&FIRST_UNOWNED, c"__asan_region_is_poisoned"),
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

/// Whether this program has such a runtime.
pub fn is_present() -> bool {
    [&FIRST_UNOWNED, &THREAD_RELEASES].iter().any(|found| found.0.load(Ordering::Relaxed) != 0)
}

/// The program is about to send these bytes.
#[inline(always)]
pub fn reads(base: *const u8, length: usize) {
    check(base, length, &ADDRESS_READ);
    THREAD_READ.call(base, length);
}

/// The program is about to receive into these bytes.
#[inline(always)]
pub fn writes(base: *const u8, length: usize) {
    check(base, length, &ADDRESS_WRITTEN);
    THREAD_WRITTEN.call(base, length);
}

/// Bytes are about to be sent, in memory or by a call that no runtime sees.
#[inline(always)]
pub fn sends() {
    THREAD_RELEASES.call((&raw const ORDER).cast(), 0);
}

/// Bytes have been received, from memory or from the kernel.
#[inline(always)]
pub fn has_received() {
    THREAD_ACQUIRES.call((&raw const ORDER).cast(), 0);
}
