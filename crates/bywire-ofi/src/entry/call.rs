//! What every call has: a shield against panics, and answers in libfabric's form.

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::abi::{
    Absent, AbsentTable, FI_CLASS_EQ, FI_EBUSY, FI_ENOSYS, FI_EOPBADSTATE, FI_EOTHER, FI_GETWAIT,
    FI_GETWAITOBJ, FI_WAIT_FD, FI_WAIT_NONE, fi_ops, fid,
};

/// Runs a call. A panic leaves the domain's lock poisoned, so that all later calls fail, and is answered by an error.
#[inline]
pub fn shielded<T>(call: impl FnOnce() -> Result<T, i32>) -> Result<T, i32> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(FI_EOTHER))
}

/// The answer of a call as an `int`.
pub fn status(call: impl FnOnce() -> Result<(), i32>) -> c_int {
    shielded(call).map_or_else(|error| -error, |()| 0)
}

/// Answers a call that closes an object. `end` ends what its domain has of it, or says that it is in use: then it stays. In a forked
/// child nothing is left to do: the rest is its parent's.
///
/// # Safety
/// The descriptor is one of a `T` that was not closed, and nothing uses it any more if this answers anything but [`FI_EBUSY`].
pub unsafe fn close_object<T>(fid: *mut fid, end: impl FnOnce(&T) -> Result<(), i32>) -> c_int {
    status(|| {
        // SAFETY: the caller's guarantee.
        let ended = end(unsafe { object::<T, _>(fid) });
        if ended == Err(FI_EBUSY) {
            return ended;
        }
        // SAFETY: the caller's guarantee: it came from `Box::into_raw` of a `T`.
        drop(unsafe { Box::from_raw(fid.cast::<T>()) });
        if ended == Err(FI_EOPBADSTATE) { Ok(()) } else { ended }
    })
}

/// The answer of a call as a `ssize_t`.
#[inline]
pub fn count(call: impl FnOnce() -> Result<usize, i32>) -> isize {
    shielded(call).map_or_else(|error| -(error as isize), |count| count as isize)
}

/// The answer of an operation as a `ssize_t`.
#[inline]
pub fn begun(call: impl FnOnce() -> Result<(), i32>) -> isize {
    count(|| call().map(|()| 0))
}

/// Makes an object for the program.
pub fn give<T, F>(object: T, place: *mut *mut F) {
    // SAFETY: libfabric's calls that open something have a valid place for it.
    unsafe { place.write(Box::into_raw(Box::new(object)).cast()) };
}

/// The object behind a descriptor that [`give`] has made.
///
/// # Safety
/// The descriptor is one of a `T` that was not closed.
pub unsafe fn object<'a, T, F>(fid: *mut F) -> &'a T {
    // SAFETY: the caller's guarantee. The descriptor is the first field of the object.
    unsafe { &*fid.cast::<T>() }
}

/// The answer of calls that are not supported. In C they have arguments, which the caller keeps and nobody looks at.
pub extern "C" fn absent() -> isize {
    -(FI_ENOSYS as isize)
}

/// A table of them.
pub static ABSENT_TABLE: AbsentTable =
    AbsentTable { size: size_of::<AbsentTable>(), calls: [absent as Absent; 12] };

pub extern "C" fn bind_nothing(_: *mut fid, _: *mut fid, _: u64) -> c_int {
    -FI_ENOSYS
}

/// Accepts an event queue, to which nothing reports. Otherwise as [`bind_nothing`].
pub extern "C" fn bind_events(_: *mut fid, other: *mut fid, _: u64) -> c_int {
    // SAFETY: the program gives a valid descriptor, which begins with its class.
    match unsafe { other.as_ref() } {
        Some(other) if other.fclass == FI_CLASS_EQ => 0,
        _ => -FI_ENOSYS,
    }
}

pub extern "C" fn control_nothing(_: *mut fid, _: c_int, _: *mut c_void) -> c_int {
    -FI_ENOSYS
}

/// The first table of a descriptor.
pub const fn operations(
    close: extern "C" fn(*mut fid) -> c_int,
    bind: extern "C" fn(*mut fid, *mut fid, u64) -> c_int,
    control: extern "C" fn(*mut fid, c_int, *mut c_void) -> c_int,
) -> fi_ops {
    fi_ops { size: size_of::<fi_ops>(), close, bind, control, ops_open: absent, tostr: None, ops_set: absent }
}

/// Copies text to a C string of `length` bytes, cut if it is longer.
pub fn write_text(text: &str, target: *mut c_char, length: usize) {
    if target.is_null() || length == 0 {
        return;
    }
    let bytes = &text.as_bytes()[..text.len().min(length - 1)];
    // SAFETY: the caller of the C function has said that there is room for `length` bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), target.cast(), bytes.len());
        target.add(bytes.len()).write(0);
    }
}

/// Answers `fi_control` of a queue that has a descriptor, or none.
///
/// # Safety
/// `argument` has room for a descriptor with `FI_GETWAIT`, and for the kind of object with `FI_GETWAITOBJ`.
pub unsafe fn tell_wait_object(
    command: c_int,
    argument: *mut c_void,
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<(), i32> {
    match command {
        FI_GETWAIT => {
            let descriptor = descriptor.ok_or(FI_ENOSYS)?.as_raw_fd();
            // SAFETY: the caller's guarantee.
            unsafe { argument.cast::<c_int>().write(descriptor) };
        }
        FI_GETWAITOBJ => {
            let object = if descriptor.is_some() { FI_WAIT_FD } else { FI_WAIT_NONE };
            // SAFETY: the caller's guarantee.
            unsafe { argument.cast::<u32>().write(object) };
        }
        _ => return Err(FI_ENOSYS),
    }
    Ok(())
}
