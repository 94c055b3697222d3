//! What a program asks of an endpoint.

use bywire_match::head::EagerHead;
use bywire_match::{Envelope, PeerId, Refused, Selector, Send};

use super::frames::{carry_eager, carry_short, short_payload};
use super::message::Message;
use super::progress::{report_at_once, report_sent};
use super::remote::{Link, Remote};
use super::{Channel, Endpoint, LINK_WAIT_NS};
use crate::abi::{
    FI_ADDR_UNSPEC, FI_EAGAIN, FI_EBUSY, FI_ECANCELED, FI_EINVAL, FI_EMSGSIZE, FI_ENOENT, FI_ENOMSG,
    FI_MULTI_RECV, FI_REMOTE_CQ_DATA,
};
use crate::addresses::Addresses;
use crate::completion::Completion;
use crate::host;
use crate::memory::Memory;
use crate::operation::{Payload, ReceiveHandle, SendHandle, SendReport};
use crate::outlets::Outlets;

/// What copies of injected payloads may take that have not left.
pub(super) const COPIED_BYTES_MAX: usize = 16 << 20;

impl Endpoint {
    /// Begins to send. The payload of an injected message is copied, unless it leaves at once. The result says whether the message
    /// has left.
    ///
    /// # Errors
    /// [`FI_EAGAIN`] if too much is under way; the error of the target's end; an address that is none.
    #[inline(always)]
    pub fn send(
        &mut self,
        channel: Channel,
        message: Message,
        (memory, report): (Memory, SendReport),
        (outlets, addresses): (&mut Outlets, &Addresses),
    ) -> Result<bool, i32> {
        let remote = self.remote_at(message.to, addresses)?;
        if outlets.is_full(self.bindings.transmit_queue) {
            return Err(FI_EAGAIN);
        }
        let Message { tag, data, is_synchronous, is_injected, .. } = message;
        let message = Send { tag, data, length: memory.length(), is_synchronous };
        let Self { port, matchers, remotes, bindings, .. } = self;
        let Remote { id, link, .. } = remotes[remote];
        // What fits into a slot is looked at as the call gives it, and not as a handle, whose words would have to be stored first.
        if let Link::Open(peer) = link
            && let Some(payload) = short_payload(&memory)
            && matchers[channel as usize]
                .send_at_once(id, &message, |head| carry_short((port, peer), channel, head, payload))
        {
            report_sent(bindings, bindings.send_counter, report, 0, outlets);
            return Ok(true);
        }
        let send = SendHandle { payload: Payload::Program(memory), report };
        self.send_any((remote, channel), message, is_injected, send, outlets)
    }

    /// The same for any message.
    #[inline(never)]
    fn send_any(
        &mut self,
        (remote, channel): (usize, Channel),
        message: Send,
        is_injected: bool,
        mut send: SendHandle,
        outlets: &mut Outlets,
    ) -> Result<bool, i32> {
        let Remote { id, link, .. } = self.remotes[remote];
        match link {
            Link::Open(peer) => {
                let Self { port, matchers, scratch, .. } = self;
                let leaves = |head: EagerHead| carry_eager((port, peer), channel, head, &send, scratch);
                if matchers[channel as usize].send_at_once(id, &message, leaves) {
                    self.report_send(&send, 0, outlets);
                    return Ok(true);
                }
            }
            Link::Idle => self.connect(remote),
            Link::Ending(error) | Link::Ended(error) => return Err(error),
            _ => {}
        }
        if is_injected {
            send.copy_payload();
        }
        let copied = send.payload.copied_bytes();
        if copied > 0 && self.copied_bytes + copied > COPIED_BYTES_MAX {
            return Err(FI_EAGAIN);
        }
        if let Err((refused, _)) = self.matchers[channel as usize].send(id, message, send) {
            return Err(self.refusal(refused, id));
        }
        self.copied_bytes += copied;
        self.settle(outlets);
        Ok(false)
    }

    /// The remote of this address, if its connection is on its way.
    #[inline]
    pub fn awaited(&mut self, to: u64, addresses: &Addresses) -> Option<usize> {
        let remote = self.remote_at(to, addresses).ok()?;
        self.remotes[remote].link.is_on_its_way().then_some(remote)
    }

