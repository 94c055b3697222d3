//! Progress: what the port reports goes to the matchers, what they hand out goes to the port, and what has ended is
//! reported to the program.

use bywire::{Event, Peer, Polled, Rights, ShortMessage, TransferError};
use bywire_match::{Envelope, Event as Matched, Frame, PeerId, Violation};

use super::frames::{Carried, carry, join, split, split_note};
use super::message::Put;
use super::remote::{Link, Remote};
use super::{Bindings, Channel, Connection, Endpoint};
use crate::abi::{FI_ADDR_UNSPEC, FI_ETRUNC, FI_MULTI_RECV, FI_REMOTE_CQ_DATA};
use crate::addresses::Addresses;
use crate::completion::Completion;
use crate::operation::{MultiReceive, ReceiveHandle, SendHandle, SendReport};
use crate::outlets::Outlets;

/// Events that one call takes from the port, so that it ends however fast peers send.
const EVENTS_MAX: usize = 64;
/// Parts of long payloads that one call moves on.
const PARTS_MAX: usize = 16;
/// Frames to this endpoint itself that are under way at a time.
const OWN_FRAMES_MAX: usize = 16;

impl Endpoint {
    /// Moves everything on. The result says whether anything happened.
    pub fn progress(&mut self, outlets: &mut Outlets, addresses: &Addresses) -> bool {
        let was_behind = std::mem::take(&mut self.is_behind);
        // Not all that peers do is bounded by what the program has posted.
        if !self.has_room(outlets) {
            return self.conclude(outlets);
        }
        let unexpected = self.unexpected_messages();
        let has_ended_some = match self.port.poll_short() {
            // A part of a long payload is no event, but the program does not wait in vain, and the next part may be there.
            Polled::Nothing if self.port.has_progressed() => return self.take_parts(outlets, addresses),
            Polled::Nothing => return self.conclude(outlets),
            Polled::Short(message) => self.take_short(&message, outlets, addresses),
            Polled::Event(event) => self.take(event, outlets, addresses),
        };
        self.is_behind = true;
        // A program that has waited for a message gets it before anything else is looked for.
        if was_behind {
            self.take_further(has_ended_some, unexpected, outlets, addresses);
        }
        self.conclude(outlets);
        true
    }

    /// Moves everything on, and takes what has arrived already even if the program has waited.
    pub fn take_all(&mut self, outlets: &mut Outlets, addresses: &Addresses) {
        self.is_behind = true;
        self.progress(outlets, addresses);
    }

    /// Takes what has arrived already besides a first event. `has_ended_some`: has that ended an operation? `unexpected`: how many
    /// messages waited for a receive before it.
    #[inline(never)]
    fn take_further(
        &mut self,
        mut has_ended_some: bool,
        unexpected: usize,
        outlets: &mut Outlets,
        addresses: &Addresses,
    ) {
        for _ in 1..EVENTS_MAX {
            has_ended_some |= self.has_ended_some();
            // The program may post receives for further messages when it has seen what has ended.
            if has_ended_some && self.unexpected_messages() > unexpected {
                break;
            }
            has_ended_some |= match self.port.poll_short_arrived() {
                Polled::Nothing => break,
                Polled::Short(message) => self.take_short(&message, outlets, addresses),
                Polled::Event(event) => self.take(event, outlets, addresses),
            };
        }
    }

    /// Moves parts of long payloads on, after a first one.
    #[inline(never)]
    fn take_parts(&mut self, outlets: &mut Outlets, addresses: &Addresses) -> bool {
        for _ in 1..PARTS_MAX {
            let unexpected = self.unexpected_messages();
            if let Some(event) = self.port.poll() {
                let has_ended_some = self.take(event, outlets, addresses);
                self.take_further(has_ended_some, unexpected, outlets, addresses);
                break;
            }
            if !self.port.has_progressed() {
                break;
            }
        }
        self.conclude(outlets);
        true
    }

    /// Does what remains after events, or what is due without one. The result says whether anything happened.
    #[inline]
    fn conclude(&mut self, outlets: &mut Outlets) -> bool {
        let is_quiet = self.blocked.is_empty()
            && self.blocked_rma.is_empty()
            && self.retries.is_empty()
            && self.connecting.is_empty()
            && self.is_settled();
        !is_quiet && self.conclude_work(outlets)
    }

