//! Sends and receives, tagged or not, as their calls describe them.

use std::ffi::c_void;

use super::info::INJECT_BYTES;
use super::object::{EndpointObject, endpoint};
use crate::abi::{
    FI_CLAIM, FI_COMPLETION, FI_DELIVERY_COMPLETE, FI_DISCARD, FI_EAGAIN, FI_EINVAL, FI_EMSGSIZE, FI_INJECT,
    FI_MATCH_COMPLETE, FI_MSG, FI_MULTI_RECV, FI_PEEK, FI_RECV, FI_SEND, FI_TAGGED, fid_ep, iovec,
};
use crate::addresses::Addresses;
use crate::endpoint::{Channel, Endpoint, Message};
use crate::memory::Memory;
use crate::operation::{MultiReceive, ReceiveHandle, SendReport};
use crate::outlets::Outlets;

/// One piece of the program's memory.
///
/// # Errors
/// It has no address.
pub fn one(base: *const c_void, length: usize) -> Result<Memory, i32> {
    if base.is_null() && length > 0 {
        return Err(FI_EINVAL);
    }
    // SAFETY: the program leaves the memory to the operation until its completion, and of an inject until the call returns.
    // Memory of a receive is written only, and that of a send read only.
    Ok(unsafe { Memory::new(base.cast_mut().cast(), length) })
}

/// Several pieces of it.
///
/// # Errors
/// There are too many, or one has no address.
pub fn several(vectors: *const iovec, count: usize) -> Result<Memory, i32> {
    // SAFETY: the program gives `count` vectors, and leaves their memory to the operation until its completion.
    unsafe { Memory::gather(vectors, count) }.ok_or(FI_EINVAL)
}

/// The flag of a channel in completions.
fn kind(channel: Channel) -> u64 {
    match channel {
        Channel::Tagged => FI_TAGGED,
        Channel::Untagged => FI_MSG,
    }
}

/// What a call says of a send.
pub struct Sending {
    pub channel: Channel,
    pub to: u64,
    pub tag: u64,
    pub data: Option<u64>,
    pub context: *mut c_void,
    /// The call's own flags. `None`: those of the endpoint.
    pub flags: Option<u64>,
    /// Does it report at all?
    pub is_reported: bool,
}

impl Sending {
    /// A send with the flags of the endpoint.
    pub fn plain(channel: Channel, to: u64, tag: u64, context: *mut c_void) -> Self {
        Self { channel, to, tag, data: None, context, flags: None, is_reported: true }
    }

    /// A send whose payload is the program's again at once, and that reports nothing.
    pub fn injected(channel: Channel, to: u64, tag: u64) -> Self {
        let flags = Some(FI_INJECT);
        Self { flags, is_reported: false, ..Self::plain(channel, to, tag, std::ptr::null_mut()) }
    }

    /// The same with data for the receiver's completion.
    pub fn with_data(self, data: u64) -> Self {
        Self { data: Some(data), ..self }
    }

    /// Begins it.
    ///
    /// # Errors
    /// Those of [`crate::endpoint::Endpoint::send`].
    #[inline(always)]
    pub fn begin(self, fid: *mut fid_ep, memory: Memory) -> Result<(), i32> {
        let EndpointObject { domain, number, .. } = endpoint(fid);
        let mut state = domain.state()?;
        let (endpoint, outlets, addresses) = state.enabled(*number)?;
        let bindings = &endpoint.bindings;
        let flags = self.flags.unwrap_or(bindings.transmit_flags);
        // How far a send has to be is a choice for all sends of an endpoint, or for one.
        let level = (flags | bindings.transmit_flags) & (FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE);
        let is_injected = flags & FI_INJECT != 0;
        if is_injected && memory.length() > INJECT_BYTES as u64 {
            return Err(FI_EMSGSIZE);
        }
        let is_asked_for = !bindings.is_transmit_selective || flags & FI_COMPLETION != 0;
        let report = SendReport {
            context: self.context as usize,
            flags: FI_SEND | kind(self.channel),
            is_reported: self.is_reported && is_asked_for,
            is_silent: !self.is_reported,
        };
        let Self { channel, to, tag, data, is_reported, .. } = self;
        let is_synchronous = level != 0 && is_reported;
        let message = Message { to, tag, data, is_synchronous, is_injected };
        let has_left = endpoint.send(channel, message, (memory, report), (outlets, addresses))?;
        if has_left || !is_injected {
            return Ok(());
        }
        let awaited = endpoint.awaited(to, addresses);
        drop(state);
        if let Some(remote) = awaited {
            domain.wait_for_connection(*number, remote);
        }
        Ok(())
    }
}

