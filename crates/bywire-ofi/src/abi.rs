//! Structures and constants of libfabric, as its headers of version 1.17 and of 2.x have them.
//!
//! A newer libfabric has longer structures with the same beginning. Those that this library allocates have the longest
//! known form, as libfabric copies them whole. Of those that the program passes, only the fields of version 1.17 are read
//! or written.

#![allow(
    non_camel_case_types,
    dead_code,
    reason = "libfabric names them, and reads what is only written here"
)]

mod base;
mod remote;

use std::ffi::{c_char, c_int, c_void};

pub use base::*;
pub use remote::*;

/// The newest version of the interface that this library was compared with.
pub const VERSION: u32 = 2 << 16 | 7;

pub const FI_MSG: u64 = 1 << 1;
pub const FI_TAGGED: u64 = 1 << 3;
pub const FI_READ: u64 = 1 << 8;
pub const FI_WRITE: u64 = 1 << 9;
pub const FI_RECV: u64 = 1 << 10;
pub const FI_SEND: u64 = 1 << 11;
pub const FI_MULTI_RECV: u64 = 1 << 16;
pub const FI_REMOTE_CQ_DATA: u64 = 1 << 17;
pub const FI_MORE: u64 = 1 << 18;
pub const FI_PEEK: u64 = 1 << 19;
pub const FI_COMPLETION: u64 = 1 << 24;
pub const FI_INJECT: u64 = 1 << 25;
pub const FI_INJECT_COMPLETE: u64 = 1 << 26;
pub const FI_TRANSMIT_COMPLETE: u64 = 1 << 27;
pub const FI_DELIVERY_COMPLETE: u64 = 1 << 28;
pub const FI_MATCH_COMPLETE: u64 = 1 << 31;
pub const FI_LOCAL_COMM: u64 = 1 << 51;
pub const FI_REMOTE_COMM: u64 = 1 << 52;
pub const FI_SOURCE: u64 = 1 << 57;
pub const FI_DISCARD: u64 = 1 << 58;
/// One bit, with a meaning for each place: capabilities of an endpoint, receives, and binding a queue.
pub const FI_DIRECTED_RECV: u64 = 1 << 59;
pub const FI_CLAIM: u64 = 1 << 59;
pub const FI_SELECTIVE_COMPLETION: u64 = 1 << 59;
pub const FI_ORDER_SAS: u64 = 1 << 8;
/// Any address, or none.
pub const FI_ADDR_UNSPEC: u64 = u64::MAX;

pub const FI_EP_RDM: u32 = 3;
pub const FI_AV_TABLE: u32 = 2;
pub const FI_PROGRESS_UNSPEC: u32 = 0;
pub const FI_PROGRESS_MANUAL: u32 = 2;
pub const FI_THREAD_SAFE: u32 = 1;
pub const FI_THREAD_DOMAIN: u32 = 3;
pub const FI_RM_ENABLED: u32 = 2;
pub const FI_MR_BASIC: c_int = 1;
pub const FI_MR_SCALABLE: c_int = 2;

pub const FI_CLASS_FABRIC: usize = 1;
pub const FI_CLASS_DOMAIN: usize = 2;
pub const FI_CLASS_EP: usize = 3;
pub const FI_CLASS_AV: usize = 11;
pub const FI_CLASS_CQ: usize = 14;
pub const FI_CLASS_CNTR: usize = 15;

pub const FI_GETWAIT: c_int = 5;
pub const FI_ENABLE: c_int = 6;
pub const FI_GETWAITOBJ: c_int = 16;

pub const FI_WAIT_NONE: u32 = 0;
pub const FI_WAIT_UNSPEC: u32 = 1;
pub const FI_WAIT_FD: u32 = 3;
pub const FI_WAIT_YIELD: u32 = 5;

