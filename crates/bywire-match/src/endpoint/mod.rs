//! The endpoint: what a program calls, and the state of all its messages.

mod ending;
mod incoming;
mod outgoing;
mod peer;

use std::collections::{BTreeMap, VecDeque};

use self::peer::{Peer, State};
use crate::counts::Counts;
use crate::head::{HEAD_BYTES_MAX, Head, LENGTH_MAX};
use crate::limits::{ENVELOPE_BYTES, Limits};
use crate::operation::{ClaimId, Event, ReceiveId, Refused, Send, Sink, TransferId};
use crate::posted::{Posted, Selector};
use crate::slab::{PeerId, Slab};
use crate::unexpected::{Content, Envelope, Message, Unexpected};

/// A send that its peer has to answer.
#[derive(Debug)]
struct Sending<S> {
    peer: PeerId,
    send: S,
    length: u64,
    state: SendState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendState {
    /// The request has left.
    Requested,
    /// The payload has left too.
    Synchronous,
    /// So much of the payload is wanted.
    Granted { receive: u64, length: u64, key: Option<u64>, done: u64 },
    /// The link puts.
    Putting,
}

/// A receive that has matched a request.
#[derive(Debug)]
struct Receiving<R> {
    receive: R,
    envelope: Envelope,
    /// The sender's number for the message.
    send: u64,
    /// The bytes that are wanted.
    wanted: u64,
    state: ReceiveState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReceiveState {
    /// The driver has to expose the buffer.
    Exposing,
    /// A put is expected.
    Put,
    /// Pieces are expected. The first `done` bytes have arrived.
    Pieces { done: u64 },
}

/// A tagged endpoint. `S` and `R` are the program's handles of sends and receives.
#[derive(Debug)]
pub struct Endpoint<S, R> {
    limits: Limits,
    peers: Slab<Peer<S>>,
    /// Peers that have something to transmit.
    ready: VecDeque<PeerId>,
    posted: Posted<R>,
    unexpected: Unexpected,
    claimed: BTreeMap<u64, Message>,
    sending: Slab<Sending<S>>,
    receiving: Slab<Receiving<R>>,
    events: VecDeque<Event<S, R>>,
    /// Sends and receives whose events have not been taken.
    sends: usize,
    receives: usize,
    /// What windows have grown by.
    growth_bytes: u64,
    /// What unexpected and claimed eager messages take.
    unexpected_bytes: u64,
    counts: Counts,
}

impl<S, R: Sink> Endpoint<S, R> {
    /// An endpoint without peers.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            peers: Slab::new(),
            ready: VecDeque::new(),
            posted: Posted::default(),
            unexpected: Unexpected::default(),
            claimed: BTreeMap::new(),
            sending: Slab::new(),
            receiving: Slab::new(),
            events: VecDeque::new(),
            sends: 0,
            receives: 0,
            growth_bytes: 0,
            unexpected_bytes: 0,
            counts: Counts::default(),
        }
    }

    /// Adds a peer without a connection. Sends to it wait until [`Endpoint::connected`].
    ///
    /// # Errors
    /// [`Refused::Full`].
    pub fn add_peer(&mut self) -> Result<PeerId, Refused> {
        if self.peers.len() >= self.limits.peers {
            return Err(Refused::Full);
        }
        Ok(PeerId(self.peers.insert(Peer::new(self.limits.window_bytes))))
    }

    /// The connection to a peer is there. Its frames have at most `fragment_bytes`, heads included, and payloads of at most that
    /// less [`HEAD_BYTES_MAX`].
    ///
    /// # Panics
    /// If frames have no room for a head and a byte.
    pub fn connected(&mut self, peer: PeerId, fragment_bytes: usize) {
        assert!(fragment_bytes > HEAD_BYTES_MAX, "frames of {fragment_bytes} bytes are too short");
        let Some(state) = self.peers.value_mut(peer.0).filter(|known| known.state == State::Connecting)
        else {
            return;
        };
        state.state = State::Connected { fragment_bytes };
        self.make_ready(peer);
    }

