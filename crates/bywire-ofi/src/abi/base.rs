//! What all descriptors begin with.

use std::ffi::{c_char, c_int, c_void};

/// A call that is not supported. It looks at no argument, and answers `-FI_ENOSYS` as an `int` or a `ssize_t`.
pub type Absent = extern "C" fn() -> isize;

#[repr(C)]
pub struct fid {
    pub fclass: usize,
    pub context: *mut c_void,
    pub ops: *const fi_ops,
}

#[repr(C)]
pub struct fi_ops {
    pub size: usize,
    pub close: extern "C" fn(*mut fid) -> c_int,
    pub bind: extern "C" fn(*mut fid, *mut fid, u64) -> c_int,
    pub control: extern "C" fn(*mut fid, c_int, *mut c_void) -> c_int,
    pub ops_open: Absent,
    pub tostr: Option<extern "C" fn(*const fid, *mut c_char, usize) -> c_int>,
    pub ops_set: Absent,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct iovec {
    pub base: *mut c_void,
    pub length: usize,
}
