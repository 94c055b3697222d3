//! What arrives of a peer.

use super::{Endpoint, ReceiveState, Receiving, SendState, Sending, fill};
use crate::head::{Head, LENGTH_MAX};
use crate::limits::ENVELOPE_BYTES;
use crate::operation::{Event, SendId, Sink, Violation};
use crate::slab::PeerId;
use crate::unexpected::{Content, Envelope, Message};

impl<S, R: Sink> Endpoint<S, R> {
    /// A frame has arrived. Frames of one peer arrive in the order in which they were transmitted, those of
    /// [`Frame::Message`](crate::Frame::Message) and of [`Frame::Piece`](crate::Frame::Piece) each among themselves.
    ///
    /// # Errors
    /// The rule that the peer has broken. The frame has changed nothing.
    pub fn arrive(&mut self, peer: PeerId, frame: &[u8]) -> Result<(), Violation> {
        self.arrive_at_once(peer, frame, |_, _, _| false).map(drop)
    }

    /// The same, but a receive that the frame completes is reported to `told`: its handle, the message, and how many bytes of the
    /// payload are in its buffer. If `told` answers `true`, the handle is dropped, and no event follows. While events wait, which
    /// come first, `told` is not called. `true`: `told` has answered so.
    ///
    /// # Errors
    /// Those of [`Endpoint::arrive`].
    #[inline(always)]
    pub fn arrive_at_once(
        &mut self,
        peer: PeerId,
        frame: &[u8],
        told: impl FnOnce(&R, &Envelope, u64) -> bool,
    ) -> Result<bool, Violation> {
        if !self.is_connected(peer) {
            return Err(Violation::Unconnected);
        }
        let (head, payload) = Head::parse(frame)?;
        if let Head::Eager { tag, data, synchronous } = head {
            let envelope = Envelope { source: peer, tag, data, length: payload.len() as u64 };
            return self.eager_arrived(envelope, synchronous, payload, told);
        }
        self.other_arrived(peer, head, payload)?;
        Ok(false)
    }

    #[inline(never)]
    fn other_arrived(&mut self, peer: PeerId, head: Head, payload: &[u8]) -> Result<(), Violation> {
        match head {
            // It was taken before.
            Head::Eager { .. } => Ok(()),
            Head::Request { tag, data, send, length } => {
                self.request_arrived(Envelope { source: peer, tag, data, length }, send)
            }
            Head::Grant { send, receive, length, key } => {
                self.grant_arrived(peer, send, receive, length, key)
            }
            Head::Piece { receive } => self.piece_arrived(peer, receive, payload),
            Head::Acknowledgement { send } => self.acknowledgement_arrived(peer, send),
            Head::Credit { bytes } => self.credit_arrived(peer, bytes),
        }
    }

    /// The note of a put has arrived, after the data.
    ///
    /// # Errors
    /// The rule that the peer has broken.
    pub fn notified(&mut self, peer: PeerId, note: &[u8]) -> Result<(), Violation> {
        let transfer = note.try_into().map(u64::from_le_bytes).map_err(|_| Violation::UnknownReceive)?;
        let waits = |receiving: &Receiving<R>| {
            receiving.envelope.source == peer && receiving.state == ReceiveState::Put
        };
        if !self.receiving.value(transfer).is_some_and(waits) {
            return Err(Violation::UnknownReceive);
        }
        self.complete_receive(transfer);
        Ok(())
    }

    /// A put that [`Frame::Put`](crate::Frame::Put) has asked for has ended: `is_delivered` if the peer has the data.
    pub fn put_done(&mut self, send: SendId, is_delivered: bool) {
        let puts = |sending: &Sending<S>| sending.state == SendState::Putting;
        if self.sending.value(send.0).is_some_and(puts) {
            self.complete_send(send.0, is_delivered);
        }
    }

    #[inline(always)]
    fn eager_arrived(
        &mut self,
        envelope: Envelope,
        synchronous: Option<u64>,
        payload: &[u8],
        told: impl FnOnce(&R, &Envelope, u64) -> bool,
    ) -> Result<bool, Violation> {
        let peer = envelope.source;
        let Some(state) = self.peers.value_mut(peer.0) else { return Err(Violation::Unconnected) };
        let bytes = ENVELOPE_BYTES + envelope.length;
        if state.used + bytes > state.window {
            return Err(Violation::Window);
        }
        if synchronous.is_some() {
            if state.requests >= self.limits.requests {
                return Err(Violation::Requests);
            }
            state.requests += 1;
        }
        state.used += bytes;
        let Some(place) = self.posted.find(peer, envelope.tag) else {
            self.counts.eager_messages_unexpected += 1;
            self.unexpected_bytes += bytes;
            self.unexpected.push_eager(envelope, payload, synchronous);
            return Ok(false);
        };
        self.counts.eager_messages_expected += 1;
        state.freed += bytes;
        if state.owes_credit() {
            self.make_ready(peer);
        }
        self.acknowledge(peer, synchronous);
        let Some(receive) = self.posted.at_mut(place) else { return Ok(false) };
        let written = fill(receive, payload, &mut self.counts);
        let is_told = self.events.is_empty() && told(receive, &envelope, written);
        if is_told {
            self.receives -= 1;
            self.posted.release(place);
        } else if let Some(receive) = self.posted.remove_at(place) {
            self.events.push_back(Event::Received { receive, envelope, written });
        }
        Ok(is_told)
    }

