//! Tagged messages.

use std::ffi::c_void;

use super::call::begun;
use super::message::{Receiving, Sending, one, several};
use crate::abi::{FI_EINVAL, FI_REMOTE_CQ_DATA, fi_msg_tagged, fi_ops_tagged, fid_ep, iovec};
use crate::endpoint::Channel::Tagged;

pub static OPERATIONS: fi_ops_tagged = fi_ops_tagged {
    size: size_of::<fi_ops_tagged>(),
    recv,
    recvv,
    recvmsg,
    send,
    sendv,
    sendmsg,
    inject,
    senddata,
    injectdata,
};

extern "C" fn send(
    fid: *mut fid_ep,
    base: *const c_void,
    length: usize,
    _: *mut c_void,
    to: u64,
    tag: u64,
    context: *mut c_void,
) -> isize {
    begun(|| Sending::plain(Tagged, to, tag, context).begin(fid, one(base, length)?))
}

extern "C" fn sendv(
    fid: *mut fid_ep,
    vectors: *const iovec,
    _: *mut *mut c_void,
    count: usize,
    to: u64,
    tag: u64,
    context: *mut c_void,
) -> isize {
    begun(|| Sending::plain(Tagged, to, tag, context).begin(fid, several(vectors, count)?))
}

extern "C" fn sendmsg(fid: *mut fid_ep, message: *const fi_msg_tagged, flags: u64) -> isize {
    begun(|| {
        // SAFETY: the program gives a valid message.
        let message = unsafe { message.as_ref() }.ok_or(FI_EINVAL)?;
        let sending = Sending {
            data: (flags & FI_REMOTE_CQ_DATA != 0).then_some(message.data),
            flags: Some(flags),
            ..Sending::plain(Tagged, message.addr, message.tag, message.context)
        };
        sending.begin(fid, several(message.msg_iov, message.iov_count)?)
    })
}

extern "C" fn inject(fid: *mut fid_ep, base: *const c_void, length: usize, to: u64, tag: u64) -> isize {
    begun(|| Sending::injected(Tagged, to, tag).begin(fid, one(base, length)?))
}

extern "C" fn senddata(
    fid: *mut fid_ep,
    base: *const c_void,
    length: usize,
    _: *mut c_void,
    data: u64,
    to: u64,
    tag: u64,
    context: *mut c_void,
) -> isize {
    begun(|| Sending::plain(Tagged, to, tag, context).with_data(data).begin(fid, one(base, length)?))
}

extern "C" fn injectdata(
    fid: *mut fid_ep,
    base: *const c_void,
    length: usize,
    data: u64,
    to: u64,
    tag: u64,
) -> isize {
    begun(|| Sending::injected(Tagged, to, tag).with_data(data).begin(fid, one(base, length)?))
}

extern "C" fn recv(
    fid: *mut fid_ep,
    base: *mut c_void,
    length: usize,
    _: *mut c_void,
    from: u64,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    let receiving = Receiving { channel: Tagged, from, tag, ignore, context, flags: None };
    begun(|| receiving.begin(fid, one(base, length)?))
}

extern "C" fn recvv(
    fid: *mut fid_ep,
    vectors: *const iovec,
    _: *mut *mut c_void,
    count: usize,
    from: u64,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    let receiving = Receiving { channel: Tagged, from, tag, ignore, context, flags: None };
    begun(|| receiving.begin(fid, several(vectors, count)?))
}

extern "C" fn recvmsg(fid: *mut fid_ep, message: *const fi_msg_tagged, flags: u64) -> isize {
    begun(|| {
        // SAFETY: the program gives a valid message.
        let message = unsafe { message.as_ref() }.ok_or(FI_EINVAL)?;
        let &fi_msg_tagged { addr: from, tag, ignore, context, .. } = message;
        let receiving = Receiving { channel: Tagged, from, tag, ignore, context, flags: Some(flags) };
        receiving.begin(fid, several(message.msg_iov, message.iov_count)?)
    })
}