    #[inline(never)]
    fn conclude_work(&mut self, outlets: &mut Outlets) -> bool {
        self.connect_again();
        self.give_up_connecting();
        self.transmit_blocked_rma();
        if !self.blocked.is_empty() {
            for (channel, id) in std::mem::take(&mut self.blocked) {
                self.transmit(channel, id);
            }
        }
        self.settle(outlets)
    }

    /// Moves everything on while a call waits that the program cannot be told to leave. If its queue is full, events are taken
    /// one at a time, between pauses of the caller, so that peers cannot add much to it meanwhile.
    pub fn progress_in_closing(&mut self, outlets: &mut Outlets, addresses: &Addresses) -> bool {
        if !self.has_room(outlets)
            && let Some(event) = self.port.poll()
        {
            self.take(event, outlets, addresses);
        }
        self.progress(outlets, addresses) && self.has_room(outlets)
    }

    fn unexpected_messages(&self) -> usize {
        self.matchers.iter().map(bywire_match::Endpoint::unexpected_messages).sum()
    }

    /// Has an operation ended that was not reported yet?
    fn has_ended_some(&self) -> bool {
        self.matchers.iter().any(bywire_match::Endpoint::has_event)
    }

    /// Have the matchers nothing to hand out or to report?
    #[inline(always)]
    fn is_settled(&self) -> bool {
        self.matchers.iter().all(bywire_match::Endpoint::is_quiet) && self.rma.is_quiet()
    }

    /// Hands out what the matchers have, and reports what has ended.
    pub(super) fn settle(&mut self, outlets: &mut Outlets) -> bool {
        let mut has_moved = false;
        if self.is_settled() {
            return has_moved;
        }
        for channel in Channel::ALL {
            loop {
                let mut is_quiet = true;
                while let Some(id) = self.matchers[channel as usize].next_ready() {
                    is_quiet = false;
                    self.transmit(channel, id);
                }
                while let Some(event) = self.matchers[channel as usize].poll_event() {
                    is_quiet = false;
                    self.report(channel, event, outlets);
                }
                if is_quiet {
                    break;
                }
                has_moved = true;
            }
        }
        if !self.rma.is_quiet() {
            self.settle_rma(outlets);
            has_moved = true;
        }
        has_moved
    }

    /// Takes an event of the port. The result says whether it has ended an operation, which was reported.
    #[inline(never)]
    pub(super) fn take(&mut self, event: Event, outlets: &mut Outlets, addresses: &Addresses) -> bool {
        let Event::Message(message) = event else {
            self.take_other(event);
            return false;
        };
        let has_ended_some = self.take_message(message.peer, &message.payload, outlets, addresses);
        self.port.recycle(message.payload);
        has_ended_some
    }

    /// The same for a short message.
    #[inline(always)]
    fn take_short(&mut self, message: &ShortMessage, outlets: &mut Outlets, addresses: &Addresses) -> bool {
        let (bytes, length) = message.bytes();
        self.take_message(message.peer, &bytes[..length], outlets, addresses)
    }

    #[inline(always)]
    fn take_message(
        &mut self,
        source: Peer,
        message: &[u8],
        outlets: &mut Outlets,
        addresses: &Addresses,
    ) -> bool {
        match self.connection(source) {
            Some(Connection { peer, remote: Some(remote) }) => self.arrive(remote, peer, message, outlets),
            Some(_) => {
                self.greet(source, message, addresses);
                false
            }
            None => false,
        }
    }

    #[inline(never)]
    fn take_other(&mut self, event: Event) {
        match event {
            Event::Notified { peer, note } => {
                if let Some(Connection { remote: Some(remote), .. }) = self.connection(peer)
                    && self.remotes[remote].link == Link::Open(peer)
                {
                    self.messages_taken += 1;
                    let id = self.remotes[remote].id;
                    let taken = match split_note(&note) {
                        Some(Carried::Message(channel, note)) => {
                            self.matchers[channel as usize].notified(id, note)
                        }
                        Some(Carried::Rma(note)) => self.rma.notified(id, note),
                        None => Err(Violation::UnknownReceive),
                    };
                    if let Err(violation) = taken {
                        self.violated(remote, &violation);
                    }
                }
            }
            Event::Put { id, buffer, result } => {
                drop(buffer);
                let put = self.puts.remove(&id);
                // The end of a connection follows, and ends what it has carried.
                let is_cut_off = matches!(result, Err(TransferError::Disconnected(_)));
                match put.filter(|_| !is_cut_off) {
                    Some(Put::Message(channel, send)) => {
                        self.matchers[channel as usize].put_done(send, result.is_ok());
                    }
                    Some(Put::Rma(id)) => self.rma.put_done(id, result.is_ok()),
                    None => {}
                }
            }
            Event::Connected(peer) => self.connected(peer),
            Event::Disconnected { peer, reason } => self.disconnected(peer, reason),
            // The matchers send nothing of these kinds.
            Event::Datagram(message) => self.stranger(message.peer),
            Event::BufferNeeded { peer, .. } => self.stranger(peer),
            Event::Lent(lent) => self.stranger(lent.peer),
            _ => {}
        }
    }

