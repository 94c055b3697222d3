//! What leaves for a peer.

use super::peer::{Peer, State};
use super::{Endpoint, SendState, Sending};
use crate::head::{EagerHead, HEAD_BYTES_MAX, Head, HeadBytes};
use crate::limits::{ENVELOPE_BYTES, Limits};
use crate::operation::{Event, Frame, Send, SendId, Sink};
use crate::slab::PeerId;

/// How a message leaves.
enum Departure {
    Eager,
    Request,
    /// Too many requests are unanswered.
    Later,
}

#[inline(always)]
fn departure<S>(limits: &Limits, peer: &Peer<S>, message: &Send) -> Departure {
    let fits = message.length <= peer.eager_bytes(limits);
    let may_ask = peer.unanswered < limits.requests;
    let has_credit = fits && ENVELOPE_BYTES + message.length <= peer.credit;
    match (has_credit, may_ask) {
        (true, true) => Departure::Eager,
        (true, false) if !message.is_synchronous => Departure::Eager,
        (false, true) => Departure::Request,
        (_, false) => Departure::Later,
    }
}

fn eager_head(message: &Send, send: u64) -> HeadBytes {
    let synchronous = message.is_synchronous.then_some(send);
    Head::Eager { tag: message.tag, data: message.data, synchronous }.to_bytes()
}

impl<S, R: Sink> Endpoint<S, R> {
    /// Sends a message at once, if it is eager, nothing waits before it, and the peer's window has room. The link gets its head, and
    /// says whether it has taken that and the payload. The result says the same. There is no event, and the caller keeps its handle.
    /// Otherwise [`Endpoint::send`] keeps the message until it can leave.
    #[inline(always)]
    pub fn send_at_once(
        &mut self,
        peer: PeerId,
        message: &Send,
        link: impl FnOnce(EagerHead) -> bool,
    ) -> bool {
        let is_free = |peer: &&mut Peer<S>| peer.is_connected() && peer.queued.is_empty();
        let Some(peer) = self.peers.value_mut(peer.0).filter(is_free) else { return false };
        let is_eager = matches!(departure(&self.limits, peer, message), Departure::Eager);
        if message.is_synchronous || !is_eager || !link(EagerHead::new(message.tag, message.data)) {
            return false;
        }
        self.counts.eager_messages_sent += 1;
        self.counts.eager_messages_at_once += 1;
        peer.credit -= ENVELOPE_BYTES + message.length;
        true
    }

    /// Gives the link all that may leave for a peer, until the link returns `false`, because it has no room. That frame
    /// was not taken. A link may have no room for messages and some for pieces and puts, and the other way round. The
    /// result says whether the link has taken all; otherwise the driver calls again when the link has room.
    pub fn transmit(&mut self, peer: PeerId, mut link: impl FnMut(Frame<'_, S>) -> bool) -> bool {
        let Some(State::Connected { fragment_bytes }) = self.peers.value(peer.0).map(|known| known.state)
        else {
            return true;
        };
        let messages_taken = self.transmit_messages(peer, &mut link);
        let payloads_taken = self.transmit_payloads(peer, fragment_bytes, &mut link);
        messages_taken && payloads_taken
    }

    fn transmit_messages(&mut self, id: PeerId, link: &mut impl FnMut(Frame<'_, S>) -> bool) -> bool {
        let Some(peer) = self.peers.value_mut(id.0) else { return true };
        if peer.owes_credit() {
            let head = Head::Credit { bytes: peer.freed + peer.growth }.to_bytes();
            if !link(Frame::Message { head: &head, payload: None }) {
                return false;
            }
            peer.credit_told();
        }
        while let Some(reply) = peer.replies.front() {
            if !link(Frame::Message { head: &reply.to_bytes(), payload: None }) {
                return false;
            }
            peer.replies.pop_front();
            peer.requests -= 1;
        }
        while let Some((message, send)) = peer.queued.front() {
            let key = self.sending.next_key();
            let Send { tag, data, length, is_synchronous } = *message;
            let departure = departure(&self.limits, peer, message);
            let is_taken = match departure {
                Departure::Eager => {
                    let payload = (length > 0).then_some(send);
                    link(Frame::Message { head: &eager_head(message, key), payload })
                }
                Departure::Request => {
                    let head = Head::Request { tag, data, send: key, length }.to_bytes();
                    link(Frame::Message { head: &head, payload: None })
                }
                Departure::Later => {
                    self.counts.sends_held_by_unanswered_requests += 1;
                    return true;
                }
            };
            if !is_taken {
                return false;
            }
            let Some((_, send)) = peer.queued.pop_front() else { return true };
            if let Departure::Eager = departure {
                self.counts.eager_messages_sent += 1;
                peer.credit -= ENVELOPE_BYTES + length;
                if !is_synchronous {
                    self.events.push_back(Event::Sent { send, peer: id });
                    continue;
                }
            } else {
                self.counts.requests_sent += 1;
                self.counts.requests_for_want_of_window +=
                    u64::from(length <= peer.eager_bytes(&self.limits));
            }
            peer.unanswered += 1;
            let state = match departure {
                Departure::Eager => SendState::Synchronous,
                _ => SendState::Requested,
            };
            self.sending.insert(Sending { peer: id, send, length, state });
        }
        true
    }

    fn transmit_payloads(
        &mut self,
        id: PeerId,
        fragment_bytes: usize,
        link: &mut impl FnMut(Frame<'_, S>) -> bool,
    ) -> bool {
        let Some(peer) = self.peers.value_mut(id.0) else { return true };
        while let Some(key_of_send) = peer.granted.front().copied() {
            let Some(sending) = self.sending.value_mut(key_of_send) else { return true };
            let SendState::Granted { receive, length, key, done } = sending.state else { return true };
            let payload = &sending.send;
            if let Some(key) = key {
                let (send, note) = (SendId(key_of_send), receive.to_le_bytes());
                if !link(Frame::Put { send, payload, length, key, note }) {
                    return false;
                }
                self.counts.puts += 1;
                sending.state = SendState::Putting;
                peer.granted.pop_front();
                continue;
            }
            let head = Head::Piece { receive }.to_bytes();
            let end = length.min(done + (fragment_bytes - HEAD_BYTES_MAX) as u64);
            if !link(Frame::Piece { head: &head, payload, range: done..end }) {
                return false;
            }
            self.counts.pieces += 1;
            sending.state = SendState::Granted { receive, length, key, done: end };
            if end == length {
                peer.granted.pop_front();
                if let Some(Sending { send, .. }) = self.sending.remove(key_of_send) {
                    self.events.push_back(Event::Sent { send, peer: id });
                }
            }
        }
        true
    }
}
