//! Messages without a tag.

use std::ffi::c_void;

use super::call::begun;
use super::message::{Receiving, Sending, one, several};
use crate::abi::{FI_EINVAL, FI_REMOTE_CQ_DATA, fi_msg, fi_ops_msg, fid_ep, iovec};
use crate::endpoint::Channel::Untagged;

pub static OPERATIONS: fi_ops_msg = fi_ops_msg {
    size: size_of::<fi_ops_msg>(),
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

fn sending(to: u64, context: *mut c_void) -> Sending {
    Sending::plain(Untagged, to, 0, context)
}

fn receiving(from: u64, context: *mut c_void, flags: Option<u64>) -> Receiving {
    Receiving { channel: Untagged, from, tag: 0, ignore: 0, context, flags }
}

extern "C" fn send(
    fid: *mut fid_ep,
    base: *const c_void,
    length: usize,
    _: *mut c_void,
    to: u64,
    context: *mut c_void,
) -> isize {
    begun(|| sending(to, context).begin(fid, one(base, length)?))
}

extern "C" fn sendv(
    fid: *mut fid_ep,
    vectors: *const iovec,
    _: *mut *mut c_void,
    count: usize,
    to: u64,
    context: *mut c_void,
) -> isize {
    begun(|| sending(to, context).begin(fid, several(vectors, count)?))
}

extern "C" fn sendmsg(fid: *mut fid_ep, message: *const fi_msg, flags: u64) -> isize {
    begun(|| {
        // SAFETY: the program gives a valid message.
        let message = unsafe { message.as_ref() }.ok_or(FI_EINVAL)?;
        let sending = Sending {
            data: (flags & FI_REMOTE_CQ_DATA != 0).then_some(message.data),
            flags: Some(flags),
            ..sending(message.addr, message.context)
        };
        sending.begin(fid, several(message.msg_iov, message.iov_count)?)
    })
}

extern "C" fn inject(fid: *mut fid_ep, base: *const c_void, length: usize, to: u64) -> isize {
    begun(|| Sending::injected(Untagged, to, 0).begin(fid, one(base, length)?))
}

extern "C" fn senddata(
    fid: *mut fid_ep,
    base: *const c_void,
    length: usize,
    _: *mut c_void,
    data: u64,
    to: u64,
    context: *mut c_void,
) -> isize {
    begun(|| sending(to, context).with_data(data).begin(fid, one(base, length)?))
}

extern "C" fn injectdata(fid: *mut fid_ep, base: *const c_void, length: usize, data: u64, to: u64) -> isize {
    begun(|| Sending::injected(Untagged, to, 0).with_data(data).begin(fid, one(base, length)?))
}

extern "C" fn recv(
    fid: *mut fid_ep,
    base: *mut c_void,
    length: usize,
    _: *mut c_void,
    from: u64,
    context: *mut c_void,
) -> isize {
    begun(|| receiving(from, context, None).begin(fid, one(base, length)?))
}

extern "C" fn recvv(
    fid: *mut fid_ep,
    vectors: *const iovec,
    _: *mut *mut c_void,
    count: usize,
    from: u64,
    context: *mut c_void,
) -> isize {
    begun(|| receiving(from, context, None).begin(fid, several(vectors, count)?))
}

extern "C" fn recvmsg(fid: *mut fid_ep, message: *const fi_msg, flags: u64) -> isize {
    begun(|| {
        // SAFETY: the program gives a valid message.
        let message = unsafe { message.as_ref() }.ok_or(FI_EINVAL)?;
        let memory = several(message.msg_iov, message.iov_count)?;
        receiving(message.addr, message.context, Some(flags)).begin(fid, memory)
    })
}
