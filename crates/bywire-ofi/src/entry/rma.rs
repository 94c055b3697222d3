//! The calls for RMA.

use std::ffi::c_void;

use bywire_match::rma::Place;

use super::call::begun;
use super::info::{INJECT_BYTES, RMA_PIECES};
use super::message::{one, several};
use super::object::{EndpointObject, endpoint};
use crate::abi::{
    FI_COMPLETION, FI_EINVAL, FI_EMSGSIZE, FI_INJECT, FI_REMOTE_CQ_DATA, FI_RMA, FI_WRITE, fi_msg_rma,
    fi_ops_rma, fid, iovec,
};
use crate::memory::Memory;
use crate::operation::{Payload, ReadHandle, SendHandle, SendReport};

pub static OPERATIONS: fi_ops_rma = fi_ops_rma {
    size: size_of::<fi_ops_rma>(),
    read,
    readv,
    readmsg,
    write,
    writev,
    writemsg,
    inject,
    writedata,
    injectdata,
};

/// What a call says of an operation.
struct Operation {
    /// The index of the other endpoint in the address vector.
    peer: u64,
    /// The place of its memory, and its key.
    place: u64,
    key: u64,
    context: *mut c_void,
    data: Option<u64>,
    /// The call's own flags. `None`: those of the endpoint.
    flags: Option<u64>,
    /// Does it report at all?
    is_reported: bool,
}

impl Operation {
    /// An operation with the flags of the endpoint.
    fn plain(peer: u64, place: u64, key: u64, context: *mut c_void) -> Self {
        Self { peer, place, key, context, data: None, flags: None, is_reported: true }
    }

    /// A write whose payload the program takes back at once.
    fn injected(peer: u64, place: u64, key: u64) -> Self {
        let flags = Some(FI_INJECT);
        Self { flags, is_reported: false, ..Self::plain(peer, place, key, std::ptr::null_mut()) }
    }

    /// An operation, and its memory here, of a message that describes it.
    fn described(message: *const fi_msg_rma, flags: u64) -> Result<(Self, Memory), i32> {
        // SAFETY: the program gives a valid message.
        let message = unsafe { message.as_ref() }.ok_or(FI_EINVAL)?;
        if message.rma_iov_count != RMA_PIECES {
            return Err(FI_EINVAL);
        }
        // SAFETY: the program gives as many places as it says.
        let place = unsafe { message.rma_iov.as_ref() }.ok_or(FI_EINVAL)?;
        let memory = several(message.msg_iov, message.iov_count)?;
        if place.len as u64 != memory.length() {
            return Err(FI_EINVAL);
        }
        let operation = Self {
            data: (flags & FI_REMOTE_CQ_DATA != 0).then_some(message.data),
            flags: Some(flags),
            ..Self::plain(message.addr, place.addr, place.key, message.context)
        };
        Ok((operation, memory))
    }

    fn target(&self, memory: &Memory) -> (u64, Place) {
        (self.peer, Place { key: self.key, offset: self.place, length: memory.length() })
    }

    fn write(self, ep: *mut fid, memory: Memory) -> Result<(), i32> {
        let EndpointObject { domain, number, .. } = endpoint(ep);
        let mut state = domain.state()?;
        let (endpoint, outlets, addresses) = state.enabled(*number)?;
        let bindings = &endpoint.bindings;
        let flags = self.flags.unwrap_or(bindings.transmit_flags);
        let is_injected = flags & FI_INJECT != 0;
        if is_injected && memory.length() > INJECT_BYTES as u64 {
            return Err(FI_EMSGSIZE);
        }
        let is_asked_for = !bindings.is_transmit_selective || flags & FI_COMPLETION != 0;
        let target = self.target(&memory);
        let write = SendHandle {
            payload: if is_injected { Payload::copy(&memory) } else { Payload::Program(memory) },
            report: SendReport {
                context: self.context as usize,
                flags: FI_RMA | FI_WRITE,
                is_reported: self.is_reported && is_asked_for,
                is_silent: !self.is_reported,
            },
        };
        endpoint.write(target, self.data, write, (outlets, addresses))?;
        let awaited = if is_injected { endpoint.awaited(self.peer, addresses) } else { None };
        drop(state);
        if let Some(remote) = awaited {
            domain.wait_for_connection(*number, remote);
        }
        Ok(())
    }

    fn read(self, ep: *mut fid, memory: Memory) -> Result<(), i32> {
        let EndpointObject { domain, number, .. } = endpoint(ep);
        let mut state = domain.state()?;
        let (endpoint, outlets, addresses) = state.enabled(*number)?;
        let bindings = &endpoint.bindings;
        let flags = self.flags.unwrap_or(bindings.transmit_flags);
        let is_reported = !bindings.is_transmit_selective || flags & FI_COMPLETION != 0;
        let target = self.target(&memory);
        let context = self.context as usize;
        let read = ReadHandle { memory, written: 0, context, is_reported, key: None };
        endpoint.read(target, read, (outlets, addresses))
    }
}

extern "C" fn read(
    ep: *mut fid,
    base: *mut c_void,
    length: usize,
    _: *mut c_void,
    from: u64,
    place: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    begun(|| Operation::plain(from, place, key, context).read(ep, one(base, length)?))
}

extern "C" fn readv(
    ep: *mut fid,
    vectors: *const iovec,
    _: *mut *mut c_void,
    count: usize,
    from: u64,
    place: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    begun(|| Operation::plain(from, place, key, context).read(ep, several(vectors, count)?))
}

extern "C" fn readmsg(ep: *mut fid, message: *const fi_msg_rma, flags: u64) -> isize {
    begun(|| {
        let (operation, memory) = Operation::described(message, flags)?;
        operation.read(ep, memory)
    })
}

extern "C" fn write(
    ep: *mut fid,
    base: *const c_void,
    length: usize,
    _: *mut c_void,
    to: u64,
    place: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    begun(|| Operation::plain(to, place, key, context).write(ep, one(base, length)?))
}

extern "C" fn writev(
    ep: *mut fid,
    vectors: *const iovec,
    _: *mut *mut c_void,
    count: usize,
    to: u64,
    place: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    begun(|| Operation::plain(to, place, key, context).write(ep, several(vectors, count)?))
}

extern "C" fn writemsg(ep: *mut fid, message: *const fi_msg_rma, flags: u64) -> isize {
    begun(|| {
        let (operation, memory) = Operation::described(message, flags)?;
        operation.write(ep, memory)
    })
}

extern "C" fn inject(
    ep: *mut fid,
    base: *const c_void,
    length: usize,
    to: u64,
    place: u64,
    key: u64,
) -> isize {
    begun(|| Operation::injected(to, place, key).write(ep, one(base, length)?))
}

extern "C" fn writedata(
    ep: *mut fid,
    base: *const c_void,
    length: usize,
    _: *mut c_void,
    data: u64,
    to: u64,
    place: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    begun(|| {
        let operation = Operation { data: Some(data), ..Operation::plain(to, place, key, context) };
        operation.write(ep, one(base, length)?)
    })
}

extern "C" fn injectdata(
    ep: *mut fid,
    base: *const c_void,
    length: usize,
    data: u64,
    to: u64,
    place: u64,
    key: u64,
) -> isize {
    begun(|| {
        let operation = Operation { data: Some(data), ..Operation::injected(to, place, key) };
        operation.write(ep, one(base, length)?)
    })
}