    /// A connection carries what no endpoint sends.
    fn stranger(&mut self, peer: Peer) {
        match self.connection(peer) {
            Some(Connection { remote: Some(remote), .. }) => self.end(remote, crate::abi::FI_EIO),
            _ => self.port.disconnect(peer),
        }
    }

    /// A message of a remote has arrived. The result says whether it has ended an operation, which was reported.
    #[inline(always)]
    fn arrive(&mut self, remote: usize, peer: Peer, message: &[u8], outlets: &mut Outlets) -> bool {
        let Remote { id, link, address, .. } = self.remotes[remote];
        if !matches!(link, Link::Open(own) if own == peer) {
            if matches!(link, Link::Greeting(own) if own == peer) {
                self.answered(remote, peer, message);
            }
            return false;
        }
        self.messages_taken += 1;
        let arrived = match split(message) {
            Carried::Message(channel, frame) => {
                let Self { matchers, bindings, .. } = self;
                matchers[channel as usize].arrive_at_once(id, frame, |receive, envelope, written| {
                    let source = address.unwrap_or(FI_ADDR_UNSPEC);
                    report_at_once(bindings, receive, (envelope, written, source), outlets)
                })
            }
            Carried::Rma(frame) => self.rma.arrive(id, frame, &mut self.regions).map(|()| false),
        };
        arrived.unwrap_or_else(|violation| {
            self.violated(remote, &violation);
            false
        })
    }

    /// Hands out what a matcher has for a remote.
    pub(super) fn transmit(&mut self, channel: Channel, id: PeerId) {
        if self.blocked.contains(&(channel, id)) {
            // The next progress tries it again.
            return;
        }
        match self.remotes[id.index()].link {
            Link::Open(peer) => {
                let Self { port, matchers, scratch, puts, .. } = self;
                let link =
                    |frame: Frame<'_, SendHandle>| carry((&mut *port, peer), channel, &frame, scratch, puts);
                if !matchers[channel as usize].transmit(id, link) {
                    self.blocked.push((channel, id));
                }
            }
            Link::Own => self.loop_back(channel, id),
            _ => {}
        }
    }

    /// The same for this endpoint itself.
    fn loop_back(&mut self, channel: Channel, id: PeerId) {
        let matcher = &mut self.matchers[channel as usize];
        let mut frames = Vec::new();
        loop {
            let is_all = matcher.transmit(id, |frame| {
                let mut bytes = Vec::new();
                // Nothing is put: this endpoint grants itself pieces only.
                let has_room = frames.len() < OWN_FRAMES_MAX && join(&frame, &mut bytes).is_some();
                if has_room {
                    frames.push(bytes);
                }
                has_room
            });
            for frame in frames.drain(..) {
                // What a matcher sends breaks no rule of its own.
                let _ = matcher.arrive(id, &frame);
            }
            if is_all {
                break;
            }
        }
    }