pub const FI_CQ_FORMAT_UNSPEC: u32 = 0;
pub const FI_CQ_FORMAT_CONTEXT: u32 = 1;
pub const FI_CQ_FORMAT_MSG: u32 = 2;
pub const FI_CQ_FORMAT_DATA: u32 = 3;
pub const FI_CQ_FORMAT_TAGGED: u32 = 4;

/// The level of options of endpoints, and the room from which on a buffer for several receives goes on being used.
pub const FI_OPT_ENDPOINT: c_int = 0;
pub const FI_OPT_MIN_MULTI_RECV: c_int = 0;

pub const FI_LOG_WARN: c_int = 0;
pub const FI_LOG_INFO: c_int = 2;
pub const FI_LOG_CORE: c_int = 0;
pub const FI_LOG_EP_CTRL: c_int = 3;

pub const FI_PARAM_STRING: c_int = 0;

pub const FI_ENOENT: c_int = 2;
pub const FI_EIO: c_int = 5;
pub const FI_EAGAIN: c_int = 11;
pub const FI_ENOMEM: c_int = 12;
pub const FI_EBUSY: c_int = 16;
pub const FI_EINVAL: c_int = 22;
pub const FI_ENOSYS: c_int = 38;
pub const FI_ENOMSG: c_int = 42;
pub const FI_ENODATA: c_int = 61;
pub const FI_EMSGSIZE: c_int = 90;
pub const FI_ENOPROTOOPT: c_int = 92;
pub const FI_ECONNRESET: c_int = 104;
pub const FI_ESHUTDOWN: c_int = 108;
pub const FI_ETIMEDOUT: c_int = 110;
pub const FI_ECONNREFUSED: c_int = 111;
pub const FI_EHOSTUNREACH: c_int = 113;
pub const FI_ECANCELED: c_int = 125;
pub const FI_EOTHER: c_int = 256;
pub const FI_ETOOSMALL: c_int = 257;
pub const FI_EOPBADSTATE: c_int = 258;
pub const FI_EAVAIL: c_int = 259;
pub const FI_EBADFLAGS: c_int = 260;
pub const FI_ENOCQ: c_int = 263;
pub const FI_ETRUNC: c_int = 265;
pub const FI_ENOAV: c_int = 267;

/// A table of such calls.
#[repr(C)]
pub struct AbsentTable {
    pub size: usize,
    pub calls: [Absent; 12],
}

#[repr(C)]
pub struct fi_tx_attr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub inject_size: usize,
    pub size: usize,
    pub iov_limit: usize,
    pub rma_iov_limit: usize,
    pub tclass: u32,
}

#[repr(C)]
pub struct fi_rx_attr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub total_buffered_recv: usize,
    pub size: usize,
    pub iov_limit: usize,
}

#[repr(C)]
pub struct fi_ep_attr {
    pub kind: u32,
    pub protocol: u32,
    pub protocol_version: u32,
    pub max_msg_size: usize,
    pub msg_prefix_size: usize,
    pub max_order_raw_size: usize,
    pub max_order_war_size: usize,
    pub max_order_waw_size: usize,
    pub mem_tag_format: u64,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
    pub auth_key_size: usize,
    pub auth_key: *mut u8,
    /// Of version 2.
    pub newer: [u64; 1],
}

#[repr(C)]
pub struct fi_domain_attr {
    pub domain: *mut c_void,
    pub name: *mut c_char,
    pub threading: u32,
    pub control_progress: u32,
    pub data_progress: u32,
    pub resource_mgmt: u32,
    pub av_type: u32,
    pub mr_mode: c_int,
    pub mr_key_size: usize,
    pub cq_data_size: usize,
    pub cq_cnt: usize,
    pub ep_cnt: usize,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
    pub max_ep_tx_ctx: usize,
    pub max_ep_rx_ctx: usize,
    pub max_ep_stx_ctx: usize,
    pub max_ep_srx_ctx: usize,
    pub cntr_cnt: usize,
    pub mr_iov_limit: usize,
    pub caps: u64,
    pub mode: u64,
    pub auth_key: *mut u8,
    pub auth_key_size: usize,
    pub max_err_data: usize,
    pub mr_cnt: usize,
    pub tclass: u32,
    /// Of versions 1.20 to 2.7.
    pub newer: [u64; 5],
}

