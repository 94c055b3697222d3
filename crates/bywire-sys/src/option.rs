//! Options of sockets that `rustix` does not cover.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// Plain data without padding, for which any bytes are a valid value.
pub(crate) trait Plain: Copy + Default {}
impl Plain for i32 {}
impl Plain for u64 {}
impl Plain for [u8; 8] {}
impl Plain for [u32; 9] {}

/// Reads an option. What the kernel does not write is zero.
pub(crate) fn read<T: Plain>(file: &impl AsFd, level: i32, name: i32) -> Result<T, Errno> {
    let mut value = T::default();
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `value`, for which any bytes are valid.
    let status = unsafe {
        libc::getsockopt(file.as_fd().as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut length)
    };
    if status == 0 { Ok(value) } else { Err(last_error()) }
}

/// Sets an option that is one number.
pub(crate) fn set(file: &impl AsFd, level: i32, name: i32, value: i32) -> Result<(), Errno> {
    let length = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the kernel reads one int, which lives here; the descriptor is borrowed.
    let status =
        unsafe { libc::setsockopt(file.as_fd().as_raw_fd(), level, name, (&raw const value).cast(), length) };
    if status == 0 { Ok(()) } else { Err(last_error()) }
}

/// What the last call of the C library failed with.
pub(crate) fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