    fn report(&mut self, channel: Channel, event: Matched<SendHandle, ReceiveHandle>, outlets: &mut Outlets) {
        match event {
            Matched::Sent { send, .. } => self.report_send(&send, 0, outlets),
            Matched::SendFailed { send, peer } => {
                let error = self.error_with(peer);
                self.report_send(&send, error, outlets);
            }
            Matched::Received { mut receive, envelope, written } => {
                self.withdraw(&mut receive);
                let source = self.address_of(envelope.source);
                let mut completion = completion_of(&receive, &envelope, written, source);
                let is_reported = receive.is_reported;
                let is_buffer_free = self.go_on(channel, receive, written);
                completion.flags |= if is_buffer_free { FI_MULTI_RECV } else { 0 };
                report_receive(&self.bindings, completion, is_reported || is_buffer_free, outlets);
            }
            Matched::ReceiveFailed { mut receive, peer } => {
                self.withdraw(&mut receive);
                let error = self.error_with(peer);
                outlets.count(self.bindings.receive_counter, error);
                let context = receive.context;
                let flags = receive.flags | if receive.multi.is_some() { FI_MULTI_RECV } else { 0 };
                let source = self.address_of(peer);
                let completion = Completion { context, flags, source, error, ..Completion::default() };
                outlets.report(self.bindings.receive_queue, completion);
            }
            Matched::Expose { transfer, peer, bytes } => {
                let is_own = self.remotes[peer.index()].link == Link::Own;
                let matcher = &mut self.matchers[channel as usize];
                let receive = matcher.sink(transfer).filter(|_| !is_own);
                let key = receive.and_then(|receive| {
                    let rights = Rights { read: false, write: true };
                    receive.key = self.port.register(receive.buffer(bytes)?, rights).ok();
                    receive.key
                });
                matcher.grant(transfer, key.map(|key| key.0));
            }
        }
    }

    /// Takes the memory of a receive back.
    #[inline]
    fn withdraw(&mut self, receive: &mut ReceiveHandle) {
        if let Some(key) = receive.key.take() {
            drop(self.port.revoke(key));
        }
    }

    /// Lets a receive that takes several messages take the next one. The result says whether such a receive is over.
    fn go_on(&mut self, channel: Channel, mut receive: ReceiveHandle, written: u64) -> bool {
        let Some(MultiReceive { selector, rest_bytes }) = receive.multi.as_deref().copied() else {
            return false;
        };
        receive.memory.advance(written);
        receive.written = 0;
        receive.memory.length() < rest_bytes.max(1)
            || self.matchers[channel as usize].receive(selector, receive).is_err()
    }

    pub(super) fn report_send(&mut self, send: &SendHandle, error: i32, outlets: &mut Outlets) {
        self.copied_bytes -= send.payload.copied_bytes();
        report_sent(&self.bindings, self.bindings.send_counter, send.report, error, outlets);
    }
}

/// Counts a send or a write that has ended, and reports it if the program wants to know.
#[inline(always)]
pub(super) fn report_sent(
    bindings: &Bindings,
    counter: Option<usize>,
    report: SendReport,
    error: i32,
    outlets: &mut Outlets,
) {
    outlets.count(counter, error);
    let SendReport { context, flags, is_reported, is_silent } = report;
    if !is_silent && (error != 0 || is_reported) {
        let completion = Completion { context, flags, error, ..Completion::default() };
        outlets.report(bindings.transmit_queue, completion);
    }
}

/// Reports a receive that has completed with a message, of which `written` bytes are in its buffer. `false`: the receive takes several
/// messages, and waits for its event.
#[inline(always)]
pub(super) fn report_at_once(
    bindings: &Bindings,
    receive: &ReceiveHandle,
    (envelope, written, source): (&Envelope, u64, u64),
    outlets: &mut Outlets,
) -> bool {
    let is_last = receive.multi.is_none();
    if is_last {
        let completion = completion_of(receive, envelope, written, source);
        report_receive(bindings, completion, receive.is_reported, outlets);
    }
    is_last
}

/// What a receive that has completed reports. `source`: its sender's index in the address vector.
#[inline(always)]
fn completion_of(receive: &ReceiveHandle, envelope: &Envelope, written: u64, source: u64) -> Completion {
    let data_flag = if envelope.data.is_some() { FI_REMOTE_CQ_DATA } else { 0 };
    Completion {
        context: receive.context,
        flags: receive.flags | data_flag,
        length: written,
        buffer: receive.memory.base(),
        data: envelope.data.unwrap_or(0),
        tag: envelope.tag,
        source,
        error: if written < envelope.length { FI_ETRUNC } else { 0 },
        overflow: envelope.length - written,
    }
}

#[inline(always)]
fn report_receive(bindings: &Bindings, completion: Completion, is_reported: bool, outlets: &mut Outlets) {
    outlets.count(bindings.receive_counter, completion.error);
    if completion.error != 0 || is_reported {
        outlets.report(bindings.receive_queue, completion);
    }
}