#[repr(C)]
pub struct fi_fabric_attr {
    pub fabric: *mut c_void,
    pub name: *mut c_char,
    pub prov_name: *mut c_char,
    pub prov_version: u32,
    pub api_version: u32,
}

#[repr(C)]
pub struct fi_info {
    pub next: *mut fi_info,
    pub caps: u64,
    pub mode: u64,
    pub addr_format: u32,
    pub src_addrlen: usize,
    pub dest_addrlen: usize,
    pub src_addr: *mut c_void,
    pub dest_addr: *mut c_void,
    pub handle: *mut fid,
    pub tx_attr: *mut fi_tx_attr,
    pub rx_attr: *mut fi_rx_attr,
    pub ep_attr: *mut fi_ep_attr,
    pub domain_attr: *mut fi_domain_attr,
    pub fabric_attr: *mut fi_fabric_attr,
    pub nic: *mut c_void,
}

#[repr(C)]
pub struct fi_provider {
    pub version: u32,
    pub fi_version: u32,
    /// libfabric's own.
    pub context: [*mut c_void; 4],
    pub name: *const c_char,
    pub getinfo:
        extern "C" fn(u32, *const c_char, *const c_char, u64, *const fi_info, *mut *mut fi_info) -> c_int,
    pub fabric: extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int,
    pub cleanup: extern "C" fn(),
}

#[repr(C)]
pub struct fid_fabric {
    pub fid: fid,
    pub ops: *const fi_ops_fabric,
    pub api_version: u32,
}

#[repr(C)]
pub struct fi_ops_fabric {
    pub size: usize,
    pub domain: extern "C" fn(*mut fid_fabric, *mut fi_info, *mut *mut fid_domain, *mut c_void) -> c_int,
    pub passive_ep: Absent,
    pub eq_open: extern "C" fn(*mut fid_fabric, *mut fi_eq_attr, *mut *mut fid_eq, *mut c_void) -> c_int,
    pub wait_open: Absent,
    pub trywait: extern "C" fn(*mut fid_fabric, *mut *mut fid, c_int) -> c_int,
    pub domain2: Absent,
}

#[repr(C)]
pub struct fid_domain {
    pub fid: fid,
    pub ops: *const fi_ops_domain,
    pub mr: *const fi_ops_mr,
}

#[repr(C)]
pub struct fi_ops_domain {
    pub size: usize,
    pub av_open: extern "C" fn(*mut fid_domain, *mut fi_av_attr, *mut *mut fid_av, *mut c_void) -> c_int,
    pub cq_open: extern "C" fn(*mut fid_domain, *mut fi_cq_attr, *mut *mut fid_cq, *mut c_void) -> c_int,
    pub endpoint: extern "C" fn(*mut fid_domain, *mut fi_info, *mut *mut fid_ep, *mut c_void) -> c_int,
    pub scalable_ep: Absent,
    pub cntr_open: extern "C" fn(*mut fid_domain, *mut c_void, *mut *mut fid_cntr, *mut c_void) -> c_int,
    pub poll_open: Absent,
    pub stx_ctx: Absent,
    pub srx_ctx: Absent,
    pub query_atomic: Absent,
    pub query_collective: Absent,
    pub endpoint2: Absent,
}

#[repr(C)]
pub struct fi_av_attr {
    pub kind: u32,
    pub rx_ctx_bits: c_int,
    pub count: usize,
    pub ep_per_node: usize,
    pub name: *const c_char,
    pub map_addr: *mut c_void,
    pub flags: u64,
}

