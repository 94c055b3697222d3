//! Progress: what the port reports goes to the matchers, what they hand out goes to the port, and what has ended is
//! reported to the program.

use bywire::{Event, Peer, Rights, TransferError};
use bywire_match::{Event as Matched, Frame, PeerId, Violation};

use super::frames::{Carried, carry, join, split, split_note};
use super::message::Put;
use super::remote::Link;
use super::{Channel, Connection, Endpoint};
use crate::abi::{FI_ETRUNC, FI_MULTI_RECV, FI_REMOTE_CQ_DATA};
use crate::addresses::Addresses;
use crate::completion::Completion;
use crate::operation::{MultiReceive, ReceiveHandle, SendHandle};
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
        let mut has_moved = false;
        // Words for the program that peers send with writes are not bounded by what it has posted.
        let parts = if self.has_room(outlets) { PARTS_MAX } else { 0 };
        for _ in 0..parts {
            let mut event = self.port.poll();
            // A part of a long payload is no event, but the program does not wait in vain, and the next part may be there.
            let is_in_the_midst = event.is_none() && self.port.has_progressed();
            has_moved |= event.is_some() || is_in_the_midst;
            let (mut taken, unexpected) = (0, self.unexpected_messages());
            while let Some(arrived) = event {
                self.take(arrived, addresses);
                taken += 1;
                // The program may post receives for further messages when it has seen what has ended.
                let is_ahead = self.unexpected_messages() > unexpected && self.has_ended_some();
                event = if taken < EVENTS_MAX && !is_ahead { self.port.poll_arrived() } else { None };
            }
            if !is_in_the_midst {
                break;
            }
        }
        self.connect_again();
        self.give_up_connecting();
        self.transmit_blocked_rma();
        if !self.blocked.is_empty() {
            for (channel, id) in std::mem::take(&mut self.blocked) {
                self.transmit(channel, id);
            }
        }
        self.settle(outlets) || has_moved
    }

    /// Moves everything on while a call waits that the program cannot be told to leave. If its queue is full, events are taken
    /// one at a time, between pauses of the caller, so that peers cannot add much to it meanwhile.
    pub fn progress_in_closing(&mut self, outlets: &mut Outlets, addresses: &Addresses) -> bool {
        if !self.has_room(outlets)
            && let Some(event) = self.port.poll()
        {
            self.take(event, addresses);
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

    /// Hands out what the matchers have, and reports what has ended.
    pub(super) fn settle(&mut self, outlets: &mut Outlets) -> bool {
        let mut has_moved = false;
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

    pub(super) fn take(&mut self, event: Event, addresses: &Addresses) {
        match event {
            Event::Message(message) => {
                match self.connection(message.peer) {
                    Some(Connection { peer, remote: Some(remote) }) => {
                        self.arrive(remote, peer, &message.payload);
                    }
                    Some(_) => self.greet(message.peer, &message.payload, addresses),
                    None => {}
                }
                self.port.recycle(message.payload);
            }
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

    fn arrive(&mut self, remote: usize, peer: Peer, message: &[u8]) {
        match self.remotes[remote].link {
            Link::Open(own) if own == peer => {}
            Link::Greeting(own) if own == peer => return self.answered(remote, peer, message),
            _ => return,
        }
        self.messages_taken += 1;
        let id = self.remotes[remote].id;
        let taken = match split(message) {
            Carried::Message(channel, frame) => self.matchers[channel as usize].arrive(id, frame),
            Carried::Rma(frame) => self.rma.arrive(id, frame, &mut self.regions),
        };
        if let Err(violation) = taken {
            self.violated(remote, &violation);
        }
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
                let error = if written < envelope.length { FI_ETRUNC } else { 0 };
                outlets.count(self.bindings.receive_counter, error);
                let is_reported = receive.is_reported;
                let data_flag = if envelope.data.is_some() { FI_REMOTE_CQ_DATA } else { 0 };
                let mut completion = Completion {
                    context: receive.context,
                    flags: receive.flags | data_flag,
                    length: written,
                    buffer: receive.memory.base(),
                    data: envelope.data.unwrap_or(0),
                    tag: envelope.tag,
                    source: self.address_of(envelope.source),
                    error,
                    overflow: envelope.length - written,
                };
                let is_buffer_free = self.go_on(channel, receive, written);
                completion.flags |= if is_buffer_free { FI_MULTI_RECV } else { 0 };
                if error != 0 || is_reported || is_buffer_free {
                    outlets.report(self.bindings.receive_queue, completion);
                }
            }
            Matched::ReceiveFailed { mut receive, peer } => {
                self.withdraw(&mut receive);
                self.vacate(receive.place);
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
    fn withdraw(&mut self, receive: &mut ReceiveHandle) {
        if let Some(key) = receive.key.take() {
            drop(self.port.revoke(key));
        }
    }

    /// Lets a receive that takes several messages take the next one. The result says whether such a receive is over.
    fn go_on(&mut self, channel: Channel, mut receive: ReceiveHandle, written: u64) -> bool {
        let place = receive.place;
        let Some(MultiReceive { selector, rest_bytes }) = receive.multi.as_deref().copied() else {
            self.vacate(place);
            return false;
        };
        receive.memory.advance(written);
        receive.written = 0;
        if receive.memory.length() < rest_bytes.max(1) {
            self.vacate(place);
            return true;
        }
        match self.matchers[channel as usize].receive(selector, receive) {
            Ok(id) => {
                self.posted[place].1 = id.map(|id| (channel, id));
                false
            }
            Err(_) => {
                self.vacate(place);
                true
            }
        }
    }

    pub(super) fn report_send(&mut self, send: &SendHandle, error: i32, outlets: &mut Outlets) {
        self.copied_bytes -= send.payload.copied_bytes();
        outlets.count(self.bindings.send_counter, error);
        let SendHandle { context, flags, is_reported, is_silent, .. } = *send;
        if is_silent || error == 0 && !is_reported {
            return;
        }
        let completion = Completion { context, flags, error, ..Completion::default() };
        outlets.report(self.bindings.transmit_queue, completion);
    }
}