    /// Begins to send a message.
    ///
    /// # Errors
    /// The reason, with the handle.
    pub fn send(&mut self, peer: PeerId, message: Send, send: S) -> Result<(), (Refused, S)> {
        let Some(target) = self.peers.value_mut(peer.0) else { return Err((Refused::UnknownPeer, send)) };
        let reason = match target.state {
            State::Ended => Some(Refused::Ended),
            _ if message.length > LENGTH_MAX => Some(Refused::TooLong),
            _ if self.sends >= self.limits.sends => Some(Refused::Full),
            _ => None,
        };
        if let Some(reason) = reason {
            return Err((reason, send));
        }
        self.sends += 1;
        target.queued.push_back((message, send));
        self.make_ready(peer);
        Ok(())
    }

    /// Posts a receive. It returns the receive's number while that waits for a message, or `None` if it has matched one.
    ///
    /// # Errors
    /// The reason, with the handle.
    pub fn receive(&mut self, selector: Selector, receive: R) -> Result<Option<ReceiveId>, (Refused, R)> {
        match self.admit(&selector) {
            Ok(ended) => Ok(self.post(selector, ended, || receive, |_, _, _| false)),
            Err(refused) => Err((refused, receive)),
        }
    }

    /// The same, but a message that has arrived whole is reported to `told`, as in [`Endpoint::arrive_at_once`]. The handle is made
    /// when it is kept, unless the receive is refused.
    ///
    /// # Errors
    /// The reason.
    #[inline(always)]
    pub fn receive_at_once(
        &mut self,
        selector: Selector,
        make: impl FnOnce() -> R,
        told: impl FnOnce(&R, &Envelope, u64) -> bool,
    ) -> Result<Option<ReceiveId>, Refused> {
        let ended = self.admit(&selector)?;
        Ok(self.post(selector, ended, make, told))
    }

    /// May a receive be posted? The result has its source if that has ended.
    #[inline(always)]
    fn admit(&self, selector: &Selector) -> Result<Option<PeerId>, Refused> {
        let ended = match selector.source.map(|source| (source, self.peers.value(source.0))) {
            Some((_, None)) => return Err(Refused::UnknownPeer),
            Some((source, Some(peer))) if peer.state == State::Ended => Some(source),
            _ => None,
        };
        if self.receives < self.limits.receives { Ok(ended) } else { Err(Refused::Full) }
    }

    #[inline(always)]
    fn post(
        &mut self,
        selector: Selector,
        ended: Option<PeerId>,
        make: impl FnOnce() -> R,
        told: impl FnOnce(&R, &Envelope, u64) -> bool,
    ) -> Option<ReceiveId> {
        self.receives += 1;
        if let Some(message) = self.take_unexpected(selector) {
            self.counts.receives_matched_at_once += 1;
            self.settle(message, make(), told);
            return None;
        }
        if let Some(peer) = ended {
            self.fail_receive(peer, make());
            return None;
        }
        Some(ReceiveId(self.posted.push(selector, make)))
    }

    /// The first message that a receive with `selector` would take.
    pub fn peek(&mut self, selector: &Selector) -> Option<Envelope> {
        let number = self.unexpected.find(selector)?;
        self.unexpected.get(number).map(|message| message.envelope)
    }

    /// Sets the first message aside that a receive with `selector` would take. No other receive gets it.
    pub fn claim(&mut self, selector: &Selector) -> Option<(ClaimId, Envelope)> {
        let number = self.unexpected.find(selector)?;
        let message = self.unexpected.remove(number)?;
        let envelope = message.envelope;
        self.claimed.insert(number, message);
        self.counts.messages_claimed += 1;
        Some((ClaimId(number), envelope))
    }

    /// Receives a message that was set aside.
    ///
    /// # Errors
    /// The reason, with the handle.
    pub fn receive_claimed(&mut self, claim: ClaimId, receive: R) -> Result<(), (Refused, R)> {
        if self.receives >= self.limits.receives {
            return Err((Refused::Full, receive));
        }
        let Some(message) = self.claimed.remove(&claim.0) else { return Err((Refused::NoClaim, receive)) };
        self.receives += 1;
        self.counts.claims_received += 1;
        self.settle(message, receive, |_, _, _| false);
        Ok(())
    }