#[repr(C)]
pub struct fid_av {
    pub fid: fid,
    pub ops: *const fi_ops_av,
}

#[repr(C)]
pub struct fi_ops_av {
    pub size: usize,
    pub insert: extern "C" fn(*mut fid_av, *const c_void, usize, *mut u64, u64, *mut c_void) -> c_int,
    pub insertsvc: Absent,
    pub insertsym: Absent,
    pub remove: extern "C" fn(*mut fid_av, *mut u64, usize, u64) -> c_int,
    pub lookup: extern "C" fn(*mut fid_av, u64, *mut c_void, *mut usize) -> c_int,
    pub straddr: extern "C" fn(*mut fid_av, *const c_void, *mut c_char, *mut usize) -> *const c_char,
    pub av_set: Absent,
}

#[repr(C)]
pub struct fi_cq_attr {
    pub size: usize,
    pub flags: u64,
    pub format: u32,
    pub wait_obj: u32,
    pub signaling_vector: c_int,
    pub wait_cond: u32,
    pub wait_set: *mut c_void,
}

#[repr(C)]
pub struct fi_cq_tagged_entry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
}

#[repr(C)]
pub struct fi_cq_err_entry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
    pub olen: usize,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    pub err_data_size: usize,
}

#[repr(C)]
pub struct fid_cq {
    pub fid: fid,
    pub ops: *const fi_ops_cq,
}

#[repr(C)]
pub struct fi_ops_cq {
    pub size: usize,
    pub read: extern "C" fn(*mut fid_cq, *mut c_void, usize) -> isize,
    pub readfrom: extern "C" fn(*mut fid_cq, *mut c_void, usize, *mut u64) -> isize,
    pub readerr: extern "C" fn(*mut fid_cq, *mut fi_cq_err_entry, u64) -> isize,
    pub sread: extern "C" fn(*mut fid_cq, *mut c_void, usize, *const c_void, c_int) -> isize,
    pub sreadfrom: extern "C" fn(*mut fid_cq, *mut c_void, usize, *mut u64, *const c_void, c_int) -> isize,
    pub signal: extern "C" fn(*mut fid_cq) -> c_int,
    pub strerror: extern "C" fn(*mut fid_cq, c_int, *const c_void, *mut c_char, usize) -> *const c_char,
}

#[repr(C)]
pub struct fid_ep {
    pub fid: fid,
    pub ops: *const fi_ops_ep,
    pub cm: *const fi_ops_cm,
    pub msg: *const fi_ops_msg,
    pub rma: *const fi_ops_rma,
    pub tagged: *const fi_ops_tagged,
    pub atomic: *const AbsentTable,
    pub collective: *const AbsentTable,
}

#[repr(C)]
pub struct fi_ops_ep {
    pub size: usize,
    pub cancel: extern "C" fn(*mut fid, *mut c_void) -> isize,
    pub getopt: extern "C" fn(*mut fid, c_int, c_int, *mut c_void, *mut usize) -> c_int,
    pub setopt: extern "C" fn(*mut fid, c_int, c_int, *const c_void, usize) -> c_int,
    pub tx_ctx: Absent,
    pub rx_ctx: Absent,
    pub rx_size_left: Absent,
    pub tx_size_left: Absent,
}

#[repr(C)]
pub struct fi_ops_cm {
    pub size: usize,
    pub setname: Absent,
    pub getname: extern "C" fn(*mut fid, *mut c_void, *mut usize) -> c_int,
    pub getpeer: Absent,
    pub connect: Absent,
    pub listen: Absent,
    pub accept: Absent,
    pub reject: Absent,
    pub shutdown: Absent,
    pub join: Absent,
}

#[repr(C)]
pub struct fi_msg_tagged {
    pub msg_iov: *const iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: u64,
    pub tag: u64,
    pub ignore: u64,
    pub context: *mut c_void,
    pub data: u64,
}

