//! Structures and constants of RMA, registered memory and event queues.

use std::ffi::{c_char, c_int, c_void};

use super::base::{Absent, fid, iovec};

pub const FI_RMA: u64 = 1 << 2;
pub const FI_REMOTE_READ: u64 = 1 << 12;
pub const FI_REMOTE_WRITE: u64 = 1 << 13;
pub const FI_RMA_EVENT: u64 = 1 << 56;
pub const FI_MR_LOCAL: c_int = 1 << 2;
pub const FI_MR_VIRT_ADDR: c_int = 1 << 4;
pub const FI_MR_ALLOCATED: c_int = 1 << 5;
pub const FI_MR_PROV_KEY: c_int = 1 << 6;

pub const FI_CLASS_MR: usize = 12;
pub const FI_CLASS_EQ: usize = 13;

pub const FI_EACCES: c_int = 13;
pub const FI_ENOKEY: c_int = 266;

#[repr(C)]
pub struct fi_ops_mr {
    pub size: usize,
    pub reg: extern "C" fn(
        *mut fid,
        *const c_void,
        usize,
        u64,
        u64,
        u64,
        u64,
        *mut *mut fid_mr,
        *mut c_void,
    ) -> c_int,
    pub regv: extern "C" fn(
        *mut fid,
        *const iovec,
        usize,
        u64,
        u64,
        u64,
        u64,
        *mut *mut fid_mr,
        *mut c_void,
    ) -> c_int,
    pub regattr: extern "C" fn(*mut fid, *const fi_mr_attr, u64, *mut *mut fid_mr) -> c_int,
}

#[repr(C)]
pub struct fid_mr {
    pub fid: fid,
    pub mem_desc: *mut c_void,
    pub key: u64,
}

/// Its fields of version 1.17 up to the key for access, without those of accelerators.
#[repr(C)]
pub struct fi_mr_attr {
    pub mr_iov: *const iovec,
    pub iov_count: usize,
    pub access: u64,
    pub offset: u64,
    pub requested_key: u64,
    pub context: *mut c_void,
    pub auth_key_size: usize,
    pub auth_key: *mut u8,
}

#[repr(C)]
pub struct fi_rma_iov {
    pub addr: u64,
    pub len: usize,
    pub key: u64,
}

#[repr(C)]
pub struct fi_msg_rma {
    pub msg_iov: *const iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: u64,
    pub rma_iov: *const fi_rma_iov,
    pub rma_iov_count: usize,
    pub context: *mut c_void,
    pub data: u64,
}

/// Endpoints are passed by the descriptor that they begin with.
#[repr(C)]
pub struct fi_ops_rma {
    pub size: usize,
    pub read: extern "C" fn(*mut fid, *mut c_void, usize, *mut c_void, u64, u64, u64, *mut c_void) -> isize,
    pub readv:
        extern "C" fn(*mut fid, *const iovec, *mut *mut c_void, usize, u64, u64, u64, *mut c_void) -> isize,
    pub readmsg: extern "C" fn(*mut fid, *const fi_msg_rma, u64) -> isize,
    pub write:
        extern "C" fn(*mut fid, *const c_void, usize, *mut c_void, u64, u64, u64, *mut c_void) -> isize,
    pub writev:
        extern "C" fn(*mut fid, *const iovec, *mut *mut c_void, usize, u64, u64, u64, *mut c_void) -> isize,
    pub writemsg: extern "C" fn(*mut fid, *const fi_msg_rma, u64) -> isize,
    pub inject: extern "C" fn(*mut fid, *const c_void, usize, u64, u64, u64) -> isize,
    pub writedata:
        extern "C" fn(*mut fid, *const c_void, usize, *mut c_void, u64, u64, u64, u64, *mut c_void) -> isize,
    pub injectdata: extern "C" fn(*mut fid, *const c_void, usize, u64, u64, u64, u64) -> isize,
}

#[repr(C)]
pub struct fi_eq_attr {
    pub size: usize,
    pub flags: u64,
    pub wait_obj: u32,
    pub signaling_vector: c_int,
    pub wait_set: *mut c_void,
}

#[repr(C)]
pub struct fid_eq {
    pub fid: fid,
    pub ops: *const fi_ops_eq,
}

#[repr(C)]
pub struct fi_ops_eq {
    pub size: usize,
    pub read: extern "C" fn(*mut fid_eq, *mut u32, *mut c_void, usize, u64) -> isize,
    pub readerr: Absent,
    pub write: extern "C" fn(*mut fid_eq, u32, *const c_void, usize, u64) -> isize,
    pub sread: extern "C" fn(*mut fid_eq, *mut u32, *mut c_void, usize, c_int, u64) -> isize,
    pub strerror: extern "C" fn(*mut fid_eq, c_int, *const c_void, *mut c_char, usize) -> *const c_char,
}