    /// Drops a message that was set aside. Its send completes. The result says whether there was one.
    pub fn discard(&mut self, claim: ClaimId) -> bool {
        let Some(message) = self.claimed.remove(&claim.0) else { return false };
        self.counts.claims_discarded += 1;
        let peer = message.envelope.source;
        self.release(peer, message.window_bytes());
        match message.content {
            Content::Eager { synchronous, .. } => self.acknowledge(peer, synchronous),
            Content::Request { send } => self.grant_nothing(peer, send),
        }
        true
    }

    /// Takes back a receive that waits for a message.
    pub fn cancel(&mut self, receive: ReceiveId) -> Option<R> {
        let receive = self.posted.remove(receive.0)?;
        self.receives -= 1;
        self.counts.receives_cancelled += 1;
        Some(receive)
    }

    /// The buffer of a receive, which [`Event::Expose`] has named.
    pub fn sink(&mut self, transfer: TransferId) -> Option<&mut R> {
        self.receiving.value_mut(transfer.0).map(|receiving| &mut receiving.receive)
    }

    /// Answers [`Event::Expose`]: the peer may put into the region with this key, or, without one, sends pieces. The result
    /// says whether the receive still waits for that.
    pub fn grant(&mut self, transfer: TransferId, key: Option<u64>) -> bool {
        let waits = |receiving: &&mut Receiving<R>| receiving.state == ReceiveState::Exposing;
        let Some(receiving) = self.receiving.value_mut(transfer.0).filter(waits) else { return false };
        receiving.state = match key {
            Some(_) => ReceiveState::Put,
            None => ReceiveState::Pieces { done: 0 },
        };
        let (peer, send, length) = (receiving.envelope.source, receiving.send, receiving.wanted);
        self.counts.grants_of_puts += u64::from(key.is_some());
        self.counts.grants_of_pieces += u64::from(key.is_none());
        self.reply(peer, Head::Grant { send, receive: transfer.0, length, key });
        true
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event<S, R>> {
        let event = self.events.pop_front()?;
        match event {
            Event::Sent { .. } | Event::SendFailed { .. } => self.sends -= 1,
            Event::Received { .. } | Event::ReceiveFailed { .. } => self.receives -= 1,
            Event::Expose { .. } => {}
        }
        Some(event)
    }

    /// Takes back the first receive that waits for a message and whose handle is wanted.
    pub fn cancel_first(&mut self, is_wanted: impl Fn(&R) -> bool) -> Option<R> {
        let receive = self.posted.remove_first(is_wanted)?;
        self.receives -= 1;
        self.counts.receives_cancelled += 1;
        Some(receive)
    }

    /// Is there neither an event nor a peer to transmit to?
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.events.is_empty() && self.ready.is_empty()
    }

    /// Does an event wait?
    pub fn has_event(&self) -> bool {
        !self.events.is_empty()
    }

    /// A peer that has something to transmit. It is named once, until it has something more.
    pub fn next_ready(&mut self) -> Option<PeerId> {
        while let Some(peer) = self.ready.pop_front() {
            if let Some(state) = self.peers.value_mut(peer.0) {
                state.is_ready = false;
                return Some(peer);
            }
        }
        None
    }

    /// The transitions so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// What eager messages take that no receive has taken. At most [`Limits::growth_bytes_max`], and
    /// [`Limits::window_bytes`] of each peer.
    pub fn unexpected_bytes(&self) -> u64 {
        self.unexpected_bytes
    }

    /// The number of messages that no receive has taken, without claimed ones.
    pub fn unexpected_messages(&self) -> usize {
        self.unexpected.len()
    }

    /// The number of sends and receives whose events have not been taken.
    pub fn under_way(&self) -> (usize, usize) {
        (self.sends, self.receives)
    }

    #[inline]
    fn take_unexpected(&mut self, selector: Selector) -> Option<Message> {
        if self.unexpected.is_empty() { None } else { self.find_unexpected(selector) }
    }

    #[inline(never)]
    fn find_unexpected(&mut self, selector: Selector) -> Option<Message> {
        let number = self.unexpected.find(&selector)?;
        self.unexpected.remove(number)
    }