#[repr(C)]
pub struct fi_msg {
    pub msg_iov: *const iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: u64,
    pub context: *mut c_void,
    pub data: u64,
}

#[repr(C)]
pub struct fi_ops_msg {
    pub size: usize,
    pub recv: extern "C" fn(*mut fid_ep, *mut c_void, usize, *mut c_void, u64, *mut c_void) -> isize,
    pub recvv: extern "C" fn(*mut fid_ep, *const iovec, *mut *mut c_void, usize, u64, *mut c_void) -> isize,
    pub recvmsg: extern "C" fn(*mut fid_ep, *const fi_msg, u64) -> isize,
    pub send: extern "C" fn(*mut fid_ep, *const c_void, usize, *mut c_void, u64, *mut c_void) -> isize,
    pub sendv: extern "C" fn(*mut fid_ep, *const iovec, *mut *mut c_void, usize, u64, *mut c_void) -> isize,
    pub sendmsg: extern "C" fn(*mut fid_ep, *const fi_msg, u64) -> isize,
    pub inject: extern "C" fn(*mut fid_ep, *const c_void, usize, u64) -> isize,
    pub senddata:
        extern "C" fn(*mut fid_ep, *const c_void, usize, *mut c_void, u64, u64, *mut c_void) -> isize,
    pub injectdata: extern "C" fn(*mut fid_ep, *const c_void, usize, u64, u64) -> isize,
}

#[repr(C)]
pub struct fid_cntr {
    pub fid: fid,
    pub ops: *const fi_ops_cntr,
}

#[repr(C)]
pub struct fi_ops_cntr {
    pub size: usize,
    pub read: extern "C" fn(*mut fid_cntr) -> u64,
    pub readerr: extern "C" fn(*mut fid_cntr) -> u64,
    pub add: extern "C" fn(*mut fid_cntr, u64) -> c_int,
    pub set: extern "C" fn(*mut fid_cntr, u64) -> c_int,
    pub wait: extern "C" fn(*mut fid_cntr, u64, c_int) -> c_int,
    pub adderr: extern "C" fn(*mut fid_cntr, u64) -> c_int,
    pub seterr: extern "C" fn(*mut fid_cntr, u64) -> c_int,
}

#[repr(C)]
pub struct fi_ops_tagged {
    pub size: usize,
    pub recv:
        extern "C" fn(*mut fid_ep, *mut c_void, usize, *mut c_void, u64, u64, u64, *mut c_void) -> isize,
    pub recvv: extern "C" fn(
        *mut fid_ep,
        *const iovec,
        *mut *mut c_void,
        usize,
        u64,
        u64,
        u64,
        *mut c_void,
    ) -> isize,
    pub recvmsg: extern "C" fn(*mut fid_ep, *const fi_msg_tagged, u64) -> isize,
    pub send: extern "C" fn(*mut fid_ep, *const c_void, usize, *mut c_void, u64, u64, *mut c_void) -> isize,
    pub sendv:
        extern "C" fn(*mut fid_ep, *const iovec, *mut *mut c_void, usize, u64, u64, *mut c_void) -> isize,
    pub sendmsg: extern "C" fn(*mut fid_ep, *const fi_msg_tagged, u64) -> isize,
    pub inject: extern "C" fn(*mut fid_ep, *const c_void, usize, u64, u64) -> isize,
    pub senddata:
        extern "C" fn(*mut fid_ep, *const c_void, usize, *mut c_void, u64, u64, u64, *mut c_void) -> isize,
    pub injectdata: extern "C" fn(*mut fid_ep, *const c_void, usize, u64, u64, u64) -> isize,
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;
    use std::process::Command;

    use super::*;

    /// Expressions of C, with their values here.
    #[derive(Default)]
    struct Table(Vec<(String, u64)>);