    /// Does a call that has injected something, and has waited for so long, wait on for the connection? What is waited in vain is
    /// counted until a connection comes, so that peers that do nothing cost a program little.
    pub fn waits_on(&mut self, remote: usize, waited_ns: u64) -> bool {
        if !self.remotes.get(remote).is_some_and(|remote| remote.link.is_on_its_way()) {
            self.link_wait_ns = LINK_WAIT_NS;
            return false;
        }
        let waits = waited_ns < self.link_wait_ns;
        if !waits {
            self.link_wait_ns = self.link_wait_ns.saturating_sub(waited_ns);
        }
        waits
    }

    fn refusal(&self, refused: Refused, id: PeerId) -> i32 {
        match refused {
            Refused::Full => FI_EAGAIN,
            Refused::Ended => self.error_with(id),
            Refused::TooLong => FI_EMSGSIZE,
            Refused::NoClaim => FI_ENOENT,
            Refused::UnknownPeer => FI_EINVAL,
        }
    }

    /// What a receive takes that names a source by its index, or any source.
    ///
    /// # Errors
    /// An address that is none.
    #[inline(always)]
    pub fn selector(
        &mut self,
        from: u64,
        (tag, ignore): (u64, u64),
        addresses: &Addresses,
    ) -> Result<Selector, i32> {
        let source = match from {
            FI_ADDR_UNSPEC => None,
            // The program has not asked for receives that name a source, so its addresses mean nothing.
            _ if !self.bindings.is_directed => None,
            from => {
                let remote = self.remote_at(from, addresses)?;
                Some(self.remotes[remote].id)
            }
        };
        Ok(Selector { source, tag, ignore })
    }

    /// Posts a receive for several messages. Those without bytes use nothing of its buffer up, so only the queue bounds them.
    ///
    /// # Errors
    /// Those of [`Endpoint::receive`].
    pub fn receive_several(
        &mut self,
        channel: Channel,
        selector: Selector,
        receive: ReceiveHandle,
        outlets: &mut Outlets,
    ) -> Result<(), i32> {
        self.has_unbidden = true;
        self.receive(channel, selector, || receive, outlets)
    }

    /// Posts a receive with the handle that `make` makes.
    ///
    /// # Errors
    /// [`FI_EAGAIN`] if too many are posted.
    #[inline(always)]
    pub fn receive(
        &mut self,
        channel: Channel,
        selector: Selector,
        make: impl FnOnce() -> ReceiveHandle,
        outlets: &mut Outlets,
    ) -> Result<(), i32> {
        if outlets.is_full(self.bindings.receive_queue) {
            return Err(FI_EAGAIN);
        }
        let Self { matchers, bindings, remotes, .. } = self;
        let received = matchers[channel as usize].receive_at_once(
            selector,
            make,
            |receive: &ReceiveHandle, envelope, written| {
                let source = remotes.get(envelope.source.index()).and_then(|remote| remote.address);
                let source = source.unwrap_or(FI_ADDR_UNSPEC);
                report_at_once(bindings, receive, (envelope, written, source), outlets)
            },
        );
        match received {
            Ok(Some(_)) => Ok(()),
            Ok(None) => {
                self.settle(outlets);
                Ok(())
            }
            Err(Refused::Full) => Err(FI_EAGAIN),
            Err(_) => Err(FI_EINVAL),
        }
    }

    /// Takes back a receive that waits for a message. It completes with an error.
    pub fn cancel(&mut self, context: usize, outlets: &mut Outlets) -> bool {
        for matcher in &mut self.matchers {
            if let Some(receive) = matcher.cancel_first(|receive| receive.context == context) {
                let flags = receive.flags | if receive.multi.is_some() { FI_MULTI_RECV } else { 0 };
                let error = FI_ECANCELED;
                outlets.count(self.bindings.receive_counter, error);
                let completion = Completion { context, flags, error, ..Completion::default() };
                outlets.report(self.bindings.receive_queue, completion);
                return true;
            }
        }
        false
    }