    /// A receive has matched a message that has waited.
    #[inline]
    fn settle(&mut self, message: Message, mut receive: R, told: impl FnOnce(&R, &Envelope, u64) -> bool) {
        let Message { envelope, content } = message;
        match content {
            Content::Eager { payload, synchronous } => {
                self.release(envelope.source, ENVELOPE_BYTES + payload.len() as u64);
                self.acknowledge(envelope.source, synchronous);
                let written = fill(&mut receive, &payload, &mut self.counts);
                if self.events.is_empty() && told(&receive, &envelope, written) {
                    self.receives -= 1;
                } else {
                    self.events.push_back(Event::Received { receive, envelope, written });
                }
            }
            Content::Request { send } => self.begin(envelope, send, receive),
        }
    }

    /// The payload of a request is asked for.
    fn begin(&mut self, envelope: Envelope, send: u64, receive: R) {
        let peer = envelope.source;
        if !self.is_connected(peer) {
            // Its message was claimed when it ended.
            self.counts.requests_lost += 1;
            return self.fail_receive(peer, receive);
        }
        let eager_bytes = self.peers.value(peer.0).map_or(0, |peer| peer.eager_bytes(&self.limits));
        let wanted = receive.capacity().min(envelope.length);
        self.counts.requests_truncated += u64::from(wanted < envelope.length);
        if wanted == 0 {
            self.grant_nothing(peer, send);
            return self.events.push_back(Event::Received { receive, envelope, written: 0 });
        }
        let state = ReceiveState::Exposing;
        let transfer =
            TransferId(self.receiving.insert(Receiving { receive, envelope, send, wanted, state }));
        if wanted <= eager_bytes {
            self.grant(transfer, None);
        } else {
            self.events.push_back(Event::Expose { transfer, peer, bytes: wanted });
        }
    }

    #[inline]
    fn acknowledge(&mut self, peer: PeerId, synchronous: Option<u64>) {
        if let Some(send) = synchronous {
            self.counts.acknowledgements += 1;
            self.reply(peer, Head::Acknowledgement { send });
        }
    }

    fn grant_nothing(&mut self, peer: PeerId, send: u64) {
        self.counts.grants_of_nothing += 1;
        self.reply(peer, Head::Grant { send, receive: 0, length: 0, key: None });
    }

    fn reply(&mut self, peer: PeerId, head: Head) {
        if let Some(state) = self.peers.value_mut(peer.0).filter(|state| state.is_connected()) {
            state.replies.push_back(head);
            self.make_ready(peer);
        }
    }

    /// An eager message of the peer takes no memory any more.
    fn release(&mut self, peer: PeerId, bytes: u64) {
        self.unexpected_bytes -= bytes;
        self.give_back(peer, bytes);
    }

    /// Bytes go back to the window of a peer.
    fn give_back(&mut self, peer: PeerId, bytes: u64) {
        let Some(state) = self.peers.value_mut(peer.0) else { return };
        state.freed += bytes;
        if state.owes_credit() {
            self.make_ready(peer);
        }
    }

    fn fail_receive(&mut self, peer: PeerId, receive: R) {
        self.counts.receives_failed += 1;
        self.events.push_back(Event::ReceiveFailed { receive, peer });
    }

    fn is_connected(&self, peer: PeerId) -> bool {
        self.peers.value(peer.0).is_some_and(Peer::is_connected)
    }

    fn make_ready(&mut self, peer: PeerId) {
        let waits = |state: &&mut Peer<S>| state.is_connected() && !state.is_ready;
        if let Some(state) = self.peers.value_mut(peer.0).filter(waits) {
            state.is_ready = true;
            self.ready.push_back(peer);
        }
    }
}

/// The payload of an eager message goes into a buffer, as far as that has room. The result says how many bytes.
#[inline(always)]
fn fill<R: Sink>(receive: &mut R, payload: &[u8], counts: &mut Counts) -> u64 {
    let length = payload.len() as u64;
    let written = receive.capacity().min(length);
    counts.eager_messages_truncated += u64::from(written < length);
    if written > 0 {
        receive.fill(&payload[..written as usize]);
    }
    written
}