    macro_rules! fields {
        ($table:ident, $($structure:ident { $($field:ident $(= $name:literal)?),* })*) => {
            $($(
                let name = [stringify!($field), $($name)?].into_iter().last().unwrap_or_default();
                let expression = format!("offsetof(struct {}, {name})", stringify!($structure));
                $table.0.push((expression, offset_of!($structure, $field) as u64));
            )*)*
        };
    }

    macro_rules! constants {
        ($table:ident, $($name:ident)*) => {
            $($table.0.push((stringify!($name).to_owned(), $name as u64));)*
        };
    }

    macro_rules! sizes {
        ($($structure:ident)*) => { [$((stringify!($structure), size_of::<$structure>())),*] };
    }

    /// Fields and constants of version 1.17.
    fn table() -> Table {
        let mut table = Table::default();
        fields! { table,
            fi_tx_attr { caps, mode, op_flags, msg_order, comp_order, inject_size, size, iov_limit, rma_iov_limit, tclass }
            fi_rx_attr { caps, mode, op_flags, msg_order, comp_order, total_buffered_recv, size, iov_limit }
            fi_ep_attr { kind = "type", protocol, protocol_version, max_msg_size, msg_prefix_size, max_order_raw_size,
                         max_order_war_size, max_order_waw_size, mem_tag_format, tx_ctx_cnt, rx_ctx_cnt, auth_key_size,
                         auth_key }
            fi_domain_attr { domain, name, threading, control_progress, data_progress, resource_mgmt, av_type, mr_mode,
                             mr_key_size, cq_data_size, cq_cnt, ep_cnt, tx_ctx_cnt, rx_ctx_cnt, max_ep_tx_ctx,
                             max_ep_rx_ctx, max_ep_stx_ctx, max_ep_srx_ctx, cntr_cnt, mr_iov_limit, caps, mode, auth_key,
                             auth_key_size, max_err_data, mr_cnt, tclass }
            fi_fabric_attr { fabric, name, prov_name, prov_version, api_version }
            fi_info { next, caps, mode, addr_format, src_addrlen, dest_addrlen, src_addr, dest_addr, handle, tx_attr,
                      rx_attr, ep_attr, domain_attr, fabric_attr, nic }
            fi_provider { version, fi_version, context, name, getinfo, fabric, cleanup }
            fid { fclass, context, ops }
            fi_ops { size, close, bind, control, ops_open, tostr, ops_set }
            fid_fabric { fid, ops, api_version }
            fi_ops_fabric { size, domain, passive_ep, eq_open, wait_open, trywait, domain2 }
            fid_domain { fid, ops, mr }
            fi_ops_domain { size, av_open, cq_open, endpoint, scalable_ep, cntr_open, poll_open, stx_ctx, srx_ctx,
                            query_atomic, query_collective, endpoint2 }
            fi_ops_mr { size, reg, regv, regattr }
            fid_mr { fid, mem_desc, key }
            fi_mr_attr { mr_iov, iov_count, access, offset, requested_key, context, auth_key_size, auth_key }
            fi_rma_iov { addr, len, key }
            fi_msg_rma { msg_iov, desc, iov_count, addr, rma_iov, rma_iov_count, context, data }
            fi_ops_rma { size, read, readv, readmsg, write, writev, writemsg, inject, writedata, injectdata }
            fi_eq_attr { size, flags, wait_obj, signaling_vector, wait_set }
            fid_eq { fid, ops }
            fi_ops_eq { size, read, readerr, write, sread, strerror }
            fi_av_attr { kind = "type", rx_ctx_bits, count, ep_per_node, name, map_addr, flags }
            fid_av { fid, ops }
            fi_ops_av { size, insert, insertsvc, insertsym, remove, lookup, straddr, av_set }
            fi_cq_attr { size, flags, format, wait_obj, signaling_vector, wait_cond, wait_set }
            fi_cq_tagged_entry { op_context, flags, len, buf, data, tag }
            fi_cq_err_entry { op_context, flags, len, buf, data, tag, olen, err, prov_errno, err_data, err_data_size }
            fid_cq { fid, ops }
            fi_ops_cq { size, read, readfrom, readerr, sread, sreadfrom, signal, strerror }
            fid_ep { fid, ops, cm, msg, rma, tagged, atomic, collective }
            fi_ops_ep { size, cancel, getopt, setopt, tx_ctx, rx_ctx, rx_size_left, tx_size_left }
            fi_ops_cm { size, setname, getname, getpeer, connect, listen, accept, reject, shutdown, join }
            iovec { base = "iov_base", length = "iov_len" }
            fi_msg_tagged { msg_iov, desc, iov_count, addr, tag, ignore, context, data }
            fi_msg { msg_iov, desc, iov_count, addr, context, data }
            fi_ops_msg { size, recv, recvv, recvmsg, send, sendv, sendmsg, inject, senddata, injectdata }
            fid_cntr { fid, ops }
            fi_ops_cntr { size, read, readerr, add, set, wait, adderr, seterr }
            fi_ops_tagged { size, recv, recvv, recvmsg, send, sendv, sendmsg, inject, senddata, injectdata }
        }
        constants! { table,
            FI_MSG FI_TAGGED FI_READ FI_WRITE FI_MULTI_RECV FI_CLASS_CNTR FI_OPT_ENDPOINT FI_OPT_MIN_MULTI_RECV FI_RECV FI_SEND FI_REMOTE_CQ_DATA FI_MORE FI_PEEK FI_COMPLETION FI_INJECT FI_INJECT_COMPLETE
            FI_TRANSMIT_COMPLETE FI_DELIVERY_COMPLETE FI_MATCH_COMPLETE FI_LOCAL_COMM FI_REMOTE_COMM FI_SOURCE FI_DISCARD
            FI_DIRECTED_RECV FI_CLAIM FI_SELECTIVE_COMPLETION FI_ORDER_SAS FI_ADDR_UNSPEC FI_EP_RDM FI_AV_TABLE
            FI_PROGRESS_UNSPEC FI_PROGRESS_MANUAL FI_THREAD_SAFE FI_THREAD_DOMAIN FI_RM_ENABLED FI_MR_BASIC FI_MR_SCALABLE FI_CLASS_FABRIC
            FI_CLASS_DOMAIN FI_CLASS_EP FI_CLASS_AV FI_CLASS_CQ FI_GETWAIT FI_ENABLE FI_GETWAITOBJ FI_WAIT_NONE
            FI_WAIT_UNSPEC FI_WAIT_FD FI_WAIT_YIELD FI_CQ_FORMAT_UNSPEC FI_CQ_FORMAT_CONTEXT FI_CQ_FORMAT_MSG
            FI_CQ_FORMAT_DATA FI_CQ_FORMAT_TAGGED FI_LOG_WARN FI_LOG_INFO FI_LOG_EP_CTRL FI_PARAM_STRING FI_ENOENT FI_EIO FI_EAGAIN
            FI_ENOMEM FI_EBUSY FI_EINVAL FI_ENOSYS FI_ENOMSG FI_ENODATA FI_EMSGSIZE FI_ENOPROTOOPT FI_ECONNRESET
            FI_ESHUTDOWN FI_ECONNREFUSED FI_EHOSTUNREACH FI_ECANCELED FI_EOTHER FI_ETOOSMALL FI_EOPBADSTATE FI_EAVAIL
            FI_ENOCQ FI_ETRUNC FI_ENOAV FI_RMA FI_REMOTE_READ FI_REMOTE_WRITE FI_RMA_EVENT FI_MR_LOCAL FI_MR_VIRT_ADDR
            FI_MR_ALLOCATED FI_MR_PROV_KEY FI_CLASS_MR FI_CLASS_EQ FI_EACCES FI_ENOKEY FI_EBADFLAGS FI_ETIMEDOUT
        }
        table
    }