/// What a call says of a receive.
pub struct Receiving {
    pub channel: Channel,
    pub from: u64,
    pub tag: u64,
    /// The bits of the tag that are not compared.
    pub ignore: u64,
    pub context: *mut c_void,
    /// The call's own flags. `None`: those of the endpoint.
    pub flags: Option<u64>,
}

impl Receiving {
    /// Begins it, or looks for a message.
    ///
    /// # Errors
    /// Those of [`crate::endpoint::Endpoint::receive`].
    #[inline(always)]
    pub fn begin(self, fid: *mut fid_ep, memory: Memory) -> Result<(), i32> {
        let EndpointObject { domain, number, .. } = endpoint(fid);
        let mut state = domain.state()?;
        let (endpoint, outlets, addresses) = state.enabled(*number)?;
        let flags = self.flags.unwrap_or(endpoint.bindings.receive_flags);
        if flags & (FI_PEEK | FI_CLAIM | FI_DISCARD | FI_MULTI_RECV) != 0 {
            let begun = self.begin_other(endpoint, memory, flags, (outlets, addresses));
            state.arm_again();
            return begun;
        }
        let selector = endpoint.selector(self.from, (self.tag, self.ignore), addresses)?;
        let is_selective = endpoint.bindings.is_receive_selective;
        endpoint.receive(self.channel, selector, || self.handle(is_selective, memory, flags), outlets)
    }

    #[inline(always)]
    fn handle(&self, is_selective: bool, memory: Memory, flags: u64) -> ReceiveHandle {
        ReceiveHandle {
            memory,
            written: 0,
            context: self.context as usize,
            flags: FI_RECV | kind(self.channel),
            is_reported: !is_selective || flags & FI_COMPLETION != 0,
            key: None,
            multi: None,
        }
    }

    /// Looks for a message, takes one that was set aside, or receives several.
    #[inline(never)]
    fn begin_other(
        self,
        endpoint: &mut Endpoint,
        memory: Memory,
        flags: u64,
        (outlets, addresses): (&mut Outlets, &Addresses),
    ) -> Result<(), i32> {
        let Self { channel, from, tag, ignore, .. } = self;
        let (context, completion_flags) = (self.context as usize, FI_RECV | kind(channel));
        if outlets.is_full(endpoint.bindings.receive_queue) {
            return Err(FI_EAGAIN);
        }
        match (flags & FI_PEEK != 0, flags & FI_CLAIM != 0, flags & FI_DISCARD != 0) {
            (true, claims, discards) => {
                endpoint.take_all(outlets, addresses);
                let selector = endpoint.selector(from, (tag, ignore), addresses)?;
                if !discards {
                    return endpoint.peek(channel, &selector, (context, completion_flags, claims), outlets);
                }
                endpoint.discard(channel, &selector, (context, completion_flags), outlets);
                return Ok(());
            }
            (false, true, true) => {
                return endpoint.discard_claimed(channel, (context, completion_flags), outlets);
            }
            (false, false, true) => return Err(FI_EINVAL),
            _ => {}
        }
        let mut receive = self.handle(endpoint.bindings.is_receive_selective, memory, flags);
        if flags & FI_CLAIM != 0 {
            return endpoint.receive_claimed(channel, receive, outlets);
        }
        let selector = endpoint.selector(from, (tag, ignore), addresses)?;
        // Of the flags of the endpoint, this one is for receives without a tag.
        let may_be_multi = channel == Channel::Untagged || self.flags.is_some();
        if flags & FI_MULTI_RECV != 0 && may_be_multi {
            let rest_bytes = endpoint.bindings.multi_receive_bytes;
            receive.multi = Some(Box::new(MultiReceive { selector, rest_bytes }));
            return endpoint.receive_several(channel, selector, receive, outlets);
        }
        endpoint.receive(channel, selector, || receive, outlets)
    }
}