    fn request_arrived(&mut self, envelope: Envelope, send: u64) -> Result<(), Violation> {
        let peer = envelope.source;
        let Some(state) = self.peers.value_mut(peer.0) else { return Err(Violation::Unconnected) };
        if state.requests >= self.limits.requests {
            return Err(Violation::Requests);
        }
        state.requests += 1;
        if envelope.length <= state.eager_bytes(&self.limits) {
            // It would have come with its payload if the window had had room.
            self.grow_window(peer);
        }
        if let Some(receive) = self.posted.take(peer, envelope.tag) {
            self.counts.requests_expected += 1;
            self.begin(envelope, send, receive);
        } else {
            self.counts.requests_unexpected += 1;
            self.unexpected.push(Message { envelope, content: Content::Request { send } });
        }
        Ok(())
    }

    fn grow_window(&mut self, peer: PeerId) {
        let Some(state) = self.peers.value_mut(peer.0).filter(|state| state.growth == 0) else { return };
        let is_small = 2 * state.window <= self.limits.window_bytes_max;
        if is_small && self.growth_bytes + state.window <= self.limits.growth_bytes_max {
            state.growth = state.window;
            self.growth_bytes += state.growth;
            self.counts.windows_grown += 1;
            self.make_ready(peer);
        } else {
            self.counts.windows_not_grown += 1;
        }
    }

    fn grant_arrived(
        &mut self,
        peer: PeerId,
        send: u64,
        receive: u64,
        length: u64,
        key: Option<u64>,
    ) -> Result<(), Violation> {
        let waits = |sending: &&mut Sending<S>| sending.peer == peer && sending.state == SendState::Requested;
        let sending = self.sending.value_mut(send).filter(waits).ok_or(Violation::UnknownSend)?;
        if length > sending.length {
            return Err(Violation::Length);
        }
        if length > 0 {
            sending.state = SendState::Granted { receive, length, key, done: 0 };
        }
        if let Some(state) = self.peers.value_mut(peer.0) {
            state.unanswered -= 1;
            if length > 0 {
                state.granted.push_back(send);
            }
        }
        if length == 0 {
            self.complete_send(send, true);
        }
        self.make_ready(peer);
        Ok(())
    }

    fn acknowledgement_arrived(&mut self, peer: PeerId, send: u64) -> Result<(), Violation> {
        let waits = |sending: &Sending<S>| sending.peer == peer && sending.state == SendState::Synchronous;
        if !self.sending.value(send).is_some_and(waits) {
            return Err(Violation::UnknownSend);
        }
        if let Some(state) = self.peers.value_mut(peer.0) {
            state.unanswered -= 1;
        }
        self.complete_send(send, true);
        self.make_ready(peer);
        Ok(())
    }

    fn piece_arrived(&mut self, peer: PeerId, receive: u64, payload: &[u8]) -> Result<(), Violation> {
        let is_of_peer = |receiving: &&mut Receiving<R>| receiving.envelope.source == peer;
        let receiving = self.receiving.value_mut(receive).filter(is_of_peer);
        let receiving = receiving.ok_or(Violation::UnknownReceive)?;
        let ReceiveState::Pieces { done } = &mut receiving.state else {
            return Err(Violation::UnknownReceive);
        };
        let length = payload.len() as u64;
        if length == 0 || length > receiving.wanted - *done {
            return Err(Violation::Length);
        }
        *done += length;
        let is_whole = *done == receiving.wanted;
        receiving.receive.write(payload);
        if is_whole {
            self.complete_receive(receive);
        }
        Ok(())
    }

    fn credit_arrived(&mut self, peer: PeerId, bytes: u64) -> Result<(), Violation> {
        let Some(state) = self.peers.value_mut(peer.0) else { return Err(Violation::Unconnected) };
        if bytes > LENGTH_MAX - state.credit {
            return Err(Violation::Credit);
        }
        self.counts.credits += 1;
        state.credit += bytes;
        self.make_ready(peer);
        Ok(())
    }

    fn complete_receive(&mut self, transfer: u64) {
        if let Some(Receiving { receive, envelope, wanted, .. }) = self.receiving.remove(transfer) {
            self.events.push_back(Event::Received { receive, envelope, written: wanted });
        }
    }

    fn complete_send(&mut self, send: u64, is_delivered: bool) {
        let Some(Sending { peer, send, .. }) = self.sending.remove(send) else { return };
        self.counts.sends_failed += u64::from(!is_delivered);
        self.events.push_back(match is_delivered {
            true => Event::Sent { send, peer },
            false => Event::SendFailed { send, peer },
        });
    }
}