    /// Looks for a message without receiving it, and reports what was found. With `claims` it is set aside for a receive
    /// with the same context.
    ///
    /// # Errors
    /// [`FI_EBUSY`]: another message is set aside with that context.
    pub fn peek(
        &mut self,
        channel: Channel,
        selector: &Selector,
        (context, flags, claims): (usize, u64, bool),
        outlets: &mut Outlets,
    ) -> Result<(), i32> {
        if claims && self.claims.contains_key(&(channel, context)) {
            return Err(FI_EBUSY);
        }
        let matcher = &mut self.matchers[channel as usize];
        let found = match claims {
            true => matcher.claim(selector).map(|(claim, envelope)| (Some(claim), envelope)),
            false => matcher.peek(selector).map(|envelope| (None, envelope)),
        };
        let Some((claim, envelope)) = found else {
            let completion = Completion { context, flags, error: FI_ENOMSG, ..Completion::default() };
            outlets.report(self.bindings.receive_queue, completion);
            return Ok(());
        };
        if let Some(claim) = claim {
            self.claims.insert((channel, context), (claim, envelope));
        }
        self.report_envelope(&envelope, context, flags, outlets);
        Ok(())
    }

    fn report_envelope(&mut self, envelope: &Envelope, context: usize, flags: u64, outlets: &mut Outlets) {
        let data_flag = if envelope.data.is_some() { FI_REMOTE_CQ_DATA } else { 0 };
        let completion = Completion {
            context,
            flags: flags | data_flag,
            length: envelope.length,
            data: envelope.data.unwrap_or(0),
            tag: envelope.tag,
            source: self.address_of(envelope.source),
            ..Completion::default()
        };
        outlets.report(self.bindings.receive_queue, completion);
    }

    /// Receives a message that was set aside with the same context.
    ///
    /// # Errors
    /// There is none.
    pub fn receive_claimed(
        &mut self,
        channel: Channel,
        receive: ReceiveHandle,
        outlets: &mut Outlets,
    ) -> Result<(), i32> {
        let (claim, envelope) = self.claims.remove(&(channel, receive.context)).ok_or(FI_EINVAL)?;
        if let Err((refused, receive)) = self.matchers[channel as usize].receive_claimed(claim, receive) {
            if refused == Refused::Full {
                self.claims.insert((channel, receive.context), (claim, envelope));
            }
            return Err(if refused == Refused::Full { FI_EAGAIN } else { FI_EINVAL });
        }
        self.settle(outlets);
        Ok(())
    }

    /// Drops a message that was set aside with the same context, and reports that.
    ///
    /// # Errors
    /// There is none.
    pub fn discard_claimed(
        &mut self,
        channel: Channel,
        (context, flags): (usize, u64),
        outlets: &mut Outlets,
    ) -> Result<(), i32> {
        let (claim, envelope) = self.claims.remove(&(channel, context)).ok_or(FI_EINVAL)?;
        self.matchers[channel as usize].discard(claim);
        self.settle(outlets);
        self.report_envelope(&envelope, context, flags, outlets);
        Ok(())
    }

    /// Drops the first message that a receive with `selector` would take, and reports what was found.
    pub fn discard(
        &mut self,
        channel: Channel,
        selector: &Selector,
        (context, flags): (usize, u64),
        outlets: &mut Outlets,
    ) {
        let matcher = &mut self.matchers[channel as usize];
        let Some((claim, envelope)) = matcher.claim(selector) else {
            let completion = Completion { context, flags, error: FI_ENOMSG, ..Completion::default() };
            return outlets.report(self.bindings.receive_queue, completion);
        };
        matcher.discard(claim);
        self.settle(outlets);
        self.report_envelope(&envelope, context, flags, outlets);
    }

    /// Is something on its way to others?
    pub fn is_busy(&self) -> bool {
        self.matchers.iter().any(|matcher| matcher.under_way().0 > 0)
            || self.rma.under_way() > 0
            || !self.blocked.is_empty()
            || !self.blocked_rma.is_empty()
    }

    /// Logs what the endpoint has done, as it is about to go.
    pub fn tell_end(&self) {
        let connections = self.port.peers().count();
        let Self { name, messages_taken, .. } = self;
        host::inform(&format!(
            "endpoint {name:?} closes, connections: {connections}, messages taken: {messages_taken}"
        ));
    }
}
