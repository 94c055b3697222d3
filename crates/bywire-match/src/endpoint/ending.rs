//! The end of a peer.

use super::peer::State;
use super::{Endpoint, Receiving, Sending};
use crate::operation::{Event, Sink};
use crate::slab::PeerId;
use crate::unexpected::Content;

impl<S, R: Sink> Endpoint<S, R> {
    /// The connection to a peer has ended, or could not be made. Sends to it fail, and receives that name it or have
    /// matched a message of it. Eager messages of it can still be received. Receives from any source go on.
    pub fn disconnected(&mut self, peer: PeerId) {
        let Some(state) = self.peers.value_mut(peer.0).filter(|state| state.state != State::Ended) else {
            return;
        };
        state.state = State::Ended;
        state.replies.clear();
        state.granted.clear();
        let queued = std::mem::take(&mut state.queued);
        let requests = self.unexpected.numbers(|message| {
            message.envelope.source == peer && matches!(message.content, Content::Request { .. })
        });
        for number in requests {
            self.counts.requests_lost += u64::from(self.unexpected.remove(number).is_some());
        }
        for key in self.sending.keys(|sending| sending.peer == peer) {
            if let Some(Sending { send, .. }) = self.sending.remove(key) {
                self.fail_send(peer, send);
            }
        }
        queued.into_iter().for_each(|(_, send)| self.fail_send(peer, send));
        for key in self.receiving.keys(|receiving| receiving.envelope.source == peer) {
            if let Some(Receiving { receive, .. }) = self.receiving.remove(key) {
                self.fail_receive(peer, receive);
            }
        }
        self.posted.take_all_from(peer).into_iter().for_each(|receive| self.fail_receive(peer, receive));
    }

    /// Ends a peer, and forgets it with its messages, also claimed ones. Its number means no peer from then on.
    pub fn forget(&mut self, peer: PeerId) {
        self.disconnected(peer);
        for number in self.unexpected.numbers(|message| message.envelope.source == peer) {
            if let Some(message) = self.unexpected.remove(number) {
                self.unexpected_bytes -= message.window_bytes();
            }
        }
        self.claimed.retain(|_, message| {
            let is_kept = message.envelope.source != peer;
            self.unexpected_bytes -= if is_kept { 0 } else { message.window_bytes() };
            is_kept
        });
        if let Some(state) = self.peers.remove(peer.0) {
            self.growth_bytes -= state.window + state.growth - self.limits.window_bytes;
        }
    }

    fn fail_send(&mut self, peer: PeerId, send: S) {
        self.counts.sends_failed += 1;
        self.events.push_back(Event::SendFailed { send, peer });
    }
}