    #[test]
    fn structures_and_constants_are_those_of_the_installed_headers() {
        let Table(table) = table();
        // Structures that libfabric copies, and the longest forms of those that may be copied here.
        let allocated = sizes!(fi_tx_attr fi_rx_attr fi_ep_attr fi_domain_attr fi_fabric_attr fi_info);
        let passed = sizes!(fid_mr fi_mr_attr fi_rma_iov fi_msg_rma fi_ops_rma fi_eq_attr fid_eq fi_ops_eq fi_provider fid fi_ops fid_fabric fi_ops_fabric fid_domain fi_ops_domain fi_ops_mr fi_av_attr
            fid_av fi_ops_av fi_cq_attr fi_cq_tagged_entry fi_cq_err_entry fid_cq fi_ops_cq fid_ep fi_ops_ep fi_ops_cm
            iovec fi_msg fi_ops_msg fid_cntr fi_ops_cntr fi_msg_tagged fi_ops_tagged);
        let directory = tempfile::tempdir().expect("a directory");
        let [source, program] = ["table.c", "table"].map(|name| directory.path().join(name));
        let sizes = allocated.iter().chain(&passed).map(|(name, _)| format!("sizeof(struct {name})"));
        let expressions = table.iter().map(|(expression, _)| expression.clone()).chain(sizes);
        let lines = expressions
            .map(|expression| format!("    printf(\"%llu\\n\", (unsigned long long) ({expression}));\n"));
        let text = format!(
            "#include <stddef.h>\n#include <stdio.h>\n#include <sys/uio.h>\n#include <rdma/fabric.h>\n\
             #include <rdma/fi_cm.h>\n#include <rdma/fi_domain.h>\n#include <rdma/fi_endpoint.h>\n\
             #include <rdma/fi_eq.h>\n#include <rdma/fi_errno.h>\n#include <rdma/fi_rma.h>\n\
             #include <rdma/fi_tagged.h>\n\
             #include <rdma/providers/fi_log.h>\n#include <rdma/providers/fi_prov.h>\nint main(void)\n{{\n{}}}\n",
            lines.collect::<String>()
        );
        std::fs::write(&source, text).expect("written");
        let compiled = Command::new("cc").arg("-o").args([&program, &source]).output();
        let compiled = match compiled {
            Ok(output) if output.status.success() => output,
            Ok(output) if String::from_utf8_lossy(&output.stderr).contains("rdma/fabric.h: No such file") => {
                eprintln!("not run: the headers of libfabric are not installed");
                return;
            }
            Ok(output) => panic!("{}", String::from_utf8_lossy(&output.stderr)),
            Err(_) => {
                eprintln!("not run: there is no C compiler");
                return;
            }
        };
        assert!(compiled.status.success());
        let output = Command::new(&program).output().expect("run").stdout;
        let output = String::from_utf8(output).expect("numbers");
        let mut values = output.lines().map(|line| line.parse::<u64>().expect("a number"));
        for (expression, here) in table {
            // Negative numbers and those of 32 bits are as long as in C.
            assert_eq!(values.next(), Some(here), "{expression}");
        }
        for (name, here) in allocated {
            assert!(
                values.next().is_some_and(|there| there <= here as u64),
                "{name} is longer in the headers"
            );
        }
        for (name, here) in passed {
            assert!(
                values.next().is_some_and(|there| there >= here as u64),
                "{name} is shorter in the headers"
            );
        }
        assert_eq!(values.next(), None);
    }

    #[test]
    fn structures_that_libfabric_copies_are_as_long_as_in_its_newest_version() {
        assert_eq!((size_of::<fi_domain_attr>(), size_of::<fi_ep_attr>()), (232, 104));
        assert_eq!((size_of::<fi_tx_attr>(), size_of::<fi_rx_attr>(), size_of::<fi_info>()), (80, 64, 120));
    }
}
