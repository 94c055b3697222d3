//! The calls for messages. Those with a tag have the same form as those without one, but for the tag.

use std::ffi::c_void;

use super::call::begun;
use super::message::{Receiving, Sending, one, several};
use crate::abi::{
    FI_EINVAL, FI_REMOTE_CQ_DATA, fi_msg, fi_msg_tagged, fi_ops_msg, fi_ops_tagged, fid_ep, iovec,
};
use crate::endpoint::Channel;

/// The calls of a channel, and their table. `tag` and `ignore` are the names of the arguments that calls with a tag have
/// besides.
macro_rules! calls {
    ($channel:expr, $table:ident, $message:ident, [$($tag:ident)?], [$($ignore:ident)?]) => {
        use super::*;

        pub static OPERATIONS: $table = $table {
            size: size_of::<$table>(),
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

        fn sending(to: u64, tag: &[u64], context: *mut c_void) -> Sending {
            Sending::plain($channel, to, word(tag), context)
        }

        fn injected(to: u64, tag: &[u64]) -> Sending {
            Sending::injected($channel, to, word(tag))
        }

        fn receiving(from: u64, (tag, ignore): (&[u64], &[u64]), context: *mut c_void) -> Receiving {
            let (tag, ignore) = (word(tag), word(ignore));
            Receiving { channel: $channel, from, tag, ignore, context, flags: None }
        }

        extern "C" fn send(
            fid: *mut fid_ep,
            base: *const c_void,
            length: usize,
            _: *mut c_void,
            to: u64,
            $($tag: u64,)?
            context: *mut c_void,
        ) -> isize {
            begun(|| sending(to, &[$($tag)?], context).begin(fid, one(base, length)?))
        }

        extern "C" fn sendv(
            fid: *mut fid_ep,
            vectors: *const iovec,
            _: *mut *mut c_void,
            count: usize,
            to: u64,
            $($tag: u64,)?
            context: *mut c_void,
        ) -> isize {
            begun(|| sending(to, &[$($tag)?], context).begin(fid, several(vectors, count)?))
        }

        extern "C" fn sendmsg(fid: *mut fid_ep, message: *const $message, flags: u64) -> isize {
            begun(|| {
                // SAFETY: the program gives a valid message.
                let message = unsafe { message.as_ref() }.ok_or(FI_EINVAL)?;
                let sending = Sending {
                    data: (flags & FI_REMOTE_CQ_DATA != 0).then_some(message.data),
                    flags: Some(flags),
                    ..sending(message.addr, &[$(message.$tag)?], message.context)
                };
                sending.begin(fid, several(message.msg_iov, message.iov_count)?)
            })
        }

        extern "C" fn inject(
            fid: *mut fid_ep,
            base: *const c_void,
            length: usize,
            to: u64,
            $($tag: u64,)?
        ) -> isize {
            begun(|| injected(to, &[$($tag)?]).begin(fid, one(base, length)?))
        }

        extern "C" fn senddata(
            fid: *mut fid_ep,
            base: *const c_void,
            length: usize,
            _: *mut c_void,
            data: u64,
            to: u64,
            $($tag: u64,)?
            context: *mut c_void,
        ) -> isize {
            begun(|| sending(to, &[$($tag)?], context).with_data(data).begin(fid, one(base, length)?))
        }

        extern "C" fn injectdata(
            fid: *mut fid_ep,
            base: *const c_void,
            length: usize,
            data: u64,
            to: u64,
            $($tag: u64,)?
        ) -> isize {
            begun(|| injected(to, &[$($tag)?]).with_data(data).begin(fid, one(base, length)?))
        }

        extern "C" fn recv(
            fid: *mut fid_ep,
            base: *mut c_void,
            length: usize,
            _: *mut c_void,
            from: u64,
            $($tag: u64,)?
            $($ignore: u64,)?
            context: *mut c_void,
        ) -> isize {
            begun(|| receiving(from, (&[$($tag)?], &[$($ignore)?]), context).begin(fid, one(base, length)?))
        }

        extern "C" fn recvv(
            fid: *mut fid_ep,
            vectors: *const iovec,
            _: *mut *mut c_void,
            count: usize,
            from: u64,
            $($tag: u64,)?
            $($ignore: u64,)?
            context: *mut c_void,
        ) -> isize {
            begun(|| receiving(from, (&[$($tag)?], &[$($ignore)?]), context).begin(fid, several(vectors, count)?))
        }

        extern "C" fn recvmsg(fid: *mut fid_ep, message: *const $message, flags: u64) -> isize {
            begun(|| {
                // SAFETY: the program gives a valid message.
                let message = unsafe { message.as_ref() }.ok_or(FI_EINVAL)?;
                let receiving = Receiving {
                    flags: Some(flags),
                    ..receiving(message.addr, (&[$(message.$tag)?], &[$(message.$ignore)?]), message.context)
                };
                receiving.begin(fid, several(message.msg_iov, message.iov_count)?)
            })
        }
    };
}

/// An argument that calls without a tag lack.
fn word(argument: &[u64]) -> u64 {
    argument.first().copied().unwrap_or(0)
}

pub mod tagged {
    calls!(Channel::Tagged, fi_ops_tagged, fi_msg_tagged, [tag], [ignore]);
}

pub mod untagged {
    calls!(Channel::Untagged, fi_ops_msg, fi_msg, [], []);
}
